"""The fallback: every scan by PyTorch's own operators, for CPU tensors and wherever no kernel can serve.

Unlike a kernel, these scans can be traced, transformed and differentiated like any other torch code. ``max_error``
measures a result against them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import operator_named
from scanops.fallback import doubling, reference
from scanops.requests.call import Call
from scanops.requests.geometry import carry_shape
from scanops.requests.request import Inputs, Request, make_request
from scanops.requests.segments import flags_along, shift
from scanops.requests.torch_state import HALVES, is_derived, is_traced
from scanops.torch_private import dual_level, is_wrapped

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.uint16: torch.int64}
_WIDER[torch.uint32] = torch.int64
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch has almost no arithmetic for these


def scan(x: torch.Tensor, op: str, dim: int, **options: Any) -> torch.Tensor:
    """Return the scan of ``x`` along ``dim`` by PyTorch's operators; ``options`` are those of ``make_request``."""
    return compute(make_request(x, op, dim, **options))[0]


def compute(request: Request, inputs: Inputs | None = None) -> tuple[torch.Tensor, ...]:
    """Return the outputs of a request by PyTorch's operators, on ``inputs`` in place of its own if given.

    As those of a kernel, each has memory of its own, and none is computed from another one.
    """
    inputs = request.inputs if inputs is None else inputs
    if request.call.complete:
        return (_complete(request, inputs),)
    if inputs.x.ndim:
        found = outputs(inputs, request.call)
    else:
        mask, gate, starts = (None if each is None else each.reshape(1) for each in inputs[1:4])
        line = inputs._replace(x=inputs.x.reshape(1), mask=mask, gate=gate, starts=starts)
        found = tuple(result.reshape(()) for result in outputs(line, request.call))
    if not request.call.final:
        return found
    # A carry-out is the last state of a line or segment: a result may be it, follow from it, or lead to it.
    y, *indices, final = found
    return (y.view_as(y), *indices, final.clone())


def outputs(inputs: Inputs, call: Call) -> tuple[torch.Tensor, ...]:
    """Return the result, its indices where the operator has them, and carry-outs if the call asks for them."""
    widened = call.widen()
    if widened is not None:
        found = outputs(inputs, widened)
        return (found[0].to(call.result), *found[1:])
    inputs = inputs.readable()
    if call.result in _UNSIGNED:
        return _as_signed(inputs, call)
    operator = operator_named(call.op)
    # On a CPU a recurrence is computed by its definition; elsewhere log2(n) passes are faster.
    if operator.gated and inputs.x.device.type == "cpu" and not torch.compiler.is_compiling():
        return _scan_item_by_item(inputs, call) if not call.per_segment else _by_segment(inputs, call)
    unsound = "tangents" in operator.unsound and dual_level() >= 0
    unsound = unsound or ("complex" in operator.unsound and call.result.is_complex)
    # Of equal values torch's indices name one that a mask leaves out.
    masked = operator.indices and inputs.mask is not None and inputs.mask.dtype == torch.bool
    plain = operator.torch_name and not (call.final or call.compensated or unsound or masked)
    if plain and all(each is None for each in inputs.flat[2:]):
        differs = "gradients" in operator.unsound and (inputs.differentiates or is_derived())
        results = _by_torch(inputs, call, _logcumsumexp if differs else getattr(torch, str(operator.torch_name)))
        if results is not None:
            return results
    y, *others = doubling.outputs(doubling.join_of(call), inputs, call, *mask_terms(inputs, call))
    return (y.to(call.result).contiguous(), *(other.contiguous() for other in others))


def _complete(request: Request, inputs: Inputs) -> torch.Tensor:
    """The results of a complete scan: an exclusive scan of one item gives the carry-in or the identity."""
    call = request.inclusive.call
    shape = [1 if d == call.dim else size for d, size in enumerate(inputs.x.shape)]
    one = Inputs(
        x=inputs.x.new_zeros(shape),
        mask=None if inputs.mask is None else inputs.mask.new_ones(shape),
        gate=None if inputs.gate is None else inputs.gate.new_zeros(shape),
        initial=inputs.initial,
    )
    (start,) = outputs(one, replace(call, exclusive=True))
    (results,) = outputs(inputs, call)
    return request.extend(results, start.select(call.dim, 0))


