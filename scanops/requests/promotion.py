"""The promotion rule: numbers and tensors of no dimension act in the accumulator's precision; only results are rounded.

The dtype of a result is that of torch's operators: of the tensors that have dimensions, unless a number or a tensor of
no dimension is of a higher kind, as a float beside integers is. Its value, unlike theirs, is never rounded to that
dtype: a gate of 0.999 beside bfloat16 is 0.999, not 1, and beside float32 it has the bits of the accumulator.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from scanops.codegen.dtypes import DTYPES, default_result, dtype_named
from scanops.codegen.operators import OPERATORS
from scanops.requests.call import Call
from scanops.requests.checks import allows_integers
from scanops.requests.torch_state import HALVES
from scanops.torch_private import at_tracing

PromotedOperands = tuple[Tensor | None, ...]


def promote_scalars(
    call: Call, operands: PromotedOperands, scalars: Sequence[bool] | None = None
) -> tuple[Call, PromotedOperands]:
    """Return the call with the dtype of its result, and x, mask and gate, where some have no dimension and others do.

    ``scalars``: which have none; by default those without one. Operands that torch promotes with nothing are returned
    as they are, for ``ScanSpec`` to refuse.
    """
    x, mask, gate = operands
    weights = mask if mask is not None and multiplies(mask, call.op) else None
    read = (x, weights, gate)
    flat = scalars or [each is not None and each.ndim == 0 for each in read]
    dtypes = [(each.dtype, single) for each, single in zip(read, flat, strict=True) if each is not None]
    whole = tuple([dtype for dtype, single in dtypes if not single])
    alone = tuple([dtype for dtype, single in dtypes if single])
    if not whole or not alone:
        return call, operands
    result = result_dtype(call.op, whole, alone)
    if result is None:
        return call, operands
    wide = scalar_dtype(call.op, call.dtype, call.accumulate, whole, alone)
    mixed = len({*whole, *alone}) > 1
    found = [
        each if each is None else _convert(each, wide if single else torch.float32, single, mixed)
        for each, single in zip(read, flat, strict=True)
    ]
    call = call if call.dtype is not None else replace(call, dtype=result)
    return call, (found[0], mask if weights is None else found[1], found[2])


def _convert(operand: Tensor, wide: torch.dtype, single: bool, mixed: bool) -> Tensor:
    """Return an operand as kernels read it beside others: 8-bit floats, which torch promotes with nothing, are wide."""
    dtype = operand.dtype
    if _is_tiny(dtype):
        return operand.to(wide) if mixed else operand
    if not single or dtype == wide or (dtype in HALVES and wide == torch.float32):  # which kernels read as float32
        return operand
    return operand.to(wide)


def _is_tiny(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize == 1


def multiplies(mask: Tensor, op: str) -> bool:
    """Whether a mask is a factor, not a selection, and not one of integers that the operator refuses."""
    return mask.is_floating_point() or mask.is_complex() or (mask.dtype != torch.bool and allows_integers(op))


Dtypes = tuple[torch.dtype, ...]


@at_tracing
def result_dtype(op: str, whole: Dtypes, alone: Dtypes) -> torch.dtype | None:
    """Return the default dtype of a scan's result; None where torch has no promotion of the operands.

    ``whole``: the dtypes of operands that have dimensions, ``alone`` those of the others.
    """
    term = _promote(whole, alone)
    return None if term is None else _default(op, term)


@at_tracing
def scalar_dtype(op: str, dtype: object, accumulate: object, whole: Dtypes, alone: Dtypes) -> torch.dtype:
    """Return the dtype in which numbers and tensors of no dimension act: the accumulator's, or a higher kind.

    ``dtype`` and ``accumulate`` are those of the call; what is none is refused elsewhere.
    """
    term = _promote(whole, alone) or whole[0]
    name = str(accumulate).removeprefix("torch.")
    asked = getattr(torch, name) if name in DTYPES else dtype
    asked = asked if isinstance(asked, torch.dtype) else _default(op, term)
    try:
        return torch.promote_types(_widen(term), _widen(asked))
    except RuntimeError:  # unsigned integers, which wrap around alike in any width
        return term


def _default(op: str, term: torch.dtype) -> torch.dtype:
    return getattr(torch, default_result(OPERATORS[op].gives, dtype_named(term)).name)  # type: ignore[no-any-return]


def _widen(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALVES or _is_tiny(dtype) else dtype


@functools.lru_cache(maxsize=1024)
def _promote(whole: Dtypes, alone: Dtypes) -> torch.dtype | None:
    """torch.result_type of tensors of these dtypes; None where there is none that scans read."""
    try:
        term = functools.reduce(torch.promote_types, whole)
        for each in alone:
            one, number = torch.empty(1, dtype=term, device="meta"), torch.empty((), dtype=each, device="meta")
            term = torch.result_type(one, number)
    except RuntimeError:
        return None
    return term if str(term).removeprefix("torch.") in DTYPES else None
