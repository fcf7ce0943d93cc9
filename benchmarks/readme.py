"""Write the benchmark table of the README and its picture from ``benchmarks/results/bench_h200.json``.

``python -m benchmarks grid -o`` writes the results. ``--check`` needs no matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.common import ROOT
from benchmarks.picture import draw, is_picture_of
from benchmarks.report import best_peer, summary_lines

RESULTS = ROOT / "benchmarks" / "results" / "bench_h200.json"
PICTURE = RESULTS.with_suffix(".svg")
README = ROOT / "README.md"
BEGIN, END = "<!-- cells: written by python -m benchmarks readme -->\n", "<!-- cells end -->\n"
# Families with a line for each cell; every other family has one line.
SINGLE = ("origin problems",)
WORDS = {
    "sum": "cumulative sum",
    "prod": "cumulative product",
    "reverse": "reverse cumulative sum",
    "exclusive": "exclusive sum",
    "masked": "masked cumulative sum (bool)",
}

Row = dict[str, Any]


def results() -> Row:
    """Return the committed document."""
    document: Row = json.loads(RESULTS.read_text(encoding="utf-8"))
    return document


def table(document: Row) -> str:
    """Return the lines between the markers."""
    versions = document["versions"]
    rows = [row for row in document["cells"] if "error" not in row]
    families = list(dict.fromkeys(row["family"] for row in rows if row["group"] != "random"))
    families.sort(key=lambda family: family not in SINGLE)  # stable: only these come first
    lines = [
        f"{document['device']}, torch {versions['torch']}, driver {versions['driver']}, {document['date']}. "
        "Float32 unless said otherwise. *Of a copy*: the time of a device-to-device copy of as many bytes over the "
        "time of the scan; in a line of several cells, the lowest and the highest. *Best peer*: the fastest of torch, "
        "torch.compile, a tuned Triton kernel and CUB, as far as each was measured on the cell.",
        "",
        f"![Fraction of a copy by row length and by kind of scan]({PICTURE.relative_to(ROOT)})",
        "",
        f"All {len(document['cells'])} cells: [{RESULTS.relative_to(ROOT)}]({RESULTS.relative_to(ROOT)}), from "
        "`python -m benchmarks grid`. " + " ".join(summary_lines(document["summary"])),
        "",
        "| scan | cells | of a copy | best peer, of a copy | |",
        "|---|---|---|---|---|",
    ]
    for family in families:
        members = [row for row in rows if row["family"] == family]
        if family in SINGLE:
            lines += [_line(f"{WORDS[row['variant']]}, {' x '.join(map(str, row['shape']))}", [row]) for row in members]
        else:
            lines.append(_line(family, members))
    return "\n".join(lines) + "\n"


def _line(words: str, members: list[Row]) -> str:
    ours = _range([row["fraction"] for row in members])
    bests = [best for row in members if (best := best_peer(row))]
    names = ", ".join(sorted({name for name, _ in bests}))
    theirs = _range([peer["fraction"] for _, peer in bests]) if bests else ""
    time = f" ({members[0]['ms']:.3f} ms)" if len(members) == 1 else ""
    return f"| {words} | {len(members)} | {ours}{time} | {theirs} | {names} |"


def _range(values: list[float]) -> str:
    low, high = (f"{value:.1g}" if value < 0.01 else f"{value:.2f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table and the picture; with ``--check`` return 1 where either is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when README or picture is stale")
    check = parser.parse_args(arguments).check
    document = results()
    text = README.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    fresh = head + BEGIN + table(document) + END + tail
    if not check:
        draw(document, PICTURE)
        README.write_text(fresh, encoding="utf-8")
        return 0
    stale = [README.name] if fresh != text else []
    stale += [] if is_picture_of(PICTURE, document) else [str(PICTURE.relative_to(ROOT))]
    if stale:
        print(f"stale: {', '.join(stale)}; run python -m benchmarks readme", file=sys.stderr)
    return int(bool(stale))
