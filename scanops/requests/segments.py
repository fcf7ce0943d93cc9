"""Segments of a line, given by head flags or by offsets, and packed sequences: checks, flags, shifts, plain calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from scanops.codegen.operators import listed
from scanops.errors import UnsupportedRequest, shown
from scanops.requests.call import Call
from scanops.requests.checks import check_device, check_dim, check_operand, check_tensor, lent_kind
from scanops.requests.geometry import carry_shape
from scanops.torch_private import is_wrapped, ragged_dim, version_of, without_interpreters

_DTYPES = (torch.int32, torch.int64)
Outs = tuple[Tensor | None, ...]


class _Known(NamedTuple):
    """What is known of offsets that were checked."""

    offsets: weakref.ref[Tensor]
    state: tuple[int, int, int]  # version, address and the length of lines that they are valid for
    chunks: dict[int, Tensor]  # the offsets of their chunks by size
    chunk: int | None  # of chunks: their size, which no segment exceeds


# By id while they live: attributes are copied and saved with a tensor, torch's weak dictionary costs a call 1.5 us.
_CHECKED: dict[int, _Known] = {}


def check_starts(who: str, starts: Tensor, offsets: Tensor | None, x: Tensor) -> Tensor:
    """Return the head flags: bool, broadcasting to x's shape. Raises if both flags and offsets are given."""
    if offsets is not None:
        raise UnsupportedRequest(
            f"{who}: segment_starts and offsets are mutually exclusive",
            allowed="segment_starts or offsets",
            value=f"segment_starts={_described(starts)}, offsets={_described(offsets)}",
            hint="leave one of them out",
        )
    check_tensor(who, "segment_starts", starts)
    if starts.dtype != torch.bool:
        raise UnsupportedRequest(
            f"{who}: segment_starts must have dtype bool",
            allowed="torch.bool: True where a segment begins",
            value=f"segment_starts.dtype={starts.dtype}",
            hint="pass segment_starts.bool(); for the positions where segments begin there is offsets",
        )
    return check_operand(who, "segment_starts", starts, x)


def check_offsets(who: str, offsets: Tensor, x: Tensor, dim: int) -> Tensor:
    """Return the offsets of segments, contiguous: 0, then where each further one begins, and at last the length.

    The values are read once per tensor, which waits for the GPU, and again only after the tensor has changed.
    """
    check_tensor(who, "offsets", offsets)
    check_device(who, "offsets", offsets, x)
    length = x.shape[dim] if x.ndim else 1
    if offsets.dtype not in _DTYPES or offsets.ndim != 1 or offsets.numel() < 2:
        raise _bad_offsets(who, length, f"offsets of {offsets.dtype}, shape {tuple(offsets.shape)}")
    if not _has_values(offsets):
        return offsets.contiguous()
    # An inference tensor has no version counter: its values are read at every call.
    state = None if offsets.is_inference() else (version_of(offsets), offsets.data_ptr(), length)
    known = _CHECKED.get(id(offsets))
    if state is not None and known is not None and known.offsets() is offsets and known.state == state:
        return offsets.contiguous()
    if offsets.is_cuda and torch.cuda.is_current_stream_capturing():
        raise UnsupportedRequest(
            f"{who}: offsets must have been used before a CUDA graph capture",
            allowed="offsets that a scan of this length has used before: reading their values would wait for the GPU",
            value=f"offsets of shape {tuple(offsets.shape)}",
            hint="call the scan once with these offsets before the capture",
        )
    with without_interpreters():  # under torch.func.functionalize the results would have no values
        falls = offsets[1:] < offsets[:-1]
        first, last, falling = torch.stack((offsets[0].long(), offsets[-1].long(), falls.any().long())).tolist()
        where = f", falling at index {int(falls.nonzero()[0]) + 1}" if falling else ""
    if first != 0 or last != length or falling:
        raise _bad_offsets(who, length, f"offsets from {first} to {last}{where}")
    if state is not None:
        _remember(offsets, state)
    return offsets.contiguous()


def _remember(offsets: Tensor, state: tuple[int, int, int], chunk: int | None = None) -> None:
    number, known = id(offsets), _CHECKED  # which has no name any more when the interpreter ends
    known[number] = _Known(weakref.ref(offsets, lambda _: known.pop(number, None)), state, {}, chunk)


def chunk_of(offsets: Tensor) -> int | None:
    """Return the size of the chunks that ``offsets_of_chunks`` made these of, which nobody changes; else None."""
    known = _CHECKED.get(id(offsets))
    return known.chunk if known and known.offsets() is offsets else None


