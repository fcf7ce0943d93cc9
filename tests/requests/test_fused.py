"""Scans with ``map`` and ``then``: one kernel, compared with PyTorch's operators on the same functions in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings

import scanops
from scanops.errors import UnsupportedRequest
from scanops.runtime import calls

Function = Callable[..., Any]
SCALE = 0.5
UNARY: dict[str, Function] = {  # smooth, with values and derivatives of about 1 for arguments of about 1
    **{name: getattr(torch, name) for name in ("tanh", "sigmoid", "sin", "cos", "erf", "square", "neg", "detach")},
    "exponentials": lambda x: torch.exp(x.clamp(-2, 1)) + torch.exp2(-x.abs()) + x.clamp(max=1.0).expm1(),
    "logarithms": lambda x: (x * x + 1).log() + torch.log2(x.abs() + 0.5) + torch.log1p(F.relu(x)),
    "roots": lambda x: (1 + x * x).sqrt() - torch.rsqrt(2 - torch.cos(x)),
    "pow": lambda x: (x**2 + 1) ** 1.5 + x**3 + (x.abs() + 1) ** 0.5,
    "softplus": lambda x: F.softplus(x) + F.softplus(x, beta=2.0, threshold=3) + F.silu(x) - F.logsigmoid(x),
    "reciprocal": lambda x: 1 / (2 + torch.sin(x)) + (x.abs() + 1).reciprocal(),
    "where": lambda x: torch.where((x > 0.1) & ~(x >= 1) | (x == 2), x * 2, 3.0).masked_fill(x < -1, 0.25),
    "logical": lambda x: torch.logical_xor(x > 0, x != x).to(x.dtype) + torch.isnan(x) + torch.logical_not(x < 1),
    "floor": lambda x: torch.floor(3 * x) / 3 + x.clamp_min(-0.5) - x.clip(-1, 2) * 0.5,
    "cast": lambda x: x.to(torch.int32).float() + (x > 0).double().to(x.dtype) + (4 * x).long() * 0.25,
}
BINARY: dict[str, Function] = {
    "add": lambda x, y: x + 0.5 * y,
    "sub": lambda x, y: 1.5 - torch.sub(x, y, alpha=0.5),
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / (2 + torch.cos(y)),
    "maximum": torch.maximum,
    "minimum": lambda x, y: torch.minimum(x, y.clamp(max=0.7)),
    "clamp": lambda x, y: torch.clamp(x, min=-y.abs(), max=y.abs()),
}
BINARY |= {"pow": lambda x, y: (x.abs() + 0.5) ** y.tanh()}


@st.composite
def expressions(draw: st.DrawFn, count: int, depth: int = 3) -> Function:
    """A function of ``count`` tensors."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        place = draw(st.integers(0, count - 1))
        return lambda *tensors: tensors[place]
    first = draw(expressions(count, depth - 1))
    if draw(st.booleans()):
        of = UNARY[draw(st.sampled_from(sorted(UNARY)))]
        return lambda *tensors: of(first(*tensors))
    both, second = BINARY[draw(st.sampled_from(sorted(BINARY)))], draw(expressions(count, depth - 1))
    return lambda *tensors: both(first(*tensors), second(*tensors))


def wanted(
    op: str, given: Any, dim: int, map: Function, then: Function, keep: Any, reverse: bool, exclusive: bool
) -> Any:
    """The same item by item; one that is masked out changes nothing."""
    made, shape = map(*given), torch.broadcast_shapes(*(each.shape for each in given))
    gates, terms = (each.expand(shape) for each in (made if op == "linear" else (made, made)))
    h = torch.full_like(terms.select(dim, 0), op == "prod")
    results, places = {}, range(shape[dim])
    for i in reversed(places) if reverse else places:
        before, g, t = h, gates.select(dim, i), terms.select(dim, i)
        h = torch.where(keep.select(dim, i), h + t if op == "sum" else h * t if op == "prod" else g * h + t, h)
        results[i] = before if exclusive else h
    return then(torch.stack([results[i] for i in places], dim), *given)


