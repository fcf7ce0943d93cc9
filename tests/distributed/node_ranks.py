"""Processes that scan sharded lines in one pass over nodes, by emulated kernels: two nodes of two, and one and two."""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.device_mesh import DeviceMesh

import scanops
import scanops.distributed as sd
from scanops.distributed import method_costs
from scanops.distributed.groups import group_of
from scanops.distributed.nodes import Nodes
from scanops.errors import MissingKernel, PeerLost, PeerMismatch, UnsupportedRequest
from tests.distributed.linked_ranks import drawn, scanned

NAMES = {"pairs": ("a", "a", "b", "b"), "uneven": ("a", "b", "b"), "singles": ("a", "b", "c")}
# (op, shape, dim, cuts of the line, keywords); the last rank of a world has the rest of the line
CASES: tuple[tuple[str, tuple[int, ...], int, tuple[int, ...], dict[str, Any]], ...] = (
    ("sum", (37, 60), 1, (10, 30, 31), {}),
    ("sum", (37, 60), 1, (10, 30, 31), {"reverse": True}),
    ("sum", (37, 60), 1, (0, 30, 30), {"initial": 2.0}),
    ("sum", (3, 60, 8), 1, (20, 20, 59), {"initial": "lines"}),
    ("linear", (37, 60), 1, (10, 30, 31), {"reverse": True, "exclusive": True}),
    ("linear", (2, 3, 60), 2, (20, 20, 40), {}),
    ("linear", (60,), 0, (20, 30, 40), {"initial": 2.0}),
    ("sum", (37, 60), 1, (10, 30, 31), {"mask": True}),
    ("sum", (37, 60), 1, (10, 30, 31), {"half": True}),
)


def check_values(rank: int, ranks: int) -> None:
    """Values are those of one process, of first calls and of repeated ones."""
    for op, shape, dim, cuts, options in CASES:
        x, gate = drawn(shape, op, torch.bfloat16 if options.get("half") else torch.float32)
        lines = shape[:dim] + shape[dim + 1 :]
        extra = {name: each for name, each in options.items() if name not in ("half", "mask")}
        if extra.get("initial") == "lines":
            extra["initial"] = torch.arange(torch.Size(lines).numel(), dtype=torch.float32).reshape(lines)
        ends = [0, *cuts[: ranks - 1], shape[dim]]
        own = slice(ends[rank], ends[rank + 1])

        def cut(each: torch.Tensor, dim: int = dim, own: slice = own) -> torch.Tensor:
            return each[(slice(None),) * dim + (own,)].contiguous()

        masks = {"mask": gate >= 0} if "mask" in options else {}
        for times in (1, 2, 3):
            wanted = cut(scanned(scanops, op, x * times, gate, dim, **extra, **masks))
            with scanops.emulate():
                y = scanned(
                    sd, op, cut(x * times), cut(gate), dim, method="onepass", **extra,
                    **{name: cut(each) for name, each in masks.items()},
                )  # fmt: skip
            assert torch.equal(y, wanted), (op, shape, options, rank, times, y, wanted)
        known = list(group_of(None).ledger.calls.values())[-1]
        assert (known.repeat is not None) == (ends[rank] < ends[rank + 1])  # ready for the next equal call


