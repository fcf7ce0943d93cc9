"""Segments of a line, given by head flags or by offsets, and chunks of them: checks, head flags, carries, shifts."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from scanops.errors import UnsupportedRequest, format_value
from scanops.requests.checks import check_device, check_operand, check_tensor
from scanops.requests.geometry import carry_shape
from scanops.torch_private import count_modes, is_jit_traced, is_wrapped, version_of, without_interpreters

_DTYPES = (torch.int32, torch.int64)
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
MAX_CHUNK = 2**63 - 1  # of an argument of torch.library; a longer chunk begins again nowhere either

# Offsets on GPUs whose values were checked: a weak reference, and the version, address and length of the check. By id
# while they live: attributes are copied and saved with a tensor, torch's weak dictionary costs a call 1.5 us.
# No result follows from this cache. It saves a wait for the GPU; kernels read the offsets themselves, and bound them.
_CHECKED: dict[int, tuple[weakref.ref[Tensor], tuple[int, int, int]]] = {}


def check_starts(who: str, starts: Tensor, offsets: Tensor | None, x: Tensor) -> Tensor:
    """Return the head flags: bool, broadcasting to x's shape. Raises if both flags and offsets are given."""
    if offsets is not None:
        raise UnsupportedRequest(
            f"{who}: segment_starts and offsets are mutually exclusive",
            allowed="segment_starts or offsets",
            value=f"segment_starts={_describe(starts)}, offsets={_describe(offsets)}",
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

    On a CPU the values are read at every call. On a GPU that would wait for it: they are read once per tensor, and
    again after a write that PyTorch's version counter has seen. Kernels read the offsets themselves at every launch.
    """
    check_tensor(who, "offsets", offsets)
    check_device(who, "offsets", offsets, x)
    length = x.shape[dim] if x.ndim else 1
    if offsets.dtype not in _DTYPES or offsets.ndim != 1 or offsets.numel() < 2:
        raise _bad_offsets(who, length, f"offsets of {offsets.dtype}, shape {tuple(offsets.shape)}")
    if not _has_values(offsets):
        return offsets.contiguous()
    # An inference tensor has no version counter.
    cached = offsets.is_cuda and not offsets.is_inference()
    state = (version_of(offsets), offsets.data_ptr(), length) if cached else None
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


def _remember(offsets: Tensor, state: tuple[int, int, int]) -> None:
    number, known = id(offsets), _CHECKED  # which has no name any more when the interpreter ends
    known[number] = weakref.ref(offsets, lambda _: known.pop(number, None)), state


def check_chunk(who: str, chunk: object, **others: object) -> None:
    """Raise unless ``chunk`` is a number of items, and nothing in ``others`` is given that does not go with it."""
    wrong = [name for name, value in others.items() if value is not None and value is not False]
    if type(chunk) is not int or chunk < 1 or wrong:
        raise UnsupportedRequest(
            f"{who}: chunk " + (f"does not go with {wrong[0]}" if wrong else "must be a positive int"),
            allowed="a positive int, beside offsets, mask, reverse, exclusive, dtype, accumulate and out",
            value=", ".join([f"chunk={format_value(chunk)}", *wrong]),
            hint="pass the offsets of the chunks, which have carries" if wrong else "pass chunk=64, for example",
        )


def make_line_offsets(x: Tensor, dim: int) -> Tensor:
    """Return the offsets of lines that are one segment: 0 and the length. Their values need not be read."""
    length = x.shape[dim] if x.ndim else 1
    if isinstance(length, int) and length > 0:
        offsets = torch.arange(0, length + 1, length, device=x.device)  # in one launch
    else:  # whose number of items would be a symbol, or that has no step
        offsets = torch.arange(2, device=x.device) * length
    if _has_values(offsets) and offsets.is_cuda and not offsets.is_inference():
        _remember(offsets, (version_of(offsets), offsets.data_ptr(), length))
    return offsets


def _has_values(offsets: Tensor) -> bool:
    """Whether the values can be read: not those of meta, fake or batched tensors, nor under a compiler."""
    if torch.compiler.is_compiling() or offsets.device.type == "meta" or type(offsets) is not Tensor:
        return False
    return not is_wrapped(offsets)


def _describe(given: object) -> str:
    return f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) else format_value(given)


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
            value=f"offsets={_describe(offsets)}, x of shape {tuple(x.shape)}",
            hint="pass offsets, or return_final=True for carries of lines",
        )


def check_carry_in(op: str, initial: object, rank: int) -> None:
    """Raise for a carry-in beside offsets, of an x of so many dimensions, with a value for each line.

    It might continue the line, of which the first segment is a part, or each segment of it.
    """
    if isinstance(initial, Tensor) and 0 < initial.ndim < rank:
        raise UnsupportedRequest(
            f"{op}: initial must not have one value for each line beside offsets",
            allowed="a number or a tensor of no dimension for all segments, or one with the segments in place of dim",
            value=f"initial.shape={tuple(initial.shape)}, x of {rank} dimensions",
            hint="pass initial.unsqueeze(dim), for each segment of a line; to continue lines, pass segment_starts",
        )


def select_last(carries: Tensor, offsets: Tensor, dim: int, reverse: bool) -> Tensor:
    """Return the carry-out of each line, that of the segment scanned last, from those of segments.

    Empty ones at the end of the offsets, as in padded ``cu_seqlens``, are none.
    """
    dim = dim % carries.ndim
    if reverse:
        return carries.select(dim, 0).contiguous()
    count = (offsets[:-1] < offsets[-1]).sum()  # of segments up to the last that has items
    place, signed = (count.clamp(min=1) - 1).reshape(1), _SIGNED.get(carries.dtype)
    if signed is not None:  # torch selects no unsigned integers
        return carries.view(signed).index_select(dim, place).squeeze(dim).view(carries.dtype)
    return carries.index_select(dim, place).squeeze(dim)


def flags_along(
    starts: Tensor | None,
    offsets: Tensor | None,
    x: Tensor,
    dim: int,
    chunk: int | None = None,
    begin: Tensor | int = 0,
) -> Tensor | None:
    """Return head flags as a view with x's shape; those made from offsets leave out the first segment's.

    ``chunk``: segments begin again after so many items. ``begin``: where the items of x begin in the lines of the
    offsets.
    """
    if offsets is None:
        return None if starts is None else starts.expand(x.shape)
    length = x.shape[dim]
    if chunk is None:
        places = offsets[1:-1].long() - begin
        places = torch.where((places < 0) | (places > length), length, places)
        flags = torch.zeros(length + 1, dtype=torch.bool, device=offsets.device).index_fill(0, places, True)[:length]
    else:
        places = torch.arange(length, device=offsets.device) + begin
        flags = (places - offsets.long()[find_segments(offsets, places)]) % chunk == 0
    return flags.reshape([-1 if d == dim else 1 for d in range(x.ndim)]).expand(x.shape)


def find_segments(offsets: Tensor, places: Tensor) -> Tensor:
    """Return the segment that holds each place. Offsets that were overwritten may put a place behind the last."""
    return torch.searchsorted(offsets[1:].long(), places, right=True).clamp(max=len(offsets) - 2)


def find_longest(offsets: Tensor, length: int, chunk: int | None = None) -> int:
    """Return the length of the longest segment or chunk; that of the line where the values are not known here."""
    known = _has_values(offsets) and offsets.is_cpu and not (count_modes() or is_jit_traced())
    if known and length:
        with without_interpreters():
            length = int((offsets[1:] - offsets[:-1]).max())
    return length if chunk is None else min(chunk, length)


def carry_along(carries: Tensor, offsets: Tensor, shape: torch.Size, dim: int) -> Tensor:
    """Return the carry-in of each item's segment, in x's ``shape``, from that of each segment."""
    segments = find_segments(offsets, torch.arange(shape[dim], device=offsets.device))
    return carries.expand(carry_shape(shape, dim, offsets)).index_select(dim, segments)


def places_along(x: Tensor, dim: int) -> Tensor:
    """Return the index of each item along ``dim``, as a tensor that broadcasts to x's shape."""
    return torch.arange(x.shape[dim], device=x.device).reshape([-1 if d == dim else 1 for d in range(x.ndim)])


def shift(tensor: Tensor, dim: int, fill: float | Tensor, *, ahead: bool) -> Tensor:
    """Return the tensor shifted by one item to the front (``ahead``) or the back, with ``fill`` at the open end."""
    length = tensor.shape[dim]
    if not length:
        return tensor
    edge = fill if isinstance(fill, Tensor) else torch.full_like(tensor.narrow(dim, 0, 1), fill)
    rest = tensor.narrow(dim, int(ahead), length - 1)
    return torch.cat([rest, edge] if ahead else [edge, rest], dim)
