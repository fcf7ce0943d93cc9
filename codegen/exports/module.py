"""Exported Python files: what their template says of tensors, layouts and versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scanops.codegen.exports.launcher import Unit, python_name
from scanops.codegen.source import environment

__all__ = ["Tensor", "python_text"]

# The oldest torch that has every name of a file, 1.13, and the first that has a younger dtype. Ordered as text.
TORCH = "1.13"
LATER_TORCH = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), "2.1"),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz"), "2.2"),
    **dict.fromkeys(("uint16", "uint32", "uint64"), "2.3"),
}
MEANINGS = {
    "x": "",
    "y": ", where the result is written",
    "mask": ", one per item: a bool mask selects, a numeric one multiplies",
    "gate": ", one per item: the factor of the result before it",
    "saved": ", one per item: what the forward scan saved",
    "segment_starts": ", one per item: True where a segment begins",
    "offsets": ": 0, the beginning of each further segment, and the length",
    "initial": " or a number: the carry-in of each line, expandable to x's shape without dim",
}
# By the layout of an operand: a condition and what it means; and the dimensions whose steps have to be multiples of 16
# bytes, as its address has to, unless the spec is unaligned. None: any address will do.
LAYOUTS = {
    "dense": ('{0}.is_contiguous(), "contiguous"', ""),
    "rows": ('length == 1 or {0}.stride(dim) == 1, "contiguous along dim"', None),
    "columns": ('{0}[(slice(1),) * (dim + 1)].is_contiguous(), "contiguous behind dim"', "range(dim + 1)"),
    "line": (
        "(length == 1 or {0}.stride(dim) == 0) and len(_merged([{0}], range(dim + 1, {0}.ndim))) < 2, "
        '"of size 1 along dim, with one stride behind dim"',
        None,
    ),
    "transposed": (
        'unit is not None and {0}.stride(unit) == 1, "transposed, as x.t() is"',
        "[d for d in range(x.ndim) if d != unit]",
    ),
}


class Tensor(NamedTuple):
    """A tensor that a call takes."""

    name: str
    dtypes: Sequence[str]  # that it may have
    layout: str = ""  # of an operand with one item for each item that is scanned

    @property
    def says(self) -> str:
        """The dtypes and the meaning of the tensor."""
        return f"{self.name}: {' or '.join(self.dtypes)}{MEANINGS[self.name]}"

    @property
    def required(self) -> str:
        """What the layout requires, in Python and in words; nothing of strided operands."""
        return LAYOUTS.get(self.layout, ("", None))[0].format(self.name)

    @property
    def places(self) -> str:
        """The bytes by which address and steps exceed multiples of 16, in Python."""
        dims = LAYOUTS.get(self.layout, ("", None))[1]
        steps = f", *_steps({self.name}, {dims})" if dims else ""
        return "" if dims is None else f"{self.name}.data_ptr() % 16{steps}"


def python_text(units: Sequence[Unit], format: str, command: str) -> str:
    """Return the Python file of kernels that take the same kinds of tensors; ``command`` writes it."""
    spec, names = units[0].plan.spec, [row.name for row in units[0].parameters]
    masks = list(dict.fromkeys(str(unit.plan.spec.mask) for unit in units))
    gathers = any("neighbours" in unit.plan.launch.parameters for unit in units)
    gathered = {} if gathers else {"transposed": "strided"}
    operands = [
        Tensor(
            name=python_name(source),
            dtypes=masks if source.name == "mask" else [source.dtype.name],
            layout=gathered.get(source.layout, source.layout),
        )
        for source in spec.sources
    ]
    operands += [Tensor("y", [spec.out.name], "dense")] if format == "gpumode" else []
    others = [Tensor("offsets", [str(spec.segments)])] if spec.by_offsets else []
    others += [Tensor("initial", [spec.carry.name])] if spec.initial else []
    dtypes = {spec.out.name, *(source.dtype.name for source in spec.sources)}
    template = environment().get_template("exports/scan.py.j2")
    return template.render(
        units=units,
        names=names,
        gathers=gathers,
        format=format,
        command=command,
        operands=operands,
        others=others,
        sources=", ".join(f'"{source.name}": {python_name(source)}' for source in spec.sources),
        torch=max(LATER_TORCH.get(name, TORCH) for name in dtypes),
    )
