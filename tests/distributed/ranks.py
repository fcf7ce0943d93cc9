"""Cases of sharded scans, cuts of a line into shards, and processes that scan them together."""

from __future__ import annotations

import collections
import itertools
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.utils.checkpoint import checkpoint

import scanops
import scanops.distributed as sd
import scanops.nn
from scanops.codegen.operators import Operator
from scanops.distributed.groups import Agreed, Group
from scanops.distributed.spans import Table
from scanops.errors import PeerLost, PeerMismatch, UnsupportedRequest
from tests.numbers.oracle import AFFINE as COMPOUND_STATE

LENGTH, LINES, DTYPE = 11, 3, torch.float64

AFFINE = Operator(  # maps x -> ax + b of integers modulo 8, as 8a + b: associative and not commutative
    name="affine_mod_8", formula="y[i] = x[0] then x[1] then ... then x[i]", identity=("8",), kinds=("int",),
    combine=("((older >> 3) * (newer >> 3) & 7) << 3 | (((newer >> 3) * (older & 7) + (newer & 7)) & 7)",),
    step=lambda h, x: (((h >> 3) * (x >> 3)) & 7) << 3 | (((x >> 3) * (h & 7) + (x & 7)) & 7),
    gives="kept", commutative=False, start=8,
)  # fmt: skip
FLOATS = ("sum", "prod", "max", "min", "logcumsumexp", "linear", "cummax", "cummin")
WHOLE = (AFFINE, "sum", "bitwise_xor", "logical_or", "cummax", "max")
EXACT = ("max", "min", "cummax", "cummin")


SHARDED = ("x", "gate", "mask", "segment_starts")
Given = dict[str, Any]  # the tensors and options of a call


class Case(NamedTuple):
    """One call on the whole dimension, and where it is cut."""

    op: Any
    table: Table
    given: Given
    how: Given  # keywords of scanops.distributed

    def places(self, rank: int) -> torch.Tensor:
        """The items of one rank."""
        return torch.cat([torch.arange(start, stop) for start, stop in self.table[rank]])

    def local(self, rank: int) -> Given:
        """What one rank passes."""
        at = self.places(rank)
        return {k: v[:, at] if k in SHARDED and v.shape[1] > 1 else v for k, v in self.given.items()}

    @property
    def exact(self) -> bool:
        """Whether sharded results have the bits of one process."""
        return not self.given["x"].is_floating_point() or self.op in EXACT


