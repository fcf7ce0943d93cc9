"""Exported Python files: what their templates say of tensors and layouts."""

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
# By the layout of an operand: a condition in C++, what it means, and further arguments of add_past, which name the
# dimensions whose strides have to be multiples of 16 bytes, as its address has to, unless the spec is unaligned. None:
# any address will do.
LAYOUTS = {
    "dense": ("{0}.is_contiguous()", "contiguous", ""),
    "rows": ("length == 1 || {0}.stride(dim) == 1", "contiguous along dim", None),
    "columns": (
        "inner == 1 || merged({{{0}}}, dim + 1, dim) == (Rows{{{{inner, 1}}}})",
        "contiguous behind dim",
        ", dim + 1",
    ),
    "line": (
        "(length == 1 || {0}.stride(dim) == 0) && merged({{{0}}}, dim + 1, dim).size() < 2",
        "of size 1 along dim, with one stride behind dim",
        None,
    ),
    "transposed": ("unit >= 0 && {0}.stride(unit) == 1", "transposed, as x.t() is", ", x.dim(), unit"),
}


class Tensor(NamedTuple):
    """A tensor that a call takes or returns."""

    name: str
    dtypes: Sequence[str]  # that it may have
    layout: str = ""  # of an operand with one item for each item that is scanned
    source: str = ""  # name of this operand in the kernel

    @property
    def says(self) -> str:
        """The dtypes and the meaning of the tensor."""
        return f"{self.name}: {' or '.join(self.dtypes)}{MEANINGS[self.name]}"

    @property
    def scalars(self) -> str:
        """The dtypes that the tensor may have, in C++."""
        return ", ".join(map(scalar, self.dtypes))

    @property
    def rule(self) -> tuple[str, str, str | None]:
        """The row of LAYOUTS for this tensor; that of a strided operand requires nothing."""
        fits, wanted, reach = LAYOUTS.get(self.layout, ("", "", None))
        return fits.format(self.name), wanted, reach


def python_text(units: Sequence[Unit], format: str, command: str) -> str:
    """Return the Python file of kernels that take the same kinds of tensors; ``command`` writes it."""
    spec, board = units[0].plan.spec, format == "gpumode"
    masks = list(dict.fromkeys(str(unit.plan.spec.mask) for unit in units))
    gathers = any("neighbours" in unit.plan.launch.parameters for unit in units)
    gathered = {} if gathers else {"transposed": "strided"}
    operands = [
        Tensor(
            name=python_name(source),
            dtypes=masks if source.name == "mask" else [source.dtype.name],
            layout=gathered.get(source.layout, source.layout),
            source=source.name,
        )
        for source in spec.sources
    ]
    results = [Tensor("y", [spec.out.name], "dense")]
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
        gathers=gathers,
        board=board,
        format=format,
        command=command,
        operands=operands + results[:board],  # GPU MODE passes the output
        others=others,
        results=results,
    )
