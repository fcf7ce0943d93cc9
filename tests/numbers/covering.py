"""A few cells out of many, such that whatever goes wrong for a pair of values goes wrong in one of them.

Source: cells are filled value by value, each the one that meets most that was not met before, as in Cohen, Dalal,
Fredman and Patton, "The AETG System" (1997). The same arguments give the same cells.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Cells", "cover", "met_by"]

Item = tuple[str, str]  # an axis and its value
Target = tuple[Item, ...]  # sorted: what some cell has to have together
ATTEMPTS = 200  # at a target, before it counts as one that no cell has: whoever adds an operator makes some rare
DRAFTS = 3  # of a cell, the best of which is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """The cells, each with a value for every axis, and the targets that none of them has."""

    rows: list[dict[str, str]]
    missed: list[Target]


def met_by(facts: Mapping[str, str], sizes: Iterable[int]) -> Iterator[Target]:
    """All that a cell has together, so many at a time."""
    items = sorted(facts.items())
    for size in sizes:
        yield from itertools.combinations(items, size)


def cover(
    axes: Mapping[str, Sequence[str]],
    targets: Iterable[Target],
    settle: Callable[[dict[str, str]], dict[str, str] | None],
    *,
    implied: Mapping[Item, Item] | None = None,
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
    sizes = sorted({len(target) for target in left})
    rows: list[dict[str, str]] = []
    for row in given:
        rows.append(row)
        _strike(left, settle(row) or {}, sizes)
    tried: Counter[Target] = Counter()
    missed: list[Target] = []
    while left and len(rows) < most:
        target = next(iter(left))
        turn = tried[target]
        drafts = [_filled(axes, target, left, sizes, implied, generator, turn) for _ in range(DRAFTS)]
        row = max(drafts, key=lambda draft: draft[0])[1]
        facts = settle(row)
        if facts is not None and _strike(left, facts, sizes):
            rows.append(row)
        if target in left:  # what was implied did not come about
            tried[target] += 1
            del left[target]
            if tried[target] < ATTEMPTS:
                left[target] = None  # again, after the others
            else:
                missed.append(target)
    return Cells(rows=rows, missed=missed)


def _strike(left: dict[Target, None], facts: Mapping[str, str], sizes: Sequence[int]) -> int:
    before = len(left)
    for target in met_by(facts, sizes):
        left.pop(target, None)
    return before - len(left)


def _filled(
    axes: Mapping[str, Sequence[str]],
    target: Target,
    left: Mapping[Target, None],
    sizes: Sequence[int],
    implied: Mapping[Item, Item],
    generator: random.Random,
    turn: int,
) -> tuple[int, dict[str, str]]:
    """How many targets a cell with this one should have, and the cell."""
    have: list[Item] = []
    row: dict[str, str] = {}
    for item in target:
        if item[0] in axes:
            row[item[0]] = item[1]
            have += [item] if item not in have else []
        else:  # it follows from a value of another axis
            causes = [cause for cause, effect in implied.items() if effect == item]
            axis, value = causes[turn % len(causes)]
            row.setdefault(axis, value)
            have += [(axis, value), item]
    count = 0
    order = [axis for axis in axes if axis not in row]
    generator.shuffle(order)
    for axis in order:
        choices = list(axes[axis])
        generator.shuffle(choices)
        best, gain = choices[0], -1
        for value in choices:
            found = _gain(_with(axis, value, implied), have, left, sizes)
            if found > gain:
                best, gain = value, found
        row[axis] = best
        have += _with(axis, best, implied)
        count += gain
    return count, row


def _with(axis: str, value: str, implied: Mapping[Item, Item]) -> list[Item]:
    item = (axis, value)
    return [item, implied[item]] if item in implied else [item]


def _gain(new: list[Item], have: list[Item], left: Mapping[Target, None], sizes: Sequence[int]) -> int:
    count = 0
    for item in new:
        for size in sizes:
            for others in itertools.combinations(have, size - 1):
                count += tuple(sorted((*others, item))) in left
    return count
