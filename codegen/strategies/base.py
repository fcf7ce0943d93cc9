"""The fields and properties that every plan has, whatever its strategy."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

from scanops.codegen.strategies.elements import Elements

__all__ = ["WARP", "Constant", "Plan", "Result", "ceil_div", "power_of_two_above"]

WARP = 32  # lanes


class Constant(NamedTuple):
    """A number of a plan, printed as a ``constexpr`` of the kernel's text."""

    name: str  # in C: kThreads
    value: int
    meaning: str  # what the number counts, printed as a comment

    @property
    def type(self) -> str:
        """C type of the constant."""
        if isinstance(self.value, bool):
            return "bool"
        return "int" if self.value < 2**31 else "long long"

    @property
    def literal(self) -> str:
        """The value as a C literal."""
        return str(self.value).lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One output of a kernel. Functions that store it are overloaded on its type."""

    name: str  # name of the kernel's parameter
    type: str  # C type of an item
    pointer: str  # C name of the pointer to a thread's part
    of: str  # the function that projects a state to an item
    of_each: str  # the same for several lines

    @property
    def vector(self) -> str:
        """C type of a vectorised store of a thread."""
        return f"{self.type}Vector"


VALUES = Result(name="output", type="Output", pointer="y", of="result", of_each="results")
SECOND = Result(name="second", type="Second", pointer="z", of="second_of", of_each="seconds_of")
INDICES = Result(name="indices", type="Index", pointer="z", of="index_of", of_each="indices_of")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Elements):
    """How a spec is computed on a target: every number its template prints."""

    strategy: ClassVar[str]
    template: ClassVar[str]

    def constants(self) -> tuple[Constant, ...]:
        """The numbers that the kernel's text names, in the order in which it declares them; empty: none."""
        return ()

    def grid(self, lines: int, multiprocessors: int, neighbours: int | None = None) -> int:
        """Return the number of blocks of a launch for so many lines, as the launcher computes it.

        ``neighbours`` of the lines are adjacent in some operand, by default all of them. Where the length is an
        argument, the number is that for the longest line.
        """
        raise NotImplementedError

    @property
    def results(self) -> tuple[Result, ...]:
        """The outputs, in the order of the kernel's parameters."""
        return (VALUES, INDICES if self.spec.indexed else SECOND) if self.spec.doubled else (VALUES,)

    @property
    def intrinsics(self) -> tuple[str, ...]:
        """Macros of intrinsics.cuh.j2 the kernel calls."""
        return self.code.intrinsics

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block; 0 where declared arrays are enough."""
        return 0

    @property
    def warps(self) -> int:
        """Number of warps per block."""
        return self.threads // WARP

    @property
    def crosses_warps(self) -> bool:
        """Whether warps exchange totals through shared memory."""
        return self.warps > 1

    @property
    def loops(self) -> bool:
        """Whether a block takes more than one step along a line."""
        return self.tiles > 1

    @property
    def tile(self) -> int:
        """Number of items of one line in a tile."""
        raise NotImplementedError

    @property
    def guarded(self) -> bool:
        """Whether some tile reaches past the end of its line."""
        return self.tile * self.tiles != self.spec.length

    @property
    def chosen(self) -> tuple[str, ...]:
        """Launch numbers that the launcher derives from the length, where that is an argument."""
        return ()

    @property
    def strided(self) -> bool:
        """Whether the kernel needs the sizes and strides of the operands."""
        return self.spec.strided

    @property
    def takes_neighbours(self) -> bool:
        """Whether a block scans lines that are adjacent in a dimension chosen by the host."""
        return False

    @property
    def out_items(self) -> int:
        """Items that one access of the output writes."""
        return self.items

    @property
    def in_pieces(self) -> bool:
        """Whether lanes exchange pieces of wide outputs, so that a warp stores contiguous memory."""
        return False

    @property
    def in_runs(self) -> bool:
        """Whether lanes exchange accesses, so that a thread's items are consecutive."""
        return False

    @property
    def counts_lines(self) -> bool:
        """Whether the kernel needs the number of lines: blocks do not correspond to lines one to one."""
        return False

    @property
    def position(self) -> str:
        """The C type that holds any position in a line, one tile past its end included."""
        return "int" if self.spec.capacity + 2 * self.tile < 2**31 else "long long"

    @property
    def width(self) -> int:
        """Number of lanes that a shuffle stays within."""
        return WARP

    def numbers(self) -> dict[str, object]:
        """The plan's own fields by name, for printing."""
        shared = {"spec", "target", "why", "few"}
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in shared}

    def describe(self) -> str:
        """The strategy and its numbers in one line."""
        return f"{self.strategy}: " + ", ".join(f"{name} {value}" for name, value in self.numbers().items())


def ceil_div(a: int, b: int) -> int:
    """The least whole number that is not below a / b."""
    return -(-a // b)


def power_of_two_above(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()
