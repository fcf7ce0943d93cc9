"""Search the fastest plans of a table of specs: ``plans -o codegen/measured/sm_90.json`` writes what the planner reads.

For each spec the plan of the strategy's rule, the one in the table and random ones of every strategy that serves it are
built and timed, then neighbours of the fastest, twice. The fastest few are timed once more against the rule's plan, in
turns: the median decides. A plan whose results differ from those of the rule's plan is left out.
"""

from __future__ import annotations

import itertools
import random
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import parser
from scanops.codegen.candidates import IDLE, idle_part, neighbours, starts, tried
from scanops.codegen.figures import lines_for
from scanops.codegen.plan import STRATEGIES, Plan, by_rule, class_of, measured_plan, strategy_of
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import target_named
from scanops.errors import ScanopsError
from scanops.measure import Operands, Stopwatch, entry_of, require_gpu, same
from scanops.processes import at_once, jobs_that_fit
from scanops.runtime.kernels import Kernel
from scanops.store.entry import Entry as StoreEntry
from scanops.tuning import Entry, Measured, read, write

KINDS: tuple[dict[str, Any], ...] = (
    {"op": "sum", "dtype": "float32"},
    {"op": "sum", "dtype": "bfloat16"},
    {"op": "sum", "dtype": "complex64"},
    {"op": "sum", "dtype": "float32", "mask": "bool"},
    {"op": "sum", "dtype": "float32", "segments": "flags"},
    {"op": "sum", "dtype": "float32", "segments": "int32"},
    {"op": "sum", "dtype": "float32", "accumulate": "compensated"},
    {"op": "sum", "dtype": "float32", "accumulate": "float64"},
    {"op": "sum", "dtype": "float8_e4m3fn", "out_dtype": "float16"},
    {"op": "sum", "dtype": "int8"},
    {"op": "sum", "dtype": "int32"},
    {"op": "linear", "dtype": "float32", "gate": "float32"},
    {"op": "linear", "dtype": "bfloat16", "gate": "bfloat16"},
    {"op": "linear", "dtype": "complex64", "gate": "complex64"},
    {"op": "linear", "dtype": "float32", "gate": "float32", "segments": "flags"},
    {"op": "linear", "dtype": "float32", "gate": "float32", "gate_layout": "line"},
    {"op": "logcumsumexp", "dtype": "float32"},
    {"op": "logcumsumexp", "dtype": "bfloat16"},
    {"op": "cummax", "dtype": "float32"},
    {"op": "cummax", "dtype": "bfloat16"},
)
SHAPES: tuple[dict[str, Any], ...] = (
    {"length": 127},
    {"length": 1024},
    {"length": 4096},
    {"length": 16384},
    {"length": 32768},
    {"length": 2**18},
    {"length": 4097},
    {"length": 512, "inner": 1024},
    {"length": 4096, "inner": 512},
    {"length": 4096, "inner": 2560},
    {"length": 32768, "inner": 4096},
    {"length": 65536, "inner": 256, "few": True},
)
ITEMS = 2**27  # of a tensor
DRAWN, NEAR, FINAL = 18, 8, 3  # plans of each comparison
ROUNDS = 2  # of neighbours of the fastest
RUNS, LAST_RUNS = 5, 11
GAIN = 0.99  # a plan must take less than this part of the time of the rule's


def specs() -> Iterator[tuple[ScanSpec, bool]]:
    """Yield the specs of the table with whether lines are few: every kind on every shape."""
    for shape in SHAPES:
        for kind in KINDS:
            sizes = {name: size for name, size in shape.items() if name != "few"}
            yield ScanSpec(**kind, **sizes), "few" in shape


# ---- plans to try


def rule_plan(spec: ScanSpec, target: str, few: bool) -> Plan:
    """Return the plan of the strategy's own rule, without any measured table."""
    row = target_named(target)
    return by_rule(strategy_of(spec, row, few), spec, row, few)


def drawn(own: Plan, count: int) -> list[Plan]:
    """Return the table's plan and random ones of every strategy that serves the spec, half of them of the rule's."""
    first = list(starts(own))
    weights = [max(1, len(first) - 1), *[1] * (len(first) - 1)]
    known = measured_plan(own.spec, own.target, own.few)
    found: dict[Plan, None] = dict.fromkeys([known] if known else [])
    for _ in range(200 * count):
        start = random.choices(first, weights)[0]
        free = STRATEGIES[start.strategy].free
        plan = tried(start, {name: random.choice(values) for name, values in free.items()})
        if plan not in (None, own) and idle_part(plan) <= max(IDLE, idle_part(own)):
            found[plan] = None
        if len(found) == count:
            break
    return list(found)


def near(best: Plan, own: Plan, count: int) -> list[Plan]:
    """Return up to ``count`` neighbours of ``best``."""
    found = [plan for plan in neighbours(best) if plan != own]
    return random.sample(found, min(count, len(found)))


# ---- measuring them


def operands_of(spec: ScanSpec, few: bool) -> Operands:
    """Return tensors of about ITEMS items for one spec, with random values."""
    operands = Operands(spec, lines_for(spec, require_gpu()[2], ITEMS, few), "cuda")
    operands.fill_exactly()  # masks and flags
    operands.fill_randomly()
    return operands


