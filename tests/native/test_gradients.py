"""The native gradient of a scan is autograd's in every respect: values, orders, hooks, versions, lifetimes."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import scanops
from scanops.ops import dispatch
from scanops.runtime import calls, native
from tests.native.conftest import Counted
from tests.torch_integration.compilers import following
from tests.torch_integration.rows import flat

SHAPE = (3, 40)
MASK = torch.arange(40) % 3 != 0
WEIGHTS = torch.linspace(0, 1, 40)
GATE = torch.linspace(-1, 1, 120).reshape(SHAPE)
INCOMING = torch.arange(120.0).reshape(SHAPE).remainder(7)
FLAGS = torch.arange(40) % 11 == 5

Call = Callable[[torch.Tensor, torch.Tensor], Any]  # of items and of a carry-in, which not every call reads
# By kernels alone
ALONE: dict[str, Call] = {
    "sum": lambda x, _: scanops.cumsum(x, 1),
    "sum, masked, reverse": lambda x, _: scanops.cumsum(x, 1, mask=MASK, reverse=True),
    "sum, masked, exclusive": lambda x, _: scanops.cumsum(x, 1, mask=MASK, exclusive=True),
    "sum of segments": lambda x, _: scanops.cumsum(x, 1, segment_starts=FLAGS),
    "sum of halves": lambda x, _: scanops.cumsum(x.half(), 1, mask=MASK),
    "sum of complex numbers": lambda x, _: scanops.cumsum(x.to(torch.complex64), 1),
    "sum, converted": lambda x, _: scanops.cumsum(x, 1, dtype=torch.float64),
    "product": lambda x, _: scanops.cumprod(x, 1),
    "product, masked, exclusive": lambda x, _: scanops.cumprod(x, 1, mask=MASK, exclusive=True),
    "product of segments": lambda x, _: scanops.cumprod(x, 1, segment_starts=FLAGS),
    "cummax": lambda x, _: scanops.cummax(x, 1),
    "cummin of columns": lambda x, _: scanops.cummin(x, 0, reverse=True),
    "max, masked": lambda x, _: scanops.scan(x, "max", 1, mask=MASK),
    "logcumsumexp": lambda x, _: scanops.logcumsumexp(x, 1),
    "recurrence": lambda x, _: scanops.linear_scan(GATE, x, 1),
    "recurrence of gates": lambda x, _: scanops.linear_scan(x, GATE, 1, exclusive=True),
    "recurrence of both": lambda x, _: scanops.linear_scan(x, x * 2, 1, exclusive=True),
}
CHUNKS: dict[str, Call] = {
    "chunks of a sum": lambda x, h: scanops.cumsum(x, 1, initial=h, return_final=True),
    "chunks of a product": lambda x, h: scanops.cumprod(x, 1, initial=h, return_final=True, exclusive=True, mask=MASK),
    "chunks of a recurrence": lambda x, h: scanops.linear_scan(GATE, x, 1, initial=h, return_final=True, reverse=True),
    "chunks of gates": lambda x, h: scanops.linear_scan(x, GATE, 1, initial=h, return_final=True),
    "chunks of a minimum": lambda x, h: scanops.scan(x, "min", 1, initial=h, return_final=True),
    "chunks of logarithms": lambda x, h: scanops.logcumsumexp(x, 1, initial=h, return_final=True),
}
# With something of torch's between
MIXED: dict[str, Call] = {
    "weighted": lambda x, _: scanops.cumsum(x, 1, mask=WEIGHTS),
    "weights": lambda x, _: scanops.cumsum(GATE, 1, mask=x),
    "a gate for each column": lambda x, _: scanops.linear_scan(x[:1], GATE, 1),
}
CALLS = ALONE | CHUNKS | MIXED
LAYOUTS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda g: g,
    lambda g: g[:1].expand(g.shape),
    lambda g: g.t().contiguous().t(),
)


def leaf(scale: float = 1.0) -> torch.Tensor:
    return torch.arange(-60.0, 60.0).div(scale).reshape(SHAPE).requires_grad_()


def slopes(name: str, used: tuple[int, ...], scale: float, spread: Any = LAYOUTS[0]) -> tuple[list[Any], str]:
    """Return the gradients of some results of a call, and the name of their node."""
    x, h = leaf(scale), torch.tensor([2.0, -1.0, 0.5], requires_grad=True)
    results = [y for y in flat(CALLS[name](x, h)) if y.requires_grad]
    given = [spread(INCOMING) if y.ndim == 2 else h.detach() for y in results]
    found = torch.autograd.grad(
        [results[k] for k in used], [x, h], [given[k].to(results[k].dtype) for k in used], allow_unused=True
    )
    assert results[0].grad_fn is not None
    return [each for each in found if each is not None], results[0].grad_fn.name()


@pytest.mark.parametrize("name", CALLS)
def test_every_operator(name: str, counted: Counted) -> None:
    """C++'s gradient is Python's to the bit, for other data, layouts of gradients and whichever results are used."""
    used = [(0,), (1,), (0, 1)] if name in CHUNKS else [(0,)]
    layouts = LAYOUTS if name in ALONE else LAYOUTS[:1]
    cases = list(itertools.product(used, (60.0, 45.0), layouts))
    for _ in range(4):
        slopes(name, used[0], 60.0)
    assert native.learnt() == 1 + (name not in MIXED)  # forward and backward
    found = [[slopes(name, *case) for case in cases] for _ in range(4)]
    assert [named for _, named in found[-1]] == ["ScanBackward"] * len(cases) and counted.calls > 0
    native.served = None
    for _ in range(2):  # by Python, as it remembers calls, and as it meets them first
        expected = [slopes(name, *case) for case in cases]
        assert all(
            torch.equal(one, other)
            for turn in found
            for (mine, _), (right, _) in zip(turn, expected, strict=True)
            for one, other in zip(mine, right, strict=True)
        )
        calls.forget()
    assert expected[0][1] != "ScanBackward"


@pytest.mark.parametrize(
    "name", ["sum of segments", "sum, masked, reverse", "product", "cummax", "recurrence", "chunks of a recurrence"]
)
def test_in_a_graph_of_compiled_autograd(name: str, counted: Counted) -> None:
    """A native node is one operation to a tracer, whichever scan it is of."""
    torch.compiler.reset()
    graphs: list[list[str]] = []
    used = (0, 1) if name in CHUNKS else (0,)
    for _ in range(4):
        expected, named = slopes(name, used, 30.0)
    for _ in range(2):  # the second time by the graph of the first
        with following(graphs)():
            found, named = slopes(name, used, 30.0)
        assert named == "ScanBackward"
        torch.testing.assert_close(found, expected)
    assert graphs == [["scanops.scan_backward.default"]]


def native_node(call: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return the result of a call that is served natively, backward pass included, on a leaf of its own."""
    for _ in range(4):
        y = call(leaf())
        y.backward(torch.ones_like(y))
    y = call(leaf())
    assert y.grad_fn is not None and y.grad_fn.name() == "ScanBackward"
    return y


