"""The environment variables of scanops: the only file that touches ``os.environ``.

Every function reads at call time, so that a variable set after ``import scanops`` applies.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scanops.errors import BadSignature, UnsupportedRequest, did_you_mean
from scanops.forks import FORK_LOCK, import_late


class Variable(NamedTuple):
    """One row of the table of environment variables, which ``scanops doctor`` and docs/deployment.md print."""

    name: str  # as the shell spells it
    default: str  # what applies when it is unset or empty; in words where it is computed
    meaning: str  # one line
    read: Callable[[], object]  # parses its value; raises a ScanopsError for an invalid one


AUTO = "auto"
BUILDERS = (AUTO, "load_inline", "nvcc", "nvrtc")  # of kernels for GPUs, in the order in which auto asks ahead of time
POLICIES = ("build", "generic", "background", "fallback", "never")  # on a cache miss
# The policy of the innermost ``with scanops.policy(...)`` block, None outside of all
SCOPED: ContextVar[str | None] = ContextVar("scanops_policy", default=None)
# For a user without a HOME whom the system does not know, as containers with numeric users have: nothing exists there
# and nothing can be made there. Packs serve all the same, and a write fails with a hint to set SCANOPS_STORE.
_HOMELESS = Path("/proc/this user has no home/scanops")
_OFF = ("0", "false", "no", "off")
_ON = ("1", "true", "yes", "on")


def path(name: str, text: str | None = None) -> Path | None:
    """Return the path of a variable, ~ expanded; None if it is unset. Raises UnsupportedRequest for an unknown ~."""
    text = read_variable(name) if text is None else text
    try:
        return Path(text).expanduser().absolute() if text else None
    except RuntimeError as problem:
        raise UnsupportedRequest(
            f"read {name}",
            allowed="a path, where ~ is the home folder of a user who has one",
            value=repr(text),
            hint=f"export {name}=/the/whole/path",
        ) from problem


def store_root() -> Path:
    """Return the root of the user's store: ``SCANOPS_STORE``, else the user's cache folder. Touches no disk."""
    return path("SCANOPS_STORE") or _users("user_cache_path")


def pack_roots() -> tuple[Path, ...]:
    """Return the folders of ``SCANOPS_PACKS``, in order. Touches no disk."""
    return _paths("SCANOPS_PACKS")


def require_signed() -> Path | None:
    """Return the file that ``SCANOPS_REQUIRE_SIGNED`` names, None if it is unset. Touches no disk.

    Raises BadSignature if it is set and empty: an empty shell variable must not turn the check off.
    """
    chosen = os.environ.get("SCANOPS_REQUIRE_SIGNED")
    if chosen is not None and not chosen.strip():
        raise BadSignature(
            f"read SCANOPS_REQUIRE_SIGNED: it is {chosen!r}, which trusts no key",
            allowed="a file of public keys",
            value=repr(chosen),
            hint="export SCANOPS_REQUIRE_SIGNED=PUB.pem, or unset it to load unsigned kernels",
        )
    return path("SCANOPS_REQUIRE_SIGNED")


def tuning_files() -> tuple[Path, ...]:
    """Return the files of measured plans: ``SCANOPS_TUNING``, else the user's own. Touches no disk."""
    return _paths("SCANOPS_TUNING") or (_users("user_config_path") / "tuning.json",)


def builder() -> str:
    """Return who builds kernels for GPUs: ``SCANOPS_BUILDER``, else auto. Raises UnsupportedRequest for no builder."""
    return _one_of(BUILDERS, "SCANOPS_BUILDER", read_variable("SCANOPS_BUILDER") or AUTO)


def cxx() -> str:
    """Return the host C++ compiler as the user names it: ``SCANOPS_CXX``, else g++."""
    return read_variable("SCANOPS_CXX") or "g++"


def lock_seconds() -> float:
    """Return the seconds to wait for another builder, 0 or more. Raises UnsupportedRequest for an invalid number."""
    text = read_variable("SCANOPS_LOCK_SECONDS") or "60"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise UnsupportedRequest(
            "read SCANOPS_LOCK_SECONDS",
            allowed="a number of seconds, 0 or more",
            value=repr(text),
            hint="export SCANOPS_LOCK_SECONDS=60, or unset it",
        )
    return seconds


def policy() -> str:
    """Return what to do on a cache miss here: the policy of the innermost block, else ``SCANOPS_POLICY``.

    Raises UnsupportedRequest for a variable that names no policy.
    """
    return _one_of(POLICIES, "SCANOPS_POLICY", SCOPED.get() or read_variable("SCANOPS_POLICY") or "build")


def _one_of(known: Sequence[str], variable: str, name: str) -> str:
    if name not in known:
        raise no_such(name, known, f"read {variable}", f"export {variable}={known[0]}, or unset it")
    return name


def no_such(name: object, known: Sequence[str], asked: str, hint: str) -> UnsupportedRequest:
    """Return the error for a name that is not one of ``known``, the policies or the builders."""
    hint = did_you_mean(name, known) + hint
    return UnsupportedRequest(asked, allowed=", ".join(known), value=repr(name), hint=hint)


