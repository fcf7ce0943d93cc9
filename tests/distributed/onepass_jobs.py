"""What ranks run for the tests of one pass: emulated kernels that write one another's memory."""

from __future__ import annotations

import contextlib
import contextvars
import errno
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import scanops
import scanops.distributed as sd
from scanops.distributed import call_order, exchange, links, prepared
from scanops.distributed.groups import group_of
from scanops.distributed.onepass import OnePass
from scanops.errors import MissingKernel, PeerLost, PeerMismatch, UnsupportedRequest
from scanops.runtime import native

RANKS = 3
# Lengths of the shards: a kernel is built for each length, so there are few of them.
LENGTHS = {"even": (8, 8, 8), "uneven": (1, 8, 0), "long": (300, 8, 300), "single": (1, 1, 1)}
FLOATS, HALVES, WHOLE = torch.float32, torch.bfloat16, torch.int32


class Case(NamedTuple):
    """A call in one pass, which ranks compare with one process."""

    op: str
    lengths: str = "even"  # of LENGTHS
    inner: int = 0  # columns, 0 for rows
    operands: tuple[
        str, ...
    ] = ()  # mask, weights, segment_starts; of a gate number, or channels: one for each of a shard
    options: tuple[str, ...] = ()  # reverse, exclusive
    initial: str = ""  # "lines", "one" for all lines, or "number"
    final: bool = False
    wants: str = "all"  # gradients of all inputs, of the initial value alone, or "nothing"
    order: int = 1  # of derivatives
    dtype: torch.dtype = FLOATS
    rematerialized: bool = False  # in a checkpoint


class Tensors(NamedTuple):
    """The whole tensors of a case."""

    x: torch.Tensor
    gate: torch.Tensor
    weight: torch.Tensor
    extra: dict[str, torch.Tensor]
    initial: torch.Tensor | float | None
    of_final: torch.Tensor


def draw(case: Case, seed: int) -> Tensors:
    make = torch.Generator().manual_seed(seed)
    length = sum(LENGTHS[case.lengths])
    shape = (3, length, case.inner) if case.inner else (3, length)
    x, gate, weight = (torch.randint(0, 5, shape, generator=make) / 2 for _ in range(3))
    if case.op == "logcumsumexp":  # the first items of some lines are of no weight
        x = x.where(torch.rand(shape, generator=make) > 0.3, -math.inf)
    extra = {}
    if "channels" in case.operands:
        gate = torch.cat([each[:, :1].expand_as(each) / 2 for each in gate.split(LENGTHS[case.lengths], 1)], 1)
    for name in case.operands:
        drawn = torch.rand(shape, generator=make) + (1 if case.op == "prod" else 0)
        if name not in ("number", "channels"):
            extra["mask" if name == "weights" else name] = drawn if name == "weights" else drawn % 1 > 0.6
    lines = torch.rand(shape[:1] + shape[2:], generator=make)
    initial = {"": None, "lines": lines, "one": lines.flatten()[0], "number": 1.5}[case.initial]
    wide = torch.float64 if case.order == 2 else case.dtype
    tensors = [each.to(wide) for each in (x, gate - 0.5, weight)]
    carried = torch.float64 if case.order == 2 else FLOATS
    initial = initial.to(carried) if isinstance(initial, torch.Tensor) else initial
    extra = {name: each if each.dtype == torch.bool else each.to(wide) for name, each in extra.items()}
    return Tensors(*tensors, extra, initial, torch.rand(shape[:1] + shape[2:], generator=make))


def scan(module: Any, case: Case, x: Any, gate: Any, **how: Any) -> tuple[torch.Tensor, ...]:
    how |= dict.fromkeys(case.options, True) | {"return_final": case.final}
    if case.op == "linear":
        found = module.linear_scan(0.5 if "number" in case.operands else gate, x, 1, **how)
    else:
        found = module.scan(x, case.op, 1, **how)
    return found if isinstance(found, tuple) else (found,)


