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

import scanops
from scanops.codegen.operators import Operator
from scanops.errors import PeerLost, PeerMismatch, UnsupportedRequest

LENGTH, LINES, DTYPE = 11, 3, torch.float64

AFFINE = Operator(  # maps x -> ax + b of integers modulo 8, as 8a + b: associative and not commutative
    name="affine_mod_8",
    formula="y[i] = x[0] then x[1] then ... then x[i]",
    combine=("((older >> 3) * (newer >> 3) & 7) << 3 | (((newer >> 3) * (older & 7) + (newer & 7)) & 7)",),
    identity=("8",),
    kinds=("int",),
    gives="kept",
    commutative=False,
    start=8,
    step=lambda h, x: (((h >> 3) * (x >> 3)) & 7) << 3 | (((x >> 3) * (h & 7) + (x & 7)) & 7),
)
SQUARES = Operator(  # whose state is not an element
    name="squares", formula="y[i] = x[0] * x[0] + ... + x[i] * x[i]", lift=("x * x",), combine=("older + newer",),
    identity=("0",), commutative=True, start=0, step=lambda h, x: h + x * x,
)  # fmt: skip
FLOATS = ("sum", "prod", "max", "min", "logcumsumexp", "linear", "cummax", "cummin")
WHOLE = (AFFINE, "sum", "bitwise_xor", "logical_or", "cummax", "max")
EXACT = ("max", "min", "cummax", "cummin")


class Case(NamedTuple):
    """One call on the whole dimension, and where it is cut."""

    op: Any
    bounds: tuple[int, ...]
    x: torch.Tensor
    others: dict[str, Any]  # gate, mask, starts and offsets as far as they are given, of the whole dimension
    options: dict[str, Any]  # reverse, exclusive, initial, return_final

    def local(self, rank: int) -> dict[str, Any]:
        """The tensors of one rank, x among them."""
        cut = slice(self.bounds[rank], self.bounds[rank + 1])
        found = {"x": self.x, **self.others}
        return {k: v if k == "offsets" or v.shape[1] == 1 else v[:, cut] for k, v in found.items()}

    @property
    def exact(self) -> bool:
        """Whether sharded results have the bits of one process."""
        return not self.x.is_floating_point() or self.op in EXACT