def native() -> bool:
    """Return whether repeated calls may be launched by the C++ call path, which needs the interpreter's lock.

    Raises UnsupportedRequest where ``SCANOPS_NATIVE`` is neither on nor off.
    """
    locked: bool = getattr(sys, "_is_gil_enabled", lambda: True)()  # asked of Python 3.13 and later
    word = (read_variable("SCANOPS_NATIVE") or "1").strip().lower()
    if word not in (*_ON, *_OFF, ""):
        raise no_such(word, (*_ON, *_OFF), "read SCANOPS_NATIVE", "export SCANOPS_NATIVE=0, or unset it")
    return locked and word in _ON


def read_variable(name: str) -> str | None:
    """Return the value of a variable; None when it is unset or empty, which mean the same."""
    return os.environ.get(name) or None


def unknown() -> tuple[str, ...]:
    """Return the variables that are set, begin as those of scanops do, and are none: misspelled ones."""
    known = {row.name for row in VARIABLES} | {"SCANOPS_PREBUILT"}  # of the build of a wheel
    return tuple(sorted(name for name in os.environ if name.startswith("SCANOPS_") and name not in known))


VARIABLES = (
    Variable(
        "SCANOPS_STORE", "the user's cache folder, ~/.cache/scanops on Linux", "folder of built kernels", store_root
    ),
    Variable(
        "SCANOPS_PACKS",
        "none besides packs installed by pip",
        "folders of kernels built elsewhere, separated by :, searched after the store and never written",
        pack_roots,
    ),
    Variable(
        "SCANOPS_REQUIRE_SIGNED",
        "unset",
        "file of public keys: only kernels of packs signed by one of them are loaded, and none is built",
        require_signed,
    ),
    Variable(
        "SCANOPS_TUNING",
        "the user's configuration folder, ~/.config/scanops/tuning.json on Linux",
        "files of measured plans, separated by :, of which the first that has a kernel applies",
        tuning_files,
    ),
    Variable(
        "SCANOPS_BUILDER",
        AUTO,
        "who builds kernels for GPUs: load_inline, nvrtc or nvcc, and nobody else; auto: NVRTC first for a call",
        builder,
    ),
    Variable("SCANOPS_NVRTC", "searched for", "the libnvrtc.so to use, and no other", partial(path, "SCANOPS_NVRTC")),
    Variable("SCANOPS_NVCC", "searched for", "the nvcc to use, before any other", partial(path, "SCANOPS_NVCC")),
    Variable("CUDA_HOME", "unset", "a CUDA toolkit; its bin/nvcc is tried second", partial(path, "CUDA_HOME")),
    Variable("SCANOPS_CXX", "g++", "host C++ compiler, a name or a path", cxx),
    Variable(
        "SCANOPS_LOCK_SECONDS",
        "60",
        "how long to wait for another process that builds the same kernel before building it privately",
        lock_seconds,
    ),
    Variable(
        "SCANOPS_POLICY",
        "build",
        "what to do on a cache miss: build, generic, background, fallback or never",
        policy,
    ),
    Variable(
        "SCANOPS_RECORD",
        "unset",
        "spec file to which the specs that are used are added, for scanops precompile",
        partial(path, "SCANOPS_RECORD"),
    ),
    Variable(
        "SCANOPS_NATIVE",
        "1",
        "0 launches every call from Python, and neither builds nor loads the C++ call path",
        native,
    ),
)


def search_path() -> str:
    """Return the current value of ``PATH``."""
    return os.environ.get("PATH", os.defpath)


def python_path() -> list[str]:
    """Return the absolute folders that ``PYTHONPATH`` names. A relative or empty one leads to the current folder."""
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if Path(folder).is_absolute()]


# What compilers are given of this process's environment: where programs and their libraries are. No other variable
# reaches them, since many change machine code that is stored under one identity: CPATH and CPLUS_INCLUDE_PATH,
# LD_RUN_PATH, COMPILER_PATH, NVCC_APPEND_FLAGS. One that is to change it becomes a flag, which is part of the identity.
COMPILER_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "HOME")


def for_compilers(**changes: str) -> dict[str, str]:
    """Return the environment of compilers: ``COMPILER_VARIABLES``, messages in English, and ``changes``."""
    with FORK_LOCK:
        found = {name: os.environ[name] for name in COMPILER_VARIABLES if name in os.environ}
    return {**found, "LC_ALL": "C", **changes}


def child(**changes: str) -> dict[str, str]:
    """Return the environment for a program to start: that of this process, and ``changes``."""
    with FORK_LOCK:  # a copy fails if a variable is removed meanwhile
        return {**os.environ, **changes}


@contextmanager
def overlaid(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables (None: unset) for the length of a ``with`` block.

    For code that takes its settings from the environment only. The environment belongs to the whole process, so
    callers hold a lock.
    """
    before = {name: os.environ.get(name) for name in changes}
    try:
        _apply(changes)
        yield
    finally:
        _apply(before)


def _paths(name: str) -> tuple[Path, ...]:
    paths = (path(name, each) for each in (read_variable(name) or "").split(os.pathsep))
    return tuple(each for each in paths if each)


def _users(folder: str) -> Path:
    """Return one of the user's own folders, as platformdirs names them."""
    try:
        # Who sets the variables needs none of it.
        place: Path = getattr(import_late("platformdirs"), folder)("scanops", appauthor=False)
    except RuntimeError:
        return _HOMELESS
    return place if place.is_absolute() else _HOMELESS


def _apply(values: Mapping[str, str | None]) -> None:
    with FORK_LOCK:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
