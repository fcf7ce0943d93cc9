"""The measure of error itself."""

from __future__ import annotations

import pytest
import torch

from scanops.fallback.scans import max_error


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_measuring_changes_nothing(dtype: torch.dtype) -> None:
    """In float64 no conversion stands between the tensors and the arithmetic."""
    x = torch.tensor([[-1.0, 2.0, -3.0]], dtype=dtype)
    y = torch.cumsum(x, 1)
    kept = x.clone(), y.clone()
    assert max_error(y, x, "sum", 1) == 0
    assert torch.equal(x, kept[0]) and torch.equal(y, kept[1])


def test_an_error_is_one_of_the_running_magnitude() -> None:
    x = torch.tensor([[4.0, -4.0]])
    assert max_error(torch.tensor([[4.0, 1.0]]), x, "sum", 1) == 1 / 8


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_is_no_small_error(wrong: float) -> None:
    assert max_error(torch.tensor([wrong, 1.0]), torch.tensor([1.0, 0.0]), "sum", 0) > 1e300
