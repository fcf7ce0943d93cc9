"""The roofline picture: the speed of each cell and of its best peer as fractions of a copy, which is the roof."""

from __future__ import annotations

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

from benchmarks.common import Row
from benchmarks.report import best_peer
from scanops.errors import MissingRequirement, UnsupportedRequest

__all__ = ["draw", "fingerprint", "is_picture_of", "require_matplotlib"]

FORMATS = (".svg", ".png")
OURS, PEER, DRAWN, ROOF = "#0b6e4f", "#c8553d", "#8fc7b0", "#444444"
TOP = 1.08  # of the vertical axis: a little above the roof


def require_matplotlib(path: Path) -> None:
    """Raise UnsupportedRequest for an ending other than .svg and .png, MissingRequirement without matplotlib."""
    if path.suffix not in FORMATS:
        raise UnsupportedRequest(
            f"a picture in {path.name}",
            allowed=" or ".join(FORMATS),
            value=repr(path.suffix),
            hint=f"name it {path.stem}.svg",
        )
    _pyplot()


def fingerprint(document: Row) -> str:
    """Return a digest of everything that a picture of this document shows."""
    shown = [(r["cell"], r["group"], r["family"], r["fraction"], _peer_fraction(r)) for r in _measured(document)]
    text = json.dumps([document["device"], document["date"], shown])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_picture_of(path: Path, document: Row) -> bool:
    """Whether the SVG at ``path`` was drawn from these figures. Needs no matplotlib."""
    return path.is_file() and fingerprint(document) in path.read_text(encoding="utf-8")


def draw(document: Row, path: Path) -> None:
    """Write the picture of a run as SVG or PNG, by the suffix of ``path``. Raises as ``require_matplotlib`` does."""
    require_matplotlib(path)
    pyplot = _pyplot()
    style = {"svg.hashsalt": "scanops", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with pyplot.rc_context(style):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 6), width_ratios=(6, 5), layout="constrained")
        rows = _measured(document)
        _lengths(left, rows)
        _families(right, [row for row in rows if row["group"] != "random"])
        figure.suptitle(f"Speed as a fraction of a copy of the same bytes: {document['device']}, {document['date']}")
        metadata: Row = {"Description": f"figures {fingerprint(document)}"}
        metadata |= {"Date": None, "Creator": "scanops benchmarks"} if path.suffix == ".svg" else {}
        figure.savefig(path, metadata=metadata, dpi=150)
        pyplot.close(figure)
    if path.suffix == ".svg":  # matplotlib leaves blanks at the ends of lines
        lines = path.read_text(encoding="utf-8").splitlines()
        path.write_text("".join(f"{line.rstrip()}\n" for line in lines), encoding="utf-8")


def _lengths(axes: Any, rows: list[Row]) -> None:
    """Plot float32 sums along contiguous rows of large tensors against the length of a row."""
    plain = [row for row in rows if row["variant"] == "sum" and row["dim"] == 1 and len(row["shape"]) == 2]
    large = [
        row
        for row in plain
        if row["family"] not in ("small inputs", "origin problems") and not row["offset"] and not row["view"]
    ]
    drawn = [row for row in large if row["group"] == "random"]
    listed = sorted((row for row in large if row["group"] == "table"), key=lambda row: row["shape"][1])
    axes.axhline(1, color=ROOF, linewidth=1)
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
    axes.annotate("a copy", (1, 1), xytext=(0, 3), color=ROOF, **place)
    if drawn:
        points = [(row["shape"][1], row["fraction"]) for row in drawn]
        axes.plot(*zip(*points, strict=True), ".", color=DRAWN, label=f"scanops, {len(drawn)} random lengths")
    if listed:
        points = [(row["shape"][1], row["fraction"]) for row in listed]
        axes.plot(*zip(*points, strict=True), "o-", color=OURS, markersize=4, linewidth=1, label="scanops")
        points = [(row["shape"][1], part) for row in listed if (part := _peer_fraction(row)) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), "x-", color=PEER, markersize=5, linewidth=1, label="best peer")
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, TOP)
    axes.set_xlabel("items in a row (float32 sum, contiguous)")
    axes.set_ylabel("fraction of a copy")
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", frameon=False)


def _families(axes: Any, rows: list[Row]) -> None:
    """Plot every cell as a mark on the line of its family."""
    families = list(dict.fromkeys(row["family"] for row in rows))
    axes.axvline(1, color=ROOF, linewidth=1)
    for place, family in enumerate(families):
        members = [row for row in rows if row["family"] == family]
        ours = [row["fraction"] for row in members]
        theirs = [part for row in members if (part := _peer_fraction(row)) is not None]
        axes.plot(ours, [place - 0.14] * len(ours), "o", color=OURS, markersize=5, alpha=0.8)
        axes.plot(theirs, [place + 0.14] * len(theirs), "x", color=PEER, markersize=5)
    axes.set_yticks(range(len(families)), families)
    axes.set_ylim(max(len(families), 1) - 0.5, -0.5)
    axes.set_xlim(0, TOP)
    axes.set_xlabel("fraction of a copy: o scanops, x the best peer of each cell")
    axes.grid(axis="x", alpha=0.25)
    axes.tick_params(axis="y", length=0)


def _measured(document: Row) -> list[Row]:
    return [row for row in document["cells"] if "error" not in row]


def _peer_fraction(row: Row) -> float | None:
    best = best_peer(row)
    return best[1]["fraction"] if best else None


def _pyplot() -> Any:
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ModuleNotFoundError as problem:
        raise MissingRequirement(
            "to draw the picture of a run",
            allowed="matplotlib",
            value=f"no module named {problem.name}",
            hint="pip install matplotlib, or leave --picture out",
        ) from problem
