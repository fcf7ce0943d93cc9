"""Gradients where a formula has its corners, and the kernels of gradients in every strategy."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import grad
from torch.testing import assert_close
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import scanops
from scanops.codegen.operators import GRADIENTS
from scanops.ops import schema
from scanops.requests.call import Call
from tests.numbers.oracle import call, walked
from tests.requests.test_derivatives import leaf

func = torch.func


def scanned(op: str, x: torch.Tensor, a: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    """The values of a scan along the last dimension."""
    return call(x, op, -1, gate=a, **options)[0]


def item_by_item(op: str, x: torch.Tensor, a: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    return walked(op, x, a=a, **options)[0]


def twice(total: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> list[torch.Tensor]:
    """The gradient of one number, and that of the gradient's sum of squares."""
    leaves = tuple(each.detach().requires_grad_() for each in tensors)
    first = grad(total(*leaves), leaves, create_graph=True)
    squares = torch.stack([each.square().sum() for each in first]).sum()
    second = grad(squares, leaves, materialize_grads=True) if squares.requires_grad else ()
    return [each.detach() for each in (*first, *second)]


CONSTANTS = torch.arange(1, 10).reshape(3, 3)
Scan = Callable[..., torch.Tensor]
# Of one square matrix: a scan along rows, and the same item by item.
ROLES: dict[str, Callable[[Scan, torch.Tensor], torch.Tensor]] = {
    "weights of constants": lambda scan, x: scan("sum", x.detach() / 2, mask=x),
    "weights of whole numbers": lambda scan, x: scan("prod", CONSTANTS.to(x.device), mask=x[0]),
    "weights of complex items": lambda scan, x: scan("prod", torch.complex(x, -x).detach(), mask=x).real,
    "items with complex weights": lambda scan, x: scan("sum", x, mask=torch.complex(x, x.t()).detach()).real,
    "logarithms with complex weights": lambda scan, x: scan("logcumsumexp", x, mask=torch.complex(x, x).detach()).real,
    "items and weights": lambda scan, x: scan("prod", x, mask=x),
    "items and weights, transposed": lambda scan, x: scan("sum", x, mask=x.t()),
    "gates, items and carries": lambda scan, x: scan("linear", x, x, initial=x[0]),
    "gates, items and carries, transposed": lambda scan, x: scan("linear", x, x.t(), initial=x[:, 1]),
    "gates of one row": lambda scan, x: scan("linear", x, x[0], reverse=True),
    "gates of lines": lambda scan, x: scan("linear", x, x[:, :1], initial=x[1]),
    "one gate": lambda scan, x: scan("linear", x, x[0, 0]),
    "items of one row": lambda scan, x: scan("linear", x[:1], x, initial=x[1], reverse=True),
    "items of lines": lambda scan, x: scan("linear", x[:, 1:2], x),
    "one item": lambda scan, x: scan("linear", x[2, 2], x, reverse=True),
    "items of lines, gates of one row": lambda scan, x: scan("linear", x[:, :1], x[0]),
}


@pytest.mark.parametrize("name", ROLES)
def test_a_tensor_in_unusual_roles(name: str, device: str) -> None:
    """As the only operand with a gradient, as several, and as one that is broadcast."""
    totals = ((lambda x, s=s: ROLES[name](s, x).sin().sum()) for s in (scanned, item_by_item))
    assert_close(*(twice(total, leaf(3, 3, device=device)) for total in totals))


@pytest.mark.parametrize("asked", ["values", "final", "neither"])
def test_a_gradient_of_one_output_alone(asked: str, device: str) -> None:
    x, h = leaf(2, 4, device=device), leaf(2, device=device, seed=1)
    found, expected = (
        {"values": y, "final": last, "neither": (y * 0).sum() + last.sum() * 0}[asked].sum()
        for y, last in (scanops.cumprod(x, 1, initial=h, return_final=True), walked("prod", x, initial=h))
    )
    assert_close(grad(found, (x, h)), grad(expected, (x, h)))


def test_a_gradient_that_is_conjugated(device: str) -> None:
    z, given = (leaf(4, device=device, seed=seed, dtype=torch.complex128) for seed in (3, 7))
    given = given.detach().conj()
    assert given.is_conj()
    assert_close(grad(scanops.cumprod(z, 0), z, given), grad(torch.cumprod(z, 0), z, given))


