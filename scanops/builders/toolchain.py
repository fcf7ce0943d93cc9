"""Finding the compilers, and why each was chosen.

nvcc itself is asked for its root: an nvcc on PATH is often a wrapper script, and the folder above it says nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scanops import environment
from scanops.builders import programs
from scanops.codegen.targets import TARGETS, nearest_targets
from scanops.errors import BuildFailure, MissingCompiler, UnsupportedRequest
from scanops.forks import import_late

_TARGET = re.compile(r"(sm_\d+)([af]?)")
_USUAL_ROOT = Path("/usr/local/cuda")
_INSTALL_NVCC = 'pip install "cuda-toolkit[nvcc,cudart,cccl]", or install a CUDA toolkit and set CUDA_HOME to it'
_INSTALL_CXX = "install g++ (Debian: apt-get install g++), or set SCANOPS_CXX to a C++ compiler"
# Folders of the runtime in the wheels that torch depends on: CUDA 13 and later, then 12.
_WHEEL_FOLDERS = ("nvidia/cu*/lib", "nvidia/cuda_runtime/lib")
_READ_BY_SHELLS = frozenset('$`"\\\n')


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaToolkit:
    """One nvcc and the toolkit it belongs to."""

    path: Path  # of the nvcc that is called; may be a wrapper script
    found_by: str  # "SCANOPS_NVCC", "CUDA_HOME", "cuda-pathfinder", "PATH" ...
    root: Path  # as nvcc itself states it
    version: str  # "13.0"
    targets: tuple[str, ...]  # ("sm_75", "sm_80", ...), as nvcc lists them
    runtime: Path | None  # the libcudart.so.N to link against


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The C++ compiler for the emulator, for linking and for nvcc's host half; or the ninja that load_inline calls."""

    path: Path  # absolute
    found_by: str  # "SCANOPS_CXX=clang++ on PATH", "ninja package" and the like
    version: str  # the first line of --version


def find_nvcc() -> CudaToolkit:
    """Return the nvcc to use. Raises MissingCompiler for none, BuildFailure for one that does not answer."""
    tried: list[str] = []
    for found_by, path in _nvcc_candidates():
        tried.append(f"{found_by} ({path})" if path else found_by)
        if path is not None and path.is_file():
            return _probe_nvcc(path.absolute(), found_by, _which(environment.cxx()))
        if found_by == "SCANOPS_NVCC":
            break
    only = "correct SCANOPS_NVCC, or unset it: nothing else is tried"
    raise MissingCompiler(
        "find nvcc",
        allowed="an nvcc in one of the places searched",
        value="none in " + ", ".join(tried),
        hint=only if environment.read_variable("SCANOPS_NVCC") else _INSTALL_NVCC,
    )


def find_cxx() -> Program:
    """Return the host C++ compiler. Raises MissingCompiler for none, BuildFailure for one that does not run."""
    wanted = environment.cxx()
    path = _which(wanted)
    if path is None:
        raise MissingCompiler(
            "find a host C++ compiler",
            allowed="a compiler on PATH or a path to one (SCANOPS_CXX)",
            value=f"{wanted!r}: not found",
            hint=_INSTALL_CXX,
        )
    version = _version(path, "the C++ compiler")
    return Program(path=path, found_by=f"{wanted} on PATH", version=version.split("\n")[0] or "?")


def find_ninja() -> Program:
    """Return the ninja package's own binary, else the one on PATH. Raises MissingCompiler when there is neither."""
    for found_by, path in (("ninja package", _find_packaged_ninja()), ("PATH", _which("ninja"))):
        if path is not None and path.is_file():
            return Program(path=path, found_by=found_by, version=_version(path, "ninja"))
    raise MissingCompiler(
        "find ninja", allowed="the ninja package or a ninja on PATH", value="neither", hint="pip install ninja"
    )


def require_target(toolkit: CudaToolkit, target: str) -> None:
    """Raise UnsupportedRequest unless this nvcc can compile for ``target`` ("sm_90", "sm_90a")."""
    match = _TARGET.fullmatch(target)
    if match is None or match[1] not in toolkit.targets:
        usable = [name for name in TARGETS if name in toolkit.targets]
        nearest = f"use {nearest_targets(target, usable)}, or " if usable else ""
        raise UnsupportedRequest(
            f"compile for target {target!r}",
            allowed=f"what nvcc {toolkit.version} and scanops know: {', '.join(usable)}; or cpu, the emulator",
            value=repr(target),
            hint=f"{nearest}set SCANOPS_NVCC to the nvcc of a toolkit that knows {target} (this one: {toolkit.path})",
        )


def cuda_compilers(target: str) -> tuple[CudaToolkit, Program, Path]:
    """Return nvcc, the host compiler and the CUDA runtime to link against, for a build for ``target``.

    Raises MissingCompiler for one that is missing, UnsupportedRequest for a target that nvcc does not know, and
    BuildFailure for compilers in a folder whose name the shell that nvcc uses would interpret.
    """
    toolkit, cxx = find_nvcc(), find_cxx()
    require_target(toolkit, target)
    for path in map(str, (toolkit.path, toolkit.root, cxx.path)):
        if _READ_BY_SHELLS.intersection(path):
            raise BuildFailure(
                f"run nvcc with {path!r}",
                allowed='folders without $, `, ", \\ and line ends in their names: nvcc passes names to a shell',
                value=path,
                hint="move the toolkit or the environment, or set SCANOPS_NVCC and SCANOPS_CXX to others",
            )
    if toolkit.runtime is None:
        raise MissingCompiler(
            "link against the CUDA runtime",
            allowed="a toolkit with libcudart.so.*",
            value=f"none in {toolkit.root}",
            hint='pip install "cuda-toolkit[nvcc,cudart,cccl]", or set SCANOPS_NVCC to the nvcc of a whole toolkit',
        )
    return toolkit, cxx, toolkit.runtime


