"""``torch.ops.scanops.fused``: a scan with ``map`` and ``then`` as one opaque operator, for compilers, modes and vmap.

It is given the text of the expressions: a program that was compiled or exported calls no function of the user. What
computes it is imported at the first call; the operator is known as soon as scanops is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from scanops import torch_private as private
from scanops.errors import UnsupportedRequest
from scanops.ops import schema
from scanops.ops.implementations import is_transformed
from scanops.processes import NO_FORK
from scanops.requests.call import reads_memory
from scanops.requests.checks import check_dim

Found = list[torch.Tensor]


class _Asked(NamedTuple):
    """What the arguments of the operator ask for, and the modules that compute it."""

    work: Any
    tensors: tuple[torch.Tensor, ...]
    shape: torch.Size
    any_length: bool
    gradients: Any
    kernels: Any


def _asked(
    tensors: Found, text: str, op: str, dim: int, reverse: bool, exclusive: bool, any_length: bool = False
) -> _Asked:
    with NO_FORK:
        from scanops.fusion import gradients, kernels
        from scanops.fusion.kernel import fusion_of
    fusion = fusion_of(text)
    wanted, found = [each.dtype for each in fusion.operands], [str(each.dtype)[6:] for each in tensors]
    if wanted != found:
        raise UnsupportedRequest(
            "scanops::fused: the tensors must be of the dtypes that the expressions were traced for",
            allowed=", ".join(wanted),
            value=", ".join(found) or "no tensors",
            hint="call scanops.scan with functions, which traces them again",
        )
    shape = torch.broadcast_tensors(*tensors)[0].shape  # type: ignore[no-untyped-call]
    work = kernels.Work(fusion, op, check_dim("scan", shape, dim), reverse, exclusive)
    return _Asked(work, tuple(tensors), shape, any_length, gradients, kernels)


def _compute(*arguments: Any) -> Found:
    work, tensors, shape, any_length, _, kernels = _asked(*arguments)
    with schema.lengths(any_length):
        served = kernels.computed if reads_memory(tensors) and shape.numel() else kernels.composed
        found, known = [], {each.untyped_storage().data_ptr() for each in tensors}
        for y in served(work, tensors):  # a result that is a view of an operand, or of another result, is copied
            place = y.untyped_storage().data_ptr()
            found.append(y.clone() if place in known else y)
            known.add(place)
    return found


def _pretend(*arguments: Any) -> Found:
    asked = _asked(*arguments)
    dtypes = [getattr(torch, each.dtype) for each in asked.work.fusion.outputs]
    return [torch.empty(asked.shape, dtype=each, device=asked.tensors[0].device) for each in dtypes]


def _differentiate(keys: Any, *arguments: Any) -> Found:
    asked, keys = _asked(*arguments), keys & private.after_autograd

    def operated(work: Any, tensors: tuple[torch.Tensor, ...]) -> Found:
        with private.below_autograd():
            return schema.FUSED.redispatch(keys, list(tensors), *arguments[1:])

    if is_transformed(asked.tensors):
        return list(asked.kernels.composed(asked.work, asked.tensors))
    return list(asked.gradients.differentiated(asked.work, asked.tensors, operated))


def _rule(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Found, list[int]]:
    """The batch comes in front of each tensor, so the scan is along the next dimension."""
    tensors, text, op, dim, *options = arguments
    ranks = [each.ndim - (at is not None) for each, at in zip(tensors, dims[0], strict=True)]
    rank = max(1, *ranks)  # 0-d tensors are lines of one item
    batched = [schema.aligned(each, at, rank) for each, at in zip(tensors, dims[0], strict=True)]
    found = schema.FUSED(batched, text, op, dim % rank + 1, *options)
    return [each if any(ranks) else each.squeeze(1) for each in found], [0] * len(found)


def _compute_backward(gradients: list[torch.Tensor | None], tensors: Found, needs: list[bool], *options: Any) -> Found:
    asked = _asked(tensors, *options)
    with schema.lengths(asked.any_length):
        found = asked.gradients.gradients_of(asked.work, asked.tensors, gradients, tuple(needs))
    return [tensors[0].new_empty(0) if each is None else each for each in found]


def _differentiate_backward(keys: Any, *arguments: Any) -> Found:
    every = [each for each in (*arguments[0], *arguments[1]) if each is not None]
    if torch.is_grad_enabled() and any(each.requires_grad for each in every):
        return _compute_backward(*arguments)
    with private.below_autograd():
        return schema.FUSED_BACKWARD.redispatch(keys & private.after_autograd, *arguments)


def _pretend_backward(gradients: list[torch.Tensor | None], tensors: Found, needs: list[bool], *options: Any) -> Found:
    return [torch.empty_like(each) if need else each.new_empty(0) for each, need in zip(tensors, needs, strict=True)]


schema.LIBRARY.impl("fused", _compute, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
schema.LIBRARY.impl("fused", _differentiate, "Autograd", with_keyset=True)  # type: ignore[no-untyped-call]
private.register_fake("scanops::fused", _pretend, schema.LIBRARY)
schema.LIBRARY.impl("fused_backward", _compute_backward, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
schema.LIBRARY.impl("fused_backward", _differentiate_backward, "Autograd", with_keyset=True)  # type: ignore[no-untyped-call]
private.register_fake("scanops::fused_backward", _pretend_backward, schema.LIBRARY)
torch.library.register_vmap("scanops::fused", _rule, lib=schema.LIBRARY)
