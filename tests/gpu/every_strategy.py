"""Every strategy in each direction and variant, held to the sequential scan: a program for compute-sanitizer.

python -m tests.gpu.every_strategy
"""

from __future__ import annotations

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor

import torch

import scanops
from scanops.bench.builds import worker_count
from tests.numbers import matrix, oracle
from tests.numbers.matrix import ROUTES, Cell

# (operator, inclusive or exclusive, mask, carry, segments): states of several fields travel through shared memory as a
# struct; masks and gates take turns in being broadcast; what is carried is read and written by lines.
VARIANTS = (
    ("affine", "inclusive", "bool", "none", "none"),
    ("sum", "exclusive", "number", "none", "none"),
    ("linear", "inclusive", "none", "both", "flags"),
    ("linear", "exclusive", "bool", "none", "none"),
    ("cummax", "exclusive", "none", "initial_of_lines", "int32"),
    ("affine", "inclusive", "none", "final", "int64"),
)
FIXED = [name for name, route in ROUTES.items() if not route.generic]


def cells() -> list[Cell]:
    """Each route has each variant, in the one direction or the other by turns."""
    return [
        Cell(
            route=route, op=op, dtype="float32", reverse=("forward", "reverse")[number % 2], exclusive=exclusive,
            mask=mask, carry=carry, segments=segments,
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
    with oracle.affine_in_table(), matrix.small_gpu():
        operands = [matrix.operands(cell) for cell in wanted]
        with ThreadPoolExecutor(worker_count()) as pool:  # a second each, were they built at their first use
            specs = [matrix.spec_of(cell, given) for cell, given in zip(wanted, operands, strict=True)]
            list(pool.map(scanops.compile, specs))
        for cell, given in zip(wanted, operands, strict=True):
            found = matrix.run(cell, matrix.on_device(given, "cuda"))
            right = all(torch.equal(y.cpu(), z) for y, z in zip(found, matrix.expected(cell, given), strict=True))
            equal += right
            print(f"{matrix.strategy_in(cell):10} {cell} {'equal' if right else 'WRONG'}", flush=True)
    print(f"{equal} of {len(wanted)} scans are equal")
    return 0 if equal == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
