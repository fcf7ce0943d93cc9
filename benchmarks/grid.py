"""Measure every kind of scan against a copy of the same bytes, torch, torch.compile, Triton and CUB.

Results are checked before anything is timed, runs that move little start with a cold L2 cache, and figures are medians.
Exits with 1 when a result is wrong or could not be measured.
"""

from __future__ import annotations

import json
import secrets
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import scanops
from benchmarks.common import Row, parser, require_gpu, result_file, surroundings, write
from benchmarks.measure import measure_all
from benchmarks.report import merged, summary, summary_lines, table
from benchmarks.table import GROUPS, cells, select
from benchmarks.timing import host_microseconds
from scanops.cli.output import print_json, progress
from scanops.errors import UnsupportedRequest
from tools.performance import report

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid and return its exit status."""
    options = parser(__doc__, filtered="cells and families")
    options.add_argument("--groups", default="", metavar="NAMES", help=f"some of {','.join(GROUPS)}; all by default")
    options.add_argument("--quick", action="store_true", help="a few cells of each group")
    options.add_argument("--no-peers", action="store_true", help="only scanops and the copy")
    options.add_argument("--seed", type=int, help="of the random lengths; a new one each run by default")
    options.add_argument("--budget", type=float, default=0.06, help="seconds of timed runs for a figure")
    options.add_argument("--into", type=result_file, help="replace the cells of the same names in this document")
    options.add_argument("--report", type=result_file, help="write a page with pictures and the table: NAME.html")
    options.add_argument("--json", action="store_true", help="print the document on standard output")
    given = options.parse_args(arguments)
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    names = [name.strip() for name in given.groups.split(",")] if given.groups else list(GROUPS)
    chosen = select(cells(seed, names), text=given.filter, quick=given.quick)
    earlier = {} if given.into is None else _read(given.into)
    require_gpu()
    began = time.perf_counter()
    rows = list(measure_all(chosen, peers=not given.no_peers, budget=given.budget, said=progress()))
    found = {
        "seed": seed,
        "options": {
            **{"filter": given.filter, "groups": names, "quick": given.quick},
            **{"peers": not given.no_peers, "budget": given.budget},
        },
        "wall_seconds": round(time.perf_counter() - began, 1),
        "call_us": _call_us() if all("error" not in row for row in rows) else None,
        "summary": summary(rows, seed),
        "cells": rows,
    }
    document = surroundings() | found
    write(given.output, found)
    if given.into is not None:
        write(given.into, merged(earlier, document))
    text = "\n".join((table(rows), *summary_lines(document["summary"])))
    if given.report is not None:
        given.report.write_text(report(document, text), encoding="utf-8")
    if given.json:
        print_json(document)
    else:
        print(text, f"{document['device']}, {found['wall_seconds']:.0f} s", sep="\n")
    return 1 if document["summary"]["wrong"] else 0


def _call_us() -> dict[str, float]:
    """Return host microseconds of a call on an 8 x 1024 tensor."""
    x = torch.randn(8, 1024, device="cuda")
    calls = {"scanops.cumsum": lambda: scanops.cumsum(x, 1), "torch.cumsum": lambda: torch.cumsum(x, 1)}
    return {name: statistics.median(host_microseconds(call, 50, 7)) for name, call in calls.items()}


def _read(path: Path) -> Row:
    """Return the document of an earlier run. Raises UnsupportedRequest where the file holds none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if {"device", "versions", "seed", "cells"} <= found.keys():
            return dict(found)
    except (OSError, ValueError, AttributeError):
        pass
    raise UnsupportedRequest(
        f"to put figures into {path}",
        allowed="a file that `python -m benchmarks grid -o` wrote",
        value="no such document",
        hint="write the figures to a file of their own with -o",
    )
