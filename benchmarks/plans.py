"""Search the fastest plans of a table of specs: ``plans -o codegen/measured/sm_90.json`` writes what the planner reads.

For each spec the plan of the strategy's rule, the one in the table and random ones of every strategy that serves it are
built and timed, then neighbours of the fastest, twice. The fastest few are timed once more against the rule's plan, in
turns: the median decides. A plan whose results differ from those of the rule's plan is left out.

``--cells training`` or ``--cells forward`` searches the kernels of the cells of that benchmark instead of the table's.
"""

from __future__ import annotations

import math
import random
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks import forward, training
from benchmarks.common import parser
from benchmarks.fusion import list_fused_workloads
from benchmarks.timing import Timer
from scanops.codegen.candidates import IDLE, idle_part, make_candidate, neighbours, starts
from scanops.codegen.figures import item_bytes, lines_for
from scanops.codegen.kernel_key import KernelKey, variant_for
from scanops.codegen.planner import STRATEGIES, Plan, by_rule, class_of, find_measured_plan, plan_kernel, strategy_of
from scanops.codegen.spec import ScanSpec
from scanops.errors import ScanopsError
from scanops.measure import GpuLaboratory, require_gpu
from scanops.precompile import record
from scanops.processes import jobs_that_fit
from scanops.runtime.call_cache import CALLS
from scanops.tuning import Measured, TuningEntry, read, write

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
SHAPES: tuple[tuple[int, int, bool], ...] = (  # length, inner, whether lines are few
    *((length, 1, False) for length in (127, 1024, 4096, 16384, 32768, 2**18, 4097)),
    (512, 1024, False),
    (4096, 512, False),
    (4096, 2560, False),
    (32768, 4096, False),
    (65536, 256, True),
)
ITEMS = 2**27  # of a tensor
DRAWN, NEAR, FINAL = 18, 8, 3  # plans of each comparison
ROUNDS = 2  # of neighbours of the fastest
RUNS, LAST_RUNS = 5, 11
GAIN = 0.99  # a plan must take less than this part of the time of the rule's


def keys() -> Iterator[tuple[KernelKey, int]]:
    """Yield the kernels of the table, and a number of lines for each: every kind on every shape; fused scans."""
    target, _, multiprocessors = require_gpu()
    for length, inner, few in SHAPES:
        for kind in KINDS:
            key = KernelKey(ScanSpec(**kind, length=length, inner=inner), target, variant_for(few))
            yield key, lines_for(key, multiprocessors, ITEMS)
    for each in list_fused_workloads("cuda"):
        each.ours(*each.inputs)
        asked = next(reversed(CALLS.values())).launcher
        yield asked.asked, each.inputs[0].numel() // asked.kernel.spec.capacity


