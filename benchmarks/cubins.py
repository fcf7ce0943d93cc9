"""Measure the kernels of cubins, which NVRTC builds, beside those of libraries: speed and bits.

Both forms of a kernel are from the same text and plan, and are timed on the variants' grid, interleaved. A cubin that
seems slower than ``SUSPECT`` of its library is timed again, for longer. With -o, results are written as they are found,
beside those that the file holds of an earlier run: several runs with --filter make one table.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from benchmarks import variants
from benchmarks.common import Row, kernel_of, parser, require_gpu, write
from benchmarks.forms import BUILDERS, forms
from benchmarks.scans import Outputs, Scan, same_bits
from benchmarks.timing import Timer
from scanops.runtime.launcher import Launcher, device_of, places_for

MEAN, LEAST = 0.99, 0.97  # goals
SUSPECT = 0.98
AGAIN = 6  # times the budget


def launch_of(scan: Scan) -> tuple[Callable[[], object], Outputs]:
    """Return a launch of a scan's kernel, without the checks of a call, and the results that it writes."""
    request, device = scan.request, device_of(scan.inputs.x)
    outs, key = places_for(request), scan.key(device.target, device.multiprocessors)
    launcher = Launcher(kernel_of(key), request, device, key)
    return functools.partial(launcher, request.inputs.flat, outs), outs


def compare(scan: Scan) -> Row:
    """Return the times of both forms of a scan, in milliseconds, their ratio, and whether their bits agree."""
    runs, results = {}, []
    for form in BUILDERS:
        with forms(form):
            runs[form], outs = launch_of(scan)
        runs[form]()
        results.append([out.clone() for out in outs])
    row: Row = {"same_bits": all(map(same_bits, *results))}
    for budget in (variants.BUDGET, AGAIN * variants.BUDGET):
        row |= {form: each.ms for form, each in Timer(budget).samples(runs, scan.moved).items()}
        row["ratio"] = row["library"] / row["cubin"]
        if row["ratio"] >= SUSPECT:
            break
    return row


def rows(text: str) -> Iterator[tuple[str, Row]]:
    """Yield (name, comparison) of each variant whose name contains ``text``."""
    for shape, dim in variants.SHAPES:
        for form in BUILDERS:
            with forms(form):
                scans = variants.built(shape, dim, text=text)
        while scans:
            scan = scans.pop(0)  # its tensors are freed behind it
            yield scan.name, compare(scan)


def summary(cells: dict[str, Row]) -> Row:
    """Return the figures that the goals are for."""
    ratios = [row["ratio"] for row in cells.values()]
    geometric = math.exp(statistics.fmean(map(math.log, ratios)))
    return {
        "geometric_mean": geometric,
        "least": min(ratios),
        "same_bits": sum(row["same_bits"] for row in cells.values()),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare every variant, and print a line for each; 1 where bits differ."""
    given = parser(__doc__, filtered="variants").parse_args(arguments)
    require_gpu()
    cells: dict[str, Row] = {}
    if given.output is not None and given.output.is_file():
        cells = json.loads(given.output.read_text(encoding="utf-8"))["cells"]
    for name, row in rows(given.filter):
        cells[name] = row
        print(f"{row['ratio']:6.3f}  {'' if row['same_bits'] else 'OTHER BITS  '}{name}", flush=True)
        write(given.output, {**summary(cells), "cells": cells})
    found = summary(cells)
    print(
        f"speed of cubins / libraries over {len(cells)} scans: geometric mean {found['geometric_mean']:.3f} "
        f"(goal {MEAN}), least {found['least']:.3f} (goal {LEAST}); same bits in {found['same_bits']}"
    )
    return int(found["same_bits"] < len(cells))
