"""Several builds at a time: how many of them fit this machine, and threads for those of one process.

Threads are enough: compilers are processes, and to render a text takes two milliseconds.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, copy_context
from pathlib import Path
from threading import Event
from typing import TypeVar, cast

__all__ = ["at_once", "available_gigabytes", "jobs_that_fit", "several"]

GIGABYTES_A_JOB = 1.0  # nvcc on one kernel, and the Python that runs it
_MEMORY = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_CACHED = ("inactive_file", "active_file")  # of memory.stat: pages of files, which are given up for whoever needs room
_SEVERAL: ContextVar[bool] = ContextVar("scanops_several", default=False)

Item = TypeVar("Item")
Result = TypeVar("Result")


def jobs_that_fit(jobs: int | None = None, memory: float | None = None) -> int:
    """How many builds at a time: one a core, or ``jobs``, as far as ``memory`` gigabytes hold them; at least one."""
    room = available_gigabytes() if memory is None else memory
    return max(1, int(min(jobs or _cores(), room / GIGABYTES_A_JOB)))


def available_gigabytes() -> float:
    """What the kernel says can be had without swapping, and no more than what is left to the control group.

    Infinite where nobody says.
    """
    free = float("inf")
    with contextlib.suppress(OSError, KeyError, ValueError):  # no /proc
        free = _numbers(_MEMORY)["MemAvailable:"] * 1024
    with contextlib.suppress(OSError, ValueError):  # no such group, or one without a limit
        most, used = (int((_CGROUP / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        cached = 0
        with contextlib.suppress(OSError, ValueError):
            numbers = _numbers(_CGROUP / "memory.stat")
            cached = sum(numbers.get(name, 0) for name in _CACHED)
        free = min(free, most - used + cached)
    return free / 1e9


def _cores() -> int:
    """Those that this process may run on, and no more than the control group has time of: a container has a share."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # no such group, or one without a limit
        quota, period = map(int, (_CGROUP / "cpu.max").read_text(encoding="ascii").split())
        cores = min(cores, math.ceil(quota / period))
    return cores


def _numbers(path: Path) -> dict[str, int]:
    """The first two words of each line."""
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def several() -> bool:
    """Whether the build of this context is one of several at once."""
    return _SEVERAL.get()


def at_once(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    jobs: int,
    said: Callable[[Result], object] = lambda result: None,
) -> list[Result]:
    """``work`` of each item, in the order of the items: ``jobs`` at a time, each in a copy of this thread's context.

    ``said`` hears of each result in this thread, as soon as it is there. What ``work`` raises ends it all, and so does
    Ctrl-C: what has not begun does not begin. With one item, or one job, nothing leaves this thread.
    """
    with _together(len(items) > 1):
        jobs = min(jobs, len(items))
        if jobs <= 1:
            return [_heard(copy_context().run(work, item), said) for item in items]
        # Here, and not when scanops is imported: a look-up in the store needs none of it.
        from concurrent.futures import ThreadPoolExecutor, as_completed

        ended = Event()  # cancelling takes this thread's turn, until when others would go on

        def begun(item: Item) -> Result | None:
            if ended.is_set():
                return None
            try:
                return work(item)
            except BaseException:
                ended.set()
                raise

        with ThreadPoolExecutor(jobs, "scanops-build") as pool:
            futures = [pool.submit(copy_context().run, begun, item) for item in items]
            try:
                for future in as_completed(futures):
                    result = future.result()
                    if not ended.is_set():
                        said(cast("Result", result))
                return [cast("Result", future.result()) for future in futures]
            finally:
                ended.set()
                pool.shutdown(cancel_futures=True)


def _heard(result: Result, said: Callable[[Result], object]) -> Result:
    said(result)
    return result


@contextlib.contextmanager
def _together(several: bool) -> Iterator[None]:
    token = _SEVERAL.set(several)
    try:
        yield
    finally:
        _SEVERAL.reset(token)
