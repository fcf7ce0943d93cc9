"""Scans with ``map`` and ``then``: one kernel, compared with PyTorch's operators on the same functions in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings

import scanops

Function = Callable[..., Any]
UNARY: dict[str, Function] = {  # smooth almost everywhere, of about 1 for arguments of about 1
    **{name: getattr(torch, name) for name in ("tanh", "sigmoid", "sin", "cos", "erf", "square", "neg", "detach")},
    "exponentials": lambda x: torch.exp(x.clamp(-2, 1)) + torch.exp2(-x.abs()) + x.clamp(max=1.0).expm1(),
    "logarithms": lambda x: (x * x + 1).log() + torch.log2(x.abs() + 0.5) + torch.log1p(F.relu(x)),
    "roots": lambda x: (1 + x * x).sqrt() - torch.rsqrt(2 - torch.cos(x)) + (x.abs() + 1).reciprocal() ** 0.5,
    "pow": lambda x: (x**2 + 1) ** 1.5 + x**3 + 1 / (2 + torch.sin(x)),
    "softplus": lambda x: F.softplus(x) + F.softplus(x, beta=2.0, threshold=3) + F.silu(x) - F.logsigmoid(x),
    "where": lambda x: torch.where((x > 0.1) & ~(x >= 1) | (x == 2), x * 2, 3.0).masked_fill(x < -1, 0.25),
    "logical": lambda x: torch.logical_xor(x > 0, x != x).to(x.dtype) + torch.isnan(x) + torch.logical_not(x < 1),
    "floor": lambda x: torch.floor(3 * x) / 3 + x.clamp_min(-0.5) - x.clip(-1, 2) * 0.5,
    "cast": lambda x: x.to(torch.int32).float() + (x > 0).double().to(x.dtype) + (4 * x).long() * 0.25,
}
BINARY: tuple[Function, ...] = (
    lambda x, y: torch.sub(1.5 * x, y, alpha=0.5) + x * y,
    lambda x, y: x / (2 + torch.cos(y)) + (x.abs() + 0.5) ** y.tanh(),
    lambda x, y: torch.maximum(x, y) - torch.minimum(x, y.clamp(max=0.7)) + torch.clamp(x, min=-y.abs(), max=y.abs()),
)


@st.composite
def expressions(draw: st.DrawFn, count: int, depth: int = 3) -> Function:
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        place = draw(st.integers(0, count - 1))
        return lambda *tensors: tensors[place]
    first, second = draw(expressions(count, depth - 1)), draw(expressions(count, depth - 1))
    of, both = UNARY[draw(st.sampled_from(sorted(UNARY)))], draw(st.sampled_from(BINARY))
    one = draw(st.booleans())
    return lambda *tensors: of(first(*tensors)) if one else both(first(*tensors), second(*tensors))


def wanted(op: str, tensors: Any, dim: int, map: Function, then: Function, **options: Any) -> torch.Tensor:
    """The same, by ordinary scans that PyTorch computes."""
    made, shape = map(*tensors), torch.broadcast_shapes(*(each.shape for each in tensors))
    gated = (made[0].expand(shape), made[1].expand(shape)) if op == "linear" else ()
    y = scanops.linear_scan(*gated, dim, **options) if gated else scanops.scan(made.expand(shape), op, dim, **options)
    return then(y, *tensors)  # type: ignore[no-any-return]


SHAPES = (
    (7,),
    (3, 1),
    (32, 3),
    (2, 31),
    (2, 64),
    (1, 129),
    (2, 4097),
    (1, 70000),
    (2, 33, 5),
    (2, 300, 40),
    (1, 2100, 48),
)


@given(data=st.data())
@settings(max_examples=24, phases=(Phase.generate,))
def test_random_expressions(data: st.DataObject) -> None:
    """Values, gradients, second derivatives of sums, products and recurrences, in rows and columns."""
    draw = data.draw
    shape, op = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(("sum", "prod", "linear")))
    dim = draw(st.integers(-1, 0)) if max(shape) < 100 else min(1, len(shape) - 1)
    dtype = draw(st.sampled_from((torch.float32, torch.float64, torch.bfloat16)))
    rest = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    line = tuple(1 if d == dim % len(shape) else n for d, n in enumerate(shape))
    sizes = [shape, *draw(st.lists(st.sampled_from((shape, line, shape[-1:], ())), max_size=2))]
    tensors = [torch.randn((*size, 2), generator=rest).to(dtype)[..., 0] for size in sizes]  # strided
    tensors = [(each.contiguous() if draw(st.booleans()) else each).requires_grad_() for each in tensors]
    element, gate, out = (draw(expressions(n)) for n in (len(sizes), len(sizes), len(sizes) + 1))
    options = {name: draw(st.booleans()) for name in ("mask", "reverse", "exclusive")}
    options["mask"] = torch.rand(shape, generator=rest) > 0.3 if options["mask"] else None

    def bounded(*tensors: Any) -> Any:  # products stay near 1
        x = 1 + torch.tanh(element(*tensors)) * 2 / max(shape) if op == "prod" else torch.tanh(element(*tensors))
        return (torch.sigmoid(gate(*tensors)), x) if op == "linear" else x

    def then(y: Any, *tensors: Any) -> Any:
        return torch.tanh(out(y * 0.1, *tensors)) + y * 0.125

    wide = [each.detach().double().requires_grad_() for each in tensors]
    expected, half = wanted(op, wide, dim, bounded, then, **options), dtype == torch.bfloat16
    weights = torch.linspace(0.5, 1.5, expected.numel(), dtype=torch.float64).view(shape)
    with scanops.emulate(seed=draw(st.integers(0, 9))):
        y = scanops.scan(tensors, op, dim, map=bounded, then=then, **options)
        pairs = [(y, expected)]
        both: dict[str, Any] = {"create_graph": dtype == torch.float64, "materialize_grads": True}
        if expected.requires_grad and (dtype == torch.float64 or draw(st.booleans())):
            ways = ((y, tensors, weights.to(dtype)), (expected, wide, weights))
            found, exact = (torch.autograd.grad(*given, **both) for given in ways)
            pairs += zip(found, exact, strict=True)
            if all(each.requires_grad for each in (*found, *exact)):
                sums = [(sum(map(torch.sum, some)), of) for some, of in ((found, tensors), (exact, wide))]
                pairs += zip(*(torch.autograd.grad(*each, materialize_grads=True) for each in sums), strict=True)
    for one, other in pairs:
        scale = max(1.0, float(other.detach().abs().max()))
        torch.testing.assert_close(one.double() / scale, other / scale, rtol=0, atol=5e-2 if half else 2e-4)


def test_every_operation(device: str) -> None:
    """All of them in one kernel, and their derivatives in another; beside infinities and NaN their values."""
    every = lambda x: sum((n + 1) / 9 * of(x) for n, of in enumerate(UNARY.values()))  # noqa: E731
    x = torch.linspace(-3, 3, 97, device=device, requires_grad=True)
    wide, odd = x.detach().double().requires_grad_(), torch.tensor([torch.inf, -torch.inf, torch.nan], device=device)
    pairs = ((scanops.scan(x, "sum", 0, map=every), x), (every(wide).cumsum(0), wide))
    found, exact = ([y, *torch.autograd.grad(y.sum(), of)] for y, of in pairs)
    torch.testing.assert_close([each.double() for each in found], exact, rtol=1e-4, atol=1e-3)
    for of in (torch.relu, torch.sigmoid, torch.log1p, lambda x: x.clamp(min=0.5)):
        torch.testing.assert_close(scanops.scan(odd, "max", 0, then=lambda _, x, of=of: of(x)), of(odd), equal_nan=True)


def test_other_operators_dtypes_and_routes(device: str) -> None:
    """Integers wrap and widen, operators without a fused gradient, transforms, no items."""
    n = torch.arange(40, device=device, dtype=torch.int32) * 2**30
    y, last = scanops.scan((n, n % 7), "sum", 0, map=lambda n, m: n * 3 + m, then=lambda y, n, m: (y, y > n))
    assert torch.equal(y, (n * 3 + n % 7).cumsum(0)) and torch.equal(last, y > n)
    x, w = torch.rand(2, 40, device=device), torch.rand(40, device=device, requires_grad=True)
    found, exact = scanops.scan((x, w), "logcumsumexp", 1, map=torch.mul), torch.logcumsumexp(x * w, 1)
    torch.testing.assert_close(*([each, *torch.autograd.grad(each.sum(), w)] for each in (found, exact)))
    fused = lambda x: scanops.scan((x, w), "sum", -1, map=torch.mul, then=lambda y, x, w: y - x)  # noqa: E731
    torch.testing.assert_close(torch.vmap(fused)(x), (x * w).cumsum(1) - x)
    torch.testing.assert_close(torch.func.jvp(fused, (x,), (x,))[1], (x * w).cumsum(1) - x)
    assert scanops.scan((x[:, :0], w[:0]), "sum", 1, map=torch.mul).shape == (2, 0)
