"""The text of kernels: operands in order, no loop or guard without need, nothing undeclared, a plain C interface."""

from __future__ import annotations

import functools
import re

import pytest

from scanops.codegen import ScanSpec, generate, make_plan
from scanops.codegen.operators import BUILT_IN
from scanops.codegen.plan import Plan
from scanops.codegen.strategies.rows import RowPlan
from tests.templates.cases import SHAPES, STRATEGIES, WIDER
from tests.templates.reading import Text
from tools.golden import GOLDEN

CASES = pytest.mark.parametrize("spec", [spec for spec in WIDER if spec.length is not None], ids=str)
LOOP = re.compile(r"\b(?:for|while) \(|\bdo \{")
# Both directions of a conversion and all sizes of a copy are emitted together, whichever a kernel needs.
PAIRED = {"half_to_float", "float_to_half", "bfloat_to_float", "float_to_bfloat", "shuffle"}
PAIRED |= {"copy_async_4", "copy_async_8", "copy_async_16"}
# Names of states by the age of what they hold, oldest first. Digits and indices are left out.
AGES = {"carry": 0, "base": 0, "before": 1, "prefix": 1, "warps": 1, "older": 2, "inside": 2, "p": 2, "s": 3}
# Functions of CUDA and C++ that no golden calls.
ELSEWHERE = {"__funnelshift_r", "alignof", "frexp", "ldexp", "log1p"}


@functools.cache
def read(spec: ScanSpec) -> tuple[Plan, Text]:
    """The plan of a spec and its text."""
    return make_plan(spec), Text.of(generate(spec))


def test_the_cases_cover_every_strategy() -> None:
    """Each strategy, and columns with one tile and with several."""
    plans = [make_plan(spec) for spec in WIDER]
    assert {plan.strategy for plan in plans} == set(STRATEGIES)
    assert {plan.loops for plan in plans if plan.strategy == "columns"} == {True, False}


@CASES
def test_every_combine_has_the_older_operand_first(spec: ScanSpec) -> None:
    """Operators need not be commutative: the state that precedes in scan order is on the left."""
    _, text = read(spec)
    for first, second in re.findall(r"combine(?:_each)?\((\w+)[\w.\[\]]*, (\w+)[\w.\[\]]*\)", text.source):
        ages = [AGES.get(name.rstrip("0123456789")) for name in (first, second)]
        if first != second and None not in ages:
            assert ages == sorted(ages, key=lambda age: age or 0) and ages[0] != ages[1], f"combine({first}, {second})"


@CASES
def test_shuffles_and_barriers_are_within_what_the_plan_says(spec: ScanSpec) -> None:
    """Shuffles stay within a row's lanes, and a plan whose rows do not leave their warp has no block-wide barrier."""
    plan, text = read(spec)
    widths = set(re.findall(r"__shfl_(?:up_)?sync\(0xffffffffu, [^,]+, [^,]+, (\d+)\)", text.source))
    assert widths <= {str(plan.width)}
    if plan.strategy in ("warp", "staged"):
        assert "__syncthreads" not in text.source
    if plan.strategy == "block":
        assert text.source.count("__syncthreads") <= 1 + spec.again
    bound = f"constexpr int kThreads = {plan.threads};" if plan.constants() else f"__launch_bounds__({plan.threads}"
    assert bound in text.source
    assert f"config.blockDim = dim3({plan.threads});" in text.source


@CASES
def test_rows_of_one_tile_have_no_loop(spec: ScanSpec) -> None:
    """Everything inside a tile is straight-line code; only addresses of strided tensors are computed in a loop."""
    plan, text = read(spec)
    if plan.strategy in ("warp", "block") and not plan.strided and not spec.by_offsets:
        assert not LOOP.search(text.source)


@CASES
def test_only_tiles_that_reach_past_a_line_are_guarded(spec: ScanSpec) -> None:
    """A line that fills its tiles is loaded and stored without a comparison with its end; any other is guarded."""
    plan, text = read(spec)
    if isinstance(plan, RowPlan):
        shifted = plan.shifted or plan.realigns
        asked = bool(re.search(rf"\bfirst(?: \+ \d+)? < {spec.length}\b", text.kernel))
        assert asked == (plan.guarded and not plan.shifted)
        assert ("is_inside(" in text.source) == shifted


@CASES
def test_dense_operands_are_read_by_vector_accesses(spec: ScanSpec) -> None:
    """Aligned contiguous operands are loaded, or copied to shared memory, by accesses of all their items at once."""
    plan, text = read(spec)
    if not isinstance(plan, RowPlan):
        return
    assert {operand.name for operand in plan.operands} == {source.name for source in plan.sources}
    for operand in plan.operands:
        body = text.functions.get(f"copy_{operand.name}") or text.functions[f"load_{operand.name}"]
        whole = (f"copy_async_{operand.bytes * plan.items}(slot, first)", f"<const {operand.vector}*>(first)")
        assert any(access in body for access in whole) == operand.whole


@CASES
def test_every_function_is_called(spec: ScanSpec) -> None:
    """Besides the kernel itself, no device function is emitted that nothing calls."""
    _, text = read(spec)
    idle = {name for name in text.functions if len(re.findall(rf"\b{name}(?:<[^()]*>)?\(", text.source)) == 1}
    assert idle - PAIRED == {"scan_kernel"}


def undeclared(source: str) -> set[str]:
    """Functions that a text calls and does not declare."""
    code = re.sub(r"//.*", "", source)
    called = set(re.findall(r"(?<![\w.])(\w+)(?:<\w+>)?\(", code))
    return called - set(re.findall(r"^__device__ .*?(\w+)\([^()]*\) \{", code, re.MULTILINE))


@functools.cache
def provided() -> set[str]:
    """Functions of CUDA and C++: what goldens, which compilers accept, call and do not declare."""
    return ELSEWHERE.union(*(undeclared(generate(golden.spec)) for golden in GOLDEN))


@pytest.mark.parametrize("op", [name for name, row in BUILT_IN.items() if row.fields[1:]])
def test_every_called_function_is_declared(op: str) -> None:
    """For operators whose states have several fields, which need most helpers, in every shape."""
    for shape in (*SHAPES, {"length": 300, "inner": 65}):
        wide = {"float": "float64", "int": "int64", "complex": "complex128"}
        dtype = next(name for kind, name in wide.items() if kind in BUILT_IN[op].kinds)
        spec = ScanSpec(op=op, dtype=dtype, gate=dtype if BUILT_IN[op].gated else None, **shape)
        assert not undeclared(generate(spec)) - provided(), spec.slug


@CASES
def test_interface(spec: ScanSpec) -> None:
    """Four exported C functions and one kernel; no trailing blanks, no Python values in the text."""
    _, text = read(spec)
    exported = re.findall(r'extern "C" .*?(\w+)\(', text.source)
    assert exported == ["scanops_abi", "scanops_error_string", "scanops_workspace_bytes", "scanops_launch"]
    assert text.source.count("__global__") == 1
    assert not re.search(r"[ \t]+$|\n\n\n|\n\n\Z", text.source, re.MULTILINE) and text.source.endswith("\n")
    assert "None" not in text.source.split("\n\n", 1)[1] and "True" not in text.source.split("\n\n", 1)[1]
