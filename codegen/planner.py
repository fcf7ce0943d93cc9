"""The planner: the strategy and the shape of the kernel for a spec on a target.

codegen/measured/sm_90.json lists, for some hundred specs, the fastest plan that was found on a GPU of that target. It
has the format of the files of ``scanops tune``; ``python -m benchmarks plans`` writes it. A spec takes the plan of an
entry of its own class, ``class_of``: that of the nearest length not too far away, or of the longest row measured where
that one is split into tiles. Numbers that follow from the length are recomputed. Specs of a class that
nobody measured, and targets without a file, take the plan of their strategy's own rule.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from scanops.codegen.dtypes import dtype_named
from scanops.codegen.former_names import translate_plan
from scanops.codegen.fragments import fragments
from scanops.codegen.kernel_key import MANY, KernelKey, variant_for
from scanops.codegen.lines import ONE_BLOCK, SPLIT_LENGTH
from scanops.codegen.spec import ScanSpec, spec_of
from scanops.codegen.strategies import (
    block,
    column_tile,
    columns,
    columns_lookback,
    line_states,
    persistent,
    staged,
    transposed,
    warp,
)
from scanops.codegen.strategies.base import WARP, ceil_div, require
from scanops.codegen.strategies.base import Plan as Plan
from scanops.codegen.strategies.rows import fills_registers
from scanops.codegen.strategies.staged import StagedPlan
from scanops.codegen.targets import DEFAULT_TARGET, target_named
from scanops.errors import UnsupportedRequest

SHORT_BYTES = 2560  # of a row; longer ones fit neither a warp nor its part of shared memory
NEAR = 2.0  # factor between a length of several tiles and the measured one whose plan it takes
NEAR_COLUMNS = 3  # factors of 2 between numbers of columns, for fused scans
NEAR_TILE = 1.42  # the same for lengths of one tile

TableEntry = Mapping[str, Any]  # of a file, in the format of ``scanops tune``


# ---- the table of strategies

POWERS = tuple(2**k for k in range(11))
LONG = 2048  # items; shorter rows are not worth splitting over blocks or copying ahead
COLUMN_TILE: Mapping[str, Sequence[int]] = {
    "threads": POWERS[5:],
    "items": (1, 2, 4, 6, 8, 12, 16, 20, 24, 32),
    "columns": POWERS[1:9],
    "vector": POWERS[:4],
    "strided_columns": (False, True),
    "stages": range(6),
    "blocks": range(1, 5),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A way to scan lines, whose plans differ in some numbers."""

    plan: Callable[[KernelKey], Plan]  # by the strategy's own rule
    fits: Callable[[KernelKey], bool]  # whether its plans for a spec are worth a measurement
    # The numbers that a measured plan gives, with the values worth a try; the others follow from them and from the spec
    free: Mapping[str, Sequence[int]]


STRATEGIES: Mapping[str, Strategy] = {
    "warp": Strategy(
        plan=warp.plan,
        fits=lambda key: key.spec.inner == 1 and warp.fits(key.spec),
        free={"threads": POWERS[6:10], "lanes": POWERS[:6]},
    ),
    "staged": Strategy(
        plan=staged.plan,
        fits=lambda key: staged.fits(key.spec),
        free={"threads": POWERS[5:9], "rows": POWERS[:10], "lanes": POWERS[:6]},
    ),
    "block": Strategy(
        plan=block.plan,
        fits=lambda key: key.spec.inner == 1 and key.spec.capacity >= WARP and block.fits(key.spec, key.architecture),
        free={"vectors": range(1, 17)},
    ),
    "split": Strategy(
        plan=block.split,
        fits=lambda key: key.spec.inner == 1 and bool(key.is_few or key.spec.fusion) and key.spec.capacity >= LONG,
        free={"threads": (128, 256, 384, 512, 768, 1024), "vectors": range(1, 17)},
    ),
    "persistent": Strategy(
        plan=persistent.plan,
        fits=lambda key: key.spec.inner == 1 and key.spec.capacity >= LONG,
        free={
            "threads": (*range(96, 513, 32), 640, 768, 1024),
            "vectors": range(1, 17),
            "stages": range(2, 7),
            "ahead": range(1, 4),
            "blocks": range(1, 5),
        },
    ),
    "states": Strategy(
        plan=line_states.plan,
        fits=lambda key: line_states.fits(key.spec),
        free={
            "threads": POWERS[6:10],
            "items": POWERS[:5],
            "lanes": POWERS[:6],
            "blocks": range(1, 5),
            "group": POWERS[2:5],
        },
    ),
    "transposed": Strategy(
        plan=transposed.plan,
        fits=lambda key: transposed.fits(key.spec),
        free={
            "threads": POWERS[5:10],
            "items": POWERS[2:6],
            "vector": POWERS[:3],
            "stages": range(1, 6),
            "blocks": range(1, 17),
        },
    ),
    "columns": Strategy(plan=columns.plan, fits=lambda key: key.spec.inner > 1, free=COLUMN_TILE),
    "columns_lookback": Strategy(
        plan=columns_lookback.plan,
        fits=lambda key: key.spec.inner > 1 and key.spec.capacity >= WARP and not key.spec.ragged,
        free={**COLUMN_TILE, "abreast": POWERS, "group": (1, 8, 32), "stretch": (1, 4, 8, 32)},
    ),
}


