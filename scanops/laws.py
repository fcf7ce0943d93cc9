"""``check_operator``: a random test of the laws of an operator, and of its emulated kernels against its reference."""

from __future__ import annotations

import cmath
import itertools
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from scanops.api import scan
from scanops.codegen.operators import OPERATORS, Operator, operator_named, register_operator
from scanops.emulator import emulate
from scanops.errors import UnsupportedRequest
from scanops.forks import FORK_LOCK
from scanops.fusion.functions import traced
from scanops.fusion.kernels import evaluated
from scanops.fusion.operators import FieldOperator
from scanops.store import Store
from scanops.trials import COLUMNS, LAWS, SAMPLES, TRIPLES, Check, Finding, OperatorReport, apart, size_of

LENGTHS = (6, 64, 127, 601, 2047, 40003, 131076)  # together they reach every strategy
LONGEST = 2**20  # elements of a line: an emulated element takes about a microsecond


def check_operator(
    op: Operator | FieldOperator | str,
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

    Of an operator of ``scanops.operator`` the laws are tested in float64 by PyTorch, field by field, and its kernels
    are compared with the same in float64.

    The check ends at the first mistake, with the shortest example that it has found. It takes some 10 s on one core,
    logs its phases at INFO and prints them on a terminal. It registers nothing, so that the name stays free, and builds
    its kernels in a temporary store.

    Args:
        op: the operator, or the name of one.
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
        last_valid: nothing wrong in 6984 laws, 7 scans of 492703 items (block, columns, persistent, split, ...)
    """
    op = operator_named(op) if isinstance(op, str) else op
    lengths = _checked(op, lengths, samples)
    if isinstance(op, FieldOperator):
        report = OperatorReport(op.name)
        report.findings = tuple(itertools.islice(_of_fields(op, dtypes, lengths, samples, seed, report), 1))
        return report
    name = f"{op.name[:39]}_{secrets.token_hex(4)}"  # of this check alone, so that checks may run in threads
    row = register_operator(replace(op, name=name, indices=""))
    try:
        with FORK_LOCK:  # tempfile has a lock
            temporary = tempfile.TemporaryDirectory(prefix="scanops-check-")
        with temporary as folder:
            check = Check(op, row, Store(Path(folder)), samples, seed, OperatorReport(op.name))
            check.report.findings = tuple(itertools.islice(check.mistakes(dtypes, lengths), 1))
    finally:
        del OPERATORS[name]
    return check.report


def _of_fields(
    op: FieldOperator,
    dtypes: Iterable[torch.dtype] | None,
    lengths: Sequence[int],
    samples: Sequence[complex] | None,
    seed: int,
    report: OperatorReport,
) -> Iterator[Finding]:
    """Yield what is wrong with an operator of expressions: first in its laws, then in scans."""
    count, rest = op.inputs, torch.Generator().manual_seed(seed)
    finite = [float(each.real) for each in samples or SAMPLES["float"] if cmath.isfinite(each)]
    known = torch.tensor(finite, dtype=torch.float64)

    def drawn(*shape: int) -> list[torch.Tensor]:
        if samples is None and len(shape) > 1:  # products of round numbers vanish, but for the order of rounding
            return [torch.rand(shape, generator=rest, dtype=torch.float64) * 3 - 1.5 for _ in range(count)]
        return [known[torch.randint(len(known), shape, generator=rest)] for _ in range(count)]

    fusion = traced(None, None, op, ((torch.float64, False),) * count, False, None, None)
    items = drawn(3 * TRIPLES)
    states = evaluated(fusion.nodes, fusion.elements, {"operand": items}, {})
    a, b, c = zip(*(each.expand(3 * TRIPLES).chunk(3) for each in states), strict=True)
    nothing = tuple(torch.full_like(each, field.identity) for each, field in zip(a, fusion.fields, strict=True))

    def combine(older: Any, newer: Any) -> Any:
        found = evaluated(fusion.nodes, fusion.combine, {"older": older, "newer": newer}, {})
        return tuple(each.expand(TRIPLES) for each in found)

    sides = (combine(nothing, a), a), (combine(a, nothing), a), (combine(combine(a, b), c), combine(a, combine(b, c)))
    for (law, operands, *words), pair in zip(LAWS, sides, strict=False):
        report.laws += TRIPLES
        for field, left, right in zip(fusion.fields, *pair, strict=True):
            for test in apart(left, right, size_of(left).maximum(size_of(right)), 1e-9).nonzero().flatten().tolist():
                shown = (
                    f"{letter} of {', '.join(str(each[at * TRIPLES + test].item()) for each in items)}"
                    for at, letter in enumerate(operands)
                )
                values = f"{words[0]} has {left[test].item()}, but {words[1]} {right[test].item()}"
                yield Finding(law, "float64", f"in the field {field.name!r}, {values}, for {'; '.join(shown)}")
    turns = itertools.cycle(itertools.product((False, True), repeat=2))
    shapes = ((5 if length < 2**16 else 2, length) for length in lengths)
    for shape in (each for n in shapes for each in (n, (1, n[1], COLUMNS)) if each[-1] * each[1] <= 2**17):
        reverse, exclusive = next(turns)
        x = drawn(*shape)
        for dtype in dtypes or (torch.float64,):
            given = [each.to(dtype) for each in x]
            with emulate(seed=seed):
                y = scan(given, op, 1, reverse=reverse, exclusive=exclusive)
            wide = [each.double() for each in given]
            wanted = scan(wide, op, 1, reverse=reverse, exclusive=exclusive)
            made, exact = (torch.stack(each if isinstance(each, tuple) else (each,)) for each in (y, wanted))
            scale = size_of(exact).amax(0)
            scale = (scale.flip(1).cummax(1).values.flip(1) if reverse else scale.cummax(1).values)[None]
            kept = scale < torch.finfo(dtype).max ** 0.5
            report.scans, report.items = report.scans + 1, report.items + int(kept.sum())
            wrong = kept & apart(made, exact, scale, 1e-3 + 8 * torch.finfo(dtype).eps)
            if bool(wrong.any()):
                at = tuple(wrong.nonzero()[0].tolist())
                found = f"result {at[0]} at {at[1:]} is {made[at].item()}, in float64 {exact[at].item()}"
                what = f"x of shape {shape} along 1: {found}"
                yield Finding("agreement with float64", str(dtype).removeprefix("torch."), what)


def _checked(op: object, lengths: Iterable[int], samples: Sequence[complex] | None) -> tuple[int, ...]:
    """Return the lengths in rising order. Raises UnsupportedRequest for an invalid option."""
    lengths = tuple(lengths)
    numbers = samples is None or (len(samples) and all(isinstance(item, int | float | complex) for item in samples))
    for name, value, valid, allowed in (
        ("op", op, isinstance(op, Operator | FieldOperator), "a scanops.Operator"),
        ("lengths", lengths, all(type(n) is int and 1 <= n <= LONGEST for n in lengths), f"integers, 1 to {LONGEST}"),
        ("samples", samples, numbers, "a sequence of at least one number, or None"),
    ):
        if not valid:
            hint = f"see help(scanops.check_operator), or leave {name} out"
            raise UnsupportedRequest(f"check_operator: invalid {name}", allowed=allowed, value=repr(value), hint=hint)
    return tuple(sorted(set(lengths)))
