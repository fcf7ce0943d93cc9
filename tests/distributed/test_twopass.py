"""Method ``twopass``: the bytes that its kernels move, and the reduction of recurrences to values and gate products."""

from __future__ import annotations

import ctypes
import random
import threading
from collections import Counter
from typing import Any

import pytest
import torch

import scanops
import scanops.distributed as sd
from scanops.codegen.spec import ScanSpec
from scanops.distributed import exchange, shards
from scanops.distributed.exchange import Exchange
from scanops.distributed.groups import Group, Ledger
from scanops.errors import PeerMismatch, UnsupportedRequest
from scanops.requests.call import Call
from scanops.requests.request import Inputs
from scanops.runtime import call_cache, native
from scanops.runtime.launcher import Launcher
from tests.distributed.calls import answer, difference, request_of
from tests.distributed.ranks import CALLS, Meeting, Seat, Threads, whole

RANKS = 2


def on_threads(job: Any, ranks: int = RANKS) -> list[Any]:
    """What ``job(rank, group)`` returns on ranks that are threads, which emulate kernels."""
    meeting, found, problems = Meeting(ranks), [None] * ranks, []

    def work(rank: int) -> None:
        try:
            with scanops.emulate():
                found[rank] = job(rank, Threads(Seat(meeting), ranks, rank))
        except Exception as problem:
            problems.append(problem)
            meeting.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
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
    monkeypatch.setattr(shards, "product_of_gates", fail)
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
        ((3, 5), 1, torch.float32), ((40, 8), 1, torch.bfloat16), ((2, 20004), 1, torch.float32),
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


class Echo(Group):
    """Ranks that all have the states of this one, which no operator of torch moves."""

    @property
    def backends(self) -> str:
        return "cpu:echo"

    def gather_into(self, found: torch.Tensor, row: torch.Tensor) -> None:
        for rank in range(self.size):
            ctypes.memmove(found.data_ptr() + rank * row.numel(), row.data_ptr(), row.numel())


def count_operators(job: Any) -> Counter[str]:
    """The operators of torch that a job calls, without those that operators call."""
    with torch.autograd.profiler.profile() as profile:
        job()
    events = [each for each in profile.function_events if each.name.startswith("aten::")]
    return Counter(
        each.name.removeprefix("aten::")
        for each in events
        if each.cpu_parent is None or not each.cpu_parent.name.startswith("aten::")
    )


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("name", ["sum", "linear"])
def test_operators_of_a_repeated_call(name: str, position: int) -> None:
    """Beside the collective and the launches: a host that calls many waits for none of them, and yet for each."""
    x, a, gy = torch.rand(3, 8, 32)
    group = Echo(Seat(Meeting(RANKS)), RANKS, position)

    def call(*leaves: torch.Tensor) -> torch.Tensor:
        if name == "sum":
            return sd.cumsum(leaves[-1], 1, group=group, method="twopass")
        return sd.linear_scan(*leaves, 1, group=group, method="twopass")

    def differentiate() -> None:
        leaves = [each.clone().requires_grad_() for each in ([x] if name == "sum" else [a, x])]
        torch.autograd.grad(call(*leaves), leaves, gy)

    with scanops.emulate():
        for job, most in ((lambda: call(a, x), OPERATORS[name][0]), (differentiate, OPERATORS[name][1])):
            for _ in range(3):
                job()
            found = count_operators(job)
            assert sum(found.values()) <= most, found


OPERATORS = {"sum": (5, 18), "linear": (5, 18)}  # of a call, and of a call with its gradients


