"""From a build request to a shared library or a cubin in a folder of the build's own.

Three builders make kernels for GPUs. load_inline, where torch is built for CUDA, and nvcc make the same library;
load_inline may not run twice at once in a process. NVRTC makes a cubin. A machine that only builds needs no torch.

``inline`` calls torch's load_inline, ``direct`` the compilers themselves, ``nvrtc`` NVRTC; ``toolchain`` finds
compilers, ``programs`` runs them. Each of the three has two functions: ``require``, which raises what it lacks for a
target, and ``build``.
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
from typing import Any

from scanops.build_request import CPU, FORMS, HOST, BuildReport, BuildRequest
from scanops.builders import direct, inline, nvrtc
from scanops.errors import BuildFailure, MissingCompiler, ScanopsError, UnsupportedRequest
from scanops.files import write_owned
from scanops.forks import FORK_LOCK
from scanops.processes import SEVERAL

_LOG = logging.getLogger("scanops")
_ROOM_BYTES = 1 << 20  # more than a build writes
_BUILDERS: dict[str, Any] = {"load_inline": inline, "nvcc": direct, "nvrtc": nvrtc}
_SAFE = re.compile(r"[A-Za-z0-9_./+,@%=-]+")  # neither a shell nor ninja reads anything into these


def build(request: BuildRequest, directory: Path) -> BuildReport:
    """Compile ``request`` in ``directory``, which exists and is the build's own.

    For a GPU the first of the request's builders that works here builds. A source or a target that it refuses goes to
    the next one, if that is another compiler; the error is the last one's. Leaves kernel.cu, the library or cubin and
    intermediate files there, and the log of a failure. Where the name of the folder is not safe, compilers run in a
    temporary one. Raises BuildFailure when compilers are missing or refuse the source, UnsupportedRequest for a target
    that the last one does not know, OSError on a full disk.
    """
    with _safe_folder(directory) as folder:
        try:
            report = _compile(request, folder)
        except BuildFailure as failure:
            for place in {folder, directory}:  # a linker on a full disk fails without saying so
                write_owned(place / "room", bytes(_ROOM_BYTES))
                (place / "room").unlink()
            raise move_failure(failure, folder, directory) from failure.__cause__
        if folder.resolve() == directory.resolve():
            return report
        # By a copy where the temporary folder is on another file system.
        return replace(report, file=Path(shutil.move(report.file, directory)))


def move_failure(failure: BuildFailure, folder: Path, place: Path) -> BuildFailure:
    """Move source and log of a failed build to another folder, and return the failure that names them there."""
    for name in ("kernel.cu", "build.log"):
        if (folder / name).exists():
            shutil.move(folder / name, place / name)
    value, hint = (text.replace(str(folder), str(place)) for text in (str(failure.value), failure.hint))
    return type(failure)(failure.asked, allowed=failure.allowed, value=value, hint=hint)


def unavailable(builder: str, target: str) -> ScanopsError | None:
    """Return why a builder cannot build kernels for ``target`` on this machine; None when it can."""
    try:
        _BUILDERS[builder].require(target)
    except (BuildFailure, UnsupportedRequest) as problem:
        return problem
    return None


def _compile(request: BuildRequest, directory: Path) -> BuildReport:
    """Compile in a folder with a safe name."""
    (directory / "kernel.cu").write_text(request.source, encoding="utf-8")
    what, for_gpu = f"{request.name} for {request.target}", request.target not in (CPU, HOST)
    missing: list[MissingCompiler] = []
    refused: dict[str, ScanopsError] = {}  # by form: load_inline and nvcc are one compiler, which is asked once
    for name in request.builders if for_gpu else ("nvcc",):
        several = name == "load_inline" and "nvcc" in request.builders and SEVERAL.get()
        if several or FORMS[name] in refused or (for_gpu and FORMS[name] not in request.identities):
            continue
        started = time.perf_counter()
        try:
            if for_gpu:
                _BUILDERS[name].require(request.target)
            _LOG.info("building %s%s", what, f" by {name}" * for_gpu)
            report: BuildReport = _BUILDERS[name].build(request, directory)
        except (BuildFailure, UnsupportedRequest) as problem:
            _LOG.info("%s does not build %s: %s", name, what, problem.value)
            if isinstance(problem, MissingCompiler):
                missing.append(problem)
            else:
                refused[FORMS[name]] = problem
        else:
            report = replace(report, seconds=time.perf_counter() - started)
            _LOG.info("built %s in %.2f s", what, report.seconds)
            return report
    for last in reversed(refused.values()):
        raise last
    parts = (dict.fromkeys(getattr(each, part) for each in missing) for part in ("asked", "allowed", "value", "hint"))
    asked, allowed, value, hint = map("; ".join, parts)
    raise MissingCompiler(
        f"build {what}: {asked}",
        allowed=allowed,
        value=value,
        hint=f"{hint}; or precompile on a machine that has one: scanops build {request.name} --target "
        f"{request.target}; or export SCANOPS_POLICY=fallback, so that PyTorch computes scans without a kernel",
    )


@contextlib.contextmanager
def _safe_folder(preferred: Path) -> Iterator[Path]:
    """Yield a folder in which compilers may run: ``preferred``, or a temporary one where its name is not safe.

    nvcc runs its phases through a shell, which executes ``$(...)`` and backticks in names and in the working directory;
    ninja splits names at colons and line ends. Raises BuildFailure where no folder for temporary files has a safe name.
    """
    if _is_safe(preferred):
        yield Path(os.path.realpath(preferred))
        return
    with FORK_LOCK:  # tempfile has a lock
        places = [Path(name) for name in (tempfile.gettempdir(), "/tmp", "/var/tmp")]
    place = next((place for place in places if _is_safe(place) and os.access(place, os.W_OK | os.X_OK)), None)
    if place is None:
        raise BuildFailure(
            f"build in {str(preferred)!r}",
            allowed="a folder whose name consists of letters, digits and _ . / + , @ % = -",
            value="a name in which compilers or shells would read more",
            hint="set TMPDIR to a folder with a plain name, /tmp for example",
        )
    with FORK_LOCK:
        temporary = tempfile.TemporaryDirectory(prefix="scanops-", dir=os.path.realpath(place))
    with temporary as folder:
        yield Path(folder)


def _is_safe(folder: Path) -> bool:
    return _SAFE.fullmatch(os.path.realpath(folder)) is not None
