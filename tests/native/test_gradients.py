"""The native gradient of a sum is autograd's in every respect: values, orders, hooks, versions, lifetimes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo import compiled_autograd
from torch._dynamo.backends.common import aot_autograd

import scanops
from scanops.ops import node
from scanops.runtime import calls, native
from tests.native.conftest import Counted
from tests.store.sources import needs_cxx

pytestmark = needs_cxx

Call = Callable[[torch.Tensor], torch.Tensor]

MASK = torch.arange(40) % 3 != 0


def leaf(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(-60.0, 60.0).reshape(3, 40).to(dtype).requires_grad_()


def native_node(call: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The result of a call that is served natively, backward pass included, on a leaf of its own."""
    for _ in range(4):
        y = call(leaf(dtype))
        y.backward(torch.ones_like(y))
    y = call(leaf(dtype))
    assert y.grad_fn is not None and y.grad_fn.name() == "ScanBackward"
    return y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_values(masked: bool, dtype: torch.dtype, counted: Counted) -> None:
    mask = MASK if masked else None
    native_node(lambda x: scanops.cumsum(x, 1, mask=mask, exclusive=True), dtype)
    given = torch.arange(120.0).reshape(3, 40).remainder(7)
    for gradient in (given, given[:1, :1].expand(3, 40), given.t().contiguous().t()):
        x, expected = leaf(dtype), leaf(torch.complex128 if dtype.is_complex else torch.float64)
        for _ in range(4):
            y = scanops.cumsum(x, 1, mask=mask, exclusive=True)
            x.grad = None
            y.backward(gradient.to(dtype))
        kept = expected if mask is None else torch.where(mask, expected, 0.0)
        (kept.cumsum(1) - kept).backward(gradient.to(expected.dtype))
        assert x.grad is not None and expected.grad is not None and x.grad.dtype == dtype
        torch.testing.assert_close(x.grad.to(expected.dtype), expected.grad, rtol=2e-3, atol=2e-3)


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
    y.mul_(2)  # the result is kept by nobody
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
    assert y.grad_fn.name() == "ScanBackward"
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


WEIGHTS = torch.linspace(0, 1, 40)
GATE = torch.linspace(-1, 1, 120).reshape(3, 40)
FLAGS = torch.arange(40) % 11 == 5

# By kernels alone, and with something of torch's between.
ALONE: dict[str, Call] = {
    "product": lambda x: scanops.cumprod(x, 1),
    "product, masked, exclusive": lambda x: scanops.cumprod(x, 1, mask=MASK, exclusive=True),
    "product of segments": lambda x: scanops.cumprod(x, 1, segment_starts=FLAGS),
    "converted": lambda x: scanops.cumsum(x, 1, dtype=torch.float64),
    "sum of segments": lambda x: scanops.cumsum(x, 1, segment_starts=FLAGS),
    "cummax": lambda x: scanops.cummax(x, 1).values,
    "cummin of columns": lambda x: scanops.cummin(x, 0, reverse=True).values,
    "max, masked": lambda x: scanops.scan(x, "max", 1, mask=MASK),
    "logcumsumexp": lambda x: scanops.logcumsumexp(x, 1),
    "recurrence": lambda x: scanops.linear_scan(GATE, x, 1),
    "recurrence of gates": lambda x: scanops.linear_scan(x, GATE, 1, exclusive=True),
    "recurrence of both": lambda x: scanops.linear_scan(x, x * 2, 1, exclusive=True),
}
MIXED: dict[str, Call] = {
    "weighted": lambda x: scanops.cumsum(x, 1, mask=WEIGHTS),
    "weights": lambda x: scanops.cumsum(GATE, 1, mask=x),
    "a gate for each column": lambda x: scanops.linear_scan(x[:1], GATE, 1),
}


