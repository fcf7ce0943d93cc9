"""Build, check and time plans on the current GPU for ``scanops tune``.

Times are those of CUDA events around interleaved runs on a cold L2 cache.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from scanops.artifact import BuildRequest, Resources
from scanops.codegen.figures import ITEMS, item_bytes
from scanops.codegen.plan import Plan
from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.errors import MissingRequirement, ScanopsError, UnsupportedRequest
from scanops.processes import at_once
from scanops.requests.geometry import ALIGNMENT
from scanops.runtime.kernels import Kernel, default_target
from scanops.store.entry import Entry
from scanops.store.store import Store

MEMORY_SHARE = 0.4  # of the free memory for x, mask and two results
PAD = 32  # items between rows of a tensor that is not dense


class GpuLaboratory:
    """Builds, checks and times plans for one spec on the current GPU."""

    def __init__(self, spec: ScanSpec, lines: int, jobs: int) -> None:
        self._spec, self._jobs = spec, jobs
        self._x, self._mask, self._out = tensors_for(spec, lines, "cuda")
        self._moved = lines * spec.capacity * item_bytes(spec)
        self._kernels: dict[Plan, Kernel] = {}
        self._expected: torch.Tensor | None = None
        self._stopwatch = Stopwatch(budget=math.inf)

    def build(self, plans: Sequence[Plan], said: Callable[[int, int], object]) -> Mapping[Plan, str]:
        """Build the kernels that the store lacks; return why a plan is unusable: build error or register spills."""
        problems = {}
        for plan, entry in zip(plans, entries_of(plans, self._jobs, said), strict=True):
            if isinstance(entry, ScanopsError):
                problems[plan] = str(entry)
                continue
            if plan is not plans[0] and (spilled := _spilled(entry.resources)):
                problems[plan] = f"{spilled} bytes of spills"
                continue
            kernel = Kernel(plan.spec, plan.target.name, entry)
            kernel._plan = plan
            self._kernels[plan] = kernel
        return problems

    def agrees(self, plan: Plan) -> bool:
        """Whether the result equals that of the first plan, on values whose scan is exact in any order."""
        if self._expected is None:
            fill_exactly(self._spec, self._x, self._mask)
            first = next(iter(self._kernels))
            self._expected = self._run(first).clone()
        self._out.fill_(77)  # unwritten items keep this value, which no random walk has throughout
        try:
            return torch.equal(self._run(plan), self._expected)
        except ScanopsError:
            return False

    def times(self, plans: Sequence[Plan], rounds: int) -> Mapping[Plan, list[float]]:
        """Return microseconds of each round, plans interleaved, L2 cache cold."""
        self._expected = None
        _fill_randomly(self._spec, self._x)
        runs = {plan: functools.partial(self._run, plan) for plan in plans}
        for run in runs.values():
            run()
        found: dict[Plan, list[float]] = {plan: [] for plan in plans}
        for _ in range(rounds):
            for plan, run in runs.items():
                found[plan].append(1e3 * self._stopwatch.once(run, self._moved))
        return found

    def _run(self, plan: Plan) -> torch.Tensor:
        self._kernels[plan](self._x, 1, mask=self._mask, out=self._out)
        return self._out


def entries_of(plans: Sequence[Plan], jobs: int, said: Callable[[int, int], object]) -> list[Entry | ScanopsError]:
    """Return the store entries of these plans, built where missing, or the error of each that cannot be built."""
    done = itertools.count(1)
    return at_once(_entry, plans, jobs, lambda _: said(next(done), len(plans)))


def _entry(plan: Plan) -> Entry | ScanopsError:
    try:
        request = BuildRequest(name=plan.spec.slug, source=render(plan), target=plan.target.name)
        return Store().get_or_build(request)
    except ScanopsError as problem:
        return problem


def require_gpu() -> str:
    """Return the target of the current GPU. Raises MissingRequirement without a GPU."""
    if not torch.cuda.is_available():
        raise MissingRequirement(
            "to measure plans",
            allowed="a machine with an NVIDIA GPU",
            value="none visible to torch",
            hint="scanops tune --dry-run lists what would be measured; scanops doctor says what is missing",
        )
    return default_target()


def device_name() -> str:
    """Return the driver's name of the current GPU."""
    return str(torch.cuda.get_device_name())