def cuts(length: int, ranks: int, how: str, draw: random.Random) -> tuple[int, ...]:
    """Bounds of shards: as DTensor's chunks, whose last are short or empty; even; or anywhere."""
    if how == "chunk":
        size = -(-length // ranks)
        return (*(min(r * size, length) for r in range(ranks)), length)
    if how == "even":
        return tuple(length * r // ranks for r in range(ranks + 1))
    return (0, *sorted(draw.choices(range(length + 1), k=ranks - 1)), length)


def case_of(op: Any, ranks: int, how: str, variant: str, seed: int, whole: bool = False) -> Case:
    """A case of random tensors; ``variant`` is what the call has beside x, separated by blanks."""
    draw, make = random.Random(seed), torch.Generator().manual_seed(seed)
    shape, words = (LINES, LENGTH), variant.split()
    x = torch.randint(0, 64, shape, generator=make) | 8 if whole else torch.randn(shape, dtype=DTYPE, generator=make)
    x = x.round() if op in EXACT and not whole else x  # ties
    others: dict[str, Any] = {}
    if op == "linear":
        others["gate"] = torch.rand(LINES, 1 if "broadcast" in words else LENGTH, dtype=DTYPE, generator=make) * 1.5
    if "mask" in words:
        others["mask"] = torch.rand(shape, generator=make) < 0.6
    if "weights" in words:
        others["mask"] = x % 3 if whole else torch.rand(shape, dtype=DTYPE, generator=make)
    if "starts" in words:
        others["starts"] = torch.rand(shape, generator=make) < 0.2
    if "offsets" in words:
        inner = sorted(draw.choices(range(LENGTH + 1), k=4))
        others["offsets"] = torch.tensor([0, *inner, LENGTH])
    options: dict[str, Any] = {name: name in words for name in ("reverse", "exclusive")}
    if "initial" in words:
        options["initial"] = (x[:, 0].clone() | 8) if whole else torch.randn(LINES, dtype=DTYPE, generator=make)
        options["initial"] = options["initial"] > 8 if op == "logical_or" else options["initial"]
    options["return_final"] = "final" in words
    return Case(op, cuts(LENGTH, ranks, how, draw), x, others, options)


def called(
    module: Any, case: Case, tensors: dict[str, Any], options: dict[str, Any], **more: Any
) -> list[torch.Tensor]:
    """All results of a call of ``scanops`` or of ``scanops.distributed``, in one list."""
    x, gate = tensors["x"], tensors.get("gate")
    given = {name: tensors[name] for name in ("mask", "offsets") if name in tensors} | options | more
    if "starts" in tensors:
        given["segment_starts"] = tensors["starts"]
    if case.op == "linear":
        found = module.linear_scan(gate, x, 1, **given)
    elif case.op in ("cummax", "cummin"):
        found = getattr(module, case.op)(x, 1, **given)
    else:
        found = module.scan(x, case.op, 1, **given)
    return _flat(found)


def _flat(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else [each for part in found for each in _flat(part)]


VARIANTS = (
    "final", "reverse", "exclusive initial", "reverse exclusive final", "mask initial final", "mask reverse",
    "starts initial final", "starts reverse exclusive initial final", "offsets reverse initial", "offsets final",
    "mask starts exclusive", "weights broadcast initial final",
)  # fmt: skip


def cases(ranks: int) -> Iterator[Case]:
    """Every operator in every variant, the cuts in turn."""
    hows = itertools.cycle(("chunk", "even", "random"))
    for seed, (variant, op) in enumerate(itertools.product(VARIANTS, (*FLOATS, *WHOLE))):
        whole = seed % (len(FLOATS) + len(WHOLE)) >= len(FLOATS)
        if op == "logical_or" and "initial" in variant and "starts" in variant:
            continue
        yield case_of(op, ranks, next(hows), variant, seed, whole)


# ---- processes: python -m tests.distributed.ranks FOLDER

WORLDS = (1, 2, 3, 4, 8)
Expected = dict[int, Any]  # by the number of a case: results, gradients, second ones


def leaves_of(tensors: dict[str, Any], options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """Tensors and options whose floating tensors require gradients, and these in a fixed order."""
    tensors, options = (
        {k: v.clone().requires_grad_() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
         for k, v in each.items()}
        for each in (tensors, options)
    )  # fmt: skip
    read = [*tensors.items(), *options.items()]
    return tensors, options, [v for _, v in read if isinstance(v, torch.Tensor) and v.requires_grad]


def derived(module: Any, case: Case, tensors: dict[str, Any], cut: slice, twice: bool, **more: Any) -> Any:
    """Results, gradients and second derivatives; results are weighted by their place in the whole line."""
    tensors, options, leaves = leaves_of(tensors, case.options)
    found = called(module, case, tensors, options, **more)
    results = [each.detach() for each in found]
    if not case.x.is_floating_point():
        return results, [], []
    weights = torch.linspace(-1, 2, LENGTH, dtype=DTYPE)[cut]
    y, *final = [each for each in found if each.is_floating_point()]
    part = cut.stop - cut.start
    loss = (y * weights).sum() + sum((each * part / LENGTH).sum() for each in final)
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
        assert len(these) == len(those)
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
    import scanops.distributed as sd

    for world, group in GROUPS.items():
        for seed, case in enumerate(cases(world)):
            if rank >= world or (world != 3 and seed % 7 != world % 7):
                continue
            cut = slice(*case.bounds[rank : rank + 2])
            results = wanted[seed]
            try:
                found = derived(sd, case, case.local(rank), cut, bool(results[2]), group=group)
                compare(case, found, results, rank)
            except Exception as problem:
                name = getattr(case.op, "name", case.op)
                raise AssertionError(
                    f"{name} {case.bounds} {list(case.others)} {case.options} rank {rank}"
                ) from problem


def calls_that_differ(rank: int, wanted: Expected) -> None:
    """Every rank gets a typed error that names what differs, and the group serves the next call."""
    import scanops.distributed as sd

    if rank >= 4:
        return
    group, x, odd = GROUPS[4], torch.ones(2, 3), rank == 1
    flags = torch.zeros(2, 3, dtype=torch.bool)
    refused: dict[str, dict[str, Any]] = {  # by the rank that makes such a call, which the others hear of
        "complete is not for sharded": {"complete": True},
        "out is not for sharded": {"out": x},
        "check must be a word": {"check": "sometimes"},
        "dim must be from": {"dim": 7},
        "cannot be sharded": {"op": SQUARES},
        "an operator of one tensor": {"op": "linear"},
        "unexpected keyword": {"revers": True},
    }
    for message, changed in refused.items():
        with pytest.raises((UnsupportedRequest, TypeError) if odd else PeerMismatch, match=message):
            sd.scan(**{"x": x, "op": "sum", "dim": 1, "group": group} | (changed if odd else {}))
    with pytest.raises(UnsupportedRequest, match="group must be a process group"):
        sd.cumsum(x, 1, group=3)
    calls: dict[str, Any] = {
        "operator": lambda: sd.scan(x, "prod" if odd else "sum", 1, group=group),
        "dimension": lambda: sd.cumsum(x.reshape(2, 3, 1) if odd else x, 1, group=group),
        "lines": lambda: sd.cumsum(x[:1] if odd else x, 1, group=group),
        "dtypes": lambda: sd.cumsum(x.double() if odd else x, 1, group=group),
        "options": lambda: sd.cumsum(x, 1, reverse=odd, group=group),
        "operands": lambda: sd.cumsum(x, 1, segment_starts=flags if odd else None, group=group),
        "initial": lambda: sd.cumsum(x, 1, initial=1.0 if odd else 2.0, group=group),
        "offsets": lambda: sd.cumsum(x, 1, offsets=torch.tensor([0, 5 if odd else 4, 12]), group=group),
        "gradients": lambda: sd.cumsum(x.clone().requires_grad_(odd), 1, group=group),
        "must": lambda: sd.cumsum(x, 1, offsets=torch.tensor([0, 13]), group=group),
    }
    for word, call in calls.items():
        with pytest.raises(UnsupportedRequest if word == "must" else PeerMismatch, match=word):
            call()
        assert torch.equal(sd.cumsum(x, 1, group=group)[:, -1], torch.full((2,), 3.0 * (rank + 1)))


def dtensors(rank: int, wanted: Expected) -> None:
    """Shards of the scanned dimension stay where they are, in eager code, backward and compiled; no items travel."""
    from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor, init_device_mesh

    import scanops.distributed as sd

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
    import scanops.distributed as sd

    late, dead = (dist.new_group(members, timeout=timedelta(seconds=2)) for members in ((0, 1), (2, 3, 4)))
    if rank > 4:
        return
    if rank == 1:
        time.sleep(3.5)
    if rank == 3:
        print("right", flush=True)
        os._exit(0)
    began = time.monotonic()
    with pytest.raises(PeerLost, match="late"):
        sd.cumsum(torch.ones(2), 0, group=late if rank < 2 else dead)
    assert time.monotonic() - began < 5


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
        seed: derived(scanops, case, {"x": case.x, **case.others}, everything, seed % 4 == 0)
        for seed, case in enumerate(cases(1))
    }
    torch.multiprocessing.start_processes(work, (sys.argv[1], answers), max(WORLDS), start_method="fork")
