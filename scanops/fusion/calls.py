"""The call of ``scanops.scan`` with several tensors, ``map`` or ``then``: checked, traced and run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from scanops.codegen.fusion.fusion import MOST_OPERANDS
from scanops.codegen.operators import find_operator
from scanops.codegen.operators.recurrences import EXPRESSIONS
from scanops.dtensors import run_call
from scanops.errors import UnsupportedRequest, format_value
from scanops.fusion.functions import Sums, carry_of, find_fusion, raise_while_tracing, text_of
from scanops.fusion.operators import FieldOperator
from scanops.fusion.trace_keys import TraceKey, key_of
from scanops.ops import schema
from scanops.ops.dispatch import run
from scanops.ops.native_calls import register_functions
from scanops.requests import checks
from scanops.requests.call import Call
from scanops.requests.constants import make_constant
from scanops.requests.fused import broadcast_shape
from scanops.requests.placement import OPEN
from scanops.requests.request import Inputs, check_fused
from scanops.requests.segments import check_offsets, check_starts, flags_along, shift
from scanops.requests.torch_state import is_symbol

Function = Callable[..., Any]
Tensors = tuple[torch.Tensor, ...]


def scan_fused(
    asked: Call,
    given: Any,
    *,
    map: Function | None,
    then: Function | None,
    sum: Any,
    finish: Function | None,
    out: Any,
) -> torch.Tensor | Tensors:
    """Return what ``scanops.scan`` returns for a tuple of tensors, or with ``map``, ``then`` or ``sum``.

    Nothing is checked yet: ``asked`` and ``given``, a call and its ``Inputs``, have what the user gave, such as several
    tensors as ``given.x``, and an operator of the user's as ``asked.op``.
    """
    inputs = tuple(given.x) if isinstance(given.x, tuple | list) else (given.x,)
    mask, starts, offsets, initial = given.mask, given.starts, given.offsets, given.initial
    dim, reverse, exclusive, final, dtype = asked.dim, asked.reverse, asked.exclusive, asked.final, asked.dtype
    op: Any = asked.op
    own = op if isinstance(op, FieldOperator) else None
    op = op if own is None else EXPRESSIONS.name
    tensors = inputs if mask is None else (*inputs, mask)
    if OPEN:
        _refuse_sharded(dim, tensors)
    others: dict[str, Any] = {"initial": initial, "return_final": "segments" if asked.per_segment else final}
    others |= {"complete": asked.complete, "out": out, "segment_starts": starts, "offsets": offsets}
    others |= {"chunk": asked.chunk, "accumulate": asked.accumulate}
    wrong = [name for name, value in others.items() if value is not None and value is not False]
    if own is None and not asked.per_segment:
        wrong = [name for name in wrong if name not in ("initial", "return_final", "segment_starts", "offsets")]
    _check(inputs, wrong and (wrong[0], others[wrong[0]]), (map, then, finish), mask)
    if sum is not None or finish is not None:
        _check_sums(op, sum is not None)
    if own is None:
        _check_operator(op, len(inputs), map is not None, then is not None)
    shape, flags = _shape(tensors, inputs), None
    if offsets is not None and initial is not None:  # which is of each segment, not of the line
        raise UnsupportedRequest(
            "scan: initial beside offsets does not go with map, then or several tensors",
            allowed="initial beside segment_starts, which continues lines, or offsets alone",
            value=f"initial={format_value(initial)}",
            hint="pass segment_starts in place of offsets, or leave initial out",
        )
    if sum is not None and (starts is not None or offsets is not None):
        flags = _flag_segments(starts, offsets, tensors[0].expand(shape), dim, reverse)
        tensors = (*tensors, flags)
    kinds = tuple([(each.dtype, each.ndim == 0) for each in tensors])
    if is_dynamo_compiling():  # which makes a kernel of the operator's text
        text = text_of(
            map,
            then,
            op if own is None else own.handle,
            kinds,
            mask is not None,
            dtype,
            finish,
            sum is not None,
            (flags is not None, exclusive),
        )
        dim = checks.check_dim("scan", shape, dim)
        any_length = len(shape) > 0 and is_symbol(shape[dim])
        dims = [] if sum is None else [int(each) for each in (sum if isinstance(sum, tuple | list) else (sum,))]
        start: Any = initial
        if initial is not None and not isinstance(initial, torch.Tensor):
            carry, device = getattr(torch, carry_of(text)), tensors[0].device
            start = make_constant(
                partial(torch.full, (), start, dtype=carry, device=device), device, repr(start), carry
            )
        x, *further = tensors
        segments = (None, None) if flags is not None else (starts, offsets)
        settled: dict[str, Any] = {"reverse": reverse, "exclusive": exclusive, "any_length": any_length}
        settled |= {"final": bool(final), "summed": dims}
        found = tuple(schema.FUSED(x, None, None, *segments, start, further, text, dim, op, **settled))
        return _arrange(found, bool(final))
    Call(op, dim, reverse, exclusive, final, dtype).check_options()
    sums = Sums(sum is not None, finish, flags is not None, exclusive)
    row = own or find_operator(op)
    traced = (map, then, row, kinds, mask is not None, dtype)
    functions = (map, then, finish, *(() if own is None else own.functions))
    keys = _find_keys(functions)
    trace = None if keys is None else (*keys, None if own is None else own.trace_signature)
    fusion, is_kept = find_fusion(trace, lambda: _find_keys(functions) == keys, *traced, sums=sums)
    x, *further = tensors
    read = Inputs(x, initial=initial, further=tuple(further))
    read = read if flags is not None else read._replace(starts=starts, offsets=offsets)
    summed = () if sum is None else sum
    call, read = check_fused(Call(op, dim, reverse, exclusive, final, dtype, summed=summed, fusion=fusion), read)
    found = run_call(call, read)
    if keys is not None and is_kept and flags is None and not (call.final and len(found) > 2):
        options = {"op": asked.op, "dim": dim, "reverse": reverse, "exclusive": exclusive, "final": final}
        options |= {"dtype": dtype, "map": map, "then": then, "sum": sum, "finish": finish}
        known: list[Any] = [(each, key) for each, key in zip(functions[:3], keys, strict=False) if key is not None]
        if own is not None:
            parts = zip(own.functions, keys[3:], strict=True)
            known.append((own, (type(own), own, *(part for part in parts if part[0] is not None))))
        register_functions(call, read, options, known, run, has_mask=mask is not None)
    if (
        call.final and reverse and flags is not None and starts is not None
    ):  # a segment that ends with the line carries nothing out
        ends = starts.expand(shape).select(call.dim, 0)
        found = (*found[:-1], torch.where(ends, torch.zeros_like(found[-1]), found[-1]))
    return _arrange(found, bool(final))


def _flag_segments(starts: Any, offsets: Any, x: torch.Tensor, dim: Any, reverse: bool) -> torch.Tensor:
    """Return head flags in the order of the scan: where an item has none before it in its own segment."""
    dim = checks.check_dim("scan", x.shape, dim)
    if starts is not None:
        starts = check_starts("scan", starts, offsets, x)
    else:
        offsets = check_offsets("scan", offsets, x, dim)
    line = x[tuple(slice(None) if d == dim else slice(1) for d in range(x.ndim))]
    flags = starts if starts is not None else flags_along(None, offsets, line, dim)
    assert flags is not None
    flags = flags.reshape([1] * (x.ndim - flags.ndim) + list(flags.shape))
    if not reverse:
        return flags
    return shift(flags.expand([size if d == dim else -1 for d, size in enumerate(x.shape)]), dim, False, ahead=True)


def _arrange(found: Tensors, final: bool) -> torch.Tensor | Tensors:
    """Return the results as a call returns them: one or a tuple, in a pair with the carry-out if it is asked for."""
    results = found[: len(found) - final]
    y = results[0] if len(results) == 1 else results
    return (y, found[-1]) if final else y  # type: ignore[return-value]  # of several results a pair with these


def _refuse_sharded(dim: Any, tensors: Tensors) -> None:
    """Raise where an open block of ``scanops.distributed.sharded`` shards the dimension."""
    if OPEN[-1].covers(dim, max(getattr(each, "ndim", 0) for each in tensors)):
        raise UnsupportedRequest(
            "scan: a scan with functions or several tensors is not for sharded dimensions",
            allowed="scans of one tensor and linear_scan inside scanops.distributed.sharded",
            value=f"dim={dim}",
            hint="compute the elements first, or call it outside of the block",
        )


def _find_keys(functions: tuple[Any, ...]) -> TraceKey | None:
    """Return the keys of functions, None for one that is None; None if one of them has no key."""
    keys = [None if each is None else key_of(each) for each in functions]
    is_known = all([key is not None or each is None for key, each in zip(keys, functions, strict=True)])
    return tuple(keys) if is_known else None


@raise_while_tracing
def _check_sums(op: str, summed: bool) -> str:
    """Raise where ``finish`` has no sums, or the operator is not that of a linear recurrence."""
    if not summed or op != "linear":
        raise UnsupportedRequest(
            "scan: sum is of the results of 'linear'" if summed else "scan: finish is a function of what sum adds up",
            allowed="sum=d and finish beside op='linear'",
            value=f"op={op!r}" if summed else "finish without sum",
            hint="call .sum(d) of the result" if summed else "pass sum=d, or make the function a part of then",
        )
    return op


def _check(inputs: tuple[Any, ...], wrong: Any, functions: tuple[Any, ...], mask: Any) -> None:
    """Raise unless all arguments are legal; ``wrong``: a name and a value that do not go with them, if there are any.

    What the operator asks of them is checked by ``_check_operator``.
    """
    if wrong:
        raise UnsupportedRequest(
            f"scan: {wrong[0]} does not go with map, then, several tensors or an operator of your own",
            allowed="mask, reverse, exclusive, dtype; initial, return_final and segments with an operator of the table",
            value=f"{wrong[0]}={format_value(wrong[1])}",
            hint="give the operator a field of head flags, at which its combine starts again"
            if wrong[0] in ("offsets", "segment_starts")
            else "call the function first, and scan its result",
        )
    for name, function in zip(("map", "then", "finish"), functions, strict=True):
        if function is not None and not callable(function):
            raise UnsupportedRequest(
                f"scan: {name} must be a function",
                allowed="a function of the tensors" + " and, first, of the result" * (name != "map"),
                value=f"{name}={format_value(function)}",
                hint=f"pass {name}=lambda x: torch.exp(x), for example",
            )
    count, most = len(inputs) + (mask is not None), MOST_OPERANDS
    if not 1 <= count <= most:
        raise UnsupportedRequest(
            f"scan: a kernel reads 1 to {most} tensors",
            allowed=f"1 to {most} tensors, the mask included",
            value=f"{count} tensors",
            hint="combine some of them before the call",
        )
    for place, each in enumerate((*inputs, *(() if mask is None else (mask,)))):
        name = "mask" if place == len(inputs) else f"tensor {place}"
        checks.check_tensor("scan", name, each)
        checks.check_device("scan", name, each, inputs[0])
        checks.check_readable("scan", name, each)
        legal = name != "mask" or each.dtype == torch.bool
        if each.is_complex() or each.dtype in _STORED_ONLY or not legal:
            raise UnsupportedRequest(
                f"scan: {name} must be {'bool' if not legal else 'real'} beside map or then",
                allowed="a bool mask" if not legal else "bool, int8 to int64, uint8 and floating dtypes",
                value=f"{name}.dtype={each.dtype}",
                hint="pass mask.bool(), which selects; to multiply, use map"
                if not legal
                else "convert the tensor first",
            )


def _shape(tensors: Tensors, inputs: Tensors) -> torch.Size:
    """Return the shape that the tensors broadcast to: ``inputs``, and a mask if there is one more."""
    try:
        return broadcast_shape(tensors)
    except RuntimeError as problem:
        shapes = ", ".join(str(tuple(each.shape)) for each in inputs)
        raise UnsupportedRequest(
            "scan: the tensors must broadcast",
            allowed="each dimension equal in all tensors, or 1",
            value=f"shapes {shapes}" + (f", mask {tuple(tensors[-1].shape)}" if len(tensors) > len(inputs) else ""),
            hint="reshape the tensors; views are not copied",
        ) from problem


@raise_while_tracing
def _check_operator(op: str, count: int, mapped: bool, made: bool) -> str:
    """Return the name of an operator of the table, or raise where it does not go with the tensors and functions."""
    row = find_operator(op)
    if row.indices or (row.gated and not mapped and count != 2):
        raise UnsupportedRequest(
            f"scan: {row.name!r} needs another call",
            allowed="operators with one result; for 'linear' a map to a pair of gate and value, or these two tensors",
            value=f"op={op!r}, {count} tensors",
            hint=f"call scanops.{row.function}" if row.indices else "pass map=lambda ...: (gate, value)",
        )
    if not (mapped or made or row.gated) and count > 1:
        raise UnsupportedRequest(
            "scan: several tensors need a map",
            allowed="map, which makes the elements of the tensors; or then, which reads those after the first",
            value=f"{count} tensors",
            hint="pass map=lambda x, y: x * y, for example",
        )
    return op


_STORED_ONLY = tuple(getattr(torch, name) for name in ("uint16", "uint32", "uint64"))
