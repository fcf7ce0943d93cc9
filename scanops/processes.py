"""Processes and threads: how many builds run at a time, the threads that start them, and what a fork waits for.

Threads are enough: compilers are processes or let go of the interpreter's lock, and rendering takes milliseconds.

A forked child has copies of the locks of all threads, and only the thread that forked. Where another thread was
importing a module, for example, the child would wait for that module's lock for ever. The rule: whatever takes locks
of Python, jinja2, torch or NVRTC on the way to a kernel does so inside one of the locks of this module, and every fork
waits until no other thread holds any. ``NO_FORK`` is for moments: late imports, rendering, starting a program, changes
of the environment. ``LOADING`` is for a build by load_inline, which takes seconds. A thread that holds ``NO_FORK``
never asks for ``LOADING``; the other way round is allowed. ``compiling()`` is for a compile by NVRTC, and holds off
forks alone: any number of threads may be in it. All are registered here, together, when this module is imported. A fork
that another thread began before that has not taken them: it must not release them either. ``logging`` has a lock of
this kind, too, and is imported first: a fork takes it after these, as a thread does that imports or builds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import TypeVar

from scanops.errors import ScanopsError

_LOG = logging.getLogger("scanops")
_HEAD_START = 0.02  # seconds for the call that asked to finish before the worker wants the interpreter's lock
_BYTES_PER_JOB = 10**9  # nvcc on one kernel, and the Python that runs it
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container
SEVERAL: ContextVar[bool] = ContextVar("scanops_several", default=False)  # whether this build is one of several
BACKGROUND: ContextVar[bool] = ContextVar("scanops_background", default=False)  # whether it ends with this process

Item = TypeVar("Item")
Result = TypeVar("Result")


def jobs_that_fit(jobs: int | None = None) -> int:
    """Return how many builds to run at a time: ``jobs``, or one per core, as far as memory holds them; at least one.

    Memory is that of the machine, or of the container where that has less.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        memory = min(memory, int(_LIMIT.read_text(encoding="ascii")))
    return max(1, min(jobs or len(os.sched_getaffinity(0)), memory // _BYTES_PER_JOB))


def at_once(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    jobs: int,
    said: Callable[[Result], object] = lambda result: None,
) -> list[Result]:
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
        # Imported here and not with scanops: a lookup in the store needs none of it.
        from concurrent.futures import ThreadPoolExecutor, as_completed

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


LOADING = threading.RLock()
NO_FORK = threading.RLock()
_FORKING = threading.local()  # .holds: whether this thread has taken the locks for a fork
_COMPILES = threading.Condition()
_COMPILING: set[int] = set()  # the threads that are in ``compiling()``


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Hold off forks for a ``with`` block, which takes no other lock. Any number of threads may be in it at once."""
    with NO_FORK, _COMPILES:  # a fork that waits for compiles to end holds NO_FORK: no other begins
        _COMPILING.add(threading.get_ident())
    try:
        yield
    finally:
        with _COMPILES:
            _COMPILING.discard(threading.get_ident())
            _COMPILES.notify_all()


def _before() -> None:
    for lock in (LOADING, NO_FORK, _COMPILES):
        lock.acquire()
    _COMPILES.wait_for(lambda: not _COMPILING - {threading.get_ident()})
    _FORKING.holds = True


def _after_in_parent() -> None:
    if getattr(_FORKING, "holds", False):
        _FORKING.holds = False
        for lock in (_COMPILES, NO_FORK, LOADING):
            lock.release()


def _after_in_child() -> None:
    if getattr(_FORKING, "holds", False):
        _after_in_parent()
    else:
        for lock in (LOADING, NO_FORK, _COMPILES):
            lock._at_fork_reinit()  # type: ignore[union-attr]  # as the locks of Python's own modules are
        _COMPILING.clear()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


# ---- a worker thread builds while calls go on


class _Worker:
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


WORKER = _Worker()
# Threads do not survive a fork: a child starts over.
os.register_at_fork(after_in_child=WORKER.__init__)  # type: ignore[misc]
