"""From a build request to a shared library in a folder of the build's own.

Two builders make the same library: load_inline for CUDA kernels where torch is built for CUDA, else the compilers
themselves. A machine that only builds needs no torch at all, and load_inline may not run twice at once in a process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from scanops import environment
from scanops.artifact import BuildReport, BuildRequest
from scanops.builders import direct, inline
from scanops.errors import BuildFailure, MissingCompiler
from scanops.files import write_owned

_LOG = logging.getLogger("scanops")
_ROOM_BYTES = 1 << 20  # more than a build writes
_SAFE = re.compile(r"[A-Za-z0-9_./+,@%=-]+")  # neither a shell nor ninja reads anything into these


def build(request: BuildRequest, directory: Path) -> BuildReport:
    """Compile ``request`` in ``directory``, which exists and is the build's own.

    Leaves kernel.cu, the library and intermediate files there, and the log of a failure. Where the name of the folder
    is not safe, compilers run in a temporary one. Raises BuildFailure when a compiler is missing or refuses the source,
    UnsupportedRequest when nvcc does not know the target, OSError on a full disk.
    """
    with _safe_folder(directory) as folder:
        try:
            report = _compiled(request, folder)
        except BuildFailure as failure:
            for place in {folder, directory}:  # a linker on a full disk fails without saying so
                write_owned(place / "room", bytes(_ROOM_BYTES))
                (place / "room").unlink()
            raise moved(failure, folder, directory) from failure.__cause__
        if folder.resolve() == directory.resolve():
            return report
        # By a copy where the temporary folder is on another file system.
        return replace(report, library=Path(shutil.move(report.library, directory / "kernel.so")))


def moved(failure: BuildFailure, folder: Path, place: Path) -> BuildFailure:
    """Move source and log of a failed build to another folder, and return the failure that names them there."""
    for name in ("kernel.cu", "build.log"):
        if (folder / name).exists():
            shutil.move(folder / name, place / name)
    value, hint = (text.replace(str(folder), str(place)) for text in (str(failure.value), failure.hint))
    return type(failure)(failure.asked, allowed=failure.allowed, value=value, hint=hint)


def show_lines() -> None:
    """Under SCANOPS_VERBOSE, print the log lines on standard error, unless the program set up logging itself."""
    if environment.verbose() and not _LOG.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("scanops: %(message)s"))
        _LOG.addHandler(handler)
        _LOG.setLevel(logging.INFO)


def _compiled(request: BuildRequest, directory: Path) -> BuildReport:
    """Compile in a folder with a safe name."""
    (directory / "kernel.cu").write_text(request.source, encoding="utf-8")
    started = time.perf_counter()
    reason = inline.unavailable(request.target)
    remark = "" if reason is None else f" without load_inline: {reason}"
    _LOG.info("building %s for %s%s", request.name, request.target, remark)
    try:
        report: BuildReport = (inline if reason is None else direct).build(request, directory)
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


@contextlib.contextmanager
def _safe_folder(preferred: Path) -> Iterator[Path]:
    """Yield a folder in which compilers may run: ``preferred``, or a temporary one where its name is not safe.

    nvcc runs its phases through a shell, which executes ``$(...)`` and backticks in names and in the working directory;
    ninja splits names at colons and line ends. Raises BuildFailure where no folder for temporary files has a safe name.
    """
    if _is_safe(preferred):
        yield Path(os.path.realpath(preferred))
        return
    places = (Path(name) for name in (tempfile.gettempdir(), "/tmp", "/var/tmp"))
    place = next((place for place in places if _is_safe(place) and os.access(place, os.W_OK | os.X_OK)), None)
    if place is None:
        raise BuildFailure(
            f"build in {str(preferred)!r}",
            allowed="a folder whose name consists of letters, digits and _ . / + , @ % = -",
            value="a name in which compilers or shells would read more",
            hint="set TMPDIR to a folder with a plain name, /tmp for example",
        )
    with tempfile.TemporaryDirectory(prefix="scanops-", dir=os.path.realpath(place)) as folder:
        yield Path(folder)


def _is_safe(folder: Path) -> bool:
    return _SAFE.fullmatch(os.path.realpath(folder)) is not None
