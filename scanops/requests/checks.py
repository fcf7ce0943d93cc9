"""What may be wrong with the tensors of a call, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from scanops.errors import DimensionOutOfRange, UnsupportedRequest
from scanops.requests.surroundings import is_recorded, stretches

__all__ = [
    "check_apart",
    "check_device",
    "check_dim",
    "check_dtype",
    "check_flag",
    "check_initial",
    "check_operand",
    "check_out",
    "check_tensor",
    "check_values",
    "lent_kind",
    "line_shape",
]


def check_tensor(role: str, value: object) -> None:
    """An argument that is to be a tensor."""
    if not isinstance(value, torch.Tensor):
        proxy = hasattr(type(value), "__torch_function__")  # torch.fx's, which follows torch's own functions alone
        text = repr(value)
        raise UnsupportedRequest(
            f"a scan whose {role} is a {type(value).__name__}",
            allowed="a torch.Tensor" + (", or a number of Python's" if role == "initial" else ""),
            value=f"{role}={text if len(text) <= 200 else text[:200] + '...'}",  # a list may have millions of items
            hint="call it by a name of your module that torch.fx.wrap was told, or use torch.export"
            if proxy
            else f"pass torch.as_tensor({role})",
        )
    if torch.compiler.is_compiling():
        return  # until the operation is computed: in the backward of a function a compiler lets nobody ask for a layout
    if value.is_nested:
        raise UnsupportedRequest(
            f"a scan whose {role} is nested",
            allowed="a tensor whose lines are all of one length; those of several lie packed beside one another",
            value=f"{role}.is_nested=True, {role}.layout={value.layout}",
            hint=f"scan {role}.values() along its first dimension, with offsets={role}.offsets()",
        )
    if value.layout != torch.strided:
        raise UnsupportedRequest(
            f"a scan whose {role} is not strided",
            allowed="layout torch.strided",
            value=f"{role}.layout={value.layout}",
            hint=f"call {role}.to_dense() first",
        )


def check_dim(x: torch.Tensor, dim: object) -> int:
    """The dimension to scan along, counted from 0."""
    rank = max(x.ndim, 1)
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise UnsupportedRequest(
            "a scan along a dimension that is not a whole number",
            allowed=f"an int from {-rank} to {rank - 1}",
            value=f"dim={dim!r}",
            hint="pass one dimension as an int",
        )
    if not -rank <= dim < rank:
        raise DimensionOutOfRange(
            f"a scan along dimension {dim} of a tensor of rank {x.ndim}",
            allowed=f"{-rank} to {rank - 1}",
            value=f"dim={dim}, x.shape={tuple(x.shape)}",
            hint="pass dim=-1 for the last dimension",
        )
    return dim % rank


def check_dtype(dtype: object) -> None:
    """The dtype asked for."""
    if not (dtype is None or isinstance(dtype, torch.dtype)):
        raise UnsupportedRequest(
            f"a scan whose dtype is a {type(dtype).__name__}",
            allowed="a torch.dtype, or None for the one torch would choose",
            value=f"dtype={dtype!r}",
            hint="pass dtype=torch.float32 and the like",
        )


def check_flag(name: str, value: object) -> None:
    """An option that is on or off."""
    if type(value) is not bool:
        raise UnsupportedRequest(
            f"a scan whose {name} is a {type(value).__name__}",
            allowed="True or False",
            value=f"{name}={value!r}",
            hint=f"pass {name}=True or {name}=False",
        )


def check_operand(role: str, tensor: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A tensor that has an item for each of x's."""
    check_tensor(role, tensor)
    check_device(role, tensor, x)
    _check_expands(role, tensor, x.shape, "x")
    return tensor


