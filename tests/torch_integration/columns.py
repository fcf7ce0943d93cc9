"""What is tried on each row, one function a column: it raises where something is wrong, and says how it is right."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import scanops
from tests.torch_integration.comparing import (
    NO_GRADIENT,
    OTHERS,
    YES,
    agree,
    close,
    floating,
    gradients,
    leaves,
    values,
    weights,
)
from tests.torch_integration.compilers import (
    backwards_compiled,
    compiled,
    compiled_for_all_lengths,
    exported,
    traced,
)
from tests.torch_integration.rows import DIM, Row, Tensors

__all__ = ["COLUMNS", "as_one_function", "autocasting"]


def without_gradient(row: Row) -> bool:
    """Where nothing has a gradient, nothing claims to."""
    if floating(row.tensors()):
        return False
    assert not any(y.requires_grad for y in row(*row.tensors()))
    return True


# ---- autograd


def first(row: Row) -> str:
    if without_gradient(row):
        return NO_GRADIENT
    assert gradcheck(values(row), leaves(row)[0])
    return YES


def second(row: Row) -> str:
    if without_gradient(row):
        return NO_GRADIENT
    assert gradgradcheck(values(row), leaves(row)[0])
    return YES


def checkpointed(row: Row) -> str:
    if without_gradient(row):
        return NO_GRADIENT
    tensors, wanted = leaves(row)
    expected = gradients(row(*tensors), wanted)
    close(gradients(checkpoint(row, *tensors, use_reentrant=False), wanted), expected)
    results = floating(checkpoint(row, *tensors, use_reentrant=True))
    torch.autograd.backward(results, [weights(y) for y in results])
    close([each.grad for each in wanted], expected)
    return YES


def inference(row: Row) -> str:
    expected = row(*row.tensors())
    close(expected, row.by_torch(*row.tensors()))
    with torch.inference_mode():
        found = row(*row.tensors())
    agree(found, expected)
    assert all(y.is_inference() for y in found)
    return YES


# ---- torch.func


def batched(row: Row) -> str:
    stacked = tuple(
        torch.stack([one, other], -1) for one, other in zip(row.tensors(), row.tensors(seed=1), strict=True)
    )
    found = torch.func.vmap(row, in_dims=-1)(*stacked)
    for k in range(2):
        for y, expected in zip(found, row(*(each[..., k] for each in stacked)), strict=True):
            assert_close(y[k], expected)
    return YES


def backward_mode(row: Row) -> str:
    """vjp, grad, and a batch of them."""
    if without_gradient(row):
        return NO_GRADIENT
    tensors, wanted = leaves(row)
    places = tuple(k for k, each in enumerate(tensors) if each.is_floating_point())
    plain = tuple(each.detach() for each in tensors)
    ones = tuple(torch.ones_like(y) for y in values(row)(*plain))
    expected = torch.autograd.grad(values(row)(*tensors), wanted, ones)

    def part(*given: torch.Tensor) -> Tensors:
        every = list(plain)
        for place, each in zip(places, given, strict=True):
            every[place] = each
        return values(row)(*every)

    given = tuple(plain[k] for k in places)
    close(torch.func.vjp(part, *given)[1](ones), expected)

    def total(*given: torch.Tensor) -> torch.Tensor:
        return torch.stack([y.sum() for y in part(*given)]).sum()

    one = torch.func.grad(total, argnums=tuple(range(len(given))))
    close(one(*given), expected)
    twice = torch.func.vmap(one)(*(torch.stack([each, each]) for each in given))
    for both, each in zip(twice, expected, strict=True):
        assert_close(both, torch.stack([each, each]))
    return YES


def forward_mode(row: Row) -> str:
    """jvp, dual numbers, and both against the product of a gradient; the operation itself included."""
    if without_gradient(row):
        return NO_GRADIENT
    tensors, wanted = leaves(row)
    plain = tuple(each.detach() for each in tensors)
    tangents = {k: torch.rand_like(each) for k, each in enumerate(plain) if each.is_floating_point()}
    results = values(row)(*tensors)
    cotangents = tuple(torch.rand_like(y) for y in results)
    back = torch.autograd.grad(results, wanted, cotangents)
    expected = torch.stack([(t * g).sum() for t, g in zip(tangents.values(), back, strict=True)]).sum()

    def moved(step: Any) -> Tensors:
        return values(row)(*(each + step * tangents[k] if k in tangents else each for k, each in enumerate(plain)))

    _, found = torch.func.jvp(moved, (torch.zeros((), dtype=torch.float64),), (torch.ones((), dtype=torch.float64),))
    assert_close(torch.stack([(t * c).sum() for t, c in zip(found, cotangents, strict=True)]).sum(), expected)
    with forward_ad.dual_level():
        duals = tuple(
            forward_ad.make_dual(each, tangents[k]) if k in tangents else each for k, each in enumerate(plain)
        )
        lists = [forward_ad.unpack_dual(y).tangent for y in values(row)(*duals)]
    assert all(each is not None for each in lists)
    assert_close(torch.stack([(t * c).sum() for t, c in zip(lists, cotangents, strict=True)]).sum(), expected)
    return YES


def nested(row: Row) -> str:
    """Transforms of transforms of one number made of all results, by torch's double backward of torch's operations."""
    if without_gradient(row):
        return NO_GRADIENT
    total, by_torch, at = as_one_function(row)
    also, tangent = at + 0.01, torch.rand_like(at)  # items keep their order
    first = torch.autograd.functional.jacobian(by_torch, at)
    second, beside = (torch.autograd.functional.hessian(by_torch, each) for each in (at, also))
    grad, vmap, jvp = torch.func.grad, torch.func.vmap, torch.func.jvp
    jacfwd, jacrev = torch.func.jacfwd, torch.func.jacrev
    both, expected = torch.stack([at, also]), torch.stack([second @ tangent, beside @ tangent])

    def slope(x: torch.Tensor) -> torch.Tensor:
        return jvp(total, (x,), (tangent,))[1]

    assert_close(slope(at), first @ tangent)
    for found in (
        jvp(grad(total), (at,), (tangent,))[1],
        grad(slope)(at),
        torch.func.vjp(grad(total), at)[1](tangent)[0],
    ):
        assert_close(found, second @ tangent)
    for matrix in (jacfwd(jacrev(total)), jacrev(jacfwd(total)), jacrev(jacrev(total)), jacfwd(jacfwd(total))):
        assert_close(matrix(at), second)
    assert_close(vmap(grad(slope))(both), expected)
    assert_close(jvp(vmap(grad(total)), (both,), (tangent.expand(both.shape),))[1], expected)
    assert_close(grad(lambda each: vmap(total)(each).sum())(both)[0], first)
    assert_close(vmap(vmap(grad(total)))(both[:, None])[0, 0], first)
    return YES


def as_one_function(row: Row) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], torch.Tensor]:
    """Of one line of numbers, all the row's arguments that have gradients; the same by torch; and such a line."""
    tensors = row.tensors()
    given = floating(tensors)

    def total(call: Callable[..., Tensors], line: torch.Tensor) -> torch.Tensor:
        parts = iter(line.split([each.numel() for each in given]))
        every = (next(parts).reshape(each.shape) if each.is_floating_point() else each for each in tensors)
        return torch.stack([(y.sin() * weights(y)).sum() for y in floating(call(*every))]).sum()

    line = torch.cat([each.flatten() for each in given])
    return partial(total, row), partial(total, row.by_torch), line


