"""Names and signatures of the operators ``torch.ops.scanops.*``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
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


class Operation(NamedTuple):
    """The arguments of an operator after its tensors."""

    call: Call
    start: torch.types.Number | None = None  # the carry-in, where it is a number
    any_length: bool = False  # whether the length is a symbol: no kernel is built for its value

    @property
    def form(self) -> Form:
        """The operator that returns what the call returns."""
        return SCANS[bool(listed(self.call.op).indices), self.call.final]

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments in the schema's order."""
        return (*self.call.arguments(), self.start, self.any_length)

    @staticmethod
    def parse(arguments: tuple[Any, ...], *, final: bool) -> Operation:
        """Return the operation of the arguments after the tensors, which end where only defaults follow."""
        return Operation(Call.of_arguments(arguments[: len(SCHEMA)], final=final), *arguments[len(SCHEMA) :])

    def carried(self, inputs: Inputs) -> Inputs:
        """Return an operator's inputs with ``start`` as the carry-in where no tensor is."""
        return inputs if inputs.initial is not None else inputs._replace(initial=self.start)  # type: ignore[arg-type]


def of_backward(arguments: tuple[Any, ...]) -> tuple[Inputs, tuple[bool, ...], Operation]:
    """Return inputs, needs and operation of the arguments of ``scan_backward`` after gradients and results."""
    dim, op, needs, *others = arguments[TENSORS:]
    return Inputs(*arguments[:TENSORS]), tuple(needs), Operation.parse((dim, op, *others), final=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One of the operators, which differ in what they return."""

    name: str
    indices: bool  # whether indices come with the values
    final: bool  # whether carry-outs are returned
    overload: torch._ops.OpOverload[..., Any]


def _define(name: str, arguments: str, results: int) -> torch._ops.OpOverload[..., Any]:
    returns = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
    LIBRARY.define(f"{name}({arguments}) -> {returns}", tags=_TAGS)  # type: ignore[no-untyped-call]
    overload: torch._ops.OpOverload[..., Any] = getattr(torch.ops.scanops, name).default
    return overload


_DIM, _OP, *_OPTIONS = (*SCHEMA.values(), "Scalar? start=None", "bool any_length=False")


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


def backward_arguments(operation: Operation, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    """Return the arguments of ``scan_backward`` after its tensors."""
    dim, op, *others = operation.arguments()
    return (dim, op, needs, *others)


def request_of(operation: Operation, inputs: Inputs) -> Request:
    """Return the request that an operator's call makes."""
    start: Any = operation.start
    if isinstance(start, torch.SymInt | torch.SymFloat | torch.SymBool):  # a number of its kind: only that is checked
        operation = operation._replace(start=1 if isinstance(start, torch.SymInt) else True)
    return checked(operation.call, operation.carried(inputs))


def as_tuple(found: Any) -> tuple[torch.Tensor, ...]:
    """Return an operator's results as a tuple, also where it has one."""
    return found if isinstance(found, tuple) else (found,)


def lengths(any_length: bool) -> AbstractContextManager[object]:
    """Use the kernel that takes its length where lengths change, unless the user chose a policy."""
    return policies.policy("generic") if any_length and policies.current().specialises else nullcontext()
