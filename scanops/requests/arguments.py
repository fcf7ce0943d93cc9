"""The arguments of public functions: names of operators, gates of recurrences, and the call that they make."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.compiler import is_compiling

from scanops.codegen.operators import OPERATORS
from scanops.errors import UnsupportedRequest
from scanops.requests.call import Call
from scanops.requests.checks import check_readable, check_tensor, number_tensor, whole_dim
from scanops.requests.constants import make_constant
from scanops.requests.packed_sequences import is_jagged
from scanops.requests.promotion import multiplies, promote_scalars, result_dtype, scalar_dtype
from scanops.requests.request import Inputs, Tensors
from scanops.requests.segments import check_carry_in
from scanops.requests.torch_state import autocast, is_followed, is_traced, runs_kernels
from scanops.torch_private import at_tracing


def resolve_call(call: Call, given: Inputs, outs: Tensors) -> tuple[Call, bool]:
    """Return a public function's call with what follows from its tensors, and whether it is eager code for kernels.

    Nothing is checked yet. ``call.per_segment`` says that carry-outs of segments are asked for; carry-ins may be, too.
    """
    rank = getattr(given.x, "ndim", 0)
    if given.offsets is not None and given.initial is not None and rank > 0:
        check_carry_in(call.op, given.initial, rank)
        call = replace(call, per_segment=True)
    if type(call.dim) is not int:
        call = replace(call, dim=whole_dim(call.dim))
    eager = runs_kernels(given.flat)
    plain = all([out is None for out in outs])
    if torch.is_autocast_enabled("cuda") and plain and call.dtype is None and (eager or is_followed(given.flat)):
        call = replace(call, dtype=autocast(call.op, given.x))
    return call, eager


def plain_name(op: Any) -> Any:
    """Return the name of an operator; what is none is left to the checks.

    Raises UnsupportedRequest for an operator of two tensors or with two results.
    """
    if type(op) is str and not _is_plain(op):
        plain = [name for name in tuple(OPERATORS) if _is_plain(name)]
        raise UnsupportedRequest(
            "scan: op must be an operator of one tensor with one result",
            allowed=", ".join(map(repr, plain)),
            value=f"op={op!r}",
            hint=f"call scanops.{OPERATORS[op].function}",
        )
    return op


@at_tracing
def _is_plain(op: str) -> bool:
    """Whether an operator has one input and one result; also True for an unknown name, which the checks refuse."""
    row = OPERATORS.get(op)
    return row is None or not (row.indices or row.gated)


def prepare_recurrence(
    a: Any,
    b: Any,
    out: Any,
    *,
    mask: Any = None,
    dtype: torch.dtype | None = None,
    accumulate: Any = None,
    **others: object,
) -> tuple[Any, Any, torch.dtype | None]:
    """Return b as a view with the shape that a and b broadcast to, the gate as a tensor, and the dtype of the result.

    The latter is None for the default. A number promotes beside b as in ``a * b``. ``others``: keywords of
    ``linear_scan`` that have no part in it.
    """
    kind = next((kind for kind in (bool, int, float, complex) if isinstance(a, kind)), None)
    if kind is not None:
        check_tensor("linear_scan", "b", b)
        check_readable("linear_scan", "b", b)
        a, dtype = _gate_of_number(a, kind, b, mask, dtype, accumulate, out)
    if type(b) is not torch.Tensor and is_jagged(b):
        return b, a, dtype  # its gates are checked with it
    for name, each in (("a", a), ("b", b)):
        check_tensor("linear_scan", name, each)
        check_readable("linear_scan", name, each)
    symbolic = is_compiling() or is_traced()  # sizes may be unknown symbols, which must not be compared
    if not symbolic and a.shape == b.shape:
        return b, a, dtype
    if b.ndim == 0 < a.ndim:
        weights = mask if isinstance(mask, torch.Tensor) else None
        call, (b, _, _) = promote_scalars(Call("linear", 0, dtype=dtype, accumulate=accumulate), (b, weights, a))
        dtype = dtype if out is not None else call.dtype
    try:
        whole: torch.Tensor = torch.broadcast_tensors(b, a)[0]  # type: ignore[no-untyped-call]
    except RuntimeError as problem:
        raise UnsupportedRequest(
            "linear_scan: a and b must broadcast",
            allowed="each dimension of a equal to that of b, or one of them 1",
            value=f"a.shape={tuple(a.shape)}, b.shape={tuple(b.shape)}",
            hint="reshape a: a gate for each row of b[rows, n] is a[rows, 1]",
        ) from problem
    return b if not symbolic and b.shape == whole.shape else whole, a, dtype


def _gate_of_number(
    a: Any, kind: type, b: torch.Tensor, mask: Any, dtype: torch.dtype | None, accumulate: Any, out: Any
) -> tuple[torch.Tensor, torch.dtype | None]:
    """Return a gate that is a Python number as a tensor of no dimension, and the dtype of the result."""
    term = (_beside_number(b.dtype, kind),)
    weights = (mask.dtype,) if isinstance(mask, torch.Tensor) and multiplies(mask, "linear") else ()
    whole, alone = (term, weights) if weights and mask.ndim == 0 else ((*term, *weights), ())
    result = result_dtype("linear", whole, alone)
    if result is None:  # which the checks refuse
        whole, alone = term, ()
    wide = scalar_dtype("linear", dtype, accumulate, whole, alone)
    if is_compiling():  # the number may be a symbol, which cannot be checked
        gate = torch.full((), a, dtype=wide, device=b.device)
    else:
        made = partial(number_tensor, "linear_scan", "a", a, wide, b.device)
        gate = make_constant(made, b.device, repr(kind(a)), wide)
    return gate, result if dtype is None and out is None else dtype


@at_tracing
def _beside_number(dtype: torch.dtype, kind: type) -> torch.dtype:
    """torch.result_type of a tensor and a Python number of a kind."""
    return torch.result_type(torch.empty(1, dtype=dtype, device="meta"), kind(1))
