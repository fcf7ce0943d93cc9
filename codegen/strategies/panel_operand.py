"""How a kernel for columns reads one of its inputs, to registers or to the ring in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from scanops.codegen.strategies.base import WARP
from scanops.codegen.strategies.operands import Operand
from scanops.codegen.strategies.panel_shape import PanelShape
from scanops.codegen.strategies.rows import ACCESS_BYTES

__all__ = ["Copy", "PanelOperand"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One copy of a lane to its stage of the ring, in C."""

    live_if: str  # C condition that the source exists; empty: always
    call: str  # name of the copy function
    to: str  # destination in the ring, relative to `slot`
    source: str  # source in the operand, relative to `first`


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelOperand(Operand):
    """How a kernel for columns reads one of its inputs: the items of an access are neighbouring columns."""

    shape: PanelShape  # plan of the panel

    @property
    def part(self) -> str:
        """Name of the field of an access that shifts move: item or word."""
        return "word" if self.packed > 1 else "column"

    @property
    def row_step(self) -> str:
        """Items from one row to the next in scan order, in C."""
        return self.shape.minus + (self.step if self.placed else str(self.shape.spec.inner))

    @property
    def by_columns(self) -> bool:
        """Whether a row's items are read one by one where an access might exceed the operand."""
        return self.realigned or self.shape.apart

    # ---- end of the operand

    @property
    def end(self) -> str:
        """C name of the end of the operand."""
        return f"{self.pointer}_end"

    @property
    def extent(self) -> str:
        """Items from the start of the operand to its end, in C."""
        length = self.shape.length
        if not self.placed:
            return f"lines * {length}"
        last = f"line_offset(lines - 1, geometry.rank, geometry.size, geometry.{self.name}_stride)"
        return f"{last} + ({length} - 1) * {self.step} + 1"

    @property
    def extent_given(self) -> str:
        """Start and end of the operand, as additional parameters."""
        begin = f", const {self.type}* begin" if self.realigned or self.shape.stands_in else ""
        return begin + (f", const {self.type}* end" if self.realigned else "")

    @property
    def extent_passed(self) -> str:
        """Start and end of the operand, as additional arguments."""
        begin = f", {self.name}" if self.realigned or self.shape.stands_in else ""
        return begin + (f", {self.end}" if self.realigned else "")

    @property
    def inside(self) -> str:
        """Whether all accesses of a thread's rows stay within a misaligned operand, in C."""
        first, last = "first", "first" + (f" + {self.shape.items - 1} * step" if self.shape.items > 1 else "")
        lowest, highest = (last, first) if self.shape.spec.reverse else (first, last)
        rows = f"live >= {self.shape.items} && " if self.shape.guarded else ""
        return f"{rows}{lowest} >= begin + {self.items - 1} && {highest} + {2 * self.items} <= end"

    # ---- one contiguous range

    @property
    def together(self) -> int:
        """Number of accesses of a thread in the widest access."""
        return ACCESS_BYTES // self.access_bytes

    @property
    def are_together(self) -> bool:
        """Whether the widest access holds several accesses of a thread."""
        return self.together > 1

    @property
    def wide_items(self) -> int:
        """Number of items in the widest access."""
        return self.together * self.items

    @property
    def flat(self) -> bool:
        """Whether a warp reads its rows as one contiguous range, by full accesses."""
        shape = self.shape
        if self.placed or not shape.exchanged or shape.gap or shape.columns != shape.spec.inner:
            return False
        if self.realigned:
            return True
        aligned_rows = ACCESS_BYTES // min(ACCESS_BYTES, self.access_bytes * shape.lanes)
        return self.are_together and shape.warp_rows % aligned_rows == 0 and shape.spec.divides(aligned_rows)

    @property
    def flat_first(self) -> str:
        """Row in memory where a warp's contiguous range starts, in C."""
        shape, ahead = self.shape, f"lane / {self.shape.lanes}"
        if not shape.spec.reverse:
            return f"first - {ahead}"
        length, rows = shape.spec.length, shape.warp_rows
        last = f"length - {rows}" if length is None else str(length - rows)
        return f"{last} - first + {ahead}"

    @property
    def falls(self) -> bool:
        """Whether rows lie in the ring in memory order, against the scan order."""
        return self.flat and self.shape.spec.reverse

    # ---- the ring

    @property
    def stage_shape(self) -> tuple[int, int]:
        """Array bounds of a stage: by warp and place, or by row and thread; with slack for shifted items."""
        shape = self.shape
        if shape.exchanged:
            return shape.warps, shape.warp_accesses + (self.together if self.realigned else 0)
        return shape.items, shape.threads

    @property
    def row_places(self) -> tuple[tuple[int, int], ...]:
        """(row, its access in the ring, counted from the access of a thread's first row)."""
        pitch = -self.shape.row_pitch if self.falls else self.shape.row_pitch
        return tuple((row, row * pitch) for row in self.shape.rows)

    @property
    def copies(self) -> tuple[Copy, ...]:
        """The copies of a lane for one tile."""
        return self._flat_copies() if self.flat else self._row_copies()

    @property
    def streams(self) -> bool:
        """Whether copies bypass L1: 256 x 1024 x 1024 with 3 stages has 0.974 of a copy this way and 0.829 through L1.

        Where lanes exchange rows, neighbours share cache lines: 4096 x 4096 x 16 has 0.90 through L1 and 0.85 past it
        (H200).
        """
        return not self.shape.exchanged and self.copy_items * self.bytes == ACCESS_BYTES

    @property
    def copy_items(self) -> int:
        """Items per copy of a thread's row."""
        return 1 if self.shape.apart else min(self.items, ACCESS_BYTES // self.bytes)

    def _row_copies(self) -> tuple[Copy, ...]:
        columns = range(0, self.items, self.copy_items)
        return tuple(self._row_copy(k, column) for k in self.shape.rows for column in columns)

    def _row_copy(self, k: int, column: int) -> Copy:
        shape, row = self.shape, k * self.shape.spacing
        own = "slot" + (f" + {k * shape.row_pitch}" if k else "")
        slot = f"slot + access_place(lane, {row})" if shape.exchanged else own
        down = f" + {row} * step" if row else ""
        across = f" + {column * shape.column_spacing}" if column else ""
        return Copy(
            live_if=shape.live_if(row, column),
            call="copy_stream_16" if self.streams else f"copy_async_{self.copy_items * self.bytes}",
            to=f"&({slot})->column[{column}]" if self.copy_items < self.items else slot,
            source=f"first{down}{across}",
        )

    def _flat_copies(self) -> tuple[Copy, ...]:
        count = self.shape.warp_rows * self.shape.lanes // self.together + self.realigned
        starts = range(0, count, WARP)
        return tuple(self._flat_copy(f"lane + {k}" if k else "lane", partly=k + WARP > count) for k in starts)

    def _flat_copy(self, number: str, *, partly: bool) -> Copy:
        place = number if number == "lane" else f"({number})"
        item = f"{place} * {self.wide_items}"
        conditions = (self._is_there(number, item) if partly else "", self._lives(item))
        return Copy(
            live_if=" && ".join(condition for condition in conditions if condition),
            call=f"bring_{self.name}" if self.realigned else "copy_async_16",
            to=f"slot + {place}" + (f" * {self.together}" if self.are_together else ""),
            source=f"first + {item}",
        )

    def _is_there(self, number: str, item: str) -> str:
        """Whether the range has an access of this number, in C; empty: the guard of its first item decides."""
        shape = self.shape
        if not self.realigned:
            return f"{number} < {shape.warp_rows * shape.lanes // self.together}"
        told = shape.guarded and not shape.spec.reverse
        return "" if told else f"{item} < {shape.warp_rows * shape.columns} + skew"

    def _lives(self, item: str) -> str:
        """Whether an item of the range lies before the end of the column, in C; empty: always."""
        shape = self.shape
        if not shape.guarded:
            return ""
        if shape.spec.reverse:
            return f"{item} >= {shape.warp_rows * shape.columns} - inside"
        return f"{item} < inside" + (" + skew" if self.realigned else "")