def test_results_of_repeated_calls_by_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """C++ learns the scan of the shard with its carry-in, and the gradient of a sum."""
    monkeypatch.setenv("SCANOPS_LOCK_SECONDS", "600")  # another worker may be building it
    monkeypatch.setattr(native, "serve", None)
    assert native.get(build=True)
    call_cache.forget()
    serve, found = native.serve, []

    def note(*given: Any, **named: Any) -> Any:
        found.append(serve(*given, **named))
        return found[-1]

    monkeypatch.setattr(native, "serve", note)
    group, (x, a, gy) = Echo(Seat(Meeting(RANKS)), RANKS, 1), torch.rand(3, 4, 32)
    with scanops.emulate():
        for k in range(6):
            leaf = x.clone().requires_grad_()
            y = sd.cumsum(leaf, 1, group=group, method="twopass")
            h = sd.linear_scan(a, x, 1, group=group, method="twopass")
            found.clear()
            y = sd.cumsum(leaf, 1, group=group, method="twopass")
            (of_x,) = torch.autograd.grad(y, leaf, gy)
            h = sd.linear_scan(a, x, 1, group=group, method="twopass")
            assert k < 3 or sum(each is not None for each in found) >= 3, (k, found)
            torch.testing.assert_close(y, x.cumsum(1) + x.sum(1, keepdim=True))
            torch.testing.assert_close(of_x, gy.flip(1).cumsum(1).flip(1))
            line = scanops.linear_scan(torch.cat([a, a], 1), torch.cat([x, x], 1), 1)
            torch.testing.assert_close(h, line[:, 32:])
    call_cache.forget()


def test_what_a_caller_keeps_is_no_memory_of_the_exchange() -> None:
    """Results, carry-outs, gradients and saved tensors of a call stay as they are when equal calls follow."""

    def job(rank: int, group: Any) -> None:
        calls = []
        for k in range(1, 6):
            a, b, h = torch.full((2, 8), 0.5), torch.full((2, 8), float(k)), torch.full((2,), float(k))
            leaves = [each.requires_grad_() for each in (a, b, h)]
            y, final = sd.linear_scan(a, b, 1, initial=h, return_final=True, group=group, method="twopass")
            plain = sd.cumsum(b.detach(), 1, return_final=True, group=group, method="twopass")
            calls.append((k, leaves, y, final, plain))
        gradients = [
            torch.autograd.grad([y, final], leaves, [torch.full_like(y, float(k)), torch.full_like(final, float(k))])
            for k, leaves, y, final, _ in calls
        ]
        first = (calls[0][2], calls[0][3], calls[0][4][0], calls[0][4][1], *gradients[0])
        for (k, _, y, final, plain), grads in zip(calls, gradients, strict=True):
            for degree, one, each in zip((1, 1, 1, 1, 2, 1, 1), first, (y, final, *plain, *grads), strict=True):
                torch.testing.assert_close(each, k**degree * one)

    on_threads(job)


@pytest.mark.parametrize("reverse", [False, True])
def test_repeated_calls_beside_segments(reverse: bool) -> None:
    make = torch.Generator().manual_seed(0)
    a, b = torch.rand(2, 3, 8, generator=make)
    flags = torch.rand(3, 8, generator=make) < 0.3
    for starts in (None, flags):
        h, final = scanops.linear_scan(a, b, 1, reverse=reverse, segment_starts=starts, return_final=True)

        def job(rank: int, group: Any, starts: Any = starts, h: Any = h, final: Any = final) -> None:
            begin, end = ((0, 3), (3, 5), (5, 8))[rank]
            own = [None if each is None else each[:, begin:end].contiguous() for each in (a, b, starts)]
            given = {"segment_starts": own[2], "reverse": reverse, "return_final": True}
            for _ in range(3):
                mine, last = sd.linear_scan(*own[:2], 1, group=group, method="twopass", **given)
                torch.testing.assert_close(mine, h[:, begin:end])
                torch.testing.assert_close(last, final)

        on_threads(job, 3)


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("linear", "mask exclusive initial return_final"),
        ("linear", "starts reverse"),
        ("linear", "weights reverse initial"),
        ("prod", "return_final"),
        ("sum", "mask starts initial"),
        ("logcumsumexp", "reverse initial return_final"),
        ("cummax", "mask return_final"),
    ],
)
def test_gradients_of_repeated_calls_by_kernels(op: str, words: str) -> None:
    # Shards of one length have kernels in common.
    request = request_of(random.Random(1), op, False, "chunk", words.split(), RANKS, (3, 12), 1)
    wanted = whole(request)

    def job(rank: int, group: Any) -> None:
        for _ in range(CALLS):
            found = answer(sd, request, request.local(rank), request.places(rank), group=group, method="twopass")
            assert difference(request, found, wanted, rank, lambda each: sum(group.everyones(each))) == ""

    on_threads(job)


