"""The environment variables scanops reads: the only file that touches ``os.environ``.

Every accessor reads at call time, so a variable set after ``import scanops`` counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs  # here, where it counts towards the import: it takes longer than a look-up in the store

from scanops.errors import BadSignature, UnsupportedRequest
from scanops.forks import NO_FORK

__all__ = [
    "POLICIES",
    "VARIABLES",
    "Variable",
    "checked_policy",
    "child",
    "cuda_homes",
    "cxx",
    "given",
    "inherited",
    "lock_seconds",
    "max_store",
    "native",
    "nvcc",
    "overlaid",
    "pack_roots",
    "policy",
    "record_file",
    "require_signed",
    "search_path",
    "store_root",
    "tuning_files",
    "verbose",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One row of the table that the README and ``scanops doctor`` print."""

    name: str  # as the shell spells it
    kind: str  # path, seconds, switch or command
    default: str  # what counts when it is unset or empty, in words where it is computed
    meaning: str  # one line


VARIABLES: tuple[Variable, ...] = (
    Variable(
        name="SCANOPS_STORE",
        kind="path",
        default="the user's cache folder, ~/.cache/scanops on Linux",
        meaning="where built kernels are kept",
    ),
    Variable(
        name="SCANOPS_PACKS",
        kind="paths",
        default="none besides the packs that are installed as wheels",
        meaning="folders of kernels built elsewhere, with : between them, searched after the store and never written",
    ),
    Variable(
        name="SCANOPS_REQUIRE_SIGNED",
        kind="path",
        default="unset",
        meaning="a file of public keys: only kernels of packs that one of them signed are loaded, and none is built",
    ),
    Variable(
        name="SCANOPS_MAX_STORE",
        kind="size",
        default="5GB",
        meaning="what the store may hold: after a build the kernels used longest ago go; none: no limit",
    ),
    Variable(
        name="SCANOPS_TUNING",
        kind="paths",
        default="the user's configuration folder, ~/.config/scanops/tuning.json on Linux",
        meaning="files of measured plans, with : between them, the first one that knows a kernel counts",
    ),
    Variable(name="SCANOPS_NVCC", kind="path", default="searched for", meaning="the nvcc to use, before any other"),
    Variable(name="CUDA_HOME", kind="path", default="unset", meaning="a CUDA toolkit; its bin/nvcc is tried second"),
    Variable(name="CUDA_PATH", kind="path", default="unset", meaning="the same, tried after CUDA_HOME"),
    Variable(name="SCANOPS_CXX", kind="command", default="g++", meaning="the host C++ compiler, a name or a path"),
    Variable(
        name="SCANOPS_LOCK_SECONDS",
        kind="seconds",
        default="60",
        meaning="how long to wait for another process that builds the same kernel before building it privately",
    ),
    Variable(
        name="SCANOPS_POLICY",
        kind="word",
        default="build",
        meaning="when a kernel is not in the store: build, generic, background, fallback or never",
    ),
    Variable(
        name="SCANOPS_RECORD",
        kind="path",
        default="unset",
        meaning="a file to which the specs that are used are written, for scanops precompile",
    ),
    Variable(
        name="SCANOPS_NATIVE",
        kind="switch",
        default="1",
        meaning="0 serves each call from Python, and builds and loads nothing that could do without",
    ),
    Variable(name="SCANOPS_VERBOSE", kind="switch", default="0", meaning="1 prints a line before and after each build"),
)

_DEFAULT = {row.name: row.default for row in VARIABLES}
# Of a user without HOME whom the system does not know, as containers run by a number: nothing is there, and nothing can
# be made there. Packs serve all the same, and what would be written says that SCANOPS_STORE is missing.
_HOMELESS = Path("/proc/this user has no home/scanops")
POLICIES = ("build", "generic", "background", "fallback", "never")  # on a miss
_OFF = frozenset({"", "0", "false", "no", "off"})


def store_root() -> Path:
    """Root of the user's store: ``SCANOPS_STORE``, else the user's cache folder. Touches no disk."""
    if chosen := os.environ.get("SCANOPS_STORE"):
        return _path("SCANOPS_STORE", chosen).absolute()
    return _users(platformdirs.user_cache_path)


def pack_roots() -> tuple[Path, ...]:
    """The folders of ``SCANOPS_PACKS``, in its order. Touches no disk."""
    chosen = os.environ.get("SCANOPS_PACKS", "")
    return tuple(_path("SCANOPS_PACKS", name).absolute() for name in chosen.split(os.pathsep) if name)


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
    return None if chosen is None else _path("SCANOPS_REQUIRE_SIGNED", chosen).absolute()


