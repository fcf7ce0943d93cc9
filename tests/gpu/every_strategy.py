"""Every strategy once in each direction, masked, held to the sequential scan: a program for compute-sanitizer.

python -m tests.gpu.every_strategy
"""

from __future__ import annotations

import sys

import torch

import scanops
from scanops.codegen.operators import OPERATORS
from tests.numbers.oracle import AFFINE, CASES, selection, sequential, values, weights


def main() -> int:
    """Exit status: 0; 1 when a result is wrong."""
    OPERATORS["affine"] = AFFINE  # two fields a state, which travel through shared memory as a struct
    wrong = 0
    for name, case in CASES.items():
        for op, reverse in (("affine", False), ("sum", True)):
            x = values(op, case.shape, torch.float32)
            mask = weights(op, case.shape, torch.float32) if reverse else selection(case.shape)
            flags = {"reverse": reverse, "exclusive": reverse}
            y = scanops.scan(x.cuda(), op, case.dim, mask=mask.cuda(), **flags).cpu()
            equal = torch.equal(y, sequential(x, op, case.dim, mask=mask, dtype=torch.float32, **flags))
            wrong += not equal
            print(f"{case.strategy:8} {name:18} {op:6} {'backward' if reverse else 'forward':8} "
                  f"{'equal' if equal else 'WRONG'}", flush=True)  # fmt: skip
    print(f"{2 * len(CASES) - wrong} of {2 * len(CASES)} scans are equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
