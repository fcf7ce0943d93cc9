"""Operators by name: those of the table, and those that a process registers."""

from __future__ import annotations

import threading

from scanops.codegen.adjoints import ADJOINT_ROWS
from scanops.codegen.operator import Operator
from scanops.codegen.table import BUILT_IN, FORMS
from scanops.errors import UnsupportedRequest, shown

__all__ = [
    "BUILT_IN",
    "FORMS",
    "OPERATORS",
    "Operator",
    "form_of",
    "is_built_in",
    "listed",
    "operator_named",
    "register_operator",
]

OPERATORS: dict[str, Operator] = dict(BUILT_IN)
_REGISTERING = threading.Lock()  # readers take none: a row, once there, is only ever replaced by its equal


def form_of(row: Operator, form: str) -> Operator:
    """The row that computes ``row`` in a form of ``FORMS``; itself where it needs no other."""
    return FORMS.get((row.name, form), row) if BUILT_IN.get(row.name) is row else row


def is_built_in(row: Operator) -> bool:
    """Whether a row is one of this package's, so that its name tells it to any process."""
    return row is (BUILT_IN.get(row.name) or ADJOINT_ROWS.get(row.name))


def operator_named(name: object) -> Operator:
    """The row called ``name``: an operator, or a gradient of one."""
    row = ADJOINT_ROWS.get(name) if isinstance(name, str) else None
    return row or listed(name)


def listed(name: object) -> Operator:
    """The operator called ``name``. Raises UnsupportedRequest for any other name, that of a gradient among them."""
    row = OPERATORS.get(name) if isinstance(name, str) else None
    if row is None:
        raise UnsupportedRequest(
            "scan: op must name an operator",
            allowed=", ".join(repr(known) for known in tuple(OPERATORS)),
            value=shown(name),
            hint="pass one of the names above as a string, or a scanops.Operator",
        )
    return row


def register_operator(operator: Operator) -> Operator:
    """Let ``operator`` be called by its name in this process: in ``scanops.scan``, ``ScanSpec`` and ``generate``.

    ``scanops.scan`` registers the operator it is given, so this is needed only where a name is used first: in another
    process that is sent a spec, or to build kernels ahead. To register an equal operator again does nothing. Kernels
    are told apart by their text and not by a name, so that two processes that mean different things by one name can
    share a store. Threads may register at the same time.

    Returns:
        The operator.

    Raises:
        UnsupportedRequest: not an Operator; a name that a different operator has; one with ``indices``, which only
            ``cummax`` and ``cummin`` return.

    Example:
        >>> import scanops
        >>> scanops.register_operator(operator_named("sum")).name
        'sum'
    """
    if not isinstance(operator, Operator):
        raise UnsupportedRequest(
            "to register an operator",
            allowed="a scanops.Operator",
            value=repr(operator),
            hint="construct one: scanops.Operator(name=..., lift=..., combine=..., ...)",
        )
    if OPERATORS.get(operator.name) is operator:
        return operator
    if operator.indices:
        raise UnsupportedRequest(
            f"to register the operator {operator.name!r} with a second output",
            allowed="indices='': one output; scanops.cummax and scanops.cummin return indices",
            value=f"indices={operator.indices!r}",
            hint="scan twice, or project the index itself into an integer output",
        )
    with _REGISTERING:
        known = OPERATORS.get(operator.name)
        built_in = operator.name in BUILT_IN or operator.name in ADJOINT_ROWS
        if built_in or (known is not None and known.content != operator.content):
            raise UnsupportedRequest(
                f"to register another operator called {operator.name!r}",
                allowed="a name that no operator of different content has: each is called by its name",
                value=f"name={operator.name!r}, which {'is built in' if built_in else 'is taken'}",
                hint=f"give it a name of its own, for example {operator.name + '_2'!r}",
            )
        OPERATORS[operator.name] = operator
    return operator
