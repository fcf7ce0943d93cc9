"""Kernels of plans the planner makes for greater shapes or older GPUs, in shapes small enough to emulate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import scanops
from scanops.build_request import BuildRequest
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.layouts import Layout
from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import block, column_tile, columns, columns_lookback, persistent, transposed, warp
from scanops.codegen.strategies.base import Plan
from scanops.codegen.targets import target_named
from scanops.runtime.kernels import CPU, Kernel
from scanops.store import Store
from tests.numbers.oracle import gates, hold, selection, sequential, values, weights
from tests.numbers.test_shapes import lying, marked, placed

SM_90 = target_named("sm_90")
# (input, mask, output, operator): accesses of 16, 8, 4 and 2 bytes, of items of 8 to 1
ELEMENTS = {
    "f32": (torch.float32, None, torch.float32, "affine"),
    "f64_b8": (torch.float64, torch.bool, torch.float64, "affine"),
    "f32_f32": (torch.float32, torch.float32, torch.float32, "affine"),
    "bf16_b8": (torch.bfloat16, torch.bool, torch.bfloat16, "sum"),
    "f16_f64": (torch.float16, None, torch.float64, "sum"),
    "i8_i64": (torch.int8, None, torch.int64, "sum"),
}


def scanned(plan: Plan, x: torch.Tensor, mask: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    """Scan ``x`` along dimension 1 by the emulated kernel of a plan, built if it is missing."""
    request = BuildRequest(name=plan.spec.slug, source=render(plan), target=CPU, launch=plan.launch._asdict())
    with scanops.emulate(seed=x.storage_offset() + 3):
        y: torch.Tensor = Kernel(KernelKey(plan.spec, CPU), Store().get_or_build(request))(x, 1, mask=mask, **options)
    return y


def expected(x: torch.Tensor, spec: ScanSpec, mask: torch.Tensor | None = None) -> torch.Tensor:
    """The sequential scan that a spec asks for."""
    out = getattr(torch, spec.out_dtype)
    return sequential(x, spec.op, 1, mask=mask, reverse=spec.reverse, exclusive=spec.exclusive, dtype=out)


def drawn(element: str, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor | None, dict[str, Any]]:
    """The operand and mask of an element, and the fields of its spec."""
    source, kind, result, op = ELEMENTS[element]
    mask = None if kind is None else selection(shape) if kind == torch.bool else weights(op, shape, kind)
    fields = {"op": op, "dtype": str(source), "out_dtype": str(result), "mask": None if kind is None else str(kind)}
    return values(op, shape, torch.int64).to(source), mask, {**fields, "length": shape[1]}


# ---- rows that begin off the boundaries of the output's accesses

Make = Callable[[KernelKey], Any]


def small(make: Make) -> Make:
    """Plans with numbers that give a short row several tiles."""

    def made(key: KernelKey) -> Plan:
        small: Plan = dataclasses.replace(make(key), threads=64, vectors=2)
        return small

    return made


# (plans, lengths): ends of rows within an access, within a stripe, at the end of a tile
ROWS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "warp": (warp.plan, (36, 131)),
    "block": (block.plan, (1024, 1027)),
    "split": (small(block.split), (2048, 4099)),
    "persistent": (small(persistent.plan), (2048, 4099)),
}


def pitch_of(length: int, layout: Layout) -> int:
    """Items from row to row: odd in a larger tensor, so that rows begin on every boundary in turn."""
    return length + (7 - length % 2 if layout == "rows" else 0)


@pytest.mark.parametrize(
    ("strategy", "element", "length", "layout"),
    [
        (strategy, element, ROWS[strategy][1][(number + turn) % 2], ("dense", "rows")[(number + turn // 2) % 2])
        for turn, strategy in enumerate(ROWS)
        for number, element in enumerate(ELEMENTS)
    ],
)
def test_rows_that_begin_anywhere(strategy: str, element: str, length: int, layout: Layout) -> None:
    """Lengths, layouts and directions alternate."""
    x, m, fields = drawn(element, (3, length))
    flag = layout == "dense"
    spec = ScanSpec(
        **fields,
        reverse=flag,
        exclusive=flag,
        input_layout=layout,
        mask_layout="dense" if m is None else layout,
        aligned=not flag,
    )
    plan = ROWS[strategy][0](KernelKey(spec, "sm_90"))
    for offset in (1, 3, 5):
        mask = None if m is None else placed(m, offset + 1, pitch_of(length, layout))
        found = scanned(plan, placed(x, offset, pitch_of(length, layout)), mask)
        assert torch.equal(found, expected(x, spec, m)), offset
    if found.dtype == x.dtype and flag:  # in place: no lane reads what another one has written
        y = placed(x, 1)
        assert torch.equal(scanned(plan, y, mask, out=y), expected(x, spec, m)) and marked(y)


# Accesses of a thread: runs of their items that divide the 32 bits of a word, that do not, and that are longer.
@pytest.mark.parametrize("vectors", [2, 3, 7, 8, 9])
@pytest.mark.parametrize("segments", ["flags", "int32"])
@pytest.mark.parametrize("strategy", ["block", "persistent"])
def test_segments_in_runs(strategy: str, segments: str, vectors: int) -> None:
    """Segments begin at every place of a run; a row ends within one."""
    tile, reverse = 64 * 4 * vectors, vectors % 2 == 0
    length = tile - 12 if strategy == "block" else 2 * tile + 52
    x, starts = values("affine", (2, length), torch.float32), torch.zeros(2, length, dtype=torch.bool)
    offsets = torch.cat([torch.arange(0, length, 5), torch.tensor([length])])
    starts[:, offsets[:-1]] = True
    spec = ScanSpec(op="affine", dtype="float32", length=length, segments=segments, reverse=reverse)
    module = block if strategy == "block" else persistent
    plan = dataclasses.replace(module.plan(KernelKey(spec, "sm_90")), threads=64, vectors=vectors)
    given = {"segment_starts": starts} if segments == "flags" else {"offsets": offsets.int()}
    wanted = sequential(x, "affine", 1, starts=starts, reverse=reverse, dtype=torch.float32)
    assert torch.equal(scanned(plan, x, **given), wanted)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("strategy", ["warp", "persistent"])
def test_without_asynchronous_copies(strategy: str, reverse: bool) -> None:
    """Rows pass through registers on GPUs that have no cp.async."""
    length = 1036 if reverse else 259
    x = values("affine", (3, length), torch.float32)
    spec = ScanSpec(op="affine", dtype="float32", length=length, input_layout="rows", reverse=reverse)
    plan = ROWS[strategy][0](KernelKey(spec, "sm_75"))
    assert torch.equal(scanned(plan, placed(x, 2, pitch_of(length, "rows"))), expected(x, spec))


# ---- columns

COLUMNS: dict[str, Make] = {"columns": columns.plan, "columns_lookback": columns_lookback.plan}


def shaped(plan: Any, lanes: int, **numbers: Any) -> Plan:
    """The plan with other numbers, and what follows from them."""
    tiled: Plan = dataclasses.replace(plan, columns=lanes * numbers.get("vector", plan.vector), **numbers)
    return tiled


# (tiles a group, groups a stretch): a chain; carries from group to group; stretches of single tiles; one group; groups
# in one stretch; all of it
FOLDS = [(1, 1), (4, 1), (1, 4), (32, 1), (4, 32), (2, 4)]


@pytest.mark.parametrize(("group", "stretch"), FOLDS)
@pytest.mark.parametrize("stages", [0, 1])
def test_every_order_of_folds(stages: int, group: int, stretch: int) -> None:
    """25 tiles in each of three column tiles, two of them abreast; a prefix passes through every kind of total."""
    shape, turn = (1, 600, 40), FOLDS.index((group, stretch)) + stages
    x = values("affine", shape, torch.float32)
    m = (None, selection(shape), weights("affine", shape, torch.float32))[turn % 3]
    spec = ScanSpec(
        op="affine",
        dtype="float32",
        length=600,
        inner=40,
        reverse=turn % 2 > 0,
        exclusive=turn % 2 == 0,
        mask=None if m is None else str(m.dtype),
    )
    plan = shaped(
        columns_lookback.plan(KernelKey(spec, "sm_90")),
        4,
        vector=4,
        threads=32,
        items=3,
        stages=stages,
        blocks=1,
        abreast=2,
        group=group,
        stretch=stretch,
    )
    assert torch.equal(scanned(plan, x, m), expected(x, spec, m))


@pytest.mark.parametrize(
    ("inner", "lanes", "numbers", "dtype"),
    [
        (12, 4, {"stages": 0}, "float32"),
        (12, 4, {"stages": 1}, "float64"),
        (64, 16, {"stages": 1}, "float16"),
        (33, 8, {"stages": 0, "vector": 4, "strided_columns": True}, "float64"),
        (4, 2, {"stages": 1, "threads": 32, "items": 3}, "float16"),
    ],
)
@pytest.mark.parametrize("strategy", COLUMNS)
def test_every_way_to_read_columns(strategy: str, inner: int, lanes: int, numbers: dict[str, Any], dtype: str) -> None:
    """Registers, shared memory, lanes that exchange rows, columns apart; each in tiles that end beyond the column."""
    spec = ScanSpec(op="affine", dtype=dtype, length=130, inner=inner, reverse=True)
    vector = numbers.get("vector") or column_tile.column_width(spec)
    numbers = {"threads": 64, "items": 4, "blocks": 1, **numbers, "vector": vector}
    if strategy == "columns" and numbers["stages"]:
        numbers["stages"] = 3
    plan = shaped(COLUMNS[strategy](KernelKey(spec, "sm_90")), column_tile.lanes_across(spec, vector, lanes), **numbers)
    x = values("affine", (2, 130, inner), getattr(torch, dtype))
    assert torch.equal(scanned(plan, x), expected(x, spec))


OFF_THE_BOUNDARY = [
    ("columns", 1, {"threads": 32, "items": 3, "stages": 0}),
    ("columns", 1, {"threads": 32, "items": 3, "stages": 2}),  # where lanes exchange rows, else out of registers
    ("columns_lookback", 1, {"threads": 64, "items": 4, "stages": 0}),
    ("columns_lookback", 4, {"threads": 64, "items": 3, "stages": 1, "group": 2}),
]
LYING: list[tuple[Layout, bool]] = [("dense", True), ("dense", False), ("columns", True)]  # layout, reverse


@pytest.mark.parametrize(
    ("element", "inner", "layout", "reverse", "strategy", "lanes", "numbers"),
    [
        # By turns: each kernel and each element has all widths and all layouts.
        (element, (8, 16, 48)[(number + 2 * turn) % 3], *LYING[(number + turn) % 3], *kernel)
        for number, element in enumerate(ELEMENTS)
        for turn, kernel in enumerate(OFF_THE_BOUNDARY)
        if (number + turn) % 2
    ],
)
def test_columns_that_begin_anywhere(
    strategy: str, lanes: int, numbers: dict[str, Any], inner: int, element: str, layout: Layout, reverse: bool
) -> None:
    """Accesses keep to boundaries of the operand's own; those at its ends leave out what lies outside."""
    x, m, fields = drawn(element, (2, 100, inner))
    pitch = inner + (3 if layout == "columns" else 0)
    spec = ScanSpec(
        **fields,
        inner=inner,
        reverse=reverse,
        exclusive=reverse,
        aligned=False,
        input_layout=layout,
        mask_layout=layout if m is not None else "dense",
    )
    vector = column_tile.column_width(spec)
    lanes = column_tile.lanes_across(spec, vector, 4 if numbers["stages"] else 2 * lanes)
    if not column_tile.can_stage(spec, SM_90, vector):
        numbers = {**numbers, "stages": 0}
    plan = shaped(
        COLUMNS[strategy](KernelKey(spec, "sm_90")), lanes, blocks=1, vector=vector, strided_columns=False, **numbers
    )
    for offset in (1, 5):
        mask = None if m is None else placed(m, offset + 1, pitch)
        assert torch.equal(scanned(plan, placed(x, offset, pitch), mask), expected(x, spec, m)), offset


