"""``check_operator``: a random test of the laws of an operator, and of its emulated kernels against its reference."""

from __future__ import annotations

import itertools
import secrets
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from scanops.codegen.operators import OPERATORS, Operator, register_operator
from scanops.errors import UnsupportedRequest
from scanops.store.store import Store
from scanops.trials import Check, OperatorReport

LENGTHS = (6, 64, 127, 601, 2047, 40003, 131076)  # together they reach every strategy
LONGEST = 2**20  # elements of a line: an emulated element takes about a microsecond


def check_operator(
    op: Operator,
    *,
    dtypes: Iterable[torch.dtype] | None = None,
    lengths: Iterable[int] = LENGTHS,
    samples: Sequence[complex] | None = None,
    seed: int = 1,
) -> OperatorReport:
    """Test whether ``op`` is associative, has its identity and agrees with its reference. Needs g++ and no GPU.

    The operator's C++ is compiled by g++ and run in the emulator. First its laws are tested, on states a, b, c of one
    to three elements each, for each of the operator's kinds:

        combine(identity, a) = a = combine(a, identity)
        combine(combine(a, b), c) = combine(a, combine(b, c))
        combine(a, b) = combine(b, a), if ``op.commutative``

    Integers must be equal. Floats are tested in float64 and complex numbers in complex128, with a tolerance for
    rounding. If ``lift`` reads ``i``, fields that hold an index must hold it exactly beyond 2^24. Then a kernel of each
    strategy that the lengths reach, forward or reverse, inclusive or exclusive, masked or not, is compared with
    ``step``: integers exactly, floats within rounding of the largest result so far, as long as results stay below
    the square root of the largest accumulator value.

    The check ends at the first mistake, with the shortest example that it has found. It takes some 10 s on one core,
    logs its phases at INFO and prints them on a terminal. It registers nothing, so that the name stays free, and builds
    its kernels in a temporary store.

    Args:
        op: the operator.
        dtypes: dtypes of scanned inputs; by default float32, int32, bool and complex64, of those the legal ones.
        lengths: lengths of scanned lines, 1 to 2^20; the default reaches every strategy.
        samples: the elements to draw from, each for the dtypes that hold it. By default small numbers, NaN, real
            infinities and the bounds of integers. Pass finite ones for an operator that is not lawful for others:
            inf * 0 makes even a matrix product depend on the order.
        seed: for the drawn elements and the order of emulated threads.

    Returns:
        A report with ``.ok`` and ``.findings``; print it to read them. A broken law raises nothing.

    Raises:
        UnsupportedRequest: a dtype that is not legal for the operator, or an invalid option.
        BuildFailure: C++ that does not compile for the first of the operator's kinds; the message has the expressions
            and the compiler's output. C++ that does not compile for another kind is a finding.

    Example:
        >>> print(check_operator(op))  # doctest: +SKIP
        last_valid: nothing wrong in 6984 laws, 7 scans of 492703 items (block, columns, panels, split, staged, ...)
    """
    lengths = _checked(op, lengths, samples)
    name = f"{op.name[:39]}_{secrets.token_hex(4)}"  # of this check alone, so that checks may run in threads
    row = register_operator(replace(op, name=name, indices=""))
    try:
        with tempfile.TemporaryDirectory(prefix="scanops-check-") as folder:
            check = Check(op, row, Store(Path(folder)), samples, seed, OperatorReport(op.name))
            check.report.findings = tuple(itertools.islice(check.mistakes(dtypes, lengths), 1))
    finally:
        del OPERATORS[name]
    return check.report


def _checked(op: object, lengths: Iterable[int], samples: Sequence[complex] | None) -> tuple[int, ...]:
    """Return the lengths in rising order. Raises UnsupportedRequest for an invalid option."""
    lengths = tuple(lengths)
    numbers = samples is None or (len(samples) and all(isinstance(item, int | float | complex) for item in samples))
    for name, value, valid, allowed in (
        ("op", op, isinstance(op, Operator), "a scanops.Operator"),
        ("lengths", lengths, all(type(n) is int and 1 <= n <= LONGEST for n in lengths), f"integers, 1 to {LONGEST}"),
        ("samples", samples, numbers, "a sequence of at least one number, or None"),
    ):
        if not valid:
            hint = f"see help(scanops.check_operator), or leave {name} out"
            raise UnsupportedRequest(f"check_operator: invalid {name}", allowed=allowed, value=repr(value), hint=hint)
    return tuple(sorted(set(lengths)))
