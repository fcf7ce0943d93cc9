"""Fork safety: what a fork waits for, so that its child has no lock that nobody will release.

A forked child has copies of the locks of all threads, and only the thread that forked. Where another thread was
importing a module, for example, the child would wait for that module's lock for ever.

The rule: whatever takes locks of Python, jinja2 or torch on the way to a kernel does so inside one of the two locks of
this module, and every fork waits until no other thread holds either. ``NO_FORK`` is for moments: late imports,
rendering, starting a program, changes of the environment. ``LOADING`` is for a build by load_inline, which takes
seconds. A thread that holds ``NO_FORK`` never asks for ``LOADING``; the other way round is allowed.

Both are registered here, together, when this module is imported. A fork that another thread began before that has not
taken them: it must not release them either.
"""

from __future__ import annotations

import os
import threading

__all__ = ["LOADING", "NO_FORK"]

LOADING = threading.RLock()
NO_FORK = threading.RLock()
_FORKING = threading.local()  # .holds: whether this thread has taken both for a fork


def _before() -> None:
    LOADING.acquire()
    NO_FORK.acquire()
    _FORKING.holds = True


def _after_in_parent() -> None:
    if getattr(_FORKING, "holds", False):
        _FORKING.holds = False
        NO_FORK.release()
        LOADING.release()


def _after_in_child() -> None:
    if getattr(_FORKING, "holds", False):
        _after_in_parent()
    else:
        for lock in (LOADING, NO_FORK):
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the locks of Python's own modules are


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
