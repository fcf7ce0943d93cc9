"""How a kernel for rows reads one of its inputs, wherever it lies."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ASYNC_BYTES", "Operand"]

ASYNC_BYTES = (4, 8, 16)  # that one asynchronous copy brings
WORD_BYTES = 4  # that lanes exchange and that are shifted together


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """How a kernel for rows reads one of its inputs."""

    name: str  # of the kernel's parameter
    type: str  # C type of an item
    pointer: str  # the C name of where a thread's part of it begins
    bytes: int  # of an item
    pieces: tuple[str, ...]  # what is appended to an item in C for each piece of it that one shuffle carries
    scan_order: tuple[int, ...]  # items of an access as they lie in memory, listed in scan order
    whole: bool  # one access reads several items; else they are read one by one
    realigned: bool  # accesses keep to its own boundaries, off those of the output; items are shifted into their places
    placed: str | None  # None: rows follow one another as in the output; "rows", "strided": they begin anywhere
    copies_async: bool  # the target has asynchronous copies

    @property
    def vector(self) -> str:
        """C type of what a thread reads at once."""
        return f"{self.type}Vector"

    @property
    def strided(self) -> bool:
        """Whether the items of a row lie apart."""
        return self.placed == "strided"

    @property
    def step(self) -> str:
        """The C name of the distance from one item to the next."""
        return f"geometry.{self.name}_step"

    @property
    def items(self) -> int:
        """Items of an access."""
        return len(self.scan_order)

    @property
    def access_bytes(self) -> int:
        """Bytes of an access."""
        return self.items * self.bytes

    @property
    def copied(self) -> bool:
        """Whether asynchronous copies can bring it to shared memory."""
        return self.whole and self.copies_async and self.access_bytes in ASYNC_BYTES

    @property
    def skew(self) -> str:
        """The C name of how many items an access begins ahead of the place of its first one in the output."""
        return f"{self.pointer}_skew"

    @property
    def first(self) -> str:
        """The C name of the scan position of the first item of a thread's first access."""
        return f"{self.pointer}_first"

    @property
    def packed(self) -> int:
        """Items of a word, where an access is shifted by words and within them; 1: by items."""
        return WORD_BYTES // self.bytes if self.bytes < WORD_BYTES <= self.access_bytes else 1

    @property
    def part(self) -> str:
        """The field of an access that it is shifted by."""
        return "word" if self.packed > 1 else "item"

    @property
    def part_type(self) -> str:
        """Its C type."""
        return "unsigned" if self.packed > 1 else self.type

    @property
    def narrow(self) -> bool:
        """Whether that is less than lanes exchange."""
        return self.packed == 1 and self.bytes < WORD_BYTES

    @property
    def parts(self) -> tuple[int, ...]:
        """Parts of an access as they lie in memory, listed in scan order."""
        order = tuple(range(self.items // self.packed))
        return order if self.scan_order[0] == 0 else order[::-1]

    @property
    def next_parts(self) -> tuple[int, ...]:
        """Those of the next access that a shift may bring in: of items all but the last, of words a piece of any."""
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
        """A place's parts as they lie in memory, in C, once whole parts have moved: words still begin within others."""
        found = []
        for at in sorted(range(len(self.parts)), key=self.parts.__getitem__):
            pair = (f"w[{at}]", f"w[{at + 1}]") if self.scan_order[0] == 0 else (f"w[{at + 1}]", f"w[{at}]")
            side = "r" if self.scan_order[0] == 0 else "l"
            word = f"__funnelshift_{side}({', '.join(pair)}, {8 * self.bytes} * skew)"
            found.append(word if self.packed > 1 else f"w[{at}]")
        return tuple(found)
