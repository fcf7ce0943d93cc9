"""Recurrences whose results are summed over lines, against a loop over steps in float64: values and gradients."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import scanops
from scanops.errors import DimensionOutOfRange, UnsupportedRequest
from tests.requests.checks import refused

Tensors = tuple[torch.Tensor, ...]


def gate_and_item(u: Any, d: Any, a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    return torch.exp(d * a), d * u * b


def product(h: Any, u: Any, d: Any, a: Any, b: Any, c: Any) -> Any:
    return h * c


def gated(y: Any, u: Any, d: Any, a: Any, b: Any, c: Any) -> Any:
    return y * functional.silu(u) + u


def walk(tensors: Tensors, initial: torch.Tensor, *, dim: int = -1, reverse: bool = False) -> Tensors:
    """The sums over dimension 2 of batch, channels, states and steps, and the last states."""
    whole = torch.broadcast_tensors(*tensors)
    items, h, found = [each.unbind(dim) for each in whole], initial, []
    for t in reversed(range(whole[0].shape[dim])) if reverse else range(whole[0].shape[dim]):
        now = [each[t] for each in items]
        gate, item = gate_and_item(*now)
        h = gate * h + item
        found.append(gated(product(h, *now).sum(2), *(each[:, :, 0] for each in now)))
    return torch.stack(found[::-1] if reverse else found, -1), h


def selective(states: int, length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensors, torch.Tensor]:
    """Input, steps, A, B and C of a selective scan as they lie, and its first states."""
    make, real = torch.Generator().manual_seed(states + length), {"dtype": torch.float64}
    shapes = ((2, 3, 1, length), (2, 3, 1, length), (3, states, 1), (2, 1, states, length), (2, 1, states, length))
    u, d, a, b, c = (torch.randn(each, generator=make, **real) for each in shapes)
    tensors = (u, functional.softplus(d), -a.abs(), b, c)
    return tuple(each.to(dtype) for each in tensors), torch.randn(2, 3, states, generator=make)


def hold(states: int, length: int, dtype: torch.dtype, device: str = "cpu", **options: Any) -> None:
    tensors, initial = selective(states, length, dtype)
    leaves = [each.to(device).requires_grad_() for each in (*tensors, initial)]
    y, last = scanops.scan(
        leaves[:-1],
        "linear",
        -1,
        map=gate_and_item,
        then=product,
        sum=2,
        finish=gated,
        initial=leaves[-1],
        return_final=True,
        **options,
    )
    wide = [each.detach().cpu().double().requires_grad_() for each in leaves]
    expected, expected_last = walk(tuple(wide[:-1]), wide[-1], **options)
    assert y.dtype == dtype and y.shape == expected.shape and y.is_contiguous()
    weights = torch.linspace(0.5, 1.5, expected.numel(), dtype=torch.float64).view(expected.shape)
    total = (y.double() * weights.to(device)).sum() + last.double().sum()
    found = (y, last, *torch.autograd.grad(total, leaves))
    gradients = torch.autograd.grad((expected * weights).sum() + expected_last.sum(), wide)
    near = {torch.float64: 1e-6, torch.float32: 1e-4}.get(dtype, 2e-2)
    near = 1e-5 if dtype == torch.float64 else near  # the carries are given in float32
    for one, other in zip(found, (expected, expected_last, *gradients), strict=True):
        scale = max(1.0, float(other.detach().abs().max()))
        torch.testing.assert_close(one.detach().cpu().double() / scale, other / scale, rtol=0, atol=near)


@pytest.mark.parametrize("states", [1, 3, 4, 8, 16, 17, 64, 128])
@pytest.mark.parametrize("reverse", [False, True])
def test_states(states: int, reverse: bool, device: str) -> None:
    hold(states, 37, torch.float32, device, reverse=reverse)


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 63, 64, 65, 129, 300])
def test_lengths(length: int, device: str) -> None:
    hold(4, length, torch.float32, device)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype, device: str) -> None:
    hold(16, 70, dtype, device)


def test_it_is_the_sum_of_a_scan(device: str) -> None:
    """Over one dimension or several, in any order of dimensions, with a mask, without then and with several results."""
    make = torch.Generator().manual_seed(0)
    x, a = (torch.rand(2, 5, 3, 4, generator=make).to(device) for _ in range(2))
    w = torch.rand(5, 1, 4, generator=make).to(device)
    mask = torch.rand(2, 5, 1, 4, generator=make).to(device) > 0.3
    for dim, d in ((1, 0), (1, (0, 2)), (0, (1, -1)), (-1, [2])):
        options: dict[str, Any] = {"map": lambda a, x, w: (a, x * w), "mask": mask}
        y = scanops.scan((a, x, w), "linear", dim, **options)
        torch.testing.assert_close(scanops.scan((a, x, w), "linear", dim, sum=d, **options), y.sum(d))
        both = scanops.scan((a, x, w), "linear", dim, then=lambda h, a, x, w: (h * w, h - a), sum=d, **options)
        for one, other in zip(both, (y * w, y - a), strict=True):
            torch.testing.assert_close(one, other.sum(d))
        one = scanops.scan(
            (a, x, w),
            "linear",
            dim,
            then=lambda h, a, x, w: (h * w, h - a),
            finish=lambda y, a, x, w: y[0] * y[1],
            sum=d,
            **options,
        )
        torch.testing.assert_close(one, both[0] * both[1])
    torch.testing.assert_close(
        scanops.scan((a, x), "linear", 1, exclusive=True, sum=2), scanops.linear_scan(a, x, 1, exclusive=True).sum(2)
    )


def test_second_derivatives() -> None:
    tensors, initial = selective(3, 5)
    leaves = [each.requires_grad_() for each in (*tensors, initial.double())]

    def call(*leaves: torch.Tensor) -> Any:
        options = {"map": gate_and_item, "then": product, "sum": 2, "finish": gated}
        return scanops.scan(leaves[:-1], "linear", -1, initial=leaves[-1], return_final=True, **options)

    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)


def test_gradients_of_chunks_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The states of all lines are never there at once, forward or backward."""
    from scanops.fallback import summed

    monkeypatch.setattr(summed, "CHUNK_ITEMS", 1)
    sizes = []
    of_lines = summed._Lines.compute

    def compute(self: Any, operands: Tensors, carry: torch.Tensor, steps: int) -> Any:
        sizes.append(steps)
        return of_lines(self, operands, carry, steps)

    monkeypatch.setattr(summed._Lines, "compute", compute)
    for reverse in (False, True):
        hold(5, 3 * summed.CHUNK_STEPS + 5, torch.float32, reverse=reverse)
    assert max(sizes) == summed.CHUNK_STEPS and len(sizes) == 2 * (4 + 3 + 4)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_segments(exclusive: bool, reverse: bool, device: str) -> None:
    """By offsets, some of them empty, and by head flags; what stands before a boundary, inf or NaN, is not read."""
    make = torch.Generator().manual_seed(5)
    a, x = (torch.rand(2, 3, 50, generator=make, dtype=torch.float64).to(device).requires_grad_() for _ in range(2))
    start = torch.rand(2, 3, dtype=torch.float64).to(device)
    offsets = torch.tensor([0, 7, 7, 20, 21, 50], device=device)
    flags = torch.zeros(50, dtype=torch.bool, device=device)
    flags[offsets[1:-1]] = True
    own = torch.rand(2, 1, 50, generator=make).to(device) < 0.2
    options = {"reverse": reverse, "exclusive": exclusive, "return_final": True}
    for segments in (
        {"offsets": offsets},
        {"segment_starts": flags, "initial": start},
        {"segment_starts": own, "initial": start},
    ):
        y, last = scanops.scan((a, x), "linear", 2, sum=1, **segments, **options)
        expected, expected_last = scanops.linear_scan(a, x, 2, **segments, **options)
        torch.testing.assert_close((y, last), (expected.sum(1), expected_last))
        of = [
            torch.autograd.grad(h.square().sum() + c.sum(), (a, x))
            for h, c in ((y, last), (expected.sum(1), expected_last))
        ]
        torch.testing.assert_close(*of)
    with torch.no_grad():
        broken = x.detach().clone()
        broken[..., 25] = float("inf")
        broken[..., 10] = float("nan")
        y = scanops.scan((a, broken), "linear", 2, sum=1, offsets=offsets, exclusive=exclusive, reverse=reverse)
        expected = scanops.linear_scan(a, broken, 2, offsets=offsets, exclusive=exclusive, reverse=reverse).sum(1)
        torch.testing.assert_close(y, expected, equal_nan=True)
        assert y.isfinite().sum() > 20


