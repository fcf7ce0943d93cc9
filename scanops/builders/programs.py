"""Running programs in a process whose other threads may fork meanwhile.

A forked child has a copy of every handle. Were what a program prints read from a pipe, the end of it would come when
that child has ended as well, which may itself be waiting for this build: it goes to a file. To start a program takes a
pipe of the same kind inside ``subprocess``, so a fork waits for the starts under way (scanops/forks.py).
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scanops import environment
from scanops.forks import NO_FORK

__all__ = ["run"]


def run(command: Sequence[str], *, folder: Path | None = None, seconds: float | None = None) -> tuple[int, str]:
    """Exit status and what the program prints on both streams, its messages in English.

    Raises OSError where it cannot be started, subprocess.TimeoutExpired after ``seconds``.
    """
    with tempfile.TemporaryFile() as printed:
        with NO_FORK:
            process = subprocess.Popen(
                command, cwd=folder, stdout=printed, stderr=subprocess.STDOUT, env=environment.child()
            )
        try:
            status = process.wait(seconds)
        except BaseException:
            process.kill()
            process.wait()
            raise
        printed.seek(0)
        return status, printed.read().decode(errors="replace")