# ---- dtypes


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64], ids=str)
def test_a_gradient_is_converted_back(dtype: torch.dtype, device: str) -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    y = scanops.cumsum(x, 0, dtype=dtype)
    assert y.requires_grad == dtype.is_floating_point
    if dtype.is_floating_point:
        (found,) = grad(y.sum(), x)
        assert found.dtype == torch.float32 and found.tolist() == [3, 2, 1]


def test_a_narrow_carry(device: str) -> None:
    """Half types are carried in float32; each gradient has the dtype of its tensor."""
    x = torch.ones(2, 3, dtype=torch.float16, device=device, requires_grad=True)
    h = torch.ones(2, dtype=torch.float16, device=device, requires_grad=True)
    y, last = scanops.cumsum(x, 1, initial=h, return_final=True)
    assert (y.dtype, last.dtype) == (torch.float16, torch.float32)
    gradients = grad(y.sum().float() + last.sum(), (x, h))
    assert [each.dtype for each in gradients] == [torch.float16] * 2
    assert gradients[0].tolist() == [[4, 3, 2]] * 2 and gradients[1].tolist() == [4, 4]


# ---- corners of values


@pytest.mark.parametrize("op", ["prod", "logcumsumexp", "cummax", "linear"])
def test_tensors_without_dimensions(op: str, device: str) -> None:
    x, *gate = (leaf(device=device, seed=seed) for seed in range(1 + (op == "linear")))
    assert_close(grad(scanned(op, x, *gate).sin(), x)[0], x.detach().cos())
    y = scanned(op, x, *gate, exclusive=True)
    assert not grad(torch.where(y.isfinite(), y, 0 * x), x)[0]


