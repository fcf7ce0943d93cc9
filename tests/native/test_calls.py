"""Calls that are served natively give what Python gives: values, errors, and nothing where Python alone can serve."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

import scanops
from scanops.errors import LaunchFailure
from scanops.runtime import calls, native
from tests.native.conftest import Counted
from tests.requests.built import Built
from tests.requests.checks import refused
from tests.requests.recipes import OPS, WRONGS, Call, recipe
from tests.requests.test_allocations import Recorded
from tests.requests.test_fuzz import holds
from tests.store.sources import needs_cxx

pytestmark = needs_cxx

X = torch.arange(120.0).reshape(3, 40)


def taught(call: Callable[[], Any]) -> Any:
    """The third result of a call: Python checks the first, and remembers it at the second."""
    call(), call()
    return call()


def test_drawn_requests(counted: Counted) -> None:
    """Each at first by Python, then natively with other data, then with something wrong."""
    served: set[str] = set()
    for number, op in enumerate(OPS * 2):
        drawn = replace(recipe(random.Random(number).choice), op=op, shape=(3, 33), dim=number % 2)
        drawn = replace(drawn, initial=("none", "one for each line")[number // len(OPS)], initial_dtype=None)
        drawn = replace(drawn, accumulate=None, segments=("none", "flags")[number // len(OPS)])
        drawn = replace(drawn, mask=("bool", "none")[number % 2], spread="broadcast", gate_spread="permuted")
        call = Call(recipe=drawn, seed=0, special=False, out="none", wrong=None)
        if not Built(call, "cpu").legal:
            drawn = replace(drawn, x_dtype=torch.float32 if "wise" not in op else torch.int32, dtype=None)
            drawn = replace(drawn, gate_dtype=torch.float32)
        for seed in range(2):
            holds(replace(call, recipe=drawn, seed=seed), "cpu")
        before = counted.calls
        holds(replace(call, recipe=drawn, seed=7, special=True), "cpu")
        if counted.calls > before:
            served.add(op)
        for wrong in random.Random(number).sample(WRONGS, 3):
            holds(replace(call, recipe=drawn, wrong=wrong), "cpu")
    assert served == set(OPS)


@pytest.mark.parametrize(
    ("change", "known"),
    [
        (lambda x: x, True),
        (lambda x: x.clone(), True),
        (lambda x: torch.nn.Parameter(x, requires_grad=False), True),
        (lambda x: x.double(), False),
        (lambda x: x[:2], False),
        (lambda x: x.reshape(40, 3).t(), False),
        (lambda x: torch.cat([x[0, :1], x.reshape(-1)])[1:].reshape(x.shape), False),
        (lambda x: torch._neg_view(x), False),
        (lambda x: x.as_subclass(type("Own", (torch.Tensor,), {})), False),
        (lambda x: torch.complex(x, x).conj(), False),
    ],
    ids=["same", "equal", "parameter", "dtype", "shape", "strides", "boundary", "negated", "subclass", "conjugated"],
)  # fmt: skip
def test_what_is_known(change: Callable[[torch.Tensor], torch.Tensor], known: bool, counted: Counted) -> None:
    taught(lambda: scanops.cumsum(X, 1))
    x = change(X)
    found: list[torch.Tensor] = []
    assert counted.during(lambda: found.append(scanops.cumsum(x, 1))) == known
    torch.testing.assert_close(found[0].resolve_neg().as_subclass(torch.Tensor), x.cumsum(1).as_subclass(torch.Tensor))


def test_options_of_other_types_are_python_s(counted: Counted) -> None:
    taught(lambda: scanops.cumsum(X, 1))
    for options in ({"reverse": 0}, {"exclusive": None}, {"dtype": "float32"}, {"mask": [True]}, {"out": 1}):
        refused(scanops.errors.UnsupportedRequest, lambda each=options: scanops.cumsum(X, 1, **each))
    for dim in (True, 1.0, 2, 2**70, "1"):
        refused_kind = scanops.errors.DimensionOutOfRange if type(dim) is int else scanops.errors.UnsupportedRequest
        refused(refused_kind, lambda each=dim: scanops.cumsum(X, each))
    refused(scanops.errors.UnsupportedRequest, lambda: scanops.scan(X, "plus", 1))
    refused(scanops.errors.UnsupportedRequest, lambda: scanops.scan([1.0], "sum", 0))
    assert counted.calls == 1
    assert scanops.scan(X, "".join(["s", "um"]), 1).equal(X.cumsum(1)) and counted.calls == 2


def test_modes_and_transforms_are_python_s(counted: Counted) -> None:
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    expected = taught(lambda: scanops.cumsum(X, 1))
    before = counted.calls
    with Recorded() as recorded:
        assert scanops.cumsum(X, 1).equal(expected)
    assert recorded.bytes == 4 * X.numel()
    with Mode():
        assert scanops.cumsum(X, 1).equal(expected)
    assert torch.func.vmap(lambda x: scanops.cumsum(x, 0))(X).equal(expected)
    with forward_ad.dual_level():
        y = scanops.cumsum(forward_ad.make_dual(X, torch.ones_like(X)), 1)
        assert forward_ad.unpack_dual(y).tangent.equal(torch.ones_like(X).cumsum(1))
    assert counted.calls == before
    with torch.inference_mode():
        assert scanops.cumsum(X, 1).is_inference()
    with torch.autocast("cpu", torch.bfloat16):  # under which a dtype may be another
        scanops.cumsum(X, 1)
        assert counted.calls == before + 1


def test_recording_and_other_emulations_pass_through_python(counted: Counted) -> None:
    taught(lambda: scanops.cumsum(X, 1))
    assert native.learnt() == 1
    with scanops.record() as used:
        assert native.learnt() == 0
        for _ in range(3):
            scanops.cumsum(X, 1)
    assert sum(used.counts.values()) == 3
    taught(lambda: scanops.cumsum(X, 1))
    before = counted.calls
    with scanops.emulate(seed=4):  # another order of threads, the same kernel
        assert scanops.cumsum(X, 1).equal(X.cumsum(1))
    assert counted.calls == before + 1
    with scanops.emulate(multiprocessors=2):
        assert scanops.cumsum(X, 1).equal(X.cumsum(1))
    assert counted.calls == before + 1


def test_pairs_and_workspaces(counted: Counted) -> None:
    values, indices = taught(lambda: scanops.cummax(X, 1, reverse=True))
    expected = X.flip(1).cummax(1)
    assert values.equal(expected.values.flip(1)) and indices.equal(39 - expected.indices.flip(1))
    (values, indices), final = taught(lambda: scanops.cummin(X, 0, return_final=True))
    assert final.equal(X.amin(0)) and indices.dtype == torch.int64
    y, final = taught(lambda: scanops.cumsum(X, 1, return_final=True))
    assert y.equal(X.cumsum(1)) and final.equal(X.sum(1)) and counted.calls == 3
    line = torch.ones(1, 300000)  # split over blocks, which exchange totals on a board
    assert taught(lambda: scanops.cumsum(line, 1)).equal(line.cumsum(1)) and counted.calls == 3


def test_a_launch_that_fails(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    taught(lambda: scanops.cumsum(X, 1))
    (known,) = calls.CALLS.values()
    monkeypatch.setattr(known.launcher.kernel.library, "scanops_error_string", lambda code: f"number {code}".encode())
    refuse = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda arguments, stream: 98)
    monkeypatch.setattr(known.launcher, "_launch", refuse)
    native.forget()
    with pytest.raises(LaunchFailure):
        scanops.cumsum(X, 1)  # by Python, and learnt
    before = counted.calls
    error = refused(LaunchFailure, lambda: scanops.cumsum(X, 1), "error 98", "number 98")
    assert "sum-f32-n40" in error.asked and counted.calls == before == 1


def test_a_backward_launch_that_fails(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    y = taught(lambda: scanops.cumsum(X.clone().requires_grad_(), 1, reverse=True))
    y.backward(torch.ones_like(y))
    (recipe,) = calls.GRADIENTS.values()
    launcher = recipe.steps[0].launcher
    codes = iter([0])  # the first time by Python, and learnt
    refuse = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda arguments, stream: next(codes, 98))
    monkeypatch.setattr(launcher, "_launch", refuse)
    y.backward(torch.ones_like(y))
    assert native.learnt() == 2
    refused(LaunchFailure, lambda: y.backward(torch.ones_like(y)), "error 98")


def test_threads(counted: Counted) -> None:
    """Of calls that are known, learnt and forgotten meanwhile."""
    inputs = [torch.randn(3, 40) for _ in range(4)]
    wrong: list[int] = []

    def work(number: int) -> None:
        with scanops.emulate():
            for turn in range(60):
                x = inputs[(number + turn) % 4]
                if not torch.allclose(scanops.cumsum(x, 1), x.cumsum(1), atol=1e-5):
                    wrong.append(number)
                if turn % 20 == 10:
                    native.forget()
                    with scanops.record():
                        pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_jit_follows(counted: Counted) -> None:
    """A call that is known is an operation in a trace all the same, and no constant."""
    taught(lambda: scanops.cumsum(X, 1))
    before = counted.calls
    traced = torch.jit.trace(lambda x: scanops.cumsum(x, 1), (X,), check_trace=False)
    assert counted.calls == before and "scanops::scan" in str(traced.graph)
    assert torch.equal(traced(X + 1), torch.cumsum(X + 1, 1))


@pytest.mark.parametrize("start", [torch.tensor([1.0, -2.0, 3.0]), torch.tensor(5.0)], ids=["each line", "all"])
@pytest.mark.parametrize("options", [{}, {"return_final": True}, {"return_final": True, "reverse": True}], ids=str)
def test_a_stream_in_chunks(start: torch.Tensor, options: dict[str, Any], counted: Counted) -> None:
    """What lines go on from is one more tensor."""
    gates = torch.rand(3, 1, generator=torch.Generator().manual_seed(1))

    def recurrence(state: torch.Tensor) -> Any:
        return scanops.linear_scan(gates, X, 1, initial=state, **options)

    for call in (lambda state: scanops.cumsum(X, 1, initial=state, **options), recurrence):
        taught(lambda call=call: call(start))
        other, found = start * 3 + 1, []
        assert counted.during(lambda call=call, other=other, found=found: found.append(call(other)))
        native.forget()
        calls.forget()
        torch.testing.assert_close(found[0], call(other))


def test_numbers_that_lines_go_on_from_are_python_s(counted: Counted) -> None:
    assert taught(lambda: scanops.cumsum(X, 1, initial=2.0)).equal(X.cumsum(1) + 2)
    assert counted.calls == 0
    wrong = torch.zeros(5)
    taught(lambda: scanops.cumsum(X, 1, initial=torch.zeros(3)))
    refused(scanops.errors.UnsupportedRequest, lambda: scanops.cumsum(X, 1, initial=wrong))
    whole, found = torch.tensor([1, 2, 3]), []
    assert not counted.during(lambda: found.append(scanops.cumsum(X, 1, initial=whole)))
    assert found[0].equal(X.cumsum(1) + whole[:, None])
