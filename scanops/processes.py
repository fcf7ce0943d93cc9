"""How many builds run at a time, and the threads that start them.

Threads are enough: compilers are processes or let go of the interpreter's lock, and rendering takes milliseconds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import TypeVar

from scanops.errors import ScanopsError
from scanops.forks import reset_in_child

_LOG = logging.getLogger("scanops")
_HEAD_START = 0.02  # seconds for the call that asked to finish before the worker wants the interpreter's lock
_BYTES_PER_JOB = 10**9  # nvcc on one kernel, and the Python that runs it
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container
SEVERAL: ContextVar[bool] = ContextVar("scanops_several", default=False)  # whether this build is one of several
BACKGROUND: ContextVar[bool] = ContextVar("scanops_background", default=False)  # whether it ends with this process

Item = TypeVar("Item")
Returned = TypeVar("Returned")


def jobs_that_fit(jobs: int | None = None) -> int:
    """Return how many builds to run at a time: ``jobs``, or one per core, as far as memory holds them; at least one.

    Memory is that of the machine, or of the container where that has less.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        memory = min(memory, int(_LIMIT.read_text(encoding="ascii")))
    return max(1, min(jobs or len(os.sched_getaffinity(0)), memory // _BYTES_PER_JOB))


def at_once(
    work: Callable[[Item], Returned],
    items: Sequence[Item],
    jobs: int,
    said: Callable[[Returned], object] = lambda result: None,
) -> list[Returned]:
    """Return ``work`` of each item, in the items' order: ``jobs`` at a time, each in a copy of this thread's context.

    ``said`` is called in this thread with each result as soon as it is known. An exception of ``work``, and Ctrl-C,
    end all: items that have not begun are dropped. With one item, or one job, everything runs in this thread.
    """
    token = SEVERAL.set(len(items) > 1)
    try:
        if min(jobs, len(items)) <= 1:
            found = []
            for item in items:
                found.append(copy_context().run(work, item))
                said(found[-1])
            return found
        with ThreadPoolExecutor(min(jobs, len(items)), "scanops-build") as pool:
            futures = [pool.submit(copy_context().run, work, item) for item in items]
            try:
                for future in as_completed(futures):
                    said(future.result())
                return [future.result() for future in futures]
            finally:
                pool.shutdown(cancel_futures=True)
    finally:
        SEVERAL.reset(token)


# ---- a worker thread builds while calls go on


class Worker:
    """A queue of jobs, and the one thread that runs them while calls go on.

    Compilers let go of the interpreter's lock: NVRTC in the thread itself, nvcc and g++ as processes, which are killed
    at exit. Nobody waits for a build then, and what it leaves in the store is swept later.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[object, str, Callable[[], object]]] = queue.SimpleQueue()
        self._pending: set[object] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

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
        BACKGROUND.set(True)
        SEVERAL.set(True)  # nvcc by itself: load_inline changes the environment of the whole process
        while True:
            key, what, work = self._jobs.get()
            time.sleep(_HEAD_START)
            try:
                work()
            except Exception as problem:
                trace = not isinstance(problem, ScanopsError)
                _LOG.error("%s could not be built in the background: %s", what, problem, exc_info=trace)
            with self._lock:
                self._pending.discard(key)


WORKER = Worker()
reset_in_child(WORKER.__init__)  # type: ignore[misc]  # its thread is the parent's: a child starts over
