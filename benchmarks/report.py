"""Measure this GPU in about a minute, and write one HTML page with pictures, a table and the versions.

The page needs no other file and opens from a folder, light or dark. ``--all`` measures every cell of
``python -m benchmarks grid``; ``--from`` draws figures that it wrote before, without a GPU.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import result_file, surroundings, write
from benchmarks.grid import measure_grid, read_grid, text_of
from benchmarks.table import GROUPS
from tools.performance import report

__all__ = ["main"]

PAGE = Path("scanops-report.html")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and return the exit status: 1 where a result is wrong."""
    options = argparse.ArgumentParser(prog="python -m benchmarks report", description=(__doc__ or "").splitlines()[0])
    options.add_argument("page", nargs="?", type=result_file, default=PAGE, help=f"the file to write; {PAGE}")
    options.add_argument("-o", "--output", type=result_file, help="write the figures to this file as JSON, too")
    options.add_argument("--all", action="store_true", help="every cell, in about 25 minutes")
    options.add_argument("--no-peers", action="store_true", help="only scanops and the copy")
    options.add_argument("--from", dest="figures", type=Path, help="draw the figures that `grid -o` wrote to this file")
    given = options.parse_args(arguments)
    if given.figures is not None:
        document = read_grid(given.figures)
    else:
        found = measure_grid(secrets.randbelow(2**31), list(GROUPS), "", not given.all, not given.no_peers)
        write(given.output, found)
        document = surroundings() | found
    given.page.write_text(report(document, text_of(document)), encoding="utf-8")
    print(f"{given.page.absolute()}: {len(document['cells'])} cells, {document['device']}")
    return 1 if document["summary"]["wrong"] else 0
