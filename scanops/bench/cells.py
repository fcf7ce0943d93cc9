"""A cell of the grid: what is computed of which shape, and what has to be reached."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scanops.codegen.dtypes import DType, dtype_named, scan_result

__all__ = ["ITEMS", "VARIANTS", "Cell", "Shape", "Variant", "rows_of"]

ITEMS = 2**28  # of a large tensor: 1 GiB of float32, some twenty times an L2
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What is computed, apart from the shape."""

    op: str = "sum"
    dtype: str = "float32"
    masked: bool = False  # by a bool mask
    reverse: bool = False
    exclusive: bool = False

    @property
    def input(self) -> DType:
        """The input's row of the dtype table."""
        return dtype_named(self.dtype)

    @property
    def output(self) -> DType:
        """The output's: what torch's cumsum gives."""
        return scan_result(self.input)

    @property
    def item_bytes(self) -> int:
        """Read and written for each item."""
        return self.input.bytes + self.output.bytes + self.masked

    @property
    def plain(self) -> bool:
        """Forward, inclusive, not masked."""
        return not (self.masked or self.reverse or self.exclusive)


VARIANTS: dict[str, Variant] = {
    "sum": Variant(),
    "prod": Variant(op="prod"),
    "reverse": Variant(reverse=True),
    "exclusive": Variant(exclusive=True),
    "masked": Variant(masked=True),
    "prod_masked_reverse_exclusive": Variant(op="prod", masked=True, reverse=True, exclusive=True),
    "sum_bf16": Variant(dtype="bfloat16"),
    "sum_f16": Variant(dtype="float16"),
    "sum_f64": Variant(dtype="float64"),
    "sum_i64": Variant(dtype="int64"),
    "sum_i8": Variant(dtype="int8"),
    "sum_b8": Variant(dtype="bool"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One measurement. Bars are fractions of the time of a copy of the same bytes, or milliseconds."""

    group: str  # a key of the grid's GROUPS
    family: str  # the row of the table it stands in, or is held to
    variant: str  # a key of VARIANTS
    shape: Shape
    dim: int = 1
    floor: float | None = None  # fraction of a copy
    goal: float | None = None
    floor_ms: float | None = None  # where the floor is a time
    goal_ms: float | None = None
    goal_over_copy_ms: float | None = None  # where the goal is the copy's time and this much
    strides: Shape | None = None  # of the input, in elements; None: contiguous
    offset: int = 0  # of the input in its storage, elements
    view: str = ""  # the input's layout in words
    quick: bool = False  # measured by --quick
    compiled: bool = False  # measured under torch.compile too, whose builds take seconds each

    @property
    def name(self) -> str:
        """Unique in the grid: ``sum 8192x32768 dim 1``."""
        words = [self.variant, "x".join(map(str, self.shape)), f"dim {self.dim}"]
        words += [f"offset {self.offset}"] if self.offset else []
        words += [self.view] if self.view else []
        return " ".join(words)

    @property
    def what(self) -> Variant:
        """The variant's row."""
        return VARIANTS[self.variant]

    @property
    def items(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """That a scan has to move: each item read once and written once."""
        return self.items * self.what.item_bytes

    @property
    def outer(self) -> int:
        """Product of the sizes before ``dim``."""
        return math.prod(self.shape[: self.dim])

    @property
    def length(self) -> int:
        """Of a scanned line."""
        return self.shape[self.dim]

    @property
    def inner(self) -> int:
        """Product of the sizes after ``dim``."""
        return math.prod(self.shape[self.dim + 1 :])

    @property
    def dense(self) -> bool:
        """Whether the input is contiguous."""
        return self.strides is None

    def bars(self, copy_ms: float) -> tuple[float, float | None]:
        """(floor, goal) as fractions of a copy that took this long."""
        floor = self.floor if self.floor is not None else copy_ms / (self.floor_ms or math.inf)
        if self.goal_ms is not None:
            return floor, copy_ms / self.goal_ms
        if self.goal_over_copy_ms is not None:
            return floor, copy_ms / (copy_ms + self.goal_over_copy_ms)
        return floor, self.goal


def rows_of(length: int, items: int = ITEMS) -> Shape:
    """As many of that length as a large tensor holds."""
    return (max(1, items // length), length)
