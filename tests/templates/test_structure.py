"""The text of kernels: operands in order, no loop or guard without need, nothing undeclared, a plain C interface."""

from __future__ import annotations

import functools
import re

import pytest

from scanops.codegen import ScanSpec, generate, make_plan
from scanops.codegen.operators import BUILT_IN
from scanops.codegen.plan import Plan
from tests.templates.cases import SHAPES, STRATEGIES, WIDER
from tests.templates.reading import Text
from tools.golden import GOLDEN

CASES = pytest.mark.parametrize("spec", [spec for spec in WIDER if spec.length is not None], ids=str)
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
def test_every_function_is_called(spec: ScanSpec) -> None:
    """Besides the kernel itself, no device function is emitted that nothing calls."""
    _, text = read(spec)
    idle = {name for name in text.functions if len(re.findall(rf"\b{name}(?:<[\w -]+>)?\(", text.source)) == 1}
    assert idle == {"scan_kernel"}


def undeclared(source: str) -> set[str]:
    """Functions that a text calls and does not declare."""
    code = re.sub(r"//.*", "", source)
    called = set(re.findall(r"(?<![\w.])(\w+)(?:<[\w -]+>)?\(", code))
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
