"""A C++ compiler finds nothing unused in the text of kernels, and nothing else to warn of."""

from __future__ import annotations

import functools
import itertools
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from scanops import ScanSpec
from scanops.builders.toolchain import find_cxx
from scanops.codegen.fusion.fusion import Fusion, Operand, Output, fusion_of
from scanops.codegen.fusion.graph import Graph
from scanops.codegen.headers import FOLDER, inline_headers, list_headers
from scanops.codegen.kernel_key import KernelKey, variant_for
from scanops.codegen.layouts import STATES
from scanops.codegen.operators import OPERATORS
from scanops.codegen.planner import STRATEGIES, Plan, by_rule, make_plan
from scanops.codegen.source import HOST_SIDE, generate, render
from scanops.codegen.targets import DEFAULT_TARGET
from scanops.emulator import HEADER_DIRECTORY
from scanops.errors import UnsupportedRequest
from tools.golden import GOLDEN, INCLUDING

# Strategies with a shape that each takes, and features of specs; together with each operator of the table.
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "warp": {"length": 60},
    "staged": {"length": 100},
    "block": {"length": 4097},
    "split": {"length": 40000},
    "persistent": {"length": 131072},
    "transposed": {"length": 300, "inner": 40, "input_layout": "transposed"},
    "columns": {"length": 1000, "inner": 24},
    "columns_lookback": {"length": 65536, "inner": 6},
}
MAP = (  # scan((x, b), "sum", dim, map=lambda x, b: relu(x) * b, then=lambda s, x, b: s * sigmoid(b)), and s
    '[[["operand","float32",0],["operand","float32",1],["number","float32",0.0],["le","bool",0,2],["where","float32",3,'
    '2,0],["mul","float32",4,1],["result","float32",0],["sigmoid","float32",1],["mul","float32",6,7]],[["float32","dens'
    'e",null],["float32","dense",null]],[5],"float32",[[8,"float32"],[6,"float32"]],[],[],[]]'
)
FEATURES: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "reverse": {"reverse": True, "exclusive": True},
    "complete": {"exclusive": True, "complete": True},
    "mask": {"mask": "bool"},
    "mask of a line": {"mask": "float32", "mask_layout": "line", "reverse": True},
    "carries": {"initial": True, "final": True},
    "flags": {"segments": "flags"},
    "offsets": {"segments": "int32", "reverse": True},
    "carries of segments": {"segments": "int64", "per_segment": True, "initial": True, "final": True},
    "chunks": {"segments": "int32", "chunked": True},
    "ragged": {"ragged": "int32", "length": None},
    "fused": {"map": MAP},
    "fused, reverse": {"map": MAP, "reverse": True, "final": True},
    "linked": {"linked": True},
    "linked, reverse": {"linked": True, "reverse": True, "exclusive": True},
    "any length": {"length": None},
    "unaligned": {"aligned": False},
    "strided": {"input_layout": "strided"},
    "half": {"dtype": "bfloat16"},
    "double": {"dtype": "float64"},
    "complex": {"dtype": "complex64"},
    "integer": {"dtype": "int64"},
    "bytes": {"dtype": "uint8", "mask": "bool"},
}
GRADIENTS = (  # which read the results of the forward scan, or compute them again
    "prod_gradient-f32-n4096-mask_b8-gate_f32-reverse-exclusive",
    "prod_gradient-f32-n9000-gate_f32-saved_f32-exclusive-results_saved-initial_saved",
    "prod_gradient-bf16-n4096-inner2560-gate_bf16-saved_bf16-reverse-exclusive-results_saved",
    "linear_gradient-f32-n2048-gate_f32-saved_f32-reverse-exclusive-results_saved",
    "linear_gradient-bf16-n1000-inner100-gate_bf16-saved_bf16-reverse-exclusive-results_saved",
    "max_gradient-f32-n900-gate_f32-saved_f32-reverse",
    "logcumsumexp_gradient-f32-n900-gate_f32-saved_f32-segments-reverse-linked",
    "sum_gradient-bf16-n64-mask_b8-reverse",
    "runs_gradient-f32-n2000-saved_i64-reverse",
    "logcumsumexp_gradient-bf16-n8192-gate_bf16-saved_bf16-reverse",
)


