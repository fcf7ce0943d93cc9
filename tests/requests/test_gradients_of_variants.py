"""Gradients through gates, carries and segments: first and second, compiled and transformed, wherever served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import scanops
from scanops import emulator

SHAPE = (2, 5)
VALUES_ONLY = ("cummax", "cummin")
Tensors = tuple[torch.Tensor, ...]
Count = Callable[[str, object], None]
# The shape of a leaf, and the view of it that is scanned.
LAYOUTS: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "dense": (SHAPE, lambda x: x),
    "transposed": ((5, 2), lambda x: x.t()),
    "stepped": ((2, 10), lambda x: x[:, 1::2]),
    "expanded": ((1, 5), lambda x: x.expand(SHAPE)),
    "off a boundary": ((11,), lambda x: x[1:].view(SHAPE)),
}


def leaf(*shape: int, device: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Random values away from 0 and from one another."""
    x = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5
    if dtype.is_complex:
        x = torch.complex(x, leaf(*shape, device="cpu", seed=seed + 50).detach() - 1)
    return x.to(dtype).to(device).requires_grad_()


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What a scan is told, beside tensors whose gradients are wanted."""

    initial: tuple[int, ...] | None = None  # its shape
    weights: tuple[int, ...] | None = None
    selects: bool = False
    flags: bool = False
    offsets: bool = False
    options: dict[str, Any] = field(default_factory=dict)


VARIANTS: dict[str, Variant] = {
    "initial": Variant(initial=(2,)),
    "initial for all": Variant(initial=()),
    "initial, exclusive, reverse": Variant(initial=(2,), options={"exclusive": True, "reverse": True}),
    "final": Variant(options={"return_final": True}),
    "initial, final": Variant(initial=(1,), options={"return_final": True}),
    "initial, final, exclusive, masked": Variant(
        initial=(2,), selects=True, options={"return_final": True, "exclusive": True}
    ),
    "flags": Variant(flags=True),
    "flags, initial, final, reverse": Variant(
        flags=True, initial=(2,), options={"return_final": True, "reverse": True}
    ),
    "offsets": Variant(offsets=True, options={"exclusive": True}),
    "offsets, initial, final, weights": Variant(
        offsets=True, initial=(2,), weights=(5,), options={"return_final": True}
    ),
    "weights, final, reverse": Variant(weights=(2, 1), options={"return_final": True, "reverse": True}),
}
# An exclusive one, or a masked beginning of a segment, is -inf or a bound, near which there are no differences.
BEGIN_NOWHERE = ("initial, exclusive, reverse", "initial, final, exclusive, masked", "offsets")
OPS = ("sum", "prod", "logcumsumexp", "max", "min", "cummax", "cummin")
CASES = [
    (op, name)
    for op in OPS
    for name in VARIANTS
    if op in ("sum", "prod") or name not in BEGIN_NOWHERE or (VARIANTS[name].initial is not None)
]


def fixed(variant: Variant, device: str) -> dict[str, Any]:
    """What no gradient is asked of."""
    found: dict[str, Any] = dict(variant.options)
    if variant.selects:
        found["mask"] = torch.tensor([[True, True, False, True, False]], device=device)
    if variant.flags:
        found["segment_starts"] = torch.tensor([[False, False, True, False, False], [False, True, False, False, True]])
        found["segment_starts"] = found["segment_starts"].to(device)
    if variant.offsets:
        found["offsets"] = torch.tensor([0, 2, 2, 5], device=device)
    return found


def named(op: str, variant: Variant, device: str, dtype: torch.dtype, layout: str) -> dict[str, torch.Tensor]:
    """Leaves by the names of arguments."""
    shape, _ = LAYOUTS[layout]
    found = {"x": leaf(*shape, device=device, dtype=dtype)}
    if op == "linear":
        found["a"] = leaf(*shape, device=device, dtype=dtype, seed=4)
    if variant.initial is not None:
        found["initial"] = leaf(*variant.initial, device=device, dtype=dtype, seed=2)
        if op in ("min", "cummin"):
            found["initial"] = (found["initial"].detach() + 0.5).requires_grad_()
        elif op in ("max", "cummax"):
            found["initial"] = (found["initial"].detach() - 0.25).requires_grad_()
    if variant.weights is not None:
        found["mask"] = leaf(*variant.weights, device=device, dtype=dtype, seed=3)
    return found


def scan(op: str, tensors: dict[str, torch.Tensor], options: dict[str, Any]) -> Tensors:
    """Whatever of the results has a gradient."""
    given = {name: each for name, each in tensors.items() if name not in ("x", "a")} | options
    if op == "linear":
        found: Any = scanops.linear_scan(tensors["a"], tensors["x"], 1, **given)
    elif op in VALUES_ONLY:
        found = getattr(scanops, op)(tensors["x"], 1, **given)
        pair, *final = found if options.get("return_final") else (found,)
        assert not pair.indices.requires_grad
        found = (pair.values, *final)
    else:
        found = scanops.scan(tensors["x"], op, 1, **given)
    return found if isinstance(found, tuple) else (found,)


def function(
    op: str, variant: Variant, device: str, dtype: torch.dtype = torch.float64, layout: str = "dense"
) -> tuple[Callable[..., Tensors], Tensors]:
    leaves, options = named(op, variant, device, dtype, layout), fixed(variant, device)
    _, view = LAYOUTS[layout]

    def call(*tensors: torch.Tensor) -> Tensors:
        given = dict(zip(leaves, tensors, strict=True))
        return scan(op, given | {name: view(given[name]) for name in ("x", "a") if name in given}, options)

    return call, tuple(leaves.values())


def dealt(cases: list[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Each in a layout, by turns; where there is a GPU, each in all of them."""
    layouts = list(LAYOUTS)
    if torch.cuda.is_available():
        return [(*case, layout) for case in cases for layout in layouts]
    return [(*case, layouts[(number + number // len(layouts)) % len(layouts)]) for number, case in enumerate(cases)]


def differences(call: Callable[..., Tensors], leaves: Tensors, count: Count) -> None:
    """First derivatives in both modes, second ones backwards and forward over backward, one by one and in batches.

    Forward mode is composed wherever a call is served, batches are told apart where kernels run: each is tried there.
    """
    kernels, everything = emulator.active() is not None, torch.cuda.is_available()
    forward, batches = everything or not kernels, everything or kernels
    assert gradcheck(call, leaves, check_forward_ad=forward, check_batched_grad=batches)
    assert gradgradcheck(call, leaves, check_fwd_over_rev=forward, check_batched_grad=batches)
    count("gradcheck", 1)
    count("gradgradcheck", 1)


@pytest.mark.parametrize(("op", "name", "layout"), dealt([*CASES, *(("linear", name) for name in VARIANTS)]))
def test_first_and_second_derivatives(op: str, name: str, layout: str, device: str, record_property: Count) -> None:
    call, leaves = function(op, VARIANTS[name], device, layout=layout)
    differences(call, leaves, record_property)


@pytest.mark.parametrize(
    ("op", "name", "layout"), dealt([(op, name) for op in ("sum", "prod", "linear") for name in VARIANTS])
)
def test_derivatives_of_complex_numbers(op: str, name: str, layout: str, device: str, record_property: Count) -> None:
    call, leaves = function(op, VARIANTS[name], device, torch.complex128, layout)
    differences(call, leaves, record_property)


GATES = ((), (1,), (5,), (2, 1), (1, 5), (1, 1))


@pytest.mark.parametrize("shape", GATES, ids=str)
@pytest.mark.parametrize("swapped", [False, True])
def test_what_is_broadcast_has_the_sum_of_gradients(shape: tuple[int, ...], swapped: bool, device: str) -> None:
    narrow, full = leaf(*shape, device=device, seed=6), leaf(*SHAPE, device=device)

    def call(narrow: torch.Tensor, full: torch.Tensor, initial: torch.Tensor) -> Any:
        a, b = (full, narrow) if swapped else (narrow, full)
        return scanops.linear_scan(a, b, 1, initial=initial, return_final=True, reverse=swapped)

    assert gradcheck(call, (narrow, full, leaf(2, 1, device=device).detach()[:, 0].requires_grad_()))
    assert gradgradcheck(call, (narrow, full, leaf(2, device=device, seed=8)))


def test_one_tensor_as_gate_items_and_carry(device: str) -> None:
    x = leaf(3, 3, device=device)
    assert gradcheck(lambda x: scanops.linear_scan(x, x, 0, initial=x[0], return_final=True), (x,))
    assert gradcheck(lambda x: scanops.linear_scan(x.t(), x, 0, initial=x[:, 1]), (x,))


@pytest.mark.parametrize("asked", ["values", "final", "neither"])
def test_a_gradient_of_one_output_alone(asked: str, device: str) -> None:
    x, h = leaf(2, 4, device=device), leaf(2, device=device, seed=1)
    y, last = scanops.cumprod(x, 1, initial=h, return_final=True)
    wanted = {"values": y, "final": last, "neither": (y * 0).sum() + last.sum() * 0}[asked]
    found = torch.autograd.grad(wanted.sum(), (x, h))
    whole = torch.cumprod(torch.cat([h[:, None], x], 1), 1)[:, 1:]
    expected = {"values": whole, "final": whole[:, -1], "neither": whole * 0}[asked]
    for ours, theirs in zip(found, torch.autograd.grad(expected.sum(), (x, h)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_gradients_that_are_expanded(device: str) -> None:
    x, a = leaf(2, 5, device=device), leaf(5, device=device, seed=1)
    one = torch.ones((), dtype=torch.float64, device=device)
    y, last = scanops.linear_scan(a, x, 1, return_final=True)
    found = torch.autograd.grad((y, last), (x, a), (one.expand(2, 5), one.expand(2)))
    y, last = scanops.linear_scan(a, x, 1, return_final=True)
    expected = torch.autograd.grad(y.sum() + last.sum(), (x, a))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_stream_in_chunks_has_the_gradient_of_one_piece(device: str) -> None:
    a, x = leaf(2, 12, device=device), leaf(2, 12, device=device, seed=1)
    whole = scanops.linear_scan(a, x, 1)
    h: torch.Tensor | None = None
    pieces = []
    for k in range(0, 12, 4):
        y, h = scanops.linear_scan(a[:, k : k + 4], x[:, k : k + 4], 1, initial=h, return_final=True)
        pieces.append(y)
    weight = torch.arange(24.0, dtype=torch.float64, device=device).reshape(2, 12)
    found = torch.autograd.grad((torch.cat(pieces, 1) * weight).sum(), (a, x))
    for ours, theirs in zip(found, torch.autograd.grad((whole * weight).sum(), (a, x)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_narrow_carry(device: str) -> None:
    """Half types go on in float32; each gradient comes back in the dtype of what it is of."""
    x = torch.ones(2, 3, dtype=torch.float16, device=device, requires_grad=True)
    h = torch.ones(2, dtype=torch.float16, device=device, requires_grad=True)
    y, last = scanops.cumsum(x, 1, initial=h, return_final=True)
    assert (y.dtype, last.dtype) == (torch.float16, torch.float32)
    gradients = torch.autograd.grad(y.sum().float() + last.sum(), (x, h))
    assert [each.dtype for each in gradients] == [torch.float16] * 2
    assert gradients[0].tolist() == [[4, 3, 2]] * 2 and gradients[1].tolist() == [4, 4]


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize(("shape", "dim"), [((257, 19), 0), ((2, 70001), 1), ((5, 20003), 1)])
def test_extremes_of_segments_in_several_tiles(op: str, shape: tuple[int, int], dim: int, device: str) -> None:
    """In float64, whose states have gaps; and of equals the last one has all of the gradient, with a kernel or not."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(-20, 21, shape, generator=generator).double()
    starts, weights = torch.rand(shape, generator=generator) < 3 / 257, torch.randn(shape, generator=generator).double()
    winner = getattr(scanops, f"cum{op}")(x.to(device), dim, segment_starts=starts.to(device)).indices.cpu()
    expected = torch.zeros_like(x).scatter_add_(dim, winner, weights)
    leaf = x.to(device).requires_grad_()
    scanops.scan(leaf, op, dim, segment_starts=starts.to(device)).backward(weights.to(device))
    torch.testing.assert_close(leaf.grad.cpu(), expected)


def test_logarithms_of_equal_terms(device: str) -> None:
    """Where two terms are equal each has its half; where there was nothing, all of it."""
    x = torch.zeros(2, 4, dtype=torch.float64, device=device, requires_grad=True)
    h = torch.tensor([0.0, -torch.inf], dtype=torch.float64, device=device, requires_grad=True)
    _, last = scanops.logcumsumexp(x, 1, initial=h, return_final=True)
    of_x, of_h = torch.autograd.grad(last.sum(), (x, h))
    torch.testing.assert_close(of_x, torch.tensor([[0.2] * 4, [0.25] * 4], dtype=torch.float64, device=device))
    torch.testing.assert_close(of_h, torch.tensor([0.2, 0.0], dtype=torch.float64, device=device))
    assert gradgradcheck(lambda x: scanops.logcumsumexp(x, 1, return_final=True), (x,))


# ---- torch must see inside


@pytest.mark.parametrize(
    ("op", "name"), [("linear", name) for name in VARIANTS] + [(op, "initial, final") for op in OPS]
)
def test_vmap_and_forward_mode(op: str, name: str, device: str) -> None:
    """A batch of lines is a loop over them; forward and backward mode agree."""
    variant = VARIANTS[name]
    call, leaves = function(op, variant, device)
    plain = tuple(each.detach() for each in leaves)
    stacked = tuple(torch.stack([each, each * 1.5, each * 0.75]) for each in plain)
    found = torch.func.vmap(call)(*stacked)
    for k in range(3):
        for y, expected in zip(found, call(*(each[k] for each in stacked)), strict=True):
            torch.testing.assert_close(y[k], expected)
    tangents = tuple(torch.rand_like(each) for each in plain)
    _, forward = torch.func.jvp(call, plain, tangents)
    _, back = torch.func.vjp(call, *plain)
    cotangents = tuple(torch.rand_like(each) for each in forward)
    left = sum((t * c).sum() for t, c in zip(forward, cotangents, strict=True))
    right = sum((t * g).sum() for t, g in zip(tangents, back(cotangents), strict=True))
    torch.testing.assert_close(left, right)


@pytest.mark.parametrize(
    "name", ["initial, final", "flags, initial, final, reverse", "offsets, initial, final, weights"]
)
@pytest.mark.parametrize("op", ["sum", "prod", "logcumsumexp", "max", "cummax", "linear"])
def test_compiled_in_one_graph(op: str, name: str, device: str) -> None:
    call, leaves = function(op, VARIANTS[name], device)
    torch.compiler.reset()  # there is one function here for all cases, and a limit to its compilations
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    found, expected = compiled(*leaves), call(*leaves)
    for y, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(y, wanted)
    ours = torch.autograd.grad([y.sum() for y in found], leaves)
    for gradient, wanted in zip(ours, torch.autograd.grad([y.sum() for y in expected], leaves), strict=True):
        torch.testing.assert_close(gradient, wanted)
