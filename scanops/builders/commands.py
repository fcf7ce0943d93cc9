"""Running compilers, one command after the other."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from scanops import environment
from scanops.builders.failure import build_failure
from scanops.builders.request import BuildRequest

__all__ = ["run", "text"]


def run(request: BuildRequest, compiler: str, directory: Path, commands: list[list[str]]) -> str:
    """What the commands print. Raises BuildFailure at the first that fails, and keeps its words in ``directory``."""
    log = ""
    for command in commands:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment.child(),
            check=False,
        )
        log += done.stdout
        if done.returncode != 0:
            raise build_failure(request, compiler, shlex.join(command), done.stdout, directory)
    return log


def text(commands: list[list[str]]) -> str:
    """The commands as a shell takes them, one a line."""
    return "\n".join(shlex.join(command) for command in commands)