def case_of(op: Any, ranks: int, how: str, variant: str, seed: int, whole: bool = False) -> Case:
    """A case of random tensors; ``variant`` is what the call has beside x, separated by blanks.

    ``how`` the line is cut: as DTensor's chunks, whose last are short or empty; evenly; anywhere; or into spans, two
    for each rank, in any order.
    """
    draw, make = random.Random(seed), torch.Generator().manual_seed(seed)
    shape, words = (LINES, LENGTH), variant.split()
    floats = partial(torch.rand, dtype=DTYPE, generator=make)
    x = torch.randint(0, 64, shape, generator=make) | 8 if whole else torch.randn(shape, dtype=DTYPE, generator=make)
    x = x.round() if op in EXACT and not whole else x  # ties
    first = (x[:, 0] > 20) if op == "logical_or" else (x[:, 0] | 8) if whole else x[:, 0] / 2
    all_of = {
        "mask": floats(shape) < 0.6,
        "weights": x % 3 if whole else floats(shape),
        "segment_starts": floats(shape) < 0.2,
        "offsets": torch.tensor([0, *sorted(draw.choices(range(LENGTH + 1), k=4)), LENGTH]),
        "initial": first,
        **dict.fromkeys(("reverse", "exclusive", "return_final"), True),
    }
    given = {"x": x, **{("mask" if word == "weights" else word): all_of[word] for word in words if word in all_of}}
    if op == "linear":
        given["gate"] = floats(LINES, 1 if "broadcast" in words else LENGTH) * 1.5
    inner = sorted(draw.choices(range(LENGTH + 1), k=ranks - 1))
    size = -(-LENGTH // ranks) if how == "chunk" else LENGTH / ranks
    inner = inner if how == "random" else [min(int(r * size), LENGTH) for r in range(1, ranks)]
    if how == "spans":
        inner = sorted(draw.choices(range(LENGTH + 1), k=2 * ranks - 1))
    spans = list(itertools.pairwise((0, *inner, LENGTH)))
    if how != "spans":
        chain = op not in EXACT[2:] and draw.random() < 0.5
        return Case(op, tuple((span,) for span in spans), given, {"method": "chain" if chain else "auto"})
    draw.shuffle(spans)
    table = tuple(tuple(spans[r::ranks]) for r in range(ranks))
    return Case(op, table, given, {"spans": table})


def called(module: Any, op: Any, given: Given, **more: Any) -> list[torch.Tensor]:
    """All results of a call of ``scanops`` or of ``scanops.distributed``, in one list."""
    x, gate, *_ = (given.get(name) for name in ("x", "gate"))
    given = {k: v for k, v in given.items() if k not in ("x", "gate")} | more
    if op == "linear":
        return _flat(module.linear_scan(gate, x, 1, **given))
    return _flat(getattr(module, op)(x, 1, **given) if op in EXACT[2:] else module.scan(x, op, 1, **given))


def _flat(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else [each for part in found for each in _flat(part)]


VARIANTS = (
    "return_final", "reverse", "exclusive initial", "reverse exclusive return_final", "mask initial return_final",
    "mask reverse", "segment_starts initial return_final", "segment_starts reverse exclusive initial return_final",
    "offsets reverse initial", "offsets return_final", "mask segment_starts exclusive",
    "weights broadcast initial return_final",
)  # fmt: skip


HOWS = ("chunk", "even", "random", "spans", "spans")


def cases(ranks: int) -> Iterator[Case]:
    """Every operator in every variant, the cuts in turn."""
    hows = itertools.cycle(HOWS)
    for seed, (variant, op) in enumerate(itertools.product(VARIANTS, (*FLOATS, *WHOLE))):
        whole = seed % (len(FLOATS) + len(WHOLE)) >= len(FLOATS)
        yield case_of(op, ranks, next(hows), variant, seed, whole)


# ---- ranks that are threads: for many requests


class Meeting:
    """What ranks that are threads exchange."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks)
        self.given: list[Any] = [None] * ranks
        self.sent: Any = collections.defaultdict(queue.SimpleQueue)
        for pair in itertools.product(range(ranks), repeat=2):
            self.sent[pair] = queue.SimpleQueue()


class Threads(Group):
    """A group whose ranks are threads of a process; ``process_group`` is their meeting."""

    def everyones(self, mine: Any) -> list[Any]:
        """What each rank gives."""
        meeting = self.process_group
        meeting.given[self.position] = mine
        meeting.barrier.wait()
        found = list(meeting.given)
        meeting.barrier.wait()
        return found

    def _gathered_bytes(self, packed: torch.Tensor) -> torch.Tensor:
        return torch.cat(self.everyones(packed))

    def _traded_bytes(self, packed: torch.Tensor) -> torch.Tensor:
        return torch.stack([each[self.position] for each in self.everyones(packed)])

    def broadcast(self, tensor: torch.Tensor, position: int) -> torch.Tensor:
        found: torch.Tensor = self.everyones(tensor)[position].clone()
        return found

    def send(self, tensor: torch.Tensor, position: int) -> Callable[[], object]:
        self.process_group.sent[self.position, position].put(tensor.clone())
        return lambda: None

    def receive(self, like: torch.Tensor, position: int) -> Callable[[], torch.Tensor]:
        return partial(self.process_group.sent[position, self.position].get, timeout=60)

    def agree(self, parts: dict[str, str], length: int, problem: Exception | None, check: str) -> Agreed:
        rows = self.everyones((parts, length, problem))
        if problem is not None:
            raise problem
        assert all(row[0] == parts and row[2] is None for row in rows)
        lengths = [row[1] for row in rows]
        return Agreed(lengths, sum(lengths))


def by_threads(case: Case, wanted: Any) -> None:
    """Compute a case on ranks that are threads, with gradients, and compare it with what one process gives."""
    ranks = len(case.table)
    meeting, problems = Meeting(ranks), []

    def rank_of(rank: int) -> None:
        group = Threads(meeting, tuple(range(ranks)), rank)
        try:
            more = {"group": group, **case.how}
            found = derived(sd, case, case.local(rank), case.places(rank), bool(wanted[2]), **more)
            compare(case, found, wanted, rank, lambda each: sum(group.everyones(each)))  # type: ignore[return-value]
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
        raise AssertionError(f"{case}: {[repr(each) for each in own]}") from own[0]


# ---- processes: python -m tests.distributed.ranks FOLDER

WORLDS = (1, 2, 3, 4, 8)
Expected = dict[int, Any]  # by the number of a case: results, gradients, second ones


def derived(module: Any, case: Case, given: Given, at: torch.Tensor, twice: bool, **more: Any) -> Any:
    """Results, gradients and second derivatives; results are weighted by their place in the whole line."""
    floating = [k for k, v in given.items() if isinstance(v, torch.Tensor) and v.is_floating_point()]
    given = {k: v.clone().requires_grad_() if k in floating else v for k, v in given.items()}
    leaves, found = [given[k] for k in floating], called(module, case.op, given, **more)
    results = [each.detach() for each in found]
    if not given["x"].is_floating_point():
        return results, [], []
    weights = torch.linspace(-1, 2, LENGTH, dtype=DTYPE)[at]
    y, *final = [each for each in found if each.is_floating_point()]
    loss = (y * weights).sum() + sum((each * len(at) / LENGTH).sum() for each in final)
    grads = torch.autograd.grad(loss, leaves, create_graph=twice, materialize_grads=True)
    second: Any = ()
    if twice:
        turns = sum((grad * (1 + torch.cos(leaf))).sum() for grad, leaf in zip(grads, leaves, strict=True))
        second = torch.autograd.grad(turns, leaves, materialize_grads=True)
    return results, [each.detach() for each in grads], [each.detach() for each in second]


def compare(case: Case, found: Any, wanted: Any, rank: int, summed: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Compare this rank's results and gradients with its parts of those of one process; ``summed`` adds over ranks."""
    at = case.places(rank)
    for k, (these, those) in enumerate(zip(found, wanted, strict=True)):
        for mine, whole in zip(these, those, strict=True):
            replicated = k > 0 and (whole.ndim == 1 or whole.shape[1] == 1)  # each rank has its part
            mine = summed(mine) if replicated else mine
            part = whole if whole.ndim == 1 or replicated else whole[:, at]
            if case.exact and k == 0:
                assert torch.equal(mine, part), (k, mine, part)
            else:
                torch.testing.assert_close(mine, part)


GROUPS: dict[int, Any] = {}


def summed_over(group: Any, each: torch.Tensor) -> torch.Tensor:
    """The sum over the ranks of a group."""
    dist.all_reduce(each, group=group)
    return each


def every_case(rank: int, wanted: Expected) -> None:
    """Every operator in every variant on three ranks, a part of them on other numbers of ranks."""
    for world, group in GROUPS.items():
        for seed, case in enumerate(cases(world)):
            if rank >= world or (world != 3 and seed % 7 != world % 7):
                continue
            results = wanted[seed]
            try:
                found = derived(
                    sd, case, case.local(rank), case.places(rank), bool(results[2]), group=group, **case.how
                )
                compare(case, found, results, rank, partial(summed_over, group))
            except Exception as problem:
                raise AssertionError(f"rank {rank} of {case}") from problem


def calls_that_differ(rank: int, wanted: Expected) -> None:
    """Every rank gets a typed error that names what differs, and the group serves the next call."""
    if rank >= 4:
        return
    group, x, odd = GROUPS[4], torch.ones(2, 3), rank == 1
    differences: dict[str, dict[str, Any]] = {  # a word of the message on every rank -> what one rank does otherwise
        "complete is not for sharded": {"complete": True},
        "out is not for sharded": {"out": x},
        "check must be a word": {"check": "sometimes"},
        "method must be a word": {"method": "guess"},
        "spans must be": {"spans": [[(0, 9)]] * 4},
        "spans hold|spans must be": {"spans": "head_tail"},
        "ranks differ in method": {"method": "chain"},
        "ranks differ in spans": {"spans": [[(9, 12)], [(3, 6)], [(0, 3)], [(6, 9)]]},
        "dim must be from": {"dim": 7},
        "cannot be sharded": {"op": COMPOUND_STATE},
        "an operator of one tensor": {"op": "linear"},
        "unexpected keyword": {"revers": True},
        "operator": {"op": "prod"},
        "dimension": {"x": x.reshape(2, 3, 1)},
        "lines": {"x": x[:1]},
        "dtypes": {"x": x.double()},
        "options": {"reverse": True},
        "operands": {"segment_starts": x > 1},
        "initial": {"initial": 1.0},
        "offsets": {"offsets": torch.tensor([0, 12])},
        "gradients": {"x": x.clone().requires_grad_()},
    }
    given = {"x": x, "op": "sum", "dim": 1, "group": group}
    for message, changed in differences.items():
        with pytest.raises((UnsupportedRequest, TypeError) if odd else PeerMismatch, match=message):
            sd.scan(**given | (changed if odd else {}))
        assert torch.equal(sd.scan(**given)[:, -1], torch.full((2,), 3.0 * (rank + 1)))
    for message, changed in {"group must be": {"group": 3}, "must rise": {"offsets": torch.tensor([0, 13])}}.items():
        with pytest.raises(UnsupportedRequest, match=message):
            sd.scan(**given | changed)
    head_tail = torch.arange(16.0).reshape(8, 2)[[rank, 7 - rank]].flatten()
    assert torch.equal(sd.cumsum(head_tail, 0, group=group, spans="head_tail"), (head_tail * (head_tail + 1)) / 2)
    with sd.sharded(group, (0,)), scanops.patch_torch():
        block = [scanops.cumsum(x, 0), torch.cumsum(x, 0), scanops.nn.CumSum(1)(x), torch.compile(
            lambda x: scanops.cumsum(x, 0), backend="aot_eager", fullgraph=True)(x)]  # fmt: skip
        with pytest.raises(UnsupportedRequest, match="not for sharded dimensions"):
            scanops.scan(x, "sum", 0, map=lambda x: x * x)
        with pytest.raises(UnsupportedRequest, match="out is not for sharded"):
            scanops.cumsum(x, 0, out=x)
    along = sd.cumsum(x, 0, group=group)
    expected = [along, along, x.cumsum(1), along, along, x.cumsum(0)]
    torch.testing.assert_close([*block, scanops.nn.CumSum(0, group=group)(x), scanops.cumsum(x, 0)], expected)
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
    pairs = distribute_tensor(a.round(), mesh, sharded)
    assert torch.equal(
        scanops.scan(pairs.long(), COMPOUND_STATE, 1).full_tensor(), scanops.scan(a.round().long(), COMPOUND_STATE, 1)
    )
    assert torch.equal(scanops.cumsum(x, 1, complete=True).full_tensor(), scanops.cumsum(a, 1, complete=True))
    assert torch.equal(sd.cummax(x, 1).indices.full_tensor(), torch.cummax(a, 1).indices)
    assert torch.equal(sd.cumsum(x, 0).redistribute(placements=sharded).full_tensor(), torch.cumsum(a, 0))
    turned = DeviceMesh("cpu", [1, 0])
    if rank < 2:
        with pytest.raises(UnsupportedRequest, match="orders its ranks otherwise"):
            sd.cumsum(distribute_tensor(a, turned, [Shard(1)]), 1)
        assert sd.exscan(torch.tensor(rank + 5), group=turned) == (6 if rank == 0 else 0)
    for bad in ({"mask": a > 0}, {"group": GROUPS[2]}):
        with pytest.raises(UnsupportedRequest, match="must all be DTensors of one mesh"):
            sd.cumsum(x, 1, **bad)


def ranks_that_leave(rank: int, wanted: Expected) -> None:
    """A rank that is late and one that ends: a typed error within the timeout on those that wait."""
    late, dead = (dist.new_group(members, timeout=timedelta(seconds=2)) for members in ((0, 1), (2, 3, 4)))
    if rank > 4:
        return
    if rank == 1:
        time.sleep(3.5)
    if rank == 3:
        print("right", flush=True)
        os._exit(0)
    with pytest.raises(PeerLost, match="late"):
        sd.cumsum(torch.ones(2), 0, group=late if rank < 2 else dead, method="chain")


def work(rank: int, folder: str, wanted: Expected) -> None:
    """What one process does. Nothing is torn down: see tests/torch_integration/test_processes.py."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=max(WORLDS))
    GROUPS.update({world: dist.new_group(range(world)) for world in WORLDS})
    for check in (every_case, calls_that_differ, dtensors, ranks_that_leave):
        check(rank, wanted)
    print("right", flush=True)
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    everything = torch.arange(LENGTH)
    answers = {
        seed: derived(scanops, case, case.given, everything, seed % 6 == 0) for seed, case in enumerate(cases(1))
    }
    torch.multiprocessing.start_processes(work, (sys.argv[1], answers), max(WORLDS), start_method="fork")
