"""Times of several runs that all see the same clocks, by the timer of ``scanops tune``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from scanops.measure import ROUND_CYCLES, Run, Stopwatch, elapsed

__all__ = ["SLOW_MS", "Sample", "Timer", "percentile"]

FEWEST_RUNS = 7
MOST_RUNS = 25
SLOW_MS = 250.0  # a first run that takes longer is the whole measurement: its relative noise is negligible


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Milliseconds of several runs: median, 10th and 90th percentile."""

    ms: float
    p10: float
    p90: float
    runs: int

    @classmethod
    def of(cls, times: Sequence[float]) -> Sample:
        """Return the sample of at least one time in milliseconds."""
        p10, p90 = percentile(times, 10), percentile(times, 90)
        return cls(ms=statistics.median(times), p10=p10, p90=p90, runs=len(times))


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value below which ``percent`` (1 to 99) of the values lie, interpolated linearly."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


class Timer(Stopwatch):
    """Times several runs in turns, each as often as a budget of seconds allows."""

    def __init__(self, budget: float) -> None:
        super().__init__()
        self.budget = budget  # seconds of runs for each figure

    def samples(self, runs: Mapping[str, Run], moved: int) -> dict[str, Sample]:
        """Time each run, interleaved so that all see the same clocks; each run moves ``moved`` bytes."""
        firsts = {name: self.once(run, moved) for name, run in runs.items()}
        quick = {name: run for name, run in runs.items() if firsts[name] < SLOW_MS}
        times: dict[str, list[float]] = {name: [] for name in quick}
        began = time.perf_counter()
        for round_ in range(MOST_RUNS):
            if round_ >= FEWEST_RUNS and time.perf_counter() - began > self.budget * len(runs):
                break
            torch.cuda._sleep(ROUND_CYCLES)  # type: ignore[no-untyped-call]
            for name, pair in [(name, self.queue(run, moved)) for name, run in quick.items()]:
                times[name].append(elapsed(pair))
        return {name: Sample.of(times.get(name) or [firsts[name]]) for name in runs}