@pytest.mark.parametrize("tail", ["", "-inner36"])
@pytest.mark.parametrize(
    "numbers",
    [{"threads": 64, "items": 8}, {"items": 16, "vector": 2}, {"stages": 1}, {"stages": 2, "items": 4}],
    ids=str,
)
def test_transposed_tiles(tail: str, numbers: dict[str, Any]) -> None:
    spec = ScanSpec.parse(f"affine-f32-n300{tail}-reverse-transposed")
    plan = dataclasses.replace(transposed.plan(KernelKey(spec, "sm_90")), **numbers)
    x = values("affine", (2, 300, 36) if spec.inner > 1 else (52, 300), torch.float32)
    assert torch.equal(scanned(plan, lying(x, (0, 2, 1) if spec.inner > 1 else (1, 0))), expected(x, spec))


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("op", ["linear", "logcumsumexp"])
def test_columns_apart_of_states_that_elements_join(op: str, exclusive: bool, device: str) -> None:
    """A column a lane, 32 lanes side by side: no slots of a warp to fold, and yet rows are joined from nothing on."""
    shape = (1, 300, 65)
    gate = {"gate": gates(shape, torch.float32)} if op == "linear" else {}
    hold(values(op, shape, torch.float32), op, 1, device, **gate, exclusive=exclusive)
