"""Cases of sharded scans, cuts of a line into shards, and processes that scan them together."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.utils.checkpoint import checkpoint

import scanops
import scanops.distributed as sd
import scanops.nn
from scanops.distributed.groups import Group
from scanops.errors import PeerLost, PeerMismatch, UnsupportedRequest
from tests.distributed.calls import LAYOUTS, OPERATORS, VARIANTS, WORLDS, Request, answer, difference, small_request
from tests.distributed.kinds import every_kind, problems_before_the_exchange

DTYPE = torch.float64
CALLS = 3  # of each request: the first finds what the others repeat


def requests(ranks: int) -> list[Request]:
    """Every operator in every variant, the layouts in turn."""
    each = enumerate(itertools.product(VARIANTS, OPERATORS))
    return [
        small_request(seed, ranks, LAYOUTS[seed % len(LAYOUTS)], words, operator) for seed, (words, operator) in each
    ]


def whole(request: Request) -> Any:
    """The answer of one process."""
    return answer(scanops, request, request.given, torch.arange(request.given["x"].shape[request.dim]))


# ---- ranks that are threads: for many requests


class Meeting:
    """What ranks that are threads exchange."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks)
        self.given: list[Any] = [None] * ranks


class Seat:
    """A rank's place in a meeting, in place of a process group."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting


class Threads(Group):
    """A group whose ranks are threads of a process; ``process_group`` is a seat in their meeting."""

    @property
    def backends(self) -> str:
        return "cpu:threads"

    def everyones(self, mine: Any) -> list[Any]:
        """What each rank gives."""
        meeting = self.process_group.meeting
        meeting.given[self.rank] = mine
        meeting.barrier.wait()
        found = list(meeting.given)
        meeting.barrier.wait()
        return found

    def gather_words(self, own: Any) -> list[Any]:
        return self.everyones(own)

    def gather_into(self, found: torch.Tensor, row: torch.Tensor) -> None:
        found.copy_(torch.cat(self.everyones(row.clone())))

    def trade(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.stack([each[self.rank] for each in self.everyones(rows)])


def by_threads(request: Request) -> None:
    """Compute a call on ranks that are threads, with gradients, and compare it with what one process gives."""
    ranks, wanted = len(request.table), whole(request)
    meeting, problems = Meeting(ranks), []

    def rank_of(rank: int) -> None:
        group = Threads(Seat(meeting), ranks, rank)
        try:
            for _ in range(CALLS):
                found = answer(sd, request, request.local(rank), request.places(rank), group=group, **request.how)
                wrong = difference(request, found, wanted, rank, lambda each: sum(group.everyones(each)))  # type: ignore[return-value]
                assert not wrong, wrong
        except Exception as problem:
            problems.append(problem)
            meeting.barrier.abort()

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        own = [each for each in problems if not isinstance(each, threading.BrokenBarrierError)]
        raise AssertionError(f"{request.told()}: {[repr(each) for each in own]}") from own[0]


# ---- processes: python -m tests.distributed.ranks FOLDER

Expected = dict[int, Any]  # by the number of a request: results, gradients, second ones
GROUPS: dict[int, Any] = {}


def summed_over(group: Any, each: torch.Tensor) -> torch.Tensor:
    """The sum over the ranks of a group."""
    dist.all_reduce(each, group=group)
    return each


def every_request(rank: int, wanted: Expected) -> None:
    """Every operator in every variant on three ranks, a part of them on other numbers of ranks."""
    for world, group in GROUPS.items():
        for seed, request in enumerate(requests(world)):
            if rank >= world or (world != 3 and seed % 7 != world % 7):
                continue
            for _ in range(CALLS if world == 3 else 1):
                found = answer(sd, request, request.local(rank), request.places(rank), group=group, **request.how)
                wrong = difference(request, found, wanted[seed], rank, partial(summed_over, group))
                assert not wrong, f"rank {rank} of {request.told()}: {wrong}"


def calls_that_differ(rank: int, wanted: Expected) -> None:
    """Every rank gets a typed error that names its own call, and the group serves the next call."""
    if rank >= 4:
        return
    group, x, odd = GROUPS[4], torch.ones(2, 3), rank == 1
    given = {"x": x, "op": "sum", "dim": 1, "group": group}
    differences: dict[str, dict[str, Any]] = {  # words of the odd rank's own call -> what it does otherwise
        "two of 1 items a rank": {"spans": "head_tail", "x": x[:, :2]},
        "op='prod'": {"op": "prod"},
        "dim=1 of 3": {"x": x.reshape(2, 3, 1)},
        r"lines of shape \(1,\)": {"x": x[:1]},
        "torch.float64 to torch.float64": {"x": x.double()},
        "reverse=True": {"reverse": True},
        "starts": {"segment_starts": x > 1},
        "initial=1.0": {"initial": 1.0},
        r"offsets of shape \(2,\)": {"offsets": torch.tensor([0, 12])},
        "gradients of x": {"x": x.clone().requires_grad_()},
    }
    for message, changed in differences.items():
        own = f"rank 1 calls (.|\n)*{message}(.|\n)*ranks .0, 2, 3. differ" if odd else "ranks .1. differ from it"
        with pytest.raises(PeerMismatch, match=own):
            sd.scan(**given | (changed if odd else {}))
        assert torch.equal(sd.scan(**given)[:, -1], torch.full((2,), 3.0 * (rank + 1)))
    errors: dict[str, dict[str, Any]] = {
        "method must be 'auto', 'onepass' or 'twopass'": {"method": "chain"},
        "offsets must be a tensor": {"offsets": [0, 12]},
        "spans must be None or 'head_tail'": {"spans": [[(0, 9)]] * 4},
        "an even number of items": {"spans": "head_tail"},
        "dim must be from": {"dim": 7},
        "an operator of one tensor": {"op": "linear"},
        "mutually exclusive": {"offsets": torch.tensor([0, 12]), "segment_starts": x > 1},
        "group must be": {"group": 3},
        "must rise": {"offsets": torch.tensor([0, 13])},
    }
    for message, changed in errors.items():  # on all ranks, and on one: nothing is sent before
        for who in ("all", "one") if "must rise" not in message else ("all",):
            if who == "all" or odd:
                with pytest.raises(UnsupportedRequest, match=message):
                    sd.scan(**given | changed)
            assert torch.equal(sd.scan(**given)[:, -1], torch.full((2,), 3.0 * (rank + 1)))
    for name in ("complete", "out", "chunk", "map", "then", "revers"):  # what a sharded scan does not have
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            sd.scan(**given | {name: None})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scanops.distributed.sharded_scan.is_captured", lambda device: True)
        with pytest.raises(UnsupportedRequest, match="CUDA graph cannot hold"):
            sd.scan(**given)
    head_tail = torch.arange(16.0).reshape(8, 2)[[rank, 7 - rank]].flatten()
    assert torch.equal(sd.cumsum(head_tail, 0, group=group, spans="head_tail"), (head_tail * (head_tail + 1)) / 2)
    with sd.sharded(group, (0,)), scanops.patch_torch():
        block = [scanops.cumsum(x, 0), torch.cumsum(x, 0), scanops.nn.CumSum(1)(x), torch.compile(
            lambda x: scanops.cumsum(x, 0), backend="aot_eager", fullgraph=True)(x)]  # fmt: skip
        with pytest.raises(UnsupportedRequest, match="not for sharded dimensions"):
            scanops.scan(x, "sum", 0, map=lambda x: x * x)
        for name, value in {"out": x, "complete": True}.items():
            with pytest.raises(UnsupportedRequest, match=f"{name} is not for sharded"):
                scanops.cumsum(x, 0, **{name: value})
    along = sd.cumsum(x, 0, group=group)
    expected = [along, along, x.cumsum(1), along, along, x.cumsum(0)]
    torch.testing.assert_close([*block, scanops.nn.CumSum(0, group=group)(x), scanops.cumsum(x, 0)], expected)
    for _ in range(2):  # a number as a gate
        decayed = sd.linear_scan(0.5, x, 1, group=group)
        torch.testing.assert_close(decayed, scanops.linear_scan(0.5, torch.ones(2, 12), 1).chunk(4, 1)[rank])
    leaf = (x + 1).requires_grad_()
    (expected,) = torch.autograd.grad(sd.cumprod(leaf, 1, group=group).sum(), leaf)
    for reentrant in (False, True):  # computed again in the backward pass, with its exchanges
        again = checkpoint(lambda x: sd.cumprod(x, 1, group=group), leaf, use_reentrant=reentrant)
        leaf.grad = None
        again.sum().backward()
        torch.testing.assert_close(leaf.grad, expected)


def dtensors(rank: int, wanted: Expected) -> None:
    """Shards of the scanned dimension stay where they are, in eager code, backward and compiled; no items travel."""
    from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor, init_device_mesh

    mesh, pair = init_device_mesh("cpu", (2, 4)), DeviceMesh("cpu", [0, 1])
    make, sharded = torch.Generator().manual_seed(0), (Shard(0), Shard(1))
    tensors = [torch.rand(s, generator=make, dtype=DTYPE) for s in ((3, 7), (3, 7), (3,), (3, 1))]
    places: Any = (sharded, sharded, (Shard(0), Replicate()), (Replicate(), Replicate()))

    def model(module: Any, a: Any, b: Any, h: Any, w: Any) -> Any:
        y, final = module.linear_scan(a * w, b, 1, initial=h, return_final=True)
        return y, final, module.cumsum(y, 1, reverse=True, mask=a > 0.3), module.linear_scan(w, b, 1)

    def short(module: Any, a: Any, b: Any, h: Any, w: Any) -> Any:
        return module.linear_scan(a, b, 1, initial=h, return_final=True)

    def results(call: Any, leaves: list[Any]) -> Any:
        found = call(*(each.requires_grad_() for each in leaves))
        sum((each * each).sum() for each in found).backward()
        return [*found, *(each.grad for each in leaves if each.grad is not None)]

    short_compiled = torch.compile(partial(short, sd), backend="aot_eager", fullgraph=True)
    plain_compiled = torch.compile(partial(short, scanops), backend="aot_eager", fullgraph=True)
    for on, call, same in (
        (mesh, partial(model, sd), model), (mesh, partial(model, scanops), model), (pair, short_compiled, short),
        (pair, plain_compiled, short),
    ):  # fmt: skip
        if on is pair and rank > 1:
            continue
        at = [place[-on.ndim :] for place in places]
        found = results(call, [distribute_tensor(t, on, p) for t, p in zip(tensors, at, strict=True)])
        assert [each.placements for each in found[:2]] == [at[0], at[2]]
        expected = results(partial(same, scanops), [each.clone() for each in tensors])
        torch.testing.assert_close([each.full_tensor() for each in found], [each.detach() for each in expected])
    a = tensors[0].detach()
    x = distribute_tensor(a, mesh, sharded)
    assert torch.equal(scanops.cumsum(x, 1, complete=True).full_tensor(), scanops.cumsum(a, 1, complete=True))
    assert torch.equal(sd.cummax(x, 1).indices.full_tensor(), torch.cummax(a, 1).indices)
    assert torch.equal(sd.cumsum(x, 0).redistribute(placements=sharded).full_tensor(), torch.cumsum(a, 0))
    turned = DeviceMesh("cpu", [1, 0])
    if rank < 2:
        with pytest.raises(UnsupportedRequest, match="orders its ranks otherwise"):
            sd.cumsum(distribute_tensor(a, turned, [Shard(1)]), 1)
        with pytest.raises(UnsupportedRequest, match="must be a DeviceMesh whose ranks rise"):
            sd.exscan(torch.tensor(rank + 5), group=turned)
        assert sd.exscan(torch.tensor(rank + 5), group=pair) == (5 if rank else 0)
    for bad in ({"mask": a > 0}, {"group": GROUPS[2]}):
        with pytest.raises(UnsupportedRequest, match="must all be DTensors of one mesh"):
            sd.cumsum(x, 1, **bad)


def ranks_that_leave(rank: int, wanted: Expected) -> None:
    """A rank that is late and one that ends: a typed error within the timeout on those that wait."""
    dist.barrier()  # on a busy machine a rank may be seconds behind, and these groups would not be made
    late, dead = (dist.new_group(members, timeout=timedelta(seconds=2)) for members in ((0, 1), (2, 3, 4)))
    meet = dist.new_group((5, 6))
    lame = [dist.new_group((5, 6), timeout=timedelta(seconds=2)) for _ in range(2)]
    if rank in (5, 6):
        problems_before_the_exchange(rank - 5, meet, lame)
    if rank > 4:
        return
    if rank == 1:
        dist.barrier(group=GROUPS[2])  # the other has given up
    if rank == 3:
        print("right", flush=True)
        os._exit(0)
    with pytest.raises(PeerLost, match="did not respond within the timeout"):
        sd.cumsum(torch.ones(2), 0, group=late if rank < 2 else dead)
    if rank == 0:
        dist.barrier(group=GROUPS[2])


def work(rank: int, folder: str, wanted: Expected) -> None:
    """What one process does. Nothing is torn down: see tests/torch_integration/test_processes.py."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=max(WORLDS))
    limit = timedelta(seconds=120)
    GROUPS.update({world: dist.new_group(range(world), timeout=limit) for world in WORLDS})
    every_kind(rank, GROUPS[2], GROUPS[4])
    for check in (every_request, calls_that_differ, dtensors, ranks_that_leave):
        check(rank, wanted)
    print("right", flush=True)
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Imports here what compiling imports in a rank, Dynamo among it.
    import torch._inductor.comm_lowering
    import torch.distributed.tensor

    torch.compile(lambda x: scanops.cumsum(x, 0), backend="aot_eager", fullgraph=True)(torch.ones(2, 3))
    answers = {seed: whole(request) for seed, request in enumerate(requests(1))}
    torch.multiprocessing.start_processes(work, (sys.argv[1], answers), max(WORLDS), start_method="fork")
