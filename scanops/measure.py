"""Measure plans on the current GPU for ``scanops tune``, and decide whether one is faster than the planner's.

Two comparisons of interleaved runs: all candidates; the fastest against the planner's plan. The second one decides,
since the minimum over many plans is biased: another plan is kept only where it wins that as well, by more than the
noise. Times are those of CUDA events around runs on a cold L2 cache.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from scanops.build_request import BuildRequest, Resources
from scanops.codegen.candidates import candidates
from scanops.codegen.figures import ITEMS, item_bytes
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.planner import Plan
from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.errors import BuildFailure, MissingRequirement, ScanopsError
from scanops.operands import Operands, same
from scanops.processes import at_once
from scanops.runtime.kernels import Kernel, default_target
from scanops.runtime.policies import STRICT
from scanops.store import Store
from scanops.store.entry import Entry
from scanops.torch_private import gpu_sleep
from scanops.tuning import Measured, TuningEntry

# A plan must gain this much: medians of the same plan, 45 runs and 30 in other tensors, were 0.04 % apart at 0.6 ms
# (H200); the spread of the pairs asks for more where runs are short.
MARGIN = 0.01
CONFIRMING = 3  # factor on the runs of the comparison that decides
MEMORY_SHARE = 0.4  # of the free memory for x, mask and two results
SLEEP_CYCLES = 400_000  # about 0.2 ms on the GPU before each run, so that launch latency is hidden
ROUND_CYCLES = 3_000_000  # about 1.5 ms, in which the host queues a whole round of runs
COLD_BYTES = 2**29  # runs that move fewer bytes start with unrelated data in the L2 cache
FLUSH_BYTES = 2**28  # several times the L2 cache

Run = Callable[[], object]
Said = Callable[[str, int, int], object]  # (what is under way, done, of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of tuning one spec."""

    default: Plan  # the planner's own
    best: Plan  # the same object as ``default`` where no plan was faster
    measured: Measured  # in the last comparison
    tried: int  # plans that were measured
    refused: tuple[tuple[Plan, str], ...]  # plans that were not, and why

    @property
    def improved(self) -> bool:
        """Whether a plan other than the planner's is kept."""
        return self.best is not self.default

    def entry(self, gpu: str) -> TuningEntry | None:
        """Return the entry for the tuning file; None where the planner's plan stays."""
        return TuningEntry.of(self.best, gpu, self.measured) if self.improved else None


def tune(
    key: KernelKey,
    laboratory: GpuLaboratory,
    *,
    rounds: int = 15,
    said: Said = lambda what, done, of: None,
) -> Outcome:
    """Return the fastest plan of a kernel: the planner's own unless another is faster by more than the noise.

    Raises BuildFailure when the kernel of the planner's plan cannot be built.
    """
    plans = list(candidates(key))
    default = plans[0]
    problems = laboratory.problems(plans, said)
    if default in problems:
        raise BuildFailure(
            f"build the planner's kernel for {key.spec}",
            allowed="a kernel to compare with",
            value=problems[default],
            hint=f"see what `scanops build {key.spec}` says",
        )
    usable = [plan for plan in plans if plan not in problems]
    said("measuring", 0, 2)
    found = laboratory.times(usable, rounds)
    said("measuring", 1, 2)
    best = min(found, key=lambda plan: (plan == default, statistics.median(found[plan])))  # of the others, if any
    times = laboratory.times([default, best] if best != default else [default], CONFIRMING * rounds)
    said("measuring", 2, 2)
    better = best != default and _is_better(times[best], times[default])
    chosen = best if better else default
    measured = Measured(
        lines=laboratory.lines,
        default_us=round(statistics.median(times[default]), 3),
        tuned_us=round(statistics.median(times[chosen]), 3),
        rounds=CONFIRMING * rounds,
    )
    refused = tuple(problems.items())
    return Outcome(default=default, best=chosen, measured=measured, tried=len(usable), refused=refused)


