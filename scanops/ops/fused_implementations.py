"""``torch.ops.scanops.fused``: a scan with ``map`` and ``then`` as one opaque operator, for compilers, modes and vmap.

It is given the text of the expressions: a program that was compiled or exported calls no function of the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scanops import torch_private as private
from scanops.codegen.fusion.fusion import fusion_of
from scanops.errors import UnsupportedRequest
from scanops.fallback.fused import compose
from scanops.fallback.summed import compose_summed
from scanops.ops import schema
from scanops.ops.dispatch import run
from scanops.ops.gradients import FusedBackwardPass, compute_fused_gradients
from scanops.ops.implementations import differentiate_again, implement, is_transformed
from scanops.ops.serving import record_fused_call, serve
from scanops.requests.call import Call
from scanops.requests.fused import broadcast_shape
from scanops.requests.geometry import separate
from scanops.requests.request import Inputs, RequestKind, check_fused, check_request
from scanops.requests.segments import flags_along
from scanops.requests.torch_state import reads_memory

Results = list[torch.Tensor]
SUMMED_AT, INITIAL_AT, STARTS_AT, OFFSETS_AT = 4, 5, 6, 7  # among the operator's arguments behind the dimension


def _parse(
    tensors: Results,
    text: str,
    op: str,
    dim: int,
    reverse: bool,
    exclusive: bool,
    any_length: bool,
    final: bool = False,
    summed: Sequence[int] = (),
    initial: torch.Tensor | None = None,
    starts: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
) -> tuple[Call, Inputs]:
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
    x, *further = tensors
    call = Call(op, dim, reverse, exclusive, final, any_length=any_length, summed=tuple(summed), fusion=fusion)
    return check_fused(call, Inputs(x, None, None, starts, offsets, initial, further=tuple(further)))


def _compute(*arguments: Any) -> Results:
    call, given = _parse(*arguments)
    with schema.lengths(call.any_length):
        return separate(serve(call, given, run, eager=reads_memory(given.flat)), given.operands)


def _pretend(*arguments: Any) -> Results:
    call, given = _parse(*arguments)
    places = check_request(call, given).places
    return [torch.empty(shape, dtype=dtype, device=given.x.device) for _, shape, dtype in places]


def _differentiate(keys: Any, *arguments: Any) -> Results:
    call, given = _parse(*arguments)
    if is_transformed(given.operands):
        return list((compose_summed if call.summed else compose)(call, given, run))

    def compute(call: Call, given: Inputs) -> tuple[torch.Tensor, ...]:
        with private.below_autograd():
            return schema.run_fused_operator(call, given, keys & private.after_autograd)

    if not given.differentiates:
        return list(compute(call, given))
    return list(record_fused_call(RequestKind(check_request(call, given)), given, compute, run, saves_states=False))


def _rule(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Results, list[int]]:
    """The batch comes in front of each tensor, so the scan is along the next dimension."""
    tensors, text, op, dim, *options = arguments
    ranks = [each.ndim - (at is not None) for each, at in zip(tensors, dims[0], strict=True)]
    rank = max(1, *ranks)  # 0-d tensors are lines of one item
    batched = [schema.align(each, at, rank) for each, at in zip(tensors, dims[0], strict=True)]
    if len(options) > SUMMED_AT:
        options[SUMMED_AT] = [each % rank + 1 for each in options[SUMMED_AT]]
    options += [None] * (OFFSETS_AT + 1 - len(options)) if len(options) > SUMMED_AT else []
    of_options = dict(enumerate(dims[4:]))  # the batch's dimension in each of them
    at = of_options.get(OFFSETS_AT)
    if at is not None:  # other segments in each element of the batch
        line = batched[0].new_empty(()).expand(broadcast_shape([each[0] for each in batched]))
        rows = [flags_along(None, row, line, dim % rank) for row in options[OFFSETS_AT].unbind(at)]
        options[STARTS_AT], options[OFFSETS_AT] = torch.stack([each for each in rows if each is not None]), None
        of_options[STARTS_AT] = 0
    for place, size in ((INITIAL_AT, rank - 1), (STARTS_AT, rank)):
        if len(options) > place and options[place] is not None:
            options[place] = schema.align(options[place], of_options.get(place), size)
    if any(of_options.get(place) is not None for place in (INITIAL_AT, STARTS_AT)):
        batched[0] = batched[0].expand(info.batch_size, *batched[0].shape[1:])
    found = schema.FUSED(batched, text, op, dim % rank + 1, *options)
    return [each if any(ranks) else each.squeeze(1) for each in found], [0] * len(found)


# ---- the gradients, where a compiler follows a backward pass


def _compute_backward(given: list[torch.Tensor | None], tensors: Results, needs: list[bool], *options: Any) -> Results:
    call, inputs = _parse(tensors, *options)
    of_x, *of_further = needs[: len(tensors)]
    wanted = (of_x, False, False, any(needs[len(tensors) :]), *of_further)
    with schema.lengths(call.any_length):
        found = compute_fused_gradients(FusedBackwardPass(call, inputs, given, wanted, run))
    x, _, _, initial, *further = found
    places = zip((x, *further, initial), needs, strict=False)
    return [tensors[0].new_empty(0) if each is None or not need else each for each, need in places]


def _compute_below(*arguments: Any) -> Results:
    """What is computed below autograd may be made of derivatives, which autograd records then."""
    with torch.no_grad(), private.recording():
        return _compute_backward(*arguments)


def _pretend_backward(given: list[torch.Tensor | None], tensors: Results, needs: list[bool], *options: Any) -> Results:
    _, inputs = _parse(tensors, *options)
    every = [*tensors, *([] if inputs.initial is None else [inputs.initial])]
    return [
        torch.empty_like(each) if need else tensors[0].new_empty(0) for each, need in zip(every, needs, strict=True)
    ]


_again = differentiate_again(schema.FUSED_BACKWARD, _compute_backward)
implement("fused", _compute, _differentiate, _pretend)
implement("fused_backward", _compute_below, _again, _pretend_backward)
torch.library.register_vmap("scanops::fused", _rule, lib=schema.LIBRARY)
