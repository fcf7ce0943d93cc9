"""Scans with ``map`` and ``then`` by emulated kernels, and PyTorch's operators on the same functions in float64."""

from __future__ import annotations

import contextvars
import itertools
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings

import scanops
from scanops.runtime import call_cache

UNARY = (torch.tanh, torch.sigmoid, torch.sin, torch.square, torch.erf, torch.neg, torch.detach, F.softplus, F.silu)
UNARY += (lambda x: torch.exp(-x.abs()), lambda x: (x * x + 1).log() ** 1.5, lambda x: x.clamp(-1, 1) + x.floor())
UNARY += (lambda x: torch.where((x > 0.1) & ~(x >= 1), x * 2, 3.0), lambda x: x.to(torch.int32) * 0.25 + (x < 0))
BINARY = (torch.add, torch.mul, torch.maximum, lambda x, y: 1.5 - x / (2 + torch.cos(y)))
SHAPES: tuple[tuple[int, ...], ...] = ((7,), (3, 1), (32, 3), (2, 31), (2, 64), (1, 129), (2, 4097), (1, 70000))
SHAPES += ((2, 33, 5), (2, 300, 40), (1, 2100, 48))


@st.composite
def expressions(draw: Any, count: int, depth: int = 3) -> Any:
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        place = draw(st.integers(0, count - 1))
        return lambda *tensors: tensors[place]
    (one, other), both = (draw(expressions(count, depth - 1)) for _ in "ab"), draw(st.sampled_from((None, *BINARY)))
    of = draw(st.sampled_from(UNARY))
    return lambda *tensors: of(one(*tensors)) if both is None else both(one(*tensors), other(*tensors))


@given(data=st.data())
@settings(max_examples=16, phases=(Phase.generate,))
def test_random_expressions(data: st.DataObject) -> None:
    """Values, gradients, second derivatives of sums, products and recurrences, in rows and columns."""
    draw, flag, rest = data.draw, st.booleans(), torch.Generator().manual_seed(1)
    shape, op = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(("sum", "prod", "linear")))
    dim = draw(st.integers(-1, 0)) if max(shape) < 100 else min(1, len(shape) - 1)
    line = tuple(1 if d == dim % len(shape) else n for d, n in enumerate(shape))
    sizes = [shape, *draw(st.lists(st.sampled_from((shape, line, shape[-1:], ())), max_size=2))]
    dtype = draw(st.sampled_from((torch.bfloat16, torch.float32, torch.float64)))
    items = [torch.randn((*size, 2), generator=rest).to(dtype)[..., 0] for size in sizes]  # strided
    items = [(each.contiguous() if draw(flag) else each).requires_grad_() for each in items]
    wide = [each.detach().double().requires_grad_() for each in items]
    element, gate, out = (draw(expressions(n)) for n in (len(sizes), len(sizes), len(sizes) + 1))
    mask = torch.rand(shape, generator=rest) > 0.3 if draw(flag) else None
    options: dict[str, Any] = {"mask": mask, "reverse": draw(flag), "exclusive": draw(flag)}
    lines = [n for d, n in enumerate(shape) if d != dim % len(shape)]
    starts = [torch.rand(draw(st.sampled_from((lines, ()))), generator=rest).requires_grad_()] if draw(flag) else []
    leaves, others = [*items, *starts], [*wide, *(each.detach().double().requires_grad_() for each in starts)]

    def flat(found: Any, after: Any = lambda y: y) -> torch.Tensor:  # with the carry-out, which `then` does not see
        y, *final = found if starts else (found,)
        return torch.cat([each.double().flatten() for each in (after(y), *final)])

    def carried(leaves: Any) -> dict[str, Any]:
        return {**options, "initial": leaves[-1], "return_final": True} if starts else options

    def bounded(*items: Any) -> Any:  # products stay near 1
        x = 1 + torch.tanh(element(*items)) * 2 / max(shape) if op == "prod" else torch.tanh(element(*items))
        return (torch.sigmoid(gate(*items)), x) if op == "linear" else x

    then = lambda y, *items: torch.tanh(out(y * 0.1, *items)) + y * 0.125  # noqa: E731
    scan = {"sum": scanops.cumsum, "prod": scanops.cumprod, "linear": scanops.linear_scan}[op]
    made = bounded(*wide) if op == "linear" else (bounded(*wide),)
    exact = flat(scan(*(each.expand(shape) for each in made), dim, **carried(others)), lambda y: then(y, *wide))
    with scanops.emulate(seed=draw(st.integers(0, 9))):
        pairs = [(flat(scanops.scan(items, op, dim, map=bounded, then=then, **carried(leaves))), exact)]
        for again in (dtype == torch.float64, False):
            losses = [(one.double().square().sum(), of) for one, of in zip(pairs[-1], (leaves, others), strict=True)]
            if all(loss.requires_grad for loss, _ in losses):
                found = [torch.autograd.grad(*each, create_graph=again, materialize_grads=True) for each in losses]
                pairs += zip(*found, strict=True)
    for one, other in pairs:
        scale = max(1.0, float(other.detach().abs().max())) * (250 if dtype == torch.bfloat16 else 1)
        torch.testing.assert_close(one.double() / scale, other.double() / scale, rtol=0, atol=2e-4)


