"""What the page's table does not show: which kernels run, what modes see, what is said of a wrong call, threads."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._dynamo import compiled_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import scanops
from scanops.codegen.spec import ScanSpec
from scanops.errors import DimensionOutOfRange, UnsupportedRequest
from scanops.runtime import kernels, policies
from tests.torch_integration.columns import as_one_function, autocasting
from tests.torch_integration.rows import COMPOUND, ROWS

Asked = list[ScanSpec]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The specs of kernels that served, in turn."""
    found: Asked = []
    obtain = kernels.obtain

    def noting(spec: ScanSpec, *others: Any) -> Any:
        kernel = obtain(spec, *others)
        if others[1] is not policies.STRICT:  # it serves in place of another
            found.append(kernel.spec if kernel is not None else spec)
        return kernel

    monkeypatch.setattr(kernels, "obtain", noting)
    return found


def test_lengths_that_change_have_one_kernel(asked: Asked) -> None:
    torch.compiler.reset()
    function = torch.compile(lambda x: scanops.cumsum(x, -1), fullgraph=True, backend="aot_eager", dynamic=True)
    with scanops.emulate():
        for length in (1231, 1237, 1249):  # of which no other test has a kernel
            x = torch.rand(2, length)
            torch.testing.assert_close(function(x), x.cumsum(-1))
        assert len(asked) == 3 and len(set(asked)) == 1 and asked[0].takes_length
    fixed = torch.compile(lambda x: scanops.cumsum(x, -1), fullgraph=True, backend="aot_eager", dynamic=False)
    with scanops.emulate():
        fixed(torch.rand(2, 37))
    assert asked[-1].length == 37


def test_a_batch_is_one_scan(asked: Asked) -> None:
    """Of lines, masks and what they begin with; other segments for each of the batch become flags."""
    x, keep = torch.rand(4, 2, 6), torch.rand(4, 6) > 0.3
    offsets, initial = torch.tensor([[0, 2, 6], [0, 3, 6], [0, 0, 6], [0, 6, 6]]), torch.rand(4, 2)

    def scan(x: torch.Tensor, keep: torch.Tensor, offsets: torch.Tensor, initial: torch.Tensor) -> Any:
        return scanops.cumsum(x, 1, mask=keep, offsets=offsets, initial=initial, return_final=True)

    expected = [scan(*each) for each in zip(x, keep, offsets, initial, strict=True)]
    with scanops.emulate():
        found = torch.func.vmap(scan)(x, keep, offsets, initial)
        assert len(asked) == 1 and asked[0].segments == "flags"
        for part, wanted in zip(found, zip(*expected, strict=True), strict=True):
            torch.testing.assert_close(part, torch.stack(wanted))
        numbers = torch.func.vmap(lambda x: scanops.cumprod(x, 0, mask=x))(torch.tensor([2.0, 3.0]))
        half, weight = torch.ones(2, 3, dtype=torch.float16), torch.tensor([2.0, 3.0])
        kept = torch.func.vmap(lambda x, weight: scanops.cumsum(x, 0, mask=weight))(half, weight)
    assert numbers.tolist() == [4, 9]
    assert kept.dtype == torch.float16 and kept.tolist() == [[2, 4, 6], [3, 6, 9]], "a number lends its kind alone"


