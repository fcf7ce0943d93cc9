"""The dtype table, compared with torch."""

from __future__ import annotations

import itertools

import pytest
import torch

from scanops.codegen.dtypes import DTYPES, DType, default_result, dtype_named, promote
from scanops.errors import UnsupportedRequest

PAIRS = list(itertools.product(DTYPES.values(), repeat=2))


def of_torch(row: DType) -> torch.dtype:
    """The torch dtype of a row."""
    dtype = getattr(torch, row.name)
    assert isinstance(dtype, torch.dtype)
    return dtype


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda row: row.tag)
def test_promotion_is_torchs(first: DType, second: DType) -> None:
    """For tensors of at least one dimension: scans never promote 0-d tensors or numbers."""
    operands = [torch.ones(2).to(of_torch(row)) for row in (first, second)]
    try:
        expected = torch.result_type(*operands)
    except RuntimeError:
        with pytest.raises(UnsupportedRequest) as caught:
            promote(first, second)
        assert first.name in caught.value.value and second.name in caught.value.value
        return
    assert of_torch(promote(first, second)) == expected


@pytest.mark.parametrize("row", DTYPES.values(), ids=lambda row: row.tag)
@pytest.mark.parametrize("scan", [torch.cumsum, torch.cumprod])
def test_result_is_torchs(row: DType, scan: object) -> None:
    """The default output dtype of sums and products."""
    assert callable(scan)
    x = torch.ones(3).to(of_torch(row))
    result = scan(x if row.stored else x.float(), 0)  # torch has no scan of 8-bit floating types
    assert of_torch(default_result("widened", row)) == result.dtype


@pytest.mark.parametrize("row", DTYPES.values(), ids=lambda row: row.tag)
def test_bytes_are_torchs(row: DType) -> None:
    """The size of an element."""
    assert row.bytes == of_torch(row).itemsize


@pytest.mark.parametrize("row", DTYPES.values(), ids=lambda row: row.tag)
def test_a_row_is_found_by_object_name_and_tag(row: DType) -> None:
    """torch's object, its name, and the tag of slugs."""
    for name in (of_torch(row), str(of_torch(row)), row.name, row.tag):
        assert dtype_named(name) is row


def test_tags_differ_from_each_other_and_from_names() -> None:
    """A slug has one meaning."""
    tags = {row.tag for row in DTYPES.values()}
    assert len(tags) == len(DTYPES)
    assert not tags & DTYPES.keys()


@pytest.mark.parametrize("name", ["complex32", "f8", "", None, 32, torch.complex32, torch.float8_e8m0fnu])
def test_an_unknown_dtype(name: object) -> None:
    """The error names the argument and all legal dtypes."""
    with pytest.raises(UnsupportedRequest) as caught:
        dtype_named(name, role="mask dtype")
    assert "mask dtype" in caught.value.asked
    assert caught.value.value == repr(name)
    assert all(row in caught.value.allowed for row in DTYPES)
    assert caught.value.hint
