"""8-bit floating types: read exactly, scanned in float32 or wider, never written."""

from __future__ import annotations

import pytest
import torch

import scanops
from scanops.errors import UnsupportedRequest
from tests.numbers.oracle import values

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
DTYPES = pytest.mark.parametrize("dtype", FP8, ids=str)


@DTYPES
@pytest.mark.parametrize("out", [None, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_every_code_is_read_exactly(dtype: torch.dtype, out: torch.dtype | None, device: str) -> None:
    x = torch.arange(256).to(torch.uint8).view(dtype)
    lines = torch.stack([x.view(torch.uint8)] * 2, 1).view(dtype)
    y = scanops.cumsum(lines.to(device), 1, exclusive=True, dtype=out)
    expected = x.float().to(out or torch.float32)
    assert y.dtype == expected.dtype
    torch.testing.assert_close(y[:, 1].cpu(), expected, rtol=0, atol=0, equal_nan=True)


@DTYPES
@pytest.mark.parametrize("op", ["max", "prod", "logcumsumexp"])
def test_operators(op: str, dtype: torch.dtype, device: str) -> None:
    x = torch.randn(3, 200, generator=torch.Generator().manual_seed(2)).to(dtype)
    y = scanops.scan(x.to(device), op, 1)
    wanted = torch.cummax(x.float(), 1).values if op == "max" else None
    wanted = wanted if wanted is not None else getattr(torch, {"prod": "cumprod"}.get(op, op))(x.float(), 1)
    torch.testing.assert_close(y.cpu(), wanted)


@DTYPES
def test_masks(dtype: torch.dtype, device: str) -> None:
    x = values("sum", (3, 200), torch.float32).to(dtype).to(device)
    weights = values("sum", (3, 200), torch.float32, seed=4).to(dtype).to(device)
    keep = x.float() > 0
    assert torch.equal(scanops.cumsum(x, 1, mask=keep), torch.cumsum(x.float() * keep, 1))
    assert torch.equal(scanops.cumsum(x, 1, mask=weights), torch.cumsum(x.float() * weights.float(), 1))


@DTYPES
def test_on_torchs_operations(dtype: torch.dtype) -> None:
    x = torch.randn(3, 200, generator=torch.Generator().manual_seed(2)).to(dtype)
    y = scanops.cumsum(x, 1, reverse=True, mask=x)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, torch.cumsum((x.float() * x.float()).flip(1), 1).flip(1))
    values_, indices = scanops.cummax(x, 1)
    assert torch.equal(values_, torch.cummax(x.float(), 1).values) and indices.dtype == torch.int64


@DTYPES
def test_no_result_is_of_eight_bits(dtype: torch.dtype, device: str) -> None:
    for call in (
        lambda: scanops.cumsum(torch.ones(3, device=device), 0, dtype=dtype),
        lambda: scanops.cumsum(torch.ones(3, device=device), 0, out=torch.ones(3, device=device).to(dtype)),
    ):
        with pytest.raises(UnsupportedRequest) as caught:
            call()
        assert "float32" in caught.value.allowed and "float8" not in caught.value.allowed
        assert str(dtype).removeprefix("torch.") in caught.value.value
