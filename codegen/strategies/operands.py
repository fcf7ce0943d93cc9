"""How a kernel for rows reads one of its inputs, for every layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ASYNC_BYTES", "Operand"]

ASYNC_BYTES = (4, 8, 16)  # bytes that one cp.async can copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One input of a kernel for rows, and how its accesses lie."""

    name: str  # name of the kernel's parameter
    type: str  # C type of an item
    pointer: str  # C name of a thread's accesses
    bytes: int  # of an item
    items: int  # of an access
    whole: bool  # one access reads several items; otherwise items are read one by one
    realigned: bool  # accesses are aligned to its own boundaries, not the output's; items are shifted into place
    placed: Literal["rows", "strided"] | None  # None: rows lie as in the output; otherwise they start anywhere
    copies_async: bool  # the target has cp.async

    @property
    def vector(self) -> str:
        """C type of an access."""
        return f"{self.type}Vector"

    @property
    def strided(self) -> bool:
        """Whether the items of a row are not contiguous."""
        return self.placed == "strided"

    @property
    def copied(self) -> bool:
        """Whether cp.async can copy an access to shared memory."""
        return self.whole and self.copies_async and self.items * self.bytes in ASYNC_BYTES

    @property
    def skew(self) -> str:
        """C name of the number of items by which an access starts before its place in the output."""
        return f"{self.pointer}_skew"