def _by_segment(inputs: Inputs, call: Call) -> tuple[torch.Tensor, ...]:
    """The scan, item by item, of each segment as lines of its own, with its carry-in and its carry-out."""
    offsets = inputs.offsets
    assert offsets is not None
    dim, shape, alone = call.dim, inputs.x.shape, replace(call, per_segment=False)
    carries, carried = carry_shape(shape, dim, offsets), inputs.initial
    found = []
    for number, (begin, end) in enumerate(pairwise([0] * len(offsets) if offsets.is_meta else offsets.tolist())):
        own = (None if each is None else each.expand(shape).narrow(dim, begin, end - begin) for each in inputs[:3])
        start = None if carried is None else carried.expand(carries).select(dim, number)
        y, *others = _scan_item_by_item(Inputs(*own)._replace(initial=start), alone)  # type: ignore[arg-type]
        found.append((y, *others))
    *results, last = zip(*found, strict=True)
    last = tuple([each.unsqueeze(dim) for each in last]) if call.final else last
    return tuple(torch.cat(each, dim) for each in (*results, last))


def _widen(terms: torch.Tensor) -> torch.Tensor:
    """Terms in a dtype that torch computes in and that holds each exactly."""
    return terms.to(_WIDER.get(terms.dtype, terms.dtype))


def _by_torch(inputs: Inputs, call: Call, function: Callable[..., Any]) -> tuple[torch.Tensor, ...] | None:
    """The scan by the torch function of the same name, or by one in its place; None where that gives None."""
    x, dim, reverse, operator = inputs.x, call.dim, call.reverse, operator_named(call.op)
    start = operator.start_of(dtype_named(call.result))
    starts = start if isinstance(start, tuple) else (start,)
    terms, keep = mask_terms(inputs, call)
    if keep is not None:
        terms = torch.where(keep, terms, torch.full((), starts[0], dtype=terms.dtype, device=x.device))
    terms = terms.flip(dim) if reverse else terms
    found = function(terms, dim, dtype=terms.dtype) if operator.gives == "widened" else function(terms, dim)
    if found is None:
        return None
    values, *others = (found,) if isinstance(found, torch.Tensor) else found
    results = [values.to(call.result)]
    if operator.indices:
        results.append(x.shape[dim] - 1 - others[0] if reverse else others[0])
    if call.exclusive:
        results = [shift(y, dim, first, ahead=False) for y, first in zip(results, starts, strict=True)]
    return tuple((y.flip(dim) if reverse else y).contiguous() for y in results)


def _logcumsumexp(x: torch.Tensor, dim: int) -> torch.Tensor | None:
    """Return torch's logcumsumexp with derivatives of any order that are right behind -inf, where torch's are NaN.

    They are those of the logarithm of a cumulative sum, which holds while results of a line span less than the
    exponents of the dtype: else, and where that cannot be seen, None.
    """
    is_plain = x.device.type == "cpu" and type(x) in (torch.Tensor, torch.nn.Parameter) and not is_wrapped(x)
    if not is_plain or is_traced() or torch.compiler.is_compiling() or not x.numel():
        return None
    values = torch.logcumsumexp(x.detach(), dim)
    highest = values.amax(dim, keepdim=True)
    lowest = values.masked_fill(values.isneginf(), math.inf).amin(dim, keepdim=True)
    if not bool((highest - lowest <= math.log(torch.finfo(x.dtype).max) / 3.5).all()):  # room for cubes of sums
        return None
    sums = (x - highest.masked_fill(highest.isneginf(), 0)).exp().cumsum(dim)
    logarithms = sums.masked_fill(sums == 0, 1).log()
    return values + (logarithms - logarithms.detach())


def _scan_item_by_item(inputs: Inputs, call: Call) -> tuple[torch.Tensor, ...]:
    """The scan item by item, as the reference defines it."""
    terms, keep = mask_terms(inputs, call)
    y, h = reference.scan(
        terms,
        call.op,
        call.dim,
        mask=keep,
        gate=inputs.gate,
        flags=flags_along(inputs.starts, inputs.offsets, inputs.x, call.dim, call.chunk),
        initial=inputs.initial,
        reverse=call.reverse,
        exclusive=call.exclusive,
        final=True,
        dtype=_WIDER.get(call.result, call.result),
    )
    if inputs.differentiates or is_derived():
        whole = [each.expand(inputs.x.shape) for each in (terms, inputs.gate) if each is not None]
        lines = [each.expand(h.shape).unsqueeze(call.dim) for each in (h, inputs.initial) if each is not None]
        y = depend(y, (*whole, *lines), call.dim)
        h = depend(lines[0], (*whole, *lines[1:]), call.dim).select(call.dim, 0)
    return (y.to(call.result), h) if call.final else (y.to(call.result),)


