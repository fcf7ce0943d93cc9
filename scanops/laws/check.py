"""``check_operator``: each law, then whole scans."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256

import torch

from scanops.codegen.operators import OPERATORS, Operator, register_operator
from scanops.errors import BuildFailure, UnsupportedRequest
from scanops.laws.agreement import LENGTHS, LONGEST, Agreement
from scanops.laws.report import Finding, OperatorReport
from scanops.laws.samples import LAW_DTYPES, SCAN_DTYPES
from scanops.laws.stretches import broken

__all__ = ["check_operator"]

_CHECKING = threading.Lock()  # one at a time: two checks of one operator have one name


def _after_fork() -> None:
    """Another thread of the parent may have been checking, and is not here to release the lock."""
    global _CHECKING
    _CHECKING = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def check_operator(
    op: Operator,
    *,
    dtypes: Iterable[torch.dtype] | None = None,
    lengths: Iterable[int] = LENGTHS,
    samples: Sequence[complex] | None = None,
    seed: int = 1,
) -> OperatorReport:
    """Whether ``op`` is associative, has its identity and agrees with its reference: tested on the emulator.

    The C++ of the operator is compiled by g++, as part of a small program and of the very kernels a GPU would run. In
    the first, stretches a, b, c of a few items each are joined:

        combine(identity, a) = a = combine(a, identity)
        combine(combine(a, b), c) = combine(a, combine(b, c))
        combine(a, b) = combine(b, a), if ``op.commutative``

    Integers must be equal. Floats are joined in float64 and complex numbers in complex128, where rounding cannot be
    taken for a broken law. Then whole scans, in every strategy that ``lengths`` lead to, forward and reverse, inclusive
    and exclusive, masked and not, are compared with ``step``: integers exactly, all others to within rounding of the
    greatest result so far, up to where results outgrow the square root of what the accumulator holds.

    Nothing is registered, so that a name is free until the operator is right.

    Args:
        op: the operator.
        dtypes: of the inputs to scan; by default float32, int32, bool and complex64, as far as they are legal.
        lengths: of the lines; the default leads to every strategy.
        samples: the items to draw from, each for the dtypes that hold it. By default small numbers, NaN, real
            infinities and the bounds of integers. Pass finite ones for an operator that promises nothing of the others:
            inf * 0 makes even a matrix product depend on the order.
        seed: of the drawn items and of the order of emulated threads.

    Returns:
        A report: ``.ok``, ``.findings`` with an example of each thing that is wrong; ``print`` it to read them.
        A broken law is no error: nothing is raised for it.

    Raises:
        UnsupportedRequest: a dtype that is not legal for the operator, or an option that is not as described.
        BuildFailure: C++ that does not compile for the first of its kinds; the message has the expressions and the
            compiler's words. What fails for another of them is a finding.

    Example:
        >>> print(check_operator(op))  # doctest: +SKIP
        last_valid: nothing wrong in 5400 joins, 46 scans of 947862 items (block, columns, split, staged, warp, wave)
    """
    _check_options(op, lengths, samples)
    with _registered(op) as name:
        findings: list[Finding] = []
        strategies: set[str] = set()
        compiled: list[str] = []
        compared = scans = items = 0
        for kind in op.kinds:
            try:
                found, count = broken(name, op, LAW_DTYPES[kind], samples, seed)
            except BuildFailure as failure:
                if not compiled:
                    raise
                findings.append(_not_compiled(kind, failure))
                continue
            compiled.append(kind)
            findings += found
            compared += count
        scanned = [SCAN_DTYPES[kind] for kind in compiled] if dtypes is None else list(dtypes)
        for dtype in scanned:
            agreement = Agreement(name=name, operator=op, dtype=dtype, samples=samples, seed=seed)
            finding = agreement.check(sorted(set(lengths)))
            findings += [finding] if finding else []
            scans, items, strategies = scans + agreement.scans, items + agreement.items, strategies | agreement.seen
    return OperatorReport(
        operator=op.name,
        findings=tuple(findings),
        laws=compared,
        scans=scans,
        items=items,
        strategies=tuple(sorted(strategies)),
    )


def _not_compiled(kind: str, failure: BuildFailure) -> Finding:
    """Of an operator that other kinds have: it claims one too many, or an expression lacks a case."""
    said = [line.split("error: ")[1] for line in str(failure.value).splitlines() if "error: " in line]
    return Finding(
        law="C++ for each of its kinds",
        dtype=str(LAW_DTYPES[kind]).removeprefix("torch."),
        example=f"{said[0] if said else failure}; if {kind} is none of the operator's kinds, leave it out of kinds=",
    )


def _check_options(op: object, lengths: Iterable[int], samples: Sequence[complex] | None) -> None:
    if not isinstance(op, Operator):
        raise UnsupportedRequest(
            "to check an operator", allowed="a scanops.Operator", value=repr(op), hint="construct one, see its example"
        )
    if not all(type(length) is int and 1 <= length <= LONGEST for length in lengths):
        raise UnsupportedRequest(
            "to check an operator on lines of these lengths",
            allowed=f"whole numbers from 1 to {LONGEST}",
            value=f"lengths={lengths!r}",
            hint="leave lengths out: the default leads to every strategy",
        )
    if samples is not None and not (len(samples) and all(isinstance(item, int | float | complex) for item in samples)):
        raise UnsupportedRequest(
            "to check an operator on these items",
            allowed="a sequence of one number or more",
            value=f"samples={samples!r}",
            hint="leave samples out, or pass for example (0.0, 1.0, -1.0, 0.5)",
        )


@contextmanager
def _registered(op: Operator) -> Iterator[str]:
    """``op`` under a name that follows from its content, for as long as it is checked."""
    name = f"{op.name[:36]}_{sha256(repr(op.content).encode()).hexdigest()[:8]}"
    with _CHECKING:
        register_operator(replace(op, name=name, indices=""))
        try:
            yield name
        finally:
            del OPERATORS[name]
