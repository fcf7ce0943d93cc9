"""Figures of a plan: bytes, registers, and the grid that its launcher computes."""

from __future__ import annotations

import pytest

from scanops.codegen.figures import (
    expected_registers,
    floor_microseconds,
    grid_of,
    item_bytes,
    lines_for,
)
from scanops.codegen.lines import are_few
from scanops.codegen.plan import make_plan
from scanops.codegen.source import generate
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import TARGETS

LAUNCHER = """extern "C" int scanops_launch(const ScanArguments* arguments, void* stream) {{
    {steps}
    if (blocks > 2147483647LL) return cudaErrorInvalidConfiguration;
"""
# (statements, formula, blocks of 1000 lines on 132 multiprocessors)
GRIDS = (
    ("const long long blocks = arguments->lines;", "lines", 1000),
    ("const long long blocks = (arguments->lines + 7) / 8;", "(lines + 7) / 8", 125),
    (
        "const long long tiles = arguments->lines * 7;\n"
        "    const long long resident = (long long)arguments->multiprocessors * 2;\n"
        "    const long long blocks = tiles < resident ? tiles : resident;",
        "min(lines * 7, multiprocessors * 2)",
        264,
    ),
    (
        "const long long carry_in_step = arguments->carry_in_step;\n"
        "    const long long segments = arguments->segments;\n"
        "    const long long blocks = arguments->lines * 2;",
        "lines * 2",
        2000,
    ),
)


@pytest.mark.parametrize("steps, formula, blocks", GRIDS)
def test_grid(steps: str, formula: str, blocks: int) -> None:
    """The launcher's statements, as a formula and evaluated."""
    grid = grid_of(LAUNCHER.format(steps=steps))
    assert grid.formula == formula
    assert grid.blocks(1000, 132) == blocks


def test_the_grid_of_neighbouring_lines() -> None:
    """Blocks of transposed scans take lines in groups of neighbours."""
    grid = grid_of(generate(ScanSpec.parse("sum-f32-n4096-transposed")))
    assert grid.formula == "lines / neighbours * ((neighbours + 31) / 32)"
    assert grid.blocks(6600, 132) == 207 and grid.blocks(6600, 132, neighbours=33) == 400


def test_a_launcher_without_a_grid() -> None:
    """A text whose launcher has no blocks, or computes them by a call, is an error."""
    with pytest.raises(ValueError, match="how many blocks"):
        grid_of(LAUNCHER.format(steps=""))
    with pytest.raises(ValueError, match="whole-number"):
        grid_of(LAUNCHER.format(steps="const long long blocks = count(lines);")).blocks(1, 1)


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
        grid = grid_of(generate(plan.spec, name))
        assert grid.blocks(plan.spec.inner * 10, target.multiprocessors) >= 1
