"""``with scanops.record() as used:`` and ``SCANOPS_RECORD=file``: which kernels a program asks for, and how often.

While something is recorded no launcher is remembered, so that every call passes where kernels are looked for; else
calls pay nothing. A file is written whole at each new kernel, which is rare, so that a program that is killed loses
nothing but counts; processes that share a file add their counts to what it holds.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scanops import environment
from scanops.codegen.spec import ScanSpec

__all__ = ["Recording", "active", "note", "record", "when_begun"]

_LOG = logging.getLogger("scanops")
_LOCK = threading.RLock()


class Recording:
    """The kernels that were asked for, in the order they were first asked for."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[ScanSpec, str]] = Counter()  # (spec, target): calls

    def __repr__(self) -> str:
        return f"<scanops recording of {len(self.counts)} kernels>"

    def __len__(self) -> int:
        return len(self.specs)

    def __iter__(self) -> Iterator[ScanSpec]:
        return iter(self.specs)

    @property
    def specs(self) -> tuple[ScanSpec, ...]:
        """Each spec once, for whatever target."""
        return tuple(dict.fromkeys(spec for spec, _ in self.counts))

    def write(self, path: str | Path) -> None:
        """Add what was recorded to a spec file, which ``scanops precompile`` reads.

        Raises BadSpecFile when the file holds something else, UnusableFile where it cannot be written.
        """
        from scanops.workload.specfile import add

        add(Path(path), self.counts)


class _FileRecording(Recording):
    """One that is kept in a file all the while."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path: Path | None = path
        self._unsaved: Counter[tuple[ScanSpec, str]] = Counter()
        atexit.register(self.save)
        os.register_at_fork(after_in_child=self._unsaved.clear)  # the parent saves what it counted

    def add(self, spec: ScanSpec, target: str) -> None:
        """Count a call."""
        new = (spec, target) not in self.counts
        self.counts[spec, target] += 1
        self._unsaved[spec, target] += 1
        if new:
            self.save()

    def save(self) -> None:
        """Add to the file what is not in it yet. What goes wrong is said once: the program is more than its record."""
        from scanops.errors import ScanopsError
        from scanops.workload.specfile import add

        with _LOCK:
            if self._path is None or not self._unsaved:
                return
            try:
                add(self._path, self._unsaved)
            except ScanopsError as problem:
                _LOG.error("nothing more is recorded: %s", problem)
                self._path = None
            self._unsaved.clear()


_OPEN: list[Recording] = []
_FILE: list[_FileRecording | None] = []  # empty until the first kernel is asked for
_WHEN_BEGUN: list[Callable[[], object]] = []


@contextmanager
def record() -> Iterator[Recording]:
    """Inside the block, write down the spec of each kernel that this process asks for, in whatever thread.

    What is recorded is what was asked for, whatever served it: under the policy ``fallback`` a program on a machine
    without a compiler tells what is to be built for it. Scans that torch computes ask for no kernel.

    Gives a Recording: its ``specs``, its ``counts``, and ``write(path)``, which makes the file that ``scanops
    precompile`` reads.

    Example:
        >>> import torch, scanops
        >>> with scanops.record() as used, scanops.emulate():
        ...     y = scanops.cumsum(torch.ones(3, 100), 1)
        >>> [spec.slug for spec in used]
        ['sum-f32-n100']
    """
    recording = Recording()
    _OPEN.append(recording)
    for action in _WHEN_BEGUN:
        action()
    try:
        yield recording
    finally:
        _OPEN.remove(recording)


def active() -> bool:
    """Whether calls are counted."""
    return bool(_OPEN) or any(recording is not None for recording in _FILE)


def when_begun(action: Callable[[], object]) -> None:
    """Call ``action`` each time a recording begins."""
    _WHEN_BEGUN.append(action)


def _after_fork() -> None:
    """Another thread of the parent may have held the lock, and is not here to release it."""
    global _LOCK
    _LOCK = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def note(spec: ScanSpec, target: str) -> None:
    """Count a call of the kernel of ``spec``. ``SCANOPS_RECORD`` is read at the first one."""
    if not _FILE:
        path = environment.record_file()
        _FILE.append(_FileRecording(path) if path else None)
    if not active():
        return
    with _LOCK:
        for recording in _OPEN:
            recording.counts[spec, target] += 1
        if _FILE[0] is not None:
            _FILE[0].add(spec, target)
