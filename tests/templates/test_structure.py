"""The text of kernels: everything declared is used, everything called is declared, and the C interface is fixed."""

from __future__ import annotations

import functools
import re

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanops import ScanSpec, generate, make_plan
from scanops.codegen.source import environment, render
from tests.codegen.strategies import specs
from tools.golden import GOLDEN, Golden

FUNCTION = re.compile(r"^__device__ .*?(\w+)\(", re.MULTILINE)
CONSTANT = re.compile(r"^constexpr (?:\w+ )+(\w+) = ", re.MULTILINE)
TYPE = re.compile(r"^(?:typedef .*?(\w+);|struct (?:alignas\(.*\) )?(\w+) \{)", re.MULTILINE)
EXPORTED = ["scanops_abi", "scanops_error_string", "scanops_workspace_bytes", "scanops_launch"]
NOT_IN_GOLDENS = {"__funnelshift_r", "alignof", "atan2", "cos", "frexp", "hypot", "ldexp", "log", "log1p", "sin"}


def undeclared(source: str) -> set[str]:
    """Functions that a text calls and does not declare."""
    code = re.sub(r"//.*", "", source)
    return set(re.findall(r"(?<![\w.])(\w+)(?:<[\w -]+>)?\(", code)) - set(FUNCTION.findall(code))


@functools.cache
def provided() -> set[str]:
    """Functions of CUDA and C++: what goldens, which compilers accept, call and do not declare."""
    return NOT_IN_GOLDENS.union(*(undeclared(render(golden.plan)) for golden in GOLDEN))


def faults(source: str) -> set[str]:
    """What is wrong with the text of a kernel, in words."""
    declared = {name for pattern in (FUNCTION, CONSTANT, TYPE) for name in re.findall(r"\w+", listed(pattern, source))}
    found = {f"{name} is not used" for name in declared if len(re.findall(rf"\b{name}\b", source)) == 1}
    found |= {f"{name} is not declared" for name in undeclared(source) - provided()}
    body = source.split("\n\n", 1)[1]
    found |= {f"{word} is of Python" for word in ("None", "True", "False") if re.search(rf"\b{word}\b", body)}
    if re.findall(r'extern "C" (?!__global__).*?(\w+)\(', source) != EXPORTED or source.count("__global__") != 1:
        found.add("another interface")
    if re.search(r"[ \t]+$|\t|\n\n\n|\n\n\Z", source, re.MULTILINE) or not source.endswith("\n"):
        found.add("blanks")
    return found


def listed(pattern: re.Pattern[str], source: str) -> str:
    """The names that a pattern declares, as words."""
    return " ".join("".join(groups) for groups in (match.groups(default="") for match in pattern.finditer(source)))


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.slug)
def test_committed_kernels_are_whole(golden: Golden) -> None:
    """Each strategy and class of states: every function, constant and type is used."""
    assert faults(render(golden.plan)) == set()


@settings(max_examples=100)
@given(specs, st.booleans())
def test_the_kernel_of_any_spec_is_whole(spec: ScanSpec, few: bool) -> None:
    """The same for specs drawn from all that ScanSpec accepts."""
    assert faults(render(make_plan(spec, few=few))) == set()


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("constexpr int kItems", "constexpr int kIdle = 4;\nconstexpr int kItems", "kIdle is not used"),
        ('extern "C" __g', '__device__ void idle() {}\nextern "C" __g', "idle is not used"),
        ("typedef float Input;", "typedef float Idle;\ntypedef float Input;", "Idle is not used"),
        ("= lift_items(", "= lift_item(", "lift_item is not declared"),
        ("= 4;", "= None;", "None is of Python"),
        ("scanops_abi", "scanops_version", "another interface"),
        (";\n", "; \n", "blanks"),
    ],
)
def test_faults_are_found(old: str, new: str, fault: str) -> None:
    """The tests above would pass if the patterns matched nothing."""
    source = generate(ScanSpec.parse("sum-f32-n4"))
    assert old in source and fault in faults(source.replace(old, new))


def test_an_undefined_name_is_an_error() -> None:
    """Jinja renders it as nothing by default."""
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ absent }}").render()
