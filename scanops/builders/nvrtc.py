"""Building cubins with NVRTC, in this process: no toolkit, no host compiler, no file and no child process.

Every CUDA build of torch depends on NVRTC. It is called through ctypes, which releases the interpreter's lock: threads
compile at the same time, and a fork waits until none does.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path

from scanops import environment
from scanops.build_request import CUBIN, BuildReport, BuildRequest, flags_of
from scanops.builders.programs import build_failure, parse_ptxas
from scanops.builders.toolchain import wheel_folders
from scanops.codegen.headers import list_headers
from scanops.codegen.targets import TARGETS, nearest_targets
from scanops.errors import MissingCompiler, UnsupportedRequest
from scanops.forks import FORK_LOCK, delay_forks, import_late

_MAPS = Path("/proc/self/maps")
_NAME = re.compile(r"libnvrtc\.so\.(\d+)[\d.]*")
_OLDEST = 12  # the first whose cubins are loaded without a context
_IN_WHEELS = "nvidia/cu*/lib/libnvrtc.so.*"  # cu13 of CUDA 13 and later, cuda_nvrtc of 12
_IN_TOOLKITS = ("lib64/libnvrtc.so.*", "lib/libnvrtc.so.*", "targets/*/lib/libnvrtc.so.*")
_USUAL_ROOT = Path("/usr/local/cuda")
_INVALID_OPTION = 5  # of nvrtcResult
_CACHES = (12, 9)  # the first that has a cache, which initialises the driver
_INSTALL = "pip install nvidia-cuda-nvrtc (-cu12 for CUDA 12), which a CUDA build of torch brings"
_CORRECT = "correct SCANOPS_NVRTC, or unset it: nothing else is tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvrtc:
    """One NVRTC, loaded into this process."""

    library: ctypes.CDLL
    path: Path
    found_by: str  # "SCANOPS_NVRTC", "this process", "wheel" ...
    version: str  # "13.0"
    targets: tuple[str, ...]  # ("sm_75", "sm_80", ...), as it lists them

    def __str__(self) -> str:
        return f"NVRTC {self.version}"


def require(target: str | None = None) -> Nvrtc:
    """Return the first NVRTC that knows ``target``, or the first of all.

    Raises MissingCompiler where there is none, UnsupportedRequest where none knows the target.
    """
    if flags := environment.read_variable("NVRTC_APPEND_FLAGS"):  # which NVRTC reads in this process
        raise MissingCompiler(
            "use NVRTC",
            allowed="no NVRTC_APPEND_FLAGS: flags are part of a kernel's identity",
            value=f"NVRTC_APPEND_FLAGS={flags!r}",
            hint="unset NVRTC_APPEND_FLAGS, or let nvcc build: SCANOPS_BUILDER=nvcc",
        )
    problems, others, chosen = [], {}, environment.path("SCANOPS_NVRTC")
    for found_by, path in [("SCANOPS_NVRTC", chosen)] if chosen else _places():
        try:
            found = _opened(path.resolve(), found_by)
        except (OSError, AttributeError) as problem:  # not there, not to be loaded, or without a function
            problems.append(f"{found_by} ({path}): {problem}")
            continue
        if target is None or re.sub(r"\D+$", "", target) in found.targets:
            return found
        others[str(found)] = found.targets
    if others:
        raise _unknown(str(target), others)
    raise MissingCompiler(
        "find NVRTC",
        allowed=f"libnvrtc.so of CUDA {_OLDEST} or later, and libnvrtc-builtins.so beside it",
        value="; ".join(problems) or "none in this process, in installed wheels or in a toolkit",
        hint=_CORRECT if chosen else _INSTALL,
    )


def build(request: BuildRequest, directory: Path) -> BuildReport:
    """Compile ``request`` and write kernel.cubin to ``directory``, which has kernel.cu.

    Raises BuildFailure, MissingCompiler without NVRTC or its builtins, UnsupportedRequest for an unknown target.
    """
    nvrtc = require(request.target)
    words = options(nvrtc, request)
    status, log, cubin = compile_cubin(nvrtc, request.source, directory / "kernel.cu", words)
    if status == _INVALID_OPTION and "architecture" in log:  # listed, but not with this suffix
        raise _unknown(request.target, {str(nvrtc): nvrtc.targets})
    if status:
        raise build_failure(request, str(nvrtc), f"nvrtc {' '.join(words)} kernel.cu", log, directory)
    file, versions = directory / "kernel.cubin", {"route": "nvrtc", "nvrtc": nvrtc.version}
    file.write_bytes(cubin)
    return BuildReport(file=file, seconds=0.0, resources=parse_ptxas(log), toolchain=versions, form=CUBIN)


def options(nvrtc: Nvrtc, request: BuildRequest) -> list[str]:
    """Return the options of a compile, which keeps its hands off the process: its stack limit, and the driver."""
    cache = ["-no-cache"] if tuple(map(int, nvrtc.version.split("."))) >= _CACHES else []
    flags = (*flags_of(request.target, CUBIN), *request.options)
    return [*flags, "--ptxas-options=-v", "-modify-stack-limit=false", *cache]


def compile_cubin(nvrtc: Nvrtc, source: str, name: Path, options: list[str]) -> tuple[int, str, bytes]:
    """Return NVRTC's status, 0 for success, what it says about the source, and the machine code."""
    call, program, size = nvrtc.library, c_void_p(), c_size_t()

    def text(what: str) -> bytes:
        getattr(call, f"nvrtcGet{what}Size")(program, byref(size))
        data = ctypes.create_string_buffer(size.value)
        getattr(call, f"nvrtcGet{what}")(program, data)
        return data.raw

    words = (c_char_p * len(options))(*(option.encode() for option in options))
    with delay_forks():
        headers = list_headers(source)
        texts, names = ((c_char_p * len(headers))(*map(str.encode, each)) for each in (headers.values(), headers))
        status = call.nvrtcCreateProgram(
            byref(program), source.encode(), str(name).encode(), len(headers), texts, names
        )
        try:
            status = status or call.nvrtcCompileProgram(program, len(options), words)
            log = text("ProgramLog").rstrip(b"\0").decode(errors="replace") if program else ""
            return status, log or call.nvrtcGetErrorString(status).decode(), b"" if status else text("CUBIN")
        finally:
            call.nvrtcDestroyProgram(byref(program))


