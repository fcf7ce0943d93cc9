"""Segments of a line, given by head flags or by offsets: checks, the flags that equal given offsets, and shifts."""

from __future__ import annotations

import weakref

import torch

from scanops.errors import UnsupportedRequest, shown
from scanops.requests.checks import check_device, check_operand, check_tensor
from scanops.requests.geometry import carry_shape
from scanops.torch_private import is_wrapped, version_of, without_interpreters

_DTYPES = (torch.int32, torch.int64)


# Offsets already checked, by id while they live: version, address and the length of lines that they are valid for, and
# the offsets of their chunks by size. An attribute of the tensor would be copied and saved with it.
_CHECKED: dict[int, tuple[weakref.ref[torch.Tensor], tuple[int, int, int], dict[int, torch.Tensor]]] = {}


def check_starts(who: str, starts: torch.Tensor, offsets: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
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


def check_offsets(who: str, offsets: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
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
    if state is not None and known is not None and known[0]() is offsets and known[1] == state:
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


def _remember(offsets: torch.Tensor, state: tuple[int, int, int]) -> None:
    number, known = id(offsets), _CHECKED  # which has no name any more when the interpreter ends
    known[number] = (weakref.ref(offsets, lambda _: known.pop(number, None)), state, {})


def offsets_of_chunks(who: str, offsets: torch.Tensor | None, x: torch.Tensor, dim: int, chunk: int) -> torch.Tensor:
    """Return the offsets of chunks of so many items within each segment; the last chunk of a segment may be shorter.

    As many chunks as any segments of these numbers may have: those that are not needed are empty, at the end.
    """
    length = x.shape[dim]
    if offsets is None:
        found = torch.arange(0, length + chunk, chunk, device=x.device).clamp(max=length)
        known = None
    else:
        offsets = check_offsets(who, offsets, x, dim)
        known = _CHECKED.get(id(offsets)) if _has_values(offsets) and not offsets.is_inference() else None
        if known is not None and chunk in known[2]:
            return known[2][chunk]
        begin, end = offsets[:-1].long(), offsets[1:].long()
        chunks = (end - begin + (chunk - 1)) // chunk  # of each segment
        last = chunks.cumsum(0)
        number = torch.arange(len(begin) + length // chunk, device=x.device)
        own = torch.searchsorted(last, number, right=True)  # the segment of each chunk
        place = own.clamp(max=len(begin) - 1)
        first = begin[place] + (number - (last - chunks)[place]) * chunk
        found = torch.cat([torch.where(own < len(begin), first, length), end[-1:]]).to(offsets.dtype)
    if _has_values(found) and not found.is_inference():  # made right: their values need not be read
        _remember(found, (version_of(found), found.data_ptr(), length))
        if known is not None:
            known[2][chunk] = found
    return found


def _has_values(offsets: torch.Tensor) -> bool:
    """Whether the values can be read: not those of meta, fake or batched tensors, nor under a compiler."""
    if torch.compiler.is_compiling() or offsets.device.type == "meta" or type(offsets) is not torch.Tensor:
        return False
    return not is_wrapped(offsets)


def _described(given: object) -> str:
    return f"a tensor of shape {tuple(given.shape)}" if isinstance(given, torch.Tensor) else shown(given)


def _bad_offsets(who: str, length: int, value: str) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"{who}: offsets must rise from 0 to {length}",
        allowed=f"int32 or int64 in one dimension: 0, then where each segment begins, never falling, at last {length}",
        value=value,
        hint="as cu_seqlens: torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]), along dim",
    )


def check_carries(who: str, x: torch.Tensor, offsets: torch.Tensor | None) -> None:
    """Raise unless carries may be of the segments that offsets give."""
    if offsets is None or not x.ndim:
        raise UnsupportedRequest(
            f"{who}: carries of segments need offsets",
            allowed="offsets, and a tensor of one dimension or more",
            value=f"offsets={_described(offsets)}, x of shape {tuple(x.shape)}",
            hint="pass offsets, or return_final=True for carries of lines",
        )


def flags_along(
    starts: torch.Tensor | None,
    offsets: torch.Tensor | None,
    x: torch.Tensor,
    dim: int,
    begin: torch.Tensor | int | None = None,
) -> torch.Tensor | None:
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


def carried_along(carries: torch.Tensor, offsets: torch.Tensor, shape: torch.Size, dim: int) -> torch.Tensor:
    """Return the carry-in of each item's segment, in x's ``shape``, from that of each segment."""
    places = torch.arange(shape[dim], device=offsets.device)
    segment = torch.searchsorted(offsets[1:].long(), places, right=True)
    return carries.expand(carry_shape(shape, dim, offsets)).index_select(dim, segment)


def places_along(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the index of each item along ``dim``, as a tensor that broadcasts to x's shape."""
    return torch.arange(x.shape[dim], device=x.device).reshape([-1 if d == dim else 1 for d in range(x.ndim)])


def shifted(tensor: torch.Tensor, dim: int, fill: float | torch.Tensor, *, ahead: bool) -> torch.Tensor:
    """Return the tensor shifted by one item to the front (``ahead``) or the back, with ``fill`` at the open end."""
    length = tensor.shape[dim]
    if not length:
        return tensor
    edge = fill if isinstance(fill, torch.Tensor) else torch.full_like(tensor.narrow(dim, 0, 1), fill)
    rest = tensor.narrow(dim, int(ahead), length - 1)
    return torch.cat([rest, edge] if ahead else [edge, rest], dim)
