"""The native gradient of a sum is autograd's in every respect: values, orders, hooks, versions, lifetimes."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo import compiled_autograd
from torch._dynamo.backends.common import aot_autograd

import scanops
from scanops import dispatch, policies
from tests.native.conftest import Counted
from tests.store.sources import needs_cxx

pytestmark = needs_cxx

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


def test_any_order(counted: Counted) -> None:
    native_node(lambda x: scanops.cumsum(x, 1, mask=MASK), torch.float64)

    def call(x: torch.Tensor) -> torch.Tensor:
        return scanops.cumsum(x, 1, mask=MASK) ** 2

    x = torch.randn(3, 40, dtype=torch.float64, requires_grad=True)
    before = counted.calls
    assert torch.autograd.gradcheck(call, (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(call, (x,), fast_mode=True)
    assert counted.calls > before


def test_autograd_s_own_rules(counted: Counted) -> None:
    y = native_node(lambda x: scanops.cumsum(x, 1))
    (x,) = [edge.variable for edge, _ in y.grad_fn.next_functions]
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


def test_a_mask_that_was_changed_or_let_go(counted: Counted) -> None:
    native_node(lambda x: scanops.cumsum(x, 1, mask=MASK))
    mask, x = MASK.clone(), leaf()
    y = scanops.cumsum(x, 1, mask=mask)
    assert y.grad_fn.name() == "ScanBackward"
    mask.logical_not_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = scanops.cumsum(x, 1, mask=MASK)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_what_is_left_to_python(counted: Counted) -> None:
    """Gradients of others than sums, of weights, and of converted items."""
    weights = torch.linspace(0, 1, 40)
    calls: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: scanops.cumprod(x, 1),
        lambda x: scanops.cumsum(x, 1, mask=weights),
        lambda x: scanops.cumsum(x, 1, dtype=torch.float64),
        lambda x: scanops.cumsum(torch.ones(3, 40), 1, mask=x),
    ]
    for call in calls:
        results = []
        for _ in range(4):
            x = leaf()
            call(x / 60).sum().backward()
            results.append(x.grad)
        assert counted.calls == 0 and all(torch.equal(results[0], each) for each in results)


def test_nothing_is_kept(counted: Counted) -> None:
    native_node(lambda x: scanops.cumsum(x, 1, mask=MASK))
    x, mask = leaf().detach().clone().requires_grad_(), MASK.clone()
    y = scanops.cumsum(x, 1, mask=mask)
    assert y.grad_fn.name() == "ScanBackward"
    watched = [weakref.ref(each) for each in (x, mask, y)]  # the node keeps the mask
    gc.disable()
    try:
        y.sum().backward()
        del x, mask, y
        assert [each() for each in watched] == [None] * 3  # by counting alone: there is no cycle
    finally:
        gc.enable()


def test_the_policy_of_the_forward_call(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the node's gradient is Python's turn, which is in a thread of autograd's own on a GPU."""
    native_node(lambda x: scanops.cumsum(x, 1))
    seen: list[str | None] = []
    outputs = dispatch.outputs
    monkeypatch.setattr(dispatch, "outputs", lambda *a, **k: seen.append(policies.scoped()) or outputs(*a, **k))
    for name in ("generic", "fallback", None):
        x = leaf()
        with contextlib.nullcontext() if name is None else scanops.policy(name):
            y = scanops.cumsum(x, 1)
        assert y.grad_fn.name() == "ScanBackward"
        seen.clear()
        thread = threading.Thread(target=lambda y=y: y.backward(torch.ones(3, 40)))  # emulates nothing: Python's turn
        thread.start()
        thread.join()
        assert seen == [name] and x.grad is not None
        torch.testing.assert_close(x.grad, torch.ones(3, 40).flip(1).cumsum(1).flip(1))


@pytest.mark.parametrize("masked", [False, True])
def test_in_a_graph_of_compiled_autograd(masked: bool, counted: Counted) -> None:
    """One operation to who traces it, of whichever scan a node is."""
    mask = MASK if masked else None
    torch.compiler.reset()
    graphs: list[list[str]] = []

    def note(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append([str(node.target) for node in graph.graph.nodes if "scanops" in str(node.target)])
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=note)
    for reverse in (False, True):

        def call(x: torch.Tensor, reverse: bool = reverse) -> torch.Tensor:
            return scanops.cumsum(x, 1, mask=mask, reverse=reverse)

        native_node(call)
        for again in range(2):  # the second time by the graph that there is
            x = leaf()
            (expected,) = torch.autograd.grad((call(x) ** 2).sum(), x)
            y = call(x)
            assert y.grad_fn is not None and y.grad_fn.name() == "ScanBackward"
            total = (y**2).sum()
            with compiled_autograd._enable(lambda graph: torch.compile(graph, backend=backend, fullgraph=True)):
                (found,) = torch.autograd.grad(total, x)
            torch.testing.assert_close(found, expected)
            assert again == 0 or graphs[-1] == ["scanops.scan.default"]
    assert len(graphs) == 2


def test_an_error_in_a_backward_pass(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's, out of C++ and autograd's engine as it was."""
    for _ in range(3):
        y = scanops.cumsum(leaf(), 1, reverse=True)
    assert y.grad_fn.name() == "ScanBackward"

    def broken(*_: object, **__: object) -> None:
        raise KeyError("broken")

    monkeypatch.setattr("scanops.dispatch.outputs", broken)
    with pytest.raises(KeyError, match="broken"):
        y.backward(torch.ones(3, 40))
