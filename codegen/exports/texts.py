"""The texts of exported files: kernels, each with a launcher of plain arguments, and the Python around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scanops.codegen.fusion.fusion import MOST_OPERANDS
from scanops.codegen.planner import Plan
from scanops.codegen.source import environment, render
from scanops.codegen.spec import ScanSpec, Source

__all__ = ["Parameter", "Tensor", "Unit", "python_name", "python_text", "scalar", "units_of"]

# CUDA toolkits that compile for a target: 11.8 was the first for sm_90, and CUDA 13 dropped sm_70.
TOOLKITS = {
    "sm_70": "11.8 to 12.9",
    "sm_100": "12.8 or later",
    "sm_103": "12.9 or later",
    "sm_120": "12.8 or later",
}
# Names of dtypes in torch's C++, where they are not those of Python with a capital.
SCALARS = {
    **{"uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long"},
    **{"uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64"},
    **{"float16": "Half", "bfloat16": "BFloat16", "float32": "Float", "float64": "Double"},
    **{"complex64": "ComplexFloat", "complex128": "ComplexDouble"},
}


class Parameter(NamedTuple):
    """An argument of the launcher."""

    name: str
    type: str  # in C; pointers to void are to device memory
    says: str  # what it holds, in a phrase
    value: str  # in the C++ of an exported Python file


FURTHER_RESULTS = ("second", "third", "fourth")
# All arguments that a launcher may have, in order.
PARAMETERS = (
    Parameter("input", "const void*", "{spec.dtype}, the input", "x.data_ptr()"),
    Parameter("mask", "const void*", "{spec.mask}, one per item", "mask.data_ptr()"),
    Parameter("gate", "const void*", "{spec.gate}, one per item", "gate.data_ptr()"),
    Parameter("saved", "const void*", "{spec.saved}, one per item", "saved.data_ptr()"),
    Parameter("starts", "const void*", "bool, one per item", "segment_starts.data_ptr()"),
    *(
        Parameter(f"further{n}", "const void*", f"{{dtypes[further{n}]}}, the operand x{n}", f"x{n}.data_ptr()")
        for n in range(1, MOST_OPERANDS)
    ),
    Parameter("output", "void*", "{spec.out.name}, contiguous: one result per item", "y.data_ptr()"),
    Parameter("indices", "void*", "int64, contiguous: the index of each result", "indices.data_ptr()"),
    *(
        Parameter(name, "void*", f"{{dtypes[{name}]}}, contiguous: another result per item", f"{name}.data_ptr()")
        for name in FURTHER_RESULTS
    ),
    Parameter("rank", "int", "dimensions besides the scanned one, at most 24", "(int)sizes.size()"),
    Parameter("sizes", "const long long*", "in host memory: their sizes, in the order of lines", "sizes.data()"),
    Parameter("strides", "const long long*", "likewise, in items, {strides}", "strides.data()"),
    Parameter("carry_in", "const void*", "{spec.carry.name}: the carry-in of each line", "carry_in.data_ptr()"),
    Parameter("carry_in_step", "long long", "1, or 0 where all lines share one carry-in", "1"),
    Parameter("carry_out", "void*", "{spec.carry.name}: the carry-out of each line", "carry_out.data_ptr()"),
    Parameter("offsets", "const void*", "{spec.segments}, rising: where each segment but the first begins", "begins"),
    Parameter("segments", "long long", "the number of these offsets", "offsets.numel() - 2"),
    Parameter("workspace", "void*", "scanops_workspace_bytes(lines, length) bytes, cleared", "workspace.data_ptr()"),
    Parameter("lines", "long long", "scanned sequences", "lines"),
    Parameter("length", "long long", "items of a line: {spec.items_text}", "length"),
    Parameter("multiprocessors", "int", "of the GPU", "multiprocessors"),
    Parameter("stream", "void*", "a cudaStream_t of the current device", "c10::cuda::getCurrentCUDAStream().stream()"),
)
# How an operand lies in memory.
LAYOUTS = {
    "dense": "",
    "rows": "; its stride along dim is 1",
    "columns": "; contiguous in the dimensions after dim",
    "strided": "; of any strides",
    "line": "; expanded along dim (stride 0)",
    "step": "; expanded in the dimensions after dim (stride 0)",
}
# What a tensor of a Python file holds.
MEANINGS = {
    "x": "",
    "mask": ", one per item: a bool mask selects, a numeric one multiplies",
    "gate": ", one per item: the factor of the result before it",
    "saved": ", one per item: what the forward scan saved",
    **{f"x{n}": ", an operand, one per item" for n in range(1, MOST_OPERANDS)},
    "segment_starts": ", one per item: True where a segment begins",
    "offsets": ": 0, the beginning of each further segment, and the length",
    "initial": " or a number: the carry-in of each line, expandable to x's shape without dim",
}


class Unit(NamedTuple):
    """The CUDA translation unit of one spec on one target."""

    name: str  # of its namespace in a Python file
    plan: Plan
    parameters: Sequence[Parameter]  # of its launcher
    text: str

    @property
    def condition(self) -> str:
        """What the kernel requires of a call, in the C++ of a Python file."""
        spec = self.plan.spec
        lengths = f"length >= {spec.multiple} && length <= {spec.capacity}"
        lengths = lengths if spec.takes_length else f"length == {spec.length}"
        divisible = f" && length % {spec.multiple} == 0" if spec.multiple > 1 else ""
        by_item = spec.inner > 1 and spec.inner % 2 == 1
        aligned = " && aligned" if spec.aligned and not by_item else ""
        mask = f" && mask.scalar_type() == {scalar(spec.mask)}" if spec.mask else ""
        return f"{lengths}{divisible} && inner == {spec.inner}{aligned}{mask}"

    @property
    def toolkit(self) -> str:
        """The CUDA toolkits that compile the text."""
        return TOOLKITS.get(self.plan.target.name, "11.8 or later")

    @property
    def literal(self) -> str:
        """The text in its namespace as a Python literal, a raw one where its quotes allow.

        Names are C++'s: those of C would be the same for all kernels of a file.
        """
        text = self.text.replace('extern "C" ', "")
        text = f"\n#include <cuda_runtime.h>\n\nnamespace {self.name} {{\n{text}}}  // namespace {self.name}\n"
        quotes = next((each for each in ('"""', "'''") if each not in text), "")
        return f"r{quotes}{text}{quotes}" if quotes else repr(text)


