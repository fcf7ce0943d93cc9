"""Exported Python files: what their templates say of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scanops.codegen.exports.launcher import Unit, python_name, scalar
from scanops.codegen.source import environment

__all__ = ["Tensor", "python_text"]

MEANINGS = {
    "x": "",
    "mask": ", one per item: a bool mask selects, a numeric one multiplies",
    "gate": ", one per item: the factor of the result before it",
    "saved": ", one per item: what the forward scan saved",
    "segment_starts": ", one per item: True where a segment begins",
    "offsets": ": 0, the beginning of each further segment, and the length",
    "initial": " or a number: the carry-in of each line, expandable to x's shape without dim",
}


class Tensor(NamedTuple):
    """A tensor that a call takes or returns."""

    name: str
    dtypes: Sequence[str]  # that it may have

    @property
    def says(self) -> str:
        """The dtypes and the meaning of the tensor."""
        return f"{self.name}: {' or '.join(self.dtypes)}{MEANINGS[self.name]}"

    @property
    def scalars(self) -> str:
        """The dtypes that the tensor may have, in C++."""
        return ", ".join(map(scalar, self.dtypes))


def python_text(units: Sequence[Unit], format: str, command: str) -> str:
    """Return the Python file of kernels that take the same kinds of tensors; ``command`` writes it."""
    spec, board = units[0].plan.spec, format == "gpumode"
    masks = list(dict.fromkeys(str(unit.plan.spec.mask) for unit in units))
    operands = [
        Tensor(python_name(source), masks if source.name == "mask" else [source.dtype.name]) for source in spec.sources
    ]
    results = [Tensor("y", [spec.out.name])]
    results += [Tensor("indices", ["int64" if spec.indexed else spec.out.name])] if spec.doubled else []
    results += [Tensor("carry_out", [spec.carry.name])] if spec.final else []
    others = [Tensor("offsets", [str(spec.segments)])] if spec.by_offsets else []
    others += [Tensor("initial", [spec.carry.name])] if spec.initial else []
    template = environment().get_template("exports/scan.py.j2")
    return template.render(
        units=units,
        spec=spec,
        target=units[0].plan.target,
        parameters=units[0].parameters,
        board=board,
        command=command,
        operands=operands + results[:board],  # GPU MODE passes the output
        others=others,
        results=results,
    )
