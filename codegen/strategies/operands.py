"""How a kernel for rows reads one of its inputs, for every layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ASYNC_BYTES", "Operand", "RowOperand"]

ASYNC_BYTES = (4, 8, 16)  # bytes that one cp.async can copy
WORD_BYTES = 4  # bytes of a word that lanes exchange and shift as a unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """How a kernel for rows reads one of its inputs."""

    name: str  # name of the kernel's parameter
    type: str  # C type of an item
    pointer: str  # C name of the pointer to a thread's part
    bytes: int  # of an item
    pieces: tuple[str, ...]  # C suffix of each part of an item that one shuffle moves
    scan_order: tuple[int, ...]  # indices of the items of an access in memory, listed in scan order
    whole: bool  # one access reads several items; otherwise items are read one by one
    realigned: bool  # accesses are aligned to its own boundaries, not the output's; items are shifted into place
    placed: str | None  # None: rows lie as in the output; "rows", "strided": they start anywhere
    copies_async: bool  # the target has cp.async

    @property
    def vector(self) -> str:
        """C type of a vectorised load of a thread."""
        return f"{self.type}Vector"

    @property
    def strided(self) -> bool:
        """Whether the items of a row are not contiguous."""
        return self.placed == "strided"

    @property
    def step(self) -> str:
        """C name of the stride from one item to the next."""
        return f"geometry.{self.name}_step"

    @property
    def items(self) -> int:
        """Number of items in an access."""
        return len(self.scan_order)

    @property
    def access_bytes(self) -> int:
        """Size of an access in bytes."""
        return self.items * self.bytes

    @property
    def copied(self) -> bool:
        """Whether cp.async can copy it to shared memory."""
        return self.whole and self.copies_async and self.access_bytes in ASYNC_BYTES

    @property
    def skew(self) -> str:
        """C name of the number of items by which an access starts before its place in the output."""
        return f"{self.pointer}_skew"

    @property
    def first(self) -> str:
        """C name of the scan position of the first item of a thread's first access."""
        return f"{self.pointer}_first"

    @property
    def packed(self) -> int:
        """Items per 32-bit word, where an access is shifted by words and within words; 1: shifted by items."""
        return WORD_BYTES // self.bytes if self.bytes < WORD_BYTES <= self.access_bytes else 1

    @property
    def part(self) -> str:
        """Name of the field of an access that shifts move: item or word."""
        return "word" if self.packed > 1 else "item"

    @property
    def part_type(self) -> str:
        """C type of that field."""
        return "unsigned" if self.packed > 1 else self.type

    @property
    def narrow(self) -> bool:
        """Whether a part is narrower than the word that a shuffle moves."""
        return self.packed == 1 and self.bytes < WORD_BYTES

    @property
    def parts(self) -> tuple[int, ...]:
        """Indices of the parts of an access in memory, listed in scan order."""
        order = tuple(range(self.items // self.packed))
        return order if self.scan_order[0] == 0 else order[::-1]

    @property
    def next_parts(self) -> tuple[int, ...]:
        """Parts of the next access that a shift may bring in: of items all but the last, of words a piece of any."""
        return self.parts if self.packed > 1 else self.parts[:-1]

    @property
    def shifts(self) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
        """(bit of the skew, (part in scan order, the part that takes its place) where the bit is set)."""
        count, distance, found = len(self.parts), len(self.parts) // 2, []
        while distance:
            kept = count + distance - (0 if self.packed > 1 else 1)
            found.append((distance * self.packed, tuple((part, part + distance) for part in range(kept))))
            distance //= 2
        return tuple(found)

    @property
    def realigned_parts(self) -> tuple[str, ...]:
        """The shifted access's parts in memory order, in C, after whole parts have moved and before bits within words
        do.
        """
        found = []
        for at in sorted(range(len(self.parts)), key=self.parts.__getitem__):
            pair = (f"w[{at}]", f"w[{at + 1}]") if self.scan_order[0] == 0 else (f"w[{at + 1}]", f"w[{at}]")
            side = "r" if self.scan_order[0] == 0 else "l"
            word = f"__funnelshift_{side}({', '.join(pair)}, {8 * self.bytes} * skew)"
            found.append(word if self.packed > 1 else f"w[{at}]")
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOperand:
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
