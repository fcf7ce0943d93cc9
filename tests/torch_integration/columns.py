"""The columns of docs/pytorch.md: a check each, which raises where a row does not pass it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import scanops
from tests.torch_integration import compilers
from tests.torch_integration.comparing import Noting, close, floating, hold, leaves, weights
from tests.torch_integration.rows import DIM, Row, Tensors, flat

__all__ = ["COLUMNS", "Column", "as_one_function", "autocast_cell", "autocasting", "whole"]

NO_GRADIENT = "whole numbers"
OTHERS = "not torch's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its check may return the text of a cell, which is "yes" otherwise."""

    check: Callable[[Row], str | None]
    differentiates: bool = False  # says nothing of whole numbers
    gpus: int = 0  # that the check needs

    def cell(self, row: Row) -> str:
        """Return the cell of a row, tried now."""
        if self.differentiates and not floating(row.tensors()):
            return NO_GRADIENT
        return self.check(row) or "yes"


# ---- autograd


def values(row: Row) -> Callable[..., Tensors]:
    """Return the row with those results alone that have gradients."""
    return lambda *tensors: tuple(floating(row(*tensors)))


def first(row: Row) -> None:
    assert gradcheck(values(row), leaves(row.tensors())[0])


def second(row: Row) -> None:
    assert gradgradcheck(values(row), leaves(row.tensors())[0])


def twice(call: Callable[..., Tensors]) -> Callable[..., Tensors]:
    """Return two scans with operations around them, whose saved tensors must not be taken for one another."""

    def block(*tensors: torch.Tensor) -> Tensors:
        one, other = (
            floating(call(*(curve(each) if each.is_floating_point() else each for each in tensors)))
            for curve in (torch.sin, torch.cos)
        )
        return tuple(y.tanh() * z.exp() for y, z in zip(one, other, strict=True))

    return block


def checkpointed(row: Row) -> None:
    """Compute again what was computed before; beside kernels, also with a mode in one of the passes alone."""
    block, nothing = twice(row), contextlib.nullcontext
    for reentrant in (False, True):
        hold(partial(checkpoint, block, use_reentrant=reentrant), block, row.tensors())
    for forwards, backwards in ((Noting, nothing), (nothing, Noting)):

        def call(*tensors: torch.Tensor, forwards: Any = forwards) -> Tensors:
            with forwards():
                return checkpoint(block, *tensors, use_reentrant=False)

        with scanops.emulate():
            for _ in range(3):  # by Python, and where it is loaded by C++
                hold(call, block, row.tensors(), backward=backwards)


def inference(row: Row) -> None:
    with torch.inference_mode():
        found = row(*row.tensors())
    assert all(y.is_inference() for y in found)
    close(found, row(*row.tensors()), check_stride=True)
    close(found, row.by_torch(*row.tensors()))


# ---- torch.func


def batched(row: Row) -> None:
    pairs = zip(row.tensors(), row.tensors(seed=1), strict=True)
    stacked = tuple(torch.stack(pair, -1) for pair in pairs)
    found = torch.func.vmap(row, in_dims=-1)(*stacked)
    for k in range(2):
        close([y[k] for y in found], row(*(each[..., k] for each in stacked)))


def as_one_function(row: Row) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], torch.Tensor]:
    """Return the row as a function of one line and with one number as its result, the same by torch, and a line."""
    tensors = row.tensors()
    given = floating(tensors)

    def total(call: Callable[..., Tensors], line: torch.Tensor) -> torch.Tensor:
        parts = iter(line.split([each.numel() for each in given]))
        every = (next(parts).reshape(each.shape) if each.is_floating_point() else each for each in tensors)
        return torch.stack([(y.sin() * weights(y)).sum() for y in floating(call(*every))]).sum()

    line = torch.cat([each.flatten() for each in given])
    return partial(total, row), partial(total, row.by_torch), line


def backward_mode(row: Row) -> None:
    total, by_torch, at = as_one_function(row)
    expected = torch.autograd.functional.jacobian(by_torch, at)
    assert_close(torch.func.grad(total)(at), expected)
    assert_close(torch.func.vjp(total, at)[1](torch.ones((), dtype=at.dtype))[0], expected)
    assert_close(torch.func.vmap(torch.func.grad(total))(torch.stack([at, at]))[1], expected)


def forward_mode(row: Row) -> None:
    total, by_torch, at = as_one_function(row)
    tangent = torch.rand_like(at)
    expected = torch.autograd.functional.jacobian(by_torch, at) @ tangent
    assert_close(torch.func.jvp(total, (at,), (tangent,))[1], expected)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(total(forward_ad.make_dual(at, tangent))).tangent
    assert found is not None
    assert_close(found, expected)


def nested(row: Row) -> None:
    """Compare transforms of transforms with torch's double backward of torch's operations."""
    total, by_torch, at = as_one_function(row)
    also, tangent = at + 0.01, torch.rand_like(at)  # items keep their order
    second, beside = (torch.autograd.functional.hessian(by_torch, each) for each in (at, also))
    grad, vmap, jvp = torch.func.grad, torch.func.vmap, torch.func.jvp
    jacfwd, jacrev = torch.func.jacfwd, torch.func.jacrev
    both, expected = torch.stack([at, also]), torch.stack([second @ tangent, beside @ tangent])

    def slope(x: torch.Tensor) -> torch.Tensor:
        return jvp(total, (x,), (tangent,))[1]

    assert_close(jvp(grad(total), (at,), (tangent,))[1], second @ tangent)
    assert_close(torch.func.vjp(grad(total), at)[1](tangent)[0], second @ tangent)
    for matrix in (jacfwd(jacrev(total)), jacrev(jacfwd(total)), jacrev(jacrev(total)), jacfwd(jacfwd(total))):
        assert_close(matrix(at), second)
    assert_close(vmap(grad(slope))(both), expected)
    assert_close(jvp(vmap(grad(total)), (both,), (tangent.expand(both.shape),))[1], expected)
    slopes = torch.autograd.functional.jacobian(by_torch, at)
    assert_close(grad(lambda each: vmap(total)(each).sum())(both)[0], slopes)
    assert_close(vmap(vmap(grad(total)))(both[:, None])[0, 0], slopes)


