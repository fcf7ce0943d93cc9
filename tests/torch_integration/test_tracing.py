"""What tracers and compilers meet beside plain calls: an ``out``, unknown lengths, numbers, wrong calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import scanops
from scanops.errors import UnsupportedRequest
from tests.torch_integration.columns import as_one_function
from tests.torch_integration.compilers import QUICKLY, following
from tests.torch_integration.rows import ROWS, Tensors, close, hold

Scan = Callable[[torch.Tensor], torch.Tensor]
eagerly = partial(torch.compile, fullgraph=True, backend="aot_eager")


def alone(call: Callable[..., torch.Tensor]) -> Callable[..., Tensors]:
    """Return the call with its one result as a tuple."""
    return lambda *given: (call(*given),)


@pytest.fixture(autouse=True)
def new_compiler() -> Iterator[None]:
    """Compile anew, with lengths that only the data say."""
    torch.compiler.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


# ---- results that are written into tensors of the caller


def into(x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return scanops.cumsum(x, -1, mask=x[:1] > 0.5, out=values)


def in_place(x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return scanops.cumprod(values.copy_(x), -1, out=values)


def into_a_pair(x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return scanops.cummax(x, -1, out=(values, indices)).indices


def traced_as(tracing_mode: str) -> Callable[..., Any]:
    return lambda function, *given: make_fx(torch.func.functionalize(function), tracing_mode=tracing_mode)(*given)


WAYS: dict[str, Callable[..., Any]] = {
    "functionalize": lambda function, *given: torch.func.functionalize(function),
    **{f"make_fx, {mode}": traced_as(mode) for mode in ("real", "fake", "symbolic")},
    "compile": lambda function, *given: eagerly(function),
    "jit.trace": lambda function, *given: torch.jit.trace(function, given, check_trace=False),
    "vmap": lambda function, *given: torch.vmap(function),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [into, in_place, into_a_pair])
def test_out(function: Callable[..., torch.Tensor], way: str) -> None:
    """Functionalized tensors lie at no address, those of vmap are of a batch; the caller's are written all the same."""

    def given(seed: int) -> Tensors:
        x = torch.rand(3, 5, generator=torch.Generator().manual_seed(seed))
        return x, torch.zeros(3, 5), torch.zeros(3, 5, dtype=torch.int64)

    mine, theirs = given(1), given(1)
    if way == "vmap":
        expected = torch.stack([function(*parts) for parts in zip(*theirs, strict=True)])
    else:
        expected = function(*theirs)
    torch.testing.assert_close(WAYS[way](function, *given(0))(*mine), expected)
    close(mine, theirs)


# ---- lengths that no compiler knows: of what a mask selects

UNKNOWN: dict[str, Scan] = {
    "sum": lambda x: scanops.cumsum(x, 0, exclusive=True),
    "columns": lambda x: scanops.cumprod(x[:, None] * torch.ones(3), 0, mask=torch.tensor([True, False, True])),
    "rows": lambda x: scanops.cumsum(x[:, None] * torch.ones(3), 1, initial=x),
    "recurrence": lambda x: scanops.linear_scan(x.sigmoid(), x, 0, return_final=True)[0],
    "a gate of one item": lambda x: scanops.linear_scan(torch.full((1,), 0.5), x, 0),
    "a gate for each row": lambda x: scanops.linear_scan(x[:, None], torch.ones(1, 3), 1),
    "segments": lambda x: scanops.logcumsumexp(x, 0, segment_starts=x > 0.5, reverse=True),
    "map": lambda x: scanops.scan((x, x.sum()), "sum", 0, map=torch.mul, then=lambda y, x, w: y - x),
    "gate that is a number": lambda x: scanops.linear_scan(0.5, x, 0),
    "out": lambda x: x + scanops.cumsum(x.detach(), 0, out=torch.empty_like(x)),
}
# Two that are equal, which only the data say
Selecting = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
EQUAL: dict[str, Selecting] = {
    "recurrence of two": lambda x, keep: scanops.linear_scan(x[keep].sigmoid(), (2 * x)[keep], 0),
    "mask of two": lambda x, keep: scanops.cumsum(x[keep], 0, mask=(x > 0.5)[keep]),
    "carry-in of two": lambda x, keep: scanops.cumprod(x[keep][:, None] * torch.ones(3), 1, initial=(x + 1)[keep]),
}
SELECTING = EQUAL | {name: lambda x, keep, scan=scan: scan(x[keep]) for name, scan in UNKNOWN.items()}


@pytest.mark.parametrize("name", SELECTING)
def test_lengths_that_no_compiler_knows(name: str) -> None:
    compiled = eagerly(SELECTING[name], dynamic=True)
    for length in (7, 9):
        keep = torch.arange(2 * length).reshape(2, length) % 3 != 0
        hold(alone(compiled), alone(SELECTING[name]), (torch.rand(2, length), keep))


