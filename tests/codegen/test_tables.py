"""The tables of dtypes and operators: a row agrees with torch."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from scanops.codegen.dtypes import DTYPES, DType, default_result, dtype_named, promote
from scanops.codegen.operators import OPERATORS, operator_named
from scanops.errors import UnsupportedRequest


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


def test_pickles_and_copies() -> None:
    """Rows are pickled by name: lambdas cannot be."""
    assert all(copy.deepcopy(row) is row for row in OPERATORS.values())
    assert all(pickle.loads(pickle.dumps(row)) is row is operator_named(name) for name, row in OPERATORS.items())
