"""One worker thread per process builds while calls go on.

NVRTC builds in the thread itself: a compile holds no lock of the interpreter. Without it the thread waits for a child
process: rendering, and running compilers, would hold the lock for milliseconds at a time, which calls would feel.
Operators that only this process knows are built by the thread in any case.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from scanops.errors import ScanopsError
from scanops.processes import NO_FORK

if TYPE_CHECKING:
    from scanops.artifact import BuildRequest

_LOG = logging.getLogger("scanops")
_HEAD_START = 0.02  # seconds for the call that asked to finish before this thread wants the interpreter's lock


class _Worker:
    """A queue of jobs, the thread that runs them, and the child process it waits for."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[object, str, Callable[[], object]]] = queue.SimpleQueue()
        self._pending: set[object] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._ending = False

    def run_later(self, key: object, what: str, work: Callable[[], object]) -> None:
        """Call ``work`` in the thread, unless a job of this ``key`` waits already. Errors are logged.

        ``what`` is built, in words for the log.
        """
        with self._lock:
            if key in self._pending:
                return
            self._pending.add(key)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="scanops-background", daemon=True)
                self._thread.start()
        self._jobs.put((key, what, work))

    def _work(self) -> None:
        while True:
            key, what, work = self._jobs.get()
            time.sleep(_HEAD_START)
            try:
                work()
            except Exception as problem:
                if not self._ending:
                    trace = not isinstance(problem, ScanopsError)
                    _LOG.error("%s could not be built in the background: %s", what, problem, exc_info=trace)
            with self._lock:
                self._pending.discard(key)

    def run(self, command: list[str]) -> None:
        """Run a child process, from a job. It is killed at the end of this process."""
        with self._lock:
            if self._ending:
                raise RuntimeError("the process ends")
            # A group of its own: its compilers end with it, and Ctrl-C is for this process to handle.
            with NO_FORK:
                quiet = subprocess.DEVNULL
                self._child = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
        self._child.wait()
        with self._lock:
            self._child = None
            if self._ending:
                raise RuntimeError("the process ends")

    def end(self) -> None:
        """Kill the child at exit. Nobody waits for a build, and what it leaves in the store is swept later."""
        with self._lock:
            self._ending = True
            if self._child is not None:
                with contextlib.suppress(OSError):  # it has ended
                    os.killpg(self._child.pid, signal.SIGKILL)


WORKER = _Worker()
# Threads do not survive a fork, and the parent's child process is not its own: a child starts over.
os.register_at_fork(after_in_child=WORKER.__init__)  # type: ignore[misc]
atexit.register(WORKER.end)


def builds_here(request: BuildRequest) -> bool:
    """Return whether NVRTC may build a kernel, and is there."""
    with NO_FORK:
        from scanops.artifact import CUBIN
        from scanops.builders.build import unavailable
    return CUBIN in request.identities and unavailable("nvrtc", request.target) is None


def python_command(module: str, *words: str) -> list[str]:
    """Return the command for ``python -m module words...`` that imports from this process's absolute paths only.

    ``python -m`` itself searches the current directory first, where a file named like a dependency would be run.
    """
    root = str(Path(__file__).parents[2])
    paths = [path for path in sys.path if Path(path).is_absolute()]
    paths += [] if root in paths else [root]
    code = (
        f"import sys; sys.path[:] = {paths!r}; import runpy; "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", code, *words]
