"""What every plan has, whatever its strategy."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from scanops.codegen.dtypes import DType
from scanops.codegen.fragments import Fragments, fragments
from scanops.codegen.spec import ACCESS_BYTES, ScanSpec
from scanops.codegen.targets import Target

__all__ = [
    "ACCESS_BYTES",
    "LENGTH_BYTES",
    "LINE_BYTES",
    "WARP",
    "Operand",
    "Plan",
    "RowPlan",
    "access_width",
    "boundary_of",
    "ceil_div",
    "fills_registers",
    "power_of_two_above",
    "reads_wide",
    "registers_of",
    "vector_width",
    "vectors_in_registers",
]

WARP = 32  # lanes
ASYNC_BYTES = (4, 8, 16)  # that one asynchronous copy brings
LINE_BYTES = 128  # of memory that is fetched together
REGISTER_BYTES = 384  # of the 512 a thread has with 512 threads and one block: the rest is addresses and temporaries
REGISTERS = 65536  # of a multiprocessor, on every target
SPARE_REGISTERS = 24  # a thread's addresses, guards and temporaries
MASK_REGISTERS = 8  # the mask's address and guards
LOOSE_REGISTERS = 20  # addresses and guards of items that are read one by one
SHIFTED_MASK_REGISTERS = 16  # guards of a mask's items at the ends of a row
STRIDED_BYTES = 64  # of them taken by pointers and steps of operands that are gathered
LENGTH_BYTES, NARROW_LENGTH_BYTES = 32, 96  # by a length that is an argument, and what follows from it


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """How a kernel for rows reads one of its inputs."""

    name: str  # of the kernel's parameter
    type: str  # C type of an item
    pointer: str  # the C name of where a thread's part of it begins
    bytes: int  # of an item
    whole: bool  # one access reads several items; else they are read one by one
    placed: str | None  # None: rows follow one another as in the output; "rows", "strided": they begin anywhere
    copied: bool  # asynchronous copies can bring it to shared memory

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
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block; 0 where declared arrays are enough."""
        return 0

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
    def length(self) -> str:
        """The items of a line, in C: the number, or the kernel's parameter."""
        return "length" if self.spec.takes_length else str(self.spec.length)

    @property
    def tiles_a_line(self) -> str:
        """Likewise the tiles of a line; a kernel that takes its length works them out."""
        return "tiles_a_line" if self.spec.takes_length else str(self.tiles)

    @property
    def last_tile(self) -> str:
        """And the number of the last one."""
        return "tiles_a_line - 1" if self.spec.takes_length else str(self.tiles - 1)

    @property
    def tiles_of_length(self) -> str:
        """The tiles of a line of ``length``, in C."""
        return f"(int)((length + {self.tile - 1}{self.wide}) / {self.tile})"

    @property
    def wide(self) -> str:
        """The suffix of a constant that makes a sum of positions as wide as it may get."""
        return "LL" if self.position != "int" else ""

    @property
    def arguments(self) -> tuple[tuple[str, str], ...]:
        """(type, name) of what a kernel is told beside operands and lines: names of variables of the launcher."""
        return ((self.position, "length"), *(("int", name) for name in self.chosen)) if self.spec.takes_length else ()

    @property
    def chosen(self) -> tuple[str, ...]:
        """Numbers that the launcher chooses by the length, where that is an argument."""
        return ()

    @property
    def length_given(self) -> str:
        """The length as a further parameter of a function; empty where it is a number."""
        return f", {self.position} length" if self.spec.takes_length else ""

    @property
    def length_passed(self) -> str:
        """And as a further argument."""
        return ", length" if self.spec.takes_length else ""

    @property
    def block_threads(self) -> str:
        """Threads of a block, in C: the launcher may choose them by the length."""
        return str(self.threads)

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
        return self.spec.input_layout != "dense"

    @property
    def strided_mask(self) -> bool:
        """Whether the mask's addresses come from its strides."""
        return self.masked and self.spec.mask_layout != "dense"

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
    def position(self) -> str:
        """The C type that holds any position in a line, one tile past its end included."""
        return "int" if self.spec.capacity + 2 * self.tile < 2**31 else "long long"

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
    boundary: int = 0  # items; rows begin anywhere and accesses keep to multiples of this, 0: rows begin on accesses

    @property
    def shifted(self) -> bool:
        """Whether a row may begin and end inside an access."""
        return self.boundary > 0

    @property
    def guarded(self) -> bool:
        """Whether some tile reaches past the end of its line."""
        return self.shifted or self.tile * self.tiles != self.spec.length

    @property
    def tiles_of_length(self) -> str:
        """The tiles of a row of ``length``, in C, wherever it begins."""
        return f"(int)((length + {self.tile + max(0, self.boundary - 1) - 1}{self.wide}) / {self.tile})"

    @property
    def accesses_of_length(self) -> str:
        """Likewise its accesses."""
        return f"(int)((length + {self.items + max(0, self.boundary - 1) - 1}{self.wide}) / {self.items})"

    @property
    def unsigned(self) -> str:
        """The unsigned type as wide as a position: one comparison with it tells both ends of a row."""
        return "unsigned" if self.position == "int" else "unsigned long long"

    @property
    def whole_condition(self) -> str:
        """Whether all items of the access at ``position`` lie in the row, in C."""
        if self.spec.length is None:
            return f"position >= 0 && position <= length - {self.items}"
        last = self.spec.length - self.items
        return f"({self.unsigned})position <= {last}" if last >= 0 else "false"

    @property
    def lead(self) -> str:
        """Items from some boundary to the first of the row, in C; negative for a row that is walked from its end."""
        row = f"(line + 1) * {self.length}" if self.spec.reverse else f"line * {self.length}"
        row += "" if self.spec.aligned else " + (long long)((size_t)output / sizeof(Output))"
        return f"-({row})" if self.spec.reverse else f"({row})"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The inputs, in the order of the kernel's parameters."""
        found = [self._operand("input", "Input", "x", self.spec.input, self.spec.input_layout)]
        if self.spec.mask_dtype:
            found.append(self._operand("mask", "Mask", "m", self.spec.mask_dtype, self.spec.mask_layout))
        return tuple(found)

    def _operand(self, name: str, kind: str, pointer: str, dtype: DType, layout: str) -> Operand:
        whole = layout == "dense" and self.spec.aligned
        access = dtype.bytes * self.items if whole else dtype.bytes
        return Operand(
            name=name,
            type=kind,
            pointer=pointer,
            bytes=dtype.bytes,
            whole=whole,
            placed=None if layout == "dense" else layout,
            copied=whole and self.target.copies_async and access in ASYNC_BYTES,
        )

    @property
    def stripe(self) -> int:
        """Items that one access of all the lanes of a row covers."""
        return self.width * self.items

    @property
    def tile(self) -> int:
        """Items of one line in a tile."""
        return self.threads * self.vectors * self.items

    @property
    def offsets(self) -> tuple[int | str, ...]:
        """Where a thread's vectors lie after its first one, in items: numbers, or C."""
        return tuple(self.stripe * k for k in range(self.vectors))

    @property
    def accesses(self) -> tuple[tuple[int, int | str], ...]:
        """(number, offset) of a thread's vectors, by rising address: 32768 fp32 in reverse reach 0.87 of a copy when
        loads fall through memory, 0.98 is the forward figure (H200)."""
        numbered = tuple(enumerate(self.offsets))
        return numbered[::-1] if self.spec.reverse else numbered

    @property
    def first_index(self) -> str:
        """The index in memory of the first vector of the thread whose scan position is ``first``."""
        last = f"length - {self.items}" if self.spec.length is None else self.spec.length - self.items
        return f"({last} - first)" if self.spec.reverse else "first"

    @property
    def warp_items(self) -> str:
        """Items from a warp's first to those of the next warp, in C."""
        return str(self.stripe * self.vectors)

    @property
    def warp_count(self) -> str:
        """Warps of a block, in C."""
        return str(self.warps)

    @property
    def last_lane(self) -> str:
        """The lane of a warp that has the last access of this lane's row, in C; empty: the same one for all."""
        return ""

    @property
    def end(self) -> str:
        """Where the items end that a thread may touch, in C."""
        return self.length

    @property
    def end_passed(self) -> str:
        """The same as a further argument of functions of an access."""
        return f", {self.end}" if self.spec.takes_length else ""

    @property
    def narrow(self) -> str:
        """A cast that keeps a division cheap: of a tile's number, by tiles that only the launch knows."""
        return "(int)" if self.spec.takes_length else ""

    def used(self, number: int) -> str:
        """Whether a warp has the stripe of this number, in C; empty: it always has."""
        return ""