def check_gradients(rank: int, ranks: int) -> None:
    """Gradients are those of one process: first ones, of repeated calls too, and second ones; also in a checkpoint."""
    make = torch.Generator().manual_seed(5)
    cases: tuple[tuple[str, tuple[int, ...], int, tuple[int, ...], dict[str, Any]], ...] = (
        ("sum", (37, 60), 1, (10, 30, 31), {}),
        ("sum", (37, 60), 1, (0, 30, 30), {"reverse": True, "initial": (37,), "return_final": True}),
        ("sum", (37, 60), 1, (10, 30, 31), {"weights": True}),
        ("linear", (37, 60), 1, (10, 30, 31), {"reverse": True, "exclusive": True}),
        ("linear", (20, 3, 60), 2, (20, 20, 40), {"initial": (1, 3), "return_final": True}),
        ("linear", (60,), 0, (20, 30, 40), {"initial": ()}),
        ("linear", (3, 60, 8), 1, (20, 20, 20), {}),
        ("prod", (37, 60), 1, (10, 30, 31), {"initial": 1.5}),
        ("max", (37, 60), 1, (10, 10, 31), {}),
        ("linear", (37, 60), 1, (10, 30, 31), {"reverse": True, "flags": True}),
        ("prod", (37, 60), 1, (10, 30, 30), {"flags": True}),
    )
    for op, shape, dim, cuts, options in cases:
        ends = [0, *cuts[: ranks - 1], shape[dim]]
        own = slice(ends[rank], ends[rank + 1])
        how = {name: each for name, each in options.items() if name in ("reverse", "exclusive", "return_final")}
        for order in (1, 1, 1, 2) if shape == (60,) else (1, 1, 1):
            wide = torch.float64 if order == 2 else torch.float32
            x, gate, weight, mask = (torch.rand(shape, generator=make).to(wide) for _ in range(4))
            x = x / 4 + 0.75 if op == "prod" else x
            lines = torch.Size([size for d, size in enumerate(shape) if d != dim])
            of_final, start = torch.rand(lines, generator=make).to(wide), options.get("initial")
            h = torch.rand(start, generator=make).to(wide) if isinstance(start, tuple) else start

            def differentiate(
                module: Any, cut: Any, part: float, op: str = op, dim: int = dim, h: Any = h, how: Any = how,
                options: Any = options, order: int = order, given: Any = (x, gate, weight, mask),
                of_final: Any = of_final, **more: Any,
            ) -> list[torch.Tensor]:  # fmt: skip
                x, gate, weight, mask = (cut(each).clone() for each in given)
                leaves = [x, *[gate] * (op == "linear"), *[mask] * ("weights" in options)]
                more |= {"mask": mask} if "weights" in options else {}
                more |= {"segment_starts": mask > 0.6} if "flags" in options else {}
                if h is not None:
                    more["initial"] = h = h.clone() if isinstance(h, torch.Tensor) else h
                    leaves += [h] if isinstance(h, torch.Tensor) else []
                for each in leaves:
                    each.requires_grad_()
                found = scanned(module, op, x, gate, dim, **how, **more)
                y, *final = found if isinstance(found, tuple) else (found,)
                loss = (y * y * weight).sum() + sum((each * each * of_final).sum() * part for each in final)
                first = torch.autograd.grad(loss, leaves, create_graph=order == 2)
                if order == 2:
                    first = (*first, *torch.autograd.grad(sum((each * each).sum() for each in first), leaves))
                return [each.detach() for each in (*first, y, *final)]

            def cut(each: torch.Tensor, dim: int = dim, own: slice = own) -> torch.Tensor:
                return each[(slice(None),) * dim + (own,)].contiguous()

            wanted = differentiate(scanops, torch.Tensor.clone, 1.0)
            with scanops.emulate():
                found = differentiate(sd, cut, 1.0 / ranks, method="onepass")
            is_first = rank == (ranks - 1 if how.get("reverse") else 0)
            for mine, theirs in zip(found, wanted, strict=True):
                expected = cut(theirs) if theirs.shape == shape else theirs
                if isinstance(h, torch.Tensor) and theirs.shape == h.shape and mine is not found[-1] and not is_first:
                    expected = torch.zeros_like(theirs)
                torch.testing.assert_close(
                    mine, expected, rtol=1e-4, atol=1e-4, msg=lambda m, case=(op, shape, options, rank): f"{case} {m}"
                )


