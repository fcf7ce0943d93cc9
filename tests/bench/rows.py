"""Rows as a run makes them, without a GPU."""

from __future__ import annotations

from typing import Any

from benchmarks.cells import Cell
from benchmarks.report import document

Row = dict[str, Any]


def row(cell: Cell, *, ms: float = 1.0, copy_ms: float = 1.0, peer_ms: float | None = None, **changes: Any) -> Row:
    """A cell measured at ``ms`` beside a copy of ``copy_ms`` and, where given, torch at ``peer_ms``."""
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
    """The document of these rows."""
    return document(
        rows,
        device="a GPU",
        versions={"torch": "2", "driver": "1"},
        date="2026-01-01",
        seed=seed,
        options={},
        seconds=1.0,
        call_us=None,
    )