def test_unknown_lengths_that_differ() -> None:
    x, keep = torch.rand(2, 8), torch.arange(16).reshape(2, 8) < 5
    compiled = eagerly(lambda x, keep, other: scanops.cumsum(x[keep], 0, mask=x[other] > 0), dynamic=True)
    torch.testing.assert_close(compiled(x, keep, keep), x[keep].cumsum(0))
    with pytest.raises(RuntimeError, match="Eq"):
        compiled(x, keep, ~keep)


# ---- what is met while tracing

WRONG: dict[str, tuple[Scan, str]] = {
    "cumsum: out must have x's shape": (lambda x: scanops.cumsum(x, 1, out=torch.empty(7)), "out.shape="),
    "scan: op must be an operator of one tensor": (lambda x: scanops.scan(x, "cummax", 1), "call scanops.cummax"),
    "cummax: out must be a pair of tensors": (lambda x: scanops.cummax(x, 1, out=x).values, "out is a Tensor"),  # type: ignore[arg-type]
    "scan: no kernel computes this expression: cumsum": (
        lambda x: scanops.scan(x, "sum", 1, map=lambda x: x.cumsum(0)),
        "line",
    ),
    "scan: 'cummax' needs another call": (lambda x: scanops.scan(x, "cummax", 1, map=torch.exp), "scanops.cummax"),
    "linear_scan: a must be a tensor": (lambda x: scanops.linear_scan("0.5", x, 1), "a='0.5'"),  # type: ignore[call-overload]
}


@pytest.mark.parametrize("asked", WRONG)
def test_a_wrong_call_that_is_met_while_tracing(asked: str) -> None:
    call, value = WRONG[asked]
    shown = f"[\"']{asked}" if torch.__version__ >= (2, 13) else ""  # torch 2.11 names the error and no more
    with pytest.raises(torch._dynamo.exc.Unsupported, match=f"UnsupportedRequest\\({shown}"):
        torch.compile(call, fullgraph=True, backend="eager")(torch.rand(2, 5))
    with pytest.raises(UnsupportedRequest, match=value):
        torch.compile(call, backend="eager")(torch.rand(2, 5))