def _unknown(target: str, others: Mapping[str, Collection[str]]) -> UnsupportedRequest:
    """Return the error for a target that none of ``others`` knows: versions of NVRTC -> targets."""
    names = [name for name in TARGETS if any(name in known for known in others.values())]
    return UnsupportedRequest(
        f"compile for target {target!r}",
        allowed=f"what {' or '.join(others)} knows: {', '.join(names)}",
        value=repr(target),
        hint=f"use {nearest_targets(target, names)}, or set SCANOPS_NVRTC to the libnvrtc.so of a CUDA that knows it",
    )


def _places() -> Iterator[tuple[str, Path]]:
    """Yield (how it was found, path) of libraries that may be NVRTC, the newest first in each place."""
    mapped = []
    with contextlib.suppress(OSError):
        mapped = [line.split(maxsplit=5)[-1] for line in _MAPS.read_text(errors="surrogateescape").splitlines()]
    yield from _label_paths("this process", dict.fromkeys(map(Path, mapped)))
    yield from _label_paths("wheel", (path for base in wheel_folders() for path in base.glob(_IN_WHEELS)))
    with contextlib.suppress(ImportError, RuntimeError):  # not installed; it finds none
        found = import_late("cuda.pathfinder").load_nvidia_dynamic_lib("nvrtc")
        yield "cuda-pathfinder", Path(str(found.abs_path))
    for name, root in (("CUDA_HOME", environment.path("CUDA_HOME")), (str(_USUAL_ROOT), _USUAL_ROOT)):
        yield from _label_paths(name, (path for each in _IN_TOOLKITS if root for path in root.glob(each)))


def _label_paths(found_by: str, paths: Iterable[Path]) -> list[tuple[str, Path]]:
    """Return those of ``paths`` that are called as an NVRTC is, the newest first."""
    versions = [(int(match[1]), path) for path in paths if (match := _NAME.fullmatch(path.name))]
    return [(found_by, path) for major, path in sorted(versions, key=lambda each: -each[0]) if major >= _OLDEST]


@functools.lru_cache(maxsize=16)
def _opened(path: Path, found_by: str) -> Nvrtc:
    """Load an NVRTC and its builtins, which it opens by name at a compile: that of CUDA 13.0 finds none by itself."""
    with FORK_LOCK:
        library = ctypes.CDLL(str(path))
        major, minor, count = c_int(), c_int(), c_int()
        library.nvrtcVersion(byref(major), byref(minor))
        version = f"{major.value}.{minor.value}"
        builtins = path.with_name(f"libnvrtc-builtins.so.{version}")
        ctypes.CDLL(str(builtins if builtins.exists() else builtins.name))  # or where the loader searches
        library.nvrtcGetErrorString.restype = c_char_p
        library.nvrtcGetNumSupportedArchs(byref(count))
        numbers = (c_int * count.value)()
        library.nvrtcGetSupportedArchs(numbers)
    targets = tuple(f"sm_{number}" for number in numbers)
    return Nvrtc(library=library, path=path, found_by=found_by, version=version, targets=targets)
