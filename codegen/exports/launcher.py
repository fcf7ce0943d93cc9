"""The CUDA text of an exported file: a kernel, and a launcher with plain arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from scanops.codegen.lines import few_for
from scanops.codegen.plan import make_plan
from scanops.codegen.source import environment, render
from scanops.codegen.spec import ACCESS_BYTES, ScanSpec, Source
from scanops.codegen.strategies.base import Plan

__all__ = ["Parameter", "Unit", "python_name", "unit_of"]

# CUDA toolkits that compile for a target: 11.8 was the first for sm_90, and CUDA 13 dropped sm_70.
TOOLKITS = {
    "sm_70": "11.8 to 12.9",
    "sm_100": "12.8 or later",
    "sm_103": "12.9 or later",
    "sm_120": "12.8 or later",
}
ARRAY = "const long long*"  # of numbers in host memory
CTYPES = {
    "const void*": "ctypes.c_void_p",
    "void*": "ctypes.c_void_p",
    "long long": "ctypes.c_longlong",
    "int": "ctypes.c_int",
    ARRAY: "ctypes.POINTER(ctypes.c_longlong)",
}


class Parameter(NamedTuple):
    """An argument of the launcher with plain arguments."""

    type: str  # in C; pointers to void are to device memory
    name: str
    says: str  # what it holds, in a phrase
    value: str  # the expression of its value in an exported Python file
    member: str = ""  # of ScanArguments, where it does not have the argument's name

    @property
    def declared(self) -> str:
        """The declaration of the parameter in C."""
        return f"{self.type} {self.name}"

    @property
    def ctype(self) -> str:
        """The type of the argument in ctypes."""
        return CTYPES[self.type]

    @property
    def each_call(self) -> bool:
        """Whether the value differs between calls on tensors of the same shapes and strides."""
        return self.type.endswith("void*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The CUDA translation unit of one spec on one target."""

    plan: Plan
    parameters: tuple[Parameter, ...]  # of its launcher
    text: str

    @property
    def spec(self) -> ScanSpec:
        """The spec of the kernel."""
        return self.plan.spec

    @property
    def name(self) -> str:
        """A C identifier that is unique to the text."""
        return f"scan_{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"

    @property
    def conditions(self) -> dict[str, object]:
        """What the kernel requires of a call, by the fields of an exported file's Kernel."""
        spec = self.spec
        by_item = spec.inner > 1 and spec.inner % 2 == 1 and spec.input_layout != "transposed"
        return {
            "lengths": (1 if spec.takes_length else spec.capacity, spec.capacity),
            "multiple": spec.multiple,
            "inner": spec.inner,
            "boundary": ACCESS_BYTES if spec.aligned and not by_item else 1,
            **({"mask": f"torch.{spec.mask}"} if spec.mask else {}),
        }

    @property
    def signature(self) -> tuple[str, ...]:
        """The parameters of the launcher in C."""
        return tuple(row.declared for row in self.parameters)

    @property
    def toolkit(self) -> str:
        """The CUDA toolkits that compile the text."""
        return TOOLKITS.get(self.plan.target.name, "11.8 or later")

    @property
    def gencode(self) -> str:
        """The option of nvcc for the target and later GPUs."""
        number = self.plan.target.name.removeprefix("sm_")
        return f'"-gencode=arch=compute_{number},code=[sm_{number},compute_{number}]"'

    @property
    def literal(self) -> str:
        """The text as a Python literal, a raw one where its quotes allow."""
        quotes = next((each for each in ('"""', "'''") if each not in self.text), "")
        return f"r{quotes}\n{self.text}{quotes}" if quotes else repr(f"\n{self.text}")