def test_an_error_that_a_compiled_function_catches() -> None:
    def scan(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        try:
            return scanops.cumsum(x, 1, out=out)
        except UnsupportedRequest:
            return scanops.cumsum(x, 1) + 1

    x = torch.rand(2, 5)
    function = torch.compile(scan, fullgraph=True, backend="eager")
    torch.testing.assert_close(function(x, torch.empty(3)), x.cumsum(1) + 1)


class Recurrence(torch.autograd.Function):
    """A gradient of the program's own, made of scans, in whose backward pass Dynamo refuses questions about layout."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        h = scanops.linear_scan(a, b, 1)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, h = ctx.saved_tensors
        of_b = scanops.linear_scan(torch.nn.functional.pad(a[:, 1:], (0, 1)), gradients[0], 1, reverse=True)
        return of_b * torch.nn.functional.pad(h[:, :-1], (1, 0)), of_b


def gated(y: Any, a: Any, b: Any) -> Any:
    return torch.where((y > 0) & (a < 1), y.type_as(a) + SHIFT, a - b)


SHIFT = 0.5
LATER = scanops.operator(fields=("h",), combine=lambda older, newer: older.h + newer.h + older.h * newer.h)
COMPILED: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any]]] = {
    "scans in a backward pass": (Recurrence.apply, lambda a, b: scanops.linear_scan(a, b, 1), {}),
    "a new operator": (lambda a, b: scanops.scan(a, LATER, 1) * b, lambda a, b: (torch.cumprod(1 + a, 1) - 1) * b, {}),
    "map": (
        lambda a, b: (lambda n: scanops.scan((a, b), "linear", -1, map=lambda a, b: (a.tanh(), n * b), then=gated))(
            2.0
        ),
        lambda a, b: gated(scanops.linear_scan(a.tanh(), 2 * b, 1), a, b),
        {"backend": "inductor", "options": QUICKLY},
    ),
    "fused by inductor": (
        lambda a, b: (scanops.cumprod(a, 1, initial=2.0) + 1) * b,
        lambda a, b: (a.cumprod(1) * 2 + 1) * b,
        {"backend": "inductor", "options": QUICKLY},
    ),
}


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_function(name: str) -> None:
    ours, right, options = COMPILED[name]
    hold(alone(eagerly(ours, **options)), alone(right), (torch.rand(2, 5), torch.rand(2, 5)))


@pytest.mark.parametrize("number", [3, 2.5, True, -1])
def test_a_carry_in_that_is_a_number(number: float) -> None:
    x = torch.rand(2, 5)
    function = eagerly(lambda x, n: scanops.cumsum(x, 1, initial=n))
    for n in (number, number * 2):  # the second time a symbol
        torch.testing.assert_close(function(x, n), torch.cumsum(x, 1) + n)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ["`mask` that multiplies", "`cummax`", "`linear_scan`"])
def test_transforms_in_a_compiled_function(name: str) -> None:
    """A derivative that a compiler does not see would be zeros."""
    total, by_torch, at = as_one_function(ROWS[name])
    tangent = torch.rand_like(at)

    def transformed(x: torch.Tensor) -> Tensors:
        slope = torch.func.grad(total)
        both = torch.func.vmap(slope)(torch.stack([x, x]))
        return slope(x), torch.func.jvp(total, (x,), (tangent,))[1], both[1]

    expected = torch.autograd.functional.jacobian(by_torch, at)
    close(eagerly(transformed)(at), (expected, expected @ tangent, expected))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the policy: no kernel is built for this
def test_compiled_autograd_tells_scans_apart() -> None:
    """Backward passes of one shape, one after the other: a graph is not taken for that of another scan."""
    scan = partial(torch.ops.scanops.scan, mask=None, gate=None, segment_starts=None, offsets=None, initial=None)
    calls: list[Scan] = [
        *(lambda x, dim=dim: scanops.cumsum(x, dim) for dim in (1, 0)),
        *(lambda x, reverse=reverse: scanops.cumprod(x, 1, reverse=reverse) for reverse in (False, True)),
        *(lambda x, dim=dim, op=op: scan(x, dim=dim, op=op)[0] for dim, op in ((1, "sum"), (1, "prod"), (0, "prod"))),
    ]
    with scanops.emulate(), scanops.policy("fallback"):
        for call in calls:
            hold(alone(call), alone(call), (torch.rand(2, 5),), backward=following([]))


cumsum = scanops.cumsum
torch.fx.wrap("cumsum")


def test_traced_by_fx() -> None:
    def scan(x: torch.Tensor, keep: torch.Tensor) -> Any:
        return cumsum(x, 1, mask=keep, return_final=True)

    x, keep = torch.rand(2, 5), torch.rand(5) > 0.5
    close(torch.fx.symbolic_trace(scan)(x, keep), scan(x, keep))
    with pytest.raises(UnsupportedRequest, match=r"x=Proxy\(x\)\n(.|\n)*torch.fx.wrap"):
        torch.fx.symbolic_trace(lambda x: scanops.cumprod(x, 1))


# ---- numbers that functions see, and that change

FACTOR: Any = 2.0


@pytest.mark.parametrize(("fullgraph", "dynamic"), [(True, None), (True, True), (False, None), (False, False)], ids=str)
def test_numbers_that_change(fullgraph: bool, dynamic: bool | None) -> None:
    """Globals and closures, in products, comparisons and as results; a program is followed anew for each number."""
    global FACTOR
    limit: Any = 1.5
    settings = {name: getattr(torch._dynamo.config, name) for name in ("specialize_int", "specialize_float")}

    def function(x: torch.Tensor, step: Any) -> torch.Tensor:
        y = x * step + FACTOR  # also read outside
        y = scanops.scan(
            (y,), "sum", 0, map=lambda y: y * FACTOR + step, then=lambda s, y: torch.where(s > limit, s, y)
        )
        count = scanops.scan((x,), "sum", 0, map=lambda x: (x < limit).to(torch.float32) * 2 + (x == limit))
        return y + count + scanops.scan((x,), "max", 0, map=lambda x: x / step)

    compiled = torch.compile(function, fullgraph=fullgraph, dynamic=dynamic, backend="eager")
    x = torch.tensor([0.5, 1.5, 2.5, 40.0])
    for numbers in ((2.0, 1.5, 1), (5.0, 1.5, 1), (5, 2.5, 2), (-1.0, 2.5, 3), (-1.0, 40, 0.5), (7, 0.5, 0.25)):
        FACTOR, limit, step = numbers
        torch.testing.assert_close(compiled(x, step), function(x, step))
    assert settings == {name: getattr(torch._dynamo.config, name) for name in settings}


def test_settings_of_the_compiler_outlive_a_function_that_fails() -> None:
    names = ("specialize_int", "specialize_float")
    settings = [getattr(torch._dynamo.config, name) for name in names]
    x = torch.rand(4)
    for fullgraph in (True, False):
        call = torch.compile(
            lambda x: scanops.scan((x,), "sum", 0, map=lambda x: torch.fft.fft(x)), fullgraph=fullgraph, backend="eager"
        )
        with pytest.raises(Exception, match="fft"):
            call(x)
        assert settings == [getattr(torch._dynamo.config, name) for name in names]
