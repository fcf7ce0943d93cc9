"""Kinds of faults that random calls of equal dtypes do not find, each on a few ranks of gloo, with right values."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

import scanops
import scanops.distributed as sd
from scanops.distributed import shards
from scanops.errors import PeerLost, PeerMismatch, UnsupportedRequest

F64 = torch.float64
Group = Any


def shard_of(whole: torch.Tensor, rank: int, ranks: int, dim: int = 1) -> torch.Tensor:
    """This rank's part of a whole tensor, the last rank's the longest."""
    size = whole.shape[dim] // (ranks + 1)
    return whole.narrow(dim, rank * size, size if rank + 1 < ranks else whole.shape[dim] - rank * size)


def random(*shape: int, dtype: torch.dtype = F64, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def gradients(loss: torch.Tensor, *leaves: torch.Tensor, group: Group = None) -> list[torch.Tensor]:
    """The gradients, added over the ranks of a group."""
    found = list(torch.autograd.grad(loss, leaves, materialize_grads=True))
    for each in found if group is not None else ():
        dist.all_reduce(each, group=group)
    return found


def dtypes_with_gradients(rank: int, group: Group) -> None:
    """The dtype that was asked for, and gradients in that of the input, narrower and wider."""
    for given, wanted in ((torch.bfloat16, torch.float32), (torch.float32, F64), (F64, torch.float32)):
        whole = random(3, 15, dtype=given)
        for op in ("sum", "prod", "logcumsumexp", "max"):
            x, y = (each.detach().clone().requires_grad_() for each in (shard_of(whole, rank, 2), whole))
            found, expected = sd.scan(x, op, 1, dtype=wanted, group=group), scanops.scan(y, op, 1, dtype=wanted)
            assert found.dtype == expected.dtype == wanted
            torch.testing.assert_close(found, shard_of(expected, rank, 2), rtol=2e-6, atol=1e-6)
            (own,), (of_whole,) = gradients(found.sum(), x), gradients(expected.sum(), y)
            assert own.dtype == given
            torch.testing.assert_close(
                own, shard_of(of_whole, rank, 2), rtol=1e-2 if given.itemsize < 4 else 1e-5, atol=1e-5
            )


def initial_that_broadcasts(rank: int, group: Group) -> None:
    """Its gradient is the sum over the lines that it serves, and is on one rank."""
    a, b = random(3, 9, 2), random(3, 9, 2, seed=1)
    for shape in ((2,), (1, 2), (3, 1), (), (3, 2)):
        h = random(*shape, seed=2).requires_grad_()
        found = sd.linear_scan(*(shard_of(each, rank, 2) for each in (a, b)), 1, initial=h, group=group)
        (own,) = gradients(found.sum(), h, group=group)
        torch.testing.assert_close(own, gradients(scanops.linear_scan(a, b, 1, initial=h).sum(), h)[0])


def extremes_of_half_types_beside_empty_shards(rank: int, group: Group) -> None:
    """Values, indices and the carry-out, which is in the dtype of carries, for few lines and for many."""
    for lines, dtype in ((2, torch.bfloat16), (12, torch.bfloat16), (300, torch.float16)):
        whole, initial = random(lines, 4, dtype=dtype), random(lines, dtype=torch.float32, seed=1)
        for given in (None, initial):
            x = whole if rank == 0 else whole[:, :0]
            found, last = sd.cummax(x, 1, initial=given, return_final=True, group=group)
            (values, indices), final = scanops.cummax(whole, 1, initial=given, return_final=True)
            size = slice(0, x.shape[1])
            assert torch.equal(found.values, values[:, size]) and torch.equal(found.indices, indices[:, size])
            assert last.dtype == final.dtype == torch.float32 and torch.equal(last, final)


def double_backward_beside_empty_shards(rank: int, group: Group) -> None:
    """A rank without items makes the exchanges of second derivatives, too."""
    for op in ("prod", "sum", "logcumsumexp", "max"):
        whole = random(5).requires_grad_()
        x = (whole if rank == 0 else whole[:0]).detach().requires_grad_()
        found = []
        for y, leaf in ((sd.scan(x, op, 0, group=group), x), (scanops.scan(whole, op, 0), whole)):
            (g,) = torch.autograd.grad((y * y).sum(), leaf, create_graph=True)
            (second,) = torch.autograd.grad((g * g).sum() + 0 * leaf.sum(), leaf)
            found.append(second)
        torch.testing.assert_close(found[0], found[1][: len(x)])


def second_derivatives_of_carries_out(rank: int, group: Group) -> None:
    whole = random(2, 9).requires_grad_()
    x = shard_of(whole, rank, 2).detach().requires_grad_()
    found = []
    for module, leaf, more in ((sd, x, {"group": group}), (scanops, whole, {})):
        (g,) = torch.autograd.grad(
            module.logcumsumexp(leaf, 1, return_final=True, **more)[1].sum() / (2 if more else 1), leaf,
            create_graph=True,
        )  # fmt: skip
        (second,) = torch.autograd.grad((g * leaf.cos()).sum(), leaf)
        found.append(second)
    assert not found[0].isnan().any()
    torch.testing.assert_close(found[0], shard_of(found[1], rank, 2))


def offsets_that_differ(rank: int, group: Group) -> None:
    """In one of many positions, and an invalid one on one rank: all ranks raise, and the next call is right."""
    for change in (-1, 10):
        offsets = torch.arange(0, 401)
        offsets[380] += change * (rank == 1)
        with pytest.raises(PeerMismatch, match="ranks differ in offsets"):
            sd.cumsum(torch.ones(200), 0, offsets=offsets, group=group)
    offsets = torch.tensor([0, 3, 500])
    with pytest.raises(UnsupportedRequest, match="offsets must rise"):
        sd.cumsum(torch.ones(200), 0, offsets=offsets, group=group)
    found = sd.cumsum(torch.ones(200), 0, offsets=torch.arange(0, 401), group=group)
    assert torch.equal(found, torch.ones(200))


def repeated_calls(rank: int, group: Group) -> None:
    """Equal calls with other tensors: values and gradients of each, in either order of lines and exchanges."""
    for seed in range(4):  # the second is made of what the first has found
        for lines, op, options in (
            (3, "sum", {}), (3, "sum", {"reverse": True, "initial": 0.1}), (3, "linear", {"exclusive": True}),
            (3, "linear", {"reverse": True, "initial": 0.1, "return_final": True}), (300, "linear", {}),
            (3, "max", {"return_final": True}), (300, "sum", {"return_final": True}), (3, "logcumsumexp", {}),
            (3, "prod", {"segment_starts": "drawn"}), (3, "sum", {"mask": "drawn"}),
        ):  # fmt: skip
            a, b = (random(lines, 12, seed=2 * seed + k) for k in range(2))
            flags = {name: a > 0.6 for name, value in options.items() if value == "drawn"}
            found = []
            for module, cut, more in ((sd, True, {"group": group}), (scanops, False, {})):
                leaves, others = [(shard_of(each, rank, 2) if cut else each).clone() for each in (a, b)], {}
                for name, each in flags.items():
                    others[name] = shard_of(each, rank, 2).contiguous() if cut else each
                for wanted in (False, True):
                    leaves = [each.detach().requires_grad_(wanted) for each in leaves]
                    given = {**options, **others, **more}
                    y = module.linear_scan(*leaves, 1, **given) if op == "linear" else module.scan(
                        leaves[1], op, 1, **given)  # fmt: skip
                    y, *final = y if isinstance(y, tuple) else (y,)
                    found.append([y.detach(), *(each.detach() for each in final)])
                loss = (y * y).sum() + sum((each * each).sum() / (2 if cut else 1) for each in final)
                found[-1] += torch.autograd.grad(loss, leaves if op == "linear" else leaves[1:])
            for own, of_whole in zip((*found[0], *found[1]), (*found[2], *found[3]), strict=True):
                part = of_whole if of_whole.ndim < 2 else shard_of(of_whole, rank, 2)
                torch.testing.assert_close(own, part, msg=lambda text, op=op, options=options: f"{op} {options} {text}")


def repeated_calls_that_differ(rank: int, group: Group) -> None:
    """Of few states and of many: a typed error on both ranks, which says what each calls; the next call is right."""
    for lines in (2, 5000):
        x = torch.ones(lines, 3)
        for _ in range(3):
            for op in ("sum", "max"):
                found = sd.scan(x, op, 1, group=group)
                assert found[0, -1] == (3 * (rank + 1) if op == "sum" else 1)
        op = "max" if rank else "sum"
        with pytest.raises(PeerMismatch, match=f"make different calls: got rank {rank} calls scan, op='{op}'"):
            sd.scan(x, op, 1, group=group)
        if rank:  # nothing is sent: the other rank waits for the next call
            with pytest.raises(UnsupportedRequest, match="reverse must be a bool"):
                sd.scan(x, "sum", 1, group=group, reverse=3)  # type: ignore[arg-type]
        assert sd.scan(x, "sum", 1, group=group)[0, -1] == 3 * (rank + 1)


def backward_passes_in_another_order(rank: int, group: Group) -> None:
    """Of different calls, and of equal ones: a typed error on both ranks, and right gradients in the same order."""
    for other in (sd.cumprod, sd.cumsum):
        one, two = (torch.full((4,), float(k + 1), dtype=F64, requires_grad=True) for k in range(2))
        made = [(sd.cumsum(one, 0, group=group), one), (other(two, 0, group=group), two)]
        for k in (0, 1) if rank == 0 else (1, 0):
            with pytest.raises(PeerMismatch, match=r"ranks (differ in the order of backward|make different)"):
                gradients(made[k][0].sum(), made[k][1])
        assert gradients(made[0][0].sum(), one)[0].tolist() == [8 - 4 * rank - k for k in range(4)]


def one_thread_after_another(rank: int, group: Group) -> None:
    found: list[torch.Tensor] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(sd.cumsum(torch.ones(2), 0, group=group)))
        thread.start()
        thread.join()
    assert [each.tolist() for each in found] == [[2.0 * rank + 1, 2.0 * rank + 2]] * 2


def problems_before_the_exchange(rank: int, meet: Group, groups: Sequence[Group]) -> None:
    """A rank that cannot compute its states raises its error; for it the others wait as long as the group says."""
    for fails, pair in zip(("totals", "find_slopes"), groups, strict=True):
        dist.barrier(group=meet)
        x = torch.ones(2, 3, requires_grad=True)
        y = sd.cumprod(x, 1, group=pair)
        with pytest.MonkeyPatch.context() as patch:
            if rank == 1:
                patch.setattr(shards, fails, _fail)
                patch.setitem(shards.REDUCED, "prod", _fail)
            with pytest.raises(MemoryError if rank == 1 else PeerLost):
                if fails == "totals":
                    sd.cumprod(torch.ones(2, 4), 1, group=pair)
                else:
                    y.sum().backward()


def _fail(*_: Any, **__: Any) -> Any:
    raise MemoryError("no memory for states")


def saved_tensors(rank: int, group: Group) -> None:
    """Freed by the backward pass, kept by retain_graph=True, and not kept at all by sums."""
    for op, retained in (("linear", False), ("linear", True), ("sum", True), ("prod", False)):
        x, a = (torch.rand(4, 6, requires_grad=True) for _ in range(2))
        doubled = x * 2
        seen = weakref.ref(doubled)
        y = sd.linear_scan(a, doubled, 1, group=group) if op == "linear" else sd.scan(doubled, op, 1, group=group)
        loss = y.sum()
        del y
        loss.backward(retain_graph=retained)
        first = x.grad.clone()  # type: ignore[union-attr]
        if retained:
            loss.backward()
            torch.testing.assert_close(x.grad, 2 * first)
        else:
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
        del doubled
        gc.collect()
        assert seen() is None, op


def products_of_gates_that_overflow(rank: int, group: Group) -> None:
    a = torch.full((200,), 2.0).requires_grad_()
    b = torch.zeros(200, requires_grad=True)
    h, last = sd.linear_scan(a, b, 0, group=group, return_final=True)
    assert torch.equal(h, torch.zeros(200)) and last == 0
    assert all(torch.equal(each, torch.zeros(200)) for each in gradients((h * h).sum() + last**2, a, b))
    a, b = torch.full((1500,), 2.0, dtype=F64), torch.zeros(1500, dtype=F64)
    assert torch.equal(sd.linear_scan(a, b, 0, group=group), b)
    tiny = sd.linear_scan(torch.full((130,), 2.0), torch.zeros(130), 0, group=group, initial=1e-30)
    torch.testing.assert_close(tiny[0].item(), 1e-30 * 2.0 ** (130 * rank + 1))


def no_lines(rank: int, group: Group) -> None:
    """Results and carry-out depend on the inputs even where there are none."""
    x, h = torch.ones(0, 3, requires_grad=True), torch.ones(0, requires_grad=True)
    y, last = sd.cumsum(x, 1, initial=h, return_final=True, group=group)
    assert [each.shape for each in gradients(y.sum() + last.sum(), x, h)] == [x.shape, h.shape]


def compiled_calls(rank: int, group: Group) -> None:
    """Those that differ raise on all ranks; offsets, with and without gradients, are those of eager code."""
    dtype = F64 if rank else torch.float32
    with pytest.raises(PeerMismatch, match="compiled"):
        torch.compile(lambda x: sd.cumsum(x, 1, group=group), backend="aot_eager")(torch.ones(2, 3, dtype=dtype))

    def scans(x: torch.Tensor, offsets: torch.Tensor) -> Any:
        return sd.cumsum(x, 1, offsets=offsets, group=group), sd.cummax(x, 1, return_final=True, group=group)

    compiled, offsets = torch.compile(scans, backend="aot_eager", fullgraph=True), torch.tensor([0, 3, 7, 10])
    for wanted in (False, True):
        x = random(3, 5, seed=rank).requires_grad_(wanted)
        torch.testing.assert_close(compiled(x, offsets), scans(x, offsets))


def large_states(rank: int, group: Group) -> None:
    """Of more bytes than a frame holds: behind it."""
    ranks = dist.get_world_size(group)
    a, b = (random(7, 10, 101, seed=k) for k in range(2))
    initial = random(7, 101, seed=3)
    for _ in range(2):
        found = []
        for module, leaves, more in (
            (sd, [shard_of(each, rank, ranks) for each in (a, b)], {"group": group}), (scanops, [a, b], {})
        ):  # fmt: skip
            leaves = [each.clone().requires_grad_() for each in (*leaves, initial)]
            h, last = module.linear_scan(*leaves[:2], 1, initial=leaves[2], return_final=True, **more)
            values, indices = module.cummax(h, 1, reverse=True, **more)
            loss = (h * h).sum() + values.sum() + (last / (ranks if more else 1)).sum()
            found.append([h, last, values, indices, *torch.autograd.grad(loss, leaves)])
        dist.all_reduce(found[0][-1], group=group)
        for own, of_whole in zip(*found, strict=True):
            whole = own.shape == of_whole.shape
            torch.testing.assert_close(own, of_whole if whole else shard_of(of_whole, rank, ranks))


OF_TWO: tuple[Callable[[int, Group], None], ...] = (
    dtypes_with_gradients, initial_that_broadcasts,
    extremes_of_half_types_beside_empty_shards, double_backward_beside_empty_shards, second_derivatives_of_carries_out,
    repeated_calls, repeated_calls_that_differ,
    offsets_that_differ, backward_passes_in_another_order, one_thread_after_another,
     saved_tensors, products_of_gates_that_overflow, no_lines,
    compiled_calls, large_states,
)  # fmt: skip


def every_kind(rank: int, two: Group, four: Group) -> None:
    """Run each on two ranks, and exchanges of large states on four."""
    for check in OF_TWO if rank < 2 else ():
        check(rank, two)
    if rank < 4:
        large_states(rank, four)