def plan_of(strategy: str, op: str, fields: Mapping[str, Any]) -> Plan | None:
    """Return the plan by the rule of a strategy, or None for a combination that it does not serve."""
    dtypes = {("bool",): "bool", ("bool", "int"): "int32"}
    try:
        spec = ScanSpec(
            **{"op": op, "dtype": dtypes.get(OPERATORS[op].kinds, "float32"), **SHAPES[strategy], **fields},
            gate="float32" if op == "linear" else None,
        )
        key = KernelKey(spec, DEFAULT_TARGET, variant_for(strategy == "split"))
        return by_rule(strategy, key) if STRATEGIES[strategy].fits(key) else None
    except UnsupportedRequest:
        return None


@functools.cache
def sampled_plans() -> tuple[tuple[str, Plan], ...]:
    """Return features and plans: some with every operator, the others with a recurrence, or else a sum."""
    return tuple(_sample_plans())


def _sample_plans() -> Iterator[tuple[str, Plan]]:
    for strategy, (feature, fields) in itertools.product(SHAPES, FEATURES.items()):
        is_general = feature in ("plain", "offsets")
        plans = (plan_of(strategy, op, fields) for op in (OPERATORS if is_general else ("linear", "sum")))
        yield from itertools.islice(((feature, plan) for plan in plans if plan), None if is_general else 1)


def device_side(plan: Plan, number: int) -> str:
    """Return the side of the device, with internal linkage. Functions of headers are inline: not all are used."""
    text = inline_headers(render(plan).partition(HOST_SIDE)[0].replace("__forceinline__", "SELDOM_INLINE"))
    # extern "C" functions of one name are one, whatever namespace they are in
    text = text.replace(plan.launch.kernel, f"{plan.launch.kernel}_{number}")
    line = f'#line 1 "{plan.strategy} {plan.spec}"'  # what warnings name
    return f"namespace {{ namespace kernel_{number} {{\n{line}\n{text}\n}} }}\n"


