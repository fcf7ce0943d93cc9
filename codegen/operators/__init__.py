"""Operators by name: the built-in rows, those registered in this process, and the rows of their gradients.

The built-in rows are in the modules of this package, whose docstrings are their pages of the docs.
"""

from __future__ import annotations

import copyreg
from dataclasses import fields
from functools import partial
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
BUILT_IN = dict(OPERATORS)
_SHIPPED = {**BUILT_IN, **GRADIENTS}


def is_built_in(row: Operator) -> bool:
    """Whether ``row`` ships with scanops, so that its name identifies it in every process."""
    return _SHIPPED.get(row.name) is row


def _reduce(row: Operator) -> tuple[Any, ...]:
    """Return what pickle stores of a row: of a built-in one its name, because lambdas cannot be pickled."""
    if is_built_in(row):
        return operator_named, (row.name,)
    return partial(Operator, **{each.name: getattr(row, each.name) for each in fields(row) if each.init}), ()


copyreg.pickle(Operator, _reduce)


def operator_named(name: object) -> Operator:
    """Return the row of an operator or a gradient of one. Raises UnsupportedRequest for an unknown ``name``."""
    row = (OPERATORS.get(name) or GRADIENTS.get(name)) if isinstance(name, str) else None
    return row or find_operator(name)


def find_operator(name: object) -> Operator:
    """Return the row of an operator, gradients excluded. Raises UnsupportedRequest for an unknown ``name``."""
    row = OPERATORS.get(name) if isinstance(name, str) else None
    if row is None:
        raise UnsupportedRequest(
            "scan: op must name an operator",
            allowed=", ".join(repr(known) for known in tuple(OPERATORS)),
            value=format_value(name),
            hint=(did_you_mean(name, tuple(OPERATORS)) if isinstance(name, str) else "")
            + "pass one of these names, or a scanops.Operator",
        )
    return row


def register_operator(operator: Operator) -> Operator:
    """Make ``operator`` available by its name in this process: to ``scanops.scan``, ``ScanSpec`` and ``generate``.

    ``scanops.scan`` registers the operator it is given. Registering is needed only where a name is used before that:
    in another process that receives a spec, or to build kernels in advance. Registering an equal operator again does
    nothing. Kernels are identified by their text and not by an operator's name, so processes that use one name for
    different operators can share a store. Thread-safe.

    Args:
        operator: the operator; its name is what it is known by.

    Returns:
        The operator.

    Raises:
        UnsupportedRequest: not an Operator; a name that another operator has; an operator with ``indices``, a second
            output that only ``cummax`` and ``cummin`` have.

    Example:
        >>> import scanops
        >>> scanops.register_operator(operator_named("sum")).name
        'sum'
    """
    if not isinstance(operator, Operator):
        raise UnsupportedRequest(
            "register_operator: expected a scanops.Operator",
            allowed="a scanops.Operator",
            value=repr(operator),
            hint="construct one: scanops.Operator(name=..., lift=..., combine=..., ...)",
        )
    if OPERATORS.get(operator.name) is operator:
        return operator
    if operator.indices:
        raise UnsupportedRequest(
            f"register_operator: {operator.name!r} has a second output",
            allowed="one output, indices=''; only scanops.cummax and scanops.cummin return values and indices",
            value=f"indices={operator.indices!r}",
            hint=f"for the index alone pass gives='index' and project={operator.indices!r}, and scan twice for both",
        )
    rows = [(GRADIENTS, row) for row in gradient_rows(operator)] + [(OPERATORS, operator)]
    for _, row in rows:
        _require_free(row, OPERATORS.get(row.name) or GRADIENTS.get(row.name))
    # No lock, which a forked child might find held: one step asks for a name and takes it.
    for table, row in rows:
        _require_free(row, table.setdefault(row.name, row))
        table[row.name] = row  # an equal one
    return operator


def _require_free(row: Operator, known: Operator | None) -> None:
    """Raise UnsupportedRequest unless ``row`` may have its name, which ``known`` has."""
    if known not in (None, row) or (known is not row and row.name in _SHIPPED):
        raise UnsupportedRequest(
            f"register_operator: the name is {'built in' if row.name in _SHIPPED else 'taken'}",
            allowed="a name that no different operator has in this process",
            value=f"name={row.name!r}",
            hint=f"choose another name, for example {row.name + '_2'!r}",
        )
