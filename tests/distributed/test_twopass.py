"""Method ``twopass``: the bytes that its kernels move, and the reduction of recurrences to values and gate products."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import scanops
import scanops.distributed as sd
from scanops.codegen.spec import ScanSpec
from scanops.distributed import exchange, shards
from scanops.distributed.exchange import RepeatedExchange, Turn
from scanops.errors import UnsupportedRequest
from scanops.requests.call import Call
from scanops.requests.request import Inputs
from scanops.runtime.launcher import Launcher
from tests.distributed.ranks import Meeting, Seat, Threads

RANKS = 2


def on_threads(job: Any) -> list[Any]:
    """What ``job(rank, group)`` returns on ranks that are threads, which emulate kernels."""
    meeting, found, problems = Meeting(RANKS), [None] * RANKS, []

    def work(rank: int) -> None:
        try:
            with scanops.emulate():
                found[rank] = job(rank, Threads(Seat(meeting), tuple(range(RANKS)), rank))
        except Exception as problem:
            problems.append(problem)
            meeting.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return found


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(("shape", "dim"), [((2, 6000), 1), ((2, 3000, 64), 1)])
def test_recurrences_read_their_gates_twice(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dim: int, exclusive: bool
) -> None:
    """Forward 8 and 12 bytes for each float32 item, backward 8 and 20; right values and gradients."""
    moved: dict[int, int] = {}
    launch = Launcher.__call__

    def count(self: Launcher, inputs: Any, outs: Any) -> None:
        read = [inputs[place] for _, place, _ in self.reads]
        thread = threading.get_ident()
        moved[thread] = moved.get(thread, 0) + sum(each.numel() * each.itemsize for each in (*read, *outs))
        launch(self, inputs, outs)

    def fail(*_: Any) -> Any:
        raise AssertionError("gates are read once more")

    monkeypatch.setattr(Launcher, "__call__", count)
    monkeypatch.setattr(shards, "_product_of_gates", fail)
    make = torch.Generator().manual_seed(0)
    a, b, gy = (torch.rand(shape, generator=make) for _ in range(3))
    a = 0.8 + 0.2 * a

    def job(rank: int, group: Any) -> list[Any]:
        own = [each.chunk(RANKS, dim)[rank].contiguous().requires_grad_() for each in (a, b)]
        items, found = own[0].numel(), []
        for _ in range(3):  # the first call finds what the others repeat
            moved[threading.get_ident()] = 0
            y = sd.linear_scan(*own, dim, group=group, exclusive=exclusive)
            forward = moved[threading.get_ident()]
            gradients = torch.autograd.grad(y, own, gy.chunk(RANKS, dim)[rank])
            backward = moved[threading.get_ident()] - forward
            found.append((y.detach(), *gradients, forward / items, backward / items))
        return found

    whole = [each.clone().requires_grad_() for each in (a, b)]
    h = scanops.linear_scan(*whole, dim, exclusive=exclusive)
    wanted = (h.detach(), *torch.autograd.grad(h, whole, gy))
    for rank, calls in enumerate(on_threads(job)):
        for *tensors, forward, backward in calls:
            for mine, each in zip(tensors, wanted, strict=True):
                torch.testing.assert_close(mine, each.chunk(RANKS, dim)[rank], rtol=1e-4, atol=1e-4)
            # The rank without a carry-in computes no gradient of it; states of lines are a few bytes more.
            assert 20 <= forward < 20.7, forward
            assert (20 if rank == 0 else 28) <= backward < (20.7 if rank == 0 else 28.7), backward


@pytest.mark.parametrize("op", ["linear", "linear_gradient_of_terms"])
@pytest.mark.parametrize(
    ("shape", "dim", "dtype"),
    [
        ((3, 5), 1, torch.float32), ((40, 8), 1, torch.bfloat16), ((2, 40000), 1, torch.float32),
        ((2, 900, 64), 1, torch.float32), ((5, 3), 0, torch.float64),
    ],
)  # fmt: skip
def test_pairs_of_value_and_product(op: str, shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    """In float64, in both directions, with a mask, and whatever the gates broadcast from."""
    make = torch.Generator().manual_seed(0)
    x, a = (torch.rand(shape, generator=make, dtype=torch.float64).to(dtype) for _ in range(2))
    mask = torch.rand(shape, generator=make) < 0.7
    narrow = a.select(dim, 0).unsqueeze(dim)
    for reverse, gate, selects in ((False, a, None), (True, a, mask), (False, narrow, mask)):
        call = Call(op, dim, reverse, final=True, dtype=dtype, accumulate="float64", totals=True)
        with scanops.emulate():
            (pairs,), launcher = shards.reduce_pairs(call, Inputs(x, selects, gate))
        value, product = torch.zeros_like(x.select(dim, 0)).double(), torch.ones_like(x.select(dim, 0)).double()
        steps = range(shape[dim])
        for k in reversed(steps) if reverse else steps:
            g, item = gate.expand(shape).select(dim, k).double(), x.select(dim, k).double()
            newer = g * value + item if op == "linear" else g * (value + item)
            there = torch.ones_like(g, dtype=torch.bool) if selects is None else selects.select(dim, k)
            if op == "linear":
                value, product = torch.where(there, newer, value), torch.where(there, product * g, product)
            else:  # a masked-out term is none of the results', but gradients pass
                value, product = torch.where(there, newer, value + item), torch.where(there, product * g, product)
        torch.testing.assert_close(pairs.real, value)
        torch.testing.assert_close(pairs.imag, product)
        assert [name for name, _, _ in launcher.places] == ["carry_out"]


def test_what_has_no_pairs() -> None:
    with pytest.raises(UnsupportedRequest, match="totals=True does not fit"):
        ScanSpec(op="sum", dtype="float32", length=8, final=True, totals=True)
    with pytest.raises(UnsupportedRequest, match="totals=True does not fit"):
        ScanSpec(op="linear", dtype="float32", gate="float32", length=8, totals=True)
    spec = ScanSpec(op="linear", dtype="float32", gate="float32", length=8, final=True, totals=True)
    assert ScanSpec.parse(spec.slug) == spec
    assert spec.carry.name == "complex64"


@pytest.mark.parametrize("check", ["first", "always"])
def test_repeated_backward_passes_wait_until_they_were_compared(monkeypatch: pytest.MonkeyPatch, check: str) -> None:
    """As on a GPU, where a comparison waits for the device: with check="first" the first of equal exchanges alone."""
    monkeypatch.setattr(
        Turn,
        "_must_wait",
        lambda turn: check == "always" or turn.message.digest not in turn.ledger.compared,
    )
    monkeypatch.setattr(exchange, "compare_later", lambda ledger, frames, turn: None)
    waited: list[tuple[int, bool]] = []
    send = RepeatedExchange._send

    def note(self: RepeatedExchange, compute: Any, number: int) -> Any:
        waited.append((threading.get_ident(), self._waits))
        return send(self, compute, number)

    monkeypatch.setattr(RepeatedExchange, "_send", note)

    def job(rank: int, group: Any) -> list[bool]:
        x = torch.ones(2, 50, requires_grad=True)
        for _ in range(4):
            y = sd.cumsum(x, 1, group=group, method="twopass", check=check)
            (gradient,) = torch.autograd.grad(y.sum(), x)
            torch.testing.assert_close(gradient[0], torch.arange(100.0, 0, -1).chunk(RANKS)[rank])
        return [waits for thread, waits in waited if thread == threading.get_ident()]

    for waits in on_threads(job):
        forward, backward = waits[::2], waits[1::2]
        assert len(waits) >= 6
        if check == "always":
            assert all(waits)
        else:
            assert sum(forward) + sum(backward) <= 1, waits
