"""One shape for every failed build: the command, the compiler's words, and where the source is kept."""

from __future__ import annotations

import re
from pathlib import Path

from scanops.artifact import CPU, BuildRequest
from scanops.builders.naming import kept_names
from scanops.errors import BuildFailure

__all__ = ["build_failure"]

_LINES = 40  # enough for the first few errors with their carets; the whole log is in the file
_COLUMNS = 400
_COMPLAINT = re.compile(r"\berror\b|\bfatal\b|undefined reference|cannot find", re.IGNORECASE)


def build_failure(request: BuildRequest, compiler: str, command: str, log: str, directory: Path) -> BuildFailure:
    """The error to raise. Keeps the whole log beside the source, in ``directory``/build.log."""
    if request.target == CPU:
        command, log = kept_names(command, directory), kept_names(log, directory)
    (directory / "build.log").write_text(f"{command}\n\n{log}\n", encoding="utf-8")
    return BuildFailure(
        f"build {request.name} for {request.target}",
        allowed=f"a source that {compiler} accepts",
        value=f"{request.written}command: {command}\n{_trimmed(log)}",
        hint=f"read {directory / 'kernel.cu'}; the whole output is in {directory / 'build.log'}",
    )


def _trimmed(log: str) -> str:
    """The lines from the first error on: warnings come before it."""
    lines = [line[:_COLUMNS] for line in log.splitlines() if line.strip()]
    first = next((at for at, line in enumerate(lines) if _COMPLAINT.search(line)), 0)
    kept = lines[first : first + _LINES]
    left = len(lines) - first - len(kept)
    return "\n".join([*kept, f"... {left} more lines"] if left > 0 else kept) or "(the compiler said nothing)"
