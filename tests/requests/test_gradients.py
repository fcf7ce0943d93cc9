"""Gradients of every sort, wherever a call is served, against torch's own and against differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.autograd import gradcheck, gradgradcheck

import scanops

FLAGS = list(itertools.product((False, True), (False, True)))
BOTH = ("sum", "prod")


def leaf(*shape: int, device: str = "cpu", seed: int = 0) -> torch.Tensor:
    """Random values away from 0, where the derivative of a product would need a limit."""
    x = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5
    return x.to(device).requires_grad_()


@pytest.mark.parametrize("kind", ["none", "bool", "weights"])
@pytest.mark.parametrize(("reverse", "exclusive"), FLAGS)
@pytest.mark.parametrize("op", BOTH)
def test_first_and_second_derivatives(op: str, reverse: bool, exclusive: bool, kind: str, device: str) -> None:
    x = leaf(2, 3, device=device)
    flags: dict[str, Any] = {"reverse": reverse, "exclusive": exclusive}
    operands: tuple[torch.Tensor, ...] = (x,)
    fixed = torch.tensor([[True, False, True], [True, True, False]], device=device) if kind == "bool" else None
    if kind == "weights":
        operands = (x, leaf(3, device=device, seed=1))  # broadcast, so that its gradient is summed

    def call(x: torch.Tensor, mask: torch.Tensor | None = fixed) -> torch.Tensor:
        return scanops.scan(x, op, 1, mask=mask, **flags)

    assert gradcheck(call, operands)
    assert gradgradcheck(call, operands)


@pytest.mark.parametrize("kind", ["none", "bool", "weights"])
@pytest.mark.parametrize("op", ["max", "min", "logcumsumexp", "cummax", "cummin"])
def test_derivatives_of_the_other_operators(op: str, kind: str, device: str) -> None:
    x = leaf(2, 5, device=device)
    operands: tuple[torch.Tensor, ...] = (x,)
    fixed = torch.tensor([[True, False, True, False, True]], device=device) if kind == "bool" else None
    if kind == "weights":
        operands = (x, leaf(5, device=device, seed=1))

    def call(x: torch.Tensor, mask: torch.Tensor | None = fixed) -> torch.Tensor:
        if op.startswith("cum"):
            values, indices = getattr(scanops, op)(x, 1, mask=mask, reverse=True)
            assert not indices.requires_grad
            return values  # type: ignore[no-any-return]
        return scanops.scan(x, op, 1, mask=mask, reverse=True)

    assert gradcheck(call, operands)


@pytest.mark.parametrize("op", BOTH)
def test_only_the_weights_want_a_gradient(op: str, device: str) -> None:
    x = leaf(4, 2, device=device).detach()
    assert gradcheck(lambda w: scanops.scan(x, op, 0, mask=w), (leaf(4, 1, device=device),))
    whole = torch.arange(1, 5, device=device)  # integers take no gradient, their weights do
    assert gradcheck(lambda w: scanops.scan(whole, op, 0, mask=w), (leaf(4, device=device),))


def test_one_tensor_as_input_and_weights(device: str) -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    (found,) = torch.autograd.grad(scanops.cumsum(x, 0, mask=x).sum(), x)
    (expected,) = torch.autograd.grad(torch.cumsum(x * x, 0).sum(), x)
    assert torch.equal(found, expected)
    assert gradcheck(lambda x: scanops.cumprod(x, 0, mask=x), (leaf(3, device=device),))
    square = leaf(3, 3, device=device)
    assert gradcheck(lambda x: scanops.cumsum(x, 0, mask=x.t()), (square,))


@pytest.mark.parametrize("op", BOTH)
def test_a_zero_in_a_product(op: str, device: str) -> None:
    """torch has a formula for zeros; so must we."""
    x = torch.tensor([[2.0, 0.0, 3.0, 0.0], [1.0, 2.0, 3.0, 4.0]], dtype=torch.float64, device=device)
    x.requires_grad_()
    ours = torch.autograd.grad(scanops.scan(x, op, 1).sum(), x)
    theirs = torch.autograd.grad((torch.cumsum if op == "sum" else torch.cumprod)(x, 1).sum(), x)
    assert torch.equal(ours[0], theirs[0])


def test_the_gradient_of_a_sum_is_an_expanded_tensor(device: str) -> None:
    x = torch.ones(2, 5, device=device, requires_grad=True)
    scanops.cumsum(x, 1, reverse=True).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[1, 2, 3, 4, 5]] * 2
    x.grad = None
    scanops.cumsum(x, 0, exclusive=True).backward(torch.ones(1, 1, device=device).expand(2, 5))
    assert x.grad.tolist() == [[1] * 5, [0] * 5]


def test_inputs_that_are_not_contiguous(device: str) -> None:
    base = leaf(3, 2, 4, device=device)
    for view in (lambda x: x.transpose(0, 2), lambda x: x[:, :, ::2], lambda x: x[:1].expand(3, 2, 4)):
        assert gradcheck(lambda x, view=view: scanops.cumsum(view(x), 0, reverse=True), (base,))


def test_a_number_and_nothing(device: str) -> None:
    number = torch.tensor(3.0, device=device, requires_grad=True)
    scanops.cumprod(number, 0).backward()
    assert number.grad is not None and number.grad.item() == 1
    nothing = torch.ones(2, 0, device=device, requires_grad=True)
    scanops.cumsum(nothing, 1).sum().backward()
    assert nothing.grad is not None and nothing.grad.shape == (2, 0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64], ids=str)
def test_a_dtype_is_converted_back(dtype: torch.dtype, device: str) -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    y = scanops.cumsum(x, 0, dtype=dtype)
    assert y.requires_grad == dtype.is_floating_point
    if dtype.is_floating_point:
        y.sum().backward()
        assert x.grad is not None and x.grad.dtype == torch.float32 and x.grad.tolist() == [3, 2, 1]


def test_a_masked_nan_gives_no_gradient(device: str) -> None:
    x = torch.tensor([1.0, float("nan"), 2.0], device=device, requires_grad=True)
    y = scanops.cumsum(x, 0, mask=torch.tensor([True, False, True], device=device))
    y.sum().backward()
    assert y.tolist() == [1, 1, 3] and x.grad is not None and x.grad.tolist() == [3, 0, 1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_masked_gate_gives_no_gradient(bad: float, device: str) -> None:
    a = torch.tensor([0.5, bad, 0.25], device=device, requires_grad=True)
    x = torch.tensor([1.0, bad, 2.0], device=device, requires_grad=True)
    y = scanops.linear_scan(a, x, 0, mask=torch.tensor([True, False, True], device=device))
    of_a, of_x = torch.autograd.grad(y.sum(), (a, x))
    assert (y.tolist(), of_a.tolist(), of_x.tolist()) == ([1, 1, 2.25], [0, 0, 1], [2.25, 0, 1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("op", ["sum", "prod", "logcumsumexp", "max", "linear"])
def test_a_segment_has_its_own_gradient(op: str, bad: float, device: str) -> None:
    """Whatever lies in another one of the line: a sequence of a pack that has gone wrong spoils no other."""
    starts = torch.tensor([False, False, True, False], device=device)
    gate, x = (torch.tensor([1.0, bad, 0.5, 2.0], device=device) for _ in range(2))

    def total(x: torch.Tensor, gate: torch.Tensor, **segments: Any) -> torch.Tensor:
        if op == "linear":
            return scanops.linear_scan(gate, x, 0, **segments)[-2:].sum()
        return scanops.scan(x, op, 0, **segments)[-2:].sum()

    (found,) = torch.autograd.grad(total(x.requires_grad_(), gate, segment_starts=starts), x)
    alone = x.detach()[2:].requires_grad_()
    (expected,) = torch.autograd.grad(total(alone, gate[2:]), alone)
    torch.testing.assert_close(found[2:], expected)


def test_through_a_graph_of_both(device: str) -> None:
    x = leaf(2, 6, device=device)
    ours = scanops.cumsum(scanops.cumprod(x.sin(), 1) * x, 0, reverse=True).square().sum()
    theirs = torch.cumsum((torch.cumprod(x.sin(), 1) * x).flip(0), 0).flip(0).square().sum()
    assert torch.allclose(torch.autograd.grad(ours, x)[0], torch.autograd.grad(theirs, x)[0])


# ---- torch.func and forward mode: torch must see inside


def plus_mask(x: torch.Tensor) -> torch.Tensor:
    return scanops.cumsum(x, -1, mask=x.detach() > 0.7, reverse=True)


def plus_mask_of_torch(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(torch.where(x.detach() > 0.7, x, torch.zeros_like(x)).flip(-1), -1).flip(-1)


PAIRS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "sum": (lambda x: scanops.cumsum(x, 0), lambda x: torch.cumsum(x, 0)),
    "prod": (lambda x: scanops.cumprod(x, -1), lambda x: torch.cumprod(x, -1)),
    "masked reverse": (plus_mask, plus_mask_of_torch),
}


@pytest.mark.parametrize("name", PAIRS)
def test_torch_func(name: str, device: str) -> None:
    ours, theirs = PAIRS[name]
    x = leaf(3, 4, device=device).detach()
    t = leaf(3, 4, device=device, seed=2).detach()
    for dims in (0, 1):
        torch.testing.assert_close(torch.func.vmap(ours, dims)(x), torch.func.vmap(theirs, dims)(x))
    gradient = torch.func.grad(lambda x: ours(x).square().sum())(x)
    torch.testing.assert_close(gradient, torch.func.grad(lambda x: theirs(x).square().sum())(x))
    for found, expected in zip(torch.func.jvp(ours, (x,), (t,)), torch.func.jvp(theirs, (x,), (t,)), strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.func.jacrev(ours)(x), torch.func.jacfwd(theirs)(x))


def test_a_mask_that_is_batched(device: str) -> None:
    x = leaf(4, device=device).detach()
    masks = torch.tensor([[True, False, True, True], [False, True, True, False]], device=device)
    found = torch.func.vmap(lambda mask: scanops.cumsum(x, 0, mask=mask))(masks)
    torch.testing.assert_close(found, torch.cumsum(torch.where(masks, x, torch.zeros_like(x)), 1))


@pytest.mark.parametrize("role", ["x", "mask"])
def test_forward_mode_outside_torch_func(role: str, device: str) -> None:
    x, other = leaf(2, 3, device=device).detach(), leaf(2, 3, device=device, seed=1).detach()
    tangent = leaf(2, 3, device=device, seed=2).detach()
    for _ in range(2):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, tangent)
            operands = (dual, other) if role == "x" else (other, dual)
            value, found = forward_ad.unpack_dual(scanops.cumsum(operands[0], 1, mask=operands[1]))
        torch.testing.assert_close(value, torch.cumsum(x * other, 1))
        assert found is not None
        torch.testing.assert_close(found, torch.cumsum(tangent * other, 1))
        assert scanops.cumsum(x, 1, mask=other).shape == (2, 3)  # a plain call between, with the same strides


def test_hessians_of_products_with_zeros(device: str) -> None:
    """torch's tangent of cumprod divides by items: its own Hessians are wrong or NaN where one is 0."""
    x = torch.tensor([0.5, 0.0, 0.7, 0.9], dtype=torch.float64, device=device)

    def total(x: torch.Tensor) -> torch.Tensor:
        return scanops.cumprod(x, 0).sum().sin()

    def by_items(x: torch.Tensor) -> torch.Tensor:
        return (x[0] + x[0] * x[1] + x[0] * x[1] * x[2] + x[0] * x[1] * x[2] * x[3]).sin()

    func = torch.func
    expected = torch.autograd.functional.hessian(by_items, x)
    for outer, inner in itertools.product((func.jacfwd, func.jacrev), repeat=2):
        torch.testing.assert_close(outer(inner(total))(x), expected)


