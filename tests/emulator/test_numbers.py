"""Casts, minima and mathematical functions, as CUDA overloads them."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

from scanops.emulator import HEADER_DIRECTORY

TEXT = """
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
    out = compile_text(TEXT).launch("rest", x=struct.pack("<f", 0.25), out=28, n=1).out
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