def _is_better(times: list[float], others: list[float]) -> bool:
    """Whether the first is faster by more than the noise, in the median and in most pairs."""
    ratios = sorted(mine / other for mine, other in zip(times, others, strict=True))
    count = len(ratios)
    spread = ratios[3 * count // 4] - ratios[count // 4]
    margin = max(MARGIN, 2 * spread / count**0.5)
    return statistics.median(ratios) < 1 - margin and statistics.median(times) < statistics.median(others)


class GpuLaboratory:
    """Builds, checks and times plans for one spec on the current GPU."""

    def __init__(self, spec: ScanSpec, lines: int, jobs: int) -> None:
        self.lines, self._jobs = lines, jobs
        self._operands = Operands(spec, lines, "cuda")
        self._kernels: dict[Plan, Kernel] = {}
        self._stopwatch = Stopwatch()

    def problems(self, plans: Sequence[Plan], said: Said = lambda what, done, of: None) -> dict[Plan, str]:
        """Build the kernels that the store lacks; return why plans are unusable: a build error, spills, a wrong result.

        The result must be that of the first plan, on values whose scan is exact in any order.
        """
        problems, done = dict[Plan, str](), itertools.count(1)
        entries = at_once(entry_of, plans, self._jobs, lambda _: said("building", next(done), len(plans)))
        self._operands.fill_exactly()
        expected: torch.Tensor | None = None
        for number, (plan, entry) in enumerate(zip(plans, entries, strict=True), 1):
            said("checking", number, len(plans))
            if isinstance(entry, ScanopsError):
                problems[plan] = str(entry)
                continue
            used = entry.resources or Resources()
            spilled = (used.spill_store_bytes or 0) + (used.spill_load_bytes or 0)
            if plan is not plans[0] and spilled:
                problems[plan] = f"{spilled} bytes of spills"
                continue
            self._kernels[plan] = kernel = Kernel(plan.key, entry)
            kernel._plan = plan
            self._operands.out.fill_(77)  # unwritten items keep this value, which no random walk has throughout
            try:
                result = self._run(plan)
            except ScanopsError as problem:
                problems[plan] = str(problem)
                continue
            expected = result.clone() if expected is None else expected
            if not same(result, expected, exactly=not (plan.spec.operator.costly or plan.spec.fusion)):
                problems[plan] = "WRONG: its result is not the planner's"
        return problems

    def times(self, plans: Sequence[Plan], rounds: int) -> Mapping[Plan, list[float]]:
        """Return microseconds of each round, plans interleaved, L2 cache cold."""
        self._operands.fill_randomly()
        runs = {plan: functools.partial(self._run, plan) for plan in plans}
        for run in runs.values():
            run()
        found: dict[Plan, list[float]] = {plan: [] for plan in plans}
        for _ in range(rounds):
            for plan, run in runs.items():
                found[plan].append(1e3 * self._stopwatch.once(run, self._operands.moved))
        return found

    def _run(self, plan: Plan) -> torch.Tensor:
        return self._operands.run(self._kernels[plan])[0]


def entry_of(plan: Plan) -> Entry | ScanopsError:
    """Return the store entry of a plan, built if it is missing, or the error if it cannot be built."""
    try:
        launch = plan.launch._asdict()
        request = BuildRequest(
            name=plan.spec.slug,
            source=render(plan),
            target=plan.target.name,
            launch=launch,
            builders=STRICT.list_builders(),
        )
        return Store().get_or_build(request)
    except ScanopsError as problem:
        return problem


def require_gpu() -> tuple[str, str, int]:
    """Return target, name and number of multiprocessors of the GPU. Raises MissingRequirement without one."""
    if not torch.cuda.is_available():
        raise MissingRequirement(
            "to measure plans",
            allowed="a machine with an NVIDIA GPU",
            value="none visible to torch",
            hint="scanops doctor says what is missing",
        )
    facts = torch.cuda.get_device_properties()
    return default_target(), str(facts.name), int(facts.multi_processor_count)


def items_that_fit(spec: ScanSpec) -> int:
    """Return how many items x may have so that its mask and two results fit on the current GPU as well."""
    free, _ = torch.cuda.mem_get_info()
    return min(ITEMS, int(MEMORY_SHARE * free) // (item_bytes(spec) + spec.out.bytes))


class Stopwatch:
    """Times runs by CUDA events on the current stream, each run behind a sleep of the GPU that hides host time."""

    def __init__(self) -> None:
        self._other = torch.empty(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda").fill_(1)

    def once(self, run: Run, moved: int) -> float:
        """Return the milliseconds of one run that moves ``moved`` bytes."""
        gpu_sleep(ROUND_CYCLES)
        return milliseconds_between(self.queue(run, moved))

    def queue(self, run: Run, moved: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """Queue one run on the GPU and return the events before and after it."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        if moved < COLD_BYTES:
            self._other.sum()  # a read: written data would be evicted from the L2 cache during the run
        gpu_sleep(SLEEP_CYCLES)
        start.record()
        run()
        end.record()
        return start, end


def milliseconds_between(pair: tuple[torch.cuda.Event, torch.cuda.Event]) -> float:
    """Wait for both events and return the milliseconds between them."""
    start, end = pair
    end.synchronize()
    return float(start.elapsed_time(end))