def ceil_div(a: int, b: int) -> int:
    """The least whole number that is not below a / b."""
    return -(-a // b)


def power_of_two_above(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()


def vector_width(spec: ScanSpec) -> int:
    """Items a thread reads with one access: all operands in at most 16 bytes each, every row on the same boundary."""
    width = spec.access_items if spec.aligned else 1
    while not spec.divides(width):
        width //= 2
    return width


def access_width(spec: ScanSpec) -> int:
    """Items of an access that no row's start holds back: all operands in at most 16 bytes each."""
    return spec.access_items


def boundary_of(spec: ScanSpec, items: int, to: int = LINE_BYTES) -> int:
    """Items whose multiples accesses keep to, ``to`` bytes of output; 0 when every row begins on an access already."""
    return 0 if spec.aligned and spec.divides(items) else max(items, to // spec.out.bytes)


def reads_wide(spec: ScanSpec, items: int) -> bool:
    """Whether an access of so many items takes the full 16 bytes, of the input or of the output."""
    return items * max(spec.input.bytes, spec.out.bytes) == ACCESS_BYTES


def fills_registers(spec: ScanSpec, items: int, vectors: int, threads: int) -> bool:
    """Whether a block takes more than half of a multiprocessor's registers.

    ptxas must be told so, or it spills to make room for a second block. Telling it of lighter blocks does harm: it then
    takes registers that a third block would have had, and 4097 fp32 falls from 0.91 of a copy to 0.75 (H200).
    """
    return 2 * threads * registers_of(spec, items, vectors) > REGISTERS


def registers_of(spec: ScanSpec, items: int, vectors: int) -> int:
    """About what a thread takes for its part of a tile: states take the place of what was loaded."""
    mask = _loaded_bytes(spec.mask_dtype, items)
    each = max(_loaded_bytes(spec.input, items) + mask, (items + 1) * fragments(spec).state_bytes)
    loose = spec.strided or not spec.aligned
    spare = SPARE_REGISTERS + (MASK_REGISTERS if mask else 0) + (LOOSE_REGISTERS if loose else 0)
    spare += SHIFTED_MASK_REGISTERS if mask and boundary_of(spec, items) else 0
    return vectors * each // 4 + spare


def vectors_in_registers(spec: ScanSpec, items: int) -> int:
    """Accesses whose items a thread's registers hold as states, with a prefix each and one more while that is found."""
    loaded = _loaded_bytes(spec.input, items) + _loaded_bytes(spec.mask_dtype, items)
    each = max(loaded, (items + 2) * fragments(spec).state_bytes)
    taken = STRIDED_BYTES if spec.strided else 0
    if spec.takes_length:
        taken += NARROW_LENGTH_BYTES if min(spec.input.bytes, spec.out.bytes) < 4 else LENGTH_BYTES
    return max(1, (REGISTER_BYTES - taken) // each)


def _loaded_bytes(dtype: DType | None, items: int) -> int:
    """What one access of an operand takes in registers, which are 4 bytes each; none without the operand."""
    return max(4, items * dtype.bytes) if dtype else 0
