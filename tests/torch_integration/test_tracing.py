"""What tracers meet beside plain calls: an ``out``, lengths that nobody knows, calls with something wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import scanops

Scan = Callable[[torch.Tensor], torch.Tensor]


def _into(x: torch.Tensor) -> torch.Tensor:
    return scanops.cumsum(x, 1, out=torch.empty_like(x))


def _in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return scanops.cumprod(y, 1, out=y)


def _into_pair(x: torch.Tensor) -> torch.Tensor:
    return scanops.cummax(x, 1, out=(torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)))[1]


@pytest.mark.parametrize("tracing_mode", ["", "real", "fake", "symbolic"])
@pytest.mark.parametrize("function", [_into, _in_place, _into_pair])
def test_out_where_nothing_is_changed(function: Scan, tracing_mode: str) -> None:
    """What ``functionalize`` wraps lies at no address: two such tensors share no memory for that."""
    x, other = torch.rand(2, 3, 5)
    functional = torch.func.functionalize(function)
    if tracing_mode:
        functional = make_fx(functional, tracing_mode=tracing_mode)(x)
    torch.testing.assert_close(functional(other), function(other))


Selecting = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
UNKNOWN: dict[str, Scan] = {
    "sum": lambda x: scanops.cumsum(x, 0, exclusive=True),
    "columns": lambda x: scanops.cumprod(x[:, None] * torch.ones(3), 0, mask=torch.tensor([True, False, True])),
    "rows": lambda x: scanops.cumsum(x[:, None] * torch.ones(3), 1, initial=x),
    "recurrence": lambda x: scanops.linear_scan(x.sigmoid(), x, 0, return_final=True)[0],
    "a gate of one item": lambda x: scanops.linear_scan(torch.full((1,), 0.5), x, 0),
    "a gate for each row": lambda x: scanops.linear_scan(x[:, None], torch.ones(1, 3), 1),
    "segments": lambda x: scanops.logcumsumexp(x, 0, segment_starts=x > 0.5, reverse=True),
    "out": lambda x: x + scanops.cumsum(x.detach(), 0, out=torch.empty_like(x)),
}
# Two that are equal, which only the data say
EQUAL: dict[str, Selecting] = {
    "recurrence": lambda x, keep: scanops.linear_scan(x[keep].sigmoid(), (2 * x)[keep], 0),
    "mask": lambda x, keep: scanops.cumsum(x[keep], 0, mask=(x > 0.5)[keep]),
    "what rows begin with": lambda x, keep: scanops.cumprod(x[keep][:, None] * torch.ones(3), 1, initial=(x + 1)[keep]),
}


@pytest.fixture
def unknown_lengths() -> Iterator[None]:
    torch.compiler.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


@pytest.mark.usefixtures("unknown_lengths")
@pytest.mark.parametrize(
    "function",
    [*(lambda x, keep, scan=scan: scan(x[keep]) for scan in UNKNOWN.values()), *EQUAL.values()],
    ids=[*UNKNOWN, *(f"{name} of two" for name in EQUAL)],
)
def test_lengths_that_no_compiler_knows(function: Selecting) -> None:
    """Of what a mask selects: nothing may be asked of them while a function is traced."""
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (7, 9):
        x = torch.rand(2, length, requires_grad=True)
        keep = torch.arange(2 * length).reshape(2, length) % 3 != 0
        found, expected = compiled(x, keep), function(x, keep)
        torch.testing.assert_close(found, expected)
        slopes = (torch.autograd.grad(y.square().sum(), x) for y in (found, expected))
        torch.testing.assert_close(*slopes)


@pytest.mark.usefixtures("unknown_lengths")
def test_unknown_lengths_that_differ() -> None:
    x, keep = torch.rand(2, 8), torch.arange(16).reshape(2, 8) < 5
    compiled = torch.compile(
        lambda x, keep, other: scanops.cumsum(x[keep], 0, mask=x[other] > 0),
        fullgraph=True,
        backend="aot_eager",
        dynamic=True,
    )
    torch.testing.assert_close(compiled(x, keep, keep), x[keep].cumsum(0))
    with pytest.raises(RuntimeError, match="Eq"):
        compiled(x, keep, ~keep)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_out_where_sizes_are_tensors() -> None:
    """As torch.jit.trace has it."""

    def scan(x: torch.Tensor) -> torch.Tensor:
        return scanops.cumsum(x, 1, mask=x[:1] > 0.5, out=torch.empty_like(x))

    traced, other = torch.jit.trace(scan, torch.rand(3, 5)), torch.rand(4, 7)
    torch.testing.assert_close(traced(other), scan(other))


WRONG: dict[str, tuple[Scan, str]] = {
    "cumsum: out must have x's shape": (lambda x: scanops.cumsum(x, 1, out=torch.empty(7)), "out.shape="),
    "scan: op must be an operator of one tensor": (lambda x: scanops.scan(x, "cummax", 1), "call scanops.cummax"),
    "cummax: out must be a pair of tensors": (lambda x: scanops.cummax(x, 1, out=x).values, "out is a Tensor"),  # type: ignore[arg-type]
    "linear_scan: a must be a tensor": (lambda x: scanops.linear_scan(0.5, x, 1), "a=0.5"),  # type: ignore[call-overload]
}


@pytest.mark.parametrize("asked", WRONG)
def test_a_wrong_call_that_is_met_while_tracing(asked: str) -> None:
    call, value = WRONG[asked]
    torch.compiler.reset()
    shown = f"[\"']{asked}" if torch.__version__ >= (2, 13) else ""  # torch 2.11 names the error and no more
    with pytest.raises(torch._dynamo.exc.Unsupported, match=f"UnsupportedRequest\\({shown}"):
        torch.compile(call, fullgraph=True, backend="eager")(torch.rand(2, 5))
    with pytest.raises(scanops.errors.UnsupportedRequest, match=value):
        torch.compile(call, backend="eager")(torch.rand(2, 5))


def test_an_error_that_a_compiled_function_catches() -> None:
    torch.compiler.reset()

    def scan(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        try:
            return scanops.cumsum(x, 1, out=out)
        except scanops.errors.UnsupportedRequest:
            return scanops.cumsum(x, 1) + 1

    x = torch.rand(2, 5)
    function = torch.compile(scan, fullgraph=True, backend="eager")
    torch.testing.assert_close(function(x, torch.empty(3)), x.cumsum(1) + 1)
