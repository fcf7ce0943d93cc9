"""The operator table: a row is well formed, and its two descriptions agree."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

from scanops.codegen.dtypes import DTYPES
from scanops.codegen.operators import BUILT_IN, OPERATORS, Operator, operator_named
from scanops.codegen.source import generate
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest

ROWS = pytest.mark.parametrize("row", BUILT_IN.values(), ids=lambda row: row.name)
NUMBERS = (3, -1, 2, 0, 5, 2, -1)
INPUT = {"float": "float32", "int": "int32", "bool": "bool", "complex": "complex64"}  # of each kind


@ROWS
def test_one_expression_a_field(row: Operator) -> None:
    assert len(row.fields) == len(row.lift) == len(row.identity) > 0
    assert len(row.combine) in (1, len(row.fields))
    assert all("older" in text and "newer" in text for text in row.combine)
    assert row.name.isidentifier() and row.name == row.name.lower()
    assert set(row.kinds) <= {"bool", "int", "float", "complex"} and row.kinds
    assert set(row.places) <= set(row.fields) and row.places_items == bool(row.indices)
    assert len(row.resumes) == len(row.fields)
    assert operator_named(row.name) is row and OPERATORS[row.name] is row


@ROWS
def test_the_recurrence_is_torchs(row: Operator) -> None:
    if row.torch_name is None:
        pytest.skip("torch has no such scan")
    x = torch.tensor(NUMBERS, dtype=torch.int64 if "int" in row.kinds else torch.float64)
    h, expected = row.start_of(DTYPES[str(x.dtype).removeprefix("torch.")]), []
    for i, item in enumerate(x.tolist()):
        h = row.step(h, item, i) if row.indices else row.step(h, item)
        expected.append(h)
    found = getattr(torch, row.torch_name)(x, 0)
    if row.indices:
        assert list(zip(found.values.tolist(), found.indices.tolist(), strict=True)) == expected
    else:
        values = found if isinstance(found, torch.Tensor) else found.values
        assert values.tolist() == pytest.approx(expected)


# The part of a kernel that is the operator, held to the laws by a loop over samples.
LAWS = """
#include <cmath>
#include <cstring>
using namespace std;
#define __device__
#define __forceinline__ inline
#define __noinline__
static inline float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
static inline float exp2_of(float value) { return exp2f(value); }
static inline unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
%(operator)s
static State of(const double* samples, int k) { return %(element)s; }
static bool near(double a, double b) {
    return a == b || (a != a && b != b) || fabs(a - b) <= 1e-5 * (1 + fabs(a) + fabs(b));
}
template <class Complex>  // the angle of an infinite number is nothing, and any is as good a turn further
static auto near(Complex a, Complex b) -> decltype(a.im, bool()) {
    return near(a.re, b.re) && (isinf(a.re) || (near(cos(a.im), cos(b.im)) && near(sin(a.im), sin(b.im))));
}
static bool same(State a, State b) { return near(result(a), result(b))%(indices)s; }
extern "C" int broken(const double* samples, int count, int* where) {
    for (int a = 0; a < count; ++a) {
        const State x = of(samples, a);
        if (!same(combine(identity(), x), x) || !same(combine(x, identity()), x)) return *where = a, 1;
        for (int b = a + 1; b < count; ++b) {
            const State y = of(samples, b);
            if (%(commutes)s && !same(combine(x, y), combine(y, x))) return *where = a * count + b, 2;
            for (int c = b + 1; c < count; ++c) {
                const State z = of(samples, c);
                if (!same(combine(combine(x, y), z), combine(x, combine(y, z))))
                    return *where = (a * count + b) * count + c, 3;
            }
        }
    }
    return 0;
}
"""
SAMPLES: dict[str, tuple[complex, ...]] = {
    "float": (0.0, 1.5, -math.inf, 1.5, -2.0, math.nan, 700.0, math.inf, -math.inf, -700.0, math.nan, 1.5, -0.0),
    "int": (0.0, 3.0, -1.0, 3.0, -128.0, 127.0, 3.0, -1.0, 0.0),
    "bool": (0.0, 1.0, 1.0, 0.0, 1.0, 0.0),
    "complex": (0.0, 1.5, complex(-math.inf, 1), -2 + 1j, complex(math.nan, 1), 700 - 3j, complex(math.inf, 0.5), 1j,
                complex(math.inf, -1), -700j, complex(2, math.nan), 1.5 + 9j, complex(-math.inf, 0), -1.5),
}  # fmt: skip


@pytest.mark.parametrize(("row", "kind"), [(row, kind) for row in BUILT_IN.values() for kind in row.kinds],
                         ids=lambda part: getattr(part, "name", part))  # fmt: skip
def test_laws(row: Operator, kind: str, tmp_path: Path) -> None:
    """identity is one on both sides, combine is associative, and commutative where the row says so."""
    gate = INPUT[kind] if row.gated else None
    text = generate(ScanSpec(op=row.name, dtype=INPUT[kind], gate=gate, out_dtype=INPUT[kind], length=4))
    found = re.search(r"^(?:typedef|template).*?Output result\(.*?$", text, re.DOTALL | re.MULTILINE)
    assert found
    index = re.search(r"^.*Index index_of\(.*$", text, re.MULTILINE)
    source = tmp_path / "laws.cpp"
    operator = re.sub(r"#ifdef __CUDACC__.*?#endif", "", found[0], flags=re.DOTALL)
    item = "Input{(float)samples[2 * k], (float)samples[2 * k + 1]}" if kind == "complex" else "(Input)samples[k]"
    source.write_text(LAWS % {
        "operator": f"{operator}\n{index[0] if index else ''}",
        "element": f"element({item}{', k' if row.places_items else ', ' + item if row.gated else ''})",
        "indices": " && index_of(a) == index_of(b)" if index else "",
        "commutes": str(row.commutative).lower(),
    })  # fmt: skip
    library = tmp_path / "laws.so"
    compiler = os.environ.get("SCANOPS_CXX", "g++")
    subprocess.run([compiler, "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    samples = SAMPLES[kind]
    if row.name in ("sum", "prod", "linear"):  # whose rounding is no law's matter, nor are infinities of both signs
        samples = tuple(x for x in samples if abs(x) < 100)
    where = ctypes.c_int()
    numbers = [part for x in samples for part in ((x.real, x.imag) if kind == "complex" else (x.real,))]
    law = ctypes.CDLL(str(library)).broken(
        (ctypes.c_double * len(numbers))(*numbers), len(samples), ctypes.byref(where)
    )
    assert law == 0, f"{['', 'identity', 'commutative', 'associative'][law]}, at {where.value} in base {len(samples)}"


@ROWS
def test_an_element_is_a_state_where_the_row_says_so(row: Operator) -> None:
    """Then the recurrence joins any two stretches, which torch's operations do in rounds."""
    if not row.of_elements or row.kinds == ("bool",):
        pytest.skip("a state is more than an element")
    for a, b, c in itertools.product(NUMBERS, repeat=3):
        assert row.step(row.step(a, b), c) == row.step(a, row.step(b, c))


@pytest.mark.parametrize("name", ["median", "", None, 3, "SUM"])
def test_an_unknown_operator(name: object) -> None:
    with pytest.raises(UnsupportedRequest) as caught:
        operator_named(name)
    assert repr(name) in caught.value.asked and caught.value.hint
    assert all(repr(known) in caught.value.allowed for known in OPERATORS)
