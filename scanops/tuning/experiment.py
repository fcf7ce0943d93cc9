"""Decide whether another plan is faster than the planner's, and by how much.

Three comparisons of interleaved runs: all candidates; the fastest few; the fastest against the planner's plan. The last
one decides, since the minimum over many plans is biased: another plan is kept only where it wins that as well, by more
than the noise.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from scanops.codegen.candidates import candidates
from scanops.codegen.plan import Plan
from scanops.codegen.spec import ScanSpec
from scanops.errors import BuildFailure
from scanops.tuning.files import Entry, Measured

# A plan must gain this much: medians of the same plan, 45 runs and 30 in other tensors, were 0.04 % apart at 0.6 ms
# (H200); the spread of the pairs asks for more where runs are short.
MARGIN = 0.01
FINALISTS = 4
CONFIRMING = 3  # factor on the runs of the comparison that decides

Said = Callable[[str, int, int], object]  # (what is under way, done, of)


class Laboratory(Protocol):
    """Interface of what builds, checks and times plans for one spec."""

    def build(self, plans: Sequence[Plan], said: Callable[[int, int], object]) -> Mapping[Plan, str]:
        """Build kernels of these plans; return the reason for each that cannot be used."""

    def agrees(self, plan: Plan) -> bool:
        """Whether the kernel of a plan gives the same bits as that of the planner's plan."""

    def times(self, plans: Sequence[Plan], rounds: int) -> Mapping[Plan, list[float]]:
        """Return microseconds of each round, plans interleaved, L2 cache cold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of tuning one spec."""

    spec: ScanSpec
    default: Plan  # the planner's own
    best: Plan  # the same object as ``default`` where no plan was faster
    default_us: float  # medians of the last comparison
    best_us: float
    rounds: int
    tried: int  # plans that were measured
    refused: tuple[tuple[Plan, str], ...]  # plans that were not, and why

    @property
    def improved(self) -> bool:
        """Whether a plan other than the planner's is kept."""
        return self.best is not self.default

    @property
    def gain(self) -> float:
        """The speedup over the planner's plan: 1.05 is five percent more items per second."""
        return self.default_us / self.best_us

    def entry(self, gpu: str, lines: int) -> Entry | None:
        """Return the entry for the tuning file; None where the planner's plan stays."""
        if not self.improved:
            return None
        return Entry(
            target=self.best.target.name,
            gpu=gpu,
            spec=self.spec.slug,
            strategy=self.best.strategy,
            plan=self.best.numbers(),
            measured=Measured(
                lines=lines,
                default_us=round(self.default_us, 3),
                tuned_us=round(self.best_us, 3),
                rounds=self.rounds,
            ),
        )


def tune(
    spec: ScanSpec, target: str, laboratory: Laboratory, *, rounds: int = 15, said: Said = lambda what, done, of: None
) -> Outcome:
    """Return the fastest plan for ``spec``: the planner's own unless another is faster by more than the noise.

    Raises BuildFailure when the kernel of the planner's plan cannot be built.
    """
    plans = list(candidates(spec, target))
    default = plans[0]
    problems = dict(laboratory.build(plans, lambda done, of: said("building", done, of)))
    if default in problems:
        raise BuildFailure(
            f"build the planner's kernel for {spec}",
            allowed="a kernel to compare with",
            value=problems[default],
            hint=f"see what `scanops build {spec}` says",
        )
    usable = [plan for plan in plans if plan not in problems]
    for done, plan in enumerate(usable[1:], 1):
        said("checking", done, len(usable) - 1)
        if not laboratory.agrees(plan):
            problems[plan] = "its result is not the planner's"
    usable = [plan for plan in usable if plan not in problems]
    said("measuring", 0, 3)
    ranked = _ranked(laboratory.times(usable, rounds))
    said("measuring", 1, 3)
    finalists = [plan for plan in ranked if plan != default][:FINALISTS]
    ranked = _ranked(laboratory.times([default, *finalists], rounds))
    said("measuring", 2, 3)
    best = next((plan for plan in ranked if plan != default), default)
    times = laboratory.times([default, best] if best != default else [default], CONFIRMING * rounds)
    said("measuring", 3, 3)
    better = best != default and _is_better(times[best], times[default])
    chosen = best if better else default
    return Outcome(
        spec=spec,
        default=default,
        best=chosen,
        default_us=statistics.median(times[default]),
        best_us=statistics.median(times[chosen]),
        rounds=CONFIRMING * rounds,
        tried=len(usable),
        refused=tuple(problems.items()),
    )


def _ranked(times: Mapping[Plan, list[float]]) -> list[Plan]:
    """Return the plans by median time, the fastest first."""
    return sorted(times, key=lambda plan: statistics.median(times[plan]))


def _is_better(times: list[float], others: list[float]) -> bool:
    """Whether the first is faster by more than the noise, in the median and in most pairs."""
    ratios = sorted(mine / other for mine, other in zip(times, others, strict=True))
    count = len(ratios)
    spread = ratios[3 * count // 4] - ratios[count // 4]
    margin = max(MARGIN, 2 * spread / count**0.5)
    return statistics.median(ratios) < 1 - margin and statistics.median(times) < statistics.median(others)
