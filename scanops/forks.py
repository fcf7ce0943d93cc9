"""What a fork waits for, so that its child is not left with locks that nobody will release.

A child has the locks of all threads and only the thread that forked. Where another thread was importing a module, or
jinja2 was about to keep a template, the child would wait for ever at the same place. Whatever takes such locks while a
kernel is found or built does so with ``NO_FORK``.
"""

from __future__ import annotations

import os
import threading

__all__ = ["NO_FORK", "before_forks"]


def before_forks(lock: threading.RLock) -> None:
    """Let every fork wait until no other thread holds ``lock``, which is free in the child.

    Locks registered later are waited for earlier: one may be taken while these are held, never the other way round.
    """
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


NO_FORK = threading.RLock()  # for moments: no compiler runs meanwhile
before_forks(NO_FORK)
