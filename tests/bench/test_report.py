"""Statistics, verdict, JSON, table, picture: from rows to what people read."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import picture
from benchmarks.cells import Cell
from benchmarks.report import TIE, best_peer, document, merged, notes, summary, summary_lines, table
from benchmarks.table import cells
from benchmarks.timing import Sample, percentile
from scanops.errors import MissingRequirement, UnsupportedRequest

ROOT = Path(__file__).parents[2]
CELL = Cell(group="table", family="rows", variant="sum", shape=(8, 1000), dim=1, floor=0.9, goal=1.0)


Row = dict[str, Any]


def row(cell: Cell, *, ms: float = 1.0, copy_ms: float = 1.0, peer_ms: float | None = None, **changes: Any) -> Row:
    """Return a cell measured at ``ms`` beside a copy of ``copy_ms`` and, where given, torch at ``peer_ms``."""
    floor, goal = cell.bars(copy_ms)
    figures = {"p10": ms, "p90": ms, "runs": 7}
    peer = None
    if peer_ms is not None:
        peer = {"ms": peer_ms, **figures, "fraction": copy_ms / peer_ms, "ok": True, "how": "out="}
    return {
        "cell": cell.name,
        **{name: getattr(cell, name) for name in ("group", "family", "variant", "dim", "offset", "view", "bytes")},
        "shape": list(cell.shape),
        "ok": True,
        "repeats": True,
        "ms": ms,
        **figures,
        "copy_ms": copy_ms,
        "fraction": copy_ms / ms,
        "floor": floor,
        "goal": goal,
        "generic_ms": None,
        "generic_fraction": None,
        "generic_of_specialised": None,
        "peers": {"torch eager": peer, "CUB": None},
        "reasons": {"CUB": "not here"},
        **changes,
    }


def made(rows: list[Row], seed: int = 1) -> Row:
    """Return the document of these rows, which is JSON."""
    facts: dict[str, Any] = {"device": "a GPU", "versions": {"torch": "2"}, "date": "2026-01-01", "options": {}}
    found = document(rows, **facts, seed=seed, seconds=1.0, call_us=None)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


def drawn(place: int) -> Cell:
    return Cell(group="random", family="random", variant="sum", shape=(8, place + 1), dim=1, floor=0.89)


def test_quantiles_and_medians() -> None:
    assert percentile([3.0], 90) == 3.0
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], 50) == 3.0
    assert percentile([0.0, 10.0], 25) == 2.5
    sample = Sample.of([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (sample.ms, sample.runs) == (3.0, 5)
    assert (sample.p10, sample.p90) == (pytest.approx(1.4), pytest.approx(4.6))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ms": 1.0, "peer_ms": 2.0}, []),
        ({"ms": 1.0, "peer_ms": 1 / (1 + TIE / 2)}, []),
        ({"ms": 1.2}, ["below floor"]),
        ({"ms": 1.0, "peer_ms": 0.9}, ["below torch eager"]),
        ({"ok": False}, ["WRONG"]),
        ({"ok": False, "repeats": False}, ["OTHER BITS"]),
        ({"generic_of_specialised": 0.92}, ["any length: slow"]),
        ({"error": "no memory", "ok": False}, ["NOT MEASURED"]),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], said: list[str]) -> None:
    assert notes(row(CELL, **changes)) == said
    slow = row(CELL, peer_ms=0.5)
    slow["peers"]["torch eager"]["ok"] = False  # a wrong peer is no peer
    assert best_peer(slow) is None and notes(slow) == []


def test_the_summary_counts() -> None:
    rows = [
        row(CELL, ms=1.2, peer_ms=1.0),
        row(CELL, ok=False),
        {"cell": "x", "group": "table", "family": "rows", "shape": [1], "ok": False, "error": "no"},
        *(row(drawn(place), ms=1 / (0.90 + place / 1000)) for place in range(101)),
        row(CELL, generic_ms=2.0, generic_fraction=0.5, generic_of_specialised=0.5),
    ]
    verdict = summary(rows, seed=5)
    assert (verdict["cells"], len(verdict["wrong"]), len(verdict["not_measured"])) == (105, 2, 1)
    assert (len(verdict["below_floor"]), len(verdict["below_best_peer"])) == (1, 1)
    random = verdict["random_lengths"]
    assert (random["seed"], random["cells"]) == (5, 101)
    assert (random["median"], random["p05"], random["worst"]) == tuple(map(pytest.approx, (0.95, 0.905, 0.90)))
    assert verdict["length_as_argument"] == {"cells": 1, "worst_of_specialised": 0.5, "slow": 1}
    text = " ".join(summary_lines(verdict))
    assert "2 wrong" in text and "worst 0.900" in text and "seed 5" in text
    assert summary_lines(summary([], 1)) == [
        "0 cells: 0 wrong, 0 not measured, 0 below floor, 0 below their best peer."
    ]


def test_cells_measured_again_take_the_place_of_earlier_ones() -> None:
    other = Cell(group="table", family="rows", variant="prod", shape=(8, 1000), dim=1, floor=0.9, goal=1.0)
    earlier = made([row(CELL, ms=2.0, peer_ms=1.0), row(other, ms=1.0, peer_ms=2.0)])
    later = {**made([row(CELL, ms=1.0, peer_ms=2.0)]), "date": "2027-01-01", "seed": 5}
    both = merged(earlier, later)
    assert [each["ms"] for each in both["cells"]] == [1.0, 1.0]
    assert [each.get("date") for each in both["cells"]] == ["2027-01-01", None]
    assert (both["date"], both["seed"]) == (earlier["date"], earlier["seed"])
    assert both["summary"] == summary(both["cells"], earlier["seed"])
    assert earlier["summary"]["below_best_peer"] and not both["summary"]["below_best_peer"]
    with pytest.raises(UnsupportedRequest, match="whose device are those"):
        merged(earlier, {**later, "device": "another"})
    with pytest.raises(UnsupportedRequest, match="cells of the earlier run"):
        merged(made([row(other, ms=1.0, peer_ms=2.0)]), later)


def test_the_committed_results_keep_to_the_grid() -> None:
    document = json.loads((ROOT / "benchmarks" / "results" / "bench_h200.json").read_text(encoding="utf-8"))
    known = {cell.name: cell for cell in cells(document["seed"])}
    for found in document["cells"]:
        cell = known[found["cell"]]
        floor, goal = cell.bars(found["copy_ms"])
        assert (found["floor"], found["goal"]) == (pytest.approx(floor), None if goal is None else pytest.approx(goal))
        assert found["fraction"] == pytest.approx(found["copy_ms"] / found["ms"])
    assert document["summary"] == summary(document["cells"], document["seed"])


def test_the_table_shows_all_but_random_lengths_that_are_well() -> None:
    rows = [row(CELL, peer_ms=2.0), row(drawn(1)), row(drawn(2), ms=2.0), row(CELL, error="gone", ok=False)]
    screen = Console(width=200, record=True, file=io.StringIO())
    screen.print(table(rows))
    text = screen.export_text()
    assert CELL.name in text and "torch eager" in text and "NOT MEASURED" in text
    assert drawn(2).name in text and drawn(1).name not in text


def test_the_picture_needs_a_name_it_can_write_and_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedRequest, match=r"\.svg or \.png"):
        picture.require_matplotlib(tmp_path / "bench.jpg")

    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(picture.importlib, "import_module", absent)
    with pytest.raises(MissingRequirement, match="matplotlib"):
        picture.draw(made([row(CELL)]), tmp_path / "bench.svg")


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="no matplotlib: pip install matplotlib")
def test_the_picture_is_made_and_knows_its_figures(tmp_path: Path) -> None:
    document = made([row(cell, ms=1.1, peer_ms=2.0) for cell in cells(3, ["table", "variants"])] + [row(drawn(9))])
    path = tmp_path / "bench.svg"
    for _ in range(2):
        picture.draw(document, path)
        content = path.read_bytes()
        path.unlink()
    picture.draw(document, path)
    assert path.read_bytes() == content and len(content) > 10_000  # the same figures, the same bytes
    assert picture.is_picture_of(path, document)
    assert not picture.is_picture_of(path, made([row(cell, ms=1.2) for cell in cells(3, ["table"])]))
