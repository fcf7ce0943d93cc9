"""What happens at a fork: what it waits for, and what a child resets.

A child has copies of the locks of all threads, and only the thread that forked. Where another thread was importing a
module, for example, the child would wait for ever to import it, too: Python does not reset the locks of modules. So
whatever takes locks of Python, jinja2, torch or NVRTC on the way to a kernel is guarded, and a fork waits for it:

* ``FORK_LOCK`` is held for moments: an import, rendering, the start of a program, a change of the environment.
* ``delay_forks()`` is for what takes seconds, such as a compile by NVRTC. Any number of threads may be in it.
* ``import_late`` imports under ``FORK_LOCK``. It is the only import in a function of this package: a test checks that.

A thread that holds ``FORK_LOCK`` must not enter ``delay_forks()``; the other way round is allowed. What belongs to the
parent, such as its worker thread, is reset in a child by the functions given to ``reset_in_child``.
"""

from __future__ import annotations

# These have locks and fork handlers of their own, and are imported first: handlers that run before a fork run in the
# reverse of the order in which they were registered, so a fork takes those locks after FORK_LOCK, as threads do.
import concurrent.futures.thread  # noqa: F401
import contextlib
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = ["FORK_LOCK", "LATE", "delay_forks", "import_late", "load_late", "reset_in_child"]

_LOG = logging.getLogger("scanops")
Reset = TypeVar("Reset", bound=Callable[[], object])

FORK_LOCK = threading.RLock()
_CHANGED = threading.Condition(FORK_LOCK)  # notified when _DELAYING or _FORKING changes; waiting releases FORK_LOCK
_DELAYING: list[int] = []  # identifiers of the threads in delay_forks(), once for each time
_FORKING: list[int] = []  # identifiers of the threads that are about to fork
_RESETS: list[Callable[[], object]] = []


def import_late(name: str) -> Any:
    """Return the module ``name``, imported while no other thread forks. Raises what the import raises.

    Cheap once the module is loaded. Use an ordinary import where its time does not matter.
    """
    module = sys.modules.get(name)
    if module is None or getattr(module.__spec__, "_initializing", False):  # as importlib itself decides
        with FORK_LOCK:
            return importlib.import_module(name)
    return module


# torch.compile calls it while tracing; this is torch.compiler.assume_constant_result, without importing torch.
import_late._dynamo_marked_constant = True  # type: ignore[attr-defined]

# Modules by name that code which torch.compile traces has imported late: it follows no function of a constant module.
LATE: dict[str, Any] = {}


def load_late(name: str) -> None:
    """Import the module ``name`` as ``import_late`` does, and set it in ``LATE``, where torch.compile looks it up."""
    LATE[name] = import_late(name)


load_late._dynamo_marked_constant = True  # type: ignore[attr-defined]


@contextlib.contextmanager
def delay_forks() -> Iterator[None]:
    """Let forks of other threads wait until the end of a ``with`` block."""
    thread = threading.get_ident()
    with _CHANGED:
        _CHANGED.wait_for(lambda: not _FORKING or thread in _DELAYING)  # else forks might wait for ever
        _DELAYING.append(thread)
    try:
        yield
    finally:
        with _CHANGED:
            _DELAYING.remove(thread)
            _CHANGED.notify_all()


def reset_in_child(reset: Reset) -> Reset:
    """Call ``reset`` in every forked child, in the order of these calls, and return it. Usable as a decorator."""
    _RESETS.append(reset)
    return reset


def _before_fork() -> None:
    thread = threading.get_ident()
    FORK_LOCK.acquire()
    _FORKING.append(thread)
    try:
        _CHANGED.wait_for(lambda: all(each == thread for each in _DELAYING))
    except BaseException:  # Ctrl-C: Python forks all the same, so the child must not count on the lock
        _after_fork_in_parent()
        raise


def _after_fork_in_parent() -> None:
    thread = threading.get_ident()
    if thread in _FORKING:  # not in a fork that began before this module was imported
        _FORKING.remove(thread)
        _CHANGED.notify_all()
        FORK_LOCK.release()


def _after_fork_in_child() -> None:
    thread = threading.get_ident()
    if thread in _FORKING:
        _FORKING.clear()
        FORK_LOCK.release()
    else:
        _FORKING.clear()
        FORK_LOCK._at_fork_reinit()  # type: ignore[attr-defined]  # as the locks of Python's own modules are
    _DELAYING[:] = [each for each in _DELAYING if each == thread]
    for reset in _RESETS:
        try:
            reset()
        except Exception:
            _LOG.exception("a forked child could not reset the state of its parent")


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