# ---- plans by rule, and from measurements


def make_plan(spec: ScanSpec | str, target: str = DEFAULT_TARGET, few: bool = False) -> Plan:
    """Return the plan for ``spec`` on ``target``: a measured one, else that of the strategy that fits.

    Needs no GPU.

    Args:
        spec: what to compute, a ScanSpec or its short name.
        target: an architecture such as ``"sm_90"``.
        few: plan for so few lines that one block for each line would leave the GPU idle.

    Returns:
        The plan: strategy, block size and items per thread, and what follows from them.

    Raises:
        UnsupportedRequest: ``spec`` is neither, or the target is not in the table.

    Example:
        >>> print(make_plan(ScanSpec(op="sum", dtype="float32", length=4)).describe())
        warp: threads 128, items 4, tiles 1, vectors 1, boundary 0, lanes 1
    """
    return plan_kernel(KernelKey(spec_of(spec), target_named(target).name, variant_for(few)))


def plan_kernel(key: KernelKey) -> Plan:
    """Return the plan of a kernel: a measured one, else that of the strategy that fits."""
    return find_measured_plan(key) or by_rule(strategy_of(key), key)


def by_rule(strategy: str, key: KernelKey) -> Plan:
    """Return the plan that the rule of a strategy makes."""
    plan = STRATEGIES[strategy].plan(key)
    return replace(plan, variant=key.variant) if key.is_few else plan


def strategy_of(key: KernelKey) -> str:
    """Return the name of the strategy whose rule makes the plan where none was measured."""
    spec, few = key.spec, key.is_few
    if spec.states:
        return "states"
    if spec.recomputes:
        return "block"  # the one strategy that scans a tile twice
    if spec.input_layout == "transposed":
        if transposed.fits(spec) and not few:
            return "transposed"
        key, few = key._replace(variant=MANY), False  # their items are read one by one
    if spec.inner > 1 and spec.linked:  # a block that walks down its columns keeps the next rank waiting
        return "columns_lookback" if columns_lookback.plan(key).tiles > 1 else "columns"
    if spec.inner > 1:
        return "columns_lookback" if columns_lookback.fits(key) else "columns"
    if spec.capacity * max(spec.input.bytes, *spec.result_bytes) <= SHORT_BYTES and not spec.linked:
        if staged.fits(spec):
            return "staged"
        if warp.fits(spec):
            return "warp"
    one_tile = block.fits(spec, key.architecture)
    if few and spec.capacity >= SPLIT_LENGTH and not (one_tile and spec.capacity <= ONE_BLOCK and not spec.linked):
        return "split"
    return "block" if one_tile else "persistent"


def class_of(key: KernelKey) -> str:
    """Return what the best shape depends on besides the length, in words; empty where plans are not measured.

    Directions, exclusive scans and carries do not count. Operators count by their state, so that one of a user's takes
    the plans of a built-in operator like it, and fused scans by their operands and outputs, whatever they compute.
    """
    spec = key.spec
    if spec.takes_length or spec.recomputes or spec.views or not spec.aligned:
        return ""
    if spec.linked and spec.inner > 1:  # their lines have to end one after another, which no plan was measured for
        return ""
    operator, value, read = spec.operator, spec.accumulator, {source.name for source in spec.streams}
    traits = [name for name in ("costly", "ordered", "append", "loss", "indices", "own") if getattr(operator, name)]
    traits = ["map"] * bool(spec.fusion) + traits + ["ahead"] * spec.looks_ahead
    whole = spec.divides(spec.access_items) if spec.inner == 1 else column_tile.column_width(spec) == spec.access_items
    traits += ["misaligned"] * (not whole) + ["few"] * key.is_few
    numbers = {
        "state": f"{fragments(spec).state_bytes}/{len(operator.fields)}",
        "value": f"{'complex' if value.kind == 'complex' else ''}{value.bytes}",  # float64 takes other registers
        "x": spec.input.bytes,
        "mask": "mask" in read and (spec.weight.bytes if spec.weight else "bool"),  # not one for the whole line
        "gate": "gate" in read and spec.term.bytes,
        "saved": "saved" in read and dtype_named(spec.saved).bytes,
        "further": "+".join(str(source.dtype.bytes) for source in spec.streams if source.name.startswith("further")),
        "y": "+".join(map(str, spec.result_bytes)),
        "segments": spec.segments,
        "columns": spec.inner.bit_length(),  # as many, up to a factor of 2
    }
    return " ".join([*traits, *(f"{name}={number}" for name, number in numbers.items() if number)])