def ensure_runtime(soname: str, path: Path) -> None:
    """Load the CUDA runtime ``soname`` unless it is loaded: where the system finds it, or from ``path``."""
    # A library that needs this soname is then satisfied whatever the search path is; a local scope is enough.
    try:
        ctypes.CDLL(soname)
    except OSError:
        ctypes.CDLL(str(path))


def wheel_folders() -> list[Path]:
    """Return the folders in which installed wheels lie: site-packages, that of torch, those that PYTHONPATH names.

    sys.path is not used: its first entry is the folder in which a program was started, or that of its script, and a
    library in a folder that somebody else filled would be loaded from there.
    """
    found = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    found += [str(Path(torch).parents[1])] if torch else []
    found += [] if sys.flags.ignore_environment else environment.python_path()
    here = os.path.realpath(".")
    elsewhere = [folder for folder in found if Path(folder).is_absolute() and os.path.realpath(folder) != here]
    installed = site.getsitepackages()  # even where it is the current folder
    return [Path(folder) for folder in dict.fromkeys([*installed, *elsewhere])]


def runtimes(soname: str) -> list[Path]:
    """Return the files called ``soname`` in installed wheels and in the toolkit, in this order."""
    places = wheel_folders()
    found = [match for base in places for folder in _WHEEL_FOLDERS for match in base.glob(f"{folder}/{soname}")]
    with contextlib.suppress(BuildFailure):
        runtime = find_nvcc().runtime
        if runtime and runtime.with_name(soname).is_file():
            found.append(runtime.with_name(soname))
    return found


def _nvcc_candidates() -> Iterator[tuple[str, Path | None]]:
    if chosen := environment.path("SCANOPS_NVCC"):
        yield "SCANOPS_NVCC", chosen
    if home := environment.path("CUDA_HOME"):
        yield "CUDA_HOME", home / "bin" / "nvcc"
    yield "cuda-pathfinder", _pathfinder_nvcc()
    yield "PATH", _which("nvcc")
    yield str(_USUAL_ROOT), _USUAL_ROOT / "bin" / "nvcc"


def _pathfinder_nvcc() -> Path | None:
    try:
        found = import_late("cuda.pathfinder").find_nvidia_binary_utility("nvcc")
    except ImportError:
        return None
    return Path(found) if found else None


def _find_packaged_ninja() -> Path | None:
    try:
        return Path(import_late("ninja").BIN_DIR) / "ninja"
    except ImportError:
        return None


def _which(name: str) -> Path | None:
    found = shutil.which(name, path=environment.search_path())
    return Path(found).absolute() if found else None


@functools.lru_cache(maxsize=16)
def _probe_nvcc(path: Path, found_by: str, cxx: Path | None) -> CudaToolkit:
    release = re.search(r"release (\d+\.\d+)", _words([str(path), "--version"], "nvcc"))
    listed = _words([str(path), "--list-gpu-code"], "nvcc").split()
    host = ["-ccbin", str(cxx)] if cxx else []
    dry = _words([str(path), *host, "--dryrun", "-x", "cu", "/dev/null"], "nvcc")
    top = re.search(r"^#\$ TOP=(.+)$", dry, re.MULTILINE)
    if top is None or release is None:
        raise (BuildFailure if cxx else MissingCompiler)(
            f"ask {path} for its version and root",
            allowed="'release N.N' and a TOP= line",
            value=dry.strip()[:2000],
            hint=f"nvcc needs a host compiler to answer: {_INSTALL_CXX}; or set SCANOPS_NVCC to another nvcc",
        )
    root = Path(top[1].strip()).resolve()
    folders = [*_library_folders(dry), root / "lib64", root / "lib"]
    return CudaToolkit(
        path=path,
        found_by=found_by,
        root=root,
        version=release[1],
        targets=tuple(sorted((code for code in listed if _TARGET.fullmatch(code)), key=lambda code: int(code[3:]))),
        runtime=next((found for folder in folders if (found := _runtime(folder))), None),
    )


def _library_folders(dry: str) -> list[Path]:
    line = re.search(r"^#\$ LIBRARIES=(.*)$", dry, re.MULTILINE)
    return [Path(text) for text in re.findall(r'"?-L([^"\s]+)"?', line[1])] if line else []


def _runtime(folder: Path) -> Path | None:
    """The libcudart.so.N with the shortest name: the one the soname points at, which wheels ship without a .so link."""
    found = sorted(folder.glob("libcudart.so.*"), key=lambda path: (len(path.name), path.name))
    return found[0].parent.resolve() / found[0].name if found else None


@functools.lru_cache(maxsize=16)
def _version(path: Path, what: str) -> str:
    return _words([str(path), "--version"], what, must_succeed=True).strip()


def _words(command: list[str], what: str, *, must_succeed: bool = False) -> str:
    """What a command prints on both streams. Raises BuildFailure for one that does not start."""
    try:
        status, printed = programs.run(command, folder=Path("/"), seconds=60.0)
        if status != 0 and must_succeed:
            raise subprocess.CalledProcessError(status, command)
    except (OSError, subprocess.SubprocessError) as problem:
        raise BuildFailure(
            f"run {what}",
            allowed="a program that starts and answers within a minute",
            value=f"{' '.join(command)}: {problem}",
            hint="scanops doctor shows which one is used and why",
        ) from problem
    return printed
