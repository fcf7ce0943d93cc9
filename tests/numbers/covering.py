"""A few cells out of many, such that whatever goes wrong for a pair of values goes wrong in one of them.

Source: each cell is the one of many random drafts that meets most that was not met before, a greedy choice as in Cohen,
Dalal, Fredman and Patton, "The AETG System" (1997). The same arguments give the same cells.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

Item = tuple[str, str]  # an axis and its value
Target = tuple[Item, ...]  # sorted: what some cell has to have together
ATTEMPTS = 200  # at a target, before it counts as one that no cell has: whoever adds an operator makes some rare
DRAFTS = 40  # of a cell, the best of which is taken: fewer each time a target is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """The cells, each with a value for every axis, and the targets that none of them has."""

    rows: list[dict[str, str]]
    missed: list[Target]


def met_by(facts: Mapping[str, str], groups: Iterable[itemgetter[str]]) -> Iterator[Target]:
    """What a cell has together of each group of axes, which is an itemgetter of two or more."""
    items = {item[0]: item for item in facts.items()}
    return (group(items) for group in groups)


def cover(
    axes: Mapping[str, Sequence[str]],
    targets: Iterable[Target],
    settle: Callable[[dict[str, str]], dict[str, str] | None],
    *,
    implied: Mapping[Item, Mapping[str, str]] | None = None,
    given: Iterable[dict[str, str]] = (),
    most: int = 10**9,
) -> Cells:
    """Cells that have all targets, as far as ``most`` of them can.

    ``settle`` gives the facts of a cell: its values, and those of further axes that follow from it; None: it is not
    legal. ``implied`` says what a value is likely to bring along of these. ``given`` are cells that are there already.
    """
    generator = random.Random(0)
    implied = implied or {}
    left = dict.fromkeys(targets)
    groups = [itemgetter(*axes) for axes in dict.fromkeys(tuple(axis for axis, _ in target) for target in left)]
    rows = list(given)
    for row in rows:
        _strike(left, settle(row) or {}, groups)
    tried: Counter[Target] = Counter()
    missed: list[Target] = []
    while left and len(rows) < most:
        target = next(iter(left))
        drafts = [_draft(axes, target, implied, generator) for _ in range(1 + DRAFTS // (1 + tried[target]))]
        row = max(drafts, key=lambda row: sum(map(left.__contains__, met_by(_with(row, implied), groups))))
        facts = settle(row)
        if facts is not None and _strike(left, facts, groups):
            rows.append(row)
        if target in left:  # what was implied did not come about
            tried[target] += 1
            del left[target]
            if tried[target] < ATTEMPTS:
                left[target] = None  # again, after the others
            else:
                missed.append(target)
    return Cells(rows=rows, missed=missed)


def _strike(left: dict[Target, None], facts: Mapping[str, str], groups: Sequence[itemgetter[str]]) -> int:
    """Remove the targets that a cell has, and return how many there were."""
    before = len(left)
    for target in met_by(facts, groups):
        left.pop(target, None)
    return before - len(left)


def _draft(
    axes: Mapping[str, Sequence[str]], target: Target, implied: Mapping[Item, Item], generator: random.Random
) -> dict[str, str]:
    """Draw a cell that has a target; what no axis has comes with a value that implies it."""
    row = {axis: generator.choice(values) for axis, values in axes.items()}
    wanted = {(axis, value) for axis, value in target if axis not in axes}
    if wanted:
        row |= [generator.choice([cause for cause, effects in implied.items() if wanted <= effects.items()])]
    return row | {axis: value for axis, value in target if axis in axes}


def _with(row: Mapping[str, str], implied: Mapping[Item, Item]) -> dict[str, str]:
    return {**row, **{axis: value for item in row.items() for axis, value in implied.get(item, {}).items()}}