# ---- complex numbers


def complex_leaf(*shape: int, device: str, seed: int = 3) -> torch.Tensor:
    parts = [leaf(*shape, seed=seed + k).detach() for k in range(2)]
    return torch.complex(*parts).to(device).requires_grad_()


@pytest.mark.parametrize("kind", ["none", "bool", "weights", "real weights", "real input"])
@pytest.mark.parametrize(("reverse", "exclusive"), [(False, False), (True, True)])
@pytest.mark.parametrize("op", [*BOTH, "logcumsumexp"])
def test_derivatives_of_complex_numbers(op: str, reverse: bool, exclusive: bool, kind: str, device: str) -> None:
    if op == "logcumsumexp" and exclusive:
        exclusive = False  # its first result is -inf, near which there are no differences
    x = leaf(2, 3, device=device) if kind == "real input" else complex_leaf(2, 3, device=device)
    operands: tuple[torch.Tensor, ...] = (x,)
    fixed = torch.tensor([[True, False, True], [True, True, True]], device=device) if kind == "bool" else None
    if kind.endswith("weights") or kind == "real input":
        real = kind == "real weights"
        operands = (x, leaf(3, device=device, seed=1) if real else complex_leaf(3, device=device, seed=5))

    def call(x: torch.Tensor, mask: torch.Tensor | None = fixed) -> torch.Tensor:
        return scanops.scan(x, op, 1, mask=mask, reverse=reverse, exclusive=exclusive)

    assert gradcheck(call, operands)


def test_a_gradient_that_is_lazily_conjugated(device: str) -> None:
    x = complex_leaf(4, device=device)
    given = complex_leaf(4, device=device, seed=7).detach().conj()
    (found,) = torch.autograd.grad(scanops.cumprod(x, 0), x, given)
    (expected,) = torch.autograd.grad(torch.cumprod(x, 0), x, given)
    assert given.is_conj()
    torch.testing.assert_close(found, expected)