def unit_of(spec: ScanSpec, target: str, lines: int | None, *, takes_stream: bool = True) -> Unit:
    """Return the kernel of ``spec`` with its launcher, which else launches on the default stream.

    Raises UnsupportedRequest for an unknown target.
    """
    plan = make_plan(spec, target, few_for(spec, target, lines))
    parameters = tuple(_parameters(plan, takes_stream))
    template = environment().get_template("exports/launcher.cuh.j2")
    kernel = render(plan, exported=True, takes_stream=takes_stream)
    return Unit(plan=plan, parameters=parameters, text=kernel + template.render(parameters=parameters))


def python_name(source: Source) -> str:
    """Return the name of an operand in Python."""
    return {"input": "x", "starts": "segment_starts"}.get(source.name, source.name)


def _parameters(plan: Plan, takes_stream: bool) -> Iterator[Parameter]:
    """Yield the arguments of the launcher, in order."""
    spec = plan.spec
    carry = spec.carry.name if spec.initial or spec.final else ""
    for source in spec.sources:
        says = f"{source.dtype.name}, {'the input' if source.name == 'input' else 'one per item'}"
        yield Parameter("const void*", source.name, says, f"{python_name(source)}.data_ptr()")
    yield Parameter("void*", "output", f"{spec.out.name}, contiguous: one result per item", "y.data_ptr()")
    if spec.indexed:
        yield Parameter("void*", "indices", "int64, contiguous: the index of each result", "indices.data_ptr()")
    if spec.initial:
        yield Parameter("const void*", "carry_in", f"{carry}: the carry-in of each line", "carry_in.data_ptr()")
        yield Parameter("long long", "carry_in_step", "1, or 0 where all lines share one carry-in", "1")
    if spec.final:
        yield Parameter("void*", "carry_out", f"{carry}: the carry-out of each line", "carry_out.data_ptr()")
    if spec.by_offsets:
        says = f"{spec.segments}, rising: where each segment but the first begins"
        yield Parameter("const void*", "offsets", says, "offsets.data_ptr() + offsets.element_size()")
        yield Parameter("long long", "segments", "the number of these offsets", "offsets.numel() - 2")
    yield Parameter("void*", "workspace", "scanops_workspace_bytes(lines, length) bytes, cleared", "workspace_at")
    beside = f", {spec.inner} of them adjacent" if spec.inner > 1 else ""
    yield Parameter("long long", "lines", f"scanned sequences{beside}", "lines")
    yield Parameter("long long", "length", f"items of a line: {spec.items_text}", "length")
    if spec.strided:
        yield from _geometry(plan)
    count = "torch.cuda.get_device_properties(device).multi_processor_count"
    yield Parameter("int", "multiprocessors", "of the GPU", count)
    if takes_stream:
        yield Parameter("void*", "stream", "a cudaStream_t of the current device", "_stream(device)")


def _geometry(plan: Plan) -> Iterator[Parameter]:
    """Yield the sizes of the dimensions that are not scanned, and the strides of the operands in items."""
    names = [source.name for source in plan.spec.sources]
    yield Parameter("int", "rank", "dimensions that are not scanned, at most 24", "len(sizes)", "geometry.rank")
    yield Parameter(ARRAY, "size", "of each of them; host memory", "_array(sizes)", "geometry.size")
    for at, source in enumerate(plan.spec.sources):
        across, along = f"{source.name}_stride", f"{source.name}_step"
        says = "its strides there, in items; host memory"
        yield Parameter(ARRAY, across, says, f"_array(strides[{at}])", f"geometry.{across}")
        says = "its stride along the line, in items"
        yield Parameter("long long", along, says, f"{python_name(source)}.stride(dim)", f"geometry.{along}")
    if "neighbours" in plan.launch.parameters:
        beside = {
            "size": "size of the dimension whose lines are adjacent in some operand",
            "lines": "from a line to the number of its neighbour",
            **{f"{name}_stride": "from a line to its neighbour, in items" for name in names},
        }
        for at, (member, says) in enumerate(beside.items()):
            yield Parameter("long long", f"neighbour_{member}", says, f"beside[{at}]", f"neighbours.{member}")
