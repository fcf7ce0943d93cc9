"""Time of runs on the GPU: CUDA events around interleaved runs on a cold L2 cache, and their statistics."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

__all__ = ["SLOW_MS", "Sample", "Stopwatch", "percentile"]

FEWEST_RUNS = 7
MOST_RUNS = 25
SLOW_MS = 250.0  # a first run that takes longer is the whole measurement: its relative noise is negligible
SLEEP_CYCLES = 400_000  # about 0.2 ms on the GPU before each run, so that launch latency is hidden
ROUND_CYCLES = 3_000_000  # about 1.5 ms, in which the host queues a whole round of runs
COLD_BYTES = 2**29  # runs that move fewer bytes start with unrelated data in the L2 cache
FLUSH_BYTES = 2**28  # several times the L2 cache

Run = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Milliseconds of several runs: median, 10th and 90th percentile."""

    ms: float
    p10: float
    p90: float
    runs: int

    @classmethod
    def of(cls, times: Sequence[float]) -> Sample:
        """Summarise at least one time."""
        p10, p90 = percentile(times, 10), percentile(times, 90)
        return cls(ms=statistics.median(times), p10=p10, p90=p90, runs=len(times))


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value below which ``percent`` (1 to 99) of the values lie, interpolated linearly."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


class Stopwatch:
    """Times runs by CUDA events on the current stream, each run behind a sleep of the GPU that hides host time."""

    def __init__(self, budget: float) -> None:
        self.budget = budget  # seconds of runs for each figure
        self._other = torch.empty(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda").fill_(1)

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
            for name, pair in [(name, self._queue(run, moved)) for name, run in quick.items()]:
                times[name].append(_elapsed(pair))
        return {name: Sample.of(times.get(name) or [firsts[name]]) for name in runs}

    def once(self, run: Run, moved: int) -> float:
        """Return the milliseconds of one run that moves ``moved`` bytes."""
        torch.cuda._sleep(ROUND_CYCLES)  # type: ignore[no-untyped-call]
        return _elapsed(self._queue(run, moved))

    def _queue(self, run: Run, moved: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        if moved < COLD_BYTES:
            self._other.sum()  # a read: written data would be evicted from the L2 cache during the run
        torch.cuda._sleep(SLEEP_CYCLES)  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()
        return start, end


def _elapsed(pair: tuple[torch.cuda.Event, torch.cuda.Event]) -> float:
    start, end = pair
    end.synchronize()
    return float(start.elapsed_time(end))
