"""Which kernels run below transforms, subclasses, compilers and threads; modules; autocast of the operators."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.testing._internal.two_tensor import TwoTensor

import scanops
from scanops.errors import DimensionOutOfRange, UnsupportedRequest
from scanops.ops import BACKWARD
from scanops.runtime import kernels
from tests.requests.test_allocations import LAYOUTS as LAID
from tests.torch_integration.columns import Mine, autocasting, need
from tests.torch_integration.page import HEAD, PAGE, cells
from tests.torch_integration.rows import DIM, ROWS, Noting, Row, Tensors, close, floating, step


def test_lengths_that_change_have_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    compiled = partial(torch.compile, lambda x: scanops.cumsum(x, -1), fullgraph=True, backend="aot_eager")
    function, fixed = compiled(dynamic=True), compiled(dynamic=False)
    found, obtain = [], kernels.obtain
    monkeypatch.setattr(kernels, "obtain", lambda *given: found.append(obtain(*given)) or found[-1])
    with scanops.emulate():
        for length in (1231, 1237, 1249):  # of which no other test has a kernel
            x = torch.rand(2, length)
            torch.testing.assert_close(function(x), x.cumsum(-1))
        (served,) = {kernel.spec for kernel in found if kernel is not None}
        assert served.takes_length
        fixed(torch.rand(2, 37))
        assert found[-1].spec.length == 37


def test_a_batch_is_one_scan() -> None:
    """Of lines, masks and carry-ins; offsets that differ within the batch become flags, beside carries not."""
    x, keep = torch.rand(4, 2, 6), torch.rand(4, 6) > 0.3
    offsets, initial = torch.tensor([[0, 2, 6], [0, 3, 6], [0, 0, 6], [0, 6, 6]]), torch.rand(4, 2)

    def scan(x: torch.Tensor, keep: torch.Tensor, offsets: torch.Tensor) -> Any:
        return scanops.cumsum(x, 1, mask=keep, offsets=offsets, return_final=True)

    def carry(x: torch.Tensor, offsets: torch.Tensor, initial: torch.Tensor) -> Any:
        return scanops.cumsum(x, 1, offsets=offsets, initial=initial[0], return_final=True)

    expected = [scan(*each) for each in zip(x, keep, offsets, strict=True)]
    carried = [carry(*each) for each in zip(x, offsets, initial, strict=True)]
    with scanops.emulate(), scanops.record() as used:
        found = torch.func.vmap(scan)(x, keep, offsets)
        assert [(spec.segments, count) for (spec, *_), count in used.counts.items()] == [("flags", 1)]
        close(found, [torch.stack(parts) for parts in zip(*expected, strict=True)])
        found = torch.func.vmap(carry)(x, offsets, initial)
        close(found, [torch.stack(parts) for parts in zip(*carried, strict=True)])
        found = torch.func.vmap(lambda x, initial: scanops.cumsum(x, 1, initial=initial))(x, initial)
        close([found], [x.cumsum(2) + initial[:, :, None]])
        numbers = torch.func.vmap(lambda x: scanops.cumprod(x, 0, mask=x))(torch.tensor([2.0, 3.0]))
        half, weight = torch.ones(2, 3, dtype=torch.float16), torch.tensor([2.0, 3.0])
        kept = torch.func.vmap(lambda x, weight: scanops.cumsum(x, 0, mask=weight))(half, weight)
    assert numbers.tolist() == [4, 9]
    assert kept.dtype == torch.float16 and kept.tolist() == [[2, 4, 6], [3, 6, 9]], "a number lends its kind alone"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_errors_of_transforms_and_modes_are_those_of_calls() -> None:
    with pytest.raises(DimensionOutOfRange, match="-1 to 0"):
        torch.func.vmap(lambda x: scanops.cumsum(x, 1))(torch.rand(2, 5))
    with pytest.raises(UnsupportedRequest, match="expand or reshape mask"), FakeTensorMode():
        scanops.cumsum(torch.empty(2, 5), 1, mask=torch.empty(3, dtype=torch.bool))
    x, keep = torch.rand(2, 5), torch.ones(2, 5, dtype=torch.bool)
    traced = torch.jit.trace(lambda x, mask: scanops.cumsum(x, 1, mask=mask), (x, keep))
    with pytest.raises(RuntimeError, match="expand or reshape mask"):
        traced(x, keep[:, :4])


def test_autocast_of_the_operation_itself() -> None:
    with FakeTensorMode(), autocasting():
        x = torch.empty(2, 5, dtype=torch.bfloat16, device="cuda")
        nothing = (None,) * 5
        assert torch.ops.scanops.scan(x, *nothing, 1, "prod")[0].dtype == torch.float32
        assert torch.ops.scanops.scan(x, *nothing, 1, "max")[0].dtype == torch.bfloat16
        assert scanops.cumsum(x, 1, dtype=torch.bfloat16).dtype == torch.bfloat16
        assert scanops.cumsum(x.double(), 1).dtype == torch.float64
        assert scanops.cumsum(torch.empty(2, dtype=torch.float16), 0).dtype == torch.float16  # a CPU's


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
    for part, found in zip(parts, ((y.a, weight.grad.a), (y.b, weight.grad.b)), strict=True):
        x = part.clone().requires_grad_()
        expected = getattr(torch, name)(x, 0)
        close(found, (expected, *torch.autograd.grad(expected.sum(), x)))
    with FakeTensorMode():
        assert scan(torch.nn.Parameter(torch.ones(3)), 0).shape == (3,)


def test_a_subclass_without_a_meaning_of_its_own_is_served_by_kernels() -> None:
    with scanops.emulate(), scanops.record() as used:
        x = torch.rand(2, 29, dtype=torch.float64).as_subclass(Mine).requires_grad_()  # no other test's shape
        scanops.cumprod(x, 1, mask=torch.ones(29, dtype=torch.float64).as_subclass(Mine)).sum().backward()
    assert [spec.op for spec in used] == ["prod", "prod_gradient"]


A, X, KEEP, INITIAL = torch.rand(2, 5), torch.rand(2, 5), torch.rand(2, 5) > 0.5, torch.rand(2)
MODULES: dict[str, tuple[torch.nn.Module, Tensors, Callable[[], torch.Tensor]]] = {
    "CumSum(dim=-1, exclusive=True)": (scanops.nn.CumSum(exclusive=True), (X,), lambda: torch.cumsum(X, 1) - X),
    "CumProd(dim=0)": (scanops.nn.CumProd(0), (X,), lambda: torch.cumprod(X, 0)),
    "MaskedCumSum(dim=1)": (scanops.nn.MaskedCumSum(1), (X, KEEP), lambda: torch.cumsum(X * KEEP, 1)),
    "LinearRecurrence(dim=-1, reverse=True)": (
        scanops.nn.LinearRecurrence(reverse=True),
        (A, X, INITIAL),
        lambda: scanops.linear_scan(A, X, 1, initial=INITIAL, reverse=True),
    ),
}


@pytest.mark.parametrize("text", MODULES)
def test_modules(text: str) -> None:
    module, given, expected = MODULES[text]
    for each in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(each(*given), expected())
        assert repr(each) == text and not each.state_dict()


# ---- torch.library.opcheck of the operations that rows call, below modes: one each forwards and backwards

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


# ---- docs/pytorch.md says what is so: each cell of its table is tried again

PAGES = cells(PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def group_of_one() -> Iterator[None]:
    """Start the process group that DTensor needs."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "column"),
    [
        pytest.param(name, title, marks=[pytest.mark.gpu] * bool(column.gpus))
        for name in ROWS
        for title, column in HEAD.items()
    ],
)
def test_a_cell(name: str, column: str) -> None:
    need(HEAD[column].gpus)
    assert HEAD[column].cell(ROWS[name]) == PAGES[name, column], (
        "python -m tests.torch_integration.page writes the page"
    )


def test_the_table_is_of_these_rows_and_columns() -> None:
    assert list(PAGES) == [(name, column) for name in ROWS for column in HEAD]
