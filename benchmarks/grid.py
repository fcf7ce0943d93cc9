"""Measure every kind of scan against a copy of the same bytes, torch, torch.compile, Triton and CUB.

Results are checked before anything is timed, runs that move little start with a cold L2 cache, and figures are medians.
Exits with 1 when a result is wrong or could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

import scanops
from benchmarks.common import parser, require_gpu, surroundings
from benchmarks.measure import measure_all
from benchmarks.picture import draw, require_matplotlib
from benchmarks.report import document, merged, summary_lines, table
from benchmarks.table import GROUPS, cells, select
from scanops.cli.output import console, print_json
from scanops.errors import UnsupportedRequest
from scanops.files import reading, write_text, writing

__all__ = ["main"]

SAID_EVERY = 10.0  # seconds between progress lines where standard error is no terminal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid and return its exit status."""
    given = _options(arguments)
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    names = [name.strip() for name in given.groups.split(",")] if given.groups else list(GROUPS)
    chosen = select(cells(seed, names), text=given.filter, quick=given.quick)
    for path in (given.output, given.into, given.picture):
        _check_folder(path)
    earlier = {} if given.into is None else _read(given.into)
    require_gpu()
    if given.picture is not None:
        require_matplotlib(given.picture)
    began, place = time.perf_counter(), surroundings()
    rows = list(measure_all(chosen, peers=not given.no_peers, budget=given.budget, said=_progress(len(chosen))))
    found = document(
        rows,
        **place,
        seed=seed,
        options={
            "filter": given.filter,
            "groups": names,
            "quick": given.quick,
            "peers": not given.no_peers,
            "budget": given.budget,
        },
        seconds=time.perf_counter() - began,
        call_us=host_microseconds() if all("error" not in row for row in rows) else None,
    )
    if given.output is not None:
        _write(given.output, found)
    if given.into is not None:
        _write(given.into, merged(earlier, found))
    if given.picture is not None:
        with writing(f"the picture {given.picture}"):
            draw(found, given.picture)
    if given.json:
        print_json(found)
    else:
        _print_table(table(found["cells"]))
        print(f"{found['device']}, {found['wall_seconds']:.0f} s", *summary_lines(found["summary"]), sep="\n")
    return 1 if found["summary"]["wrong"] else 0


def _print_table(rows: Table) -> None:
    """Print a table on standard output, without blanks at the ends of lines."""
    screen = console()
    with screen.capture() as captured:
        screen.print(rows)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__, filtered="cells and families")
    options.add_argument("--groups", default="", metavar="NAMES", help=f"some of {','.join(GROUPS)}; all by default")
    options.add_argument("--quick", action="store_true", help="a few cells of each group")
    options.add_argument("--no-peers", action="store_true", help="only scanops and the copy")
    options.add_argument("--seed", type=int, help="of the random lengths; a new one each run by default")
    options.add_argument("--budget", type=float, default=0.06, help="seconds of timed runs for a figure")
    options.add_argument("--into", type=Path, help="replace the cells of the same names in this earlier document")
    options.add_argument("--picture", type=Path, help="draw the roofline picture: NAME.svg or NAME.png")
    options.add_argument("--json", action="store_true", help="print the document on standard output")
    return options.parse_args(arguments)


def host_microseconds() -> dict[str, float]:
    """Return host microseconds of a call on an 8 x 1024 tensor: the median of 7 batches of 50 calls."""
    x = torch.randn(8, 1024, device="cuda")
    calls: dict[str, Callable[[], object]] = {
        "scanops.cumsum": lambda: scanops.cumsum(x, 1),
        "torch.cumsum": lambda: torch.cumsum(x, 1),
    }
    return {name: _host_microseconds(call) for name, call in calls.items()}


def _host_microseconds(call: Callable[[], object], calls: int = 50, batches: int = 7) -> float:
    times = []
    for _ in range(batches + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - began) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(times[1:])  # the first batch warms up


def _write(path: Path, found: dict[str, Any]) -> None:
    write_text(path, json.dumps(found, indent=1, allow_nan=False) + "\n", f"the figures to {path}")


def _read(path: Path) -> dict[str, Any]:
    """Return the document of an earlier run. Raises UnsupportedRequest where the file holds none."""
    try:
        with reading(str(path)):
            found = json.loads(path.read_text(encoding="utf-8"))
        if {"device", "versions", "seed", "cells"} <= found.keys():
            return dict(found)
    except (ValueError, AttributeError):
        pass
    raise UnsupportedRequest(
        f"to put figures into {path}",
        allowed="a file that `python -m benchmarks grid -o` wrote",
        value="no such document",
        hint="write the figures to a file of their own with -o",
    )


def _check_folder(path: Path | None) -> None:
    """Raise UnusableFile for a folder that does not exist, before an hour of measurements."""
    if path is not None:
        with writing(str(path)), os.scandir(path.absolute().parent):
            pass


def _progress(total: int) -> Callable[[str], None]:
    """Return a function that reports on standard error: every cell on a terminal, elsewhere now and then."""
    screen, done, last = console(stderr=True), 0, 0.0

    def said(words: str) -> None:
        nonlocal done, last
        done += " dim " in words  # the name of a cell
        if screen.is_terminal or time.monotonic() - last > SAID_EVERY:
            last = time.monotonic()
            end = "\x1b[K\r" if screen.is_terminal else "\n"
            print(f"{done} of {total}: {words}", end=end, file=sys.stderr, flush=True)

    return said
