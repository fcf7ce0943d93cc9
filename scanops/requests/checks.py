"""Checks of the arguments of a call. Each raises a typed error whose first line names function, argument and value."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Mapping
from typing import Any

import torch

from scanops.codegen.dtypes import DTYPES
from scanops.codegen.operators import OPERATORS
from scanops.errors import DimensionOutOfRange, UnsupportedRequest, format_value
from scanops.requests.geometry import overlaps_itself, span_of
from scanops.requests.torch_state import is_recorded, is_traced, stretches
from scanops.torch_private import at_tracing


def check_tensor(who: str, role: str, value: object) -> None:
    """Raise unless ``value`` is a strided tensor; ``who`` names the public function and ``role`` the argument."""
    if not isinstance(value, torch.Tensor):
        proxy = hasattr(type(value), "__torch_function__")  # of torch.fx, which traces torch's own functions only
        raise UnsupportedRequest(
            f"{who}: {role} must be a tensor",
            allowed="a torch.Tensor" + (", or a Python number" if role in ("initial", "a") else ""),
            value=f"{role}={format_value(value)}",
            hint="pass a function of your module to torch.fx.wrap and call that, or use torch.export"
            if proxy
            else f"pass a tensor as {role}"
            if value is None
            else f"pass torch.as_tensor({role})",
        )
    if torch.compiler.is_compiling():
        return  # checked where the operator runs: in the backward of a function a compiler tells no layout
    if value.is_nested:
        raise UnsupportedRequest(
            f"{who}: {role} must not be nested",
            allowed="a tensor whose lines have one length; lines of several lengths lie packed one after another",
            value=f"{role}.is_nested=True, {role}.layout={value.layout}",
            hint=f"scan {role}.values() along its first dimension, with offsets={role}.offsets()",
        )
    if value.layout != torch.strided:
        raise UnsupportedRequest(
            f"{who}: {role} must be a strided tensor",
            allowed="layout torch.strided",
            value=f"{role}.layout={value.layout}",
            hint=f"call {role}.to_dense() first",
        )


def whole_dim(dim: Any) -> Any:
    """Return a dimension given as numpy's integer or as a tensor as an int, as torch takes it; others as they are."""
    if type(dim) in (int, bool) or torch.compiler.is_compiling():
        return dim
    try:
        return operator.index(dim)
    except (TypeError, ValueError, RuntimeError):  # what a tensor of several items raises
        return dim


def check_dim(who: str, shape: torch.Size, dim: object) -> int:
    """Return the scanned dimension of x, which has this shape, counted from 0."""
    rank, dim = max(len(shape), 1), whole_dim(dim)
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise UnsupportedRequest(
            f"{who}: dim must be an int",
            allowed=f"an int from {-rank} to {rank - 1}",
            value=f"dim={format_value(dim)}",
            hint="pass one dimension as an int",
        )
    if not -rank <= dim < rank:
        raise DimensionOutOfRange(
            f"{who}: dim must be from {-rank} to {rank - 1}",
            allowed=f"{-rank} to {rank - 1}, for a tensor of rank {len(shape)}",
            value=f"dim={format_value(dim)}, x.shape={tuple(shape)}",
            hint="pass dim=-1 for the last dimension",
        )
    return dim % rank


def check_operand(
    who: str, role: str, tensor: object, x: torch.Tensor, shape: torch.Size | None = None, of: str = "x.shape"
) -> torch.Tensor:
    """Return a tensor that has, or broadcasts to, one item for each item of x, or one for each place of ``shape``."""
    check_tensor(who, role, tensor)
    assert isinstance(tensor, torch.Tensor)
    check_device(who, role, tensor, x)
    check_readable(who, role, tensor)
    given, target = tuple(tensor.shape), tuple(x.shape if shape is None else shape)
    pairs = zip(reversed(given), reversed(target), strict=False)
    if len(given) > len(target) or not all(stretches(m, n) for m, n in pairs):
        raise UnsupportedRequest(
            f"{who}: {role} must broadcast to {of}",
            allowed=f"each dimension equal to that of {of} or 1: {target}",
            value=f"{role}.shape={given}",
            hint=f"pass {role}.squeeze({role_dim})"
            if (role_dim := _surplus(given, target)) is not None
            else f"expand or reshape {role}; a broadcast or strided tensor is not copied",
        )
    return tensor


def _surplus(given: tuple[int, ...], target: tuple[int, ...]) -> int | None:
    """Return the dimension of size 1 without which a shape would be the one that is asked for, or None."""
    found = (dim for dim, size in enumerate(given) if size == 1 and given[:dim] + given[dim + 1 :] == target)
    return next(found, None)


