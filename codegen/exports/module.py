"""What the template of an exported Python file prints around its kernels: tensors, versions and names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scanops.codegen.exports.launcher import Unit, python_name
from scanops.codegen.spec import ScanSpec

__all__ = ["Module", "Tensor", "module_of"]

# The oldest torch that has every name of a file, 1.13, and the first that has a younger dtype. Ordered as text.
TORCH = "1.13"
LATER_TORCH = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), "2.1"),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz"), "2.2"),
    **dict.fromkeys(("uint16", "uint32", "uint64"), "2.3"),
}
MEANINGS = {
    "mask": ", one per item: a bool mask selects, a numeric one multiplies",
    "gate": ", one per item: the factor of the result before it",
    "segment_starts": ", one per item: True where a segment begins",
    "offsets": ": 0, the beginning of each further segment, and the length",
    "initial": " or a number: the carry-in of each line, expandable to x's shape without dim",
}


class Tensor(NamedTuple):
    """A tensor that a call takes."""

    name: str
    dtypes: tuple[str, ...]  # that it may have
    layout: str = ""  # of an operand with one item for each item that is scanned

    @property
    def says(self) -> str:
        """The dtypes and the meaning of the tensor."""
        return f"{self.name}: {' or '.join(self.dtypes)}{MEANINGS.get(self.name, '')}"


class Output(NamedTuple):
    """A tensor that a call returns."""

    name: str
    shape: str  # the name of the shape in the file
    dtype: str
    says: str  # its description, in a phrase


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A Python file: its kernels, which all take the same kinds of tensors."""

    format: str
    command: str  # the command that writes the file
    units: tuple[Unit, ...]
    operands: tuple[Tensor, ...]  # with one item for each item that is scanned; x is the first
    others: tuple[Tensor, ...]  # that a call takes after the operands
    torch: str  # the oldest torch that has every dtype of the file
    shape: tuple[int, ...]  # of the example inputs

    @property
    def spec(self) -> ScanSpec:
        """The spec of the first kernel, which stands for what all have in common."""
        return self.units[0].spec

    @property
    def formula(self) -> str:
        """The formula of the operator, escaped for a docstring."""
        return self.spec.operator.formula.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The outputs of a call, in order."""
        spec = self.spec
        result = Output("y", "shape", spec.out.name, f"y, {spec.out.name}")
        indices = [Output("indices", "shape", "int64", "indices, int64")] if spec.indexed else []
        says = f"the carry-out of each line, {spec.carry.name}" if spec.final else ""
        return result, *indices, *([Output("carry_out", "line_shape", spec.carry.name, says)] if says else [])


def module_of(units: Sequence[Unit], format: str, command: str, lines: int) -> Module:
    """Return the Python file of kernels that take the same kinds of tensors.

    ``lines`` is the number of lines of the example inputs, unless they are adjacent.
    """
    spec = units[0].spec
    masks = tuple(dict.fromkeys(str(unit.spec.mask) for unit in units))
    gathered = {} if "neighbours" in units[0].plan.launch.parameters else {"transposed": "strided"}
    operands = (
        Tensor(
            name=python_name(source),
            dtypes=masks if source.name == "mask" else (source.dtype.name,),
            layout=gathered.get(source.layout, source.layout),
        )
        for source in spec.sources
    )
    others = [Tensor("offsets", (str(spec.segments),))] if spec.by_offsets else []
    others += [Tensor("initial", (spec.carry.name,))] if spec.initial else []
    return Module(
        format=format,
        command=command,
        units=tuple(units),
        operands=tuple(operands),
        others=tuple(others),
        torch=max(LATER_TORCH.get(row.name, TORCH) for row in (spec.out, *(source.dtype for source in spec.sources))),
        shape=(spec.capacity, spec.inner) if spec.inner > 1 else (lines, spec.capacity),
    )
