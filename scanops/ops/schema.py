"""Names and signatures of the operators ``torch.ops.scanops.*``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from scanops.codegen.operators import listed
from scanops.requests.call import SCHEMA, Call
from scanops.requests.request import Inputs, Request, checked
from scanops.runtime import policies

LIBRARY = torch.library.Library("scanops", "DEF")  # type: ignore[no-untyped-call]
_TAGS = (torch.Tag.pt2_compliant_tag,)
_TENSORS = "Tensor x, Tensor? mask, Tensor? gate, Tensor? segment_starts, Tensor? offsets, Tensor? initial"
TENSORS = 6
RESULTS = 4  # gradients and results, which come first among the arguments of scan_backward


class Form(NamedTuple):
    """One of the operators, which differ in what they return."""

    name: str
    indices: bool  # whether indices come with the values
    final: bool  # whether carry-outs are returned
    overload: torch._ops.OpOverload[..., Any]

    def parsed(self, arguments: tuple[Any, ...]) -> tuple[Inputs, Call]:
        """Return the tensors and the call of the operator's arguments."""
        return Inputs(*arguments[:TENSORS]), Call.of_arguments(arguments[TENSORS:], final=self.final)


def _define(name: str, arguments: str, results: int) -> torch._ops.OpOverload[..., Any]:
    returns = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
    LIBRARY.define(f"{name}({arguments}) -> {returns}", tags=_TAGS)  # type: ignore[no-untyped-call]
    overload: torch._ops.OpOverload[..., Any] = getattr(torch.ops.scanops, name).default
    return overload


_DIM, _OP, *_OPTIONS = SCHEMA.values()


def _forms() -> dict[tuple[bool, bool], Form]:
    found = {}
    for indices in (False, True):
        for final in (False, True):
            name = "scan" + "_indices" * indices + "_final" * final
            overload = _define(name, ", ".join((_TENSORS, _DIM, _OP, *_OPTIONS)), 1 + indices + final)
            found[indices, final] = Form(name=name, indices=indices, final=final, overload=overload)
    return found


SCANS: Mapping[tuple[bool, bool], Form] = MappingProxyType(_forms())
# The gradients of x, mask, gate and initial; those that are not needed have no items. Inputs that the gradient does not
# read may be expanded from one element: only their shape and dtype count. y and indices are the forward's results.
BACKWARD = _define(
    "scan_backward",
    ", ".join(
        ("Tensor grad, Tensor? grad_final, Tensor? y, Tensor? indices", _TENSORS, _DIM, _OP, "bool[] needs", *_OPTIONS)
    ),
    4,
)


def form_of(call: Call) -> Form:
    """Return the operator that returns what a call returns."""
    return SCANS[bool(listed(call.op).indices), call.final]


def backward_arguments(call: Call, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    """Return the arguments of ``scan_backward`` after its tensors."""
    dim, op, *others = call.arguments()
    return (dim, op, needs, *others)


def of_backward(arguments: tuple[Any, ...]) -> tuple[Inputs, tuple[bool, ...], Call]:
    """Return inputs, needs and call of the arguments of ``scan_backward`` after gradients and results."""
    dim, op, needs, *others = arguments[TENSORS:]
    return Inputs(*arguments[:TENSORS]), tuple(needs), Call.of_arguments((dim, op, *others), final=False)


def request_of(call: Call, inputs: Inputs) -> Request:
    """Return the request that an operator's call makes."""
    start: Any = call.start
    if isinstance(start, torch.SymInt | torch.SymFloat | torch.SymBool):  # a number of its kind: only that is checked
        start = 1 if isinstance(start, torch.SymInt) else True
    return checked(call, inputs if inputs.initial is not None else inputs._replace(initial=start))


def run_operator(call: Call, tensors: tuple[Any, ...], keys: Any = None) -> tuple[torch.Tensor, ...]:
    """Return the results of a call's operator on its six tensors; ``keys`` are what is left to dispatch to."""
    overload, arguments = form_of(call).overload, (*tensors, *call.arguments())
    found = overload(*arguments) if keys is None else overload.redispatch(keys, *arguments)
    return found if isinstance(found, tuple) else (found,)


def lengths(any_length: bool) -> AbstractContextManager[object]:
    """Use the kernel that takes its length where lengths change, unless the user chose a policy."""
    return policies.policy("generic") if any_length and policies.current().specialises else nullcontext()