# ---- modes and subclasses


@contextlib.contextmanager
def autocasting() -> Iterator[None]:
    """Enable what torch.autocast("cuda") enables, which does nothing where there is no GPU."""
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before)


def autocast_cell(row: Row, halves: Tensors) -> tuple[Tensors, str]:
    """Return the results under autocast and the cell: their dtypes, which are torch's where torch has the scan."""
    plain = [y.dtype for y in row(*halves)]
    with autocasting():
        found = row(*halves)
        if row.torch_name:
            assert found[0].dtype == row.by_torch(*halves)[0].dtype
    return found, "as given" if plain == [y.dtype for y in found] else "float32"


def autocasted(row: Row) -> str:
    """Try what torch takes for tensors of a GPU."""
    with FakeTensorMode():
        given = tuple(torch.empty(each.shape, dtype=each.dtype, device="cuda") for each in row.tensors())
        return autocast_cell(row, tuple(each.half() if each.is_floating_point() else each for each in given))[1]


def pretended(row: Row) -> None:
    """Hold fake and meta tensors to shapes, dtypes and strides of real ones."""

    def outlines(results: Tensors) -> list[Any]:
        return [(y.shape, y.dtype, y.stride()) for y in results]

    expected = outlines(row(*row.tensors()))
    assert outlines(row(*(each.to("meta") for each in row.tensors()))) == expected
    with FakeTensorMode() as mode:
        assert outlines(row(*(mode.from_tensor(each) for each in row.tensors()))) == expected


class Mine(torch.Tensor):
    """A subclass that means nothing to operations, and that their results keep."""


def subclassed(row: Row) -> None:
    def call(*tensors: torch.Tensor) -> Tensors:
        found = row(*(each.as_subclass(Mine) for each in tensors))
        assert all(type(y) is Mine for y in found)
        return tuple(y.as_subclass(torch.Tensor) for y in found)

    hold(call, row, row.tensors())


def distributed(row: Row) -> None:
    """Shard along another dimension than the scanned one: so it stays, gradients too, and nothing is communicated."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.distributed.tensor.debug import CommDebugMode

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    spread = tuple(
        distribute_tensor(each, mesh, [Shard(0) if each.shape[0] == 3 else Replicate()]) for each in row.tensors()
    )
    wanted = [each.requires_grad_() for each in spread if each.is_floating_point()]
    with CommDebugMode() as sent:
        found = row(*spread)
        slopes = torch.autograd.grad([y.sum() for y in floating(found)], wanted) if wanted else ()
    assert sent.get_total_counts() == 0, (row.name, sent.get_comm_counts())
    assert all(y.placements == (Shard(0),) for y in found)  # type: ignore[attr-defined]
    tensors, leaf = leaves(row.tensors())
    expected = row(*tensors)
    close(whole(found), expected, check_stride=True)
    if wanted:
        close(whole(slopes), torch.autograd.grad([y.sum() for y in floating(expected)], leaf))


def whole(tensors: Tensors) -> list[torch.Tensor]:
    """Return what DTensors are as plain tensors."""
    return [each.full_tensor() for each in tensors]  # type: ignore[attr-defined]


def patched(row: Row) -> str | None:
    """Patch torch's function, also inside of a checkpoint, whose recomputation is patched in no case."""
    if row.torch_name is None:
        return OTHERS
    function, kinds = getattr(torch, row.torch_name), set()

    def call(x: torch.Tensor) -> Tensors:
        found = function(x, DIM)
        kinds.add(type(found))
        return flat(found)

    def ours(do: Callable[..., Tensors], *given: Any) -> Tensors:
        with scanops.patch_torch():
            return do(*given)

    block = twice(call)
    with scanops.emulate():
        hold(partial(ours, call), call, row.tensors())
        for reentrant, backwards in itertools.product((False, True), (contextlib.nullcontext, scanops.patch_torch)):
            again = partial(checkpoint, block, use_reentrant=reentrant)
            hold(partial(ours, again), block, row.tensors(), backward=backwards)
    assert len(kinds) == 1
    return None


COLUMNS: dict[str, Column] = {
    "gradient": Column(check=first, differentiates=True),
    "second": Column(check=second, differentiates=True),
    "`checkpoint`": Column(check=checkpointed, differentiates=True),
    "`inference_mode`": Column(check=inference),
    "`vmap`": Column(check=batched),
    "`vjp`, `grad`": Column(check=backward_mode, differentiates=True),
    "`jvp`": Column(check=forward_mode, differentiates=True),
    "transforms of transforms": Column(check=nested, differentiates=True),
    "`compile`": Column(check=compilers.compiled),
    "`compile`, dynamic": Column(check=compilers.compiled_for_all_lengths),
    "compiled autograd": Column(check=compilers.backwards_compiled, differentiates=True),
    "`export`": Column(check=compilers.exported),
    "`jit.trace`": Column(check=compilers.traced),
    "CUDA autocast": Column(check=autocasted),
    "fake, meta": Column(check=pretended),
    "subclass": Column(check=subclassed),
    "DTensor": Column(check=distributed),
    "`patch_torch`": Column(check=patched),
}