def lent_kind(tensor: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A 0-d tensor beside one of more dimensions: by torch.result_type's rule it lends its kind, not its width.

    One item is converted, none copied.
    """
    return tensor.to(_promoted(x, tensor)) if tensor.ndim == 0 and x.ndim > 0 else tensor


def _promoted(x: torch.Tensor, tensor: torch.Tensor) -> torch.dtype:
    """What torch makes of x times a 0-d tensor; where it has no rule, that one's: the spec then says what is wrong."""
    try:
        return torch.result_type(x, tensor)
    except RuntimeError:
        return tensor.dtype


def line_shape(x: torch.Tensor, dim: int) -> torch.Size:
    """A place for each line: x's shape without the scanned dimension."""
    return torch.Size(size for d, size in enumerate(x.shape) if d != dim)


def check_initial(initial: object, x: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """What lines go on from, as a tensor of ``dtype``: a number for all lines, or a tensor with one for each."""
    if isinstance(initial, bool | int | float | complex):
        if not (_lends_kind(initial, dtype) and _holds(initial, dtype)):
            raise _inexact(f"a number that {dtype} holds: {_bounds(dtype)}", initial, dtype)
        if isinstance(initial, int) and (dtype.is_floating_point or dtype.is_complex):
            initial = float(initial)  # torch takes no int that 64 bits do not hold
        return torch.full((), initial, dtype=dtype, device=x.device)
    check_tensor("initial", initial)
    assert isinstance(initial, torch.Tensor)
    check_device("initial", initial, x)
    _check_expands("initial", initial, line_shape(x, dim), "x without dim")
    if not _converts(initial.dtype, dtype):
        raise _inexact(f"a dtype that converts to {dtype}", initial.dtype, dtype)
    return initial.to(dtype, memory_format=torch.contiguous_format)  # one copy for both, where one is needed


def _converts(given: torch.dtype, dtype: torch.dtype) -> bool:
    """torch.can_cast, which torch.compile does not follow."""
    if given.is_complex:
        return dtype.is_complex
    if given.is_floating_point:
        return dtype.is_floating_point or dtype.is_complex
    return given == torch.bool or dtype != torch.bool


def _lends_kind(number: complex, dtype: torch.dtype) -> bool:
    """Whether a dtype holds a Python number: torch's rule for numbers beside a tensor."""
    if isinstance(number, bool):
        return True
    if isinstance(number, int):
        return dtype != torch.bool
    return dtype.is_complex or (isinstance(number, float) and dtype.is_floating_point)


def _holds(number: complex, dtype: torch.dtype) -> bool:
    """Whether a number that lends its kind is within a dtype's bounds, NaN and infinities among a floating one's."""
    if dtype == torch.bool:
        return True
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.iinfo(dtype).min <= number.real <= torch.iinfo(dtype).max
    highest = torch.finfo(dtype).max
    return all(part != part or abs(part) in (math.inf, min(abs(part), highest)) for part in (number.real, number.imag))


def _bounds(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "True or False"
    if dtype.is_floating_point or dtype.is_complex:
        parts = "real and imaginary part" if dtype.is_complex else "a real number"
        return f"{parts} of at most {torch.finfo(dtype).max:g} in size, infinite or NaN"
    return f"an int from {torch.iinfo(dtype).min} to {torch.iinfo(dtype).max}"


def _inexact(allowed: str, value: object, dtype: torch.dtype) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"a scan to {dtype} that goes on from something else",
        allowed=allowed,
        value=f"initial: {value!r}",
        hint=f"convert it first, for example with torch.as_tensor(initial, dtype={dtype})",
    )


def _check_expands(role: str, tensor: torch.Tensor, shape: torch.Size, of: str) -> None:
    given, target = tuple(tensor.shape), tuple(shape)
    fits = len(given) <= len(target) and all(
        stretches(m, n) for m, n in zip(reversed(given), reversed(target), strict=False)
    )
    if not fits:
        raise UnsupportedRequest(
            f"a scan whose {role} has a shape that does not broadcast to that of {of}",
            allowed=f"each dimension equal to that of {of} or 1: {target}",
            value=f"{role}.shape={given}",
            hint=f"expand or reshape the {role}; it may be broadcast or strided without being copied",
        )


def check_device(role: str, tensor: torch.Tensor, x: torch.Tensor) -> None:
    """A tensor that is read beside x."""
    if tensor.device != x.device:
        raise UnsupportedRequest(
            f"a scan whose {role} is on another device than x",
            allowed=str(x.device),
            value=f"{role}.device={tensor.device}",
            hint=f"move it: {role}.to({str(x.device)!r})",
        )


def check_out(
    name: str, out: torch.Tensor, reads: Mapping[str, torch.Tensor | None], dtype: torch.dtype | None
) -> torch.dtype:
    """Where a result is to go, given what is read, and its dtype where that is told; its dtype."""
    x = reads["x"]
    assert x is not None
    check_tensor(name, out)
    check_device(name, out, x)
    if out.shape != x.shape:
        raise UnsupportedRequest(
            f"a scan into an {name} of another shape",
            allowed=f"x.shape={tuple(x.shape)}",
            value=f"{name}.shape={tuple(out.shape)}",
            hint="pass out=torch.empty_like(x)",
        )
    if dtype is not None and out.dtype != dtype:
        raise UnsupportedRequest(
            f"a scan with dtype={dtype} into an {name} of another dtype",
            allowed=f"{name} of dtype {dtype}" + (", or no dtype argument" if name == "out" else ""),
            value=f"{name}.dtype={out.dtype}",
            hint="leave dtype out: the result takes out's" if name == "out" else f"pass {name}.to({dtype})",
        )
    recorded = torch.is_grad_enabled() if torch.compiler.is_compiling() else is_recorded()
    if recorded and any(t is not None and t.requires_grad for t in (*reads.values(), out)):
        raise UnsupportedRequest(
            "a scan with out= of tensors that require gradients",
            allowed="out= without gradients, as in torch",
            value="requires_grad=True",
            hint="leave out= out, or call it under torch.no_grad()",
        )
    if _has_address(out) and out.is_inference() and not torch.is_inference_mode_enabled():
        raise UnsupportedRequest(
            f"a scan into an {name} of inference mode, outside of it",
            allowed=f"an {name} made outside torch.inference_mode(), or the call inside, as in torch",
            value=f"{name}.is_inference()=True",
            hint=f"pass {name}.clone(), which is a tensor as any other",
        )
    if any(stride == 0 and size > 1 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise UnsupportedRequest(
            f"a scan into an {name} whose items share memory",
            allowed="an out with a place for every item",
            value=f"{name}.stride()={out.stride()}",
            hint="pass out=torch.empty_like(x), not an expanded tensor",
        )
    for role, tensor in reads.items():
        if tensor is not None and _overlaps(tensor, out):
            raise _shared(name, out, role, tensor)
    return out.dtype


def check_values(out: torch.Tensor, dtype: str) -> None:
    """Where values beside indices are to go: they are items, and nothing converts them."""
    if out.dtype != getattr(torch, dtype):
        raise UnsupportedRequest(
            "values beside indices into an out of another dtype",
            allowed=f"out[0] of dtype torch.{dtype}: that of x, or of x * mask",
            value=f"out.dtype={out.dtype}",
            hint=f"pass torch.empty_like(x, dtype=torch.{dtype}), or convert x first",
        )


def check_apart(out: torch.Tensor, indices: torch.Tensor) -> None:
    """Two outputs."""
    if _meet(out, indices):
        raise _shared("indices", indices, "out", out)


def _shared(name: str, out: torch.Tensor, role: str, tensor: torch.Tensor) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"a scan into an {name} that shares memory with {role}",
        allowed="separate memory, or for x exactly the same tensor, which is scanned in place",
        value=f"{name} at {_span(out)}, {role} at {_span(tensor)} (byte addresses)",
        hint=f"pass an {name} of its own, or {role}.clone()",
    )


def _overlaps(tensor: torch.Tensor, out: torch.Tensor) -> bool:
    if not (_has_address(tensor) and _has_address(out)):
        return False  # what is computed is then copied into out
    same = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    # In place: a thread has read its items before it writes them, and no other thread reads them. An out that is not
    # contiguous is written from a copy.
    return same != (out.data_ptr(), out.dtype, out.shape, out.stride()) and _meet(tensor, out)


def _meet(tensor: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether some byte may belong to both."""
    if not (_has_address(tensor) and _has_address(out)):
        return False
    (first, last), (out_first, out_last) = _span(tensor), _span(out)
    return first <= out_last and out_first <= last


def _has_address(tensor: torch.Tensor) -> bool:
    """Whether there is memory to look at: not of compilers' tensors, batches, fake ones and other subclasses.

    Nor of what ``torch.func.functionalize`` wraps: it has a storage, at no address.
    """
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not torch.compiler.is_compiling()
    plain = plain and not torch._is_functional_tensor(tensor)
    return plain and tensor.device.type != "meta" and torch._C._has_storage(tensor) and tensor.numel() > 0


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First and last byte address a tensor touches."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size() - 1
