"""Half and bfloat16 conversions against struct and exact rounding, and the text compiled as strictly as it can be."""

from __future__ import annotations

import ctypes
import itertools
import math
import random
import re
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from scanops.emulator import HEADER_DIRECTORY

TEXT = """
__global__ void widen(const void* x, void* out, int n) {
    for (int k = (int)threadIdx.x; k < 65536; k += 32) {
        const unsigned short bits = ((const unsigned short*)x)[k];
        ((float*)out)[k] = n == 0 ? half_to_float(bits) : bfloat_to_float(bits);
    }
}
__global__ void narrow(const void* x, void* out, int n) {
    const float value = ((const float*)x)[blockIdx.x * 32 + threadIdx.x];
    ((unsigned short*)out)[blockIdx.x * 32 + threadIdx.x] = n == 0 ? float_to_half(value) : float_to_bfloat(value);
}
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


@pytest.fixture(scope="module")
def library(compile_text: Callable[..., Any]) -> Any:
    return compile_text(TEXT)


def float_of(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def bits_of(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


@pytest.mark.parametrize("bfloat", [0, 1])
def test_every_pattern_widens_exactly(library: Any, bfloat: int) -> None:
    x = struct.pack("<65536H", *range(65536))
    got = struct.unpack("<65536I", library.launch("widen", x=x, out=4 * 65536, n=bfloat).out)
    halves = struct.unpack("<65536e", x)
    for bits in range(65536):
        expected = bits << 16 if bfloat else bits_of(halves[bits]) if not math.isnan(halves[bits]) else None
        if expected is None:
            assert got[bits] & 0x7FFFFFFF > 0x7F800000
        else:
            assert got[bits] == expected, hex(bits)


def samples(widened: list[float]) -> list[float]:
    """Each value, the tie with its neighbour, and the floats on both sides of the tie, in both signs."""
    picked = []
    for low, high in itertools.pairwise(widened):
        tie = float(Fraction(low) / 2 + Fraction(high) / 2)
        around = [float_of(bits_of(tie) + step) for step in (-1, 0, 1)] if tie else [tie]
        picked += [low, *around]
    generator = random.Random(7)
    picked += [float_of(generator.randrange(0x7F800001)) for _ in range(4096)]
    picked += [math.inf, math.nan, float_of(0x7F800001), float_of(0x7FFFFFFF), float_of(0x7F7FFFFF), float_of(1)]
    picked += [widened[-1], widened[-1] * 2 if widened[-1] < 1e38 else 0.0]
    return [sign * value for value in picked for sign in (1.0, -1.0)]


def half_bits(value: float) -> int:
    try:
        return int(struct.unpack("<H", struct.pack("<e", value))[0])  # rounds to nearest even
    except OverflowError:
        return 0x7C00 | (0x8000 if value < 0 else 0)


def bfloat_bits(value: float) -> int:
    bits = bits_of(value)
    low, rest = bits >> 16, bits & 0xFFFF
    return low + (rest > 0x8000 or (rest == 0x8000 and low & 1 == 1))


@pytest.mark.parametrize("bfloat", [0, 1])
def test_narrowing_rounds_to_nearest_even(library: Any, bfloat: int) -> None:
    if bfloat:
        widened = [float_of(bits << 16) for bits in range(0, 0x7F80)]
    else:
        widened = [struct.unpack("<e", struct.pack("<H", bits))[0] for bits in range(0x7C00)]
    values = samples(widened)
    values += [0.0] * (-len(values) % 32)
    x = struct.pack(f"<{len(values)}f", *values)
    outcome = library.launch("narrow", blocks=len(values) // 32, x=x, out=2 * len(values), n=bfloat)
    got = struct.unpack(f"<{len(values)}H", outcome.out)
    expect = bfloat_bits if bfloat else half_bits
    for value, bits in zip(values, got, strict=True):
        assert bits == (0x7FFF if math.isnan(value) else expect(value)), value.hex()


def test_casts_minima_and_cached_loads(library: Any) -> None:
    out = library.launch("rest", x=struct.pack("<f", 0.25), out=28, n=1).out
    assert struct.unpack("<7f", out) == (float_of(bits_of(1.5) + 1), 1 + 5 + 2 + 2, 2.0, 1.5, 0x9A12, 0x9A12, 3 + 5)


@pytest.mark.parametrize(
    "flags", [("-O0",), ("-O2", "-g"), ("-O2", "-D_FORTIFY_SOURCE=2"), ("-fno-sanitize-recover=all",)]
)
def test_other_compiler_settings_work(compile_text: Callable[..., Any], flags: tuple[str, ...]) -> None:
    text = """
__global__ void turn(const void*, void* out, int n) {
    __shared__ int values[64];
    values[threadIdx.x + (unsigned)n] = (int)threadIdx.x;
    __syncthreads();
    ((int*)out)[threadIdx.x] = __shfl_xor_sync(0xffffffffu, values[63 - threadIdx.x], 1);
}
__global__ void without_shared_memory(const void*, void* out, int) { ((int*)out)[threadIdx.x] = 3; }
"""
    library = compile_text(text, flags)
    for seed in range(3):
        outcome = library.launch("turn", blocks=4, threads=64, out=256, seed=seed)
        assert outcome.code == 0
        assert list((ctypes.c_int * 64).from_buffer_copy(outcome.out)) == [63 - (k ^ 1) for k in range(64)]
    assert "index 64 is out of bounds" in library.launch("turn", threads=64, out=256, n=1).report
    bare = compile_text(text[text.index("__global__ void without") :], flags)
    assert bare.launch("without_shared_memory", out=128).code == 0


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