def keys_of(benchmark: str, chosen: str) -> Iterator[tuple[KernelKey, int]]:
    """Yield the kernels that the chosen cells of a benchmark ask for, each once; with their lines."""
    seen = set[KernelKey]()
    for name, items, run in training.calls() if benchmark == "training" else forward.calls():
        if not re.search(chosen, name):
            continue
        with record() as used:
            run()
        for key in used.counts:
            if key not in seen and not key.spec.takes_length and not key.spec.ragged:
                seen.add(key)
                yield key, max(1, items // key.spec.capacity)
        torch.cuda.empty_cache()


def drawn(own: Plan, count: int) -> list[Plan]:
    """Return the table's plan and random ones of every strategy that serves the spec, half of them of the rule's."""
    first = list(starts(own))
    weights = [max(1, len(first) - 1), *[1] * (len(first) - 1)]
    known = find_measured_plan(own.key)
    found: dict[Plan, None] = dict.fromkeys([known] if known else [])
    for _ in range(200 * count):
        start = random.choices(first, weights)[0]
        free = STRATEGIES[start.strategy].free
        plan = make_candidate(start, {name: random.choice(values) for name, values in free.items()})
        if plan not in (None, own) and idle_part(plan) <= max(IDLE, idle_part(own)):
            found[plan] = None
        if len(found) == count:
            break
    return list(found)


class Search:
    """The plans of one spec and the median times of those that were measured; the first is the rule's, unless given."""

    def __init__(self, key: KernelKey, lines: int, own: Plan | None = None) -> None:
        spec = key.spec
        self.own = own or by_rule(strategy_of(key), key)
        self.moved = lines * spec.capacity * item_bytes(spec)
        self.laboratory, self.times = GpuLaboratory(spec, lines, jobs_that_fit()), dict[Plan, float]()

    def measure(self, plans: Sequence[Plan]) -> None:
        """Build, check and time the plans that were not timed yet, beside the rule's."""
        new = [self.own, *(plan for plan in plans if plan not in self.times and plan != self.own)]
        problems = self.laboratory.problems(new)
        if self.own in problems:
            raise SystemExit(f"{self.own.spec}: {problems[self.own]}")
        for plan, problem in problems.items():
            print(f"   {plan.spec}: {plan.describe()}: {problem.splitlines()[0]}", flush=True)
        usable = [plan for plan in new if plan not in problems]
        self.times |= self.medians(usable, RUNS)

    def medians(self, plans: Sequence[Plan], runs: int) -> dict[Plan, float]:
        """Return the median microseconds of these plans, in turns."""
        return {plan: statistics.median(times) for plan, times in self.laboratory.times(plans, runs).items()}

    def near(self, count: int) -> list[Plan]:
        """Return up to ``count`` neighbours of the fastest plan so far."""
        found = neighbours(min(self.times, key=self.times.__getitem__))
        return random.sample(found, min(count, len(found)))

    def decide(self, timer: Timer, gpu: str) -> TuningEntry:
        """Time the fastest few against the rule's plan, in turns, and return the entry of the winner."""
        ranked = [plan for plan in sorted(self.times, key=self.times.__getitem__) if plan != self.own]
        medians = self.medians([self.own, *ranked[:FINAL]], LAST_RUNS)
        best, rule = min(medians, key=medians.__getitem__), medians[self.own]
        best = best if medians[best] <= GAIN * rule else self.own
        copy = timer.copy(self.moved)
        copy_us = 1e3 * statistics.median(timer.once(copy, self.moved) for _ in range(RUNS))
        fractions = f"{copy_us / medians[best]:.3f} (rule {copy_us / rule:.3f})"
        print(f"{fractions}  {best.spec}  {best.describe()}", flush=True)
        us = {"default_us": round(rule, 2), "tuned_us": round(medians[best], 2)}
        return TuningEntry.of(best, gpu, Measured(lines=self.laboratory.lines, rounds=LAST_RUNS, **us))


def main(arguments: Sequence[str] | None = None) -> int:
    """Search the plans of all specs and write them as they are decided."""
    options = parser(__doc__, filtered="specs")
    options.add_argument(
        "--cells", choices=("training", "forward"), help="search the kernels of these benchmarks' cells"
    )
    options.add_argument("--only", default="", help="with --cells: those whose name matches this regular expression")
    options.add_argument("--seconds", type=float, default=math.inf, help="begin no search after so many seconds")
    given = options.parse_args(arguments)
    began = time.monotonic()
    random.seed(2026)
    (_, gpu, _), timer = require_gpu(), Timer(0.0)
    entries = {(entry.spec, entry.few): entry for entry in (read(given.output) if given.output else {}).values()}
    for name, entry in entries.items():  # under its class as the planner now tells classes apart
        if "-map_" not in entry.spec:  # whose expressions no name is parsed back to
            measured = KernelKey(ScanSpec.parse(entry.spec), entry.target, variant_for(entry.few))
            entries[name] = replace(entry, kind=class_of(measured))
    for key, lines in keys_of(given.cells, given.only) if given.cells else keys():
        spec = key.spec
        if not re.search(given.filter, spec.slug):
            continue
        if time.monotonic() - began > given.seconds:
            print(f"{given.seconds:.0f} seconds are over before {spec}", flush=True)
            break
        own = plan_kernel(key) if given.cells else None
        try:
            search = Search(key, lines, own)
            search.measure(drawn(search.own, DRAWN))
            for _ in range(ROUNDS):
                search.measure(search.near(NEAR))
            entry = search.decide(timer, gpu)
        except ScanopsError as problem:  # one failed search is a result, not the end of the run
            print(f"{spec}: {str(problem).splitlines()[0]}", flush=True)
            continue
        if own is None or entry.measured.tuned_us < entry.measured.default_us:
            entries[entry.spec, entry.few] = entry
        if given.output:
            write(given.output, entries.values())
    return 0