def check_readable(who: str, role: str, tensor: torch.Tensor) -> None:
    """Raise for a dtype that no scan reads, such as a quantised, sub-byte or bits dtype."""
    if str(tensor.dtype).removeprefix("torch.") not in DTYPES:
        raise UnsupportedRequest(
            f"{who}: {role} must have a dtype that scans read",
            allowed=", ".join(DTYPES),
            value=f"{role}.dtype={tensor.dtype}",
            hint=f"pass {role}.dequantize()"
            if tensor.is_quantized
            else "convert the tensor first, for example with x.to(torch.float32)",
        )


def check_initial(who: str, initial: object, x: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Return the carry-in as a tensor of ``dtype``: one number for all, or one for each line or segment."""
    if isinstance(initial, bool | int | float | complex):
        return number_tensor(who, "initial", initial, dtype, x.device)
    initial = check_operand(
        who,
        "initial",
        initial,
        x,
        shape,
        "x.shape without dim" if len(shape) < x.ndim else "x.shape with the segments in place of dim",
    )
    if not _converts(initial.dtype, dtype):
        raise _inexact(who, "initial", f"a dtype that converts to {dtype}", f"initial.dtype={initial.dtype}", dtype)
    return initial.to(dtype, memory_format=torch.contiguous_format)  # one copy at most, for dtype and layout


@at_tracing
def allows_integers(op: str) -> bool:
    """Whether masks of integers go with an operator; also True for an unknown name, which other checks refuse."""
    row = OPERATORS.get(op) if isinstance(op, str) else None
    return row is None or row.integer_masks


def number_tensor(who: str, role: str, number: complex, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a Python number as a tensor of no dimension; raise where ``dtype`` does not hold it."""
    if not _holds(number, dtype):
        raise _inexact(who, role, _bounds(dtype), f"{role}={format_value(number)}", dtype)
    if isinstance(number, int) and (dtype.is_floating_point or dtype.is_complex):
        number = float(number)  # torch takes no int of more than 64 bits
    return torch.full((), number, dtype=dtype, device=device)


def scalar_of(who: str, number: torch.types.Number) -> torch.types.Number:
    """Return a Python number as an argument of ``torch.library``: an int of more than 64 bits as a float."""
    if type(number) is not int or -(2**63) <= number < 2**64:
        return number
    if abs(number) > sys.float_info.max:
        raise _inexact(
            who, "initial", "a number that a floating dtype holds", f"initial={format_value(number)}", torch.float64
        )
    return float(number)


@at_tracing
def _converts(given: torch.dtype, dtype: torch.dtype) -> bool:
    """torch.can_cast, which torch.compile does not follow."""
    return torch.can_cast(given, dtype)


def _holds(number: complex, dtype: torch.dtype) -> bool:
    """Whether a number has a kind, by torch's rule for numbers beside a tensor, and a size that a dtype holds.

    NaN and infinities are of every floating dtype's size.
    """
    if isinstance(number, bool):
        return True
    if not (dtype.is_floating_point or dtype.is_complex):
        whole = isinstance(number, int) and dtype != torch.bool
        return whole and torch.iinfo(dtype).min <= number.real <= torch.iinfo(dtype).max
    highest = torch.finfo(dtype).max
    fits = all(part != part or abs(part) in (math.inf, min(abs(part), highest)) for part in (number.real, number.imag))
    return fits and (dtype.is_complex or not isinstance(number, complex))


def _bounds(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "True or False"
    if dtype.is_floating_point or dtype.is_complex:
        parts = "real and imaginary part" if dtype.is_complex else "a real number"
        return f"{parts} of at most {torch.finfo(dtype).max:g} in absolute value, infinite or NaN"
    return f"an int from {torch.iinfo(dtype).min} to {torch.iinfo(dtype).max}"


def _inexact(who: str, role: str, allowed: str, value: str, dtype: torch.dtype) -> UnsupportedRequest:
    of = "the carry's dtype" if role == "initial" else "the dtype"
    return UnsupportedRequest(
        f"{who}: {role} must fit {of} {dtype}",
        allowed=allowed,
        value=value,
        hint=f"convert it first, for example with torch.as_tensor({role}, dtype={dtype})",
    )


def check_complete(who: str, x: torch.Tensor, **others: bool) -> None:
    """Raise unless a complete scan of x is possible; ``others``: what else the call asks for, all incompatible."""
    wrong = [name for name, given in others.items() if given]
    if wrong or x.ndim == 0:
        raise UnsupportedRequest(
            f"{who}: complete=True does not go with {wrong[0] if wrong else 'a tensor of no dimension'}",
            allowed=f"tensors of one dimension or more, and none of {', '.join(others)}",
            value=", ".join([f"x of shape {tuple(x.shape)}", *wrong]),
            hint="leave it out: the last complete result is the carry-out" if wrong else "pass x.reshape(1)",
        )


def check_device(who: str, role: str, tensor: torch.Tensor, x: torch.Tensor) -> None:
    """Raise unless ``tensor`` is on the device of x, which linear_scan calls b."""
    if tensor.device != x.device:
        raise UnsupportedRequest(
            f"{who}: {role} must be on {'b' if who == 'linear_scan' else 'x'}'s device",
            allowed=str(x.device),
            value=f"{role}.device={tensor.device}",
            hint=f"move it: {role}.to({str(x.device)!r})",
        )


def check_out(
    who: str,
    name: str,
    out: torch.Tensor,
    x: torch.Tensor,
    reads: Mapping[str, torch.Tensor | None],
    dtype: torch.dtype | None,
    shape: torch.Size,
) -> torch.dtype:
    """Return the result's dtype, that of ``out``; raise where ``out`` cannot take a result of the tensors in ``reads``.

    ``dtype`` is the one asked for, None for any; ``shape`` is that of the result.
    """
    check_tensor(who, name, out)
    check_device(who, name, out, x)
    if out.shape != shape:
        wanted, allowed, made = "x's shape", f"x.shape={tuple(x.shape)}", "torch.empty_like(x)"
        if shape != x.shape:  # of a complete scan
            wanted += ", and one more along dim"
            allowed, made = f"{tuple(shape)}, as the results are complete", f"x.new_empty({tuple(shape)})"
        raise UnsupportedRequest(
            f"{who}: {name} must have {wanted}",
            allowed=allowed,
            value=f"{name}.shape={tuple(out.shape)}",
            hint=f"pass out={made}",
        )
    check_dtype(who, name, out, dtype)
    recorded = torch.is_grad_enabled() if torch.compiler.is_compiling() else is_recorded()
    if recorded and any(t is not None and t.requires_grad for t in (*reads.values(), out)):
        raise UnsupportedRequest(
            f"{who}: out= takes no tensors that require gradients",
            allowed="out= without gradients, as in torch",
            value="requires_grad=True",
            hint="omit out, or call it under torch.no_grad()",
        )
    place = span_of(out)  # None: out is copied into afterwards
    if place is not None and out.is_inference() and not torch.is_inference_mode_enabled():
        raise UnsupportedRequest(
            f"{who}: {name} must not be an inference tensor outside inference mode",
            allowed=f"an {name} made outside torch.inference_mode(), or the call inside, as in torch",
            value=f"{name}.is_inference()=True",
            hint=f"pass {name}.clone(), which is a normal tensor",
        )
    if any(stride == 0 and size > 1 for size, stride in zip(out.shape, out.stride(), strict=True)) or (
        place is not None and not is_traced() and overlaps_itself(out)
    ):
        raise UnsupportedRequest(
            f"{who}: items of {name} must not share memory",
            allowed="an out with one place in memory for each item",
            value=f"{name}.shape={tuple(out.shape)}, {name}.stride()={out.stride()}",
            hint="pass out=torch.empty_like(x), not an expanded tensor",
        )
    for role, tensor in reads.items():
        read = None if tensor is None else span_of(tensor)
        if tensor is None or read is None or place is None or read[1] < place[0] or place[1] < read[0]:
            continue
        # In place: a thread has read its items before it writes them, and no other thread reads them. An out that is
        # not contiguous is written from a copy.
        same = read[0] == place[0] and (tensor.dtype, tensor.stride()) == (out.dtype, out.stride())
        if role == "out" or tensor.shape != out.shape or not same:
            raise UnsupportedRequest(
                f"{who}: {name} must not share memory with {role}",
                allowed="separate memory, or for x exactly the same tensor, which is scanned in place",
                value=f"{name} at {place}, {role} at {read} (byte addresses)",
                hint=f"pass an {name} of its own, or {role}.clone()",
            )
    return out.dtype


def check_dtype(who: str, name: str, out: torch.Tensor, dtype: torch.dtype | None) -> None:
    """Raise unless the result's dtype is that of ``out``: nothing converts it; None allows any."""
    if dtype is not None and out.dtype != dtype:
        raise UnsupportedRequest(
            f"{who}: {name} must have dtype {dtype}",
            allowed=f"{name} of dtype {dtype}",
            value=f"{name}.dtype={out.dtype}",
            hint=f"pass {name}=torch.empty_like(x, dtype={dtype})",
        )
