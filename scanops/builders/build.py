"""From a request to a shared library in a folder of the caller's choosing.

Two routes make the same library: load_inline when this torch can build for the target, else the compilers themselves
(a CPU-only torch refuses CUDA sources, a machine that only builds needs no torch at all, and load_inline may not run
twice at once in a process).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scanops import environment, jobs
from scanops.artifact import CPU, HOST, BuildReport, BuildRequest
from scanops.builders import direct, extension, inline
from scanops.errors import MissingCompiler

__all__ = ["build", "show_lines"]

_LOG = logging.getLogger("scanops")

_Builder = Callable[[BuildRequest, Path, Path], BuildReport]

# (is it for the emulator, can load_inline do it) -> who does it
_ROUTES: dict[tuple[bool, bool], _Builder] = {
    (True, True): inline.build_cpu,
    (True, False): direct.build_cpu,
    (False, True): inline.build_cuda,
    (False, False): direct.build_cuda,
}


def build(request: BuildRequest, directory: Path) -> BuildReport:
    """Compile ``request`` in ``directory``, which exists, is empty and is the build's own.

    Leaves kernel.cu, the library and intermediates there. Raises BuildFailure when a compiler is missing or refuses
    the source, UnsupportedRequest when nvcc does not know the target.
    """
    show_lines()
    source = directory / "kernel.cu"
    source.write_text(request.source, encoding="utf-8")
    started = time.perf_counter()
    builder, remark = _route(request.target, directory)
    _LOG.info("building %s for %s%s", request.name, request.target, remark)
    try:
        report = builder(request, source, directory)
    except MissingCompiler as problem:
        raise MissingCompiler(
            f"build {request.name} for {request.target}: {problem.asked}",
            allowed=problem.allowed,
            value=problem.value,
            hint=f"{problem.hint}; or precompile on a machine that has one: scanops build {request.name} --target "
            f"{request.target}; or export SCANOPS_POLICY=fallback, so that PyTorch computes scans without a kernel",
        ) from problem
    report = replace(report, seconds=time.perf_counter() - started)
    _LOG.info("built %s for %s in %.2f s", request.name, request.target, report.seconds)
    return report


def _route(target: str, directory: Path) -> tuple[_Builder, str]:
    """Who builds for ``target`` in ``directory``, and what the log says about it."""
    if target == HOST:
        return extension.build_host, ""
    reason = _alone(directory) or inline.unavailable(target)
    return _ROUTES[target == CPU, reason is None], f" without load_inline: {reason}" if reason else ""


def _alone(directory: Path) -> str | None:
    """Why load_inline is not asked at all."""
    if jobs.several():
        return "it is one of several at once"
    try:
        str(directory).encode()
    except UnicodeEncodeError:  # it writes the path to a file
        return "the path is no UTF-8"
    return None


def show_lines() -> None:
    """SCANOPS_VERBOSE: the log lines on standard error, unless the program set up logging itself."""
    if environment.verbose() and not _LOG.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("scanops: %(message)s"))
        _LOG.addHandler(handler)
        _LOG.setLevel(logging.INFO)