@pytest.mark.parametrize("op", ["sum", "prod", "linear"])
def test_a_gradient_takes_two_kernels_at_most(op: str) -> None:
    x, w = torch.rand(3, 40, requires_grad=True), torch.rand(40, requires_grad=True)
    start = torch.rand(3, requires_grad=True)
    bounded = lambda x, w: (x.sigmoid(), x * w) if op == "linear" else x * w  # noqa: E731
    with scanops.emulate(), scanops.record() as used:
        y, final = scanops.scan(
            (x, w), op, 1, map=bounded, then=lambda y, x, w: y * x, initial=start, return_final=True
        )
        (y.sum() + final.sum()).backward()
    assert sum(used.counts.values()) <= 3


EXACT = (
    (F.softplus, F.silu, lambda x: (x / 7).floor() + x / 3 + (x.clamp(-99, 99) / 3).int(), lambda x: 1.5 / x),
    (torch.tanh, torch.exp, torch.log, torch.rsqrt),
)
EXACT += ((torch.sqrt, torch.sigmoid, torch.exp2, torch.log2),)


def walk(gate: torch.Tensor, x: torch.Tensor, *, reverse: bool, exclusive: bool) -> torch.Tensor:
    """A recurrence along dimension 1, item by item."""
    h, results = torch.zeros_like(x[:, 0]), [x[:, 0]] * x.shape[1]
    for i in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
        before, h = h, gate[:, i] * h + x[:, i]
        results[i] = before if exclusive else h
    return torch.stack(results, 1)


SAVED = list(
    itertools.product(
        ((3, 31), (2, 700), (2, 150, 12), (1, 300, 64)), ({}, {"reverse": True}, {"exclusive": True}), (False, True)
    )
)