@dataclass(slots=True)
class Search:
    """The plans of one spec, their times so far, and the rule's own."""

    spec: ScanSpec
    own: Plan
    builds: dict[Plan, StoreEntry | ScanopsError]
    times: dict[Plan, float]

    def measure(self, stopwatch: Stopwatch) -> None:
        """Build, check and time the plans that were not timed yet."""
        operands, wanted = operands_of(self.spec, self.own.few), None
        for plan, build in self.builds.items():
            if plan in self.times and plan != self.own:
                continue
            try:
                if isinstance(build, ScanopsError):
                    raise build
                kernel = Kernel(self.spec, plan.target.name, build)
                result = operands.run(kernel)
                if wanted is None:
                    wanted = result.clone()
                elif not same(result, wanted, exactly=False):
                    print(f"   WRONG {self.spec}: {plan.describe()}", flush=True)
                    continue
                used = kernel.resources
                if used is not None and (used.spill_store_bytes or 0) > 0 and plan != self.own:
                    continue
                self.times[plan] = _median(stopwatch, operands, kernel, RUNS)
            except ScanopsError as problem:
                print(f"   {self.spec}: {plan.describe()}: {str(problem).splitlines()[0]}", flush=True)

    def best(self) -> Plan:
        """Return the fastest plan so far."""
        return min(self.times, key=self.times.__getitem__)

    def decide(self, stopwatch: Stopwatch, gpu: str) -> Entry:
        """Time the fastest few against the rule's plan, in turns, and return the entry of the winner."""
        finalists = [self.own, *[plan for plan in sorted(self.times, key=self.times.__getitem__) if plan != self.own]]
        finalists = finalists[: FINAL + 1]
        operands = operands_of(self.spec, self.own.few)
        built = {plan: build for plan in finalists if not isinstance(build := self.builds[plan], ScanopsError)}
        kernels = {plan: Kernel(self.spec, plan.target.name, build) for plan, build in built.items()}
        rounds: dict[Plan, list[float]] = {plan: [] for plan in finalists}
        for _ in range(LAST_RUNS):
            for plan, kernel in kernels.items():
                rounds[plan].append(1e3 * stopwatch.once(lambda kernel=kernel: operands.run(kernel), operands.moved))  # type: ignore[misc]
        medians = {plan: statistics.median(times) for plan, times in rounds.items()}
        best = min(medians, key=medians.__getitem__)
        if medians[best] > GAIN * medians[self.own]:
            best = self.own
        copy = _copy_us(stopwatch, operands.moved)
        print(
            f"{copy / medians[best]:.3f} (rule {copy / medians[self.own]:.3f})  {self.spec}  {best.describe()}",
            flush=True,
        )
        measured = Measured(
            lines=operands.lines,
            default_us=round(medians[self.own], 2),
            tuned_us=round(medians[best], 2),
            rounds=LAST_RUNS,
        )
        return Entry.of(best, gpu, measured)


def _median(stopwatch: Stopwatch, operands: Operands, kernel: Kernel, runs: int) -> float:
    return statistics.median(stopwatch.once(lambda: operands.run(kernel), operands.moved) for _ in range(runs))


def _copy_us(stopwatch: Stopwatch, moved: int) -> float:
    source = torch.empty(moved // 8, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    return 1e3 * statistics.median(stopwatch.once(lambda: target.copy_(source), moved) for _ in range(RUNS))


def _build_all(plans: Sequence[tuple[Search, Plan]]) -> None:
    """Build these plans, several at a time."""
    entries = at_once(entry_of, [plan for _, plan in plans], jobs_that_fit())
    for (search, plan), entry in zip(plans, entries, strict=True):
        search.builds[plan] = entry


def _classified(entry: Entry) -> Entry:
    """The entry under its class as the planner now tells classes apart."""
    return replace(entry, kind=class_of(ScanSpec.parse(entry.spec), entry.few))


def main(arguments: Sequence[str] | None = None) -> int:
    """Search the plans of all specs and write them as they are decided."""
    flags = parser(__doc__, filtered="specs")
    given = flags.parse_args(arguments)
    random.seed(2026)
    (target, gpu, _), stopwatch = require_gpu(), Stopwatch()
    path: Path | None = given.output
    entries = {(entry.spec, entry.few): _classified(entry) for entry in read(path).values()} if path else {}
    for _, group in itertools.groupby(specs(), lambda each: (each[0].length, each[0].inner)):
        wanted = [(spec, few) for spec, few in group if re.search(given.filter, spec.slug)]
        searches = [Search(spec, rule_plan(spec, target, few), {}, {}) for spec, few in wanted]
        _build_all([(search, plan) for search in searches for plan in (search.own, *drawn(search.own, DRAWN))])
        for search in searches:
            search.measure(stopwatch)
        for _ in range(ROUNDS):
            further = [(search, plan) for search in searches for plan in near(search.best(), search.own, NEAR)]
            _build_all([(search, plan) for search, plan in further if plan not in search.builds])
            for search in searches:
                search.measure(stopwatch)
        for search in searches:
            entry = search.decide(stopwatch, gpu)
            entries[entry.spec, entry.few] = entry
        if path:
            write(path, entries.values())
    return 0