def test_by_inductor() -> None:
    """The default compiler: fused around the scan, forwards and backwards."""
    torch.compiler.reset()
    x = torch.rand(3, 5, requires_grad=True)
    function = torch.compile(lambda x: (scanops.cumprod(x * 2, 1, initial=2.0) + 1) * 2, fullgraph=True)
    found, expected = function(x), ((x * 2).cumprod(1) * 2 + 1) * 2
    torch.testing.assert_close(found, expected)
    for one, other in zip(*(torch.autograd.grad(y.sum(), x) for y in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the policy: no kernel is built for this
def test_compiled_autograd_tells_scans_apart() -> None:
    """Backward passes of one shape, one after the other: a graph is not taken for that of another scan."""
    torch.compiler.reset()
    nothing = (None,) * 5
    scan = torch.ops.scanops.scan
    calls: list[tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = [
        (lambda x: scanops.cumsum(x, 1), lambda x: x.cumsum(1)),
        (lambda x: scanops.cumsum(x, 0), lambda x: x.cumsum(0)),
        (lambda x: scanops.cumprod(x, 1), lambda x: x.cumprod(1)),
        (lambda x: scanops.cumprod(x, 1, reverse=True), lambda x: x.flip(1).cumprod(1).flip(1)),
        (lambda x: scan(x, *nothing, 1, "sum"), lambda x: x.cumsum(1)),
        (lambda x: scan(x, *nothing, 1, "prod"), lambda x: x.cumprod(1)),
        (lambda x: scan(x, *nothing, 0, "prod"), lambda x: x.cumprod(0)),
    ]
    x = torch.rand(2, 5, requires_grad=True)
    with scanops.emulate(), scanops.policy("fallback"):
        for ours, theirs in calls:
            (expected,) = torch.autograd.grad(theirs(x).square().sum(), x)
            total = ours(x).square().sum()
            with compiled_autograd._enable(lambda graph: torch.compile(graph, fullgraph=True, backend="aot_eager")):
                (found,) = torch.autograd.grad(total, x)
            torch.testing.assert_close(found, expected)


class _Noting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def test_modes_see_one_operation() -> None:
    """A kernel that ran behind a mode's back would be a constant to a tracer."""
    x = torch.rand(2, 5)
    with scanops.emulate():
        with _Noting() as mode:
            y = scanops.cumsum(x, 1)
        assert mode.seen == ["scanops.scan.default"] and torch.equal(y, scanops.cumsum(x, 1))
        for mode_of_tracing in ("real", "fake", "symbolic"):
            graph = make_fx(lambda x: scanops.cummax(x, 1).indices, tracing_mode=mode_of_tracing)(x)
            other = torch.rand(2, 5)
            assert torch.equal(graph(other), scanops.cummax(other, 1).indices)


def test_a_wrong_call_is_told_as_everywhere() -> None:
    x = torch.rand(2, 5)
    with pytest.raises(DimensionOutOfRange, match="-1 to 0"):
        torch.func.vmap(lambda x: scanops.cumsum(x, 1))(x)
    with pytest.raises(UnsupportedRequest, match="expand or reshape mask"), FakeTensorMode():
        scanops.cumsum(torch.empty(2, 5), 1, mask=torch.empty(3, dtype=torch.bool))
    # Dynamo makes an error of its own of some of them, with these words in it.
    with pytest.raises((RuntimeError, DimensionOutOfRange), match="next: pass dim=-1 for the last dimension"):
        torch.compile(lambda x: scanops.cumsum(x, 7), fullgraph=True, backend="eager")(x)
    with pytest.raises((RuntimeError, UnsupportedRequest), match="expand or reshape mask"):
        torch.compile(lambda x: scanops.cumsum(x, 1, mask=x[:, :3]), fullgraph=True, backend="eager")(x)


@pytest.mark.parametrize("kind", ["cumsum", "cummax"])
def test_out_in_a_compiled_function(kind: str) -> None:
    x = torch.rand(2, 5)
    torch.compiler.reset()

    def put(x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        if kind == "cumsum":
            return scanops.cumsum(x, 1, out=values)
        return scanops.cummax(x, 1, out=(values, indices)).values

    values, indices = torch.empty(2, 5), torch.empty(2, 5, dtype=torch.int64)
    found = torch.compile(put, fullgraph=True, backend="aot_eager")(x, values, indices)
    expected = torch.cumsum(x, 1) if kind == "cumsum" else torch.cummax(x, 1).values
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(values, expected)


def test_out_in_a_batch() -> None:
    """torch's own scans have no rule for it."""
    x, out = torch.rand(3, 4), torch.empty(3, 4)
    found = torch.vmap(lambda x, out: scanops.cumsum(x, 0, out=out))(x, out)
    torch.testing.assert_close(found, x.cumsum(1))
    torch.testing.assert_close(out, x.cumsum(1))


class Recurrence(torch.autograd.Function):
    """Somebody's own gradient, made of scans."""

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


def test_scans_in_the_backward_of_a_compiled_function() -> None:
    """Where Dynamo lets nobody ask for a layout."""
    torch.compiler.reset()
    tensors = [torch.rand(2, 5, requires_grad=True) for _ in range(2)]
    function = torch.compile(Recurrence.apply, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(function(*tensors).sum(), tensors)
    expected = torch.autograd.grad(scanops.linear_scan(*tensors, 1).sum(), tensors)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("number", [3, 2.5, True, -1])
def test_a_line_that_begins_with_a_number(number: float) -> None:
    x = torch.rand(2, 5)
    torch.compiler.reset()
    function = torch.compile(lambda x, n: scanops.cumsum(x, 1, initial=n), fullgraph=True, backend="aot_eager")
    for n in (number, number * 2):  # the second time a symbol
        torch.testing.assert_close(function(x, n), torch.cumsum(x, 1) + n)


def test_autocast_of_the_operation_itself() -> None:
    with FakeTensorMode(), autocasting():
        x = torch.empty(2, 5, dtype=torch.bfloat16, device="cuda")
        nothing = (None,) * 5
        assert torch.ops.scanops.scan(x, *nothing, 1, "prod").dtype == torch.float32
        assert torch.ops.scanops.scan(x, *nothing, 1, "max").dtype == torch.bfloat16
        assert scanops.cumsum(x, 1, dtype=torch.bfloat16).dtype == torch.bfloat16
        assert scanops.cumsum(x.double(), 1).dtype == torch.float64
        assert scanops.cumsum(torch.empty(2, dtype=torch.float16), 0).dtype == torch.float16  # a CPU's


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"])
def test_autocast_on_a_gpu(name: str) -> None:
    x = torch.rand(2, 5, dtype=torch.float16, device="cuda", requires_grad=True)
    wide = x.detach().double().requires_grad_()
    with torch.autocast("cuda"):
        found, by_torch = getattr(scanops, name)(x, 1), getattr(torch, name)(x, 1)
    right = getattr(torch, name)(wide, 1)
    found, by_torch, right = (
        each if isinstance(each, torch.Tensor) else each.values for each in (found, by_torch, right)
    )
    assert found.dtype == by_torch.dtype
    torch.testing.assert_close(found, right.to(found.dtype))
    (one,), (other,) = torch.autograd.grad(found.sum(), x), torch.autograd.grad(right.sum(), wide)
    # torch's own is off by more than half a unit of float16: it is not what is right here
    torch.testing.assert_close(one, other.half())


@pytest.mark.parametrize("op", ["cumsum", "cummax"])
def test_threads_with_one_scan(op: str) -> None:
    """The same call of all at once, the first included, and its gradient: each thread has its own results."""
    xs = [torch.rand(2, 6) for _ in range(6)]
    start = threading.Barrier(len(xs))

    def total(module: Any, x: torch.Tensor) -> torch.Tensor:
        found = getattr(module, op)(x, 1)
        return (found if op == "cumsum" else found.values).square().sum()

    def slopes(module: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(total(module, x), x)[0]

    def work(x: torch.Tensor) -> list[torch.Tensor]:
        with scanops.emulate():
            start.wait(timeout=120)
            return [slopes(scanops, x) for _ in range(20)]

    with ThreadPoolExecutor(len(xs)) as pool:
        for x, future in zip(xs, [pool.submit(work, x) for x in xs], strict=True):
            expected = slopes(torch, x)
            for found in future.result(timeout=120):  # neither waits for the other for ever
                torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ["`mask` that multiplies", "`cummax`", "`linear_scan`"])
def test_transforms_in_a_compiled_function(name: str) -> None:
    """Where a derivative that a compiler does not see would be zeros."""
    torch.compiler.reset()
    total, by_torch, at = as_one_function(ROWS[name])
    tangent = torch.rand_like(at)

    def transformed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        slope = torch.func.grad(total)
        both = torch.func.vmap(slope)(torch.stack([x, x]))
        return slope(x), torch.func.jvp(total, (x,), (tangent,))[1], both[1]

    found = torch.compile(transformed, fullgraph=True, backend="aot_eager")(at)
    expected = torch.autograd.functional.jacobian(by_torch, at)
    for y, wanted in zip(found, (expected, expected @ tangent, expected), strict=True):
        torch.testing.assert_close(y, wanted)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_traced_by_torch_jit(asked: Asked) -> None:
    """What kernels have computed while it was traced is no constant; a call goes on being checked."""
    x, other = torch.rand(2, 6), torch.rand(3, 6)
    place = torch.empty(2, 6)
    with scanops.emulate():
        traced = torch.jit.trace(lambda x: scanops.cumsum(x * 2, 1, mask=x > 0.5), (x,))
        torch.testing.assert_close(traced(other), torch.where(other > 0.5, other * 2, 0).cumsum(1))
        into = torch.jit.trace(lambda x: scanops.cumsum(x, 1, out=place), (x,), check_trace=False)
        torch.testing.assert_close(into(x + 1), torch.cumsum(x + 1, 1))
    assert {spec.length for spec in asked} == {6}
    buffer = io.BytesIO()
    torch.jit.save(traced, buffer)
    buffer.seek(0)
    torch.testing.assert_close(torch.jit.load(buffer)(other), traced(other))
    with pytest.raises(DimensionOutOfRange, match="pass dim=-1 for the last dimension"):
        torch.jit.trace(lambda x: scanops.cumsum(x, 7), (x,))
    with pytest.raises(RuntimeError, match="expand or reshape mask"):
        torch.jit.trace(lambda x, mask: scanops.cumsum(x, 1, mask=mask), (x, x > 0.5))(x, torch.ones(4, 6).bool())


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp"])
def test_parameters_of_subclasses(name: str) -> None:
    """Such a parameter passes for an nn.Parameter, but has no memory of its own: DTensor's, as FSDP has them."""
    parts = [torch.rand(3, dtype=torch.float64) for _ in range(2)]
    weight, scan = torch.nn.Parameter(TwoTensor(*parts)), getattr(scanops, name)
    assert isinstance(weight, torch.nn.Parameter)
    with scanops.emulate():
        y = scan(weight, 0)
        y.sum().backward()
    assert type(y) is TwoTensor and type(weight.grad) is TwoTensor
    for part, found, gradient in zip(parts, (y.a, y.b), (weight.grad.a, weight.grad.b), strict=True):
        x = part.clone().requires_grad_()
        expected = getattr(torch, name)(x, 0)
        expected.sum().backward()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradient, x.grad)
    with FakeTensorMode():
        assert scan(torch.nn.Parameter(torch.ones(3)), 0).shape == (3,)


class Mine(torch.Tensor):
    pass


def test_a_class_that_means_nothing_to_operations_is_no_reason_to_go_without_kernels(asked: Asked) -> None:
    x = torch.rand(2, 29, dtype=torch.float64).as_subclass(Mine).requires_grad_()  # no other test's shape
    with scanops.emulate():
        y = scanops.cumprod(x, 1, mask=torch.ones(29, dtype=torch.float64).as_subclass(Mine))
        y.sum().backward()
    assert [spec.op for spec in asked] == ["prod", "prod", "prod_gradient"] and type(y) is Mine
    plain = x.detach().as_subclass(torch.Tensor).requires_grad_()
    torch.cumprod(plain, 1).sum().backward()
    torch.testing.assert_close(x.grad, plain.grad)


cumsum = scanops.cumsum
torch.fx.wrap("cumsum")


class Packed(torch.nn.Module):
    def __init__(self, scan: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.scan = scan

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> Any:
        return (self.scan or cumsum)(x, 1, mask=keep, return_final=True)


def test_traced_by_fx() -> None:
    x, keep = torch.rand(2, 5), torch.rand(5) > 0.5
    torch.testing.assert_close(torch.fx.symbolic_trace(Packed())(x, keep), cumsum(x, 1, mask=keep, return_final=True))
    with pytest.raises(UnsupportedRequest, match=r"x=Proxy\(x\)\n(.|\n)*torch.fx.wrap"):
        torch.fx.symbolic_trace(Packed(scanops.cumprod))


def test_an_operator_first_met_by_a_compiler() -> None:
    torch.compiler.reset()
    later = replace(COMPOUND, name="compound_later")
    x = torch.rand(2, 5)
    found = torch.compile(lambda x: scanops.scan(x, later, 1), fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, torch.cumprod(1 + x, 1) - 1)


def test_modules() -> None:
    a, x = torch.rand(2, 5), torch.rand(2, 5)
    keep, initial = a > 0.5, torch.rand(2)
    modules: list[tuple[torch.nn.Module, tuple[torch.Tensor, ...], torch.Tensor, str]] = [
        (scanops.nn.CumSum(exclusive=True), (x,), torch.cumsum(x, 1) - x, "CumSum(dim=-1, exclusive=True)"),
        (scanops.nn.CumProd(0), (x,), torch.cumprod(x, 0), "CumProd(dim=0)"),
        (scanops.nn.MaskedCumSum(1), (x, keep), torch.cumsum(x * keep, 1), "MaskedCumSum(dim=1)"),
        (
            scanops.nn.LinearRecurrence(reverse=True),
            (a, x, initial),
            scanops.linear_scan(a, x, 1, initial=initial, reverse=True),
            "LinearRecurrence(dim=-1, reverse=True)",
        ),
    ]
    for module, given, expected, text in modules:
        for each in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            torch.testing.assert_close(each(*given), expected)
            assert repr(each) == text and not each.state_dict()
