"""Processes that scan sharded lines in one pass, by emulated kernels that write one another's memory."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.utils.checkpoint import checkpoint

import scanops
import scanops.distributed as sd
from scanops.distributed import call_log, exchange, links, onepass
from scanops.distributed.autograd_nodes import LinkedBackward
from scanops.distributed.groups import group_of
from scanops.distributed.sharded_scan import How, prepare
from scanops.errors import MissingKernel, PeerLost, PeerMismatch, UnsupportedRequest
from scanops.requests.call import Call
from scanops.requests.request import Inputs
from scanops.runtime import native

RANKS = 3
# (op, shape, dim, lengths of the shards, keywords); small whole numbers, so that results are exact
CASES: tuple[tuple[str, tuple[int, ...], int, tuple[int, ...], dict[str, Any]], ...] = (
    ("sum", (5, 1200), 1, (400, 400, 400), {}),
    ("linear", (5, 1200), 1, (1, 1198, 1), {"reverse": True}),
    ("linear", (3, 700, 8), 1, (200, 0, 500), {}),
    ("sum", (3, 700, 7), 1, (300, 300, 100), {"reverse": True, "exclusive": True}),
    ("linear", (2, 18000), 1, (1400, 8300, 8300), {"exclusive": True}),
    ("linear", (40, 6), 0, (0, 1, 39), {}),
    ("prod", (4, 90), 1, (30, 31, 29), {}),
    ("max", (4, 900), 1, (300, 0, 600), {"reverse": True}),
    ("min", (4, 30, 5), 1, (10, 10, 10), {"exclusive": True}),
    ("logcumsumexp", (4, 900), 1, (899, 1, 0), {}),
    ("logcumsumexp", (2, 18000), 1, (1400, 8300, 8300), {"reverse": True}),
)
PAIRS: list[Any] = []  # a group of the first two ranks, and one of the last
LATE: list[Any] = []  # others of the first two
EVERY = "SCANOPS_EVERY_TRIAL" in os.environ
TWO_SPANS: dict[str, Any] = {"spans": "head_tail", "method": "twopass"}
FLOATS, HALVES, WHOLE = torch.float32, torch.bfloat16, torch.int32


def drawn(shape: tuple[int, ...], op: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    low, high = (-1, 2) if op == "prod" else (-3, 4)
    x, gate = (torch.randint(*ends, shape, generator=make) for ends in ((low, high), (-1, 2)))
    return x.to(dtype), gate.to(dtype)


def scanned(module: Any, op: str, x: torch.Tensor, gate: torch.Tensor, dim: int, **options: Any) -> Any:
    return module.linear_scan(gate, x, dim, **options) if op == "linear" else module.scan(x, op, dim, **options)


def results_and_gradients(rank: int) -> None:
    """Values, and first and second gradients, those of one process."""
    for number, (op, shape, dim, lengths, options) in enumerate(CASES):
        x, gate = drawn(shape, op, FLOATS)
        wanted = scanned(scanops, op, x, gate, dim, **options).split(lengths, dim)[rank]
        shards = [each.split(lengths, dim)[rank].contiguous() for each in (x, gate)]
        with scanops.emulate():
            for _ in range(2):
                y = scanned(sd, op, *shards, dim, method="onepass", **options)
                torch.testing.assert_close(y, wanted, msg=lambda text, op=op: f"{op} {text}")
        if op in ("prod", "min"):  # gradients_of_other_calls has their zeros and their ties
            continue
        weight = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(1)).to(FLOATS)
        leaves = [each.requires_grad_() for each in (x, gate)]
        (scanned(scanops, op, *leaves, dim, **options) * weight).sum().backward()
        for kept in (True, False)[: 1 + (number < 2)]:  # in the node, or in a checkpoint
            own = [each.detach().requires_grad_() for each in shards]

            def call(*tensors: torch.Tensor, op: str = op, dim: int = dim, options: Any = options) -> Any:
                return scanned(sd, op, *tensors, dim, method="onepass", **options)

            with scanops.emulate():
                y = call(*own) if kept else checkpoint(call, *own, use_reentrant=False)
                (y * weight.split(lengths, dim)[rank]).sum().backward()
            for mine, theirs in zip(own, leaves, strict=True):
                if theirs.grad is not None:
                    assert mine.grad is not None
                    close = {"rtol": 1e-4, "atol": 1e-5} if op == "logcumsumexp" else {}
                    torch.testing.assert_close(mine.grad, theirs.grad.split(lengths, dim)[rank], **close)
        if number > 1:  # kernels of float64 take seconds to compile
            continue
        own = [each.detach().double().requires_grad_() for each in shards]
        whole = [each.detach().double().requires_grad_() for each in (x, gate)]
        seconds = []
        for module, tensors, extra in ((sd, own, {"method": "onepass"}), (scanops, whole, {})):
            with scanops.emulate():
                y = scanned(module, op, *tensors, dim, **options, **extra)
                first = torch.autograd.grad((y * y).sum(), tensors[: 2 if op == "linear" else 1], create_graph=True)
                seconds.append(torch.autograd.grad(sum((each * each).sum() for each in first), tensors[0])[0])
        torch.testing.assert_close(seconds[0], seconds[1].split(lengths, dim)[rank])


def ends_of_lines(rank: int) -> None:
    """The first rank's carry-in and the last one's carry-out, which no rank between has; and their gradients."""
    make = torch.Generator().manual_seed(3)
    for op, shape, dim, lengths, (reverse, exclusive), dtype in (
        ("sum", (5, 1200), 1, (1, 1198, 1), (False, False), FLOATS),
        ("sum", (3, 40, 8), 1, (0, 1, 39), (True, True), HALVES),
        ("linear", (3, 700, 8), 1, (200, 0, 500), (True, False), FLOATS),
        ("linear", (3, 90), 1, (50, 40, 0), (False, True), FLOATS),
        ("prod", (4, 90), 1, (30, 31, 29), (False, False), FLOATS),
    ):
        x, gate, weight = (torch.rand(shape, generator=make).to(dtype) + (op == "prod") / 2 for _ in range(3))
        lines = [size for d, size in enumerate(shape) if d != dim]
        h, of_final = (torch.rand(lines, generator=make) for _ in range(2))
        leaves = [x, *[gate] * (op == "linear"), h]
        whole = [each.clone().requires_grad_() for each in leaves]
        y, final = scanned(
            scanops, op, whole[0], whole[1], dim, initial=whole[-1], reverse=reverse, exclusive=exclusive,
            return_final=True,
        )  # fmt: skip
        wanted = torch.autograd.grad((y * weight).sum() + (final * of_final).sum(), whole)
        cut = [each.split(lengths, dim)[rank].contiguous() for each in (x, gate, weight, y, *wanted[:-1])]
        own = [each.detach().requires_grad_() for each in (*cut[: len(leaves) - 1], h)]
        given = Inputs(own[0], None, own[1] if op == "linear" else None, initial=own[-1])
        with scanops.emulate():
            scan = prepare("scan", Call(op, dim, reverse, exclusive), given, group_of(None), How("onepass"))
        is_first, is_last = rank == (2 if reverse else 0), rank == (0 if reverse else 2)
        for _ in range(2):
            with scanops.emulate():
                link = scan.find_link(x)
                call = replace(scan.call, link=link, final=is_last, dtype=scan.result)
                read = given if is_first else given._replace(initial=None)
                found = onepass.scan_linked(call, read, partial(scan.record, given.initial, None))
                assert len(found) == 1 + is_last
                loss = (found[0] * cut[2]).sum() + sum((each * of_final).sum() for each in found[1:])
                own_gradients = torch.autograd.grad(loss, own)
            expected = (cut[3], *cut[4:], wanted[-1] if is_first else torch.zeros_like(h), *[final] * is_last)
            for mine, theirs in zip((found[0], *own_gradients, *found[1:]), expected, strict=True):
                close = {"rtol": 1e-2, "atol": 1e-1} if dtype == HALVES else {"rtol": 1e-4, "atol": 1e-4}
                torch.testing.assert_close(mine, theirs, msg=lambda m, case=(op, shape): f"{case} {m}", **close)


def carries_and_their_gradients(rank: int) -> None:
    """The carry-out is the same on all ranks, of which one does not use it; gradients of the initial value are on one.

    Also where nothing but the initial value has a gradient.
    """
    make = torch.Generator().manual_seed(4)
    cases: tuple[tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
        ("sum", (5, 1200), (1, 1198, 1), (5,), {}),
        ("sum", (2, 9), (1, 1, 7), (), {"reverse": True}),
        ("linear", (2, 9, 3), (0, 1, 8), (2, 1), {"reverse": True, "exclusive": True}),
        ("linear", (3, 700, 8), (200, 0, 500), (3, 8), {}),
        ("prod", (4, 90), (30, 60, 0), (4,), {"exclusive": True}),
        ("max", (3, 40, 8), (0, 1, 39), (3, 8), {"exclusive": True}),
        ("min", (2, 9), (8, 0, 1), (2,), {"reverse": True}),
    )
    for (op, shape, lengths, lines, options), wants, ends in itertools.product(
        cases, ("all", "initial"), (False, True)
    ):
        x, gate, weight = (torch.rand(shape, generator=make) for _ in range(3))
        h, of_final = torch.rand(lines, generator=make), torch.rand(shape[:1] + shape[2:], generator=make)

        def differentiate(
            module: Any, cut: Any, order: int, part: float, op: str = op, x: Any = x, gate: Any = gate, h: Any = h,
            weight: Any = weight, wants: str = wants, ends: bool = ends, of_final: Any = of_final, **how: Any,
        ) -> list[torch.Tensor]:  # fmt: skip
            wide = torch.float64 if order == 2 else FLOATS
            x, gate, weight, h = (each.to(wide) for each in (cut(x), cut(gate), cut(weight), h.clone()))
            leaves = [h, *([x, *[gate] * (op == "linear")] if wants == "all" else [])]
            for each in leaves:
                each.requires_grad_()
            found = scanned(module, op, x, gate, 1, initial=h, return_final=ends, **how)
            y, *final = found if ends else (found,)
            loss = (y * y * weight).sum()
            if part:
                loss = loss + sum((each * each * of_final).sum() * part for each in final)
            gradients = torch.autograd.grad(loss, leaves, create_graph=order == 2)
            if order == 2:
                first = gradients
                gradients = (*first, *torch.autograd.grad(sum((each * each).sum() for each in first), leaves))
            return [each.detach() for each in (y, *gradients, *final)]

        def cut(each: torch.Tensor, lengths: Any = lengths) -> torch.Tensor:
            return each.split(lengths, 1)[rank].contiguous()

        is_first = rank == (2 if options.get("reverse") else 0)
        for order in (1, 2) if shape[1] == 9 else (1,):  # float64 takes seconds to compile
            wanted = differentiate(scanops, torch.Tensor.clone, order, 1.0, **options)
            with scanops.emulate():
                for _ in range(2):
                    found = differentiate(sd, cut, order, (0.25, 0, 0.75)[rank], method="onepass", **options)
                    for k, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
                        is_initial = mine.shape == h.shape and not (ends and k == len(found) - 1)
                        own = cut(theirs) if theirs.shape == shape else theirs
                        own = torch.zeros_like(own) if is_initial and not is_first else own
                        torch.testing.assert_close(
                            mine, own, rtol=1e-4, atol=1e-4, msg=lambda m, case=(op, shape, order, k): f"{case} {m}"
                        )
                    if ends:
                        assert all(torch.equal(each, found[-1]) for each in _gathered(found[-1].contiguous()))


def gradients_of_other_calls(rank: int) -> None:
    """Products with zeros, masks of both kinds, head flags that begin shards, on ranks with items and without."""
    make = torch.Generator().manual_seed(2)
    places = (((4, 90), (30, 0, 60)), ((3, 40, 8), (20, 19, 1)), ((2, 300), (100, 100, 100)), ((2, 9), (1, 1, 7)))
    operands: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("prod", ()),
        ("prod", ("mask",)),
        ("prod", ("weights",)),
        ("sum", ("mask", "segment_starts")),
        ("sum", ("weights",)),
        ("sum", ("segment_starts",)),
        ("linear", ("mask",)),
        ("linear", ("weights",)),
        ("linear", ("weights", "number")),
        ("logcumsumexp", ()),
        ("logcumsumexp", ("mask",)),
        ("max", ()),
        ("min", ("mask",)),
        ("max", ("weights",)),
        ("prod", ("segment_starts",)),
        ("linear", ("segment_starts",)),
        ("linear", ("mask", "segment_starts")),
        ("max", ("segment_starts",)),
        ("logcumsumexp", ("segment_starts",)),
    )
    for (op, names), (shape, lengths), turned in itertools.product(operands, places, (False, True)):
        is_short = shape == (2, 9) and names in (("mask",), ("segment_starts",)) and op != "max"
        if shape in ((2, 300), (2, 9)) and not is_short and op != "sum" and names:
            continue
        # Results before items are exclusive ones, or those of the items before.
        options = {"reverse": turned, "exclusive": turned and (op == "sum" or names != ("segment_starts",))}
        x = torch.randint(0, 5, shape, generator=make) / 2
        if op == "logcumsumexp":  # the first items of some lines are of no weight
            x = x.where(torch.rand(shape, generator=make) > 0.3, -math.inf)
        weight, extra = torch.rand(shape, generator=make), dict[str, torch.Tensor]()
        for name in names:
            drawn = torch.rand(shape, generator=make) + (1 if op == "prod" else 0)
            extra["mask" if name == "weights" else name] = drawn if name == "weights" else drawn % 1 > 0.6
        gate = torch.randint(-1, 3, shape, generator=make) / 2

        def differentiate(
            module: Any, cut: Any, order: int, op: str = op, x: Any = x, weight: Any = weight, extra: Any = extra,
            names: Any = names, gate: Any = gate, **how: Any,
        ) -> list[torch.Tensor]:  # fmt: skip
            wide = torch.float64 if order == 2 else FLOATS
            x, weight, gate = cut(x).to(wide).requires_grad_(), cut(weight).to(wide), cut(gate).to(wide)
            given = {name: cut(each).clone() for name, each in extra.items() if name != "number"}
            leaves = [x]
            if "weights" in names:
                given["mask"] = given["mask"].to(wide).requires_grad_()
                leaves.append(given["mask"])
            if op == "linear" and "number" not in names:
                leaves.append(gate.requires_grad_())
            y = scanned(module, op, x, 0.5 if "number" in names else gate, 1, **given, **how)
            loss = (y.exp() if op == "logcumsumexp" else y * y).masked_fill(y.isinf(), 0) * weight
            found = torch.autograd.grad(loss.sum(), leaves, create_graph=order == 2)
            if order == 2:
                found = torch.autograd.grad(sum((each * each).sum() for each in found), leaves)
            return [y.detach(), *found]

        def cut(each: torch.Tensor, lengths: Any = lengths) -> torch.Tensor:
            return each.split(lengths, 1)[rank].contiguous()

        for order in (1, 2) if is_short else (1,):  # float64 takes seconds to compile
            wanted = differentiate(scanops, torch.Tensor.clone, order, **options)
            with scanops.emulate():
                for _ in range(2):
                    found = differentiate(sd, cut, order, method="onepass", **options)
                    for mine, theirs in zip(found, wanted, strict=True):
                        torch.testing.assert_close(
                            mine,
                            cut(theirs),
                            rtol=1e-4,
                            atol=1e-4,
                            msg=lambda m, case=(op, names, shape, order): f"{case} {m}",
                        )


def other_calls(rank: int) -> None:
    """Half types, whole numbers, masks, flags, a carry-in; more lines than the memory had; what is not served."""
    x, gate = drawn((4, 300), "sum", FLOATS)
    mask, starts = gate >= 0, gate > 0
    with scanops.emulate():
        for dtype in (HALVES, WHOLE):
            y = sd.cumsum(x.to(dtype).chunk(3, 1)[rank], 1, dtype=dtype, method="onepass")
            assert torch.equal(y, scanops.cumsum(x.to(dtype), 1, dtype=dtype).chunk(3, 1)[rank])
        for options in ({"mask": mask}, {"segment_starts": starts}, {"initial": torch.arange(4.0)}, {"initial": 2.0}):
            cut = {
                name: each.chunk(3, 1)[rank].contiguous() if name in ("mask", "segment_starts") else each
                for name, each in options.items()
            }
            y = sd.cumsum(x.chunk(3, 1)[rank].contiguous(), 1, method="onepass", **cut)
            assert torch.equal(y, scanops.cumsum(x, 1, **options).chunk(3, 1)[rank]), options
        for op, dtype in (
            ("sum", HALVES), ("max", torch.int8), ("min", torch.float16), ("max", torch.bool), ("sum", torch.int64),
            ("logcumsumexp", torch.float64), ("max", torch.float8_e4m3fn),
        ):  # fmt: skip
            for options in ({}, {"reverse": True, "exclusive": True}):
                values = x.to(dtype) if dtype != torch.bool else x > 2
                cut = values.split((100, 200, 0), 1)[rank]
                for _ in range(2):
                    y, final = sd.scan(cut, op, 1, return_final=True, method="onepass", **options)
                    wanted, end = scanops.scan(values, op, 1, return_final=True, **options)
                    torch.testing.assert_close(y, wanted.split((100, 200, 0), 1)[rank])
                    torch.testing.assert_close(final, end)
        nothing = torch.zeros(1, 300, dtype=torch.bool)
        for op in ("max", "min"):  # of whole numbers, in a dtype with infinities
            cut = [each.split((300, 0, 0), 1)[rank].contiguous() for each in (x.int(), nothing)]
            given = {"mask": cut[1], "dtype": FLOATS, "return_final": True}
            assert (sd.scan(cut[0], op, 1, **given, method="onepass")[1].abs() == math.inf).all()
        turned = torch.complex(x, x).conj().imag  # a view that is negated when it is read
        y = sd.cumsum(turned[:3].chunk(3, 1)[rank], 1, method="onepass")
        assert torch.equal(y, -scanops.cumsum(x[:3], 1).chunk(3, 1)[rank])
        for _ in range(2):
            y = sd.linear_scan(0.5, x.chunk(3, 1)[rank].contiguous(), 1, method="onepass")
            torch.testing.assert_close(y, scanops.linear_scan(0.5, x, 1).chunk(3, 1)[rank])
        many = drawn((links.LEAST_WORDS + 100, 6), "sum", FLOATS)[0]
        for _ in range(3):
            y = sd.cumsum(many.chunk(3, 1)[rank].contiguous(), 1, method="onepass")
            assert torch.equal(y, many.cumsum(1).chunk(3, 1)[rank])
        dist.barrier()  # a rank that refuses a call ends the waits of others
        for problem, call in (
            ("op='cummax'", lambda: sd.cummax(x, 1, method="onepass")),
            (
                "gradients of return_final of op='logcumsumexp'",
                lambda: sd.logcumsumexp(x.clone().requires_grad_(), 1, return_final=True, method="onepass"),
            ),
            (
                "gradients of initial of op='logcumsumexp'",
                lambda: sd.logcumsumexp(x, 1, initial=torch.ones(4).requires_grad_(), method="onepass"),
            ),
        ):
            with pytest.raises(UnsupportedRequest, match=problem):
                call()
        with pytest.raises(PeerMismatch, match="ranks differ in options"):
            sd.cumsum(x[:, :7], 1, reverse=rank == 1, exclusive=True, dtype=torch.float64, method="onepass")
    with pytest.raises(UnsupportedRequest, match="x on cpu"):  # no kernel reads it
        sd.cumsum(x, 1, method="onepass")


def repeated_calls(rank: int) -> None:
    """Equal calls are one launch until the call cache is emptied, and read their own tensors."""
    calls = group_of(None).ledger.calls
    x, gate = (each.chunk(3, 1)[rank].contiguous() for each in drawn((4, 300), "linear", FLOATS))
    calls.clear()
    with scanops.emulate():
        for times in range(1, 5):
            for turn, start in enumerate((torch.arange(4.0), None)):
                y, final = sd.linear_scan(gate, x * times, 1, initial=start, return_final=True, method="onepass")
                whole = [torch.cat(_gathered(each), 1) for each in (gate, x * times)]
                wanted, end = scanops.linear_scan(*whole, 1, initial=start, return_final=True)
                assert torch.equal(y, wanted.chunk(3, 1)[rank]) and torch.equal(final, end)
                assert list(calls.values())[turn].repeat is not None
        scan = next(iter(calls.values()))
        scanops.runtime.call_cache.forget()
        before = scan.repeat
        sd.linear_scan(gate, x, 1, initial=torch.arange(4.0), return_final=True, method="onepass")
        assert scan.repeat is not before
        assert scan.repeat.generation > before.generation


def launches_that_are_counted_elsewhere(rank: int) -> None:
    """Scans of one GPU and of other groups use the same stream, and may be counted by the same numbers.

    Each scan before a linked one has the same tiles, and other items.
    """
    x, gate = (each.chunk(3, 1)[rank].contiguous() for each in drawn((2, 150000), "linear", FLOATS))
    whole = [torch.cat(_gathered(each), 1) for each in (gate, x)]
    wanted = scanops.linear_scan(*whole, 1).chunk(3, 1)[rank]
    for other in (None, dist.new_group([0, 1, 2])):
        group = dist.new_group([0, 1, 2])
        scanops.runtime.workspaces._WORKSPACES.clear()
        for seed in range(1, 5):
            with scanops.emulate(seed=seed, multiprocessors=5):
                if other is None:
                    scanops.linear_scan(gate, 7 - x, 1)
                else:
                    sd.linear_scan(gate, 7 - x, 1, group=other, method="onepass")
                found = sd.linear_scan(gate, x, 1, group=group, method="onepass")
                assert torch.equal(found, wanted)


def gradients_of_spans(rank: int) -> None:
    """In two passes, of two spans on each rank: views of operands and results whose lines are apart in memory."""
    shape, make = (2, 30, 3), torch.Generator().manual_seed(3)
    pieces = torch.arange(30).chunk(2 * RANKS)
    places = torch.cat([pieces[rank], pieces[2 * RANKS - 1 - rank]])
    for op in ("linear", "prod", "max", "logcumsumexp"):
        x, gate, weight = (torch.randint(-2, 3, shape, generator=make).to(FLOATS) for _ in range(3))
        whole = [each.clone().requires_grad_() for each in ((gate, x) if op == "linear" else (x,))]
        own = [each.detach()[:, places].clone().requires_grad_() for each in whole]
        for tensors, part, module, how in ((whole, weight, scanops, {}), (own, weight[:, places], sd, TWO_SPANS)):
            with scanops.emulate() if module is sd else contextlib.nullcontext():
                y = module.linear_scan(*tensors, 1, **how) if op == "linear" else module.scan(*tensors, op, 1, **how)
                (y * part).sum().backward()
        for mine, theirs in zip(own, whole, strict=True):
            assert mine.grad is not None and theirs.grad is not None
            torch.testing.assert_close(mine.grad, theirs.grad[:, places], rtol=1e-4, atol=1e-4)


def memory_that_grows(rank: int) -> None:
    """A call with more lines makes new memory; those before it read their carries from there."""
    for lines in (4, 4 * links.LEAST_WORDS, 4):
        x, gate = (each.chunk(3, 1)[rank].contiguous() for each in drawn((lines, 90), "linear", FLOATS))
        with scanops.emulate():
            for _ in range(2):
                leaves = [each.clone().requires_grad_() for each in (gate, x)]
                found = torch.autograd.grad(sd.linear_scan(*leaves, 1, method="onepass").sum(), leaves)
        whole = [torch.cat(_gathered(each), 1).requires_grad_() for each in (gate, x)]
        wanted = torch.autograd.grad(scanops.linear_scan(*whole, 1).sum(), whole)
        for mine, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, theirs.chunk(3, 1)[rank])


class Served:
    """How many forward and backward passes C++ has served in this process, from ``count`` on."""

    forward = backward = 0

    def count(self) -> None:
        """Count from here on."""
        serve, begin, run = native.served_linked, LinkedBackward.begin, LinkedBackward.__call__
        assert serve is not None

        def count_forward(*given: Any) -> Any:
            found = serve(*given)
            self.forward += found is not None
            return found

        def count_begun(*given: Any) -> Any:
            self.backward += 1
            return begin(*given)

        def count_python(*given: Any) -> Any:
            self.backward -= not torch.is_grad_enabled()
            return run(*given)

        native.served_linked = count_forward
        LinkedBackward.begin = count_begun  # type: ignore[method-assign]
        LinkedBackward.__call__ = count_python  # type: ignore[method-assign]

    def since(self, forward: int = 0, backward: int = 0) -> tuple[int, int]:
        """Return the numbers since they were others."""
        return self.forward - forward, self.backward - backward


SERVED = Served()


def calls_that_cpp_serves(rank: int) -> None:
    """C++ serves equal calls and their backward passes, all but the first two, with what one process gives."""
    make, options = torch.Generator().manual_seed(5), {"method": "onepass"}
    turned = {"reverse": True, "exclusive": True}
    cases: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("sum", "", {}),
        ("max", "", {"return_final": True, **turned}),
        ("sum", "x", turned),
        ("sum", "x", {"segment_starts": True}),
        ("sum", "x, h", {"return_final": True}),
        ("prod", "x", {"return_final": True}),
        ("linear", "", {"initial": True}),
        ("linear", "x", {}),
        ("linear", "x, gate", turned),
        ("linear", "x, gate, h", {"return_final": True, **turned}),
        ("linear", "gate", {"initial": True}),
        ("linear", "h", {"return_final": True}),
    )
    for (op, names, how), (shape, lengths) in itertools.product(
        cases, (((3, 90), (30, 40, 20)), ((2, 40, 5), (1, 30, 9)))
    ):
        lines = shape[:1] + shape[2:]
        before, times = SERVED.since(), 5
        for turn in range(times):
            x, gate, weight = (torch.rand(shape, generator=make) + (op == "prod") / 2 for _ in range(3))
            starts = torch.rand(shape, generator=make) > 0.8
            h, of_final = (torch.rand(lines, generator=make) for _ in range(2))
            tensors = {"x": x, "gate": gate, "h": h}

            def differentiate(module: Any, cut: Any, part: float, how: Any = how, **given: Any) -> list[torch.Tensor]:
                own = {name: (each if name == "h" else cut(each)).clone() for name, each in given["tensors"].items()}
                leaves = [own[name].requires_grad_() for name in given["names"].split(", ") if name]
                how, (starts, weight, of_final) = dict(how), given["others"]
                with_initial = how.pop("initial", False) or "h" in given["names"]
                if how.pop("segment_starts", False):
                    how["segment_starts"] = cut(starts).clone()
                if with_initial:
                    how["initial"] = own["h"]
                found = scanned(module, given["op"], own["x"], own["gate"], 1, **how, **given["options"])
                y, *final = found if how.get("return_final") else (found,)
                if not leaves:
                    return [y, *final]
                loss = (y * y * cut(weight)).sum() + sum((each * each * of_final).sum() * part for each in final)
                first = torch.autograd.grad(loss, leaves, retain_graph=True)
                again = torch.autograd.grad(loss, leaves)
                assert all(map(torch.equal, first, again))
                return [*first, y.detach(), *[each.detach() for each in final]]

            def cut(each: torch.Tensor, lengths: Any = lengths) -> torch.Tensor:
                return each.split(lengths, 1)[rank]

            given = {"tensors": tensors, "names": names, "others": (starts, weight, of_final), "op": op}
            wanted = differentiate(scanops, torch.Tensor.clone, 1.0, **given, options={})
            with scanops.emulate():
                found = differentiate(sd, cut, (0.25, 0, 0.75)[rank], **given, options=options)
            wants = names.split(", ") if names else []
            for k, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
                own = cut(theirs) if theirs.shape == shape else theirs
                if k < len(wants) and wants[k] == "h" and rank != (2 if how.get("reverse") else 0):
                    own = torch.zeros_like(own)
                torch.testing.assert_close(
                    mine, own, rtol=1e-4, atol=1e-4, msg=lambda m, case=(op, names, how, turn, k): f"{case} {m}"
                )
        # The nodes of the first two calls are Python's; of those after, the first learns from its first pass.
        served = SERVED.since(*before)
        assert served == (times - 2, 2 * (times - 2) - 1 if names else 0), (op, names, how, shape, served)
    _derivatives_of_served_calls(rank)


def _derivatives_of_served_calls(rank: int) -> None:
    """Checkpoints, second derivatives, passes after a first one, gradients after a link's memory has grown."""
    x, gate = (each.double() for each in drawn((2, 9), "linear", FLOATS))
    lengths = (1, 1, 7)

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = sd.linear_scan(*tensors, 1, method="onepass")
        return y

    whole = [each.clone().requires_grad_() for each in (gate, x)]
    y = scanops.linear_scan(*whole, 1)
    expected = torch.autograd.grad((y * y).sum(), whole, create_graph=True)
    seconds = torch.autograd.grad(sum((each * each).sum() for each in expected), whole)
    expected, seconds = ([each.detach().split(lengths, 1)[rank] for each in of] for of in (expected, seconds))
    own = [each.split(lengths, 1)[rank].clone().requires_grad_() for each in (gate, x)]
    before = SERVED.since()
    with scanops.emulate():
        for _ in range(4):
            y = call(*own)
            found = torch.autograd.grad((y * y).sum(), own, create_graph=True)
            torch.testing.assert_close([each.detach() for each in found], expected)
            found = torch.autograd.grad(sum((each * each).sum() for each in found), own)
            torch.testing.assert_close([*found], seconds)
        assert SERVED.since(*before) == (2, 1)  # where gradients are differentiated, through results
        for _ in range(3):
            y = checkpoint(call, *own, use_reentrant=False)
            torch.testing.assert_close([*torch.autograd.grad((y * y).sum(), own)], expected)
        # What a checkpoint computes again it leaves at its last tensor, by an exception.
        assert SERVED.since(*before) == (2 + 3, 1 + 3), SERVED.since(*before)
        y = call(*own)
        loss = (y * y).sum()
        for _ in range(2):
            torch.testing.assert_close([*torch.autograd.grad(loss, own, retain_graph=True)], expected)
        torch.autograd.grad(loss, own)
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            torch.autograd.grad(loss, own)
        total = sd.cumsum(own[1], 1, method="onepass")
        for _ in range(2):  # which saves nothing
            (found,) = torch.autograd.grad(total, own[1], torch.ones_like(total))
            assert torch.equal(found, torch.arange(9, 0, -1.0).expand(2, 9).split(lengths, 1)[rank].double())
        (link,) = group_of(None).ledger.links.values()
        words = link.half
        many = torch.ones(words + 1, 3)
        assert torch.equal(sd.cumsum(many, 1, method="onepass")[:, -1], torch.full((words + 1,), 3.0 * (rank + 1)))
        assert link.half > words
        for served in (0, 0, 1, 1):
            before = SERVED.since()
            y = call(*own)
            torch.testing.assert_close([*torch.autograd.grad((y * y).sum(), own)], expected)
            assert SERVED.since(*before)[0] == served


