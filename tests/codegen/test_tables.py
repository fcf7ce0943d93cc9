"""The tables of dtypes and operators: dtypes are torch's; a row is well formed, and its two descriptions agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from scanops.codegen.dtypes import DTYPES, DType, default_result, dtype_named, promote
from scanops.codegen.operators import BUILT_IN, Operator
from scanops.errors import UnsupportedRequest
from scanops.laws import check_operator


def of_torch(row: DType) -> torch.dtype:
    """The torch dtype of a row."""
    dtype = getattr(torch, row.name)
    assert isinstance(dtype, torch.dtype)
    return dtype


@pytest.mark.parametrize("first", DTYPES.values(), ids=lambda row: row.tag)
def test_promotion_is_torchs(first: DType) -> None:
    """For tensors of at least one dimension: scans never promote 0-d tensors or numbers."""
    for second in DTYPES.values():
        operands = [torch.ones(2).to(of_torch(row)) for row in (first, second)]
        try:
            expected = torch.result_type(*operands)
        except RuntimeError:
            with pytest.raises(UnsupportedRequest) as caught:
                promote(first, second)
            assert first.name in caught.value.value and second.name in caught.value.value
        else:
            assert of_torch(promote(first, second)) == expected, second.name


@pytest.mark.parametrize("row", DTYPES.values(), ids=lambda row: row.tag)
def test_a_row_is_torchs(row: DType) -> None:
    """Its size, the default output dtype of sums and products, and what finds it: torch's object, its name, the tag."""
    dtype = of_torch(row)
    x = torch.ones(3).to(dtype if row.stored else torch.float32)  # torch has no scan of 8-bit floating types
    assert {torch.cumsum(x, 0).dtype, torch.cumprod(x, 0).dtype} == {of_torch(default_result("widened", row))}
    assert row.bytes == dtype.itemsize
    assert all(dtype_named(name) is row for name in (dtype, str(dtype), row.name, row.tag))


def test_tags_differ_from_each_other_and_from_names() -> None:
    """A slug has one meaning."""
    tags = {row.tag for row in DTYPES.values()}
    assert len(tags) == len(DTYPES)
    assert not tags & DTYPES.keys()


ROWS = pytest.mark.parametrize("row", BUILT_IN.values(), ids=lambda row: row.name)
NUMBERS = (3, -1, 2, 0, 5, 2, -1)
FINITE = (0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 1j, 0.5 - 1j)


@ROWS
def test_the_recurrence_is_torchs(row: Operator) -> None:
    """step and start give what the row's torch function gives."""
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


def lawful(row: Operator) -> Iterator[Operator]:
    """``row`` as check_operator takes it: of two outputs either, and in each form."""
    if not row.indices:
        yield dataclasses.replace(row, torch_name=None)
        return
    yield dataclasses.replace(row, indices="", output=lambda h: h[0])
    other = {"indices": "", "resume": (), "resumed": None, "project": row.indices, "gives": "index"}
    yield dataclasses.replace(row, **other, output=lambda h: h[1])  # type: ignore[arg-type]


CHECKED = [each for row in BUILT_IN.values() for form in (row, *row.variants.values()) for each in lawful(form)]


@pytest.mark.parametrize("row", CHECKED, ids=lambda row: f"{row.name}-{'-'.join(row.kinds)}-{row.gives}")
def test_laws(row: Operator) -> None:
    """identity is neutral on both sides, combine is associative, and commutative where the row says so."""
    bounded = row.name in ("sum", "prod", "linear")  # NaN and infinities of both signs break no law of theirs
    kinds = tuple(kind for kind in row.kinds if kind != "complex") if row.name == "logcumsumexp" else row.kinds
    row = dataclasses.replace(row, kinds=kinds or row.kinds)
    report = check_operator(row, lengths=(), samples=FINITE if bounded else None)
    assert report.ok and report.laws > 100, str(report)
