"""``torch.ops.scanops.fused``: a scan with ``map`` and ``then`` as one opaque operator, for compilers, modes and vmap.

It is given the text of the expressions: a program that was compiled or exported calls no function of the user.
"""

from __future__ import annotations

from typing import Any

import torch

from scanops import torch_private as private
from scanops.codegen.fusion.fusion import fusion_of
from scanops.errors import UnsupportedRequest
from scanops.fallback.fused import compose
from scanops.ops import schema
from scanops.ops.dispatch import record_fused_call, run, serve
from scanops.ops.fused import differentiate_fused
from scanops.ops.implementations import differentiate_again, implement, is_transformed
from scanops.requests.call import Call
from scanops.requests.fused import broadcast_shape
from scanops.requests.geometry import separate
from scanops.requests.request import FusedInputs, RequestKind, check_fused, check_request
from scanops.requests.torch_state import is_recorded, reads_memory

Results = list[torch.Tensor]


def _parse(tensors: Results, text: str, op: str, dim: int, *options: bool) -> tuple[Call, FusedInputs]:
    """Return the call of the operator's arguments, and its tensors."""
    fusion = fusion_of(text)
    wanted, given = [each.dtype for each in fusion.operands], [str(each.dtype)[6:] for each in tensors]
    if wanted != given:
        raise UnsupportedRequest(
            "scanops::fused: the tensors must be of the dtypes that the expressions were traced for",
            allowed=", ".join(wanted),
            value=", ".join(given) or "no tensors",
            hint="call scanops.scan with functions, which traces them again",
        )
    reverse, exclusive, any_length = options
    x, *further = tensors
    call = Call(op, dim, reverse, exclusive, any_length=any_length, fusion=fusion)
    return check_fused(call, FusedInputs(x, tuple(further)))


def _compute(*arguments: Any) -> Results:
    call, given = _parse(*arguments)
    with schema.lengths(call.any_length):
        return separate(serve(call, given, eager=reads_memory(given.flat)), given.operands)


def _pretend(*arguments: Any) -> Results:
    call, given = _parse(*arguments)
    assert call.fusion is not None
    shape, dtypes = broadcast_shape(given.operands), [getattr(torch, each.dtype) for each in call.fusion.outputs]
    return [torch.empty(shape, dtype=each, device=given.x.device) for each in dtypes]


def _differentiate(keys: Any, *arguments: Any) -> Results:
    call, given = _parse(*arguments)
    if is_transformed(given.operands):
        return list(compose(call, given, run))

    def compute(call: Call, given: FusedInputs) -> tuple[torch.Tensor, ...]:
        with private.below_autograd():
            keep = keys & private.after_autograd
            return tuple(schema.FUSED.redispatch(keep, list(given.operands), *schema.list_fused_arguments(call)))

    if not (is_recorded() and any(each.requires_grad for each in given.operands)):
        return list(compute(call, given))
    return list(record_fused_call(RequestKind(check_request(call, given)), given, compute, saves_states=False))


def _rule(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Results, list[int]]:
    """The batch comes in front of each tensor, so the scan is along the next dimension."""
    tensors, text, op, dim, *options = arguments
    ranks = [each.ndim - (at is not None) for each, at in zip(tensors, dims[0], strict=True)]
    rank = max(1, *ranks)  # 0-d tensors are lines of one item
    batched = [schema.align(each, at, rank) for each, at in zip(tensors, dims[0], strict=True)]
    found = schema.FUSED(batched, text, op, dim % rank + 1, *options)
    return [each if any(ranks) else each.squeeze(1) for each in found], [0] * len(found)


# ---- the gradients, where a compiler follows a backward pass


def _compute_backward(given: list[torch.Tensor | None], tensors: Results, needs: list[bool], *options: Any) -> Results:
    call, inputs = _parse(tensors, *options)
    of_x, *of_further = needs
    with schema.lengths(call.any_length):
        found = differentiate_fused(call, inputs, given, (of_x, False, False, False, *of_further), run)
    x, _, _, _, *further = found
    return [tensors[0].new_empty(0) if each is None else each for each in (x, *further)]


def _pretend_backward(given: list[torch.Tensor | None], tensors: Results, needs: list[bool], *options: Any) -> Results:
    return [torch.empty_like(each) if need else each.new_empty(0) for each, need in zip(tensors, needs, strict=True)]


_again = differentiate_again(schema.FUSED_BACKWARD, _compute_backward)
implement("fused", _compute, _differentiate, _pretend)
implement("fused_backward", _compute_backward, _again, _pretend_backward)
torch.library.register_vmap("scanops::fused", _rule, lib=schema.LIBRARY)
