"""Running compilers, one command after the other."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

from scanops.artifact import BuildRequest
from scanops.builders import programs
from scanops.builders.failure import build_failure

__all__ = ["run", "text"]

_LIKELY: dict[int, str] = {signal.SIGKILL: ", which is what happens where memory runs out: build fewer at a time"}


def run(request: BuildRequest, compiler: str, directory: Path, commands: list[list[str]]) -> str:
    """What the commands print. Raises BuildFailure at the first that fails, and keeps its words in ``directory``."""
    log = ""
    for command in commands:
        status, printed = programs.run(command)
        if status < 0:
            printed += f"{Path(command[0]).name} was ended by signal {-status}{_LIKELY.get(-status, '')}\n"
        log += printed
        if status != 0:
            raise build_failure(request, compiler, shlex.join(command), printed, directory)
    return log


def text(commands: list[list[str]]) -> str:
    """The commands as a shell takes them, one a line."""
    return "\n".join(shlex.join(command) for command in commands)