def scalar(dtype: str) -> str:
    """Return the name of a dtype in torch's C++."""
    return f"at::k{SCALARS.get(dtype, dtype.capitalize())}"


def python_name(source: Source) -> str:
    """Return the name of an operand in Python."""
    name = source.name.replace("further", "x")
    return {"input": "x", "starts": "segment_starts"}.get(name, name)


def results_of(spec: ScanSpec) -> dict[str, str]:
    """Return the dtype of each result that has one item per item of the input, by its name in Python."""
    if spec.indexed:
        return {"y": spec.out.name, "indices": "int64"}
    dtypes = [each.dtype for each in spec.fusion.outputs] if spec.fusion else [spec.out.name] * (1 + spec.doubled)
    return dict(zip(("y", *FURTHER_RESULTS), dtypes, strict=False))


def _arguments_of(plan: Plan) -> set[str]:
    """Return the names of the arguments from which a launcher computes the kernel's parameters."""
    spec, names = plan.spec, set(plan.launch.parameters)
    names = (names - {"indices"} | {"second"}) if "indices" in names and not spec.indexed else names
    names = (names - {"geometry"} | {"rank", "sizes", "strides"}) if "geometry" in names else names
    names |= {"segments"} if spec.by_offsets else set()
    return names | ({"multiprocessors"} if plan.launch.resident else set())


def units_of(plans: Sequence[Plan], *, takes_stream: bool) -> list[Unit]:
    """Return the kernels of a file, whose launchers take the same arguments; without a stream, on the default one."""
    read = [_arguments_of(plan) | {"lines", "stream" if takes_stream else ""} for plan in plans]
    parameters = [row for row in PARAMETERS if any(row.name in names for names in read)]
    template, units = environment().get_template("exports/launcher.cuh.j2"), []
    for number, (plan, names) in enumerate(zip(plans, read, strict=True), start=1):
        spec = plan.spec
        dtypes = {source.name: source.dtype.name for source in spec.sources} | results_of(spec)
        strides = f"of {', '.join(map(python_name, spec.sources))}: those along these, then along the line"
        launcher = template.render(plan=plan, parameters=parameters, read=names, dtypes=dtypes, strides=strides)
        units.append(Unit(f"kernel_{number}", plan, parameters, render(plan, launcher)))
    return units


class Tensor(NamedTuple):
    """A tensor that a call takes or returns."""

    name: str
    dtypes: Sequence[str]  # that it may have
    layout: str = "dense"

    @property
    def says(self) -> str:
        """The dtypes and the meaning of the tensor."""
        return f"{self.name}: {' or '.join(self.dtypes)}{MEANINGS[self.name]}{LAYOUTS[self.layout]}"

    @property
    def scalars(self) -> str:
        """The dtypes that the tensor may have, in C++."""
        return ", ".join(map(scalar, self.dtypes))


def python_text(units: Sequence[Unit], format: str, command: str) -> str:
    """Return the Python file of kernels that take the same kinds of tensors; ``command`` writes it."""
    spec, board = units[0].plan.spec, format == "gpumode"
    masks = list(dict.fromkeys(str(unit.plan.spec.mask) for unit in units))
    operands = [
        Tensor(python_name(source), masks if source.name == "mask" else [source.dtype.name], source.layout)
        for source in spec.sources
    ]
    results = [Tensor(name, [dtype]) for name, dtype in results_of(spec).items()]
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
