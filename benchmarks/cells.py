"""A cell of the grid: what is computed, of which shape, the bar it is held to, and its tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from benchmarks.scans import Scan
from scanops.codegen.dtypes import DType, default_result, dtype_named
from scanops.requests.call import Call
from scanops.requests.request import Inputs

__all__ = ["ITEMS", "VARIANTS", "Case", "Cell", "Shape", "Variant", "allocate", "rows_of"]

ITEMS = 2**28  # of a large tensor: 1 GiB of float32, some twenty times an L2 cache
KEPT = 0.7  # of the items a mask keeps
LONG_PRODUCT = 2**16  # factors; longer products are of signs only, which neither overflow nor vanish
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A scan without its shape: operator, dtype, mask, direction."""

    op: str = "sum"
    dtype: str = "float32"
    masked: bool = False  # by a bool mask
    reverse: bool = False
    exclusive: bool = False

    @property
    def input(self) -> DType:
        """The dtype row of the input."""
        return dtype_named(self.dtype)

    @property
    def output(self) -> DType:
        """The dtype row of the output, which is that of torch.cumsum."""
        return default_result("widened", self.input)

    @property
    def item_bytes(self) -> int:
        """Bytes read and written for each item."""
        return self.input.bytes + self.output.bytes + self.masked

    @property
    def plain(self) -> bool:
        """Whether the scan is forward, inclusive and not masked."""
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
    """One measurement and its bars, as fractions of the speed of a copy of the same bytes or in milliseconds."""

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
        """The name of the cell, unique in the grid: ``sum 8192x32768 dim 1``."""
        words = [self.variant, "x".join(map(str, self.shape)), f"dim {self.dim}"]
        words += [f"offset {self.offset}"] if self.offset else []
        words += [self.view] if self.view else []
        return " ".join(words)

    @property
    def what(self) -> Variant:
        """The row of VARIANTS that the cell measures."""
        return VARIANTS[self.variant]

    @property
    def items(self) -> int:
        """The number of items of the input."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes that a scan has to move: each item read once and written once."""
        return self.items * self.what.item_bytes

    @property
    def outer(self) -> int:
        """The product of the sizes before ``dim``."""
        return math.prod(self.shape[: self.dim])

    @property
    def length(self) -> int:
        """The length of each scanned line."""
        return self.shape[self.dim]

    @property
    def inner(self) -> int:
        """The product of the sizes after ``dim``."""
        return math.prod(self.shape[self.dim + 1 :])

    def bars(self, copy_ms: float) -> tuple[float, float | None]:
        """Return (floor, goal) as fractions of the speed of a copy that took ``copy_ms``."""
        floor = self.floor if self.floor is not None else copy_ms / (self.floor_ms or math.inf)
        if self.goal_ms is not None:
            return floor, copy_ms / self.goal_ms
        if self.goal_over_copy_ms is not None:
            return floor, copy_ms / (copy_ms + self.goal_over_copy_ms)
        return floor, self.goal


def rows_of(length: int, items: int = ITEMS) -> Shape:
    """Return the shape of a tensor of about ``items`` items whose rows have this length."""
    return (max(1, items // length), length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(Scan):
    """A cell with its input, mask and output on a device."""

    cell: Cell
    x: torch.Tensor
    mask: torch.Tensor | None
    y: torch.Tensor  # where results go: contiguous


def allocate(cell: Cell, device: str = "cuda", *, filled: bool = True) -> Case:
    """Allocate the tensors of a cell; ``filled`` fills x and mask with the same random values each time.

    Scans of these values neither overflow nor vanish.
    """
    what = cell.what
    dtype, out_dtype = getattr(torch, what.input.name), getattr(torch, what.output.name)
    strides = cell.strides or torch.empty(cell.shape, device="meta").stride()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(cell.shape, strides, strict=True))
    random = torch.Generator(device).manual_seed(2026) if filled else None
    x = _values(cell, cell.offset + extent, dtype, device, random).as_strided(cell.shape, strides, cell.offset)
    mask = torch.empty(cell.shape, dtype=torch.bool, device=device) if what.masked else None
    if mask is not None and filled:
        mask.bernoulli_(KEPT, generator=random)
    y = torch.empty(cell.shape, dtype=out_dtype, device=device)
    call = Call(what.op, cell.dim, reverse=what.reverse, exclusive=what.exclusive)
    return Case(name=cell.name, cell=cell, call=call, inputs=Inputs(x, mask), out=y, x=x, mask=mask, y=y)


def _values(cell: Cell, count: int, dtype: torch.dtype, device: str, random: torch.Generator | None) -> torch.Tensor:
    if random is None:
        return torch.empty(count, dtype=dtype, device=device)
    if dtype == torch.bool:
        return torch.empty(count, dtype=dtype, device=device).bernoulli_(0.5, generator=random)
    if not dtype.is_floating_point:
        return torch.randint(-100, 100, (count,), dtype=dtype, device=device, generator=random)
    x = torch.empty(count, dtype=dtype, device=device).normal_(generator=random)
    if cell.what.op == "prod":
        x = x.sign_() if cell.length > LONG_PRODUCT else x.mul_(1e-3).add_(1)
    return x
