"""Write the tables of docs/benchmarks.md, the excerpt in the README and the picture from the committed results.

The results of the grid are those of ``python -m benchmarks grid -o benchmarks/results/bench_h200.json``; the commands
``variants``, ``bounds`` and ``workloads`` write those of the other tables. ``--check`` needs no matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from benchmarks.picture import draw, is_picture_of
from benchmarks.report import best_peer, summary_lines

RESULTS = ROOT / "benchmarks" / "results" / "bench_h200.json"
PICTURE = RESULTS.with_suffix(".svg")
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- {0}: written by python -m benchmarks readme -->\n", "<!-- {0} end -->\n"
# The five lines of the README by the names of their cells.
EXCERPT = {
    "sum 32768x32768 dim 1": "`cumsum`, 32768 rows of 32768",
    "masked 32768x32768 dim 1": "`cumsum` with a bool mask, the same rows",
    "sum 268167x1001 dim 1": "`cumsum`, 268167 rows of 1001",
    "sum 16x16777216 dim 1": "`cumsum`, 16 rows of 16777216",
    "sum 64x4096x1024 dim 1": "`cumsum` along dim 1 of 64 x 4096 x 1024",
}
PEERS = {"torch": "torch eager", "torch.compile": "torch.compile", "Triton": "Triton", "CUB": "CUB"}
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
    """Return the committed results of the grid."""
    document: Row = json.loads(RESULTS.read_text(encoding="utf-8"))
    return document


def excerpt(document: Row) -> str:
    """Return the lines of the README between the markers: five cells with their peers."""
    cells = {row["cell"]: row for row in document["cells"]}
    lines = [
        f"{document['device']}, torch {document['versions']['torch']}, {document['date']}, float32: fraction of the "
        "bandwidth of a device-to-device copy of the same bytes.",
        "",
        "| | scanops | " + " | ".join(PEERS) + " |",
        "|---|---|" + "---|" * len(PEERS),
    ]
    for cell, words in EXCERPT.items():
        row = cells[cell]
        peers = [row["peers"].get(name) for name in PEERS.values()]
        theirs = [_range([peer["fraction"]]) if peer else "not measured" for peer in peers]
        lines.append(f"| {words} | **{_range([row['fraction']])}** | {' | '.join(theirs)} |")
    return "\n".join(lines) + "\n"


def row_sums(document: Row) -> tuple[float, float, float]:
    """Return the extreme fractions of float32 sums along rows of 1 to 65536 items, and the highest of torch.cumsum."""
    rows = [
        row
        for row in document["cells"]
        if row["group"] == "table" and row["cell"].startswith("sum ") and "rows of" in row["family"]
    ]
    ours = [row["fraction"] for row in rows]
    return min(ours), max(ours), max(row["peers"]["torch eager"]["fraction"] for row in rows)


def table(document: Row) -> str:
    """Return the lines of docs/benchmarks.md between the markers."""
    versions = document["versions"]
    rows = [row for row in document["cells"] if "error" not in row]
    families = list(dict.fromkeys(row["family"] for row in rows if row["group"] != "random"))
    families.sort(key=lambda family: family not in SINGLE)  # stable: only these come first
    lines = [
        f"{document['device']}, torch {versions['torch']}, driver {versions['driver']}, {document['date']}. "
        "Float32 unless stated otherwise. *Of a copy*: the time of a device-to-device copy of the same number of bytes "
        "divided by the time of the scan; a line of several cells shows the lowest and the highest. *Best peer*: the "
        "fastest of torch, torch.compile, a tuned Triton kernel and CUB, as far as each was measured on the cell.",
        "",
        f"![Fraction of a copy by row length and by kind of scan](../{PICTURE.relative_to(ROOT)})",
        "",
        f"All {len(document['cells'])} cells: [{RESULTS.relative_to(ROOT)}](../{RESULTS.relative_to(ROOT)}), from "
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


def variants_table() -> str:
    """Return the table of the scans that the grid leaves out, and what bounds the slow ones if that was measured."""
    document = _named("variants")
    counters = _named("bounds")["counters"] if _path("bounds").exists() else {}
    found: dict[str, dict[bool, list[float]]] = {}
    bounds: dict[str, Counter[str]] = defaultdict(Counter)
    for cell, fraction in document["of_a_copy"].items():
        shape, _, name = cell.partition(": ")
        by_rows = shape.count(" x ") == 1 and shape.endswith("dim 1")
        found.setdefault(name, {True: [], False: []})[by_rows].append(fraction)
        if cell in counters:
            bounds[name][counters[cell]["bound"]] += 1
    columns = ["rows of 127 to 524288", "columns of 4096 to 65536", *(["cells below 0.9 bound by"] if counters else [])]
    lines = [_source(document), "", f"| scan, float32 unless said otherwise | {' | '.join(columns)} |"]
    lines.append("|---" * (1 + len(columns)) + "|")
    for name, parts in found.items():
        why = [", ".join(word for word, _ in bounds[name].most_common())] if counters else []
        lines.append(f"| {' | '.join([name, _range(parts[True]), _range(parts[False]), *why])} |")
    return "\n".join(lines) + "\n"


def workloads_table() -> str:
    """Return the table of real programs."""
    document = _named("workloads")
    lines = [
        _source(document) + " Microseconds on the GPU; *copy*: of a device-to-device copy of the bytes that must move.",
        "",
        "| workload | scanops | today's code | under torch.compile | copy |",
        "|---|---|---|---|---|",
    ]
    for name, row in document["microseconds"].items():
        times = [
            f"{row[key]:,.{1 if row[key] < 100 else 0}f}" if key in row else ""
            for key in ("scanops", "today", "compiled", "copy")
        ]
        lines.append(f"| {name} | **{times[0]}** | {' | '.join(times[1:])} |")
    return "\n".join(lines) + "\n"


def _path(name: str) -> Path:
    return RESULTS.with_name(f"{name}_h200.json")


def _named(name: str) -> Row:
    document: Row = json.loads(_path(name).read_text(encoding="utf-8"))
    return document


def _source(document: Row) -> str:
    return f"{document['device']}, torch {document['versions']['torch']}, {document['date']}."


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
    """Write pages and picture; with ``--check`` write nothing and return 1 where one is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page or the picture is stale")
    check = parser.parse_args(arguments).check
    document = results()
    page = PAGE.read_text(encoding="utf-8")
    for name, lines in (("cells", table(document)), ("variants", variants_table()), ("workloads", workloads_table())):
        page = _filled(page, name, lines)
    fresh = {README: _filled(README.read_text(encoding="utf-8"), "cells", excerpt(document)), PAGE: page}
    if not check:
        draw(document, PICTURE)
        for path, text in fresh.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [str(path.relative_to(ROOT)) for path, text in fresh.items() if path.read_text(encoding="utf-8") != text]
    stale += [] if is_picture_of(PICTURE, document) else [str(PICTURE.relative_to(ROOT))]
    if stale:
        print(f"stale: {', '.join(stale)}; run python -m benchmarks readme", file=sys.stderr)
    return int(bool(stale))


def _filled(text: str, name: str, lines: str) -> str:
    """Return the text of a page with new lines between the markers of this name."""
    begin, end = BEGIN.format(name), END.format(name)
    head, rest = text.split(begin)
    return head + begin + lines + end + rest.split(end)[1]
