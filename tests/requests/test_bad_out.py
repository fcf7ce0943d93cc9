"""Where a result may not go, and where it may."""

from __future__ import annotations

import pytest
import torch

import scanops
from scanops.errors import UnsupportedRequest
from tests.requests.bad import Bad, cumsum, elsewhere, f32, indices, ones
from tests.requests.checks import refused


def shifted(device: str) -> object:
    memory = ones(device, 9)
    return scanops.cumsum(memory[:8], 0, out=memory[1:])


def into_the_mask(device: str, dtype: torch.dtype) -> object:
    memory = ones(device, 12)
    mask = memory[4:].view(dtype)[:8]
    return scanops.cumsum(ones(device, 8), 0, mask=mask, out=memory[:8])


def into_inference(device: str) -> object:
    with torch.inference_mode():
        out = ones(device, 3)
    return cumsum(device, 3, out=out)


def needs_gradient(device: str, role: str) -> object:
    tensors = {name: ones(device, 4).requires_grad_(name == role) for name in ("x", "mask", "out")}
    return scanops.cumsum(tensors["x"], 0, mask=tensors["mask"], out=tensors["out"])


def extremes(device: str, *outs: torch.Tensor) -> object:
    return scanops.cummax(ones(device, 4), 0, out=outs)  # type: ignore[arg-type]


def one_for_both(device: str) -> object:
    x = torch.arange(4, device=device)
    out = torch.empty_like(x)
    return scanops.cummin(x, 0, out=(out, out))


# ---- out=
OUTS: dict[str, Bad] = {
    "shape": Bad(call=lambda d: cumsum(d, 3, out=ones(d, 4)), value="(4,)"),
    "shape that x broadcasts to": Bad(call=lambda d: cumsum(d, 3, out=ones(d, 2, 3)), value="(2, 3)"),
    "device": Bad(call=lambda d: cumsum(d, 3, out=elsewhere(d, 3)), value="out.device="),
    "dtype against dtype=": Bad(call=lambda d: cumsum(d, 3, dtype=torch.float64, out=ones(d, 3)), value="float32"),
    "bool": Bad(call=lambda d: cumsum(d, 3, out=ones(d, 3, dtype=torch.bool)), value="bool"),
    "half complex": Bad(call=lambda d: cumsum(d, 3, out=ones(d, 3, dtype=torch.complex32)), value="complex32"),
    "shifted along x": Bad(call=shifted, value="out at"),
    "x's memory in another order": Bad(
        call=lambda d: (lambda x: scanops.cumsum(x, 0, out=x.t()))(ones(d, 4, 4)), value="x at"
    ),
    "x's memory in another dtype": Bad(
        call=lambda d: (lambda x: scanops.cumsum(x, 0, out=x.view(torch.int32)))(ones(d, 4)), value="x at"
    ),
    "the memory an expanded x repeats": Bad(
        call=lambda d: (lambda y: scanops.cumsum(y[:1].expand(4), 0, out=y))(ones(d, 4)), value="x at"
    ),
    "part of a numeric mask": Bad(call=lambda d: into_the_mask(d, f32), value="mask at"),
    "part of a bool mask": Bad(call=lambda d: into_the_mask(d, torch.bool), value="mask at"),
    "the same memory for many items": Bad(call=lambda d: cumsum(d, 4, out=ones(d, 1).expand(4)), value="(0,)"),
    "strides that overlap": Bad(
        call=lambda d: cumsum(d, 2, 3, dim=1, out=ones(d, 9).as_strided((2, 3), (1, 1))), value="out.stride()=(1, 1)"
    ),
    "inference mode, outside of it": Bad(call=into_inference, value="out.is_inference()=True"),
    "gradient of x": Bad(call=lambda d: needs_gradient(d, "x"), value="requires_grad=True"),
    "gradient of the mask": Bad(call=lambda d: needs_gradient(d, "mask"), value="requires_grad=True"),
    "gradient of out": Bad(call=lambda d: needs_gradient(d, "out"), value="requires_grad=True"),
}


# ---- out= of two results
PAIRS: dict[str, Bad] = {
    "one tensor for two outputs": Bad(
        call=lambda d: scanops.cummax(ones(d, 4), 0, out=ones(d, 4)),  # type: ignore[arg-type]
        value="out is a Tensor",
    ),
    "three tensors": Bad(call=lambda d: extremes(d, *(ones(d, 4) for _ in range(3))), value="out is a tuple of 3"),
    "indices of another dtype": Bad(
        call=lambda d: extremes(d, ones(d, 4), indices(d, 4, dtype=torch.int32)), value="indices.dtype=torch.int32"
    ),
    "indices of another shape": Bad(call=lambda d: extremes(d, ones(d, 4), indices(d, 5)), value="indices.shape=(5,)"),
    "indices that are a list": Bad(call=lambda d: extremes(d, ones(d, 4), [0]), value="indices=[0]"),  # type: ignore[arg-type]
    "values of another dtype": Bad(
        call=lambda d: extremes(d, ones(d, 4, dtype=torch.complex64), indices(d, 4)), value="dtype=complex64"
    ),
    "values and indices in one place": Bad(call=one_for_both, value="indices at"),
}


@pytest.mark.parametrize("bad", OUTS.values(), ids=OUTS)
def test_out(bad: Bad, device: str) -> None:
    refused(bad.kind, lambda: bad.call(device), bad.value)


@pytest.mark.parametrize("bad", PAIRS.values(), ids=PAIRS)
def test_two_outs(bad: Bad, device: str) -> None:
    refused(bad.kind, lambda: bad.call(device), bad.value)


def test_out_may_be_interleaved(device: str) -> None:
    """Strides that do not nest, where no two items share an address."""
    out = torch.zeros(8, device=device).as_strided((2, 3), (3, 2))
    assert scanops.cumsum(ones(device, 2, 3), 1, out=out).tolist() == [[1, 2, 3]] * 2


def test_a_refused_call_leaves_out_alone(device: str) -> None:
    out = torch.full((3,), 5.0, device=device)
    refused(UnsupportedRequest, lambda: cumsum(device, 3, mask=ones(device, 4), out=out))
    assert (out == 5).all()


def test_out_may_be_x_itself(device: str) -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device=device)
    assert scanops.cumsum(x, 0, out=x) is x
    assert x.tolist() == [1, 3, 6]
    transposed = torch.tensor([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]], device=device).t()
    scanops.cumsum(transposed, 1, out=transposed)
    assert transposed.tolist() == [[1, 3, 6], [4, 9, 15]]


def test_out_may_be_the_weights_themselves_and_lie_beside_x(device: str) -> None:
    memory = torch.ones(12, device=device)
    scanops.cumsum(memory[:4], 0, mask=memory[4:8], out=memory[8:])
    assert memory[8:].tolist() == [1, 2, 3, 4]
    weights = torch.tensor([1.0, 0.0, 2.0], device=device)
    scanops.cumsum(ones(device, 3), 0, mask=weights, out=weights)
    assert weights.tolist() == [1, 1, 3]


def test_out_without_gradients_takes_tensors_that_require_them(device: str) -> None:
    x, out = ones(device, 3).requires_grad_(), ones(device, 3)
    with torch.no_grad():
        assert scanops.cumsum(x, 0, out=out).tolist() == [1, 2, 3]
