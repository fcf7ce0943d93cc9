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
    type: str  # C type of an item; an access is a {type}Vector
    pointer: str  # C name of a thread's accesses
    bytes: int  # of an item
    layout: Literal["dense", "strided", "realigned"]  # strided: the items of a row are read one by one
    placed: bool  # rows start anywhere; otherwise they lie as in the output
    realigned: bool  # accesses are aligned to its own boundaries, not the output's; items are shifted into place
    copied: bool  # cp.async copies an access to shared memory
