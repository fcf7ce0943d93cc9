"""What every plan has, whatever its strategy."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from scanops.codegen.dtypes import DType
from scanops.codegen.fragments import Fragments, fragments
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import Target

__all__ = [
    "WARP",
    "Plan",
    "RowPlan",
    "ceil_div",
    "fills_registers",
    "power_of_two_above",
    "reads_wide",
    "vector_width",
    "vectors_in_registers",
]

WARP = 32  # lanes
ACCESS_BYTES = 16  # the widest load or store of a thread
REGISTER_BYTES = 384  # of the 512 a thread has with 512 threads and one block: the rest is addresses and temporaries
REGISTERS = 65536  # of a multiprocessor, on every target
SPARE_REGISTERS = 24  # a thread's addresses, guards and temporaries; as many again with a mask
STRIDED_BYTES = 64  # of them taken by pointers and steps of operands that are gathered
MASKED_BYTES = 64  # by pointers and guards of two operands, when another tile waits meanwhile
NARROW_BYTES = 32  # by conversions to and from types below 4 bytes, likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a spec is computed on a target: every number its template prints."""

    strategy: ClassVar[str]
    template: ClassVar[str]

    spec: ScanSpec
    target: Target
    why: str  # the reason for the strategy and the shape, in a sentence
    threads: int  # a block
    items: int  # consecutive items a thread scans serially: one access, or a run of a column
    tiles: int  # steps a block takes along a line; 1: the line is one tile and the kernel has no loop

    @property
    def code(self) -> Fragments:
        """The C++ text of types and expressions."""
        return fragments(self.spec)

    @property
    def intrinsics(self) -> tuple[str, ...]:
        """Macros of intrinsics.cuh.j2 the kernel calls."""
        return self.code.intrinsics

    @property
    def warps(self) -> int:
        """Warps a block."""
        return self.threads // WARP

    @property
    def crosses_warps(self) -> bool:
        """Whether totals pass between warps, through shared memory."""
        return self.warps > 1

    @property
    def loops(self) -> bool:
        """Whether a block takes more than one step along a line."""
        return self.tiles > 1

    @property
    def tile(self) -> int:
        """Items of one line in a tile."""
        raise NotImplementedError

    @property
    def guarded(self) -> bool:
        """Whether some tile reaches past the end of its line."""
        return self.tile * self.tiles != self.spec.length

    @property
    def masked(self) -> bool:
        """Whether there is a mask of either sort."""
        return self.spec.mask is not None

    @property
    def selects(self) -> bool:
        """Whether the mask is bool: a masked-out element counts as the identity."""
        return self.spec.mask == "bool"

    @property
    def strided_input(self) -> bool:
        """Whether the input's addresses come from its strides."""
        return self.spec.input_layout == "strided"

    @property
    def strided_mask(self) -> bool:
        """Whether the mask's addresses come from its strides."""
        return self.masked and self.spec.mask_layout == "strided"

    @property
    def strided(self) -> bool:
        """Whether the kernel needs the geometry of the tensors."""
        return self.strided_input or self.strided_mask

    @property
    def sign(self) -> str:
        """The direction in which a line is walked in memory."""
        return "-" if self.spec.reverse else "+"

    @property
    def minus(self) -> str:
        """The sign of a step along the line."""
        return "-" if self.spec.reverse else ""

    @property
    def scan_order(self) -> tuple[int, ...]:
        """Components of a vector as they lie in memory, listed in scan order."""
        order = tuple(range(self.items))
        return order[::-1] if self.spec.reverse else order

    @property
    def counts_lines(self) -> bool:
        """Whether the kernel needs the number of lines: blocks do not match lines one to one."""
        return False

    @property
    def whole_accesses(self) -> bool:
        """Whether a thread's items are read by one access, not one by one."""
        return False

    @property
    def position(self) -> str:
        """The C type that holds any position in a line, one tile past its end included."""
        return "int" if self.spec.length + 2 * self.tile < 2**31 else "long long"

    @property
    def steps(self) -> tuple[int, ...]:
        """Distances, in lanes, of the shuffles of a scan across a warp."""
        return tuple(2**k for k in range(5))

    @property
    def width(self) -> int:
        """Lanes a shuffle stays within."""
        return WARP

    def numbers(self) -> dict[str, object]:
        """The plan's own fields by name, for printing."""
        shared = {"spec", "target", "why"}
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in shared}

    def describe(self) -> str:
        """One line: the strategy and its numbers."""
        return f"{self.strategy}: " + ", ".join(f"{name} {value}" for name, value in self.numbers().items())


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan(Plan):
    """A plan for lines whose items are neighbours in the output: accesses are vectors along the line."""

    vectors: int  # accesses a thread makes in a tile

    @property
    def whole_accesses(self) -> bool:
        """Whether a thread's items are read by one access, not one by one."""
        return True

    @property
    def stripe(self) -> int:
        """Items that one access of all the lanes of a row covers."""
        return self.width * self.items

    @property
    def tile(self) -> int:
        """Items of one line in a tile."""
        return self.threads * self.vectors * self.items

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where a thread's vectors lie after its first one, in items."""
        return tuple(self.stripe * k for k in range(self.vectors))

    @property
    def accesses(self) -> tuple[tuple[int, int], ...]:
        """(number, offset) of a thread's vectors, by rising address: 32768 fp32 in reverse reach 0.87 of a copy when
        loads fall through memory, 0.98 is the forward figure (H200)."""
        numbered = tuple(enumerate(self.offsets))
        return numbered[::-1] if self.spec.reverse else numbered

    @property
    def next_accesses(self) -> tuple[tuple[int, int], ...]:
        """The same in the tile after."""
        return tuple((number, offset + self.tile) for number, offset in self.accesses)

    @property
    def first_index(self) -> str:
        """The index in memory of the first vector of the thread whose scan position is ``first``."""
        return f"({self.spec.length - self.items} - first)" if self.spec.reverse else "first"


