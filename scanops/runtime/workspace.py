"""The boards on which blocks of a launch exchange totals: memory cleared once, then left to the launches of a stream.

A kernel that exchanges totals marks each word with the number of its launch and opens the next launch when its last
ticket is taken, so launches that follow one another need no memset between them. Launches that may overlap must not
share a board: there is one for each stream, and a captured launch has its own, cleared in the graph, because its
replays may run beside anything.
"""

from __future__ import annotations

import threading

import torch

__all__ = ["board", "forget"]

_BOARDS: dict[tuple[str, int, int], torch.Tensor] = {}


def board(device: torch.device, stream: int, size: int) -> torch.Tensor:
    """At least ``size`` bytes for a launch on ``stream``. The caller keeps the tensor until the launch is queued."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return torch.zeros(size, dtype=torch.uint8, device=device)
    key = _key(device, stream)
    found = _BOARDS.get(key)
    if found is None or found.numel() < size:
        # Cleared on the stream that will use it; its predecessor returns to the allocator in that stream's order.
        found = torch.zeros(1 << (size - 1).bit_length(), dtype=torch.uint8, device=device)
        _BOARDS[key] = found
    return found


def forget(device: torch.device, stream: int) -> None:
    """Drop a board that a launch may have left half used, because it failed."""
    _BOARDS.pop(_key(device, stream), None)


def _key(device: torch.device, stream: int) -> tuple[str, int, int]:
    """Emulated launches run in the thread that asks for them, as if each thread were a stream."""
    return device.type, device.index or 0, stream if device.type == "cuda" else threading.get_ident()
