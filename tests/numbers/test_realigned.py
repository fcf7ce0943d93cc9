"""Rows whose input or mask begins off the boundaries of the output's accesses, in shapes small enough to walk."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import scanops
from scanops.artifact import BuildRequest
from scanops.codegen.slugs import Layout
from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import block, split, warp, wave
from scanops.codegen.strategies.base import Plan, ceil_div
from scanops.codegen.strategies.rows import RowPlan, row_of
from scanops.codegen.targets import Target, target_named
from scanops.runtime.kernels import CPU, Kernel
from scanops.store.store import Store
from tests.numbers.oracle import selection, sequential, values, weights

LINES = 3
SLACK = 7  # items between rows of a larger tensor, at least

Make = Callable[[ScanSpec, Target], RowPlan]


def small(make: Make, **numbers: Any) -> Make:
    """Plans of a strategy with numbers that give a short row several tiles."""

    def made(spec: ScanSpec, target: Target) -> RowPlan:
        plan = dataclasses.replace(make(spec, target), **numbers)
        return dataclasses.replace(plan, tiles=ceil_div(row_of(spec)[2], plan.threads * plan.vectors))

    return made


# (plans, lengths): ends of rows within an access, within a stripe, at the end of a tile
STRATEGIES: dict[str, tuple[Make, tuple[int, ...]]] = {
    "warp": (warp.plan, (4, 36, 128, 131)),
    "block": (block.plan, (1024, 1027)),
    "split": (small(split.plan, threads=64, vectors=2), (512, 1027)),
    "wave": (small(wave.plan, threads=64, vectors=2), (512, 1027)),
}
# (input, mask, output, operator): accesses of 16, 8, 4 and 2 bytes, of items of 8 to 1
ELEMENTS = {
    "f32": (torch.float32, None, torch.float32, "affine"),
    "f64_b8": (torch.float64, torch.bool, torch.float64, "affine"),
    "f32_b8": (torch.float32, torch.bool, torch.float32, "affine"),
    "f32_f32": (torch.float32, torch.float32, torch.float32, "affine"),
    "bf16_b8": (torch.bfloat16, torch.bool, torch.bfloat16, "sum"),
    "f16_f64": (torch.float16, None, torch.float64, "sum"),
    "i8_i64": (torch.int8, None, torch.int64, "sum"),
    "i16_i32": (torch.int16, None, torch.int32, "sum"),
}
# Out of registers and out of shared memory, all; what follows is shared with those.
PAIRS = [
    *((strategy, element) for strategy in ("warp", "wave") for element in ELEMENTS),
    *(("block", element) for element in ("f32_b8", "i8_i64")),
    ("split", "bf16_b8"),
]
LAYOUTS: tuple[tuple[Layout, bool], ...] = (("dense", True), ("rows", False))
# Layouts alternate; a warp has half of its lengths with each element.
DEALT = [
    (*pair, length, *LAYOUTS[(number + turn) % 2])
    for number, pair in enumerate(PAIRS)
    for turn, length in enumerate(STRATEGIES[pair[0]][1])
    if pair[0] != "warp" or (number + turn) % 2
]


def built(plan: Plan) -> Kernel:
    """Build the kernel of a plan, emulated."""
    request = BuildRequest(name=plan.spec.slug, source=render(plan), target=CPU)
    return Kernel(plan.spec, CPU, Store().get_or_build(request))


def kernel_of(strategy: str, spec: ScanSpec, target: str) -> Kernel:
    return built(STRATEGIES[strategy][0](spec, target_named(target)))


def drawn_of(element: str, shape: tuple[int, ...]) -> tuple[str, torch.Tensor, torch.Tensor | None, torch.dtype]:
    """Return operator, operand, mask and result dtype of an element."""
    source, kind, result, op = ELEMENTS[element]
    mask = None if kind is None else selection(shape) if kind == torch.bool else weights(op, shape, kind)
    return op, values(op, shape, torch.int64).to(source), mask, result


def placed(x: torch.Tensor, pitch: int, offset: int) -> torch.Tensor:
    """Copy x to ``offset`` items into its storage, its rows ``pitch`` items apart."""
    *outer, width = x.shape
    rows = torch.full((offset + pitch * math.prod(outer),), 99).to(x.dtype)
    view = rows[offset:].view(*outer, pitch)[..., :width]
    view.copy_(x)
    return view


def pitch_of(length: int, layout: Layout) -> int:
    """Items from row to row: odd in a larger tensor, so that rows begin on every boundary in turn."""
    return length + (SLACK - length % 2 if layout == "rows" else 0)


@pytest.mark.parametrize(("strategy", "element", "length", "layout", "reverse"), DEALT)
def test_rows_that_begin_anywhere(strategy: str, element: str, length: int, layout: Layout, reverse: bool) -> None:
    op, x, m, result = drawn_of(element, (LINES, length))
    spec = ScanSpec(
        op=op, dtype=str(x.dtype), length=length, out_dtype=str(result), mask=None if m is None else str(m.dtype),
        reverse=reverse, exclusive=reverse, input_layout=layout, mask_layout=layout if m is not None else "dense",
        aligned=layout == "rows",
    )  # fmt: skip
    kernel = kernel_of(strategy, spec, "sm_90")
    expected = sequential(x, op, 1, mask=m, reverse=reverse, exclusive=reverse, dtype=result)
    for offset in (1, 3, 5):
        mask = None if m is None else placed(m, pitch_of(length, layout), offset + 1)
        with scanops.emulate(seed=offset):
            y = kernel(placed(x, pitch_of(length, layout), offset), 1, mask=mask)
        assert torch.equal(y, expected), offset


@pytest.mark.parametrize("strategy", ["warp", "block", "split", "wave"])
def test_in_place(strategy: str) -> None:
    """Input and output are off the boundary alike: no lane reads what another one has written."""
    length = STRATEGIES[strategy][1][-1]
    x = values("affine", (LINES, length), torch.float32)
    spec = ScanSpec(op="affine", dtype="float32", length=length, aligned=False)
    y = placed(x, length, 1)
    with scanops.emulate(seed=3):
        kernel_of(strategy, spec, "sm_90")(y, 1, out=y)
    assert torch.equal(y, sequential(x, "affine", 1, dtype=torch.float32))


@pytest.mark.parametrize("by", [1, 4])
@pytest.mark.parametrize("strategy", ["warp", "wave"])
def test_without_asynchronous_copies(strategy: str, by: int) -> None:
    """What is brought passes through registers."""
    length = 256 * by + 3 * by
    x = values("affine", (LINES, length), torch.float32)
    spec = ScanSpec(op="affine", dtype="float32", length=length, input_layout="rows", reverse=by == 4)
    with scanops.emulate(seed=by):
        y = kernel_of(strategy, spec, "sm_75")(placed(x, pitch_of(length, "rows"), 2), 1)
    assert torch.equal(y, sequential(x, "affine", 1, reverse=by == 4, dtype=torch.float32))
