"""The clock of every measurement: GPU times of several runs that see the same clocks, and host times of calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from scanops.measure import ROUND_CYCLES, Run, Stopwatch, milliseconds_between

__all__ = ["SLOW_MS", "Sample", "Timer", "host_microseconds", "milliseconds", "peak_bytes", "percentile"]

FEWEST_RUNS = 7
MOST_RUNS = 25
SLOW_MS = 250.0  # a first run that takes longer is the whole measurement: its relative noise is negligible
WARM_UP = 2  # batches of calls


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
    """Times several runs in turns, each as often as a budget of seconds allows; the timer of ``scanops tune``."""

    def __init__(self, budget: float) -> None:
        super().__init__()
        self.budget = budget  # seconds of runs for each figure
        self._source = self._target = torch.empty(0, dtype=torch.uint8, device="cuda")

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
                times[name].append(milliseconds_between(pair))
        return {name: Sample.of(times.get(name) or [firsts[name]]) for name in runs}

    def copy(self, moved: int) -> Run:
        """Return a device-to-device copy that reads half of ``moved`` bytes and writes half."""
        if moved // 2 > self._source.numel():
            self._source = torch.empty(0)  # its memory is needed for the larger one
            # Random bits: copies of zeros are faster.
            self._source = torch.randn(moved // 8 + 1, device="cuda").view(torch.uint8)
            self._target = torch.empty_like(self._source)
        source, target = self._source[: moved // 2], self._target[: moved // 2]
        return lambda: target.copy_(source)

    def of_a_copy(self, run: Run, moved: int) -> float:
        """Return the time of a copy of as many bytes over the time of a run."""
        run()  # the first call looks the kernel up
        times = self.samples({"copy": self.copy(moved), "run": run}, moved)
        return times["copy"].ms / times["run"].ms


def host_microseconds(call: Callable[[], object], calls: int, batches: int) -> list[float]:
    """Return microseconds of host time per call of each batch, backward passes on autograd's thread included.

    The GPU is synchronised between batches, outside of what is timed: its queue holds about a thousand launches.
    """
    found = []
    for _ in range(WARM_UP + batches):
        synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - began) / calls * 1e6)
    synchronize()
    return found[WARM_UP:]


def milliseconds(call: Callable[[], object]) -> float:
    """Return the milliseconds of host time until a call has returned and the GPU has done what it queued."""
    synchronize()
    began = time.perf_counter()
    call()
    synchronize()
    return 1e3 * (time.perf_counter() - began)


def synchronize() -> None:
    """Wait for the GPU where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_bytes(run: Run) -> int:
    """Return the most bytes that a run on the GPU allocates at a time, results included."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
