"""The CUDA text of an exported file: a kernel, and a launcher with plain arguments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from scanops.codegen.lines import few_for
from scanops.codegen.plan import make_plan
from scanops.codegen.source import environment, render
from scanops.codegen.spec import ACCESS_BYTES, ScanSpec, Source
from scanops.codegen.strategies.base import Plan

__all__ = ["Parameter", "Unit", "python_name", "unit_of"]

# CUDA toolkits that compile for a target and have cudaLaunchKernelEx (11.8). CUDA 13 dropped sm_70.
TOOLKITS = {
    "sm_70": "11.8 to 12.9",
    "sm_100": "12.8 or later",
    "sm_103": "12.9 or later",
    "sm_120": "12.8 or later",
}


class Parameter(NamedTuple):
    """An argument of the launcher with plain arguments."""

    type: str  # in C; pointers to void are to device memory
    name: str
    says: str  # what it holds, in a phrase
    value: str = ""  # the expression of its value in an exported Python file; "": one of the sizes

    @property
    def declared(self) -> str:
        """The declaration of the parameter in C."""
        return f"{self.type} {self.name}"

    @property
    def ctype(self) -> str:
        """The type of the argument in an exported Python file."""
        return {"long long": "integer", "int": "ctypes.c_int"}.get(self.type, "pointer")


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
    def names(self) -> list[str]:
        """The arguments of the launcher."""
        return [row.name for row in self.parameters]

    @property
    def conditions(self) -> str:
        """What the kernel requires of a call, as arguments of an exported file's Kernel."""
        spec = self.spec
        least = spec.multiple if spec.takes_length else spec.capacity
        by_item = spec.inner > 1 and spec.inner % 2 == 1 and spec.input_layout != "transposed"
        alignment = ACCESS_BYTES if spec.aligned and not by_item else 1
        lengths = f"range({least}, {spec.capacity + 1}, {spec.multiple})"
        return f"{lengths}, inner={spec.inner}, alignment={alignment}" + f", mask=torch.{spec.mask}" * bool(spec.mask)

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
    for source in spec.sources:
        says = f"{source.dtype.name}, {'the input' if source.name == 'input' else 'one per item'}"
        yield Parameter("const void*", source.name, says, f"{python_name(source)}.data_ptr()")
    yield Parameter("void*", "output", f"{spec.out.name}, contiguous: one result per item", "y.data_ptr()")
    if spec.indexed:
        yield Parameter("void*", "indices", "int64, contiguous: the index of each result", "indices.data_ptr()")
    if spec.initial:
        says = f"{spec.carry.name}: the carry-in of each line"
        yield Parameter("const void*", "carry_in", says, "carry_in.data_ptr()")
        yield Parameter("long long", "carry_in_step", "1, or 0 where all lines share one carry-in", "1")
    if spec.final:
        says = f"{spec.carry.name}: the carry-out of each line"
        yield Parameter("void*", "carry_out", says, "carry_out.data_ptr()")
    if spec.by_offsets:
        says = f"{spec.segments}, rising: where each segment but the first begins"
        yield Parameter("const void*", "offsets", says, "offsets.data_ptr() + offsets.element_size()")
        yield Parameter("long long", "segments", "the number of these offsets", "offsets.numel() - 2")
    value = "workspace.data_ptr() if workspace_bytes else None"
    yield Parameter("void*", "workspace", "scanops_workspace_bytes(lines, length) bytes, cleared", value)
    if spec.strided:
        yield Parameter("const Geometry*", "geometry", "of the operands; host memory")
    if plan.takes_neighbours:
        yield Parameter("const Neighbours*", "neighbours", "host memory")
    beside = f", {spec.inner} of them adjacent" if spec.inner > 1 else ""
    yield Parameter("long long", "lines", f"scanned sequences{beside}", "*sizes")
    yield Parameter("long long", "length", f"items of a line: {spec.items_text}")
    yield Parameter("int", "multiprocessors", "of the GPU")
    if takes_stream:
        yield Parameter("void*", "stream", "a cudaStream_t of the current device", "_raw_stream(device)")