def test_segments_of_offsets_take_no_carry_in() -> None:
    """It would be of each, where that beside head flags continues the line."""
    a, offsets = torch.rand(2, 4), torch.tensor([0, 1, 4])
    for start in (1.0, torch.tensor(1.0), torch.zeros(2)):
        with pytest.raises(UnsupportedRequest, match="initial beside offsets does not go with map"):
            scanops.scan((a, a), "linear", 1, sum=0, offsets=offsets, initial=start)


def test_lines_without_items() -> None:
    a, x = torch.rand(2, 3, 0, requires_grad=True), torch.rand(2, 3, 0, requires_grad=True)
    start = torch.rand(2, 3, requires_grad=True)
    y, last = scanops.scan((a, x), "linear", 2, sum=1, initial=start, return_final=True)
    assert y.shape == (2, 0)
    of_a, of_start = torch.autograd.grad(y.sum() + last.sum(), (a, start))
    assert of_a.shape == a.shape and of_start.eq(1).all() and last.equal(start)


def test_what_is_refused() -> None:
    a, x = torch.rand(2, 5, 300), torch.rand(2, 5, 300)
    both: dict[str, Any] = {"sum": 0}
    for call, what in (
        (lambda: scanops.scan((a, x), "linear", 1, sum=1), "sum=1"),
        (lambda: scanops.scan((a, x), "linear", 1, sum=(0, -3)), "sum=(0, -3)"),
        (lambda: scanops.scan((a, x), "linear", 1, sum=3), "sum=3"),
        (lambda: scanops.scan((a, x), "linear", 1, sum=True), "sum=True"),
        (lambda: scanops.scan((a, x), "linear", 1, sum=()), "sum=()"),
        (lambda: scanops.scan((a, x), "linear", 1, sum=2), "300 lines"),
        (lambda: scanops.scan((a, x), "sum", 1, map=lambda a, x: x, sum=0), "op='sum'"),
        (lambda: scanops.scan((a, x), "linear", 1, finish=lambda y, a, x: y), "finish without sum"),
        (lambda: scanops.scan((a, x), "linear", 1, finish=3, **both), "finish=3"),
        (lambda: scanops.scan((a, x), "linear", 1, finish=lambda y: y, **both), "finish"),
        (lambda: scanops.scan((a, x), "linear", 1, finish=lambda y, a, x: y * x, **both), "shape (2, 5, 300)"),
        (lambda: scanops.scan((a, x), "linear", 1, then=lambda h, a, x: h > 0, **both), "torch.bool"),
    ):
        assert what in str(refused(UnsupportedRequest, call)), what
    refused(DimensionOutOfRange, lambda: scanops.scan((a, x), "linear", 3, sum=0))