SHAPES = (
    ((3, 1), 1),
    ((2, 31), -1),
    ((32, 3), 0),
    ((2, 33, 5), 1),
    ((2, 64), 1),
    ((1, 129), 1),
    ((2, 70, 8), 1),
    ((7,), 0),
)


@given(data=st.data())
@settings(max_examples=24, phases=(Phase.generate,))
def test_random_expressions(data: st.DataObject) -> None:
    """Values, gradients and second derivatives of sums, products and recurrences, which do not commute."""
    draw = data.draw
    (shape, dim), op = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(("sum", "prod", "linear")))
    dtype = draw(st.sampled_from((torch.float32, torch.float64, torch.bfloat16)))
    rest = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    cuts = (shape, shape[-1:], (), tuple(1 if d == dim % len(shape) else n for d, n in enumerate(shape)))
    sizes = [shape, *draw(st.lists(st.sampled_from(cuts), max_size=2))]
    given = [torch.randn(size, generator=rest).to(dtype) for size in draw(st.permutations(sizes))]
    element, gate, out = (draw(expressions(n)) for n in (len(given), len(given), len(given) + 1))
    keep, masked = torch.rand(shape, generator=rest) > 0.3, draw(st.booleans())

    def bounded(*tensors: Any) -> Any:  # products stay near 1
        x = torch.tanh(element(*tensors)) * (1 if op == "sum" else 0.2) + (op == "prod")
        return (torch.sigmoid(gate(*tensors)), x) if op == "linear" else x

    def then(y: Any, *tensors: Any) -> Any:
        return torch.tanh(out(y * 0.1, *tensors)) + y * 0.125

    options = {"reverse": draw(st.booleans()), "exclusive": draw(st.booleans())}
    with scanops.emulate(seed=draw(st.integers(0, 9))):
        tensors = [each.clone().requires_grad_() for each in given]
        y = scanops.scan(tensors, op, dim, map=bounded, then=then, mask=keep if masked else None, **options)
        wide = [each.double().requires_grad_() for each in given]
        expected = wanted(op, wide, dim, bounded, then, keep | (not masked), **options)
        size, half = expected.shape, dtype == torch.bfloat16
        near: dict[str, float] = {"rtol": 2e-2 if half else 2e-4, "atol": 3e-2 if half else 2e-5 * max(1, size[dim])}
        torch.testing.assert_close(y.double(), expected, **near)
        if not expected.requires_grad or (dtype != torch.float64 and draw(st.booleans())):
            return
        weights = torch.linspace(0.5, 1.5, y.numel(), dtype=torch.float64).view(size)
        found = torch.autograd.grad(y, tensors, weights.to(dtype), create_graph=not half, materialize_grads=True)
        exact = torch.autograd.grad(expected, wide, weights, create_graph=True, materialize_grads=True)
        for one, other in zip(found, exact, strict=True):
            scale = max(1.0, float(other.detach().abs().max()))
            torch.testing.assert_close(one.double() / scale, other / scale, rtol=0, atol=5e-2 if half else 2e-4)
        if dtype == torch.float64 and all(each.requires_grad for each in (*found, *exact)):
            pairs = zip(*(torch.autograd.grad(sum(each.sum() for each in some), of, materialize_grads=True)
                          for some, of in ((found, tensors), (exact, wide))), strict=True)  # fmt: skip
            for one, other in pairs:
                torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7 * max(1.0, float(other.abs().max())))