def multiprocessors() -> int:
    """Return the number of multiprocessors of the current GPU."""
    return int(torch.cuda.get_device_properties().multi_processor_count)


def items_that_fit(spec: ScanSpec) -> int:
    """Return how many items x may have so that its mask and two results fit on the current GPU as well."""
    free, _ = torch.cuda.mem_get_info()
    return min(ITEMS, int(MEMORY_SHARE * free) // (item_bytes(spec) + spec.out.bytes))


def tensors_for(spec: ScanSpec, lines: int, device: str) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Return x, mask and output of a call with this spec along dimension 1; x and mask are uninitialised.

    Raises UnsupportedRequest where ``lines`` is not a positive multiple of ``spec.inner``.
    """
    if lines < 1 or lines % spec.inner:
        raise UnsupportedRequest(
            f"to measure {spec} on {lines} lines",
            allowed=f"a positive multiple of {spec.inner}",
            value=f"--lines {lines}",
            hint=f"pass --lines {max(1, lines // spec.inner) * spec.inner}",
        )
    shape = (lines // spec.inner, spec.capacity, *((spec.inner,) if spec.inner > 1 else ()))
    shift = 0 if spec.aligned else 1
    x = _laid_out(shape, spec.dtype, spec.input_layout, shift, device)
    mask = _laid_out(shape, spec.mask, spec.mask_layout, 0, device) if spec.mask else None
    out = _laid_out(shape, spec.out_dtype, "dense", shift if spec.input_layout != "dense" else 0, device)
    return x, mask, out


def _laid_out(shape: tuple[int, ...], dtype: str, layout: str, shift: int, device: str) -> torch.Tensor:
    """Return a tensor of this shape and layout, ``shift`` items behind a 16-byte boundary."""
    if layout == "transposed":
        run = -(-shape[-2] // ALIGNMENT) * ALIGNMENT  # items: every run is aligned
        turned = _laid_out((*shape[:-2], shape[-1], run), dtype, "dense", shift, device)
        return turned[..., : shape[-2]].transpose(-1, -2)
    around = list(shape)
    around[-1] += 0 if layout == "dense" else PAD
    if layout == "strided":
        around[-1] = 2 * shape[-1]
    storage = torch.empty(math.prod(around) + shift, dtype=getattr(torch, dtype), device=device)[shift:].view(around)
    if layout == "strided":
        return storage[..., ::2]
    return storage[..., : shape[-1]]


def fill_exactly(spec: ScanSpec, x: torch.Tensor, mask: torch.Tensor | None) -> None:
    """Fill x and mask with values whose scan is exact: signs for products, small integers otherwise."""
    random = torch.Generator(x.device).manual_seed(2026)
    for tensor, kind in ((x, spec.input.kind), (mask, spec.mask_dtype.kind if spec.mask_dtype else "bool")):
        if tensor is not None:
            low, high = _STEPS[kind]
            steps = torch.randint(low, high + 1, tensor.shape, dtype=torch.int8, device=x.device, generator=random)
            tensor.copy_(steps)
    if spec.op != "sum":  # odd factors are invertible in wrapping arithmetic, signs everywhere
        if spec.input.kind == "int":
            x.mul_(2).add_(1)
        else:
            x.masked_fill_(x == 0, 1)


_STEPS = {"bool": (0, 1), "int": (0, 40), "float": (-1, 1)}


def _fill_randomly(spec: ScanSpec, x: torch.Tensor) -> None:
    """Fill x with normal values, since copies of constant bits are faster."""
    if spec.input.kind == "float" and spec.op == "sum":
        x.normal_(generator=torch.Generator(x.device).manual_seed(2026))


def _spilled(used: Resources | None) -> int:
    return 0 if used is None else (used.spill_store_bytes or 0) + (used.spill_load_bytes or 0)


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