# ---- modes and subclasses


@contextlib.contextmanager
def autocasting() -> Iterator[None]:
    """As torch.autocast("cuda"), which does nothing where there is no GPU."""
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before)


def autocasted(row: Row) -> str:
    """On what torch takes for tensors of a GPU: the dtypes that torch's scan has."""
    with FakeTensorMode():
        tensors = tuple(
            torch.empty(each.shape, dtype=torch.float16 if each.is_floating_point() else each.dtype, device="cuda")
            for each in row.tensors()
        )
        plain = [y.dtype for y in row(*tensors)]
        with autocasting():
            found = [y.dtype for y in row(*tensors)]
            if row.torch_name:
                theirs = getattr(torch, row.torch_name)(tensors[0], DIM)
                assert found[0] == (theirs if isinstance(theirs, torch.Tensor) else theirs[0]).dtype
    return "float32" if found != plain else "as given"


def pretended(row: Row) -> str:
    """Fake and meta tensors: shapes, dtypes and strides of real ones."""
    expected = [(y.shape, y.dtype, y.stride()) for y in row(*row.tensors())]
    assert [(y.shape, y.dtype, y.stride()) for y in row(*(each.to("meta") for each in row.tensors()))] == expected
    with FakeTensorMode() as mode:
        found = row(*(mode.from_tensor(each) for each in row.tensors()))
    assert [(y.shape, y.dtype, y.stride()) for y in found] == expected
    return YES