def find_measured_plan(key: KernelKey) -> Plan | None:
    """Return the measured plan of a kernel, or None where no entry near it gives one."""
    for entry in _list_near(key.spec, _entries(class_of(key), _table(key.architecture.name))):
        faster = entry["measured"]["tuned_us"] < entry["measured"]["default_us"]  # than the strategy's own rule
        plan = _apply_entry(key, entry) if faster else None
        if plan is not None or not faster:
            return plan
    return None


def _list_near(spec: ScanSpec, entries: Mapping[int, TableEntry]) -> Iterator[TableEntry]:
    """Yield the entries whose length is not too far away, the nearest first."""
    for _, length in sorted((abs(math.log2(spec.capacity / length)), length) for length in entries):
        entry, factor = entries[length], spec.capacity / length
        tiled = entry["plan"]["tiles"] > 1
        beyond = spec.inner == 1 and tiled and length == max(entries)
        most = NEAR if tiled else NEAR_TILE
        if 1 / most <= factor <= (math.inf if beyond else most):
            yield entry


def _entries(kind: str, table: Mapping[str, Mapping[int, TableEntry]]) -> Mapping[int, TableEntry]:
    """The entries of a class by length; of a fused scan also of similar numbers of columns, and of plain scans."""
    if not kind.startswith("map "):
        return table.get(kind, {})
    words, _, columns = kind.rpartition("=")
    found = dict(table.get(kind, {}))
    for other in range(1, NEAR_COLUMNS + 1) if columns != "1" else ():
        for near in (int(columns) - other, int(columns) + other):
            found = {**table.get(f"{words}={near}", {}), **found} if near > 1 else found
    return {**table.get(kind.removeprefix("map "), {}), **found}


def _apply_entry(key: KernelKey, entry: TableEntry) -> Plan | None:
    """The plan of an entry for a kernel of its class, or None where it does not serve that length."""
    try:
        start = by_rule(entry["strategy"], key)
        plan = rebuilt(start, **{name: entry["plan"][name] for name in STRATEGIES[start.strategy].free})
        return replace(plan, origin=f"measured: {entry['spec']}")
    except (UnsupportedRequest, ValueError, ArithmeticError, StopIteration):
        return None  # the strategy has no plan for this length


@functools.cache
def _table(target: str) -> Mapping[str, Mapping[int, TableEntry]]:
    """The entries measured on a GPU of this target, by class and length."""
    file = resources.files("scanops.codegen") / "measured" / f"{target}.json"
    found: dict[str, dict[int, TableEntry]] = {}
    for entry in map(translate_plan, json.loads(file.read_text(encoding="utf-8"))["entries"] if file.is_file() else ()):
        length = int(entry["spec"].split("-")[2].removeprefix("n"))
        found.setdefault(entry["kind"], {}).setdefault(length, entry)
    return found


def rebuilt(plan: Plan, **free: Any) -> Plan:
    """Return ``plan`` with these free numbers, and those that follow from them recomputed.

    Raises UnsupportedRequest where no correct kernel has these numbers; ValueError or ArithmeticError for numbers that
    divide nothing.
    """
    numbers: dict[str, Any] = {**plan.numbers(), **free}
    if isinstance(plan, StagedPlan):
        shape = {name: numbers[name] for name in ("threads", "rows", "lanes", "items")}
        return replace(staged.plan_shape(plan.spec, plan.target, **shape), variant=plan.variant)
    reach = plan.spec.capacity + max(0, numbers.get("boundary", 0) - 1)
    if plan.strategy == "warp":  # a row lies within its lanes
        numbers["vectors"] = ceil_div(reach, numbers["lanes"] * numbers["items"])
    if plan.strategy == "block":  # or within its block
        numbers["threads"] = WARP * ceil_div(reach, WARP * numbers["vectors"] * numbers["items"])
    if "one_block_per_sm" in numbers:
        numbers["one_block_per_sm"] = fills_registers(
            plan.spec, *(numbers[name] for name in ("items", "vectors", "threads"))
        )
    del numbers["tiles"]
    made = replace(plan, **numbers)
    fits = made.shared_bytes <= made.target.block_shared_bytes
    require(made, fits, "shared memory that a block of the target has")
    return made