class Late:
    """Frames on the CPU in place of pinned memory: compared at the next exchange, as on a GPU."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        def keep(ledger: Ledger, frames: torch.Tensor, compare: Any) -> None:
            ledger._pinned, ledger._arrived, ledger._compare = frames.clone(), self, compare

        patch.setattr(Exchange, "is_late", True)
        patch.setattr(Ledger, "compare_later", keep)

    def synchronize(self) -> None:
        """All frames have arrived."""


def test_calls_that_differ_are_found_at_the_next_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: no rank waits in the call itself; all ranks raise at the next one, and the group has ended."""
    Late(monkeypatch)

    def job(rank: int, group: Any) -> None:
        x = torch.ones(2, 5)
        calls = [lambda: sd.cumsum(x, 1, group=group, method="twopass"), lambda: sd.cumprod(x, 1, group=group)]
        for call in calls * 20:
            call()
        calls[rank]()  # these differ, and nobody waits for the answer
        for _ in range(2):
            with pytest.raises(PeerMismatch, match=f"make different calls: got rank {rank} calls cum(sum|prod)"):
                calls[0]()
        with pytest.raises(PeerMismatch):
            calls[1]()

    on_threads(job)


def test_a_first_call_that_differs_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Late(monkeypatch)

    def job(rank: int, group: Any) -> None:
        with pytest.raises(PeerMismatch, match=f"rank {rank} calls cum(sum|prod)"):
            (sd.cumprod if rank else sd.cumsum)(torch.ones(2, 5), 1, group=group)
        with pytest.raises(PeerMismatch):
            sd.cumsum(torch.ones(2, 5), 1, group=group)

    on_threads(job)


def test_two_threads_of_a_group() -> None:
    """One of them raises before it sends anything, and the other one's call is as if there was one thread."""
    begun, goes_on = threading.Event(), threading.Event()

    class Waiting(Echo):
        def gather_into(self, found: torch.Tensor, row: torch.Tensor) -> None:
            begun.set()
            assert goes_on.wait(60)
            super().gather_into(found, row)

    group, found = Waiting(Seat(Meeting(RANKS)), RANKS, 0), []
    thread = threading.Thread(target=lambda: found.append(sd.cumsum(torch.ones(3), 0, group=group)))
    thread.start()
    assert begun.wait(60)
    with pytest.raises(UnsupportedRequest, match="two threads call the same process group at the same time"):
        sd.cumsum(torch.ones(3), 0, group=group)
    goes_on.set()
    thread.join()
    assert found[0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_captured_backward_pass_has_memory_of_its_own(monkeypatch: pytest.MonkeyPatch, reverse: bool) -> None:
    """It launches the kernels of those before it, and compares nothing: replays may run beside anything."""
    captures, made, find = [False], [], exchange.Lane

    def make(*given: Any) -> Any:
        made.append(captures[0])
        return find(*given)

    monkeypatch.setattr(exchange, "Lane", make)
    monkeypatch.setattr(exchange, "is_captured", lambda _: captures[0])
    a, b, gy = torch.rand(3, 2, 8)
    whole = [each.clone().requires_grad_() for each in (a, b)]
    wanted = torch.autograd.grad(scanops.linear_scan(*whole, 1, reverse=reverse), whole, gy)

    def job(rank: int, group: Any) -> None:
        own = [each.chunk(RANKS, 1)[rank].contiguous().requires_grad_() for each in (a, b)]
        for k in range(4):
            y = sd.linear_scan(*own, 1, group=group, method="twopass", reverse=reverse)
            group.everyones(None)
            captures[0] = k == 3
            group.everyones(None)
            for each, of_all in zip(torch.autograd.grad(y, own, gy.chunk(RANKS, 1)[rank]), wanted, strict=True):
                torch.testing.assert_close(each, of_all.chunk(RANKS, 1)[rank])
            group.everyones(None)
            captures[0] = False

    on_threads(job)
    assert made == [False] * 2 * RANKS + [True] * RANKS


def test_products_of_gates_that_overflow_are_finite() -> None:
    """A carry of 0 passes a shard whose product of gates no float64 holds: 0 times infinity would be none."""
    a, b = torch.full((2, 64), 1e30), torch.zeros(2, 64)

    def job(rank: int, group: Any) -> None:
        for _ in range(3):
            assert torch.equal(sd.linear_scan(a, b, 1, group=group, method="twopass"), b)

    on_threads(job)
