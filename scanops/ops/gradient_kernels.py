"""The kernels of a backward pass: the gradient of a scan is a scan in the opposite direction.

``gradient`` of an operator's row says which row computes it and what that reads. Here are its tensors: those that were
saved, and those that are computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from scanops.codegen.derivatives import Gradient
from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operator import Operator
from scanops.codegen.operators.recurrences import LATEST
from scanops.ops.line_sums import add_line_sums, sums_lines
from scanops.ops.saved import (
    SavedForward,
    compares_rounded_results,
    finds_results_in_tiles,
    multiply_conjugate,
    supports,
)
from scanops.requests.geometry import ALIGNMENT, line_shape
from scanops.requests.request import Inputs, Request, Tensors
from scanops.runtime.call_cache import run_on_tape
from scanops.runtime.recipes import Tape


def run_gradient_kernels(
    forward: SavedForward, gy: torch.Tensor, gfinal: torch.Tensor | None, tape: Tape
) -> Tensors | None:
    """Return the gradients of term, gate and carry-in by kernels; None where no row or no kernel computes them.

    ``gy`` is the gradient of the result, ``gfinal`` that of the carry-out.
    """
    request, carries = forward.kind.request, forward.needs[3]
    gradient = request.operator.gradient
    if gradient is None or not supports(gradient, request):
        return None
    of_carry = gradient.of_carry if _has_whole_lines(forward) else None
    if gfinal is not None and not gradient.begins:  # the row supports no such carries
        if of_carry is None or request.call.exclusive:
            return None
        gy = tape.apply(partial(_add_to_last, dim=request.call.dim, reverse=request.call.reverse), gy, gfinal)
        gfinal = None
    of_initial = None
    if carries and not gradient.ends:
        if of_carry is None:
            return None
        derive = partial(_differentiate_carry, of_carry=of_carry, dim=request.call.dim)
        of_initial = tape.apply(derive, gy, forward.tensors.y, forward.tensors.initial)
        carries = False
    if gradient.of_terms is not None and not forward.needs[2]:
        gradient = gradient.of_terms
    selects = None if forward.weighted or forward.kind.indexed else forward.tensors.mask
    masks_after = selects is not None and request.call.compensated and gradient.masked is not None
    row = (request.call.exclusive and gradient.after) or gradient.row or request.operator
    row = gradient.masked if selects is not None and gradient.masked and not masks_after else row
    starts, offsets = forward.tensors.starts, forward.tensors.offsets
    gate = _read_gate(forward, gradient, tape)
    found = _read_results(
        forward, gradient, row, Inputs(gy, None if masks_after else selects, gate, starts, offsets, gfinal), tape
    )
    if found is None:
        return None
    inputs, saved_results = found
    if gfinal is not None:
        initial = _convert(gfinal, request.carry_dtype, tape)
        inputs = inputs._replace(initial=_contiguous(initial, tape, serves=False))
    if inputs.saved is not None:  # beside it operands are broadcast or strided as it is
        gate = None if inputs.gate is None else _make_row_contiguous(inputs.gate, tape)
        inputs = inputs._replace(x=_make_row_contiguous(inputs.x, tape), gate=gate)
    call = request.call.derivative(
        row.name,
        reverse=not request.call.reverse,
        exclusive=request.call.exclusive if gradient.exclusive is None else gradient.exclusive,
        final=carries,
        dtype=_dtype(forward, row),
        carry=request.carry_dtype,
    )
    of_gates = forward.kind.shapes[2] if row.second else None
    if of_gates is not None and sums_lines(of_gates[0], request.shape, call.dim):
        call = replace(call, line_sums=1)
    backward = Request(call=call, inputs=inputs, carry_dtype=request.carry_dtype, saved_results=saved_results)
    results = run_on_tape(backward, tape)
    if results is None:
        return None
    of_term, of_gate = results[0], results[1] if row.second else None
    if call.line_sums and of_gates is not None:
        (of_gate,) = add_line_sums(results[1], call.dim, (of_gates,), tape)
    if masks_after:
        of_term = tape.apply(lambda gradient, mask: torch.where(mask, gradient, 0), of_term, selects)
    return of_term, of_gate, results[-1] if carries else of_initial


def _has_whole_lines(forward: SavedForward) -> bool:
    """Whether carries are of lines of real results on this device, which have been saved: of no segments or ranks."""
    y, call = forward.tensors.y, forward.kind.request.call
    whole = not forward.kind.segmented and call.link is None
    return whole and y is not None and not y.is_complex() and y.ndim > 0 and y.shape[call.dim] > 0


def _add_to_last(gy: torch.Tensor, gfinal: torch.Tensor, *, dim: int, reverse: bool) -> torch.Tensor:
    """The gradient of the results with that of the carry-out, which is the last of them."""
    found = gy.clone(memory_format=torch.contiguous_format)
    found.select(dim, 0 if reverse else -1).add_(gfinal)
    return found


def _differentiate_carry(
    gy: torch.Tensor,
    y: torch.Tensor,
    initial: torch.Tensor,
    *,
    of_carry: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    dim: int,
) -> torch.Tensor:
    """The gradient of the carry-in, from that of the results."""
    spread = initial.expand(line_shape(y.shape, dim)).unsqueeze(dim)
    return (of_carry(spread, y) * gy).sum(dim)


def _read_gate(forward: SavedForward, gradient: Gradient, tape: Tape) -> torch.Tensor | None:
    """The gates that the row of a gradient reads: those of the forward scan, or the items that were scanned."""
    if gradient.gate != "x":
        return forward.tensors.gate if gradient.gate else None
    x, mask = forward.tensors.x, forward.tensors.mask
    assert x is not None
    request = forward.kind.request
    # As forward kernels do, which round no product to a half type.
    wide = _convert(x, torch.promote_types(x.dtype, request.carry_dtype), tape) if forward.weighted else x
    term = tape.apply(multiply_conjugate, wide, mask) if forward.weighted else x
    return _convert(term, request.carry_dtype if compares_rounded_results(forward.kind) else request.dtype, tape)


def _read_results(
    forward: SavedForward, gradient: Gradient, row: Operator, inputs: Inputs, tape: Tape
) -> tuple[Inputs, bool] | None:
    """The inputs of a kernel with what its row reads of the forward scan, and whether that is the results themselves.

    Otherwise it is indices, or the results before each item. None where no kernel computes these again.
    """
    request, tensors = forward.kind.request, forward.tensors
    saved = tensors.indices
    if gradient.saved == "before":  # the result of an exclusive scan is the result before each item
        saved = tensors.y if request.call.exclusive and row.saved else None
    elif gradient.saved == "y":
        saved = _unrounded_results(forward, tape) if compares_rounded_results(forward.kind) else tensors.y
        if saved is None:
            return None
    inputs = inputs._replace(saved=saved)
    if not row.saved or saved is not None:
        return inputs, False
    if finds_results_in_tiles(gradient, forward.kind):
        return _read_tiles(inputs, tape), False
    reads_results = tensors.y is not None and not (request.call.per_segment and tensors.initial is not None)
    saved = tensors.y if reads_results else _results_before(forward, tape)
    if saved is None:
        return None
    inputs = inputs._replace(saved=_contiguous(saved, tape, serves=False))
    if reads_results and tensors.initial is not None:
        inputs = inputs._replace(begin=_spread_carry_in(tensors.initial, request, inputs.x.shape, tape))
    return inputs, reads_results


def _read_tiles(inputs: Inputs, tape: Tape) -> Inputs:
    """The inputs of a kernel that finds the result before each item in its tile.

    Operands that are not contiguous rows are copied, which moves fewer bytes than an extra forward scan.
    """
    shape = inputs.x.shape

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.expand(shape).clone(memory_format=torch.contiguous_format)

    def tiled(tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None or (
            tensor.shape == torch.Size(shape) and tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0
        ):
            return tensor
        return tape.apply(spread, tensor)

    x = tiled(inputs.x)
    assert x is not None
    return inputs._replace(x=x, mask=tiled(inputs.mask), gate=tiled(inputs.gate))


def _spread_carry_in(initial: torch.Tensor, request: Request, shape: torch.Size, tape: Tape) -> torch.Tensor:
    """The carry-in with one item for each line of ``shape``, adjacent lines side by side: in place where it is so."""
    dim, dtype = request.call.dim, request.carry_dtype
    lines = line_shape(shape, dim)

    def spread(initial: torch.Tensor) -> torch.Tensor:
        if initial.numel() == 1:
            return initial.to(dtype).reshape(())
        return initial.to(dtype).expand(lines).contiguous().unsqueeze(dim)

    in_place = initial.numel() == 1 or (initial.shape == lines and initial.is_contiguous())
    return (tape.view if in_place and initial.dtype == dtype else tape.apply)(spread, initial)


def _results_before(forward: SavedForward, tape: Tape) -> torch.Tensor | None:
    """The result before each item: saved, or from the exclusive forward scan; None where there is no kernel."""
    request = forward.kind.request
    call = replace(request.call, exclusive=True, final=False)
    if forward.tensors.y is None:
        assert forward.tensors.x is not None
        inputs = forward.forward_inputs(forward.tensors.x)
    else:
        call, inputs = (
            replace(call, op=LATEST.name),
            Inputs(
                forward.tensors.y, None, None, forward.tensors.starts, forward.tensors.offsets, forward.tensors.initial
            ),
        )
    results = run_on_tape(replace(request, call=call, inputs=inputs), tape)
    return None if results is None else results[0]


def _unrounded_results(forward: SavedForward, tape: Tape) -> torch.Tensor | None:
    """The results in the dtype of the carries, from the forward scan; None where there is no kernel."""
    request, x = forward.kind.request, forward.tensors.x
    assert x is not None
    call = replace(request.call, dtype=request.carry_dtype, accumulate=None, final=False, link=None)
    results = run_on_tape(replace(request, call=call, inputs=forward.forward_inputs(x)), tape)
    return None if results is None else results[0]


def _dtype(forward: SavedForward, row: Operator) -> torch.dtype:
    """The output dtype of a row: x's where it is no wider than the accumulator, else the result's."""
    request, like = forward.kind.request, forward.kind.shapes[0]
    assert like is not None
    here, carry = dtype_named(like[1]), dtype_named(request.carry_dtype)
    narrows = here.stored and here.kind == carry.kind and here.bytes <= carry.bytes
    alone = not (forward.weighted or row.second or request.call.compensated)
    if narrows and alone:
        return like[1]
    # The gradients of weights and gates that are wider than the results are not rounded to the results' dtype.
    pairs = zip(forward.kind.shapes[:3], forward.needs[:3], strict=True)
    wider = any(each is not None and need and each[1].itemsize > request.dtype.itemsize for each, need in pairs)
    return request.carry_dtype if wider else request.dtype


def _make_row_contiguous(tensor: torch.Tensor, tape: Tape) -> torch.Tensor:
    """The tensor, if it is broadcast or has contiguous rows; else a contiguous copy."""
    return _contiguous(tensor, tape, serves=tensor.ndim == 0 or 0 in tensor.stride() or tensor.stride(-1) == 1)


def _contiguous(tensor: torch.Tensor, tape: Tape, *, serves: bool) -> torch.Tensor:
    return tensor if serves or tensor.is_contiguous() else tape.apply(torch.Tensor.contiguous, tensor)


def _convert(tensor: torch.Tensor, dtype: torch.dtype, tape: Tape) -> torch.Tensor:
    return tensor if tensor.dtype == dtype else tape.apply(partial(torch.Tensor.to, dtype=dtype), tensor)
