"""Shuffles and votes against a model of PTX's shfl.sync, lane by lane; functions of numbers."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest

from scanops.emulator import HEADER_DIRECTORY

TYPES: dict[str, Any] = {
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "long long": ctypes.c_longlong,
    "unsigned long long": ctypes.c_ulonglong,
}

CALLS = {
    "shfl": "__shfl_sync(0xffffffffu, value, k - 7, n)",
    "up": "__shfl_up_sync(0xffffffffu, value, (unsigned)k, n)",
    "down": "__shfl_down_sync(0xffffffffu, value, (unsigned)k, n)",
    "xor": "__shfl_xor_sync(0xffffffffu, value, k, n)",
}

REST = """
__global__ void votes(const void* x, void* out, int n) {
    const int bit = ((const int*)x)[threadIdx.x];
    unsigned* row = (unsigned*)out + threadIdx.x * 4;
    if ((threadIdx.x & 1) == (unsigned)n) {
        const unsigned mask = n ? 0xaaaaaaaau : 0x55555555u;
        row[0] = __ballot_sync(mask, bit);
        row[1] = (unsigned)__any_sync(mask, bit);
        row[2] = (unsigned)__all_sync(mask, bit);
    } else {
        row[3] = __ballot_sync(n ? 0x55555555u : 0xaaaaaaaau, bit * 6);
    }
}
// Lanes reach the same two calls at different times, and halves of the warp make calls of their own in between.
__global__ void halves(const void*, void* out, int) {
    int value = (int)threadIdx.x;
    if (threadIdx.x < 16) {
        for (int step = 1; step < 16; step *= 2) value += __shfl_xor_sync(0x0000ffffu, value, step, 16);
    } else {
        value = __shfl_sync(0xffff0000u, value, 3, 16);
    }
    __syncwarp();
    ((int*)out)[threadIdx.x] = __shfl_xor_sync(0xffffffffu, value, 16);
}
"""


@pytest.fixture(scope="module")
def library(compile_text: Callable[..., Any]) -> Any:
    kernels = "".join(
        f"__global__ void {kind}_{type_.replace(' ', '_')}(const void* x, void* out, int n) {{\n"
        f"    const {type_} value = ((const {type_}*)x)[threadIdx.x];\n"
        f"    for (int k = 0; k < 32; ++k) (({type_}*)out)[k * 32 + (int)threadIdx.x] = {CALLS[kind]};\n}}\n"
        for kind in CALLS
        for type_ in TYPES
    )
    return compile_text(kernels + REST)


def source_lane(kind: str, lane: int, argument: int, width: int) -> int:
    """The lane whose value ``lane`` receives: PTX ISA, shfl.sync, with c as CUDA's headers build it from the width."""
    segment = ~(width - 1) & 31
    clamp = 0 if kind == "up" else 31
    bound = (lane & segment) | (clamp & ~segment)
    if kind == "shfl":
        return (lane & segment) | (argument & 31 & ~segment)
    source = {"up": lane - argument, "down": lane + argument, "xor": lane ^ argument}[kind]
    inside = source >= bound if kind == "up" else source <= bound
    return source if inside else lane


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("kind", CALLS)
def test_shuffles_match_the_model_at_every_width(library: Any, kind: str, type_: str) -> None:
    scale = -0x1_2345_6789 if type_ == "long long" else -3 if type_ in {"int", "float", "double"} else 7
    values = [(lane + 1) * scale for lane in range(32)]
    x = bytes((TYPES[type_] * 32)(*values))
    for width in (1, 2, 4, 8, 16, 32):
        for seed in (0, 11):
            name = f"{kind}_{type_.replace(' ', '_')}"
            outcome = library.launch(name, x=x, out=32 * len(x), n=width, seed=seed)
            assert outcome.code == 0, outcome.report
            got = list((TYPES[type_] * 1024).from_buffer_copy(outcome.out))
            first = -7 if kind == "shfl" else 0
            assert got == [
                values[source_lane(kind, lane, first + k, width)] for k in range(32) for lane in range(32)
            ], (width, seed)


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("pattern", [0, 0xFFFFFFFF, 0x55555555, 0x80000001, 0x12345678])
def test_votes_see_only_their_mask(library: Any, odd: int, pattern: int) -> None:
    x = bytes((ctypes.c_int * 32)(*[pattern >> lane & 1 for lane in range(32)]))
    for seed in range(4):
        outcome = library.launch("votes", x=x, out=512, n=odd, seed=seed)
        assert outcome.code == 0, outcome.report
        rows = (ctypes.c_uint * 4 * 32).from_buffer_copy(outcome.out)
        mine, other = (0xAAAAAAAA, 0x55555555) if odd else (0x55555555, 0xAAAAAAAA)
        for lane in range(32):
            expected = [pattern & mine, int(pattern & mine != 0), int(pattern & mine == mine), 0]
            assert list(rows[lane]) == (expected if lane & 1 == odd else [0, 0, 0, pattern & other])


