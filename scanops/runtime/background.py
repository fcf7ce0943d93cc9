"""One worker of a process builds kernels while calls go on.

A thread that waits for another process: rendering and compiling in this one would hold the interpreter's lock for
milliseconds at a time, which the calls would feel. Where only this process knows an operator, the thread builds it.
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

from scanops.codegen.operators import is_built_in, operator_named
from scanops.codegen.spec import ScanSpec
from scanops.errors import ScanopsError
from scanops.forks import NO_FORK
from scanops.runtime.kernels import Kernel, built, known

__all__ = ["build_later", "python_command", "run", "run_later"]

_LOG = logging.getLogger("scanops")
_HEAD_START = 0.02  # seconds: the call that asked is to be over before this thread wants the interpreter's lock
_Job = tuple[object, str, Callable[[], object]]  # what it is known by, what it gives, how


class _Worker:
    """The queue, the thread once there is something to do, and the process it waits for."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._pending: set[object] = set()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[str] | None = None
        self._ending = False

    def put(self, job: _Job) -> None:
        with self._starting:
            if job[0] in self._pending:
                return
            self._pending.add(job[0])
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="scanops-background", daemon=True)
                self._thread.start()
        self._jobs.put(job)

    def end(self) -> None:
        """At the end of the process: nobody waits for a build, and what a dead builder leaves harms no store."""
        with self._starting:
            self._ending = True
            if self._child is not None:
                with contextlib.suppress(OSError):  # it ended by itself
                    os.killpg(self._child.pid, signal.SIGKILL)

    def _work(self) -> None:
        while True:
            key, what, work = self._jobs.get()
            time.sleep(_HEAD_START)
            words = f"{what} could not be built in the background"
            try:
                work()
            except ScanopsError as problem:
                _LOG.error("%s: %s", words, problem)
            except Exception:
                if not self._ending:
                    _LOG.exception(words)
            with self._starting:
                self._pending.discard(key)

    def build(self, spec: ScanSpec, target: str, ready: Callable[[Kernel], object]) -> None:
        kernel = self._built(spec, target)
        _ = kernel.library  # loaded here, so that the call it takes over does not wait
        ready(kernel)

    def _built(self, spec: ScanSpec, target: str) -> Kernel:
        if not is_built_in(operator_named(spec.op)) or not sys.executable:
            return built(spec, target)
        self.run(python_command("scanops", "build", spec.slug, "--target", target))
        # What the process could not do is done once more here, for the error in its own words.
        return known(spec, target) or built(spec, target)

    def run(self, command: list[str]) -> None:
        with self._starting:
            if self._ending:
                raise RuntimeError("the process ends")
            # Its own group: what it starts ends with it, and Ctrl-C is for this process to interpret.
            with NO_FORK:
                self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    start_new_session=True,
                )
        self._child.wait()
        with self._starting:
            self._child = None
            if self._ending:
                raise RuntimeError("the process ends")


_WORKER = _Worker()


def build_later(spec: ScanSpec, target: str, ready: Callable[[Kernel], object]) -> None:
    """Build a kernel and call ``ready`` with it, in the worker's thread. A failure is logged, and nobody is called."""
    worker = _WORKER
    words = f"the kernel {spec.slug} for {target}"
    worker.put(((spec, target), words, lambda: worker.build(spec, target, ready)))


def run_later(key: object, what: str, work: Callable[[], object]) -> None:
    """Call ``work`` in the worker's thread, unless it waits there under ``key`` already; it gives ``what``."""
    _WORKER.put((key, what, work))


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


def run(command: list[str]) -> None:
    """Run a program to its end, or to that of this process. For what was given to ``run_later``."""
    _WORKER.run(command)


def _after_fork() -> None:
    """Threads do not survive a fork, and the parent's child is not ours to end."""
    global _WORKER
    _WORKER = _Worker()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: _WORKER.end())
