"""The CUDA text of an exported file: a kernel, and a launcher with plain arguments."""

from __future__ import annotations

import hashlib
import textwrap
from dataclasses import dataclass

from scanops.codegen.lines import few_for
from scanops.codegen.plan import make_plan
from scanops.codegen.source import environment, render
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import Plan

__all__ = ["Page", "Parameter", "page_of"]

# CUDA toolkits that compile for a target and have cudaLaunchKernelEx (11.8). CUDA 13 dropped sm_70.
TOOLKITS = {
    "sm_70": "11.8 to 12.9",
    "sm_100": "12.8 or later",
    "sm_103": "12.9 or later",
    "sm_120": "12.8 or later",
}
LAUNCHER = 'extern "C" int scan_launch('  # wrapped arguments are aligned behind it
NAMES = {"input": "x", "starts": "segment_starts"}  # of operands whose name in Python is not that of the kernel
CTYPES = {
    "const void*": "ctypes.c_void_p",
    "void*": "ctypes.c_void_p",
    "long long": "ctypes.c_longlong",
    "int": "ctypes.c_int",
    "const long long*": "ctypes.POINTER(ctypes.c_longlong)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """An argument of the launcher with plain arguments."""

    type: str  # in C
    name: str
    says: str  # its description, on one line
    fills: str = ""  # the C statement that copies it into ScanArguments
    value: str = ""  # the Python expression of its value
    each_call: bool = False  # whether the value differs between calls on tensors of the same shapes and strides

    @property
    def ctype(self) -> str:
        """The type of the argument in ctypes."""
        return CTYPES[self.type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The CUDA translation unit of one spec on one target."""

    plan: Plan
    takes_stream: bool  # else the scan is launched on the default stream

    @property
    def spec(self) -> ScanSpec:
        """The spec of the kernel."""
        return self.plan.spec

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
    def name(self) -> str:
        """A C identifier that is unique to the text."""
        return f"scan_{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The arguments of the launcher, in order."""
        return (*_memory(self.spec), *_sizes(self.spec), *_geometry(self.plan), *_device(self.takes_stream))

    @property
    def widest(self) -> int:
        """The length of the longest name of an argument."""
        return max(len(row.name) for row in self.parameters)

    @property
    def signature(self) -> str:
        """The parameter list in C, wrapped."""
        parts = ", ".join(f"{row.type} {row.name}".replace(" ", "\0") for row in self.parameters)
        lines = textwrap.wrap(parts, 80, break_long_words=False)
        return ("\n" + " " * len(LAUNCHER)).join(lines).replace("\0", " ")

    @property
    def fills(self) -> tuple[str, ...]:
        """The C statements that fill ScanArguments."""
        return tuple(line for row in self.parameters for line in row.fills.splitlines())

    @property
    def text(self) -> str:
        """The whole translation unit of the kernel."""
        launcher = environment().get_template("exports/launcher.cuh.j2").render(kernel=self)
        return render(self.plan, exported=True, takes_stream=self.takes_stream) + launcher


def page_of(spec: ScanSpec, target: str, lines: int | None, *, takes_stream: bool = True) -> Page:
    """Return the page of ``spec``, planned for so many lines. Raises UnsupportedRequest for an unknown target."""
    return Page(plan=make_plan(spec, target, few_for(spec, target, lines)), takes_stream=takes_stream)


def _assigned(type: str, name: str, says: str, value: str) -> Parameter:
    each_call = ".data_ptr()" in value or value == "workspace_at"
    return Parameter(
        type=type, name=name, says=says, value=value, fills=f"arguments.{name} = {name};", each_call=each_call
    )


def _memory(spec: ScanSpec) -> tuple[Parameter, ...]:
    """Return the pointers, and the numbers that belong to them."""
    reads = tuple(
        _assigned(
            "const void*",
            source.name,
            f"{source.dtype.name}, {'the input' if source.name == 'input' else 'one per item'}",
            f"{NAMES.get(source.name, source.name)}.data_ptr()",
        )
        for source in spec.sources
    )
    carry = spec.carry.name if spec.initial or spec.final else ""
    rows = (
        (True, "void*", "output", f"{spec.out.name}, contiguous: one result per item", "y.data_ptr()"),
        (spec.indexed, "void*", "indices", "int64, contiguous: the index of each result", "indices.data_ptr()"),
        (spec.initial, "const void*", "carry_in", f"{carry}: the carry-in of each line", "carry_in.data_ptr()"),
        (spec.initial, "long long", "carry_in_step", "1, or 0 where all lines share one carry-in", "1"),
        (spec.final, "void*", "carry_out", f"{carry}: the carry-out of each line", "carry_out.data_ptr()"),
        (
            spec.by_offsets,
            "const void*",
            "offsets",
            f"{spec.segments}, rising: where each segment but the first begins",
            "offsets.data_ptr() + offsets.element_size()",
        ),
        (spec.by_offsets, "long long", "segments", "the number of these offsets", "offsets.numel() - 2"),
        (True, "void*", "workspace", "scanops_workspace_bytes(lines, length) bytes, cleared", "workspace_at"),
    )
    return (*reads, *(_assigned(*row) for holds, *row in rows if holds))


def _sizes(spec: ScanSpec) -> tuple[Parameter, ...]:
    beside = f", {spec.inner} of them adjacent" if spec.inner > 1 else ""
    length = f"items of a line, {spec.items_text}" if spec.takes_length else f"items of a line: {spec.length}"
    return (
        _assigned("long long", "lines", f"scanned sequences{beside}", "lines"),
        _assigned("long long", "length", length, "length"),
    )


def _geometry(plan: Plan) -> tuple[Parameter, ...]:
    """Return the strides of operands that are not dense, in items; the arrays are in host memory."""
    spec = plan.spec
    if not spec.strided:
        return ()
    names = [source.name for source in spec.sources]
    loop = "for (int d = 0; d < rank; ++d) arguments.geometry.{0}[d] = {0}[d];"

    def row(type: str, name: str, says: str, value: str, fills: str) -> Parameter:
        return Parameter(type=type, name=name, says=says, value=value, fills=fills)

    rows = [
        row(
            "int",
            "rank",
            "dimensions that are not scanned, at most 24",
            "len(sizes)",
            "arguments.geometry.rank = rank;",
        ),
        row("const long long*", "size", "of each of them; host memory", "_array(sizes)", loop.format("size")),
    ]
    for at, name in enumerate(names):
        across, along = f"{name}_stride", f"{name}_step"
        rows += [
            row("const long long*", across, "its strides there, in items; host memory", f"_array(strides[{at}])",
                loop.format(across)),
            row("long long", along, "its stride along the line, in items", f"operands[{at}].stride(dim)",
                f"arguments.geometry.{along} = {along};"),
        ]  # fmt: skip
    if plan.takes_neighbours:
        beside = {
            "size": "size of the dimension whose lines are adjacent in some operand",
            "lines": "from a line to the number of its neighbour",
            **{f"{name}_stride": "from a line to its neighbour, in items" for name in names},
        }
        rows += [
            row(
                "long long",
                f"neighbour_{name}",
                says,
                f"beside[{at}]",
                f"arguments.neighbours.{name} = neighbour_{name};",
            )
            for at, (name, says) in enumerate(beside.items())
        ]
    return tuple(rows)


def _device(takes_stream: bool) -> tuple[Parameter, ...]:
    rows = (_assigned("int", "multiprocessors", "of the GPU", "_multiprocessors(x.device.index)"),)
    says, value = "a cudaStream_t of the current device", "_stream(device)"
    stream = Parameter(type="void*", name="stream", says=says, value=value, each_call=True)
    return (*rows, stream) if takes_stream else rows