# ---- compilers, transforms and other modes of torch


def call(*leaves: torch.Tensor) -> Any:
    options = {"map": gate_and_item, "then": product, "sum": 2, "finish": gated}
    return scanops.scan(leaves[:-1], "linear", -1, initial=leaves[-1], return_final=True, **options)


def with_gradients(function: Any, leaves: Tensors) -> Tensors:
    y, last = function(*leaves)
    return (y, last, *torch.autograd.grad(y.square().sum() + last.sum(), leaves))


def make_leaves() -> Tensors:
    tensors, initial = selective(3, 40, torch.float32)
    return tuple(each.requires_grad_() for each in (*tensors, initial))


def test_compiled_and_exported(device: str) -> None:
    leaves = tuple(each.detach().to(device).requires_grad_() for each in make_leaves())
    expected = with_gradients(call, leaves)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for one, other in zip(with_gradients(compiled, leaves), expected, strict=True):
        torch.testing.assert_close(one, other)

    class Module(torch.nn.Module):
        def forward(self, *leaves: torch.Tensor) -> Any:
            return call(*leaves)

    plain = tuple(each.detach() for each in leaves)
    exported = torch.export.export(Module(), plain)
    assert [each.target for each in exported.graph.nodes].count(torch.ops.scanops.fused.default) == 1
    torch.testing.assert_close(exported.module()(*plain)[0], expected[0])


