"""Calls that are served natively give what Python gives: values, errors, and nothing where Python alone can serve."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

import scanops
from scanops.errors import LaunchFailure, UnsupportedRequest
from scanops.runtime import calls, native
from tests.native.conftest import Counted
from tests.requests import test_bad_calls
from tests.requests import test_repeats as repeats
from tests.requests.built import Built
from tests.requests.calls import holds
from tests.requests.checks import refused
from tests.requests.recipes import OPS, Call, recipe
from tests.requests.test_allocations import Recorded

X = torch.arange(120.0).reshape(3, 40)


def taught(call: Callable[[], Any]) -> Any:
    """Return the third result of a call: Python checks the first, and remembers it at the second."""
    call(), call()
    return call()


def test_drawn_requests(counted: Counted) -> None:
    """Each at first by Python, then natively with other data."""
    served: set[str] = set()
    for number, op in enumerate(OPS * 2):
        drawn = replace(recipe(random.Random(number).choice), op=op, shape=(3, 33), dim=number % 2)
        drawn = replace(drawn, initial=("none", "one for each line")[number // len(OPS)], initial_dtype=None)
        drawn = replace(drawn, accumulate=None, segments=("none", "flags")[number // len(OPS)])
        drawn = replace(drawn, mask=("bool", "none")[number % 2], spread="broadcast", gate_spread="permuted")
        call = Call(recipe=drawn)
        if not Built(call, "cpu").legal:
            drawn = replace(drawn, x_dtype=torch.float32 if "wise" not in op else torch.int32, dtype=None)
            drawn = replace(drawn, gate_dtype=torch.float32)
        for seed in range(2):
            holds(replace(call, recipe=drawn, seed=seed), "cpu")
        before = counted.calls
        holds(replace(call, recipe=drawn, seed=7, special=True), "cpu")
        if counted.calls > before:
            served.add(op)
    assert served == set(OPS)


CHECKS: dict[str, Callable[[], None]] = {
    **{name: partial(repeats.test_what_is_told_apart, change) for name, change in repeats.CHANGES.items()},
    "options and masks": repeats.test_options_and_masks_are_told_apart,
    "recordings": repeats.test_a_recording_counts_repeated_calls,
    "two inputs that are one": repeats.test_two_inputs_that_are_one,
}


@pytest.mark.parametrize("name", CHECKS)
def test_repeated_calls(name: str, counted: Counted) -> None:
    """What holds of calls that Python remembers holds of those that C++ does."""
    CHECKS[name]()
    assert counted.calls > 0


def test_wrong_calls_are_refused_beside_right_ones(counted: Counted) -> None:
    for length in (3, 4, 8):
        taught(lambda length=length: scanops.cumsum(torch.ones(length), 0, mask=torch.ones(length)))
    for kind, call, value in test_bad_calls.BAD:
        refused(kind, lambda call=call: call("cpu"), value)
    assert counted.calls >= 3


@pytest.mark.parametrize(
    ("change", "known"),
    [
        (lambda x: x.clone(), True),
        (lambda x: torch.nn.Parameter(x, requires_grad=False), True),
        (lambda x: x.as_subclass(type("Own", (torch.Tensor,), {})), False),
        (lambda x: torch.complex(x, x).conj(), False),
    ],
    ids=["equal", "parameter", "subclass", "conjugated"],
)
def test_what_is_known(change: Callable[[torch.Tensor], torch.Tensor], known: bool, counted: Counted) -> None:
    taught(lambda: scanops.cumsum(X, 1))
    x, found = change(X), []
    assert counted.during(lambda: found.append(scanops.cumsum(x, 1))) == known
    torch.testing.assert_close(found[0].as_subclass(torch.Tensor), x.cumsum(1).as_subclass(torch.Tensor))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modes_and_transforms_are_python_s(counted: Counted) -> None:
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    expected = taught(lambda: scanops.cumsum(X, 1))
    assert taught(lambda: scanops.cumsum(X, 1, mask=torch.ones_like(X))).equal(expected)
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
        y = scanops.cumsum(X, 1, mask=forward_ad.make_dual(torch.ones_like(X), X))
        assert forward_ad.unpack_dual(y).tangent.equal((X * X).cumsum(1))
    traced = torch.jit.trace(lambda x: scanops.cumsum(x, 1), (X,), check_trace=False)
    assert "scanops::scan" in str(traced.graph) and torch.equal(traced(X + 1), torch.cumsum(X + 1, 1))
    assert counted.calls == before
    with torch.inference_mode():
        assert scanops.cumsum(X, 1).is_inference()
    with torch.autocast("cpu", torch.bfloat16):  # under which a dtype may be another
        scanops.cumsum(X, 1)
        assert counted.calls == before + 1


@pytest.mark.parametrize(("options", "known"), [({"seed": 4}, True), ({"multiprocessors": 2}, False)])
def test_other_emulations(options: dict[str, int], known: bool, counted: Counted) -> None:
    """Another order of threads has the same kernel, another GPU need not."""
    taught(lambda: scanops.cumsum(X, 1))
    with scanops.emulate(**options):
        assert counted.during(lambda: scanops.cumsum(X, 1)) == known


def test_pairs_are_known_and_workspaces_are_python_s(counted: Counted) -> None:
    values, indices = taught(lambda: scanops.cummin(X, 0))
    assert values.equal(X.cummin(0).values) and indices.equal(X.cummin(0).indices) and counted.calls == 1
    line = torch.ones(1, 300000)  # split over blocks, which exchange totals in a workspace
    assert taught(lambda: scanops.cumsum(line, 1)).equal(line.cumsum(1)) and counted.calls == 1


@pytest.mark.parametrize("backward", [False, True])
def test_a_launch_that_fails(backward: bool, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    y = taught(lambda: scanops.cumsum(X.clone().requires_grad_(backward), 1, reverse=True))

    def call() -> object:
        return y.backward(torch.ones_like(y)) if backward else scanops.cumsum(X, 1, reverse=True)

    if backward:
        call()
        (learnt,) = calls.GRADIENTS.values()
        launcher = learnt.steps[0].launcher
    else:
        (known,) = calls.CALLS.values()
        launcher = known.launcher
        native.forget()
    codes = iter([0])  # the first time by Python, and learnt
    refuse = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda arguments, stream: next(codes, 98))
    bound = launcher._bound._replace(launch=refuse, function=refuse, words=lambda code: f"number {code}")
    monkeypatch.setattr(launcher, "_bound", bound)
    call()
    assert native.learnt() == 1 + backward
    served = counted.calls
    error = refused(LaunchFailure, call, "error 98", "number 98")
    assert "sum-f32-n40" in error.asked and counted.calls == served


@pytest.mark.parametrize("code", ["counted", "cuda"], ids=["library", "cubin"])
def test_threads(code: str, counted: Counted, request: pytest.FixtureRequest) -> None:
    """Of calls that are known, learnt and forgotten meanwhile."""
    request.getfixturevalue(code)
    inputs = [torch.randn(3, 40) for _ in range(4)]

    def work(number: int) -> None:
        with scanops.emulate():
            for turn in range(60):
                x = inputs[(number + turn) % 4]
                torch.testing.assert_close(scanops.cumsum(x, 1), x.cumsum(1))
                if turn % 20 == 10:
                    native.forget()
                    with scanops.record():
                        pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@pytest.mark.parametrize(
    ("first", "then", "known"),
    [
        (torch.tensor([1.0, -2.0, 3.0]), torch.tensor([4.0, -5.0, 10.0]), True),
        (torch.tensor(5.0), torch.tensor(16.0), True),
        (torch.zeros(3), torch.tensor([1, 2, 3]), False),  # whole numbers are converted by Python
        (2.0, 3.0, False),  # and numbers of Python made tensors
    ],
    ids=["each line", "all", "dtype", "number"],
)
def test_carries(first: Any, then: Any, known: bool, counted: Counted) -> None:
    """A carry-in is one more tensor, a carry-out one more result."""
    gates = torch.rand(3, 1, generator=torch.Generator().manual_seed(1))

    def call(state: Any) -> Any:
        return scanops.linear_scan(gates, X, 1, initial=state, return_final=True, reverse=True)

    taught(lambda: call(first))
    found: list[Any] = []
    assert counted.during(lambda: found.append(call(then))) == known
    refused(UnsupportedRequest, lambda: call(torch.zeros(5)))
    native.forget()
    calls.forget()
    torch.testing.assert_close(found[0], call(then))