def max_store() -> int | None:
    """Bytes the user's store may hold, None without a limit. Raises UnsupportedRequest for what is no size."""
    from scanops.sizes import parse_size

    return parse_size(
        os.environ.get("SCANOPS_MAX_STORE") or _DEFAULT["SCANOPS_MAX_STORE"], asked="read SCANOPS_MAX_STORE"
    )


def tuning_files() -> tuple[Path, ...]:
    """The files of measured plans: ``SCANOPS_TUNING``, else the user's own. Touches no disk; none need exist."""
    if chosen := os.environ.get("SCANOPS_TUNING"):
        return tuple(_path("SCANOPS_TUNING", name).absolute() for name in chosen.split(os.pathsep) if name)
    return (_users(platformdirs.user_config_path) / "tuning.json",)


def given(name: str) -> str | None:
    """What a variable of the table is set to; None when it is unset or empty, which counts the same."""
    return os.environ.get(name) or None


def nvcc() -> Path | None:
    """``SCANOPS_NVCC``, or None."""
    chosen = os.environ.get("SCANOPS_NVCC")
    return _path("SCANOPS_NVCC", chosen) if chosen else None


def cuda_homes() -> tuple[tuple[str, Path], ...]:
    """``CUDA_HOME`` and ``CUDA_PATH`` as far as they are set: (variable, folder), in the order to try."""
    names = ("CUDA_HOME", "CUDA_PATH")
    return tuple((name, _path(name, value)) for name in names if (value := os.environ.get(name)))


def cxx() -> str:
    """The host C++ compiler as the user names it."""
    return os.environ.get("SCANOPS_CXX") or _DEFAULT["SCANOPS_CXX"]


def lock_seconds() -> float:
    """Seconds to wait for another builder, >= 0. Raises UnsupportedRequest for anything but a number."""
    text = os.environ.get("SCANOPS_LOCK_SECONDS") or _DEFAULT["SCANOPS_LOCK_SECONDS"]
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
    """``SCANOPS_POLICY``: what to do when a kernel is not in the store. Raises UnsupportedRequest for another word."""
    name = os.environ.get("SCANOPS_POLICY")
    return checked_policy(name, "read SCANOPS_POLICY", "export SCANOPS_POLICY=build, or unset it") if name else "build"


def checked_policy(name: str, asked: str, hint: str) -> str:
    """``name``, which is a policy; else raises UnsupportedRequest."""
    if name not in POLICIES:
        raise UnsupportedRequest(asked, allowed=", ".join(POLICIES), value=repr(name), hint=hint)
    return name


def record_file() -> Path | None:
    """``SCANOPS_RECORD``, or None."""
    chosen = os.environ.get("SCANOPS_RECORD")
    return _path("SCANOPS_RECORD", chosen).absolute() if chosen else None


def native() -> bool:
    """Whether calls may be served without Python."""
    return (os.environ.get("SCANOPS_NATIVE") or _DEFAULT["SCANOPS_NATIVE"]).strip().lower() not in _OFF


def verbose() -> bool:
    """Whether builds are to be announced on standard error."""
    return os.environ.get("SCANOPS_VERBOSE", "").strip().lower() not in _OFF


def search_path() -> str:
    """``PATH`` as it is now."""
    return os.environ.get("PATH", os.defpath)


def child(**changes: str) -> dict[str, str]:
    """The environment for a compiler: ours, its messages in English, and ``changes``."""
    return inherited(**{"LC_ALL": "C", **changes})


def inherited(**changes: str) -> dict[str, str]:
    """The environment for a program of the user: ours, and ``changes``."""
    with NO_FORK:  # a copy fails where a variable goes meanwhile
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


def _path(name: str, text: str) -> Path:
    """The path that a variable is set to. Raises UnsupportedRequest where ~ is the home of nobody."""
    try:
        return Path(text).expanduser()
    except RuntimeError as problem:
        raise UnsupportedRequest(
            f"read {name}",
            allowed="a path, where ~ is the home folder of a user who has one",
            value=repr(text),
            hint=f"export {name}=/the/whole/path",
        ) from problem


def _users(folder: Callable[..., Path]) -> Path:
    """One of the user's own folders, as platformdirs names them."""
    try:
        path = folder("scanops", appauthor=False)
    except RuntimeError:
        return _HOMELESS
    return path if path.is_absolute() else _HOMELESS


def _apply(values: Mapping[str, str | None]) -> None:
    with NO_FORK:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
