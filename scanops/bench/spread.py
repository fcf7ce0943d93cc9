"""Medians with their spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Sample", "quantile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Milliseconds of some runs of one thing."""

    ms: float  # median
    p10: float
    p90: float
    runs: int

    @classmethod
    def of(cls, times: Sequence[float]) -> Sample:
        """The sample of these times, at least one."""
        return cls(ms=statistics.median(times), p10=quantile(times, 0.1), p90=quantile(times, 0.9), runs=len(times))


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which ``part`` of the values lie, between two of them in proportion."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
