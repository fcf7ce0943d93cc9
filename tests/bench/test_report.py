"""From measured rows to what people read: verdict, JSON, table, picture; docs/accuracy.md and its figures."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import accuracy, picture
from benchmarks.common import Row
from benchmarks.readme import results
from benchmarks.report import TIE, best_peer, merged, notes, summary, summary_lines
from benchmarks.table import cells
from scanops.errors import UnsupportedRequest

MEASURED = results()
FACTS = {name: MEASURED[name] for name in ("device", "versions", "date", "seed", "options", "call_us")}


def row(fraction: float = 1.0, peer_ms: float | None = None, **changes: Any) -> Row:
    """Return a measured row beside a copy of 1 ms, a floor of 0.9 and, where given, torch at ``peer_ms``."""
    peer = None if peer_ms is None else {"ms": peer_ms, "fraction": 1 / peer_ms, "ok": True}
    figures = {"ms": 1 / fraction, "fraction": fraction, "floor": 0.9, "generic_of_specialised": None}
    return MEASURED["cells"][0] | figures | {"peers": {"torch eager": peer, "CUB": None}} | changes


def made(*rows: Row, **changes: Any) -> Row:
    """Return the document of these rows, which is JSON."""
    found = FACTS | {"seed": 1, **changes}
    found |= {"summary": summary(rows, found["seed"]), "cells": list(rows)}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (row(peer_ms=2.0), []),
        (row(peer_ms=1 / (1 + TIE / 2)), []),
        (row(0.8), ["below floor"]),
        (row(peer_ms=0.9), ["below torch eager"]),
        (row(ok=False), ["WRONG"]),
        (row(ok=False, repeats=False), ["OTHER BITS"]),
        (row(generic_of_specialised=0.92), ["any length: slow"]),
        (row(error="no memory", ok=False), ["NOT MEASURED"]),
        (row(peers={"CUB": {"ms": 0.5, "ok": False}}), []),  # a wrong peer is no peer
    ],
)
def test_what_is_wrong_is_said(found: Row, said: list[str]) -> None:
    assert notes(found) == said
    best = best_peer(found)
    assert best is None or best[0] == "torch eager"


def test_the_summary_counts() -> None:
    drawn = [row(0.90 + place / 1000, group="random") for place in range(101)]
    failed = {"cell": "x", "group": "table", "family": "rows", "shape": [1], "ok": False, "error": "no"}
    verdict = summary([row(0.8, 1.0), row(ok=False), failed, *drawn, row(generic_of_specialised=0.5)], seed=5)
    counts = {name: len(verdict[name]) for name in ("wrong", "not_measured", "below_floor", "below_best_peer")}
    assert counts == {"wrong": 2, "not_measured": 1, "below_floor": 1, "below_best_peer": 1}
    figures = {"seed": 5, "cells": 101, "median": 0.95, "p05": 0.905, "worst": 0.90}
    assert verdict["random_lengths"] == pytest.approx(figures)
    assert verdict["length_as_argument"] == {"cells": 1, "worst_of_specialised": 0.5, "slow": 1}
    assert (verdict["cells"], len(summary_lines(verdict)), len(summary_lines(summary([], 1)))) == (105, 3, 1)


def test_cells_measured_again_take_the_place_of_earlier_ones() -> None:
    earlier, later = made(row(0.5, 1.0, cell="a"), row(cell="b")), made(row(cell="a"), date="2027-01-01", seed=5)
    both = merged(earlier, later)
    assert [(each["cell"], each["ms"], each.get("date")) for each in both["cells"]] == [
        ("a", 1.0, "2027-01-01"),
        ("b", 1.0, None),
    ]
    assert (both["date"], both["seed"]) == (earlier["date"], earlier["seed"])
    assert earlier["summary"]["below_best_peer"] and not both["summary"]["below_best_peer"]
    for other, words in (({**later, "device": "another"}, "whose device are those"), (made(row(cell="c")), "cells of")):
        with pytest.raises(UnsupportedRequest, match=words):
            merged(earlier, other)


def test_the_committed_results_keep_to_the_grid() -> None:
    known = {cell.name: cell for cell in cells(MEASURED["seed"])}
    for found in MEASURED["cells"]:
        floor, goal = known[found["cell"]].bars(found["copy_ms"])
        assert (found["floor"], found["goal"]) == (pytest.approx(floor), None if goal is None else pytest.approx(goal))
        assert found["fraction"] == pytest.approx(found["copy_ms"] / found["ms"])
    assert MEASURED["summary"] == summary(MEASURED["cells"], MEASURED["seed"])


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="no matplotlib: pip install matplotlib")
def test_the_picture_knows_its_figures_and_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedRequest, match=r"\.svg or \.png"):
        picture.require_matplotlib(tmp_path / "bench.jpg")
    paths = [tmp_path / name for name in ("first.svg", "second.svg")]
    for path in paths:
        picture.draw(MEASURED, path)
        assert picture.is_picture_of(path, MEASURED) and not picture.is_picture_of(path, made(row(0.5)))
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_errors_in_units_of_the_last_place() -> None:
    exact = torch.tensor([1.0, 1.5, 2.0, 1000.0, math.inf], dtype=torch.float64)
    y = torch.tensor([1.0, 1.5 + 2**-23, 2.0 - 2**-22, 1000.0 + 2**-14, 0.0])
    found = accuracy.error(y, exact)
    assert found.max == 2**-14 and found.max_ulp == 1.0
    assert found.mean_ulp == 3 / 4 and found.mean == (2**-23 + 2**-22 + 2**-14) / 4
    for wrong in (math.nan, math.inf):  # is no small error
        assert accuracy.error(torch.tensor([wrong, 1.0]), torch.ones(2, dtype=torch.float64)).max == math.inf


def test_the_page_of_accuracy_is_current() -> None:
    document = json.loads(accuracy.JSON.read_text())
    assert accuracy.PAGE.read_text() == accuracy.page(document)
    assert {(row["op"], row["dtype"]) for row in document["rows"]} == {
        (data.op, str(data.dtype).removeprefix("torch.")) for data in accuracy.DATA
    }


def test_a_run_of_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An error above torch's is said."""
    data = accuracy.Data("sum", "ones", torch.bfloat16, 300, torch.ones)
    monkeypatch.setattr(accuracy, "DATA", (data,))
    paths = tmp_path / "a.json", tmp_path / "a.md"
    assert accuracy.main(["--device", "cpu", "--json", str(paths[0]), "--page", str(paths[1])]) == 0
    assert "nowhere above" in paths[1].read_text() and "2 lines, 0 with" in capsys.readouterr().out
    document = json.loads(paths[0].read_text())
    row = document["rows"][0]
    assert row["ours"] == row["torchs"] and row["ours"]["max_ulp"] == 0.5
    row["ours"]["max"] *= 2
    assert "* sum of ones in bfloat16, rows: max\n" in accuracy.page(document)
