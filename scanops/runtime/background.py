"""One worker thread per process builds while calls go on.

Compilers let go of the interpreter's lock: NVRTC in the thread itself, nvcc and g++ as processes, which are killed at
exit. Nobody waits for a build then, and what it leaves in the store is swept later.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable

from scanops.errors import ScanopsError
from scanops.processes import BACKGROUND, SEVERAL

_LOG = logging.getLogger("scanops")
_HEAD_START = 0.02  # seconds for the call that asked to finish before this thread wants the interpreter's lock


class _Worker:
    """A queue of jobs, and the thread that runs them."""

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
