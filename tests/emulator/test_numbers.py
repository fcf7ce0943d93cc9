"""Half and bfloat16 conversions against PyTorch's, and the text compiled as strictly as it can be."""

from __future__ import annotations

import ctypes
import math
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch

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


DTYPES = (torch.float16, torch.bfloat16)  # by the kernels' last argument


def raw(x: torch.Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes()


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether bits are equal, but for the payload of NaN."""
    bits = {2: torch.int16, 4: torch.int32}[expected.itemsize]
    return bool(((found.view(bits) == expected.view(bits)) | (found.isnan() & expected.isnan())).all())


@pytest.mark.parametrize("bfloat", [0, 1])
def test_every_pattern_widens_exactly(library: Any, bfloat: int) -> None:
    x = torch.arange(65536).to(torch.uint16)
    outcome = library.launch("widen", x=raw(x), out=4 * 65536, n=bfloat)
    found = torch.frombuffer(bytearray(outcome.out), dtype=torch.float32)
    assert same(found, x.view(DTYPES[bfloat]).float())


@pytest.mark.parametrize("bfloat", [0, 1])
def test_narrowing_rounds_to_nearest_even(library: Any, bfloat: int) -> None:
    """Each value, the tie with its neighbour, the floats next to the tie, random floats, and special ones."""
    finite = torch.arange(0x7F80 if bfloat else 0x7C00).to(torch.uint16).view(DTYPES[bfloat]).double()
    ties = ((finite[:-1] + finite[1:]) / 2).float()
    random = torch.randint(0x7F800001, (4096,), generator=torch.Generator().manual_seed(7))
    special = torch.tensor([0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x7F7FFFFF, 1])
    around = [ties.nextafter(torch.tensor(end)) for end in (0.0, math.inf)]
    bits = torch.cat([random, special]).to(torch.int32).view(torch.float32)
    values = torch.cat([finite.float(), finite[-1:].float() * 2, ties, *around, bits])
    values = torch.cat([values, -values])
    values = torch.cat([values, torch.zeros(-len(values) % 32)])
    outcome = library.launch("narrow", blocks=len(values) // 32, x=raw(values), out=2 * len(values), n=bfloat)
    found = torch.frombuffer(bytearray(outcome.out), dtype=DTYPES[bfloat])
    assert same(found, values.to(DTYPES[bfloat]))
    assert (found.view(torch.int16)[values.isnan()] == 0x7FFF).all()


def test_casts_minima_and_cached_loads(library: Any) -> None:
    out = library.launch("rest", x=struct.pack("<f", 0.25), out=28, n=1).out
    assert struct.unpack("<7f", out) == (1.5 + 2**-23, 1 + 5 + 2 + 2, 2.0, 1.5, 0x9A12, 0x9A12, 3 + 5)


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
