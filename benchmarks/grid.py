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
from benchmarks.table import GROUPS, cells, select
from benchmarks.timing import host_microseconds
from benchmarks.verdicts import merge, summary, summary_lines, table
from scanops.cli.output import print_json, progress
from scanops.errors import UnsupportedRequest

__all__ = ["main", "measure_grid", "read_grid", "text_of"]

BUDGET = 0.06  # seconds of runs for each figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid and return its exit status."""
    options = parser(__doc__, filtered="cells and families")
    options.add_argument("--groups", default="", metavar="NAMES", help=f"some of {','.join(GROUPS)}; all by default")
    options.add_argument("--quick", action="store_true", help="a few cells of each group")
    options.add_argument("--no-peers", action="store_true", help="only scanops and the copy")
    options.add_argument("--seed", type=int, help="of the random lengths; a new one each run by default")
    options.add_argument("--budget", type=float, default=BUDGET, help="seconds of timed runs for a figure")
    options.add_argument("--into", type=result_file, help="replace the cells of the same names in this document")
    options.add_argument("--json", action="store_true", help="print the document on standard output")
    given = options.parse_args(arguments)
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    names = [name.strip() for name in given.groups.split(",")] if given.groups else list(GROUPS)
    earlier = {} if given.into is None else read_grid(given.into)
    found = measure_grid(seed, names, given.filter, given.quick, not given.no_peers, given.budget)
    document = surroundings() | found
    write(given.output, found)
    if given.into is not None:
        write(given.into, merge(earlier, document))
    if given.json:
        print_json(document)
    else:
        print(text_of(document), f"{document['device']}, {found['wall_seconds']:.0f} s", sep="\n")
    return 1 if document["summary"]["wrong"] else 0


def measure_grid(seed: int, groups: Sequence[str], text: str, quick: bool, peers: bool, budget: float = BUDGET) -> Row:
    """Return the figures of the cells whose names hold ``text``, or of a few of each group if ``quick``."""
    chosen = select(cells(seed, groups), text=text, quick=quick)
    require_gpu()
    began = time.perf_counter()
    rows = list(measure_all(chosen, peers=peers, budget=budget, said=progress()))
    return {
        "seed": seed,
        "options": {"filter": text, "groups": list(groups), "quick": quick, "peers": peers, "budget": budget},
        "wall_seconds": round(time.perf_counter() - began, 1),
        "call_us": _call_us() if all("error" not in row for row in rows) else None,
        "summary": summary(rows, seed),
        "cells": rows,
    }


def text_of(document: Row) -> str:
    """Return the table of a document's cells, and its summary."""
    return "\n".join((table(document["cells"]), *summary_lines(document["summary"])))


def _call_us() -> dict[str, float]:
    """Return host microseconds of a call on an 8 x 1024 tensor."""
    x = torch.randn(8, 1024, device="cuda")
    calls = {"scanops.cumsum": lambda: scanops.cumsum(x, 1), "torch.cumsum": lambda: torch.cumsum(x, 1)}
    return {name: statistics.median(host_microseconds(call, 50, 7)) for name, call in calls.items()}


def read_grid(path: Path) -> Row:
    """Return the document that an earlier run wrote. Raises UnsupportedRequest where the file holds none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if {"device", "versions", "seed", "cells"} <= found.keys():
            return dict(found)
    except (OSError, ValueError, AttributeError):
        pass
    raise UnsupportedRequest(
        f"to read the figures in {path}",
        allowed="a file that `python -m benchmarks grid -o` wrote",
        value="no such document",
        hint=f"measure them: python -m benchmarks grid -o {path}",
    )
