"""How the scanned dimension of a call is sharded: a field of the call, and so of its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

if TYPE_CHECKING:
    from scanops.codegen.spec import ScanSpec

__all__ = ["KernelLink", "Ranks", "Sharding"]


class Ranks(Protocol):
    """The ranks that hold the shards of a dimension, in their order: a ``scanops.distributed.groups.Group``."""

    @property
    def size(self) -> int: ...
    @property
    def rank(self) -> int: ...


class Sharding(NamedTuple):
    """The ranks that a dimension is sharded over, and how they scan it: keywords of ``scanops.distributed``."""

    group: Ranks
    method: str = "auto"
    spans: str | None = None


class LinkMemory(Protocol):
    """The memory of a link that a launch is bound to."""

    def workspace(self, size: int) -> torch.Tensor:
        """Return at least so many bytes for the tile status of a launch."""


class KernelLink(Protocol):
    """What connects the kernels of a rank to those of others: a ``scanops.distributed.links.Link``."""

    address: int  # of the words that C++ compares before each launch

    def bind(self, arguments: Any, spec: ScanSpec, lines: int, state_bytes: int) -> LinkMemory:
        """Set the arguments of a kernel that are memory of ranks."""

    def enter(self) -> None:
        """Let the next launch follow the last one."""

    def abandon(self) -> None:
        """Let kernels of other ranks end their waits for the next launch."""