def test_autograd_s_own_rules(counted: Counted) -> None:
    y = native_node(lambda x: scanops.cumsum(x, 1))
    (x,) = [edge.variable for edge, _ in y.grad_fn.next_functions if edge]
    seen: list[torch.Tensor] = []
    x.register_hook(lambda gradient: seen.append(gradient) or 2 * gradient)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    expected = torch.ones(3, 40).flip(1).cumsum(1).flip(1)
    assert x.grad.equal(4 * expected) and [gradient.equal(expected) for gradient in seen] == [True, True]
    with torch.no_grad():
        assert scanops.cumsum(x, 1).grad_fn is None
    assert scanops.cumsum(x.detach(), 1).grad_fn is None
    y = scanops.cumsum(x, 1)
    y.mul_(2)  # no gradient reads the result
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.equal(2 * 2 * expected)  # the hook's 2 and this one
    rows = torch.eye(3)[:, :, None].expand(3, 3, 40)
    batched = torch.autograd.grad(scanops.cumsum(x, 1), x, rows, is_grads_batched=True)
    assert batched[0].equal(2 * torch.eye(3)[:, :, None] * expected)
    assert torch.autograd.grad(scanops.cumsum(x, 1)[0].sum(), x, materialize_grads=True)[0][1:].eq(0).all()


@pytest.mark.parametrize(
    ("scan", "change"),
    [
        (lambda x, mask: scanops.cumsum(x, 1, mask=mask), lambda y, mask: mask.logical_not_()),
        (lambda x, mask: scanops.logcumsumexp(x, 1), lambda y, mask: y.mul_(2)),  # its gradient reads the result
    ],
    ids=["operand", "result"],
)
def test_saved_tensors(scan: Callable[..., torch.Tensor], change: Callable[..., object], counted: Counted) -> None:
    """A saved tensor that was changed or released raises; reference counts alone free what a node holds."""
    native_node(lambda x: scan(x, MASK))
    mask = MASK.clone()
    y = scan(leaf(), mask)
    change(y, mask)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = scan(leaf(), MASK)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    for backward in (False, True):
        x, mask = leaf().detach().clone().requires_grad_(), MASK.clone()
        y = scan(x, mask)
        watched = [weakref.ref(each) for each in (x, mask, y)]
        gc.disable()
        try:
            if backward:
                y.sum().backward()
            del x, mask, y
            assert [each() for each in watched] == [None] * 3
        finally:
            gc.enable()


def test_higher_orders(counted: Counted) -> None:
    x, gate = (torch.rand(2, 40, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def call(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return scanops.linear_scan(gate, x, 1) + scanops.logcumsumexp(x, 1) + scanops.cumsum(x, 1, mask=MASK) ** 2

    for _ in range(4):
        call(x, gate).sum().backward()
    assert counted.calls > 0
    assert torch.autograd.gradgradcheck(call, (x, gate), fast_mode=True)


def test_which_inputs_want_a_gradient(counted: Counted) -> None:
    """Told apart, although the calls are alike."""
    for _ in range(4):
        for wanted in ((True, False), (False, True), (True, True), (False, False)):
            a, b = (leaf(60).detach().requires_grad_(want) for want in wanted)
            y = scanops.linear_scan(a, b, 1)
            assert (y.grad_fn is not None) == any(wanted)
            if any(wanted):
                y.sum().backward()
            assert [each.grad is not None for each in (a, b)] == list(wanted)
    assert counted.calls > 0 and native.learnt() == 1 + 3


def test_a_backward_pass_in_python(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """It follows the policy of its forward pass; its error passes through C++ and autograd's engine as it was."""
    results = []
    for _ in range(3):
        for policy in ("generic", "never"):
            with scanops.policy(policy):
                results.append((policy, scanops.cumsum(leaf(), 1)))

    def broken(kind: object, needs: object, given: object, policy: str | None) -> None:
        raise KeyError(policy)

    monkeypatch.setattr(dispatch, "backward_pass", broken)
    for policy, y in results[-2:]:
        assert y.grad_fn is not None and y.grad_fn.name() == "ScanBackward"
        with pytest.raises(KeyError, match=policy):
            y.sum().backward()