def differentiate(module: Any, case: Case, tensors: Tensors, cut: Callable[[Any], Any], part: float, **how: Any) -> Any:
    """Return results and gradients; a rank gives a ``part`` of the gradient of the carry-out."""
    wanted = case.wants != "nothing"
    x, gate = (cut(each).clone() for each in (tensors.x, tensors.gate))
    if "channels" in case.operands and x.shape != tensors.x.shape:
        gate = gate[:, :1].clone()
    x, gate = (each.requires_grad_(wanted and case.wants == "all") for each in (x, gate))
    extra = {name: cut(each).clone() for name, each in tensors.extra.items()}
    leaves = [x] if case.wants == "all" else []
    if case.op == "linear" and "number" not in case.operands and leaves:
        leaves.append(gate)
    if "weights" in case.operands and leaves:
        leaves.append(extra["mask"].requires_grad_())
    initial = tensors.initial
    if isinstance(initial, torch.Tensor):
        initial = initial.clone().requires_grad_(wanted)
        leaves += [initial] if wanted else []

    def call(x: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return scan(module, case, x, gate, initial=initial, **extra, **how)

    y, *final = checkpoint(call, x, gate, use_reentrant=False) if case.rematerialized else call(x, gate)
    found = [y.detach(), *(each.detach() for each in final)]
    if not leaves:
        return found, []
    loss = ((y.exp() if case.op == "logcumsumexp" else y * y).masked_fill(y.isinf(), 0) * cut(tensors.weight)).sum()
    for each in final:
        loss = loss + (each * each * tensors.of_final).sum() * part
    gradients = torch.autograd.grad(loss, leaves, create_graph=case.order == 2)
    if case.order == 2:
        of_each = sum((each * each).sum() for each in gradients)
        gradients = (*gradients, *torch.autograd.grad(of_each, leaves, materialize_grads=True))  # type: ignore[arg-type]
    return found, [each.detach() for each in gradients]


def compare(rank: int, case: Case, repeats: int = 2) -> None:
    """Compare values and gradients with those of one process, of calls that are made the first time and again."""
    lengths = LENGTHS[case.lengths]
    is_first = rank == (RANKS - 1 if "reverse" in case.options else 0)
    close = {"rtol": 2e-2, "atol": 1e-1} if case.dtype == HALVES else {"rtol": 1e-4, "atol": 1e-4}

    def cut(each: torch.Tensor) -> torch.Tensor:
        return each.split(lengths, 1)[rank].contiguous()

    for seed in range(repeats):
        tensors = draw(case, seed)
        wanted = differentiate(scanops, case, tensors, torch.Tensor.clone, 1.0)
        with scanops.emulate():
            found = differentiate(sd, case, tensors, cut, (0.25, 0, 0.75)[rank], method="onepass")
        for is_gradient, (own, of_whole) in enumerate(zip(found, wanted, strict=True)):
            for mine, theirs in zip(own, of_whole, strict=True):
                expected = cut(theirs) if theirs.shape == tensors.x.shape else theirs
                if mine.ndim == 3 and mine.shape[1] == 1:  # a gate for each channel
                    expected = expected.sum(1, keepdim=True)
                if is_gradient and expected is theirs and not is_first:  # that of the initial value
                    expected = torch.zeros_like(theirs)
                torch.testing.assert_close(
                    mine, expected, msg=lambda m, seed=seed: f"{case}, call {seed}: {m}", **close
                )
        if case.final:  # has the same bits on all ranks
            final = found[0][1].contiguous()
            assert all(torch.equal(each, final) for each in gather(final))


def gather(shard: torch.Tensor) -> list[torch.Tensor]:
    found = [torch.empty_like(shard) for _ in range(RANKS)]
    dist.all_gather(found, shard)
    return found


class Served:
    """How many forward and backward passes C++ serves in this process while a block runs."""

    forward = backward = 0

    def __enter__(self) -> Served:
        self._patch = pytest.MonkeyPatch()
        serve, begin, run = native.serve, OnePass.begin, OnePass.__call__
        assert serve is not None

        def count_forward(*given: Any, **named: Any) -> Any:
            found = serve(*given, **named)
            self.forward += found is not None and "group" in named
            return found

        def count_begun(*given: Any) -> Any:
            self.backward += 1
            return begin(*given)

        def count_python(*given: Any) -> Any:
            self.backward -= not torch.is_grad_enabled()
            return run(*given)

        self._patch.setattr(native, "serve", count_forward)
        self._patch.setattr(OnePass, "begin", count_begun)
        self._patch.setattr(OnePass, "__call__", count_python)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


def compare_served(rank: int, case: Case) -> None:
    """C++ serves equal calls and their backward passes, all but the first two, with what one process gives."""
    times = 5
    scanops.runtime.call_cache.forget()
    with Served() as served:
        compare(rank, case, times)
    expected = (times - 2, times - 2 if case.wants != "nothing" else 0)
    assert (served.forward, served.backward) == expected, (case, served.forward, served.backward)


def derivatives_of_served_calls(rank: int) -> None:
    """Checkpoints, passes after a first one, gradients after a link's memory has grown."""
    case = Case("linear", "single", dtype=torch.float64)
    tensors = draw(case, 0)
    own = [each[:, rank : rank + 1].clone().requires_grad_() for each in (tensors.gate, tensors.x)]

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = sd.linear_scan(*tensors, 1, method="onepass")
        return y

    whole = [each.clone().requires_grad_() for each in (tensors.gate, tensors.x)]
    y = scanops.linear_scan(*whole, 1)
    expected = [each[:, rank : rank + 1] for each in torch.autograd.grad((y * y).sum(), whole)]
    with scanops.emulate():
        for _ in range(4):
            torch.testing.assert_close([*torch.autograd.grad((call(*own) ** 2).sum(), own)], expected)
        for _ in range(3):
            y = checkpoint(call, *own, use_reentrant=False)
            torch.testing.assert_close([*torch.autograd.grad((y * y).sum(), own)], expected)
        loss = (call(*own) ** 2).sum()
        for _ in range(2):
            torch.testing.assert_close([*torch.autograd.grad(loss, own, retain_graph=True)], expected)
        torch.autograd.grad(loss, own)
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            torch.autograd.grad(loss, own)
        total = sd.cumsum(own[1], 1, method="onepass")
        for _ in range(2):  # which saves nothing
            (found,) = torch.autograd.grad(total, own[1], torch.ones_like(total))
            assert torch.equal(found, torch.full((3, 1), 3.0 - rank, dtype=torch.float64))
        (link,) = group_of(None).ledger.links.values()
        assert link is not None
        words = link.half
        many = torch.ones(words + 1, 1)
        assert torch.equal(sd.cumsum(many, 1, method="onepass")[:, -1], torch.full((words + 1,), 1.0 * (rank + 1)))
        assert link.half > words
        for served in (0, 0, 1, 1):
            with Served() as counted:
                y = call(*own)
                torch.testing.assert_close([*torch.autograd.grad((y * y).sum(), own)], expected)
            assert counted.forward == served


def alone(call: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Call outside of ``scanops.emulate()``: by PyTorch's operators."""
    return contextvars.Context().run(call, *given, **options)


def other_calls(rank: int) -> None:
    """Half types, whole numbers, extremes of empty shards, views that are negated when read; what is not served."""
    x = draw(Case("sum"), 0).x
    own = x.chunk(3, 1)[rank].contiguous()
    with scanops.emulate():
        for op, dtype in (
            ("sum", HALVES), ("max", torch.int8), ("min", torch.float16), ("max", torch.bool), ("sum", torch.int64),
            ("logcumsumexp", torch.float64), ("max", torch.float8_e4m3fn), ("sum", WHOLE),
        ):  # fmt: skip
            for options in ({}, {"reverse": True, "exclusive": True}):
                values = x.to(dtype) if dtype != torch.bool else x > 2
                cut = values.split((12, 12, 0), 1)[rank]
                wanted, end = alone(scanops.scan, values, op, 1, return_final=True, **options)
                for _ in range(2):
                    y, final = sd.scan(cut, op, 1, return_final=True, method="onepass", **options)
                    torch.testing.assert_close(y, wanted.split((12, 12, 0), 1)[rank])
                    torch.testing.assert_close(final, end)
        nothing = torch.zeros(1, 24, dtype=torch.bool)
        for op in ("max", "min"):  # of whole numbers, in a dtype with infinities
            cut = [each.split((24, 0, 0), 1)[rank].contiguous() for each in (x.int(), nothing)]
            given = {"mask": cut[1], "dtype": FLOATS, "return_final": True}
            assert (sd.scan(cut[0], op, 1, **given, method="onepass")[1].abs() == math.inf).all()
        turned = torch.complex(own, own).conj().imag  # a view that is negated when it is read
        y = sd.cumsum(turned, 1, method="onepass")
        assert torch.equal(y, -x.cumsum(1).chunk(3, 1)[rank])
        for problem, call in (
            ("op='cummax'", lambda: sd.cummax(x, 1, method="onepass")),
            (
                "gradients of return_final of op='logcumsumexp'",
                lambda: sd.logcumsumexp(x.clone().requires_grad_(), 1, return_final=True, method="onepass"),
            ),
            (
                "gradients of initial of op='logcumsumexp'",
                lambda: sd.logcumsumexp(x, 1, initial=torch.ones(3).requires_grad_(), method="onepass"),
            ),
        ):
            with pytest.raises(UnsupportedRequest, match=problem):
                call()
        assert torch.equal(sd.cumsum(own, 1, method="onepass"), x.cumsum(1).chunk(3, 1)[rank])
    with pytest.raises(UnsupportedRequest, match="x on cpu"):  # no kernel reads it
        sd.cumsum(x, 1, method="onepass")


def carries_that_results_round(rank: int) -> None:
    """The greatest item so far may be a carry-in that the results' dtype does not hold, from here or another rank."""
    generator = torch.Generator().manual_seed(5)
    whole = (1 + torch.randint(0, 3, (4, 24), generator=generator) / 128).bfloat16()
    weights = torch.randn(whole.shape, generator=generator).bfloat16()
    initial = torch.tensor([1.002, 1.009, 1.017, 0.5])
    for method in ("onepass", "twopass"):
        for exclusive in (False, True):
            found = []
            for module, cut, more in ((sd, True, {"method": method}), (scanops, False, {})):
                x, w = ((each.chunk(3, 1)[rank] if cut else each).contiguous() for each in (whole, weights))
                x, h = x.requires_grad_(), initial.clone().requires_grad_()
                for _ in range(3 if cut else 1):
                    with scanops.emulate() if cut else contextlib.nullcontext():  # one process: PyTorch's operators
                        y = module.scan(x, "max", 1, initial=h, exclusive=exclusive, **more)
                        of_x, of_h = torch.autograd.grad(y, (x, h), w)
                if cut:
                    dist.all_reduce(of_h)
                found.append((of_x if cut else of_x.chunk(3, 1)[rank], of_h))
            torch.testing.assert_close(*found, rtol=1e-2, atol=1e-2)
    dist.barrier()


def launches_that_are_counted_elsewhere(rank: int) -> None:
    """Scans of one GPU and of other groups use the same stream, and may be counted by the same numbers.

    Each scan before a linked one has the same tiles, and other items.
    """
    make = torch.Generator().manual_seed(0)
    x, gate = (torch.randint(-1, 2, (2, 66000), generator=make).to(FLOATS) for _ in range(2))
    wanted = scanops.linear_scan(gate, x, 1).chunk(3, 1)[rank]
    x, gate = (each.chunk(3, 1)[rank].contiguous() for each in (x, gate))
    for other in (None, dist.new_group([0, 1, 2])):
        group = dist.new_group([0, 1, 2])
        scanops.runtime.workspaces._WORKSPACES.clear()
        for seed in range(1, 5):
            with scanops.emulate(seed=seed, multiprocessors=5):
                if other is None:
                    scanops.linear_scan(gate, 7 - x, 1)
                else:
                    sd.linear_scan(gate, 7 - x, 1, group=other, method="onepass")
                assert torch.equal(sd.linear_scan(gate, x, 1, group=group, method="onepass"), wanted)


def memory_that_grows(rank: int) -> None:
    """A call with more lines makes new memory; those before it read their carries from there."""
    for lines in (4, 4 * links.LEAST_WORDS, 4):
        make = torch.Generator().manual_seed(0)
        whole = [torch.randint(-1, 2, (lines, 3), generator=make).to(FLOATS).requires_grad_() for _ in range(2)]
        wanted = torch.autograd.grad(scanops.linear_scan(*whole, 1).sum(), whole)
        with scanops.emulate():
            for _ in range(2):
                leaves = [each.detach()[:, rank : rank + 1].clone().requires_grad_() for each in whole]
                found = torch.autograd.grad(sd.linear_scan(*leaves, 1, method="onepass").sum(), leaves)
        for mine, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, theirs[:, rank : rank + 1])


def memory_that_cannot_be_shared(rank: int, folder: str) -> None:
    """A full folder, folders of their own: nothing is left behind, and all ranks take two passes.

    With the method's name they raise, with the reason.
    """
    x = draw(Case("sum"), 0).x
    own, wanted = x.chunk(3, 1)[rank].contiguous(), x.cumsum(1).chunk(3, 1)[rank]

    def fill(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    def hide(name: str, count: int) -> torch.Tensor:
        return map_words(f"{name}-of-another-folder", count)

    map_words = call_order._map_words
    fails: Any = (
        (call_order.os, "posix_fallocate", fill, "no space"),
        (call_order, "_map_words", hide, "No such file"),
    )
    for at, name, replacement, problem in fails:
        group = dist.new_group(list(range(RANKS)))
        with pytest.MonkeyPatch.context() as patch, scanops.emulate():
            patch.setattr(call_order, "MEMORY", folder)
            if rank == 1:
                patch.setattr(at, name, replacement)
            patch.setattr(prepared, "choose_method", lambda *_, **__: "onepass")  # as on GPUs
            for _ in range(2):
                with pytest.raises(UnsupportedRequest, match="onepass' does not serve this group") as raised:
                    sd.cumsum(own, 1, method="onepass", group=group)
                assert problem in str(raised.value)
                assert torch.equal(sd.cumsum(own, 1, group=group), wanted)
    dist.barrier()
    assert not [*Path(folder).iterdir()]


def files_of_others(rank: int, folder: str) -> None:
    """Words are mapped from a file of this user's, which is no link and has their size; none is made."""
    right, link, short = (Path(folder, f"{name}{rank}") for name in ("right", "link", "short"))
    right.write_bytes(bytes(32))
    short.write_bytes(bytes(24))
    link.symlink_to(right)
    assert torch.equal(call_order._map_words(str(right), 4), torch.zeros(4, dtype=torch.int64))
    for wrong in (link, short, Path(folder, f"absent{rank}")):
        with pytest.raises(OSError, match=r"no file of this user's|symbolic links|No such file"):
            call_order._map_words(str(wrong), 4)
    assert right.stat().st_size == 32 and not Path(folder, f"absent{rank}").exists()


# ---- ranks that differ

DIFFERENT: dict[str, Callable[..., Any]] = {
    "sum": lambda x, group: sd.cumsum(x, 1, method="onepass", group=group),
    "other direction": lambda x, group: sd.cumsum(x, 1, method="onepass", reverse=True, group=group),
    "exclusive": lambda x, group: sd.cumsum(x, 1, method="onepass", exclusive=True, group=group),
    "max": lambda x, group: sd.scan(x, "max", 1, method="onepass", group=group),
    "other lines": lambda x, group: sd.cumsum(x[:2], 1, method="onepass", group=group),
    "backward": lambda x, group: _backward(x, group, (0, 1)),
    "backward in another order": lambda x, group: _backward(x, group, (1, 0)),
}


def _backward(x: torch.Tensor, group: Any, order: tuple[int, ...]) -> None:
    leaves = [each.clone().requires_grad_() for each in (x, x)]
    made = [sd.linear_scan(*leaves, 1, method="onepass", group=group).sum() for _ in range(2)]
    for k in order:
        torch.autograd.grad(made[k], leaves)


def calls_that_differ(rank: int, usual: str, other: str, trial: int) -> None:
    """Calls that all ranks have made before: every rank raises, at the latest at its next calls, and none hangs."""
    x = draw(Case("sum"), 0).x.chunk(3, 1)[rank].contiguous()
    group, victim, late = dist.new_group(list(range(RANKS))), trial % RANKS, (trial // RANKS) % RANKS
    with scanops.emulate():
        for _ in range(2):
            for name in (usual, other) if trial % 4 else (usual,):  # or one that no rank has made
                DIFFERENT[name](x, group)
        dist.barrier()
        if rank == late:
            time.sleep(0.05)
        with pytest.raises(PeerMismatch, match=f"rank {rank} calls (.|\n)*ranks .* differ from it"):
            for k in range(40):  # the first rank in scan order waits for none of the last two
                DIFFERENT[other if rank == victim and k == 0 else usual](x, group)
        with pytest.raises(PeerMismatch):  # the group has ended
            DIFFERENT["sum"](x, group)
    dist.barrier()


def notes_of_many_calls(rank: int) -> None:
    """More than the memory holds."""
    x = draw(Case("sum"), 0).x
    own = x.chunk(3, 1)[rank].contiguous()
    with scanops.emulate():
        for _ in range(3 * call_order.NOTES):
            y = sd.cumsum(own, 1, method="onepass")
        order: Any = group_of(None).ledger.order
        for k in range(3 * call_order.NOTES):  # of other kinds
            order.note(exchange.Message("cumsum", {"function": f"call {k}"}, k))
    assert torch.equal(y, x.cumsum(1).chunk(3, 1)[rank])


def equal_errors(rank: int) -> None:
    """An argument error that every rank raises leaves nothing behind, by either method."""
    x = draw(Case("sum"), 0).x
    own, wanted = x.chunk(3, 1)[rank].contiguous(), x.cumsum(1).chunk(3, 1)[rank]
    group = dist.new_group(list(range(RANKS)))
    with scanops.emulate():
        for bad in (
            {}, {"method": "chain"}, {"mask": torch.ones(9)}, {"dim": 7}, {"reverse": "no"}, {"revers": True},
            {"spans": "zigzag"}, {"initial": torch.ones(5)}, {"offsets": [0, 9]},
        ):  # fmt: skip
            for method in ("onepass", "twopass"):
                if bad:
                    with pytest.raises((UnsupportedRequest, TypeError)):
                        sd.cumsum(own, **{"dim": 1, "group": group, "method": method, **bad})
                for _ in range(3):
                    assert torch.equal(sd.cumsum(own, 1, group=group, method=method), wanted)


def errors_of_one_rank(rank: int) -> None:
    """A rank that has refused a call serves others with its next one, and ends no earlier one.

    Epochs may be about to begin again, which the kernels compare by the sign of a difference.
    """
    x = draw(Case("sum"), 0).x
    own, wanted = x.chunk(3, 1)[rank].contiguous(), x.cumsum(1).chunk(3, 1)[rank]
    for finished in (0, 2**32 - 5, 2**32 - 4, 2**31 - 3):  # launches before
        group = dist.new_group(list(range(RANKS)))
        with scanops.emulate():
            sd.cumsum(own, 1, method="onepass", group=group)
            dist.barrier()
            if finished:
                (link,) = group_of(group).ledger.links.values()
                assert link is not None
                link._memories[-1].own[0] = finished << 32 if finished < 2**31 else (finished << 32) - 2**64
                dist.barrier()
            if rank == 1:
                time.sleep(0.1)
            for k in range(4):
                if rank == 0 and k == 2:
                    with pytest.raises(UnsupportedRequest, match="reverse must be a bool"):
                        sd.cumsum(own, 1, method="onepass", group=group, reverse="no")  # type: ignore[arg-type]
                assert torch.equal(sd.cumsum(own, 1, method="onepass", group=group), wanted)
    dist.barrier()


def a_backward_pass_without_kernels(rank: int) -> None:
    """It raises: PyTorch's operators know of no other ranks."""
    x = torch.ones(3, 8, requires_grad=True)
    group = dist.new_group(list(range(RANKS)))
    with scanops.emulate():
        y = sd.scan(x, "max", 1, group=group, method="onepass")
    with pytest.raises(UnsupportedRequest, match="the backward pass of a sharded scan in one pass needs kernels"):
        y.sum().backward()
    dist.barrier()


def a_rank_without_its_kernel(rank: int) -> None:
    """It raises, and the rank that waits for it raises at its next call, long before the time limit."""
    pair, x = dist.new_group([0, 1]), torch.ones(3, 9)
    if rank < 2:
        with scanops.emulate():
            sd.cumsum(x[:, :8].contiguous(), 1, method="onepass", group=pair)
            if rank == 0:
                strided = torch.ones(3, 18)[:, ::2]  # whose kernel the other rank, which has built its own, has not
                with scanops.policy("never"), pytest.raises(MissingKernel):
                    sd.cumsum(strided, 1, method="onepass", group=pair)
            else:
                with pytest.raises(PeerLost, match="could not make a call"):
                    for _ in range(2):  # a kernel that waits says so, and the next call raises
                        sd.cumsum(x, 1, method="onepass", group=pair)
    dist.barrier()


def a_rank_that_is_late(rank: int, times: int, is_backward: bool) -> None:
    """The others wait as long as a link lets them, and raise at their next call: the first ones, and served by C++."""
    pair, x = dist.new_group([0, 1]), torch.ones(3, 8).requires_grad_()
    before, links.LIMIT_SECONDS = links.LIMIT_SECONDS, 1

    def call() -> torch.Tensor:
        with torch.no_grad():
            y: torch.Tensor = sd.cumsum(x, 1, method="onepass", group=pair)
        return y

    def differentiate() -> Any:
        return torch.autograd.grad(sd.cumsum(x, 1, method="onepass", group=pair).sum(), x)

    try:
        if rank < 2:
            with scanops.emulate():
                for _ in range(times):
                    y = differentiate() if is_backward else call()
                y = sd.cumsum(x, 1, method="onepass", group=pair).sum() if is_backward else y
                if rank != is_backward:
                    with pytest.raises(PeerLost, match="did not respond within 1 s"):
                        for _ in range(2):  # the other rank makes no further call
                            torch.autograd.grad(y, x) if is_backward else call()
    finally:
        links.LIMIT_SECONDS = before
    dist.barrier()
