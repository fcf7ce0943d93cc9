"""Operators by name: the built-in rows, and those registered in this process."""

from __future__ import annotations

import threading

from scanops.codegen.adjoints import ADJOINT_ROWS
from scanops.codegen.operator import Operator
from scanops.codegen.table import BUILT_IN, FORMS
from scanops.errors import UnsupportedRequest, did_you_mean, shown

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
_REGISTERING = threading.Lock()  # readers take no lock: a registered row is only ever replaced by an equal one


def form_of(row: Operator, form: str) -> Operator:
    """The variant of ``row`` for ``form``, an accumulator kind or "compensated"; ``row`` itself where it has none."""
    return FORMS.get((row.name, form), row) if BUILT_IN.get(row.name) is row else row


def is_built_in(row: Operator) -> bool:
    """Whether ``row`` ships with scanops, so that its name identifies it in every process."""
    return row is (BUILT_IN.get(row.name) or ADJOINT_ROWS.get(row.name))


def operator_named(name: object) -> Operator:
    """Return the row of an operator or a gradient of one. Raises UnsupportedRequest for an unknown ``name``."""
    row = ADJOINT_ROWS.get(name) if isinstance(name, str) else None
    return row or listed(name)


def listed(name: object) -> Operator:
    """Return the row of an operator, gradients excluded. Raises UnsupportedRequest for an unknown ``name``."""
    row = OPERATORS.get(name) if isinstance(name, str) else None
    if row is None:
        raise UnsupportedRequest(
            "scan: op must name an operator",
            allowed=", ".join(repr(known) for known in tuple(OPERATORS)),
            value=shown(name),
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
    with _REGISTERING:
        known = OPERATORS.get(operator.name)
        built_in = operator.name in BUILT_IN or operator.name in ADJOINT_ROWS
        if built_in or (known is not None and known.content != operator.content):
            raise UnsupportedRequest(
                f"register_operator: the name is {'built in' if built_in else 'taken'}",
                allowed="a name that no different operator has in this process",
                value=f"name={operator.name!r}",
                hint=f"choose another name, for example {operator.name + '_2'!r}",
            )
        OPERATORS[operator.name] = operator
    return operator