@pytest.mark.parametrize(
    ("shape", "direction", "weighs", "dtype"),
    [(*each, (torch.float32, torch.bfloat16)[(at // 2 + at) % 2]) for at, each in enumerate(SAVED)],
    ids=str,
)
def test_states_that_were_saved(
    shape: tuple[int, ...], direction: dict[str, bool], weighs: bool, dtype: torch.dtype
) -> None:
    """The kernel of the gradient reads the states before its items where the forward kernel has written them."""
    g = torch.Generator().manual_seed(3)
    leaves = tuple(torch.randn(shape, generator=g).to(dtype).requires_grad_() for _ in range(2))
    given = torch.randn(shape, generator=g).to(dtype)
    then = (lambda y, g, x: y * torch.sigmoid(x)) if weighs else None
    with scanops.emulate(), scanops.record() as used:
        options = {"map": lambda g, x: (torch.sigmoid(g), x), "then": then, **direction}
        found = torch.autograd.grad(scanops.scan(leaves, "linear", 1, **options), leaves, given)
    assert len(used.counts) == 2
    wide = tuple(each.detach().double().requires_grad_() for each in leaves)
    y = walk(torch.sigmoid(wide[0]), wide[1], **{"reverse": False, "exclusive": False, **direction})
    expected = torch.autograd.grad(then(y, *wide) if then else y, wide, given.double())
    near = 4e-2 if dtype == torch.bfloat16 else 1e-5
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=near, atol=near * float(other.abs().max()))


def test_repeated_passes_take_the_kernels_of_the_first() -> None:
    """The states that the first call saved are saved by every call: no kernel is added that computes them again."""
    leaves = tuple(torch.rand((2, 300, 8), requires_grad=True) for _ in range(2))
    asked, passes = [], []
    with scanops.emulate():
        for _ in range(3):
            y = scanops.scan(leaves, "linear", 1, map=lambda g, x: (torch.sigmoid(g), x))
            passes.append(torch.autograd.grad(y.square().sum(), leaves))
            asked.append(len(call_cache.CALLS))
    assert asked == asked[:1] * 3
    for each in passes[1:]:
        assert all(map(torch.equal, each, passes[0]))


def test_states_that_were_saved_have_second_derivatives() -> None:
    g = torch.Generator().manual_seed(4)
    leaves = tuple(torch.randn((2, 40), generator=g, dtype=torch.float64).requires_grad_() for _ in range(2))

    def twice(scan: Any) -> tuple[torch.Tensor, ...]:
        first = torch.autograd.grad(scan(*leaves).sin().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in first), leaves)

    with scanops.emulate():
        found = twice(lambda g, x: scanops.scan((g, x), "linear", 1, map=lambda g, x: (torch.sigmoid(g), x)))
    expected = twice(lambda g, x: walk(torch.sigmoid(g), x, reverse=False, exclusive=False))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("functions", EXACT)
def test_functions_are_as_exact_as_the_dtype(functions: tuple[Any, ...], dtype: torch.dtype) -> None:
    """Over all magnitudes: to 3 ulp of float32, to one of half types; a subnormal sigmoid may be 0, within silu too."""
    great = torch.logspace(-40, 38, 300, dtype=torch.float64)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])
    x = torch.cat([great, -great, torch.linspace(-100, 100, 4001), special]).to(dtype)[:, None]
    with scanops.emulate():
        found = scanops.scan(x, "sum", 1, map=lambda x: x, then=lambda y, x: tuple(f(x) for f in functions))
    tiny = 2e-36 if dtype != torch.float16 else torch.finfo(dtype).tiny
    for y, f in zip(found, functions, strict=True):
        rtol = torch.finfo(dtype).eps * (3 if dtype == torch.float32 else 1.01)
        torch.testing.assert_close(y, f(x.double()).to(dtype), rtol=rtol, atol=tiny, equal_nan=True)


@pytest.mark.parametrize("op", ["sum", "prod", "linear"])
@pytest.mark.parametrize("reverse", [False, True])
def test_segments(op: str, reverse: bool, device: str) -> None:
    """By offsets and by head flags, with carries and gradients, as of a scan of what the functions compute."""
    g, shape = torch.Generator().manual_seed(2), (2, 70)
    x, w = (
        (torch.rand(shape, generator=g) * 0.5 + 0.7).double().to(device).requires_grad_(),
        torch.full((1,), 0.9, dtype=torch.float64, device=device, requires_grad=True),
    )
    start = torch.rand(2, generator=g).double().to(device).requires_grad_()
    made = lambda x, w: (x * w, x) if op == "linear" else x * w  # noqa: E731
    offsets = torch.tensor([0, 5, 5, 35, 36, 70], device=device)
    own = (torch.rand(shape, generator=g) < 0.1).to(device)
    for segments in ({"offsets": offsets}, {"segment_starts": own}):
        options = {"return_final": True, "reverse": reverse, **segments}
        options |= {} if "offsets" in segments else {"initial": start}
        leaves = (x, w) if "offsets" in segments else (x, w, start)

        def compute(apart: bool, options: Any = options, leaves: Any = leaves) -> tuple[torch.Tensor, ...]:
            if not apart:
                (first, second), final = scanops.scan(
                    (x, w), op, 1, map=made, then=lambda y, x, w: (y * x, y), **options
                )
            else:
                call = scanops.linear_scan(*made(x, w), 1, **options) if op == "linear" else None
                second, final = call or scanops.scan(made(x, w), op, 1, **options)
                first = second * x
            total = first.sum() + second.square().sum() + final.sum()
            return first, second, final, *torch.autograd.grad(total, leaves)

        expected = contextvars.Context().run(compute, True)  # outside scanops.emulate()
        torch.testing.assert_close(compute(False), expected)
    compiled = torch.compile(
        lambda x, w, offsets: scanops.scan((x, w), op, 1, map=made, offsets=offsets),
        backend="aot_eager",
        fullgraph=True,
    )
    torch.testing.assert_close(compiled(x, w, offsets), scanops.scan((x, w), op, 1, map=made, offsets=offsets))
