"""Workspaces of kernels whose blocks exchange tile status (decoupled look-back): one per stream, cleared once.

A launch marks each word with its epoch and opens the next epoch when its last ticket is taken, so launches that follow
one another need no memset between them. Launches that may overlap must not share a workspace: a captured launch has its
own, cleared in the graph, because its replays may run beside anything.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

import torch

_WORKSPACES: dict[tuple[str, int, int], torch.Tensor] = {}


class WorkspaceUser(Protocol):
    """What needs a workspace: a launcher."""

    link_memory: Any  # of a launch that is linked to other ranks, whose workspace it holds

    workspace_bytes: int


def find_workspace_at(user: WorkspaceUser, index: int, stream: int) -> torch.Tensor:
    """Return the workspace of a launch on the GPU of an index, or on the CPU for -1. The C++ call path calls this."""
    return find_workspace(user, device_at(index), stream)


def find_workspace(user: WorkspaceUser, device: torch.device, stream: int) -> torch.Tensor:
    """Return the workspace of a launch on a stream. Keep the tensor until the launch is queued."""
    size, linked = user.workspace_bytes, user.link_memory
    found: torch.Tensor = workspace(device, stream, size) if linked is None else linked.workspace(size)
    return found


def workspace(device: torch.device, stream: int, size: int) -> torch.Tensor:
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return torch.zeros(size, dtype=torch.uint8, device=device)
    key = _workspace_key(device, stream)
    found = _WORKSPACES.get(key)
    if found is None or found.numel() < size:
        # Cleared on the stream that uses it; its predecessor returns to the allocator in that stream's order.
        found = torch.zeros(1 << (size - 1).bit_length(), dtype=torch.uint8, device=device)
        _WORKSPACES[key] = found
    return found


def device_at(index: int) -> torch.device:
    """Return the GPU of an index, and the CPU for a negative one."""
    return torch.device("cuda", index) if index >= 0 else torch.device("cpu")


def drop_workspace(device: torch.device, stream: int) -> None:
    """Drop a workspace that a failed launch may have left half used."""
    _WORKSPACES.pop(_workspace_key(device, stream), None)


def _workspace_key(device: torch.device, stream: int) -> tuple[str, int, int]:
    """Return the key of a stream; emulated launches run in the thread that asks, as if each thread were a stream."""
    return device.type, device.index or 0, stream if device.type == "cuda" else threading.get_ident()
