"""The names and signatures of ``torch.ops.scanops``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from scanops.requests.request import Inputs

__all__ = ["BACKWARD", "LIBRARY", "RESULTS", "SCANS", "TENSORS", "Form", "Options", "of_backward"]

LIBRARY = torch.library.Library("scanops", "DEF")  # type: ignore[no-untyped-call]
_TAGS = (torch.Tag.pt2_compliant_tag,)

# Tensors come first. Then dim: DTensor keeps shardings by what stands from the first whole number on.
_TENSORS = "Tensor x, Tensor? mask, Tensor? gate, Tensor? segment_starts, Tensor? offsets, Tensor? initial"
TENSORS = 6
RESULTS = 4  # gradients and results that the arguments of scan_backward begin with
_SCAN = "int dim, str op"
_OPTIONS = (
    "Scalar? start=None, bool reverse=False, bool exclusive=False, ScalarType? dtype=None, "
    "str? accumulate=None, bool any_length=False"
)


class Options(NamedTuple):
    """What an operation is told besides tensors, in the schema's order."""

    dim: int
    op: str
    start: torch.types.Number | None = None  # what lines go on from, where that is a number
    reverse: bool = False
    exclusive: bool = False
    dtype: torch.dtype | None = None
    accumulate: str | None = None
    any_length: bool = False  # the length changes from call to call: no kernel is built for this one

    def around(self, needs: tuple[bool, ...]) -> tuple[Any, ...]:
        """The arguments of ``scan_backward`` after the tensors."""
        return (self.dim, self.op, needs, *self[2:])

    def computed(self, form: Form, inputs: Inputs) -> tuple[tuple[Any, ...], Inputs]:
        """The options and inputs of ``scanops.ops.dispatch.served``."""
        initial: Any = self.start if inputs.initial is None else inputs.initial
        options = (self.op, self.dim, self.reverse, self.exclusive, form.final, self.dtype, self.accumulate)
        return options, inputs._replace(initial=initial)


def of_backward(arguments: tuple[Any, ...]) -> tuple[Inputs, tuple[bool, ...], Options]:
    """Inputs, needs and options of what ``scan_backward`` is given after gradients and results."""
    dim, op, needs, *others = arguments[TENSORS:]
    return Inputs(*arguments[:TENSORS]), tuple(needs), Options(dim, op, *others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One operation of those that differ in what they return."""

    name: str
    indices: bool  # whether indices come with the values
    final: bool  # whether what goes on from each line is given
    overload: torch._ops.OpOverload[..., Any]


def _define(name: str, arguments: str, results: int) -> torch._ops.OpOverload[..., Any]:
    returns = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
    LIBRARY.define(f"{name}({arguments}) -> {returns}", tags=_TAGS)  # type: ignore[no-untyped-call]
    overload: torch._ops.OpOverload[..., Any] = getattr(torch.ops.scanops, name).default
    return overload


def _forms() -> dict[tuple[bool, bool], Form]:
    found = {}
    for indices in (False, True):
        for final in (False, True):
            name = "scan" + "_indices" * indices + "_final" * final
            overload = _define(name, f"{_TENSORS}, {_SCAN}, {_OPTIONS}", 1 + indices + final)
            found[indices, final] = Form(name=name, indices=indices, final=final, overload=overload)
    return found


SCANS: Mapping[tuple[bool, bool], Form] = MappingProxyType(_forms())
# The gradients of x, mask, gate and initial, those that are not needed without items. Of inputs that it does not read
# it is told shape and dtype by tensors whose items are all one; y and indices are results, where they are read.
BACKWARD = _define(
    "scan_backward",
    f"Tensor grad, Tensor? grad_final, Tensor? y, Tensor? indices, {_TENSORS}, {_SCAN}, bool[] needs, {_OPTIONS}",
    4,
)