def ceil_div(a: int, b: int) -> int:
    """The least whole number that is not below a / b."""
    return -(-a // b)


def power_of_two_above(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()


def vector_width(spec: ScanSpec) -> int:
    """Items a thread reads with one access: all operands in at most 16 bytes each, every row on the same boundary."""
    widest = max(spec.input.bytes, spec.out.bytes, spec.weight.bytes if spec.weight else 1)
    width = ACCESS_BYTES // widest if spec.aligned else 1
    while spec.length % width:
        width //= 2
    return width


def reads_wide(spec: ScanSpec, items: int) -> bool:
    """Whether an access of so many items takes the full 16 bytes, of the input or of the output."""
    return items * max(spec.input.bytes, spec.out.bytes) == ACCESS_BYTES


def fills_registers(spec: ScanSpec, items: int, vectors: int, threads: int, *, raw: int) -> bool:
    """Whether a block takes more than half of a multiprocessor's registers.

    ptxas must be told so, or it spills to make room for a second block. Telling it of lighter blocks does harm: it then
    takes registers that a third block would have had, and 4097 fp32 falls from 0.91 of a copy to 0.75 (H200).
    """
    mask = _loaded_bytes(spec.mask_dtype, items)
    waiting = raw * _loaded_bytes(spec.input, items) + mask
    each = waiting + (items + 1) * fragments(spec).state_bytes
    registers = vectors * each // 4 + SPARE_REGISTERS * (2 if mask else 1)
    return 2 * threads * registers > REGISTERS


def vectors_in_registers(spec: ScanSpec, items: int, *, raw: int, scanned: int) -> int:
    """Accesses a thread's registers hold, when ``raw`` tiles wait as loaded and ``scanned`` ones as states.

    A scanned access needs its states, and one more for its prefix and one while that is found.
    """
    state = fragments(spec).state_bytes
    narrow = min(spec.input.bytes, spec.out.bytes) < 4
    loaded = _loaded_bytes(spec.input, items) + _loaded_bytes(spec.mask_dtype, items)
    each = max(loaded, raw * loaded + scanned * (items + 1) * state + state)
    taken = STRIDED_BYTES if spec.strided else 0
    if raw and spec.mask_dtype:
        taken += MASKED_BYTES + (NARROW_BYTES if narrow else 0)
    return max(1, (REGISTER_BYTES - taken) // each)


def _loaded_bytes(dtype: DType | None, items: int) -> int:
    """What one access of an operand takes in registers, which are 4 bytes each; none without the operand."""
    return max(4, items * dtype.bytes) if dtype else 0
