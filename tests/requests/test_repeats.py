"""Calls like one before: served without a check, told apart from all that are not like it, forgotten in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import scanops
from scanops import emulator
from scanops.errors import MissingKernel, UnsupportedRequest
from scanops.runtime import call_cache, launcher
from tests.requests.checks import refused
from tests.torch_integration.rows import flat, step

X = torch.arange(120.0).reshape(3, 40).remainder(7)
MASK = torch.arange(40) % 3 != 0
WEIGHTS = torch.linspace(0, 1, 40)
GATE = torch.linspace(-1, 1, 120).reshape(3, 40)
OFFSETS = torch.tensor([0, 7, 7, 40])
CARRY = torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    call_cache.forget()
    with scanops.emulate():
        yield
    call_cache.forget()


def both(call: Callable[[torch.Tensor], Any], x: torch.Tensor = X) -> tuple[torch.Tensor, ...]:
    """Results and the gradient."""
    results, gradients = step(lambda x: flat(call(x)), (x,))
    return (*(each.detach() for each in results), *gradients)


CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum": lambda x: scanops.cumsum(x, 1),
    "sum, masked": lambda x: scanops.cumsum(x, 1, mask=MASK),
    "sum, weighted": lambda x: scanops.cumsum(x, -1, mask=WEIGHTS),
    "sum of segments": lambda x: scanops.cumsum(x, 1, offsets=OFFSETS),
    "sum that goes on": lambda x: scanops.cumsum(x, 1, initial=CARRY, return_final=True)[0],
    "product": lambda x: scanops.cumprod(x, 1),
    "cummax": lambda x: tuple(scanops.cummax(x, 1)),
    "logcumsumexp": lambda x: scanops.logcumsumexp(x, 1),
    "recurrence": lambda x: scanops.linear_scan(GATE, x, 1),
}


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dtype": lambda x: x.double(),
    "shape": lambda x: x[:2],
    "step": lambda x: x[:, ::2],
    "turned": lambda x: x.reshape(40, 3).t(),
    "boundary": lambda x: torch.cat([x[0, :1], x.reshape(-1)])[1:].reshape(x.shape),
    "offset": lambda x: x.expand(2, 3, 40)[1],
    "negated": lambda x: torch._neg_view(x),
    "broadcast": lambda x: x[:, :1].expand(3, 40),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_told_apart(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for _ in range(3):
        both(lambda x: scanops.cumsum(x, 1))
    for _ in range(3):
        torch.testing.assert_close(
            both(lambda x: scanops.cumsum(change(x), 1)), both(lambda x: torch.cumsum(change(x), 1))
        )


def test_options_and_masks_are_told_apart() -> None:
    for _ in range(3):
        assert scanops.cumsum(X, 1).equal(X.cumsum(1))
        assert scanops.cumsum(X, 1, mask=MASK).equal((X * MASK).cumsum(1))
        assert scanops.cumsum(X, 1, mask=MASK.to(torch.uint8)).equal((X * MASK).cumsum(1))
        assert scanops.cumsum(X, 1, mask=MASK.expand(3, 40).contiguous()).equal((X * MASK).cumsum(1))
        assert scanops.cumsum(X, 1, segment_starts=torch.ones(40, dtype=torch.bool)).equal(X)
        assert scanops.cumsum(X, 1, dtype=torch.int64).dtype == torch.int64
        assert scanops.cumsum(X, 1, initial=CARRY).equal(X.cumsum(1) + CARRY[:, None])
        assert scanops.cumsum(X, 1, initial=CARRY[:1]).equal(X.cumsum(1) + 1)
        assert scanops.cumsum(X, 1, initial=2).equal(X.cumsum(1) + 2)
        refused(UnsupportedRequest, lambda: scanops.cumsum(X, True))
        refused(UnsupportedRequest, lambda: scanops.cumsum(X, 1, reverse=0))
        refused(UnsupportedRequest, lambda: scanops.cumsum(X, 1, dtype=["float32"]))
        refused(UnsupportedRequest, lambda: scanops.cumsum(X, 1, mask=[True]))
        refused(UnsupportedRequest, lambda: scanops.cumsum(X, 1, mask=MASK[:39]))
        refused(UnsupportedRequest, lambda: scanops.cumsum(X, 1, mask=MASK.to("meta")))
        refused(UnsupportedRequest, lambda: scanops.cumsum(X.to_sparse(), 1))


def test_surroundings_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated or not, on which GPU, and under which policy."""
    for _ in range(2):
        both(CALLS["sum"])
    used: list[int] = []
    launch = launcher.Launcher.__call__
    monkeypatch.setattr(
        launcher.Launcher,
        "__call__",
        lambda self, inputs, outs: used.append(self._arguments.multiprocessors) or launch(self, inputs, outs),
    )
    scanops.cumsum(X, 1)
    with scanops.emulate(multiprocessors=2):
        for _ in range(2):
            scanops.cumsum(X, 1)
    assert used == [3, 2, 2]
    token = emulator.ACTIVE.set(None)
    assert scanops.cumsum(X, 1).equal(X.cumsum(1)) and len(used) == 3
    emulator.ACTIVE.reset(token)
    with scanops.policy("never"):
        assert scanops.cumsum(X, 1).equal(X.cumsum(1))  # which is held
        with pytest.raises(MissingKernel):
            scanops.cumsum(torch.ones(3, 12347), 1)


def test_a_recording_counts_repeated_calls() -> None:
    for _ in range(3):
        both(CALLS["sum, masked"])
    with scanops.record() as used:
        for _ in range(3):
            both(CALLS["sum, masked"])
    assert sorted(used.counts.values()) == [3, 3]  # there and back


def test_two_inputs_that_are_one() -> None:
    """How the gradient of a tensor that is both was computed says nothing of two tensors."""
    for _ in range(3):
        both(lambda x: scanops.linear_scan(x, x, 1))
    once = X.clone().requires_grad_(), X.add(1).requires_grad_()
    scanops.linear_scan(*once, 1).backward(X)
    call_cache.forget()
    again = X.clone().requires_grad_(), X.add(1).requires_grad_()
    scanops.linear_scan(*again, 1).backward(X)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(once, again, strict=True))  # type: ignore[arg-type]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        both(lambda x: scanops.cumsum(x, 1, initial=2))  # a number is made a tensor each time
    assert not call_cache.CALLS and not call_cache.GRADIENTS
    monkeypatch.setattr(call_cache, "MAX_REMEMBERED", 2)
    for rows in (1, 2, 3, 1, 2, 3):
        both(CALLS["sum"], X[:rows])
        assert len(call_cache.CALLS) <= 2 and len(call_cache.GRADIENTS) <= 2
