"""Results of a grid run, as pure functions of its rows: summary, merged documents, table on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.common import Row, aligned
from benchmarks.timing import percentile
from scanops.errors import UnsupportedRequest

__all__ = ["TIE", "best_peer", "merge", "notes", "summary", "summary_lines", "table"]

TIE = 0.005  # medians of one kernel differ by as much within a run; a peer must be ahead by more
GENERIC = 0.93  # the least speed of a kernel with the length as an argument, relative to the specialised one


def best_peer(row: Row) -> tuple[str, Row] | None:
    """Return (name, figures) of the fastest peer whose result is right, or None."""
    right = [(name, peer) for name, peer in row.get("peers", {}).items() if peer and peer["ok"]]
    return min(right, key=lambda pair: pair[1]["ms"], default=None)


def notes(row: Row) -> list[str]:
    """Return what is wrong with a row: wrong result, below floor, below a peer; empty when nothing is."""
    if "error" in row:
        return ["NOT MEASURED"]
    found = [] if row["ok"] else ["WRONG"] if row["repeats"] else ["OTHER BITS"]
    if row["fraction"] < row["floor"]:
        found.append("below floor")
    best = best_peer(row)
    if best and _slower(row, best):
        found.append(f"below {best[0]}")
    generic = row.get("generic_of_specialised")
    if generic is not None and generic < GENERIC:
        found.append("any length: slow")
    return found


def _slower(row: Row, best: tuple[str, Row] | None) -> bool:
    return best is not None and row["ms"] > best[1]["ms"] * (1 + TIE)


def summary(rows: Sequence[Row], seed: int) -> Row:
    """Return the verdict on a run as a JSON object."""
    measured = [row for row in rows if "error" not in row]
    drawn = [row["fraction"] for row in measured if row["group"] == "random"]
    generic = [row["generic_of_specialised"] for row in measured if row.get("generic_of_specialised") is not None]
    return {
        "cells": len(rows),
        "wrong": [row["cell"] for row in rows if not row["ok"]],
        "not_measured": [row["cell"] for row in rows if "error" in row],
        "below_floor": [row["cell"] for row in measured if row["fraction"] < row["floor"]],
        "below_best_peer": [row["cell"] for row in measured if _slower(row, best_peer(row))],
        "random_lengths": {
            "seed": seed,
            "cells": len(drawn),
            "median": percentile(drawn, 50) if drawn else None,
            "p05": percentile(drawn, 5) if drawn else None,
            "worst": min(drawn, default=None),
        },
        "length_as_argument": {
            "cells": len(generic),
            "worst_of_specialised": min(generic, default=None),
            "slow": sum(part < GENERIC for part in generic),
        },
    }


def merge(earlier: Row, later: Row) -> Row:
    """Return an earlier document with the cells of a later run in place of those of the same names.

    Replaced cells carry the date of the later run. Raises UnsupportedRequest where device or versions differ, or
    where the later run has a cell that the earlier one lacks.
    """
    for name in ("device", "versions"):
        if earlier[name] != later[name]:
            raise _apart(f"a run whose {name} are those of the earlier one, {earlier[name]}", later[name])
    again = {row["cell"]: row | {"date": later["date"]} for row in later["cells"]}
    if strange := sorted(again.keys() - {row["cell"] for row in earlier["cells"]}):
        raise _apart("cells of the earlier run", ", ".join(strange))
    rows = [again.get(row["cell"], row) for row in earlier["cells"]]
    return {**earlier, "summary": summary(rows, earlier["seed"]), "cells": rows}


def _apart(allowed: str, value: object) -> UnsupportedRequest:
    return UnsupportedRequest(
        "to put figures among those of an earlier run",
        allowed=allowed,
        value=str(value),
        hint="write them to a file of their own with -o; the random cells of a run come back with its --seed",
    )


def summary_lines(verdict: Row) -> list[str]:
    """Return the summary as lines of text."""
    drawn, generic = verdict["random_lengths"], verdict["length_as_argument"]
    lines = [
        f"{verdict['cells']} shapes: {len(verdict['wrong'])} wrong results, "
        f"{len(verdict['not_measured'])} not measured, "
        f"{len(verdict['below_floor'])} slower than their target, "
        f"{len(verdict['below_best_peer'])} slower than the best alternative."
    ]
    if drawn["cells"]:
        lines.append(
            f"{drawn['cells']} random lengths, seed {drawn['seed']}: median {drawn['median']:.3f} of a copy, "
            f"5th percentile {drawn['p05']:.3f}, worst {drawn['worst']:.3f}."
        )
    if generic["cells"]:
        lines.append(
            f"Length as an argument: {generic['cells']} cells, worst {generic['worst_of_specialised']:.3f} of the "
            f"specialised kernel's speed, {generic['slow']} below {GENERIC}."
        )
    return lines


def table(rows: Iterable[Row]) -> str:
    """Return a table of all rows but the random lengths with nothing wrong, which the summary covers."""
    lines = [["cell", "ms", "10 to 90 %", "of a copy", "floor", "goal", "any length", "best peer", "of a copy", ""]]
    family = None
    for row in rows:
        if row["group"] == "random" and not notes(row):
            continue
        if row["family"] != family:
            family = row["family"]
            lines.append([f"-- {family}"])
        lines.append(_line(row))
    return aligned(lines)


def _line(row: Row) -> list[str]:
    said = ", ".join(notes(row))
    if "error" in row:
        return [row["cell"], *[""] * 8, said]
    best = best_peer(row)
    fractions = [row["fraction"], row["floor"], row["goal"], row.get("generic_fraction")]
    return [
        row["cell"],
        f"{row['ms']:.4f}",
        f"{row['p10']:.4f} {row['p90']:.4f}",
        *("" if fraction is None else f"{fraction:.3f}" for fraction in fractions),
        *((best[0], f"{best[1]['fraction']:.3f}") if best else ("", "")),
        said,
    ]