def offsets_of_chunks(who: str, offsets: Tensor | None, x: Tensor, dim: int, chunk: int) -> Tensor:
    """Return the offsets of chunks of so many items within each segment; the last chunk of a segment may be shorter.

    As many chunks as any segments of these numbers may have: those that are not needed are empty, at the end.
    """
    length = x.shape[dim]
    if offsets is None:
        found = torch.arange(0, length + chunk, chunk, device=x.device).clamp(max=length)
        known = {}
    else:
        offsets = check_offsets(who, offsets, x, dim)
        known = _CHECKED[id(offsets)].chunks if _has_values(offsets) and not offsets.is_inference() else {}
        if chunk in known:
            return known[chunk]
        begin, end = offsets[:-1].long(), offsets[1:].long()
        chunks = (end - begin + (chunk - 1)) // chunk  # of each segment
        last = chunks.cumsum(0)
        number = torch.arange(len(begin) + length // chunk, device=x.device)
        own = torch.searchsorted(last, number, right=True)  # the segment of each chunk
        place = own.clamp(max=len(begin) - 1)
        first = begin[place] + (number - (last - chunks)[place]) * chunk
        found = torch.cat([torch.where(own < len(begin), first, length), end[-1:]]).to(offsets.dtype)
    if _has_values(found) and not found.is_inference():  # made right: their values need not be read
        _remember(found, (version_of(found), found.data_ptr(), length), chunk)
        known[chunk] = found
    return found


def _has_values(offsets: Tensor) -> bool:
    """Whether the values can be read: not those of meta, fake or batched tensors, nor under a compiler."""
    if torch.compiler.is_compiling() or offsets.device.type == "meta" or type(offsets) is not Tensor:
        return False
    return not is_wrapped(offsets)


def _described(given: object) -> str:
    return f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) else shown(given)


def _bad_offsets(who: str, length: int, value: str) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"{who}: offsets must rise from 0 to {length}",
        allowed=f"int32 or int64 in one dimension: 0, then where each segment begins, never falling, at last {length}",
        value=value,
        hint="as cu_seqlens: torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]), along dim",
    )


def check_carries(who: str, x: Tensor, offsets: Tensor | None) -> None:
    """Raise unless carries may be of the segments that offsets give."""
    if offsets is None or not x.ndim:
        raise UnsupportedRequest(
            f"{who}: carries of segments need offsets",
            allowed="offsets, and a tensor of one dimension or more",
            value=f"offsets={_described(offsets)}, x of shape {tuple(x.shape)}",
            hint="pass offsets, or return_final=True for carries of lines",
        )


def flags_along(
    starts: Tensor | None,
    offsets: Tensor | None,
    x: Tensor,
    dim: int,
    begin: Tensor | int | None = None,
) -> Tensor | None:
    """Return head flags as a view with x's shape; those made from offsets leave out the first segment's.

    ``begin``: where the items of x begin in the lines of the offsets; None: they are whole lines.
    """
    if offsets is None:
        return None if starts is None else starts.expand(x.shape)
    length = x.shape[dim]
    places = offsets[1:-1].long()
    if begin is not None:
        places = places - begin
        places = torch.where((places < 0) | (places > length), length, places)
    flags = torch.zeros(length + 1, dtype=torch.bool, device=offsets.device).index_fill(0, places, True)[:length]
    return flags.reshape([-1 if d == dim else 1 for d in range(x.ndim)]).expand(x.shape)


def carried_along(carries: Tensor, offsets: Tensor, shape: torch.Size, dim: int) -> Tensor:
    """Return the carry-in of each item's segment, in x's ``shape``, from that of each segment."""
    places = torch.arange(shape[dim], device=offsets.device)
    segment = torch.searchsorted(offsets[1:].long(), places, right=True)
    return carries.expand(carry_shape(shape, dim, offsets)).index_select(dim, segment)


def places_along(x: Tensor, dim: int) -> Tensor:
    """Return the index of each item along ``dim``, as a tensor that broadcasts to x's shape."""
    return torch.arange(x.shape[dim], device=x.device).reshape([-1 if d == dim else 1 for d in range(x.ndim)])


def shifted(tensor: Tensor, dim: int, fill: float | Tensor, *, ahead: bool) -> Tensor:
    """Return the tensor shifted by one item to the front (``ahead``) or the back, with ``fill`` at the open end."""
    length = tensor.shape[dim]
    if not length:
        return tensor
    edge = fill if isinstance(fill, Tensor) else torch.full_like(tensor.narrow(dim, 0, 1), fill)
    rest = tensor.narrow(dim, int(ahead), length - 1)
    return torch.cat([rest, edge] if ahead else [edge, rest], dim)


# ---- calls for packed sequences as calls of plain scans: in chunks, and of nested tensors of jagged layout


class Unpacked(NamedTuple):
    """The call of a plain scan, as ``scanops.api.called`` takes it, and what makes the results of the packed one."""

    tensors: tuple[Any, ...]
    outs: Outs
    options: tuple[Any, ...]
    chunk: int | None
    restored: Callable[[Any], Any]


def is_jagged(x: Any) -> bool:
    """Whether x is a nested tensor of jagged layout."""
    return isinstance(x, Tensor) and x.is_nested and x.layout == torch.jagged