def test_zeros_in_a_product(device: str) -> None:
    """Gradients are torch's. Hessians are not: its tangent of cumprod divides by items, and is NaN where one is 0."""
    x = torch.tensor([[2.0, 0.0, 3.0, 0.0], [1.0, 2.0, 3.0, 4.0]], dtype=torch.float64, device=device).requires_grad_()
    assert torch.equal(grad(scanops.cumprod(x, 1).sum(), x)[0], grad(torch.cumprod(x, 1).sum(), x)[0])
    line = torch.tensor([0.5, 0.0, 0.7, 0.9], dtype=torch.float64, device=device)
    expected = torch.autograd.functional.hessian(lambda x: item_by_item("prod", x).sum().sin(), line)
    for outer, inner in itertools.product((func.jacfwd, func.jacrev), repeat=2):
        assert_close(outer(inner(lambda x: scanops.cumprod(x, 0).sum().sin()))(line), expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("op", ["sum", "prod", "logcumsumexp", "max", "linear"])
def test_masked_items_reach_no_derivative(op: str, bad: float, device: str) -> None:
    """Whatever they and their gates are: the results and both derivatives are those of ordinary ones."""
    keep = torch.tensor([[True, False, True, True, False]], device=device)
    tensors = [leaf(2, 5, device=device, seed=seed) for seed in range(1 + (op == "linear"))]

    def total(value: float, *given: torch.Tensor) -> torch.Tensor:
        y = scanned(op, *(torch.where(keep, each, value) for each in given), mask=keep)
        return y.sin().sum()

    found, expected = (twice(lambda *given, v=value: total(v, *given), *tensors) for value in (bad, 1.0))
    assert all(bool(each.isfinite().all()) for each in found)
    assert_close(found, expected)
    spoilt = torch.where(keep, tensors[0].detach(), bad).requires_grad_()
    (of_x,) = grad(scanned(op, spoilt, *tensors[1:], mask=keep).sin().sum(), spoilt)
    assert torch.equal(of_x[~keep.expand(2, 5)], torch.zeros(4, dtype=torch.float64, device=device))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("op", ["sum", "prod", "logcumsumexp", "max", "linear"])
def test_a_segment_has_its_own_gradient(op: str, bad: float, device: str) -> None:
    """Whatever lies in another one of the line: a sequence of a pack that has gone wrong spoils no other."""
    starts = torch.tensor([False, False, True, False], device=device)
    tensors = [torch.tensor([1.0, bad, 0.5, 2.0], device=device) for _ in range(1 + (op == "linear"))]
    x = tensors[0].requires_grad_()
    (found,) = grad(scanned(op, *tensors, segment_starts=starts)[-2:].sum(), x)
    alone = x.detach()[2:].requires_grad_()
    (expected,) = grad(item_by_item(op, alone, *(each[2:] for each in tensors[1:])).sum(), alone)
    assert_close(found[2:], expected)


@pytest.mark.parametrize(
    ("op", "shape", "dim"), [("max", (257, 19), 0), ("min", (1, 9001), 1), ("max", (4, 5001), 1)], ids=str
)
def test_extremes_of_segments_in_several_tiles(op: str, shape: tuple[int, int], dim: int, device: str) -> None:
    """In float64, whose states have gaps; the last of equal items has all of the gradient, with a kernel or not."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(-20, 21, shape, generator=generator).double()
    starts, weights = torch.rand(shape, generator=generator) < 3 / 257, torch.randn(shape, generator=generator).double()
    winner = getattr(scanops, f"cum{op}")(x.to(device), dim, segment_starts=starts.to(device)).indices.cpu()
    expected = torch.zeros_like(x).scatter_add_(dim, winner, weights)
    item = x.to(device).requires_grad_()
    y = scanops.scan(item, op, dim, segment_starts=starts.to(device))
    assert_close(grad(y, item, weights.to(device))[0].cpu(), expected)


STEPPED, PARTS = 1 + torch.arange(120).view(3, 40) * 7 % 3 / 128, torch.arange(120).view(3, 40) * 37 % 64 / 64
BETWEEN = torch.tensor([1.002, 1.01, 0.5])  # not numbers of bfloat16
# Items, and options that have results of fewer digits than what is compared.
ROUNDED: dict[str, tuple[torch.Tensor, dict[str, Any]]] = {
    "carry": (STEPPED.bfloat16(), {"initial": BETWEEN}),
    "number": (STEPPED.bfloat16(), {"initial": 1.01}),
    "items": (STEPPED + PARTS / 512, {"dtype": torch.bfloat16}),
    "accumulator": (
        STEPPED.double() + PARTS.double() / 2**30,
        {"dtype": torch.float32, "accumulate": torch.float64},
    ),
    "weights": (STEPPED.bfloat16(), {"mask": (1 + PARTS / 32).bfloat16()}),
    "weights of wide results": (STEPPED.bfloat16(), {"mask": (1 + PARTS / 32).bfloat16(), "dtype": torch.float32}),
}


# Each role with each option, the two operators by turns.
EXTREMES = [
    (("max", "min")[(row + column) % 2], role, options)
    for row, role in enumerate(ROUNDED)
    for column, options in enumerate(({}, {"exclusive": True}, {"reverse": True}, {"complete": True}))
]


@pytest.mark.parametrize(("op", "role", "options"), EXTREMES, ids=str)
def test_extremes_that_rounding_makes_equal(op: str, role: str, options: dict[str, bool], device: str) -> None:
    """The gradient of a result belongs to the item or carry-in that it is, though its dtype holds neither of two."""
    x, narrow = ROUNDED[role]
    weights = torch.randn(3, 40 + ("complete" in options), generator=torch.Generator().manual_seed(6)).bfloat16()

    def differentiate(scan: Callable[..., torch.Tensor], x: torch.Tensor, given: dict[str, Any]) -> list[torch.Tensor]:
        leaves = {"x": x.detach().requires_grad_()}
        leaves |= {name: each.detach().requires_grad_() for name, each in given.items() if torch.is_tensor(each)}
        y = scan(**given | leaves, **options)
        return [each.cpu().double() for each in grad(y, tuple(leaves.values()), weights.to(y))]

    given = {name: each.to(device) if torch.is_tensor(each) else each for name, each in narrow.items()}
    wide = {name: torch.as_tensor(each).double() for name, each in narrow.items() if name in ("initial", "mask")}
    found = differentiate(lambda x, **more: scanops.scan(x, op, 1, **more), x.to(device), given)
    expected = differentiate(lambda x, **more: walked(op, x, **more)[0], x.double(), wide)
    assert_close(found, expected[: len(found)], rtol=1e-2, atol=5e-2)


def test_logarithms_of_equal_terms(device: str) -> None:
    """Each of two equal terms has half of the gradient; a carry-in of nothing has none."""
    x = torch.zeros(2, 4, dtype=torch.float64, device=device, requires_grad=True)
    h = torch.tensor([0.0, -torch.inf], dtype=torch.float64, device=device, requires_grad=True)
    _, last = scanops.logcumsumexp(x, 1, initial=h, return_final=True)
    of_x, of_h = grad(last.sum(), (x, h))
    assert_close(of_x, torch.tensor([[0.2] * 4, [0.25] * 4], dtype=torch.float64, device=device))
    assert_close(of_h, torch.tensor([0.2, 0.0], dtype=torch.float64, device=device))
    totals = ((lambda x, s=s: s("logcumsumexp", x).sin().sum()) for s in (scanned, item_by_item))
    assert_close(*(twice(total, x) for total in totals))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("used", ["results", "last", "both"])
def test_carries_of_logarithms(used: str, reverse: bool, kernels: str) -> None:
    """Results and the carry-out have gradients by the items and by the carry-in of each line, also beside -inf."""
    x = torch.randn(3, 40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).to(kernels)
    x = x.where(x < 1, -torch.inf).requires_grad_()
    h = torch.tensor([[0.5, -3], [2, 0], [-50, 9]], dtype=torch.float64, device=kernels, requires_grad=True)
    weights = torch.randn(3, 40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(6)).to(kernels)

    def total(y: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        return (used != "last") * (y * weights).sum() + (used != "results") * (last * weights[:, 0]).sum()

    y, last = scanops.logcumsumexp(x, 1, initial=h, return_final=True, reverse=reverse)
    lines = torch.cat([h[:, None], x.flip(1) if reverse else x], 1)
    results = torch.stack([lines[:, : k + 1].logsumexp(1) for k in range(1, 41)], 1)
    expected = total(results.flip(1) if reverse else results, results[:, -1])
    assert_close(total(y, last), expected)
    assert_close(grad(total(y, last), (x, h)), grad(expected, (x, h)))


def test_logarithms_of_infinities(kernels: str) -> None:
    """An item of -inf has no part in any result, an infinite one all of those from it on; NaN is in all from it on."""
    inf, nan = torch.inf, torch.nan
    rows = [[-inf, -inf, 1, -inf, 1], [0, inf, 1, 0, 2], [0, 0, -inf, nan, 1]]
    x = torch.tensor(rows, device=kernels, requires_grad=True)
    (found,) = grad(scanops.logcumsumexp(x, 1), x, torch.ones_like(x))
    expected = [[0, 0, 1 + 1 + 0.5, 0, 0.5], [1, 4, 0, 0, 0], [nan, nan, 0, nan, nan]]
    assert_close(found, torch.tensor(expected, device=kernels), equal_nan=True)


def test_second_derivatives_of_logarithms_of_nothing(kernels: str) -> None:
    """They are those of the other items alone."""
    x = torch.tensor([-torch.inf, 0.5, -torch.inf, 1.0, -2.0], dtype=torch.float64, device=kernels)
    counts = torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64, device=kernels)  # of results that end with each item
    found = twice(lambda x: scanops.logcumsumexp(x, 0)[1:].sin().sum(), x)
    at = [1, 3, 4]
    expected = twice(lambda x: (counts * item_by_item("logcumsumexp", x).sin()).sum(), x[at])
    assert_close([each[at] for each in found], expected)
    assert all(torch.equal(each[[0, 2]], torch.zeros_like(each[:2])) for each in found)


# ---- kernels of gradients, in every strategy, against PyTorch's gradients of the fallback

# The shapes of rows of a warp, staged, of a block, and of a wave; of columns and column tiles of them.
PLACES: dict[str, tuple[int, ...]] = {
    "warp": (3, 64),
    "staged": (5, 31),
    "block": (2, 1003),
    "persistent": (1, 20004),
    "columns": (2, 37, 6),
    "columns_lookback": (1, 70, 130),
}
NAMES = sorted(GRADIENTS.keys() - {"latest", "expressions"})  # which no gradient is of alone
PAIRS = [(name, list(PLACES)[k % len(PLACES)]) for k, name in enumerate(NAMES)]  # each strategy with several rows


def slopes(name: str, shape: tuple[int, ...], device: str) -> tuple[torch.Tensor, ...]:
    """The gradients that the kernel of a row computes: of exclusive scans, and of recurrences with constant gates."""
    g = torch.Generator().manual_seed(len(name))
    op = name.partition("_")[0].replace("runs", "cummax")
    x = 1 + 0.01 * torch.randn(shape, generator=g, dtype=torch.float64)  # products of any length are near 1
    gate, given = (torch.rand(shape, generator=g, dtype=torch.float64) * 0.9 + 0.2 for _ in range(2))
    mask = torch.rand(shape, generator=g) < 0.8
    x, gate, given, mask = (each.to(device) for each in (x, gate, given, mask))
    leaves = [x.requires_grad_(), *([gate.requires_grad_()] if op == "linear" and "terms" not in name else [])]
    y, *_ = call(x, op, 1, gate=gate if op == "linear" else None, mask=mask, exclusive="after" in name)
    return grad(y, leaves, given)


@pytest.mark.parametrize(("name", "place"), PAIRS)
def test_a_row_in_a_strategy(name: str, place: str, kernels: str) -> None:
    with scanops.record() as used:
        found = slopes(name, PLACES[place], kernels)
    assert list(used)[-1].op == name
    expected = contextvars.Context().run(slopes, name, PLACES[place], "cpu")  # outside scanops.emulate()
    for one, other in zip(found, expected, strict=True):
        assert_close(one.cpu(), other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("length", "reverse", "masked"), [(131, False, True), (256, True, False), (256, True, True), (2048, False, False)]
)
def test_products_and_recurrences_scanned_again(length: int, reverse: bool, masked: bool, kernels: str) -> None:
    """Before each item by the other kernel, and in the tile: exact where all is whole numbers, zeros among them."""
    g = torch.Generator().manual_seed(length)
    factors = torch.randint(-1, 2, (3, length), generator=g).double()
    factors[0], factors[1, length // 2] = torch.where(factors[0] == 0, 1, factors[0]), 0
    x = factors.to(kernels).requires_grad_()
    mask = (torch.rand(length, generator=g) < 0.9).to(kernels) if masked else None
    mask = None if mask is None else mask.expand(3, length).contiguous()
    given = torch.randint(-9, 9, (3, length), generator=g).double().to(kernels)
    with scanops.record() as used:
        (found,) = grad(scanops.cumprod(x, 1, mask=mask, reverse=reverse), x, given)
    assert [spec.recomputes for spec in used] == [False, True]
    terms = x if mask is None else torch.where(mask, x, torch.ones_like(x))
    y = torch.cumprod(terms.flip(1) if reverse else terms, 1)
    (expected,) = grad(y.flip(1) if reverse else y, x, given)
    assert torch.equal(found, expected)
    gate = torch.rand(3, length, generator=g, dtype=torch.float64).to(kernels).requires_grad_()
    both = grad(scanops.linear_scan(gate, x, 1, mask=mask, reverse=reverse), (gate, x), given)
    columns = [each if each is None else each.detach().t().contiguous() for each in (gate, x, mask, given)]
    down, items = (each.requires_grad_() for each in columns[:2])
    with scanops.record() as used:
        y = scanops.linear_scan(down, items, 0, mask=columns[2], reverse=reverse)
        others = grad(y, (down, items), columns[3])
    assert [spec.op for spec in used] == ["linear", "linear_gradient"]
    for one, other in zip(both, others, strict=True):
        assert_close(one, other.t(), rtol=1e-11, atol=1e-11)


SITUATIONS = ("plain", "flags", "offsets", "initial", "flags, initial", "offsets, initial")
PLACES_BEFORE = [*PLACES, "misaligned columns", "columns of halves"]
# Every situation in every place, in one direction or the other by turns; products, which commute, in every third.
BEFORE = [
    (place, situation, (row + column) % 2 == 1, ("linear", "prod")[: 1 + ((row + column) % 3 == 0)])
    for row, place in enumerate(PLACES_BEFORE)
    for column, situation in enumerate(SITUATIONS)
]


@pytest.mark.parametrize(("place", "situation", "reverse", "ops"), BEFORE)
def test_what_is_before_an_item_is_read_from_the_results(
    place: str, situation: str, reverse: bool, ops: tuple[str, ...], kernels: str
) -> None:
    """By the kernel of the gradient itself, which no other kernel precedes; at the ends of lines and of segments."""
    shape = {"misaligned columns": (2, 45, 7), "columns of halves": (1, 300, 16)}.get(place) or PLACES[place]
    dtype, near = (torch.bfloat16, 3e-2) if "halves" in place else (torch.float64, 1e-9)
    g, length = torch.Generator().manual_seed(7), shape[1]
    lines = (shape[0], *shape[2:])
    x = 1 + 0.1 * torch.randn(shape, generator=g, dtype=torch.float64)
    gate, given = (torch.rand(shape, generator=g, dtype=torch.float64) for _ in range(2))
    begins = torch.rand(shape, generator=g) < 0.1
    cuts = [0, length // 3, length // 3, length // 2, length - 1, length]
    options: dict[str, Any] = {"reverse": reverse}
    if "flags" in situation:
        options["segment_starts"] = begins
    if "offsets" in situation:
        options["offsets"] = torch.tensor(cuts)
    carries = (shape[0], len(cuts) - 1, *shape[2:]) if "offsets" in situation else lines
    initial = torch.rand(carries, generator=g, dtype=torch.float64) + 0.5 if "initial" in situation else None

    def gradients(op: str, device: str) -> tuple[torch.Tensor, ...]:
        leaves = {"x": x, **({"gate": gate} if op == "linear" else {})}
        leaves = {name: each.to(device=device, dtype=dtype).requires_grad_() for name, each in leaves.items()}
        wide = dtype if dtype == torch.float64 else torch.float32
        if initial is not None:
            leaves["initial"] = initial.to(device=device, dtype=wide).requires_grad_()
        fixed = {name: each.to(device) if name != "reverse" else each for name, each in options.items()}
        y, *_ = call(leaves["x"], op, 1, **{name: leaves[name] for name in leaves if name != "x"}, **fixed)
        return grad(y, tuple(leaves.values()), given.to(device=device, dtype=dtype))

    for op in ops:
        with scanops.record() as used:
            found = gradients(op, kernels)
        if situation != "offsets, initial":  # beside carries of segments an exclusive scan comes first
            assert [spec.op for spec in used] == [op, f"{op}_gradient"]
            assert [spec.saved_results for spec in used] in ([False, True], [False, op == "linear"])
        expected = contextvars.Context().run(gradients, op, "cpu")  # outside scanops.emulate()
        for one, other in zip(found, expected, strict=True):
            assert_close(one.cpu().double(), other.double(), rtol=near, atol=near)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 255, 256, 520, 4104, 17000, 17001])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_carry_in_does_not_narrow_vector_loads(length: int, dtype: torch.dtype, kernels: str) -> None:
    """A gradient reads the float32 carry-in of a line once, and 16 bytes of halves at a time, in either direction."""
    g, reverse = torch.Generator().manual_seed(length), length % 3 == 0
    drawn = [torch.rand(2, length, generator=g, dtype=torch.float64).to(dtype) for _ in range(3)]
    initial = torch.rand(2, generator=g, dtype=torch.float64).float()

    def gradients(device: str, wide: torch.dtype | None) -> tuple[torch.Tensor, ...]:
        x, gate, given = (each.to(device=device, dtype=wide or dtype) for each in drawn)
        leaves = [each.requires_grad_() for each in (x, gate, initial.to(device=device, dtype=wide).detach().clone())]
        y = scanops.linear_scan(leaves[1], leaves[0], 1, initial=leaves[2], reverse=reverse)
        return grad(y, leaves, given)

    with scanops.record() as used:
        found = gradients(kernels, None)
    (spec,) = (spec for spec in used if spec.saved_initial)
    assert spec.access_items == 8
    expected = contextvars.Context().run(gradients, "cpu", torch.float64)
    for one, other in zip(found, expected, strict=True):
        assert_close(one.cpu().double(), other, rtol=3e-2, atol=3e-2)


def test_gradients_by_the_operator_for_them(kernels: str) -> None:
    """Results that are given are read by those rows alone that tell from them what is before an item."""
    x = torch.rand(2, 70, 8, device=kernels).add(0.5).requires_grad_()
    y, given = scanops.cumprod(x, 1), torch.rand(2, 70, 8, device=kernels)
    tensors = (given, None, y.detach(), None, x.detach(), *[None] * (schema.TENSORS - 1))
    found = schema.BACKWARD(*tensors, *schema.backward_arguments(Call("prod", 1), (True, False, False, False)))[0]
    assert_close(found, grad(y, x, given)[0])


def test_the_gradient_of_cummax_is_the_same_bits_every_time(kernels: str) -> None:
    x = torch.randn(2, 5000, device=kernels).sort(1).values.round(decimals=1)
    given = torch.randn(2, 5000, device=kernels)
    y = scanops.cummax(x.requires_grad_(), 1).values
    (found,) = grad(y, x, given, retain_graph=True)
    with scanops.emulate(seed=99) if kernels == "cpu" else contextlib.nullcontext():  # threads take other turns
        assert torch.equal(grad(y, x, given)[0], found)


AFFINE = scanops.operator(
    fields=("a", "b"),
    combine=lambda older, newer: (older.a * newer.a, newer.b + newer.a * older.b),
    identity=(1, 0),
    project=lambda state: state.b,
)
BEGINS, CUTS_OF_8 = torch.tensor([False, False, True, False] * 2), torch.tensor([0, 3, 8])
WATCHED: dict[str, Any] = {
    **{
        f"{op}, {name}": (lambda x, w, op=op, options=options: scanops.scan(x, op, 1, **options(w)))
        for op in ("sum", "prod", "max", "logcumsumexp")
        for name, options in {
            "plain": lambda w: {},
            "weights": lambda w: {"mask": w},
            "a number": lambda w: {"initial": 1.5, "exclusive": True},
            "a carry": lambda w: {"initial": w[:, 0], "return_final": True},
            "offsets": lambda w: {"offsets": CUTS_OF_8, "initial": 1.5, "return_final": True},
            "flags": lambda w: {"segment_starts": BEGINS, "reverse": True},
            "complete": lambda w: {"complete": True, "initial": 2.0},
            "chunks": lambda w: {"mask": w, "chunk": 3},
        }.items()
    },
    "cummax": lambda x, w: scanops.cummax(x, 1, initial=0.2, return_final=True),
    "recurrence": lambda x, w: scanops.linear_scan(w, x, 1, initial=w[:, 0], return_final=True),
    "recurrence of a number": lambda x, w: scanops.linear_scan(0.5, x, 1, initial=2.0),
    "half": lambda x, w: scanops.cumsum(x.bfloat16(), 1, mask=w[0, 0]),
    "functions": lambda x, w: scanops.scan((x, w), "sum", 1, map=lambda x, w: x * w, then=lambda y, x, w: (y * w, y)),
    "functions of a recurrence": lambda x, w: scanops.scan(
        (w, x), "linear", 1, map=lambda a, x: (torch.exp(-a), x * a), then=lambda h, a, x: h * x
    ),
    "functions and carries": lambda x, w: scanops.scan(
        (w, x), "linear", 1, map=lambda a, x: (torch.exp(-a), x * a), initial=w[:, 0], return_final=True
    ),
    "own operator": lambda x, w: scanops.scan((w, x), AFFINE, 1),
}


@pytest.mark.parametrize("name", WATCHED)
@pytest.mark.parametrize("emulated", [False, True], ids=["torch", "emulated"])
def test_what_is_saved_follows_from_the_call(name: str, emulated: bool) -> None:
    """A non-reentrant checkpoint compares what its two passes save, in one of which a mode may be active."""
    watched, leaves = WATCHED[name], []
    for seed in (1, 2):
        leaf = torch.rand(2, 8, generator=torch.Generator().manual_seed(seed)) + 0.2
        leaves.append(leaf.requires_grad_())

    def gradients(y: Any) -> tuple[torch.Tensor | None, ...]:
        parts = [each for each in pytree.tree_leaves(y) if each.requires_grad]
        total = sum((each * torch.linspace(0.5, 1.5, each.numel()).view(each.shape)).sum() for each in parts)
        return torch.autograd.grad(total, leaves, allow_unused=True)  # type: ignore[arg-type]

    def watch() -> FlopCounterMode:
        return FlopCounterMode(display=False)

    with scanops.emulate() if emulated else contextlib.nullcontext():
        expected, saved = gradients(watched(*leaves)), []
        for mode in (contextlib.nullcontext(), watch()):
            kept: list[torch.Tensor] = []
            with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t) or t, lambda t: t), mode:  # type: ignore[misc]
                watched(*leaves)
            saved.append(kept)
        torch.testing.assert_close(*saved)
        for forward, backward in ((watch, contextlib.nullcontext), (contextlib.nullcontext, watch)):
            with forward():
                y = checkpoint(watched, *leaves, use_reentrant=False)
            with backward():
                found = gradients(y)
            for one, other in zip(found, expected, strict=True):
                assert (one is None) == (other is None)
                if one is not None:
                    torch.testing.assert_close(one, other)
