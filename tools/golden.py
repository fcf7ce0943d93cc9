"""Render the committed kernels of ``generated/``: ``python -m tools.golden [--check]``.

The list covers every strategy and every feature of the templates. Every kernel is for the default target. Needs neither
torch nor a compiler.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scanops.codegen.plan import Plan, make_plan
from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import DEFAULT_TARGET
from tools.committed import run

__all__ = ["GOLDEN", "Golden", "golden_files", "main"]

COMMAND = "python -m tools.golden"
BANNER = "// scanops:"  # the beginning of a file that may be removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """One committed kernel: the slug of its spec, and what it shows."""

    slug: str  # of its spec, and the file's name
    shows: str  # what a reader finds there and in no kernel above it

    @property
    def spec(self) -> ScanSpec:
        """The spec that the slug names."""
        return ScanSpec.parse(self.slug)

    @property
    def plan(self) -> Plan:
        """The plan of the spec on the default target."""
        return make_plan(self.spec, DEFAULT_TARGET)

    @property
    def file(self) -> str:
        """The name of the file in ``generated/``."""
        return f"{self.slug}.cu"


GOLDEN: tuple[Golden, ...] = (
    # rows within a warp
    Golden(slug="sum-f32-n4", shows="the smallest kernel: one thread per row, no shuffle"),
    Golden(slug="prod-f32-n128", shows="one access per lane, one warp per row"),
    Golden(
        slug="sum-f16-n64-reverse-exclusive",
        shows="several rows per warp; half types scanned in float; reverse and exclusive",
    ),
    Golden(slug="sum-f32-n640", shows="several accesses per lane"),
    # short rows of any length, flat through shared memory
    Golden(slug="sum-i32-n7", shows="an odd length: one lane per row; int32 widens to int64"),
    Golden(slug="prod-f32-n100-mask_b8-reverse", shows="several lanes per row; results overwrite the items"),
    Golden(
        slug="sum-f16-n31-exclusive-unaligned",
        shows="tensors that start off the 16-byte boundary, each at another offset",
    ),
    Golden(
        slug="sum-f32-n600-acc_compensated", shows="compensated summation: the rounding error is kept beside the sum"
    ),
    # a block a row
    Golden(slug="prod-f32-n4096", shows="straight-line code: a row is one tile, guarded past its end"),
    Golden(slug="sum-f32-n4097", shows="misaligned rows: accesses stay on boundaries and overlap both ends"),
    Golden(slug="sum-bf16-n1000-mask_b8", shows="a bool mask selects: a masked-out item counts as the identity"),
    Golden(slug="prod-f32-n32768", shows="the headline: 128 KiB of a row in the registers of one block, no guards"),
    Golden(slug="sum-f32-n32768-reverse", shows="the same in reverse, without a flip"),
    Golden(slug="sum-f32-n32768-mask_b8", shows="a bool mask: one byte per item, never multiplied"),
    Golden(slug="prod-f64-n3000-reverse", shows="double, reverse; the tile is longer than the row"),
    Golden(slug="sum-i64-n4096-mask_i64", shows="a mask that multiplies, in wrapping 64-bit arithmetic"),
    Golden(slug="sum-bf16-n6144-mask_f32-exclusive", shows="bfloat16 times float32, in float32"),
    Golden(slug="cummax-f32-n4096-reverse", shows="two outputs: values and indices, both in the state"),
    Golden(slug="sum-f32-n1000-rows", shows="rows of a larger tensor: each contiguous, at any distance"),
    Golden(
        slug="sum-bf16-n2048-mask_b8-reverse-unaligned",
        shows="half types and a mask off the 16-byte boundary: accesses shifted by words and within words",
    ),
    Golden(slug="prod-c64-n1000", shows="complex numbers, shuffled in two parts"),
    Golden(
        slug="sum-f32-n1000-segments-exclusive",
        shows="head flags restart the scan: a state records whether its range holds one",
    ),
    Golden(
        slug="linear-f32-n4096-gate_f32",
        shows="a recurrence with two inputs: lanes exchange accesses, then one step per item",
    ),
    Golden(
        slug="logcumsumexp-f32-n1024",
        shows="one exp and one log per item, with the treatment of infinities and NaN",
    ),
    Golden(
        slug="prod_gradient-f32-n4096-gate_f32-reverse-exclusive-again",
        shows="a gradient by two scans of one tile: the forward prefixes, then the reverse recurrence",
    ),
    # long rows, their tiles walked by all blocks in order
    Golden(
        slug="prod-f32-n131072", shows="prefetched tiles, whose totals are published two steps before they are used"
    ),
    Golden(slug="sum-f32-n65535", shows="the same for misaligned rows"),
    Golden(
        slug="cummin-i64-n65537-mask_b8",
        shows="indices of 64-bit values, over persistent blocks; -1 where all items are masked out",
    ),
    Golden(slug="sum-i32-n2147483648-mask_b8", shows="the longest row: positions are 64-bit"),
    Golden(slug="sum-f32-n32768-mask_f32", shows="a float mask: x * mask, in the same pass"),
    Golden(slug="sum-f32-n32768-mask_b8-strided_mask", shows="a broadcast mask, read through its strides"),
    Golden(slug="prod-f32-n50000-exclusive-strided", shows="any input strides; a length that no tile divides"),
    Golden(
        slug="sum-f32-n65536-unaligned",
        shows="rows off the 16-byte boundary: 16-byte accesses, whose items are shifted into place",
    ),
    Golden(
        slug="sum-f32-n20000-offsets_i32", shows="packed sequences: a warp searches the offsets for its part of a tile"
    ),
    # rows whose items lie apart in the input, columns whose items lie together there
    Golden(
        slug="prod-f32-n16384-transposed",
        shows="columns of a matrix become rows: each warp transposes its part of a tile",
    ),
    Golden(
        slug="sum-bf16-n1000-inner1000-mask_b8-reverse-transposed",
        shows="rows become columns, two per lane; the mask is laid out as the output",
    ),
    # columns
    Golden(slug="prod-f32-n3-inner4096", shows="one thread per short column; neighbours are coalesced"),
    Golden(slug="sum-f32-n1024-inner1024", shows="tiles of a panel prefetched by cp.async through a multistage ring"),
    Golden(slug="logcumsumexp-f16-n1000-inner50-exclusive", shows="a state of two floats, neither of which overflows"),
    Golden(slug="sum-f32-n4096-inner4", shows="few columns: lanes exchange rows to read full cache lines"),
    Golden(slug="sum-f16-n1000-inner50-mask_b8-reverse", shows="guarded in both dimensions; a mask; reverse"),
    Golden(slug="sum-f32-n64-inner1024-columns", shows="a view whose columns are adjacent: full accesses"),
    Golden(
        slug="linear-bf16-n2048-inner64-gate_f32-reverse-initial-final-strided_gate",
        shows="columns with carry-in and carry-out; a broadcast gate",
    ),
    Golden(
        slug="logcumsumexp_gradient-f32-n1000-inner64-mask_b8-gate_f32-saved_f32-reverse",
        shows="a gradient: four operands, and state fields that belong to one item",
    ),
    # columns split over blocks
    Golden(
        slug="sum-f32-n32768-inner32768",
        shows="the headline along the first dimension: one chain per panel (decoupled look-back)",
    ),
    Golden(
        slug="prod-f64-n65536-inner6-exclusive-few", shows="few columns: tree look-back over totals of tiles and groups"
    ),
    Golden(slug="sum-f32-n4096-inner1001", shows="an odd number of columns, read one by one"),
    # few rows, split over blocks
    Golden(slug="sum-f32-n1048576-few", shows="one tile per block, all concurrent; totals are folded in a fixed order"),
    Golden(slug="prod-f64-n1000003-reverse-exclusive-few", shows="the same with both flags and a prime length"),
    # the length as an argument
    Golden(slug="sum-f32-any-le512", shows="short rows of variable length: the launcher shapes the warp's work"),
    Golden(slug="prod-f32-any-le8192-by4-reverse", shows="one block per row, with as many warps as the row needs"),
)


def golden_files() -> dict[str, str]:
    """Return the text of every file that belongs in ``generated/``, by name."""
    plans = {row: row.plan for row in GOLDEN}
    files = {row.file: render(plan) for row, plan in plans.items()}
    return {"README.md": _readme(plans), **files}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check ``generated/`` and return the exit status."""
    return run(__doc__, "generated", lambda _: golden_files(), _owned, arguments)


def _owned(directory: Path) -> Iterable[str]:
    """Return the kernels in a folder that a generator wrote, as opposed to files of somebody's own."""
    return [path.name for path in directory.glob("*.cu") if path.read_text(encoding="utf-8").startswith(BANNER)]


def _readme(plans: Mapping[Golden, Plan]) -> str:
    rows = "\n".join(
        f"| [{row.slug}]({row.file}) | {plan.strategy} | {plan.tiles} | {row.shows} |" for row, plan in plans.items()
    )
    return f"""# Generated kernels

The templates rendered for {len(plans)} specs: committed to be read and reviewed like code, and checked by a test. All
are for {DEFAULT_TARGET}; the banner of each names the command that prints it. The list is in
[tools/golden.py](../tools/golden.py), and this file is written by the same command:

```sh
{COMMAND}          # renders this folder again
{COMMAND} --check  # exits 1 when something here is stale
```

| kernel | strategy | tiles a line | what it shows |
|---|---|---:|---|
{rows}
"""


if __name__ == "__main__":
    sys.exit(main())