@pytest.mark.parametrize("names", [sorted(UNARY)[at : at + 4] for at in range(0, len(UNARY), 4)], ids=str)
def test_each_operation(device: str, names: list[str]) -> None:
    """Up to four outputs of one kernel, their gradients, and beside NaN their values."""
    x = torch.linspace(-3, 3, 97, device=device, requires_grad=True)
    functions = [UNARY[name] for name in names]
    y = scanops.scan(x, "sum", 0, then=lambda _, x: tuple(of(x) for of in functions))
    wide = x.detach().double().requires_grad_()
    pairs = [(one, of(wide)) for one, of in zip(y if len(names) > 1 else (y,), functions, strict=True)]
    for one, other in pairs:
        torch.testing.assert_close(one, other.to(one.dtype), rtol=1e-5, atol=1e-5)
    found, exact = (torch.autograd.grad(sum(pair[n].sum() for pair in pairs if pair[1].requires_grad), of)[0]
                    for n, of in ((0, x), (1, wide)))  # fmt: skip
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)
    odd = torch.tensor([math.nan, math.inf, -math.inf, 0.0], device=device)
    y = scanops.scan(odd, "sum", 0, then=lambda _, x: tuple(of(x) for of in functions))
    for one, of in zip(y if len(names) > 1 else (y,), functions, strict=True):
        if "cast" not in names:  # of NaN to an integer, which C++ leaves open
            torch.testing.assert_close(one, of(odd).to(one.dtype), equal_nan=True)


PLANS = {  # (shape, dim) by the strategy that scans it
    **{"staged": ((5, 12), 1), "warp": ((3, 6, 100), 2), "block": ((2, 4097), 1), "split": ((1, 70000), 1)},
    **{"wave": ((140, 40000), 1), "columns": ((3, 300, 40), 1), "panels": ((1, 2100, 48), 1)},
}


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("strategy", PLANS)
def test_strategies(strategy: str, reverse: bool) -> None:
    """Each strategy reads further operands, dense, of one item for a line and strided, and writes further outputs."""
    shape, dim = PLANS[strategy]
    rest = torch.Generator().manual_seed(1)
    x, strided = torch.rand(shape, generator=rest), torch.rand((*shape, 2), generator=rest)[..., 0]
    strided = strided.contiguous() if strategy in ("staged", "panels") else strided
    line = torch.rand([1 if d == dim and strategy != "staged" else n for d, n in enumerate(shape)], generator=rest)
    with scanops.emulate():
        calls.forget()
        then = lambda y, x, a, s: (y * 1e-3 + s, (x < a).to(torch.int8))  # noqa: E731
        options: dict[str, Any] = {"map": lambda x, a, s: x * a - s, "then": then, "exclusive": reverse}
        y, z = scanops.scan((x, line, strided), "sum", dim, reverse=reverse, **options)
        (launcher,) = calls.FUSED.values()
    assert launcher.kernel.plan.strategy == strategy
    terms = x.double() * line - strided
    sums = terms.flip(dim).cumsum(dim).flip(dim) - terms if reverse else terms.cumsum(dim)
    torch.testing.assert_close(y.double(), sums * 1e-3 + strided, rtol=1e-4, atol=1e-5)
    assert torch.equal(z, (x < line).to(torch.int8).expand(shape))


def test_other_operators_dtypes_and_routes(device: str) -> None:
    """Integers wrap and widen, an operator of the user's, one without a fused gradient, transforms, no items."""
    n = torch.arange(40, device=device, dtype=torch.int32)
    y, last = scanops.scan((n, n % 7), "sum", 0, map=lambda n, m: n * (2**30) + m, then=lambda y, n, m: (y, y > n))
    terms = n * (2**30) + n % 7
    assert torch.equal(y, terms.cumsum(0)) and y.dtype == torch.int64 and torch.equal(last, y > n)
    x, w = torch.rand(2, 40, device=device), torch.rand(40, device=device, requires_grad=True)
    for op, alike in (("logcumsumexp", torch.logcumsumexp), ("max", lambda t, dim: t.cummax(dim)[0])):
        y = scanops.scan((x, w), op, 1, map=torch.mul)
        torch.testing.assert_close(y, alike(x * w, 1))
        found, exact = (torch.autograd.grad(each.sum(), w)[0] for each in (y, alike(x * w, 1)))
        torch.testing.assert_close(found, exact)
    batch = torch.vmap(lambda x: scanops.scan((x, w), "sum", 0, map=torch.mul, then=lambda y, x, w: y - x))(x)
    torch.testing.assert_close(batch, (x * w).cumsum(1) - x)
    tangent = torch.func.jvp(lambda x: scanops.scan(x, "sum", 1, map=torch.exp), (x,), (x,))[1]
    torch.testing.assert_close(tangent, (x * x.exp()).cumsum(1))
    assert scanops.scan((x[:, :0], w[:0]), "sum", 1, map=torch.mul).shape == (2, 0)
    assert scanops.scan(x.half(), "sum", 1, map=torch.exp, dtype=torch.float64).dtype == torch.float64