def _gathered(shard: torch.Tensor) -> list[torch.Tensor]:
    found = [torch.empty_like(shard) for _ in range(RANKS)]
    dist.all_gather(found, shard)
    return found


def repeated_calls_that_differ(rank: int) -> None:
    """Calls that all ranks have made before: every rank raises, at the latest at its next call, and none hangs."""
    x, gate = (each.chunk(3, 1)[rank].contiguous() for each in drawn((4, 300), "linear", FLOATS))
    leaves = [each.clone().requires_grad_() for each in (gate, x)]

    def backward(group: Any, order: tuple[int, ...]) -> None:
        made = [sd.linear_scan(*leaves, 1, method="onepass", group=group).sum() for _ in range(2)]
        for k in order:
            torch.autograd.grad(made[k], leaves)

    calls: dict[str, Any] = {
        "sum": lambda group: sd.cumsum(x, 1, method="onepass", group=group),
        "other direction": lambda group: sd.cumsum(x, 1, method="onepass", reverse=True, group=group),
        "exclusive": lambda group: sd.cumsum(x, 1, method="onepass", exclusive=True, group=group),
        "max": lambda group: sd.scan(x, "max", 1, method="onepass", group=group),
        "other lines": lambda group: sd.cumsum(x[:2], 1, method="onepass", group=group),
        "two passes": lambda group: sd.cumsum(x, 1, method="twopass", group=group),
        "compared": lambda group: sd.cumsum(x, 1, method="onepass", check="always", group=group),
        "backward": lambda group: backward(group, (0, 1)),
        "backward in another order": lambda group: backward(group, (1, 0)),
    }
    trials = [(a, b) for a in ("sum", "backward") for b in calls if a != b][:: 1 if EVERY else 2]
    with scanops.emulate():
        for trial, (usual, other) in enumerate(trials * (4 if EVERY else 1)):
            group, victim, late = dist.new_group(list(range(RANKS))), trial % RANKS, (trial // RANKS) % RANKS
            for _ in range(2):
                for name in (usual, other):
                    calls[name](group)
            dist.barrier()
            if rank == late:
                time.sleep(0.05)
            with pytest.raises(PeerMismatch) as raised:
                for k in range(40):  # the first rank in scan order waits for none of the last two
                    calls[other if rank == victim and k == 0 else usual](group)
            assert "ranks differ in" in str(raised.value) or "refused the call" in str(raised.value), raised.value
            with pytest.raises(PeerMismatch):  # the group has ended
                calls["sum"](group)
            dist.barrier()
        # One that no rank has made, and one that they have.
        for trial in range(2 * RANKS):
            group = dist.new_group(list(range(RANKS)))
            calls["sum"](group)
            dist.barrier()
            if rank == trial // 2:
                time.sleep(0.05 * (trial % 2))
            with pytest.raises(PeerMismatch):
                for k in range(40):  # the first rank in scan order waits for none of the last two
                    calls["max" if rank == trial // 2 and k == 0 else "sum"](group)
            dist.barrier()
        for _ in range(call_log.NOTES + 10):  # more than the memory holds
            y = calls["sum"](None)
        log: Any = group_of(None).ledger.log
        for k in range(3 * call_log.NOTES):  # of other kinds
            for each in (k, 0):
                log.note_launch(exchange.Message("cumsum", {"function": f"call {each}"}, each))
        assert len(log._known) == call_log.NOTES
        latest = [message.digest for message in log._known.values()]
        assert latest[-2:] == [3 * call_log.NOTES - 1, 0]
    assert torch.equal(y, torch.cat(_gathered(x), 1).cumsum(1).chunk(3, 1)[rank])


def refusals_beside_slower_ranks(rank: int) -> None:
    """A rank that refuses a call ends no earlier one, of which others are not through: those are right.

    Epochs may be about to begin again, which the kernels and the refusing rank compare by the sign of a difference.
    """
    x = drawn((4, 300), "sum", FLOATS)[0]
    own, wanted = x.chunk(3, 1)[rank].contiguous(), x.cumsum(1).chunk(3, 1)[rank]
    for finished in (0, 2**32 - 5, 2**32 - 4, 2**31 - 3):  # launches before
        group = dist.new_group(list(range(RANKS)))
        with scanops.emulate():
            sd.cumsum(own, 1, method="onepass", group=group)
            dist.barrier()
            if finished:
                (link,) = group_of(group).ledger.links.values()
                link._memories[-1].own[0] = finished << 32 if finished < 2**31 else (finished << 32) - 2**64
                dist.barrier()
            if rank == 1:
                time.sleep(0.3)
            for _ in range(2):  # the first rank has room for no more before the second has begun
                y = sd.cumsum(own, 1, method="onepass", group=group)
                assert torch.equal(y, wanted)
            if rank == 0:
                with pytest.raises(UnsupportedRequest, match="reverse must be a bool"):
                    sd.cumsum(own, 1, method="onepass", group=group, reverse="no")
                continue
            began = time.monotonic()
            with pytest.raises(PeerLost, match="another rank refused a call"):
                for _ in range(4):  # the last rank's first one may end with what the failed one before sends
                    sd.cumsum(own, 1, method="onepass", group=group)
            assert time.monotonic() - began < 20  # not the time limit
    dist.barrier()


def a_backward_pass_without_kernels(rank: int) -> None:
    """It raises: PyTorch's operators know of no other ranks."""
    x = torch.ones(4, 30, requires_grad=True)
    group = dist.new_group(list(range(RANKS)))
    with scanops.emulate():
        y = sd.scan(x, "max", 1, group=group, method="onepass")
    with pytest.raises(UnsupportedRequest, match="the backward pass of a sharded scan in one pass needs kernels"):
        y.sum().backward()


def a_rank_without_its_kernel(rank: int) -> None:
    """It raises, and the rank that waits for it raises at its next call, long before the time limit."""
    if rank == 2:
        return
    x = torch.ones(4, 77)
    with scanops.emulate():
        sd.cumsum(x[:, :70], 1, method="onepass", group=PAIRS[0])
        if rank == 0:
            with scanops.policy("never"), pytest.raises(MissingKernel):
                sd.cumsum(x, 1, method="onepass", group=PAIRS[0])
            return
        with pytest.raises(PeerLost, match="another rank refused a call"):
            for _ in range(2):  # a kernel that waits says so, and the next call raises
                sd.cumsum(x, 1, method="onepass", group=PAIRS[0])


def a_rank_that_is_late(rank: int) -> None:
    """The others wait as long as a link lets them, and raise at their next call: the first ones, and served by C++."""
    if rank == 2:
        return
    links.LIMIT_SECONDS = 1
    x = torch.ones(4, 50).requires_grad_()

    def call(group: Any) -> torch.Tensor:
        with torch.no_grad():
            y: torch.Tensor = sd.cumsum(x, 1, method="onepass", group=group)
        return y

    def differentiate(group: Any) -> Any:
        return torch.autograd.grad(sd.cumsum(x, 1, method="onepass", group=group).sum(), x)

    with scanops.emulate():
        for times, group in zip((1, 4, 4), LATE, strict=True):
            is_backward = group is LATE[2]
            for _ in range(times):
                y = differentiate(group) if is_backward else call(group)
            y = sd.cumsum(x, 1, method="onepass", group=group).sum() if is_backward else y
            if rank == is_backward:
                continue
            before = SERVED.since()
            with pytest.raises(PeerLost, match="did not respond within 1 s"):
                for _ in range(2):  # the other rank makes no further call
                    torch.autograd.grad(y, x) if is_backward else call(group)
            assert SERVED.since(*before) == ((0, 2) if is_backward else (times > 1, 0))
            assert group_of(group).ledger.log


def work(rank: int, folder: str) -> None:
    """What one process does."""
    torch.set_num_threads(1)
    links.LEAST_WORDS, call_log.NOTES, call_log.REFUSED = 2**9, 32, 64
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    SERVED.count()
    PAIRS.extend(dist.new_group(ranks) for ranks in ([0, 1], [2]))
    LATE.extend(dist.new_group([0, 1]) for _ in range(3))
    results_and_gradients(rank)
    ends_of_lines(rank)
    carries_and_their_gradients(rank)
    gradients_of_other_calls(rank)
    repeated_calls(rank)
    launches_that_are_counted_elsewhere(rank)
    memory_that_grows(rank)
    gradients_of_spans(rank)
    calls_that_cpp_serves(rank)
    repeated_calls_that_differ(rank)
    other_calls(rank)
    refusals_beside_slower_ranks(rank)
    a_backward_pass_without_kernels(rank)
    a_rank_without_its_kernel(rank)
    a_rank_that_is_late(rank)
    print("right", flush=True)
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["SCANOPS_LOCK_SECONDS"] = "600"  # another worker may be building it
    assert native.get(build=True)  # before ranks fork
    torch.multiprocessing.start_processes(work, (sys.argv[1],), RANKS, start_method="fork")
