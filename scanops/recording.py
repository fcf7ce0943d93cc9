"""Recordings: which kernels a program asks for, how often, and what served each call.

``scanops.record``, ``scanops.calls`` and ``SCANOPS_RECORD`` make them. While calls are counted the call cache and C++
keep nothing (runtime/call_cache.py), so that every call passes ``note``; otherwise recordings cost calls nothing.
Processes that share a file add their counts to what it holds (specfile.py).
"""

from __future__ import annotations

import atexit
import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from scanops import environment
from scanops.errors import ScanopsError
from scanops.forks import FORK_LOCK, import_late, reset_in_child

if TYPE_CHECKING:
    from scanops.codegen.kernel_key import KernelKey
    from scanops.codegen.spec import ScanSpec

_LOG = logging.getLogger("scanops")


class Served(NamedTuple):
    """One scan of a ``scanops.calls`` block: what was asked for, and what computed it.

    ``str`` of it is one line, such as ``sum-f32-n64 on sm_90: sum_f32_n64_warp (rule: warp) by nvrtc, built in 99 ms``.
    """

    request: str  # the short name of the spec; for a CPU tensor outside of emulate() the function, dtype and shape
    target: str  # an architecture such as "sm_90"; "cpu"
    kernel: str | None  # short name of the kernel: of a variable-length one it is another; None: PyTorch's operators
    function: str | None  # name of that kernel in profilers: its short name and its strategy
    builder: str | None  # "nvrtc", "load_inline", "nvcc"; "cpu" for emulated kernels
    found: str  # "memory", "store" and "pack" for a hit, "built" for a miss; "fallback"
    seconds: float  # to look up, build and load the kernel
    reason: str = ""  # why PyTorch's operators computed the scan
    path: str = ""  # the folder of the kernel
    origin: str = ""  # of the plan's numbers: "measured: sum-f32-n4096", a measured entry, or "rule: warp", a strategy

    @property
    def hit(self) -> bool:
        """Whether the kernel was there: in this process, or in the store or a pack."""
        return self.found in ("memory", "store", "pack")

    def __str__(self) -> str:
        if self.kernel is None:
            return f"{self.request} on {self.target}: PyTorch's operators, {self.reason}"
        found = "built" if self.found == "built" else f"hit in {self.found}"
        return (
            f"{self.request} on {self.target}: {self.function} ({self.origin}) by {self.builder}, {found} in "
            f"{1000 * self.seconds:.3g} ms"
        )


class Recording:
    """The kernels that a program asked for, in the order of first use: ``specs``, ``counts`` and ``write``."""

    def __init__(self) -> None:
        self.counts: Counter[KernelKey] = Counter()  # calls of each kernel
        self.on_cpu = False  # whether PyTorch's operators computed scans of CPU tensors
        self.calls: list[Served] | None = None  # what served each call, where that is wanted

    def __len__(self) -> int:
        return len(self.specs)

    def __iter__(self) -> Iterator[ScanSpec]:
        return iter(self.specs)

    @property
    def specs(self) -> tuple[ScanSpec, ...]:
        """Each recorded spec once, whatever its targets."""
        return tuple(dict.fromkeys(spec for spec, *_ in self.counts))

    @property
    def remark(self) -> str:
        """What the user should know about this recording, in a sentence; empty where there is nothing to say."""
        if self.counts or not self.on_cpu:
            return ""
        what = "nothing is recorded: all scans were of CPU tensors, which PyTorch's own operators compute"
        return f"{what}; run the program on a GPU, or inside `with scanops.emulate():`"

    def add(self, key: KernelKey) -> None:
        """Count one call of a kernel."""
        self.counts[key] += 1

    def write(self, path: str | Path) -> None:
        """Add the counts to a spec file, which ``scanops precompile`` reads. The file is created if it is absent.

        Raises BadSpecFile when the file is no spec file, UnusableFile when it cannot be written.
        """
        if self.remark:
            warnings.warn(f"scanops: {self.remark}", RuntimeWarning, stacklevel=2)
        import_late("scanops.specfile").add(Path(path), self.counts)  # a program that records nothing needs no TOML


class _FileRecording(Recording):
    """The recording of ``SCANOPS_RECORD``: saved at each new kernel, so that a killed program loses only counts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path: Path | None = path
        self._unsaved: Counter[KernelKey] = Counter()
        atexit.register(self._end)
        reset_in_child(self._unsaved.clear)  # the parent saves what it counted

    def add(self, key: KernelKey) -> None:
        new = key not in self.counts
        super().add(key)
        self._unsaved[key] += 1
        if new:
            self._save()

    def _save(self) -> None:
        """Add unsaved counts to the file. A failure is logged once and ends the recording, never the program."""
        with FORK_LOCK:
            if self._path is None or not self._unsaved:
                return
            try:
                import_late("scanops.specfile").add(self._path, self._unsaved)
            except ScanopsError as problem:
                _LOG.error("nothing more is recorded: %s", problem)
                self._path = None
            self._unsaved.clear()

    def _end(self) -> None:
        self._save()
        if self._path and self.remark:
            _LOG.warning("%s: %s", self._path, self.remark)


OPEN: list[Recording] = []  # of blocks; and that of SCANOPS_RECORD, from the first call that is counted on
_FILE: list[Path | None] = []  # empty until then


@contextmanager
def open_recording() -> Iterator[Recording]:
    """Count the kernels asked for inside the block, by all threads. ``scanops.record`` also clears the call cache."""
    found = Recording()
    OPEN.append(found)
    try:
        yield found
    finally:
        OPEN.remove(found)


def note(key: KernelKey) -> None:
    """Count one call of a kernel, in every open recording."""
    for each in _recordings():
        with FORK_LOCK:
            each.add(key)


def note_on_cpu(request: str) -> None:
    """Note what has no spec: a scan of a CPU tensor by PyTorch's operators."""
    for each in _recordings():
        each.on_cpu = True
    note_served(Served(request, "cpu", None, None, None, "fallback", 0.0, "a CPU tensor outside of scanops.emulate()"))


def note_served(served: Served) -> None:
    """Add what served a call to every open listing."""
    for each in OPEN:
        if each.calls is not None:
            each.calls.append(served)


def _recordings() -> tuple[Recording, ...]:
    if not _FILE:
        _FILE.append(environment.path("SCANOPS_RECORD"))
        OPEN.extend(_FileRecording(path) for path in _FILE if path)
    return tuple(OPEN)
