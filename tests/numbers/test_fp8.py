"""8-bit floating types: read exactly, scanned in float32 or wider, never written."""

from __future__ import annotations

import pytest
import torch

import scanops
from scanops.errors import UnsupportedRequest
from tests.numbers.oracle import values

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
OUT = (None, torch.float16, torch.bfloat16, torch.float64)
DTYPES = pytest.mark.parametrize("dtype", FP8, ids=str)


@DTYPES
def test_every_code_is_read_exactly(dtype: torch.dtype, device: str) -> None:
    x = torch.arange(256).to(torch.uint8).view(dtype)
    lines = torch.stack([x.view(torch.uint8)] * 2, 1).view(dtype)
    for out in (None, OUT[FP8.index(dtype)]):
        y = scanops.cumsum(lines.to(device), 1, exclusive=True, dtype=out)
        expected = x.float().to(out or torch.float32)
        assert y.dtype == expected.dtype
        torch.testing.assert_close(y[:, 1].cpu(), expected, rtol=0, atol=0, equal_nan=True)


@DTYPES
def test_masks_and_the_fallback(dtype: torch.dtype, device: str) -> None:
    x, weights = (values("sum", (3, 200), torch.float32, seed=seed).to(dtype) for seed in (0, 4))
    for where in (device, "cpu"):
        there, by = x.to(where), weights.to(where)
        keep = there.float() > 0
        assert torch.equal(scanops.cumsum(there, 1, mask=keep), torch.cumsum(there.float() * keep, 1))
        assert torch.equal(scanops.cumsum(there, 1, mask=by), torch.cumsum(there.float() * by.float(), 1))
    found = scanops.cummax(x, 1)
    assert torch.equal(found.values, torch.cummax(x.float(), 1).values) and found.indices.dtype == torch.int64


@DTYPES
def test_no_result_is_of_eight_bits(dtype: torch.dtype, device: str) -> None:
    x = torch.ones(3, device=device)
    for options in ({"dtype": dtype}, {"out": x.to(dtype)}):
        with pytest.raises(UnsupportedRequest) as caught:
            scanops.cumsum(x, 0, **options)
        assert "float32" in caught.value.allowed and "float8" not in caught.value.allowed
        assert str(dtype).removeprefix("torch.") in caught.value.value