def unpacked(tensors: tuple[Any, ...], outs: Outs, complete: Any, options: tuple[Any, ...], chunk: Any) -> Unpacked:
    """Return the call of a plain scan that gives the results of this one, or raise UnsupportedRequest."""
    x, mask, _, starts, offsets, initial = tensors
    op, dim, *others = options
    who = Call(op, 0).name
    others_given = {"segment_starts": starts, "initial": initial, "return_final": options[4], "complete": complete}
    wrong = [name for name, value in others_given.items() if value is not None and value is not False]
    if chunk is not None and (type(chunk) is not int or chunk < 1 or wrong):
        raise UnsupportedRequest(
            f"{who}: chunk " + (f"does not go with {wrong[0]}" if wrong else "must be a positive int"),
            allowed="a positive int, beside offsets, mask, reverse, exclusive, dtype, accumulate and out",
            value=", ".join([f"chunk={shown(chunk)}", *wrong]),
            hint="pass the offsets of the chunks, which have carries" if wrong else "pass chunk=64, for example",
        )
    if is_jagged(x):
        return _nested(tensors, outs, complete, options, chunk)
    assert chunk is not None  # such calls alone, and those of nested tensors, come here
    check_tensor(who, "x", x)
    dim = check_dim(who, x.shape, dim)
    length = x.shape[dim] if x.ndim else 1
    if offsets is not None or length % min(chunk, max(1, length)):
        offsets = offsets_of_chunks(who, offsets, x, dim, chunk)
    if offsets is not None or length <= chunk:
        return Unpacked((x, mask, None, None, offsets, None), outs, (op, dim, *others), None, lambda y: y)
    # Lines of whole chunks are a view with a dimension more.
    if mask is not None:
        mask = check_operand(who, "mask", mask, x)
        mask = (mask if mask.dtype == torch.bool else lent_kind(mask, x)).expand(x.shape)
    rows = [
        t if t is None or t.shape != x.shape else cast(Any, t).unflatten(dim, (-1, chunk)) for t in (x, mask, *outs)
    ]
    return Unpacked(
        (*rows[:2], None, None, None, None), (rows[2],), (op, dim + 1, *others), None,
        lambda y: y.flatten(dim, dim + 1) if outs[0] is None else outs[0],
    )  # fmt: skip


def _nested(tensors: tuple[Any, ...], outs: Outs, complete: Any, options: tuple[Any, ...], chunk: Any) -> Unpacked:
    """The values of a nested tensor: along the ragged dimension by its offsets, along another one as they are."""
    x, mask, gate, starts, offsets, initial = tensors
    op, dim, reverse, exclusive, final, *others = options
    who, ragged = Call(op, 0).name, ragged_dim(x)
    dim = check_dim(who, x.shape, dim)
    along, carries = dim == ragged, initial is not None or final
    alike = all(t is None or (t.is_nested and t.shape == x.shape) or t.numel() == 1 for t in (mask, gate))
    for allowed, holds in {
        "a dimension behind that of the batch": dim > 0,
        "sequences without gaps": x.lengths() is None,
        "no out, segments or complete results": all(t is None for t in (*outs, starts, offsets)) and not complete,
        "masks and gates that are nested as x is, or one number": alike,
        "along a dimension that is not ragged no carries and no chunks": along or not (carries or chunk),
        "along the ragged dimension no indices": not (along and listed(op).indices),
    }.items():
        if not holds:
            raise UnsupportedRequest(
                f"{who}: x is nested, which needs {allowed}",
                allowed=allowed,
                value=f"x of shape {tuple(x.shape)}, dim={dim}",
                hint="scan x.values() along a dimension less, with offsets=x.offsets()",
            )
    values, cuts = x.values(), x.offsets() if along else None
    mask, gate = (t.values() if t is not None and t.is_nested else t for t in (mask, gate))
    if isinstance(initial, Tensor) and initial.ndim:  # (batch, ...): in the kernel's order the ragged dimension's place
        initial = initial.movedim(0, dim - 1)
    elif initial is not None:
        wide = {float: torch.float64, complex: torch.complex128}.get(type(initial))
        initial = torch.as_tensor(initial, dtype=wide, device=x.device).expand(carry_shape(values.shape, dim - 1, cuts))

    def restored(found: Any) -> Any:
        found = found if isinstance(found, tuple) else (found,)
        results = [
            torch.nested.nested_tensor_from_jagged(y, x.offsets(), jagged_dim=ragged) for y in found[: len(outs)]
        ]
        results += [last.movedim(dim - 1, 0) for last in found[len(outs) :]]
        return results[0] if len(results) == 1 else tuple(results)

    options = (op, dim - 1, reverse, exclusive, final and "segments", *others)
    return Unpacked((values, mask, gate, None, cuts, initial), outs, options, chunk, restored)