def test_batches(device: str) -> None:
    """Of all tensors, of some, of the carry-in alone, and of gradients."""
    leaves = tuple(each.detach().to(device) for each in make_leaves())
    twice = tuple(each * 0.5 for each in leaves)
    for places in (range(6), (1, 4), (5,)):
        given = [torch.stack([each, twice[at]]) if at in places else each for at, each in enumerate(leaves)]
        y, last = torch.vmap(call, in_dims=tuple(0 if at in places else None for at in range(6)))(*given)
        for at, source in enumerate((leaves, twice)):
            expected = call(*(source[k] if k in places else each for k, each in enumerate(leaves)))
            torch.testing.assert_close((y[at], last[at]), expected)
    leaves = tuple(each.requires_grad_() for each in leaves)
    y, _ = call(*leaves)
    given = torch.rand(2, *y.shape, device=device)
    together = torch.autograd.grad(y, leaves, given, is_grads_batched=True, retain_graph=True)
    for at, each in enumerate(given):
        torch.testing.assert_close(
            torch.autograd.grad(y, leaves, each, retain_graph=True), tuple(g[at] for g in together)
        )


def test_transforms(device: str) -> None:
    leaves = tuple(each.detach().to(device).requires_grad_() for each in make_leaves())
    y, last = call(*leaves)
    expected = torch.autograd.grad(y.sum() + last.sum(), leaves)
    plain = tuple(each.detach() for each in leaves)
    found = torch.func.grad(lambda *leaves: sum(each.sum() for each in call(*leaves)), tuple(range(6)))(*plain)
    torch.testing.assert_close(found, expected)
    tangent = torch.ones_like(plain[0])
    value = torch.func.jvp(lambda u: call(u, *plain[1:])[0].sum(), plain[:1], (tangent,))[1]
    torch.testing.assert_close(value, torch.autograd.grad(call(*leaves)[0].sum(), leaves[0])[0].sum())


@pytest.mark.parametrize("watched", ["forward", "backward", "both"])
def test_a_counter_in_one_pass_of_a_checkpoint(watched: str, kernels: str) -> None:
    """What a call saves does not depend on a mode: the recomputation saves the same."""
    leaves = tuple(each.detach().to(kernels).requires_grad_() for each in make_leaves())

    def counter(part: str) -> Any:
        return FlopCounterMode(display=False) if watched in (part, "both") else contextlib.nullcontext()

    with counter("forward"):
        y, last = checkpoint(call, *leaves, use_reentrant=False)
    with counter("backward"):
        found = torch.autograd.grad(y.square().sum() + last.sum(), leaves)
    for one, other in zip(found, with_gradients(call, leaves)[2:], strict=True):
        torch.testing.assert_close(one, other)
