"""The headers that kernels include by name: CUDA C++ files of templates/headers.

nvcc and g++ read them from their folder, NVRTC from memory, and a text that is handed over has them in place.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import scanops.templates

FOLDER = Path(scanops.templates.__path__[0])  # where compilers find them, by names that begin with "headers/"
_INCLUDE = re.compile(r'^#include "(headers/[\w/]+\.cuh)"$', re.MULTILINE)
_ONLY_IN_FILES = re.compile(r"^(#pragma once|//@.*)\n", re.MULTILINE)


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
    """Return a text with its headers in place of the lines that include them, each once."""
    seen: set[str] = set()

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return ""
        seen.add(name)
        body = _INCLUDE.sub(replace, _ONLY_IN_FILES.sub("", _read(name)))
        return body.rstrip("\n") + "\n"

    return _INCLUDE.sub(replace, text)


@functools.cache
def _read(name: str) -> str:
    return (resources.files(scanops.templates) / name).read_text(encoding="utf-8")