@pytest.mark.parametrize("name", [*ALONE, *MIXED])
def test_every_operator(name: str, counted: Counted) -> None:
    """Python's gradient is C++'s to the bit, and so is what it gives for other data of the same kind."""
    call = (ALONE | MIXED)[name]
    given = torch.arange(120.0).reshape(3, 40).remainder(7)

    def gradient(scale: float) -> tuple[torch.Tensor, str]:
        x = leaf()
        y = call(x / scale)
        y.backward(given.to(y.dtype))
        assert x.grad is not None and y.grad_fn is not None
        return x.grad, y.grad_fn.name()

    scales = (60.0, 45.0)
    found = [[gradient(scale) for scale in scales] for _ in range(4)]
    native.unload()
    expected = [gradient(scale)[0] for scale in scales]
    assert all(torch.equal(one, other) for turn in found for (one, _), other in zip(turn, expected, strict=True))
    assert [node for _, node in found[-1]] == ["ScanBackward"] * 2
    assert native.learnt() == 1 + (name in ALONE)  # backward pass and forward
    calls.forget()
    assert all(torch.equal(gradient(scale)[0], other) for scale, other in zip(scales, expected, strict=True))


def test_higher_orders_of_every_operator(counted: Counted) -> None:
    x = torch.randn(2, 40, dtype=torch.float64, requires_grad=True)
    gate = torch.rand(2, 40, dtype=torch.float64, requires_grad=True)

    def call(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return scanops.linear_scan(gate, x, 1) + scanops.logcumsumexp(x, 1) + scanops.cumsum(x, 1, mask=MASK) ** 2

    for _ in range(4):
        call(x, gate).sum().backward()
    assert counted.calls > 0
    assert torch.autograd.gradcheck(call, (x, gate), fast_mode=True)
    assert torch.autograd.gradgradcheck(call, (x, gate), fast_mode=True)


def test_which_inputs_want_a_gradient(counted: Counted) -> None:
    """Told apart, although the calls are alike."""
    for _ in range(4):
        for wanted in ((True, False), (False, True), (True, True), (False, False)):
            a, b = (leaf().detach().div(60).requires_grad_(want) for want in wanted)
            y = scanops.linear_scan(a, b, 1)
            assert (y.grad_fn is not None) == any(wanted)
            if any(wanted):
                y.sum().backward()
            assert [each.grad is not None for each in (a, b)] == list(wanted)
    assert counted.calls > 0 and native.learnt() == 1 + 3


STATE = torch.tensor([2.0, -1.0, 0.5])
CHUNKS: dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "sum": lambda x, state: scanops.cumsum(x, 1, initial=state, return_final=True),
    "product": lambda x, state: scanops.cumprod(x, 1, initial=state, return_final=True, exclusive=True, mask=MASK),
    "recurrence": lambda x, state: scanops.linear_scan(GATE, x, 1, initial=state, return_final=True, reverse=True),
    "recurrence of gates": lambda x, state: scanops.linear_scan(x, GATE, 1, initial=state, return_final=True),
    "least": lambda x, state: scanops.scan(x, "min", 1, initial=state, return_final=True),
    "logarithms": lambda x, state: scanops.logcumsumexp(x, 1, initial=state, return_final=True),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_a_stream_in_chunks(name: str, counted: Counted) -> None:
    """The gradients of what lines go on from, and of what goes on from them, whichever results are used."""
    call = CHUNKS[name]

    def gradients(used: str, scale: float) -> list[torch.Tensor]:
        x = leaf().detach().div(scale).requires_grad_()
        state = STATE.clone().requires_grad_()
        y, final = call(x, state)
        seen.append(y.grad_fn.name())
        parts = {"result": y * GATE, "final": final * STATE}
        number = torch.stack([part.sum() for key, part in parts.items() if key in used]).sum()
        return list(torch.autograd.grad(number, (x, state)))

    seen: list[str] = []
    cases = [(used, scale) for used in ("result", "final", "result and final") for scale in (60.0, 45.0)]
    found = [[gradients(*case) for case in cases] for _ in range(4)]
    assert seen[-len(cases) :] == ["ScanBackward"] * len(cases) and counted.calls > 0
    native.unload()
    calls.forget()
    seen.clear()
    for turn in found:
        for ours, case in zip(turn, cases, strict=True):
            for one, other in zip(ours, gradients(*case), strict=True):
                assert torch.equal(one, other)
    assert "ScanBackward" not in seen


def test_two_inputs_that_are_one(counted: Counted) -> None:
    """What is learnt of a tensor that is x and gate at once says nothing of two that are not."""
    for turn in range(8):
        a = leaf().detach().div(60).requires_grad_()
        b = a if turn < 4 else torch.ones(3, 40, requires_grad=True)
        scanops.linear_scan(a, b, 1).backward(a.detach())
    native.unload()
    calls.forget()
    other = leaf().detach().div(60).requires_grad_()
    scanops.linear_scan(other, torch.ones(3, 40), 1).backward(other.detach())
    assert a.grad is not None and other.grad is not None and torch.equal(a.grad, other.grad)


def test_the_policy_of_a_forward_pass(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever block the backward pass is in."""
    seen: list[str | None] = []
    backward_pass = node.backward_pass

    def watched(kind: object, needs: object, given: object, policy: str | None) -> object:
        seen.append(policy)
        return backward_pass(kind, needs, given, policy)  # type: ignore[arg-type]

    monkeypatch.setattr(node, "backward_pass", watched)
    for _ in range(3):
        with scanops.policy("generic"):
            y = scanops.cumsum(leaf(), 1)
        with scanops.policy("never"):
            z = scanops.cumsum(leaf(), 1)
    assert y.grad_fn.name() == z.grad_fn.name() == "ScanBackward"
    y.sum().backward()
    z.mul(2).sum().backward()
    assert seen == ["generic", "never"][: len(seen)] and seen


FOLLOWED: dict[str, Call] = {name: ALONE[name] for name in ("product", "cummax", "recurrence", "sum of segments")} | {
    "sum, masked, reverse": lambda x: scanops.cumsum(x, 1, mask=MASK, reverse=True),
    "chunk": lambda x: torch.cat(
        [
            each.reshape(3, -1)
            for each in scanops.linear_scan(GATE, x, 1, initial=x[:, 0].sin(), return_final=True, reverse=True)
        ],
        1,
    ),
}


def scanning_node(y: torch.Tensor) -> str:
    """The name of the node that a scan is, which the cat of a chunk stands before."""
    node = y.grad_fn
    while node is not None and not node.name().startswith("Scan"):
        node = node.next_functions[0][0]
    return "" if node is None else node.name()


@pytest.mark.parametrize("name", FOLLOWED)
def test_in_a_graph_of_compiled_autograd(name: str, counted: Counted) -> None:
    """One operation to who traces it, of whichever scan a node is."""
    torch.compiler.reset()
    graphs: list[list[str]] = []

    def note(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append([str(node.target) for node in graph.graph.nodes if "scanops" in str(node.target)])
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=note)

    def call(x: torch.Tensor) -> torch.Tensor:
        return FOLLOWED[name](x / 30)

    for _ in range(4):
        call(leaf()).sum().backward()
    for _ in range(2):  # the second time by the graph that there is
        x = leaf()
        (expected,) = torch.autograd.grad((call(x) ** 2).sum(), x)
        y = call(x)
        assert scanning_node(y) == "ScanBackward"
        total = (y**2).sum()
        with compiled_autograd._enable(lambda graph: torch.compile(graph, backend=backend, fullgraph=True)):
            (found,) = torch.autograd.grad(total, x)
        torch.testing.assert_close(found, expected)
    assert graphs == [["scanops.scan_backward.default"]]


def test_an_error_in_a_backward_pass(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's, out of C++ and autograd's engine as it was."""
    for _ in range(3):
        y = scanops.cumsum(leaf(), 1, reverse=True)
    assert y.grad_fn.name() == "ScanBackward"

    def broken(*_: object, **__: object) -> None:
        raise KeyError("broken")

    monkeypatch.setattr(node, "backward_pass", broken)
    with pytest.raises(KeyError, match="broken"):
        y.backward(torch.ones(3, 40))