def check_other_calls(rank: int, ranks: int) -> None:
    """Calls that are prepared each time, in another order of ranks; what is compared, and what takes two passes."""
    x, gate = drawn((37, 60), "linear", torch.float32)
    cut = lambda each, at=rank: each.tensor_split(ranks, 1)[at]  # noqa: E731
    turned = DeviceMesh("cpu", list(range(ranks))[::-1])
    with scanops.emulate():
        for check in ("always", "never"):
            for _ in range(2):
                y = sd.linear_scan(0.5, cut(x), 1, method="onepass", check=check)
                torch.testing.assert_close(y, cut(scanops.linear_scan(0.5, x, 1)))
        for times in (1, 2):
            there = ranks - 1 - rank
            y = sd.linear_scan(gate[:, :1], cut(x, there) * times, 1, method="onepass", group=turned)
            wanted = scanops.linear_scan(gate[:, :1], x * times, 1)
            assert torch.equal(y, cut(wanted, there))
        y = sd.scan(cut(x), "max", 1, exclusive=True, method="onepass")
        assert torch.equal(y, cut(scanops.scan(x, "max", 1, exclusive=True)))
        assert torch.equal(sd.cumsum(cut(x), 1), cut(x.cumsum(1)))
        with pytest.raises(UnsupportedRequest, match="over several nodes does not serve"):
            sd.logcumsumexp(cut(x).clone().requires_grad_(), 1, method="onepass")
        with pytest.raises(PeerMismatch, match="ranks differ in options"):
            sd.cumsum(cut(x), 1, exclusive=rank == 1, dtype=torch.float64, method="onepass")
    mixed = dist.new_group(list(range(ranks)))
    os.environ["SCANOPS_NODE"] = "odd" if rank % 2 else "even"
    with scanops.emulate():
        for _ in range(2):
            with pytest.raises(UnsupportedRequest, match="ranks follow one another"):
                sd.cumsum(cut(x), 1, method="onepass", group=mixed)
            assert torch.equal(sd.cumsum(cut(x), 1, group=mixed), cut(x.cumsum(1)))


def check_failures(rank: int, ranks: int, names: tuple[str, ...]) -> None:
    """Nodes that make different calls, a rank without its kernel, and a rank that makes another call: none hangs."""
    os.environ["SCANOPS_NODE"] = names[rank]
    is_behind = names[rank] != names[0]
    x = torch.ones(37, 50)
    groups = [dist.new_group(list(range(ranks))) for _ in range(3)]
    with scanops.emulate():
        for group in groups:
            for exclusive in (False, True):
                sd.cumsum(x, 1, method="onepass", exclusive=exclusive, group=group)
        dist.barrier()
        with pytest.raises((PeerMismatch, PeerLost)) if is_behind else contextlib.nullcontext():
            sd.cumsum(x, 1, method="onepass", exclusive=is_behind, group=groups[0])
            for _ in range(2 if is_behind else 0):
                sd.cumsum(x, 1, method="onepass", group=groups[0])
        dist.barrier()
        x = torch.ones(37, 51)
        if rank == 0:
            with scanops.policy("never"), pytest.raises(MissingKernel):
                sd.cumsum(x, 1, method="onepass", group=groups[1])
        else:
            with pytest.raises((PeerLost, PeerMismatch)):
                for _ in range(3):
                    sd.cumsum(x, 1, method="onepass", group=groups[1])
        (nodes,) = group_of(groups[2]).ledger.links.values()
        for reverse in (False, True):  # the rank that refuses sends no message, which others wait for
            for border in filter(None, (nodes.source(reverse), nodes.target(reverse))):
                border.process_group._get_backend(x.device)._set_default_timeout(timedelta(seconds=2))
        dist.barrier()
        with pytest.raises((PeerMismatch, PeerLost)):
            for k in range(3):
                sd.cumsum(x[:, :50], 1, method="onepass", exclusive=rank == 1 and k == 0, group=groups[2])


def work(rank: int, folder: str, layout: str) -> None:
    """What one process does."""
    torch.set_num_threads(1)
    method_costs.BAND_SECONDS = 0.0
    names = NAMES[layout]
    os.environ["SCANOPS_NODE"] = names[rank]
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=len(names))
    check_values(rank, len(names))
    (nodes,) = group_of(None).ledger.links.values()
    assert isinstance(nodes, Nodes)
    assert nodes.count == len(set(names))
    assert max(nodes.bands.values()) > 3  # several bands, or the test says nothing
    check_gradients(rank, len(names))
    if layout != "singles":
        check_other_calls(rank, len(names))
        check_failures(rank, len(names), names)
    os.write(1, b"right\n")
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    ranks = len(NAMES[sys.argv[2]])
    torch.multiprocessing.start_processes(work, sys.argv[1:3], ranks, start_method="fork")