def warnings_of(texts: list[str], tmp_path: Path) -> list[str]:
    """Return what g++ has to say about texts of kernels in one translation unit."""
    source = tmp_path / "kernels.cpp"
    # Functions of a kernel's own text are not inline, so that unused ones are reported; a kernel counts as used.
    words = {"__global__": "__attribute__((used))", "__forceinline__": "inline", "SELDOM_INLINE": ""}
    words["__noinline__"] = "__attribute__((noinline))"
    head = ["#include <cuda_runtime.h>", *(f"#undef {word}\n#define {word} {text}" for word, text in words.items())]
    source.write_text("\n".join([*head, *texts]))
    # -flto: what is unused is known without code for what is used.
    command = [find_cxx().path, "-std=c++17", "-O0", "-flto", "-Wall", "-Wextra", "-Wunused"]
    command += ["-Wno-unknown-pragmas", f"-I{HEADER_DIRECTORY}", "-S", source, "-o", tmp_path / "kernels.s"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [line for line in done.stderr.splitlines() if "warning:" in line or "error:" in line]
    assert found or done.returncode == 0, done.stderr
    return found


def test_committed_kernels(tmp_path: Path) -> None:
    """No unused variable, parameter or function in ``generated/``."""
    texts = [device_side(row.plan, number) for number, row in enumerate(GOLDEN)]
    assert warnings_of(texts, tmp_path) == []


def test_the_sample_has_everything() -> None:
    features, plans = zip(*sampled_plans(), strict=True)
    assert set(features) == set(FEATURES)
    assert {plan.strategy for plan in plans} == {*SHAPES} == set(STRATEGIES) - {"states"}
    assert {plan.spec.operator.name for plan in plans} >= set(OPERATORS)


@pytest.mark.parametrize("strategy", [*SHAPES, "gradients"])
def test_sampled_kernels(strategy: str, tmp_path: Path) -> None:
    """Likewise in a sample of all strategies, operators and features, and in gradients."""
    plans = [plan for _, plan in sampled_plans() if plan.strategy == strategy] or [*map(make_plan, GRADIENTS)]
    texts = [device_side(plan, number) for number, plan in enumerate(plans)]
    assert warnings_of(texts, tmp_path) == []


def test_what_is_unused_is_found(tmp_path: Path) -> None:
    """Each kind of it, so that the tests above do not pass for want of a flag."""
    text = """
namespace { namespace kernel {
__device__ SELDOM_INLINE int unused() { return 1; }
extern "C" __global__ void kernel(int parameter) { int variable = 1; int set; set = 1; }
} }
"""
    found = " ".join(warnings_of([text], tmp_path))
    for name in ("unused()", "parameter", "variable", "set"):
        assert re.search(rf"\b{re.escape(name)}", found), found


def selective_scan(dtype: str) -> Fusion:
    """Return the expressions of a selective scan, gated, of channels whose time is contiguous."""
    graph = Graph()
    u, delta, a, b, c, z = (graph.operand(place, dtype) for place in range(6))
    step = delta.apply("softplus")
    h = graph.add("result", u.dtype, 0)
    y = graph.add("sum", u.dtype, (h * c).at) * (z * z.apply("sigmoid"))
    layouts = ("lT", "lT", "lN", "Tn", "Tn", "lT")
    operands = tuple(Operand(dtype, STATES + layout) for layout in layouts)
    elements = (((step * u) * b).at, (step * a).apply("exp").at)
    return fusion_of(Fusion(tuple(graph.nodes), operands, elements, u.dtype, (Output(y.at, dtype),)).text)


def states_plan(dtype: str, states: int, **fields: Any) -> Plan:
    """Return the plan of a selective scan with so many states."""
    text = selective_scan(dtype).text
    fields = {"length": None, "out_dtype": dtype, "input_layout": "rows", "map": text, "states": states, **fields}
    return make_plan(ScanSpec(op="linear", dtype=dtype, **fields))


@pytest.mark.parametrize("states", [1, 16, 17, 128])
@pytest.mark.parametrize("fields", [{"saves": True}, {"gradient": "111111"}], ids=["forward", "backward"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_scans_with_states(states: int, fields: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    """No unused variable or parameter in kernels that include headers by name, nor in these headers."""
    text = render(states_plan(dtype, states, **fields)).partition(HOST_SIDE)[0]
    source = tmp_path / "kernel.cpp"
    source.write_text(text)
    command = [find_cxx().path, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Werror"]
    done = subprocess.run([*command, f"-I{HEADER_DIRECTORY}", f"-I{FOLDER}", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


MORE_EXAMPLES = (  # of headers that no kernel above includes
    "sum-float8_e4m3fn-n3",
    "sum-f32-n4-offsets_i32",
    "sum-f32-n3-exclusive-offsets_i64-initial-final-per_segment",
    "sum-f32-n3-inner16-unaligned",
    "linear-f32-n60-gate_f32-rows",
    "logcumsumexp-f64-n64",
    "logcumsumexp-c64-n64",
)


@functools.cache
def examples() -> Mapping[str, str]:
    """Return each header with what an example that includes it has above."""
    found: dict[str, str] = {"headers/nvrtc_names.cuh": ""}  # which an operator's expressions may name
    texts = [render(row.plan) for row in (*GOLDEN, *INCLUDING)]
    texts += [render(plan) for _, plan in sampled_plans()]
    texts += [render(make_plan(slug)) for slug in (*GRADIENTS, *MORE_EXAMPLES)]
    for text in texts:
        for match in re.finditer(r'^#include "headers/.*"\n', text, re.MULTILINE):
            for name in list_headers(match[0]):
                found.setdefault(name, text[: match.start()])
    return found


@pytest.mark.parametrize("header", sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.cuh")))
def test_headers_alone(header: str, tmp_path: Path) -> None:
    """An editor checks a header by itself, with the names of an example above it: it is plain CUDA C++."""
    assert not re.search(r"{{|{%|{#", (FOLDER / header).read_text())
    above = examples()[header]
    end = "}" * (above.count("\nnamespace ") - above.count("\n}  // namespace "))
    source = tmp_path / "header.cpp"
    source.write_text(f'#include <cuda_runtime.h>\n{above}\n#include "{header}"\n{end}\n')
    command = [find_cxx().path, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Werror"]
    done = subprocess.run([*command, f"-I{HEADER_DIRECTORY}", f"-I{FOLDER}", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_headers_in_place() -> None:
    """A text that is handed over includes nothing but the CUDA runtime, and holds each header once."""
    plan = states_plan("float32", 16)
    text = generate(plan.spec)
    assert [line for line in text.splitlines() if line.startswith("#include")] == ["#include <cuda_runtime.h>"]
    assert text.count("struct Sizes {") == text.count("void sum_lanes(") == 1
