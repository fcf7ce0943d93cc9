"""How long things take on the GPU: events around cold runs, taken in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from scanops.bench.spread import Sample

__all__ = ["FEWEST_RUNS", "SLOW_MS", "Stopwatch"]

FEWEST_RUNS = 7
MOST_RUNS = 25
SLOW_MS = 250.0  # from here on the first run is the measurement: nothing that matters here is lost in its noise
SLEEP_CYCLES = 400_000  # about 0.2 ms between runs
ROUND_CYCLES = 3_000_000  # about 1.5 ms, in which the host, from a standstill, gets ahead of the GPU for a whole round
COLD_BYTES = 2**29  # what moves less is run on an L2 that holds something else
FLUSH_BYTES = 2**28  # several times an L2

Run = Callable[[], object]


class Stopwatch:
    """Times runs by CUDA events on the current stream, each behind a sleep of the GPU that hides the host's time."""

    def __init__(self, budget: float) -> None:
        self.budget = budget  # seconds of runs for each figure
        self._other = torch.empty(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda").fill_(1)

    def samples(self, runs: Mapping[str, Run], moved: int) -> dict[str, Sample]:
        """Each of these runs, taken in turns so that all see the same clocks; ``moved`` bytes by each."""
        firsts = {name: self.once(run, moved) for name, run in runs.items()}
        quick = {name: run for name, run in runs.items() if firsts[name] < SLOW_MS}
        times: dict[str, list[float]] = {name: [] for name in quick}
        began = time.perf_counter()
        for round_ in range(MOST_RUNS):
            if round_ >= FEWEST_RUNS and time.perf_counter() - began > self.budget * len(runs):
                break
            torch.cuda._sleep(ROUND_CYCLES)  # type: ignore[no-untyped-call]
            for name, pair in [(name, self._queue(run, moved)) for name, run in quick.items()]:
                times[name].append(self._elapsed(pair))
        return {name: Sample.of(times.get(name) or [firsts[name]]) for name in runs}

    def once(self, run: Run, moved: int) -> float:
        """Milliseconds of one run."""
        torch.cuda._sleep(ROUND_CYCLES)  # type: ignore[no-untyped-call]
        return self._elapsed(self._queue(run, moved))

    def _queue(self, run: Run, moved: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, end = _event(), _event()
        if moved < COLD_BYTES:
            self._other.sum()  # read, not written: a dirty L2 would be written back on the account of the run
        torch.cuda._sleep(SLEEP_CYCLES)  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()
        return start, end

    @staticmethod
    def _elapsed(pair: tuple[torch.cuda.Event, torch.cuda.Event]) -> float:
        start, end = pair
        end.synchronize()
        return float(start.elapsed_time(end))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
