"""Operators whose state holds an index: exact indices, elements in their own dtype, and errors where that cannot be."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch

import scanops
from scanops.errors import UnsupportedRequest
from tests.requests.checks import refused
from tests.scripts import loaded

ARGMAX: scanops.Operator = loaded("docs/examples/argmax.py").argmax
GREAT = 2**25  # elements of a line in which float32 does not hold every index


def changed(row: scanops.Operator, **fields: Any) -> scanops.Operator:
    """A registered row that differs from ``row`` in these fields; its name is replaced, too."""
    name = f"{row.name}_{abs(hash(repr(sorted(fields.items())))) % 10**9}"
    return scanops.register_operator(dataclasses.replace(row, name=name, **fields))


def expected(x: torch.Tensor, keep: torch.Tensor, *, reverse: bool, exclusive: bool) -> list[list[int]]:
    """The running argmax of the rows of ``x``, as a loop over Python numbers."""
    rows = []
    for row, kept in zip(x.tolist(), keep.tolist(), strict=True):
        best, found = -1, [-1] * len(row)
        for i in reversed(range(len(row))) if reverse else range(len(row)):
            before = best
            best = i if kept[i] and (best < 0 or row[i] > row[best]) else best
            found[i] = before if exclusive else best
        rows.append(found)
    return rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16], ids=str)
def test_an_index_of_elements_in_their_own_dtype(dtype: torch.dtype) -> None:
    """Fractions count: elements are not converted to int64. On the CPU and in kernels, rows and columns alike."""
    generator = torch.Generator().manual_seed(1)
    x = (torch.randint(-99, 99, (3, 40), generator=generator) / (8 if dtype.is_floating_point else 1)).to(dtype)
    keep = torch.rand(3, 40, generator=generator) < 0.6
    for reverse, exclusive in itertools.product((False, True), (False, True)):
        wanted = expected(x, keep, reverse=reverse, exclusive=exclusive)
        options = {"mask": keep, "reverse": reverse, "exclusive": exclusive}
        found = scanops.scan(x, ARGMAX, 1, **options)
        assert found.dtype == torch.int64 and found.tolist() == wanted
        if reverse == exclusive:
            with scanops.emulate():
                assert scanops.scan(x, ARGMAX, 1, **options).tolist() == wanted


def test_an_index_as_a_carry_out_and_in_int32() -> None:
    """The carry-out and dtype=torch.int32, in a kernel and without one."""
    x = torch.tensor([[0.25, 0.5, 0.75, 0.5, 0.9, 0.1]], requires_grad=True)
    for run in (lambda: scanops.scan(x, ARGMAX, 1, return_final=True, dtype=torch.int32), None):
        if run is None:
            with scanops.emulate():
                y, final = scanops.scan(x, ARGMAX, 1, return_final=True, dtype=torch.int32)
        else:
            y, final = run()
        assert y.dtype == final.dtype == torch.int32 and not y.requires_grad
        assert (y.tolist(), final.tolist()) == ([[0, 1, 2, 2, 4, 4]], [4])


@pytest.mark.parametrize("kind", ["index", "int32", "int64", "float64"])
def test_fields_of_each_type(kind: str) -> None:
    """A field has the type it is declared with: an index beyond 2^24, added to each, survives every strategy's scan."""
    base = 2**24
    far = changed(
        ARGMAX,
        types=("value", kind),
        lift=("x", f"i + {base}"),
        project=f"state.index < 0 ? -1 : (int)(state.index) - {base}",
    )
    x = torch.tensor([[0.25, 0.5, 0.75, 0.5, 0.9, 0.1] * 17])
    wanted = expected(x, torch.ones_like(x).bool(), reverse=False, exclusive=False)
    with scanops.emulate():
        assert scanops.scan(x, far, 1).tolist() == wanted
        assert scanops.scan(x.t().contiguous(), far, 0).t().tolist() == wanted


