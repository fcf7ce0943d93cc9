"""Running compilers: one command after the other, what they print, and one shape for every failed build.

A forked child has a copy of every descriptor. If a program's output were read from a pipe, its end would come only when
a child that another thread forked meanwhile has ended, and that child may itself be waiting for this build: output goes
to memory (memfd). Starting a program takes such a pipe inside ``subprocess``: a fork waits for that (forks.py).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from scanops import environment
from scanops.build_request import BuildRequest, Resources
from scanops.errors import BuildFailure
from scanops.forks import FORK_LOCK, reset_in_child
from scanops.processes import BACKGROUND

_STARTED: set[int] = set()  # process groups of the programs that background builds wait for
_ENDING = threading.Event()  # of this process
_LIKELY: dict[int, str] = {signal.SIGKILL: ", which is what happens where memory runs out: build fewer at a time"}
_LINES = 40  # enough for the first few errors with their carets; the whole log is in the file
_COLUMNS = 400
_COMPLAINT = re.compile(r"\berror\b|\bfatal\b|undefined reference|cannot find", re.IGNORECASE)
_PTXAS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("registers", re.compile(r"Used (\d+) registers")),
    ("shared_bytes", re.compile(r"(\d+) bytes smem")),
    ("stack_bytes", re.compile(r"(\d+) bytes stack frame")),
    ("spill_store_bytes", re.compile(r"(\d+) bytes spill stores")),
    ("spill_load_bytes", re.compile(r"(\d+) bytes spill loads")),
)


def run(
    command: Sequence[str], *, folder: Path, seconds: float | None = None, changes: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a program in ``folder``: its exit status and what it prints on both streams, in English.

    Of this process's environment it sees ``environment.COMPILER_VARIABLES``, and ``changes``. Raises OSError where the
    program cannot be started, subprocess.TimeoutExpired after ``seconds``. In the background it is killed at the exit
    of this process, and the thread ends.
    """
    background = BACKGROUND.get()
    with open(os.memfd_create("scanops-output", os.MFD_CLOEXEC), "w+b") as printed:  # noqa: PTH123
        with FORK_LOCK:
            if background and _ENDING.is_set():
                raise SystemExit
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                env=environment.for_compilers(**(changes or {})),
                start_new_session=background,  # its compilers end with it, and Ctrl-C is for this process to handle
            )
            _STARTED.update([process.pid] if background else [])
        try:
            status = process.wait(seconds)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            _STARTED.discard(process.pid)
        if background and _ENDING.is_set():
            raise SystemExit
        printed.seek(0)
        return status, printed.read().decode(errors="replace")


def _end() -> None:
    with FORK_LOCK:  # no other begins
        _ENDING.set()
        for group in tuple(_STARTED):
            with contextlib.suppress(OSError):  # it has ended
                os.killpg(group, signal.SIGKILL)


atexit.register(_end)
reset_in_child(_STARTED.clear)  # they are the parent's


def run_all(request: BuildRequest, compiler: str, directory: Path, commands: list[list[str]]) -> str:
    """Run commands in the build folder and return what they print.

    They keep their temporary files there, too: nvcc hands these names to a shell. Raises BuildFailure for the first
    that fails, and for one that writes no output file.
    """
    log = ""
    for command in commands:
        status, printed = run(command, folder=directory, changes={"TMPDIR": str(directory)})
        if status < 0:
            printed += f"{Path(command[0]).name} was ended by signal {-status}{_LIKELY.get(-status, '')}\n"
        log += printed
        made = Path(command[command.index("-o") + 1])
        if status == 0 and not made.is_file():
            printed += f"{command[0]} succeeded without writing {made.name}: it is no compiler\n"
            status = -1
        if status != 0:
            raise build_failure(request, compiler, shlex.join(command), printed, directory)
    return log


def build_failure(request: BuildRequest, compiler: str, command: str, log: str, directory: Path) -> BuildFailure:
    """Return the error for a failed build: the command, the compiler's words, and where the source is kept.

    Writes the whole log beside the source, as ``directory``/build.log.
    """
    (directory / "build.log").write_text(f"{command}\n\n{log}\n", encoding="utf-8")
    return BuildFailure(
        f"build {request.name} for {request.target}",
        allowed=f"a source that {compiler} accepts",
        value=f"{_trim_log(log)}\ncommand: {command}",
        hint=f"read {directory / 'kernel.cu'}; the whole output is in {directory / 'build.log'}",
    )


def _trim_log(log: str) -> str:
    """The lines from the first error on: warnings come before it."""
    lines = [line[:_COLUMNS] for line in log.splitlines() if line.strip()]
    first = next((at for at, line in enumerate(lines) if _COMPLAINT.search(line)), 0)
    kept = lines[first : first + _LINES]
    left = len(lines) - first - len(kept)
    return "\n".join([*kept, f"... {left} more lines"] if left > 0 else kept) or "(the compiler printed nothing)"


def parse_ptxas(log: str) -> Resources | None:
    """Return the largest value of each kind that ``ptxas -v`` printed; None when it reported no kernel."""
    found = {name: [int(number) for number in pattern.findall(log)] for name, pattern in _PTXAS}
    if not found["registers"]:
        return None
    # ptxas leaves out shared memory when there is none; the other lines are always there.
    found["shared_bytes"] = found["shared_bytes"] or [0]
    return Resources(**{name: max(numbers) if numbers else None for name, numbers in found.items()})
