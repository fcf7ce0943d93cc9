"""Every strategy in each direction and variant, held to the sequential scan: a program for compute-sanitizer.

python -m tests.gpu.every_strategy
"""

from __future__ import annotations

import itertools
import sys

import torch

from benchmarks.common import build_kernels
from scanops.runtime.kernels import default_target
from tests.numbers import matrix
from tests.numbers.matrix import ROUTES, Cell

# (operator, inclusive or exclusive, mask, carry, segments): a state of several fields travels through shared memory as
# a struct; masks and gates take turns in being broadcast; what is carried is read and written by lines.
VARIANTS = (
    ("linear", "inclusive", "number", "none", "none"),
    ("sum", "exclusive", "number", "none", "none"),
    ("linear", "inclusive", "none", "both", "flags"),
    ("linear", "exclusive", "bool", "none", "none"),
    ("cummax", "exclusive", "none", "initial_of_lines", "int32"),
    ("linear", "inclusive", "none", "final", "int64"),
)
FIXED = [name for name, route in ROUTES.items() if not route.generic]


def cells() -> list[Cell]:
    """Each route has each variant, in the one direction or the other by turns."""
    return [
        Cell(
            route=route, op=op, dtype="float32", reverse=("forward", "reverse")[number % 2], exclusive=exclusive,
            mask=mask, carry=carry, segments=segments, layout="dense",
        )
        for number, (route, (op, exclusive, mask, carry, segments)) in enumerate(
            (route, variant) for place, route in enumerate(FIXED) for variant in _turned(place)
        )
    ]  # fmt: skip


def _turned(place: int) -> list[tuple[str, ...]]:
    """Begun with another one each time, so that directions alternate for each."""
    return list(itertools.islice(itertools.cycle(VARIANTS), place % 2, place % 2 + len(VARIANTS)))


def main() -> int:
    """Exit status: 0; 1 when a result is wrong."""
    equal = 0
    wanted = cells()
    with matrix.small_gpu():
        operands = [matrix.operands(cell) for cell in wanted]
        specs = [matrix.spec_of(cell, given) for cell, given in zip(wanted, operands, strict=True)]
        failed = build_kernels(
            specs, default_target()
        )  # on all cores; at their first use they would take a second each
        assert not failed, failed
        for cell, given in zip(wanted, operands, strict=True):
            found = matrix.run(cell, matrix.on_device(given, "cuda"))
            right = all(torch.equal(y.cpu(), z) for y, z in zip(found, matrix.expected(cell, given), strict=True))
            equal += right
            print(f"{matrix.strategy_in(cell):10} {cell} {'equal' if right else 'WRONG'}", flush=True)
    print(f"{equal} of {len(wanted)} scans are equal")
    return 0 if equal == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
