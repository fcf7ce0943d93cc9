"""``Call``: the options of one scan, passed whole from the public functions down to the kernel's spec.

A new keyword of the public functions is a field here, with its type in ``torch.library``'s schema and its name in
``ScanSpec``; layers in between pass the object on and name no field that they do not use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import TYPE_CHECKING, Any

import torch

from scanops.codegen.operator import COMPENSATED
from scanops.codegen.operators import OPERATORS
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest, format_value
from scanops.requests.sharding import KernelLink, Sharding

if TYPE_CHECKING:
    from scanops.codegen.fusion.fusion import Fusion

# The fields as arguments of torch.library's operators, in their order.
SCHEMA = {
    "dim": "int dim",
    "op": "str op",
    "reverse": "bool reverse=False",
    "exclusive": "bool exclusive=False",
    "dtype": "ScalarType? dtype=None",
    "accumulate": "str? accumulate=None",
    "start": "Scalar? start=None",
    "any_length": "bool any_length=False",
    "complete": "bool complete=False",
    "per_segment": "bool per_segment=False",
    "final": "bool final=False",
    "chunk": "int? chunk=None",
}


@dataclass(frozen=True, slots=True)
class Call:
    """Operator, dimension and options of one scan.

    As the user gave them; of a ``Request`` they are checked: ``dim`` counts from 0, ``dtype`` is that of the result,
    and ``accumulate`` is ``ScanSpec``'s word, None for the default accumulator.
    """

    op: str
    dim: int
    reverse: bool = False
    exclusive: bool = False
    final: bool = False  # whether carry-outs are returned
    dtype: torch.dtype | None = None
    accumulate: torch.dtype | str | None = None
    complete: bool = False  # whether the carry-in or the identity stands before the inclusive results
    chunk: int | None = None  # the scan begins again after so many items of a line, or of each segment of offsets
    start: torch.types.Number | None = None  # of an operator of torch.library: the carry-in, where it is a number
    any_length: bool = False  # likewise: whether the length is a symbol, for whose values no kernels are built
    per_segment: bool = False  # whether carries are of the segments that offsets give, not of lines
    totals: bool = False  # of a recurrence: no results, and the carry-out is its value and the product of its gates
    line_sums: int = 0  # of a backward pass: so many results, the last ones, are summed over lines
    sharding: Sharding | None = None  # the ranks that the dimension is sharded over; None: it is whole
    link: KernelLink | None = None  # by which lines of a shard continue on other ranks; None: they do not
    summed: tuple[int, ...] = ()  # dimensions of the broadcast shape that the results of a fused scan are summed over
    fusion: Fusion | None = None  # what the kernel computes around the scan: of ``map``, ``then`` and several tensors

    @property
    def name(self) -> str:
        """The public function, for messages: ``cumsum``, or ``scan with 'max'``; ``scan`` with ``map`` or ``then``."""
        if self.fusion is not None:
            return "scan"
        row = OPERATORS.get(self.op)
        return (row and row.function) or f"scan with {self.op!r}"

    @property
    def hashable(self) -> bool:
        """Whether equal calls mean the same: ``True == 1``, so each field has to be exactly of its type."""
        flags = type(self.reverse) is type(self.exclusive) is type(self.final) is type(self.complete) is bool
        return flags and type(self.dim) is int and type(self.op) is str and type(self.accumulate) in _ACCUMULATE

    @property
    def compensated(self) -> bool:
        """Whether rounding errors are carried beside each partial result."""
        return self.accumulate == COMPENSATED

    @property
    def result(self) -> torch.dtype:
        """The dtype of the result, of a checked call."""
        assert self.dtype is not None
        return self.dtype

    def check_options(self) -> None:
        """Raise unless each option is of its type: flags are bools, ``dtype`` is a dtype or None, and so on."""
        flag, dtype = ((bool,), "a bool", "True"), (torch.dtype, NoneType)
        for name, value, (kinds, what, example) in (
            ("reverse", self.reverse, flag),
            ("exclusive", self.exclusive, flag),
            ("return_final", self.final, ((bool,), "a bool or 'segments'", "True, or 'segments' beside offsets")),
            ("complete", self.complete, flag),
            ("dtype", self.dtype, (dtype, "a torch.dtype or None", "torch.float32")),
            ("accumulate", self.accumulate, ((*dtype, str), "a torch.dtype, 'compensated' or None", "torch.float64")),
        ):
            if not isinstance(value, kinds):
                raise UnsupportedRequest(
                    f"{self.name}: {name} must be {what}",
                    allowed=what,
                    value=f"{name}={format_value(value)}",
                    hint=f"leave {name} out, or pass {name}={example}",
                )

    def widen(self) -> Call | None:
        """Return the call with results of its wider accumulator's dtype; None where it has no such accumulator."""
        if self.accumulate is None or self.compensated:
            return None
        return replace(self, dtype=getattr(torch, str(self.accumulate)), accumulate=None)

    def spec_fields(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """Return the fields of ``ScanSpec`` that follow from the call, and from its ``Inputs`` and their dtypes."""
        x, mask, gate, starts, offsets, initial, saved, begin, *_ = tensors
        assert x is not None
        flags = "flags" if starts is not None else None
        return {
            "dtype": str(x.dtype),
            "mask": None if mask is None else str(mask.dtype),
            "gate": None if gate is None else str(gate.dtype),
            "saved": None if saved is None else str(saved.dtype),
            "saved_initial": begin is not None,
            "segments": flags if offsets is None else str(offsets.dtype).removeprefix("torch."),
            "initial": initial is not None,
            "op": self.op,
            "out_dtype": "" if self.dtype is None else str(self.dtype),
            "accumulate": None if self.accumulate is None else str(self.accumulate),
            "reverse": self.reverse,
            "exclusive": self.exclusive or self.complete,
            "complete": self.complete,
            "final": self.final,
            "totals": self.totals,
            "line_sums": self.line_sums,
            "per_segment": self.per_segment and (initial is not None or self.final),
            # Whether a rank has a carry-in or returns a carry-out is said by arguments of the kernel of all ranks.
            **({} if self.link is None else {"linked": True, "initial": False, "final": False}),
        }

    @staticmethod
    def of_spec(spec: ScanSpec, dim: int) -> Call:
        """Return the call along ``dim`` that a kernel of ``spec`` serves."""
        dtype = getattr(torch, spec.out_dtype)
        call = Call(spec.op, dim, spec.reverse, spec.exclusive, spec.final, dtype, spec.accumulate)
        call = replace(call, per_segment=True) if spec.per_segment else call
        call = replace(call, fusion=spec.fusion, line_sums=spec.line_sums)
        return replace(call, exclusive=False, complete=True) if spec.complete else call

    def settle(self, spec: ScanSpec, dim: int) -> Call:
        """Return this call as a ``Request`` has it, with what ``spec`` has settled."""
        return replace(self, dim=dim, dtype=getattr(torch, spec.out_dtype), accumulate=spec.accumulate)

    def derivative(self, op: str, *, dtype: torch.dtype, carry: torch.dtype | None = None, **flags: Any) -> Call:
        """Return a scan of a derivative of this one: ``op`` in ``dtype`` with other ``flags``.

        It is compensated where the operator is the same; else it accumulates in ``carry``, None for the default.
        """
        accumulate = COMPENSATED if self.compensated and op == self.op else None if carry is None else str(carry)
        return replace(self, op=op, dtype=dtype, accumulate=accumulate, start=None, any_length=False, **flags)

    def arguments(self) -> tuple[Any, ...]:
        """Return the fields as ``SCHEMA`` orders them."""
        call = self if self.accumulate is None else replace(self, accumulate=str(self.accumulate))
        return tuple([getattr(call, name) for name in SCHEMA])

    @staticmethod
    def of_arguments(arguments: tuple[Any, ...]) -> Call:
        """Return the call of an operator's arguments, the last of which may be missing: they are defaults."""
        return Call(**dict(zip(SCHEMA, arguments, strict=False)))


_ACCUMULATE = (type(None), str, torch.dtype)
