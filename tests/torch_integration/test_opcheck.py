"""torch.library.opcheck of the operations that rows call, below modes: one each forwards and backwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck

import scanops
from scanops.codegen.operators import BUILT_IN
from scanops.ops import BACKWARD
from tests.requests.test_allocations import LAYOUTS as LAID
from tests.torch_integration.comparing import Noting, floating, leaves, step
from tests.torch_integration.rows import DIM, ROWS, Row

OTHERS = ("min", "bitwise_and", "bitwise_or", "logical_and", "logical_or")
CALLS = ROWS | {
    op: Row(
        name=op,
        call=lambda x, op=op: scanops.scan(x, op, DIM, initial=True, return_final=True, exclusive=True),
        composed=None,
        operands=("whole",),
    )
    for op in OTHERS
}
LAYOUTS = ("dense", "transposed", "strided", "expanded")


def alone(tensor: torch.Tensor, function: Any) -> torch.Tensor:
    """Return an argument of an operation without the graph that it came of."""
    return tensor.detach().requires_grad_(tensor.requires_grad and function is not BACKWARD)


@pytest.mark.parametrize(
    ("layout", "device"),
    [*((layout, "cpu") for layout in LAYOUTS), pytest.param("transposed", "cuda", marks=pytest.mark.gpu)],
)
@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str, layout: str, device: str) -> None:
    tensors = [each.to(device) for each in CALLS[name].tensors()]
    with Noting() as mode:
        step(CALLS[name], tuple(LAID[layout](each) if each.ndim == 2 else each for each in tensors))
    assert len(mode.calls) == 1 + bool(floating(tensors))
    for function, given, kwargs in mode.calls:
        args = tuple(alone(each, function) if isinstance(each, torch.Tensor) else each for each in given)
        tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
        tests += ["test_aot_dispatch_dynamic"] if layout == "transposed" else []  # which takes ten times as long
        assert set(opcheck(function, args, kwargs, test_utils=tests).values()) == {"SUCCESS"}


def test_every_operator_is_checked() -> None:
    with Noting() as mode:
        for row in CALLS.values():
            row(*row.tensors())
    assert {args[7] for _, args, _ in mode.calls} >= BUILT_IN.keys()


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if floating(row.tensors())])
def test_second_derivatives(name: str) -> None:
    """Below a mode a call is an operation, whose derivatives are its own."""
    with Noting() as mode:
        assert gradgradcheck(lambda *given: tuple(floating(ROWS[name](*given))), leaves(ROWS[name].tensors())[0])
    assert mode.calls


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_modes_see_what_kernels_compute(tracing_mode: str) -> None:
    """A kernel that ran behind a mode's back would be a constant to a tracer."""
    x, other = torch.rand(2, 2, 5)
    with scanops.emulate():
        with Noting() as mode:
            y = scanops.cumsum(x, 1)
        assert len(mode.calls) == 1 and torch.equal(y, scanops.cumsum(x, 1))
        opcheck(*mode.calls[0])
        graph = make_fx(lambda x: scanops.cummax(x, 1).indices, tracing_mode=tracing_mode)(x)
        assert torch.equal(graph(other), scanops.cummax(other, 1).indices)