def test_a_single_field_with_a_type() -> None:
    """A state of one typed field is a struct, whose member is named: it is not of the elements' type."""
    last = scanops.Operator(
        name="last_positive", formula="y[i] = the last j <= i with x[j] > 0, else -1", fields=("index",),
        types=("index",), lift=("x > 0 ? i : -1",), combine=("newer.index >= 0 ? newer : older",), identity=("-1",),
        project="state.index", gives="index", kinds=("float",), commutative=False, start=-1,
        step=lambda h, x, i: torch.where(x > 0, i, h),
    )  # fmt: skip
    x = torch.tensor([[-1.0, 0.5, -1.0, -2.0, 0.25, 0.0]])
    with scanops.emulate():
        assert scanops.scan(x, last, 1).tolist() == [[-1, 1, 1, 1, 4, 4]] == scanops.scan(x, last, 1).tolist()
    refused(UnsupportedRequest, lambda: dataclasses.replace(last, project="state"), "project='state'")


def test_an_integer_output_does_not_truncate_elements() -> None:
    """Without gives="index" an integer output dtype would convert 0.25 and 0.5 to 0 before they are compared."""
    wrong = changed(ARGMAX, gives="kept", kinds=("int", "float"))
    message = refused(UnsupportedRequest, lambda: scanops.scan(torch.rand(2, 9), wrong, 1, dtype=torch.int64), "int64")
    assert "gives='index'" in str(message) and "float32" in str(message).splitlines()[0]
    integers = torch.randint(9, (2, 9), generator=torch.Generator().manual_seed(2))
    found = scanops.scan(integers, wrong, 1)
    assert torch.equal(found, scanops.scan(integers, ARGMAX, 1)), "integers are converted to int64 without loss"


@pytest.mark.parametrize(
    "text", ["i", "(Value)i", "x != 0 ? (float)i : -1", "x == 0 ? -1 : (i)", "static_cast<Value>(i)"]
)
def test_an_index_that_float32_does_not_hold(text: str) -> None:
    """A field of the elements' dtype that holds i is refused for lines that are too long, and right for others."""
    loose = changed(ARGMAX, types=(), lift=("x", text), gives="kept", kinds=("float",))
    legal = scanops.ScanSpec(op=loose.name, dtype="float32", length=2**24)
    assert scanops.generate(legal)
    for options in ({"length": GREAT}, {"length": None}):
        message = refused(
            UnsupportedRequest, lambda o=options: scanops.ScanSpec(op=loose.name, dtype="float32", **o), "index"
        )
        assert "places=('index',)" in str(message)
    assert scanops.ScanSpec(op=loose.name, dtype="float64", length=GREAT)


def test_arithmetic_with_an_index_is_not_an_index() -> None:
    """Weights and signs that are computed from i round as all arithmetic does."""
    alternating = changed(ARGMAX, fields=("value",), types=(), lift=("i % 2 ? -x : x",), combine=("older + newer",),
                          identity=("0",), project="state", gives="kept", start=0, output=None,
                          step=lambda h, x, i: h + (-x if i % 2 else x))  # fmt: skip
    assert scanops.ScanSpec(op=alternating.name, dtype="float32", length=GREAT)
    assert scanops.scan(torch.ones(5), alternating, 0).tolist() == [1, 0, 1, 0, 1]


def test_an_output_dtype_that_does_not_hold_every_index() -> None:
    """An index projected to float32 or int8 would be rounded or wrap."""
    floating = changed(ARGMAX, gives="kept", kinds=("float",))
    narrow = changed(ARGMAX, gives="kept", kinds=("int",))
    assert scanops.ScanSpec(op=floating.name, dtype="float32", length=2**24)
    for row, dtype, length in ((floating, "float32", GREAT), (floating, "bfloat16", 1000), (narrow, "int8", 200)):
        message = refused(
            UnsupportedRequest, lambda r=row, d=dtype, n=length: scanops.ScanSpec(op=r.name, dtype=d, length=n), dtype
        )
        assert "gives='index'" in str(message)
    refused(
        UnsupportedRequest, lambda: scanops.ScanSpec(op=ARGMAX.name, dtype="f32", length=9, out_dtype="int8"), "int8"
    )
