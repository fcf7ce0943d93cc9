"""Cases of sharded scans, cuts of a line into shards, and processes that scan them together."""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from collections.abc import Iterator
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
from scanops.codegen.operators import Operator
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
    bounds: tuple[int, ...]
    given: Given

    def local(self, rank: int) -> Given:
        """What one rank passes."""
        cut = slice(*self.bounds[rank : rank + 2])
        return {k: v[:, cut] if k in SHARDED and v.shape[1] > 1 else v for k, v in self.given.items()}

    @property
    def exact(self) -> bool:
        """Whether sharded results have the bits of one process."""
        return not self.given["x"].is_floating_point() or self.op in EXACT


def case_of(op: Any, ranks: int, how: str, variant: str, seed: int, whole: bool = False) -> Case:
    """A case of random tensors; ``variant`` is what the call has beside x, separated by blanks.

    ``how`` the line is cut: as DTensor's chunks, whose last are short or empty; evenly; or anywhere.
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
    return Case(op, (0, *inner, LENGTH), given)


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


def cases(ranks: int) -> Iterator[Case]:
    """Every operator in every variant, the cuts in turn."""
    hows = itertools.cycle(("chunk", "even", "random"))
    for seed, (variant, op) in enumerate(itertools.product(VARIANTS, (*FLOATS, *WHOLE))):
        whole = seed % (len(FLOATS) + len(WHOLE)) >= len(FLOATS)
        yield case_of(op, ranks, next(hows), variant, seed, whole)


# ---- processes: python -m tests.distributed.ranks FOLDER

WORLDS = (1, 2, 3, 4, 8)
Expected = dict[int, Any]  # by the number of a case: results, gradients, second ones


def derived(module: Any, case: Case, given: Given, cut: slice, twice: bool, **more: Any) -> Any:
    """Results, gradients and second derivatives; results are weighted by their place in the whole line."""
    floating = [k for k, v in given.items() if isinstance(v, torch.Tensor) and v.is_floating_point()]
    given = {k: v.clone().requires_grad_() if k in floating else v for k, v in given.items()}
    leaves, found = [given[k] for k in floating], called(module, case.op, given, **more)
    results = [each.detach() for each in found]
    if not given["x"].is_floating_point():
        return results, [], []
    weights = torch.linspace(-1, 2, LENGTH, dtype=DTYPE)[cut]
    y, *final = [each for each in found if each.is_floating_point()]
    loss = (y * weights).sum() + sum((each * (cut.stop - cut.start) / LENGTH).sum() for each in final)
    grads = torch.autograd.grad(loss, leaves, create_graph=twice, materialize_grads=True)
    second: Any = ()
    if twice:
        turns = sum((grad * (1 + torch.cos(leaf))).sum() for grad, leaf in zip(grads, leaves, strict=True))
        second = torch.autograd.grad(turns, leaves, materialize_grads=True)
    return results, [each.detach() for each in grads], [each.detach() for each in second]


def compare(case: Case, found: Any, wanted: Any, rank: int) -> None:
    """Compare this rank's results and gradients with its parts of those of one process."""
    cut = slice(*case.bounds[rank : rank + 2])
    for k, (these, those) in enumerate(zip(found, wanted, strict=True)):
        for mine, whole in zip(these, those, strict=True):
            summed = k > 0 and (whole.ndim == 1 or whole.shape[1] == 1)  # replicated: each rank has its part
            if summed:
                torch.distributed.all_reduce(mine, group=GROUPS[len(case.bounds) - 1])
            part = whole if whole.ndim == 1 or summed else whole[:, cut]
            if case.exact and k == 0:
                assert torch.equal(mine, part), (k, mine, part)
            else:
                torch.testing.assert_close(mine, part)


GROUPS: dict[int, Any] = {}


def every_case(rank: int, wanted: Expected) -> None:
    """Every operator in every variant on three ranks, a part of them on other numbers of ranks."""
    for world, group in GROUPS.items():
        for seed, case in enumerate(cases(world)):
            if rank >= world or (world != 3 and seed % 7 != world % 7):
                continue
            cut, results = slice(*case.bounds[rank : rank + 2]), wanted[seed]
            try:
                found = derived(sd, case, case.local(rank), cut, bool(results[2]), group=group)
                compare(case, found, results, rank)
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
    for on, call, same in ((mesh, partial(model, sd), model), (pair, short_compiled, short)):
        if on is pair and rank > 1:
            continue
        at = [place[-on.ndim :] for place in places]
        found = results(call, [distribute_tensor(t, on, p) for t, p in zip(tensors, at, strict=True)])
        assert [each.placements for each in found[:2]] == [at[0], at[2]]
        expected = results(partial(same, scanops), [each.clone() for each in tensors])
        torch.testing.assert_close([each.full_tensor() for each in found], [each.detach() for each in expected])
    a = tensors[0].detach()
    x = distribute_tensor(a, mesh, sharded)
    assert torch.equal(sd.cummax(x, 1).indices.full_tensor(), torch.cummax(a, 1).indices)
    assert torch.equal(sd.cumsum(x, 0).redistribute(placements=sharded).full_tensor(), torch.cumsum(a, 0))
    turned = DeviceMesh("cpu", [1, 0])
    if rank < 2:
        with pytest.raises(UnsupportedRequest, match="orders its ranks otherwise"):
            sd.cumsum(distribute_tensor(a, turned, [Shard(1)]), 1)
        assert sd.exscan(torch.tensor(rank + 5), group=turned) == (6 if rank == 0 else 0)
    for bad in ({"mask": a > 0}, {"group": GROUPS[2]}):
        with pytest.raises(UnsupportedRequest, match="cannot be scanned where they lie"):
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
        sd.cumsum(torch.ones(2), 0, group=late if rank < 2 else dead)


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
    everything = slice(0, LENGTH)
    answers = {
        seed: derived(scanops, case, case.given, everything, seed % 6 == 0) for seed, case in enumerate(cases(1))
    }
    torch.multiprocessing.start_processes(work, (sys.argv[1], answers), max(WORLDS), start_method="fork")