@pytest.mark.parametrize("seed", range(6))
def test_parts_of_a_warp_call_on_their_own(library: Any, seed: int) -> None:
    outcome = library.launch("halves", out=128, seed=seed)
    assert outcome.code == 0, outcome.report
    assert list((ctypes.c_int * 32).from_buffer_copy(outcome.out)) == [19] * 16 + [120] * 16


# ---- casts, minima and mathematical functions, as CUDA overloads them

CASTS = """
__global__ void __launch_bounds__(32) rest(const void* x, void* out, int n) {
    float* values = (float*)out;
    values[0] = __uint_as_float(__float_as_uint(1.5f) + 1u);
    values[1] = (float)min(3, n) + (float)max(2u, 5u) + (float)min(2ll, 3ll) + (float)max(1ull, 2ull);
    values[2] = max(__uint_as_float(0x7fc00000u), 2.0f);
    values[3] = (float)min(4.0, 1.0) + __ldg((const float*)x) + __ldcg((const float*)x);
    values[4] = (float)__funnelshift_r(0x12345678u, 0x9au, 56u);  // 56 counts as 24
    values[5] = (float)__funnelshift_l(0x12345678u, 0x9au, 40u);  // and 40 as 8
    values[6] = (float)__funnelshift_r(3u, 5u, 32u) + (float)__funnelshift_l(3u, 5u, 0u);
}
"""


def test_casts_minima_and_cached_loads(compile_text: Callable[..., Any]) -> None:
    out = compile_text(CASTS).launch("rest", x=struct.pack("<f", 0.25), out=28, n=1).out
    assert struct.unpack("<7f", out) == (1.5 + 2**-23, 1 + 5 + 2 + 2, 2.0, 1.5, 0x9A12, 0x9A12, 3 + 5)


MATHEMATICS = HEADER_DIRECTORY / "mathematics.h"
WITHIN_ONE = {"acos", "asin", "atanh"}  # defined for arguments of at most 1


def test_mathematics_in_both_precisions(compile_text: Callable[..., Any]) -> None:
    """Each function by its plain name and with an f, for float, double and whole numbers, as CUDA overloads them."""
    declared = re.findall(r"^SCANOPS_(UNARY|BINARY)\((\w+)\)$", MATHEMATICS.read_text(), re.MULTILINE)
    assert len(declared) > 40
    calls = [
        (name, "2.5, 0.75" if kind == "BINARY" else "0.75" if name in WITHIN_ONE else "1.25") for kind, name in declared
    ]
    lines = []
    for name, values in calls:
        floats = ", ".join(f"{value}f" for value in values.split(", "))
        lines += [
            f"static_assert(sizeof({name}({floats})) == 4 && sizeof({name}({values})) == 8);",
            f"*y++ = {name}({floats}) == {name}f({floats}) && fabs({name}({values}) - {name}({floats})) < 1e-5;",
        ]
    lines += ["*y++ = sqrt(16) == 4.0 && sizeof(sqrt(16)) == 8;", "*y++ = fma(2.0f, 3.0f, 4.0f) == 10.0f;"]
    lines += ["*y++ = isnan(NAN) && isinf(-INFINITY) && !isfinite(INFINITY) && signbit(-0.0) && isfinite(1.0f);"]
    lines += ["*y++ = abs(-3) == 3 && abs(-3ll) == 3 && abs(-1.5f) == 1.5f && abs(-1.5) == 1.5;"]
    body = "\n    ".join(lines)
    library = compile_text(
        f"__global__ void all(const void*, void* out, int) {{\n    bool* y = (bool*)out;\n    {body}\n}}"
    )
    count = body.count("*y++")
    assert count == len(calls) + 4
    assert library.launch("all", threads=1, out=count).out == b"\1" * count
