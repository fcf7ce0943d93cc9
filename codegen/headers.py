"""The headers that kernels include by name: CUDA C++ files of templates/headers.

nvcc and g++ read them from their folder, NVRTC from memory, and a text that is handed over has them in place. A header
that begins with ``#pragma once`` is there once; the others are in each namespace that includes them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import scanops.templates

if TYPE_CHECKING:
    from scanops.codegen.strategies.base import Constant

FOLDER = Path(scanops.templates.__path__[0])  # where compilers find them, by names that begin with "headers/"
_INCLUDE = re.compile(r'^#include "(headers/[\w/]+\.cuh)"\n', re.MULTILINE)
_ONCE = re.compile(r"^#pragma once\n", re.MULTILINE)
_DECLARED = re.compile(  # functions, structs, macros and types
    r"__forceinline__ [^(=]*?(\w+)\(|^struct (?:alignas\(.*?\) )?(\w+)|^#define (\w+)|^typedef .*?(\w+);", re.MULTILINE
)
_WORD = re.compile(r"[A-Za-z_]\w*")


def list_headers(text: str) -> Mapping[str, str]:
    """Return the headers that a text includes, and those that these include, by name."""
    found: dict[str, str] = {}
    waiting = _INCLUDE.findall(text)
    while waiting:
        name = waiting.pop(0)
        if name not in found:
            found[name] = _read(name)
            waiting += _INCLUDE.findall(found[name])
    return found


def inline_headers(text: str) -> str:
    """Return a text with its headers in place of the lines that include them."""
    seen: set[str] = set()

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return ""
        if _ONCE.search(_read(name)):
            seen.add(name)
        return _INCLUDE.sub(replace, _ONCE.sub("", _read(name)))

    return _INCLUDE.sub(replace, text)


def select_headers(names: Iterable[str], text: str) -> list[str]:
    """Return those of ``names`` that declare something which a text names."""
    used = set(_WORD.findall(text))
    return [name for name in names if not used.isdisjoint(_declared_in(f"headers/{name}.cuh"))]


def select_constants(constants: Iterable[Constant], text: str) -> list[Constant]:
    """Return the constants that a text or the headers that it includes name."""
    used = set(_WORD.findall(text)).union(*map(_words_of, list_headers(text)))
    return [constant for constant in constants if constant.name in used]


@functools.cache
def _read(name: str) -> str:
    return (resources.files(scanops.templates) / name).read_text(encoding="utf-8")


@functools.cache
def _words_of(name: str) -> frozenset[str]:
    return frozenset(_WORD.findall(_read(name)))


@functools.cache
def _declared_in(name: str) -> frozenset[str]:
    return frozenset(filter(None, (word for found in _DECLARED.findall(_read(name)) for word in found)))
