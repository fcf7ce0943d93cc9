"""``torch.ops.scanops.fused``: a scan with ``map`` and ``then`` as one opaque operator, for compilers, modes and vmap.

It is given the text of the expressions: a program that was compiled or exported calls no function of the user. What
computes it is imported at the first call; the operator is known as soon as scanops is.
"""

from __future__ import annotations

from typing import Any

import torch

from scanops import torch_private as private
from scanops.codegen.fusion.fusion import fusion_of
from scanops.errors import UnsupportedRequest
from scanops.fusion import gradients
from scanops.fusion.kernels import Work
from scanops.ops import schema
from scanops.ops.implementations import differentiated_again, implement, is_transformed
from scanops.requests.checks import check_dim
from scanops.requests.geometry import separate
from scanops.requests.torch_state import reads_memory

Found = list[torch.Tensor]


def _asked(tensors: Found, text: str, op: str, dim: int, *options: bool) -> tuple[Any, ...]:
    """Return what computes the operator, the scan that it is asked for, and its tensors."""
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
    return gradients, Work(fusion, op, check_dim("scan", shape, dim), *options[:2]), tuple(tensors), shape


def _compute(*arguments: Any) -> Found:
    gradients, work, tensors, shape = _asked(*arguments)
    with schema.lengths(arguments[-1]):
        served = gradients.computed if reads_memory(tensors) and shape.numel() else gradients.composed
        return separate(served(work, tensors), tensors)


def _pretend(*arguments: Any) -> Found:
    _, work, tensors, shape = _asked(*arguments)
    dtypes = [getattr(torch, each.dtype) for each in work.fusion.outputs]
    return [torch.empty(shape, dtype=each, device=tensors[0].device) for each in dtypes]


def _differentiate(keys: Any, *arguments: Any) -> Found:
    gradients, work, tensors, _ = _asked(*arguments)

    def below(work: Any, tensors: tuple[torch.Tensor, ...]) -> Found:
        with private.below_autograd():
            found: Found = schema.FUSED.redispatch(keys & private.after_autograd, list(tensors), *arguments[1:])
        return found

    if is_transformed(tensors):
        return list(gradients.composed(work, tensors))
    return list(gradients.differentiated(work, tensors, below))


def _rule(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Found, list[int]]:
    """The batch comes in front of each tensor, so the scan is along the next dimension."""
    tensors, text, op, dim, *options = arguments
    ranks = [each.ndim - (at is not None) for each, at in zip(tensors, dims[0], strict=True)]
    rank = max(1, *ranks)  # 0-d tensors are lines of one item
    batched = [schema.aligned(each, at, rank) for each, at in zip(tensors, dims[0], strict=True)]
    found = schema.FUSED(batched, text, op, dim % rank + 1, *options)
    return [each if any(ranks) else each.squeeze(1) for each in found], [0] * len(found)


# ---- the gradients, where a compiler follows a backward pass


def _compute_backward(given: list[torch.Tensor | None], tensors: Found, needs: list[bool], *options: Any) -> Found:
    gradients, work, operands, _ = _asked(tensors, *options)
    with schema.lengths(options[-1]):
        found = gradients.gradients_of(work, operands, given, tuple(needs))
    return [tensors[0].new_empty(0) if each is None else each for each in found]


def _pretend_backward(given: list[torch.Tensor | None], tensors: Found, needs: list[bool], *options: Any) -> Found:
    return [torch.empty_like(each) if need else each.new_empty(0) for each, need in zip(tensors, needs, strict=True)]


_again = differentiated_again(schema.FUSED_BACKWARD, _compute_backward)
implement("fused", _compute, _differentiate, _pretend)
implement("fused_backward", _compute_backward, _again, _pretend_backward)
torch.library.register_vmap("scanops::fused", _rule, lib=schema.LIBRARY)
