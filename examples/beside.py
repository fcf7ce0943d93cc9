"""The same result in two ways: the code that people run today beside scanops, compared, and on a GPU timed.

Without a GPU kernels are emulated, whose times say nothing.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

import scanops

__all__ = ["DEVICE", "Beside", "beside", "told"]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RUNS = 7  # of each way, whose median counts

Way = Callable[[], tuple[torch.Tensor, ...]]


class Beside(NamedTuple):
    """One computation in both ways."""

    name: str
    today_ms: float | None  # None: not timed
    scanops_ms: float | None
    apart: float  # the greatest difference of two results, relative to the greatest result
    same: bool

    def __str__(self) -> str:
        times = ""
        if self.today_ms and self.scanops_ms:
            ratio = self.today_ms / self.scanops_ms
            times = f"today {self.today_ms:.3g} ms, scanops {self.scanops_ms:.3g} ms, {ratio:.3g} times as fast; "
        return f"{self.name}: {times}{'the same' if self.same else 'DIFFERENT'}, {self.apart:.0e} apart"


def beside(name: str, today: Way, ours: Way, allowed: float = 1e-4) -> Beside:
    """Compare and time both ways. Results may be ``allowed`` apart, relative to the greatest one."""
    expected = today()
    with contextlib.nullcontext() if DEVICE == "cuda" else scanops.emulate():
        found = ours()
    apart = max(
        float((one - other).abs().max() / one.abs().max().clamp(min=1e-30))
        for one, other in zip(expected, found, strict=True)
    )
    times = (_milliseconds(today), _milliseconds(ours)) if DEVICE == "cuda" else (None, None)
    return Beside(name, *times, apart, apart <= allowed)


def told(rows: Sequence[Beside]) -> int:
    """Print the comparisons; return 1 if results differ, else 0."""
    print(*rows, sep="\n")
    return int(not all(row.same for row in rows))


def _milliseconds(way: Way) -> float:
    times = []
    for _ in range(RUNS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        way()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)
