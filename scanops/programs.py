"""Running programs in a process whose other threads may fork meanwhile.

A forked child has a copy of every handle. Were what a program prints read from a pipe, the end of it would come when
that child has ended as well, which may itself be waiting for this build: it goes to a file. To start a program takes a
pipe of the same kind inside ``subprocess``, so a fork waits for the starts under way.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from scanops import environment

__all__ = ["STARTING", "before_forks", "run"]


def before_forks(lock: threading.RLock) -> None:
    """Let every fork wait until no thread holds ``lock``, which is free in the child."""
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


STARTING = threading.RLock()  # held while a program is started
before_forks(STARTING)


def run(command: Sequence[str], *, folder: Path | None = None, seconds: float | None = None) -> tuple[int, str]:
    """Exit status and what the program prints on both streams, its messages in English.

    Raises OSError where it cannot be started, subprocess.TimeoutExpired after ``seconds``.
    """
    with tempfile.TemporaryFile() as printed:
        with STARTING:
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
