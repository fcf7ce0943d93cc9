"""Operators by name: their rows, and the rows of their gradients.

The rows are in the modules of this package, whose docstrings are their pages of the docs.
"""

from __future__ import annotations

import copyreg
from typing import Any

from scanops.codegen.operator import Operator as Operator
from scanops.codegen.operators import bits, extremes, logcumsumexp, recurrences, sums
from scanops.errors import UnsupportedRequest, did_you_mean, format_value


def gradient_rows(row: Operator) -> tuple[Operator, ...]:
    """Return the rows of the scans that compute the gradient of ``row`` and of nothing else."""
    return row.gradient.rows if row.gradient else ()


FAMILIES = (sums, extremes, logcumsumexp, recurrences, bits)
OPERATORS: dict[str, Operator] = {row.name: row for family in FAMILIES for row in family.ROWS}
GRADIENTS: dict[str, Operator] = {each.name: each for row in OPERATORS.values() for each in gradient_rows(row)}
GRADIENTS |= {row.name: row for row in (recurrences.LATEST, recurrences.EXPRESSIONS)}


def _find_again(row: Operator) -> tuple[Any, ...]:
    """Return what pickle stores of a row: its name, because lambdas cannot be pickled."""
    return operator_named, (row.name,)


copyreg.pickle(Operator, _find_again)


def operator_named(name: object) -> Operator:
    """Return the row of an operator or a gradient of one. Raises UnsupportedRequest for an unknown ``name``."""
    row = (OPERATORS.get(name) or GRADIENTS.get(name)) if isinstance(name, str) else None
    return row or find_operator(name)


def find_operator(name: object, others: str = ", or an operator of scanops.operator") -> Operator:
    """Return the row of an operator, gradients excluded. Raises UnsupportedRequest for an unknown ``name``.

    ``others``: what the caller takes beside the names, for the hint.
    """
    row = OPERATORS.get(name) if isinstance(name, str) else None
    if row is None:
        raise UnsupportedRequest(
            "scan: op must name an operator",
            allowed=", ".join(repr(known) for known in tuple(OPERATORS)),
            value=format_value(name),
            hint=(did_you_mean(name, tuple(OPERATORS)) if isinstance(name, str) else "")
            + f"pass one of these names{others}",
        )
    return row
