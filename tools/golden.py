"""Render the committed kernels of ``generated/``: ``python -m tools.golden [--check]``.

The list shows each strategy, class of dtypes and kind of state once. Every kernel is for the default target. Needs
neither torch nor a compiler.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scanops.codegen.fusion.fusion import Fusion, Operand, Output
from scanops.codegen.fusion.graph import Graph
from scanops.codegen.kernel_key import FEW, MANY, KernelKey, Variant
from scanops.codegen.layouts import STATES
from scanops.codegen.planner import Plan, plan_kernel
from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import DEFAULT_TARGET
from tools.committed import run

__all__ = ["GOLDEN", "INCLUDING", "Golden", "golden_files", "main"]

COMMAND = "python -m tools.golden"
BANNER = "// scanops:"  # the beginning of a file that may be removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """One committed kernel: its spec, and what it shows."""

    slug: str = ""  # of its spec, and the file's name
    made: ScanSpec | None = None  # or the spec itself, of expressions, whose slug is their digest
    name: str = ""  # the file's name then
    variant: Variant = MANY
    shows: str  # what a reader finds there and in no kernel above it

    @property
    def spec(self) -> ScanSpec:
        """The spec that the slug names."""
        return self.made or ScanSpec.parse(self.slug)

    @property
    def plan(self) -> Plan:
        """The plan of the spec on the default target."""
        return plan_kernel(KernelKey(self.spec, DEFAULT_TARGET, self.variant))

    @property
    def file(self) -> str:
        """The name of the file in ``generated/``."""
        return f"{self.name or self.slug}.cu"


def selective_scan(**fields: Any) -> ScanSpec:
    """Return the spec of a selective scan as Mamba has it, in bfloat16, of channels whose time is contiguous."""
    graph, half, full = Graph(), "bfloat16", "float32"
    dtypes = (half, half, full, half, half, full, half, full)
    u, delta, a, b, c, d, z, bias = (graph.operand(place, dtype) for place, dtype in enumerate(dtypes))
    step = (delta + bias).apply("softplus")
    y = graph.add("sum", full, (graph.add("result", full, 0) * c).at)
    out = (y + d * u) * (z * z.apply("sigmoid"))
    layouts = ("lT", "lT", "lN", "Tn", "Tn", "L", "lT", "L")
    operands = tuple(Operand(dtype, STATES + layout) for dtype, layout in zip(dtypes, layouts, strict=True))
    elements = (((step * u) * b).at, (step * a).apply("exp").at)
    text = Fusion(tuple(graph.nodes), operands, elements, full, (Output(out.at, half),)).text
    return ScanSpec(
        op="linear",
        dtype=half,
        length=None,
        multiple=8,
        out_dtype=half,
        input_layout="rows",
        map=text,
        states=16,
        **fields,
    )


GOLDEN: tuple[Golden, ...] = (
    # rows in registers
    Golden(slug="sum-f32-n4", shows="the smallest kernel: one thread per row, no shuffle"),
    Golden(
        slug="sum-f16-n64-reverse-exclusive",
        shows="several rows per warp; half types scanned in float; reverse and exclusive",
    ),
    Golden(slug="prod-f32-n32768", shows="the headline: 128 KiB of a row in the registers of one block, no guards"),
    Golden(slug="sum-f32-n4097", shows="misaligned rows: accesses stay on boundaries and overlap both ends"),
    Golden(
        slug="sum-bf16-n2048-mask_b8-reverse-unaligned",
        shows="a bool mask selects; accesses off the 16-byte boundary are shifted into place",
    ),
    Golden(slug="prod-c64-n1000", shows="complex numbers, shuffled in two parts"),
    Golden(slug="cummax-f32-n4096-reverse", shows="two outputs: values and indices, both in the state"),
    Golden(
        slug="linear-f32-n4096-gate_f32",
        shows="a recurrence with two inputs: lanes exchange accesses, then one step per item",
    ),
    Golden(
        slug="logcumsumexp-f32-n1024", shows="one exp and one log per item, with the treatment of infinities and NaN"
    ),
    Golden(
        slug="prod_gradient-f32-n4096-gate_f32-reverse-exclusive",
        shows="a gradient by two scans of one tile: the forward prefixes, then the reverse recurrence",
    ),
    Golden(slug="prod-f32-any-le8192-by4-reverse", shows="the length as an argument: as many warps as the row needs"),
    # rows split over blocks
    Golden(
        slug="prod-f32-n131072",
        shows="persistent blocks: prefetched tiles, whose totals are published two steps before they are used",
    ),
    Golden(
        slug="sum-f32-n20000-offsets_i32",
        shows="packed sequences: a warp marks the segments that begin in its part of a tile",
    ),
    Golden(
        slug="sum-f32-n1048576",
        variant=FEW,
        shows="one tile per block, all concurrent; totals are folded in a fixed order",
    ),
    # short rows through shared memory
    Golden(
        slug="sum-i32-n100-mask_b8-reverse",
        shows="a length that fits no access: rows are copied flat; int32 widens to int64",
    ),
    Golden(
        slug="sum-f32-n600-acc_compensated", shows="compensated summation: the rounding error is kept beside the sum"
    ),
    # rows whose items lie apart in the input
    Golden(
        slug="prod-f32-n16384-transposed",
        shows="columns of a matrix become rows: each warp transposes its part of a tile",
    ),
    # columns
    Golden(slug="sum-f32-n1024-inner1024", shows="tiles prefetched by cp.async through a multistage ring"),
    Golden(
        slug="linear-bf16-n2048-inner64-gate_f32-reverse-initial-final-strided_gate",
        shows="columns with carry-in and carry-out; a broadcast gate",
    ),
    Golden(
        slug="linear_gradient-f32-n2048-inner64-sums1-gate_f32-saved_f32-reverse-exclusive-results_saved-line_gate",
        shows="the gradient of gates for each channel is stored as sums over lines, and of no item",
    ),
    Golden(
        slug="prod-f64-n65536-inner6-exclusive",
        variant=FEW,
        shows="few columns, split over blocks: tree look-back over totals of tiles and groups",
    ),
)

# Kernels that include headers by name: constants, expressions and the kernel.
INCLUDING: tuple[Golden, ...] = (
    Golden(
        name="selective-scan-bf16-states16",
        made=selective_scan(saves=True),
        shows="a selective scan: states in registers, what they share computed once, the sum over them alone written",
    ),
    Golden(
        name="selective-scan-bf16-states16-backward",
        made=selective_scan(gradient="11111111"),
        shows="its backward pass: states again from saved ones, sums over lines and steps in the kernel",
    ),
)


def golden_files() -> dict[str, str]:
    """Return the text of every file that belongs in ``generated/``, by name."""
    plans = {row: row.plan for row in (*GOLDEN, *INCLUDING)}
    files = {row.file: render(plan) for row, plan in plans.items()}
    return {"README.md": _readme(plans), **files}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check ``generated/`` and return the exit status."""
    return run(__doc__, "generated", lambda _: golden_files(), _list_owned, arguments)


def _list_owned(directory: Path) -> Iterable[str]:
    """Return the kernels in a folder that a generator wrote, as opposed to files of somebody's own."""
    return [path.name for path in directory.glob("*.cu") if path.read_text(encoding="utf-8").startswith(BANNER)]


def _readme(plans: Mapping[Golden, Plan]) -> str:
    rows = "\n".join(
        f"| [{row.name or row.slug}]({row.file}) | {plan.strategy} | {plan.tiles or ''} | {row.shows} |"
        for row, plan in plans.items()
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