def depend(y: torch.Tensor, operands: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    """Return a copy of ``y`` that depends on all ``operands``, which differ from it in size along ``dim`` at most.

    The gradient of an operand that no item of ``y`` is computed from is zero, as a kernel's, and not missing.
    """
    if not y.ndim:
        return depend(y.reshape(1), [each.reshape(1) for each in operands], 0).reshape(())
    return torch.cat([y, *(each.narrow(dim, 0, 0).to(y.dtype) for each in operands)], dim)


def _as_signed(inputs: Inputs, call: Call) -> tuple[torch.Tensor, ...]:
    """Unsigned scans in int64, whose low bits are those of the result, also for identities.

    uint64 values are compared with their highest bit inverted.
    """
    x, mask, gate, starts, offsets, initial, *_ = inputs
    selects = mask is not None and mask.dtype == torch.bool
    terms = x if mask is None or selects else _product(x, mask, gate)
    turned = torch.iinfo(torch.int64).min if call.result == torch.uint64 and operator_named(call.op).ordered else 0

    def signed(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.to(call.result)
        return tensor.view(torch.int64) if call.result == torch.uint64 else tensor.to(torch.int64)

    def unsigned(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor ^ turned
        return tensor.view(call.result) if call.result == torch.uint64 else tensor.to(call.result)

    mask, gate = mask if selects else None, None if gate is None else signed(gate)
    initial = None if initial is None else signed(initial) ^ turned
    read = Inputs(signed(terms) ^ turned, mask, gate, starts, offsets, initial)
    found = list(outputs(read, replace(call, dtype=torch.int64)))
    for place in {0, len(found) - 1 if call.final else 0}:
        found[place] = unsigned(found[place])
    return tuple(found)


def mask_terms(inputs: Inputs, call: Call) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the terms in the dtype they are scanned in, and the mask if it is bool.

    As in the kernels, nothing is rounded to a half type of the results.
    """
    x, mask, gate = inputs[:3]
    if mask is not None and mask.dtype != torch.bool:
        return _convert(_product(x, mask, gate), call.result), None
    return _convert(x, call.result), mask


def _convert(terms: torch.Tensor, result: torch.dtype) -> torch.Tensor:
    """Terms in the dtype that results are accumulated in: not by way of a half type, to which results are rounded."""
    return terms.to(torch.float32) if result in HALVES else _widen(terms.to(result))


def _product(x: torch.Tensor, mask: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    """x * mask in the promoted dtype, halves in float32."""
    term = torch.promote_types(x.dtype, mask.dtype)
    term = term if gate is None else torch.promote_types(term, gate.dtype)
    wide = torch.float32 if term in HALVES else term
    return x.to(wide) * mask.to(wide)


def max_error(out: torch.Tensor, x: torch.Tensor, op: str, dim: int, **options: Any) -> float:
    """The largest of ``|out - exact| / magnitude``; inf where a NaN came out. ``options``: mask, reverse, exclusive.

    The exact result is float64's, the magnitude of a result the same scan of ``|x|``: sums that cancel are not held to
    their small value, nor products that grow to an absolute bound.
    """
    # The sequential reference takes a minute on a GPU for long rows; PyTorch's operators replace it there.
    exactly = scan if x.is_cuda else reference.scan
    wide = torch.float64
    exact = exactly(x.to(wide), op, dim, dtype=wide, **options)
    magnitude = scan(x.to(wide).abs(), op, dim, dtype=wide, **options)
    off = (out.to(wide) - exact).abs_() / magnitude.clamp_min_(torch.finfo(wide).tiny)
    return float(off.nan_to_num_(nan=math.inf).max())


def limit(op: str, length: int) -> float:
    """What rounding to float32 explains for rows of ``length``, and a lost, doubled or misplaced item exceeds.

    A number relative to the running magnitude: the ``roundings`` of the operator's row. inf where it has none.
    """
    roundings = operator_named(op).roundings
    return roundings(length) * 2.0**-24 if roundings else math.inf