def subclassed(row: Row) -> str:
    """A subclass of Tensor keeps its class."""

    class Mine(torch.Tensor):
        pass

    found = row(*(each.as_subclass(Mine) for each in row.tensors()))
    assert all(type(y) is Mine for y in found)
    agree((y.as_subclass(torch.Tensor) for y in found), row(*row.tensors()))
    return YES


def distributed(row: Row) -> str:
    """Sharded along another dimension than the scanned one it stays so, gradients too, and nothing is communicated."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.distributed.tensor.debug import CommDebugMode

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    tensors, wanted = leaves(row)
    spread = tuple(
        distribute_tensor(each.detach(), mesh, [Shard(0) if each.shape[0] == 3 else Replicate()]) for each in tensors
    )
    given = [each.requires_grad_() for each in spread if each.is_floating_point()]
    with CommDebugMode() as sent:
        found = row(*spread)
        ours = torch.autograd.grad([y.sum() for y in floating(found)], given) if wanted else ()
    assert sent.get_total_counts() == 0, (row.name, sent.get_comm_counts())
    expected = row(*tensors)
    assert all(y.placements == (Shard(0),) for y in found)  # type: ignore[attr-defined]
    agree((y.full_tensor() for y in found), expected)  # type: ignore[attr-defined]
    if wanted:
        theirs = torch.autograd.grad([y.sum() for y in floating(expected)], wanted)
        close((each.full_tensor() for each in ours), theirs)  # type: ignore[attr-defined]
    return YES


def patched(row: Row) -> str:
    if row.torch_name is None:
        return OTHERS
    tensors, wanted = leaves(row)
    function = getattr(torch, row.torch_name)
    expected = function(*tensors, DIM)
    with scanops.emulate(), scanops.patch_torch():
        found = function(*tensors, DIM)
    assert type(found) is type(expected)
    both = [(each,) if isinstance(each, torch.Tensor) else tuple(each) for each in (found, expected)]
    agree(*both)
    close(gradients(both[0], wanted), gradients(both[1], wanted))
    return YES


COLUMNS: dict[str, Callable[[Row], str]] = {
    "gradient": first,
    "second": second,
    "`checkpoint`": checkpointed,
    "`inference_mode`": inference,
    "`vmap`": batched,
    "`vjp`, `grad`": backward_mode,
    "`jvp`": forward_mode,
    "transforms of transforms": nested,
    "`compile`": compiled,
    "`compile`, dynamic": compiled_for_all_lengths,
    "compiled autograd": backwards_compiled,
    "`export`": exported,
    "`jit.trace`": traced,
    "CUDA autocast": autocasted,
    "fake, meta": pretended,
    "subclass": subclassed,
    "DTensor": distributed,
    "`patch_torch`": patched,
}
