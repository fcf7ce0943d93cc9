"""Figures of a plan: bytes, registers, and the grid that its launcher computes."""

from __future__ import annotations

import pytest

from scanops.codegen.figures import (
    expected_registers,
    floor_microseconds,
    item_bytes,
    lines_for,
)
from scanops.codegen.lines import are_few
from scanops.codegen.plan import make_plan
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import TARGETS

# (spec, blocks of 1000 lines, or 1000 times as many columns, on 132 multiprocessors)
GRIDS = (
    ("sum-f32-n4", 8),  # one thread per row, 128 threads
    ("sum-f32-n4096", 1000),
    ("sum-f32-n7", 16),  # 64 rows per warp, one warp per block
    ("sum-f32-n1048576-few", 64_000),
    ("sum-f32-n131072", 132),  # persistent blocks
    ("sum-f32-n1024-inner1024", 32_000),
    ("sum-f32-n65536-inner64-few", 172_000),
)


@pytest.mark.parametrize("slug, blocks", GRIDS)
def test_grid(slug: str, blocks: int) -> None:
    """The number of blocks of a launch."""
    plan = make_plan(ScanSpec.parse(slug))
    assert plan.grid(1000 * plan.spec.inner, 132) == blocks


def test_the_grid_of_neighbouring_lines() -> None:
    """Blocks of transposed scans take lines in groups of neighbours."""
    plan = make_plan(ScanSpec.parse("sum-f32-n4096-transposed"))
    assert plan.grid(6600, 132) == 207 and plan.grid(6600, 132, neighbours=33) == 400


@pytest.mark.parametrize(
    "slug, bytes_an_item",
    [("sum-f32-n9", 8), ("sum-f32-n9-mask_b8", 9), ("sum-i8-n9", 9), ("sum-bf16-n9-mask_f32", 10), ("sum-f64-n9", 16)],
)
def test_bytes_an_item(slug: str, bytes_an_item: int) -> None:
    """Bytes that an item must move, and the time that the memory needs for so many."""
    spec = ScanSpec.parse(slug)
    assert item_bytes(spec) == bytes_an_item
    plan = make_plan(spec, "sm_80")
    assert floor_microseconds(plan, 2_039_000_000) == pytest.approx(1000)


def test_lines_of_a_benchmark() -> None:
    """About 2^28 items, whole columns, and few lines where the spec is for few."""
    assert lines_for(ScanSpec.parse("sum-f32-n1024"), 132) == 2**18
    assert lines_for(ScanSpec.parse("sum-f32-n2147483648"), 132) == 1
    assert lines_for(ScanSpec.parse("sum-f32-n1000-inner48"), 132) % 48 == 0
    for slug in ("sum-f32-n65536-few", "sum-f32-n32768-inner64-few"):
        spec = ScanSpec.parse(slug)
        assert are_few(lines_for(spec, 132), spec.length, spec.inner, 132)


@pytest.mark.parametrize("slug", ["sum-f32-n4", "sum-f32-n1000", "sum-f32-n32768", "prod-f64-n4096-inner64"])
def test_registers_stay_within_the_target(slug: str) -> None:
    """Estimated registers a thread, on every target; and a grid of at least a block."""
    for name, target in TARGETS.items():
        plan = make_plan(ScanSpec.parse(slug), name)
        assert 16 <= expected_registers(plan) <= target.thread_registers
        assert plan.grid(plan.spec.inner * 10, target.multiprocessors) >= 1