def test_constants_are_part_of_an_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed closure, global, default or attribute is seen; equal expressions share a kernel and are traced once."""
    x, scale, box = torch.rand(20), 2.0, type("Box", (), {"scale": 2.0})()
    functions = (lambda x: x * scale, lambda x: x * SCALE, lambda x, a=3.0: x * a, lambda x: x * box.scale)
    with scanops.emulate():
        for function in functions:
            torch.testing.assert_close(scanops.scan(x, "sum", 0, map=function), function(x).cumsum(0))
        scale, box.scale = 5.0, 7.0
        monkeypatch.setitem(globals(), "SCALE", -1.0)
        for function in functions:
            torch.testing.assert_close(scanops.scan(x, "sum", 0, map=function), function(x).cumsum(0))
        calls.forget()
        for function in [lambda x: x * 11.0 + 1, lambda y: 1 + y * 11] * 3:
            scanops.scan(x, "sum", 0, map=lambda x, of=function: of(x))
        plain = lambda x: x - 0.5  # noqa: E731
        for _ in range(3):
            scanops.scan(x, "sum", 0, map=plain)
    assert len(calls.FUSED) == 3


X, Y = torch.ones(2, 3), torch.ones(3)
BAD: tuple[tuple[Any, ...], ...] = (  # tensors, operator, functions and options, words of the error
    (X, "sum", {"map": torch.fft.fft}, "fft_fft is not supported"),
    (X, "sum", {"map": lambda x: x.cumsum(1)}, "cumsum is not supported", "line ", "test_fused.py"),
    (X, "sum", {"map": lambda x: x if x > 0 else -x}, "a branch that depends on values", "torch.where"),
    (X, "sum", {"map": lambda x: x[0]}, "indices, lengths and iteration", "pointwise"),
    (X, "sum", {"map": lambda x: x + Y}, "a tensor that is not an argument", "one more tensor"),
    (X.int(), "sum", {"map": lambda x: x**5}, "pow of integers", "line "),
    ((X, Y), "sum", {"map": lambda x: x}, "map does not take 2 arguments", "parameter for each"),
    (X, "sum", {"then": lambda y: y}, "then does not take 2 arguments", "a first one"),
    (X, "sum", {"map": lambda x: None}, "map must return values", "None"),
    (X, "linear", {"map": torch.exp}, "map must give a pair of a gate and a value", "1 values"),
    (X, "sum", {"then": lambda y, x: (y,) * 5}, "then must give 1 to 4 values", "5 values"),
    ((X, torch.ones(4)), "sum", {"map": torch.mul}, "the tensors must broadcast", "(2, 3), (4,)"),
    ([X] * 9, "sum", {"map": lambda *x: x[0]}, "reads 1 to 8 tensors", "9 tensors"),
    ((X, Y), "sum", {}, "several tensors need a map", "2 tensors"),
    (X, "sum", {"map": 3}, "map must be a function", "map=3"),
    (X + 0j, "sum", {"map": torch.exp}, "tensor 0 must be real", "complex64"),
    (X, "sum", {"map": torch.exp, "mask": X}, "mask must be bool", "torch.float32"),
    (X, "sum", {"map": torch.exp, "offsets": Y}, "offsets does not go with map", "mask, reverse"),
    (X, "cummax", {"map": torch.exp}, "'cummax' needs another call", "scanops.cummax"),
    (X, "sum", {"map": torch.exp, "dim": 2}, "dim must be from -2 to 1"),
)


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[3])
def test_refusals(case: tuple[Any, ...]) -> None:
    """Each error names what is wrong, the operation and its line where it is one, and the next step."""
    given, op, options, *words = case
    with pytest.raises(UnsupportedRequest) as caught:
        scanops.scan(given, op, **{"dim": 1, **options})
    assert all(word in str(caught.value) for word in words)
