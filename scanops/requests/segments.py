"""Segments of a line: where scans begin anew, told by flags or by offsets."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch

from scanops.errors import UnsupportedRequest
from scanops.requests.checks import check_device, check_operand, check_tensor

__all__ = ["check_offsets", "check_starts", "flags_along"]

_DTYPES = (torch.int32, torch.int64)


class _Checked(NamedTuple):
    """What offsets were right for, and as they were then."""

    version: int
    address: int
    length: int


# Offsets that were looked at, by their id until they are gone. An attribute of theirs would be copied and saved too.
_LOOKED_AT: dict[int, tuple[weakref.ref[torch.Tensor], _Checked]] = {}


def check_starts(starts: torch.Tensor | None, offsets: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor | None:
    """The flags of segments: bool, one for each of x's items."""
    if starts is None:
        return None
    if offsets is not None:
        raise UnsupportedRequest(
            "a scan of segments told twice",
            allowed="segment_starts or offsets",
            value=f"segment_starts={_described(starts)}, offsets={_described(offsets)}",
            hint="leave one of them out",
        )
    check_tensor("segment_starts", starts)
    if starts.dtype != torch.bool:
        raise UnsupportedRequest(
            f"a scan whose segment_starts are {starts.dtype}",
            allowed="torch.bool: True where a segment begins",
            value=f"segment_starts.dtype={starts.dtype}",
            hint="pass segment_starts.bool(); indices where segments begin are called offsets",
        )
    return check_operand("segment_starts", starts, x)


def check_offsets(offsets: torch.Tensor | None, x: torch.Tensor, dim: int) -> torch.Tensor | None:
    """The offsets of segments: 0, then where each further one begins, and at last the length.

    Their values are looked at once for each tensor, which waits for a GPU; not again until the tensor is changed.
    """
    if offsets is None:
        return None
    check_tensor("offsets", offsets)
    check_device("offsets", offsets, x)
    length = x.shape[dim] if x.ndim else 1
    if offsets.dtype not in _DTYPES or offsets.ndim != 1 or offsets.numel() < 2:
        raise _bad_offsets(length, f"offsets of {offsets.dtype}, shape {tuple(offsets.shape)}")
    if not _has_values(offsets):
        return offsets.contiguous()
    # A tensor of inference mode does not know when it was changed: it is looked at every time.
    checked = None if offsets.is_inference() else _Checked(offsets._version, offsets.data_ptr(), length)
    if checked is not None and _was_looked_at(offsets, checked):
        return offsets.contiguous()
    if offsets.is_cuda and torch.cuda.is_current_stream_capturing():
        raise UnsupportedRequest(
            "a scan by offsets that were never looked at, while a CUDA graph is captured",
            allowed="offsets that a scan of this length has had before: to look at their values is to wait for the GPU",
            value=f"offsets of shape {tuple(offsets.shape)}",
            hint="call the scan once with these offsets before the capture",
        )
    falls = offsets[1:] < offsets[:-1]
    first, last, falling = torch.stack((offsets[0].long(), offsets[-1].long(), falls.any().long())).tolist()
    if first != 0 or last != length or falling:
        where = f", falling at index {int(falls.nonzero()[0]) + 1}" if falling else ""
        raise _bad_offsets(length, f"offsets from {first} to {last}{where}")
    if checked is not None:
        number = id(offsets)
        _LOOKED_AT[number] = (weakref.ref(offsets, lambda _: _LOOKED_AT.pop(number, None)), checked)
    return offsets.contiguous()


def _was_looked_at(offsets: torch.Tensor, checked: _Checked) -> bool:
    found = _LOOKED_AT.get(id(offsets))
    return found is not None and found[0]() is offsets and found[1] == checked


def _has_values(offsets: torch.Tensor) -> bool:
    """Whether there are numbers to look at: not where torch looks at shapes alone, nor in a batch of offsets."""
    if torch.compiler.is_compiling() or offsets.device.type == "meta" or type(offsets) is not torch.Tensor:
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(offsets)


def _described(given: object) -> str:
    return f"a tensor of shape {tuple(given.shape)}" if isinstance(given, torch.Tensor) else repr(given)


def _bad_offsets(length: int, value: str) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"a scan of {length} items by offsets that are none of theirs",
        allowed=f"int32 or int64 in one dimension: 0, then where each segment begins, never falling, at last {length}",
        value=value,
        hint="as cu_seqlens: torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]), along dim",
    )


def flags_along(
    starts: torch.Tensor | None, offsets: torch.Tensor | None, x: torch.Tensor, dim: int
) -> torch.Tensor | None:
    """Where segments begin, as a view with x's shape: the flags, or some in place of offsets, for all but the first."""
    if offsets is None:
        return None if starts is None else starts.expand(x.shape)
    length = x.shape[dim]
    flags = torch.zeros(length + 1, dtype=torch.bool, device=offsets.device)
    flags = flags.index_fill(0, offsets[1:-1].long(), True)[:length]
    return flags.reshape([-1 if d == dim else 1 for d in range(x.ndim)]).expand(x.shape)
