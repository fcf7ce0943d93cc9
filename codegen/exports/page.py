"""A kernel's text and a launcher with plain arguments: what every exported file holds."""

from __future__ import annotations

import hashlib
import re
import textwrap
from dataclasses import dataclass

from scanops.codegen.plan import make_plan
from scanops.codegen.source import environment, render
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import Plan
from scanops.errors import UnsupportedRequest

__all__ = ["Page", "Parameter", "page_of", "shared_by"]

# The first CUDA toolkit that compiles for a target and has cudaLaunchKernelEx, which is of 11.8; CUDA 13 dropped sm_70.
TOOLKITS = {
    "sm_70": "11.8 to 12.9",
    "sm_100": "12.8 or later",
    "sm_103": "12.9 or later",
    "sm_120": "12.8 or later",
}

CONTENT = r"// content .*\n"  # the banner's digest is of the kernel alone
LAUNCHER = 'extern "C" int scan_launch('  # its arguments are aligned behind it

# What a launch on the default queue leaves out. GPU MODE's server refuses a text with the word in it, whatever it says.
WITHOUT_STREAM = (
    ("    config.stream = (cudaStream_t)stream;\n", ""),
    ("void* stream)", "void*)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """An argument of the plain launcher."""

    type: str  # in C
    name: str
    says: str  # what it is, on one line
    fills: str = ""  # the C statement that puts it where the kernel's launcher looks
    value: str = ""  # and what Python passes


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The CUDA of one spec on one target, whole."""

    plan: Plan
    takes_stream: bool  # else it is launched on the default one

    @property
    def spec(self) -> ScanSpec:
        """The spec."""
        return self.plan.spec

    @property
    def toolkit(self) -> str:
        """Which CUDA toolkits compile it."""
        return TOOLKITS.get(self.plan.target.name, "11.8 or later")

    @property
    def gencode(self) -> str:
        """nvcc's flag for the target and what comes after it."""
        number = self.plan.target.name.removeprefix("sm_")
        return f'"-gencode=arch=compute_{number},code=[sm_{number},compute_{number}]"'

    @property
    def name(self) -> str:
        """A C identifier that no other text has."""
        return f"scan_{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The plain launcher's arguments, in order."""
        return (*_memory(self.spec), *_sizes(self.spec), *_geometry(self.plan), *_device(self.takes_stream))

    @property
    def widest(self) -> int:
        """Characters of the longest name among them."""
        return max(len(row.name) for row in self.parameters)

    @property
    def signature(self) -> str:
        """The list of arguments in C."""
        parts = ", ".join(f"{row.type} {row.name}".replace(" ", "\0") for row in self.parameters)
        lines = textwrap.wrap(parts, 80, break_long_words=False)
        return ("\n" + " " * len(LAUNCHER)).join(lines).replace("\0", " ")

    @property
    def fills(self) -> tuple[str, ...]:
        """The launcher's statements."""
        return tuple(line for row in self.parameters for line in row.fills.splitlines())

    @property
    def text(self) -> str:
        """The whole translation unit."""
        source = re.sub(CONTENT, "", render(self.plan), count=1)
        for old, new in () if self.takes_stream else WITHOUT_STREAM:
            source = source.replace(old, new)
        return source + environment().get_template("exports/launcher.cuh.j2").render(kernel=self)


def page_of(spec: ScanSpec, target: str, *, takes_stream: bool = True) -> Page:
    """The page for ``spec``. Raises UnsupportedRequest for a target that is not in the table."""
    return Page(plan=make_plan(spec, target), takes_stream=takes_stream)


def _assigned(type: str, name: str, says: str, value: str) -> Parameter:
    return Parameter(type=type, name=name, says=says, value=value, fills=f"arguments.{name} = {name};")


def _memory(spec: ScanSpec) -> tuple[Parameter, ...]:
    """Pointers, and what belongs to them."""
    names = {"input": "x", "starts": "segment_starts"}
    reads = tuple(
        _assigned(
            "const void*",
            source.name,
            f"{source.dtype.name}, what is scanned" if source.name == "input" else f"{source.dtype.name}, one an item",
            f"{names.get(source.name, source.name)}.data_ptr()",
        )
        for source in spec.sources
    )
    rows = (
        (True, "void*", "output", f"{spec.out.name}, contiguous: one result an item", "y.data_ptr()"),
        (spec.indexed, "void*", "indices", "int64, contiguous: where each result is found", "indices.data_ptr()"),
        (
            spec.initial,
            "const void*",
            "carry_in",
            f"{spec.carry.name}: what each line goes on from",
            "carry_in.data_ptr()",
        ),
        (spec.initial, "long long", "carry_in_step", "1, or 0 where all lines go on from the same one", "1"),
        (spec.final, "void*", "carry_out", f"{spec.carry.name}: what goes on from each line", "carry_out.data_ptr()"),
        (
            spec.by_offsets,
            "const void*",
            "offsets",
            f"{spec.segments}, rising: where each segment but the first begins",
            "offsets.data_ptr() + offsets.element_size()",
        ),
        (spec.by_offsets, "long long", "segments", "how many offsets", "offsets.numel() - 2"),
        (True, "void*", "workspace", "scanops_workspace_bytes(lines, length) bytes, cleared", "workspace.data_ptr()"),
    )
    return (*reads, *(_assigned(*row) for holds, *row in rows if holds))


def _sizes(spec: ScanSpec) -> tuple[Parameter, ...]:
    beside = f", {spec.inner} of them side by side" if spec.inner > 1 else ""
    length = f"items in a line, {spec.items_text}" if spec.takes_length else f"items in a line: {spec.length}"
    return (
        _assigned("long long", "lines", f"scanned sequences{beside}", "lines"),
        _assigned("long long", "length", length, "length"),
    )


def _geometry(plan: Plan) -> tuple[Parameter, ...]:
    """Where operands lie that are not dense; in items, arrays in the host's memory."""
    spec = plan.spec
    if not spec.strided:
        return ()
    names = [source.name for source in spec.sources]
    loop = "for (int d = 0; d < rank; ++d) arguments.geometry.{0}[d] = {0}[d];"
    rows = [
        Parameter(
            type="int",
            name="rank",
            says="dimensions that are not scanned, at most 24",
            value="len(sizes)",
            fills="arguments.geometry.rank = rank;",
        ),
        Parameter(
            type="const long long*",
            name="size",
            says="of each of them; the host's memory",
            value="_array(sizes)",
            fills=loop.format("size"),
        ),
    ]
    for at, name in enumerate(names):
        rows += [
            Parameter(
                type="const long long*",
                name=f"{name}_stride",
                says="its strides there, in items; the host's memory",
                value=f"_array(strides[{at}])",
                fills=loop.format(f"{name}_stride"),
            ),
            Parameter(
                type="long long",
                name=f"{name}_step",
                says="its stride along the line, in items",
                value=f"operands[{at}].stride(dim)",
                fills=f"arguments.geometry.{name}_step = {name}_step;",
            ),
        ]
    return (*rows, *(_neighbours(names) if plan.takes_neighbours else ()))


def _neighbours(names: list[str]) -> tuple[Parameter, ...]:
    rows = (
        ("size", "of the dimension whose lines lie side by side in some operand", "beside[0]"),
        ("lines", "from one of them to the next one's number", "beside[1]"),
        *(
            (f"{name}_stride", "from one of them to the next, in items", f"beside[{2 + at}]")
            for at, name in enumerate(names)
        ),
    )
    return tuple(
        Parameter(
            type="long long",
            name=f"neighbour_{name}",
            says=says,
            value=value,
            fills=f"arguments.neighbours.{name} = neighbour_{name};",
        )
        for name, says, value in rows
    )


def _device(takes_stream: bool) -> tuple[Parameter, ...]:
    rows = (_assigned("int", "multiprocessors", "of the GPU", "_multiprocessors(x.device.index)"),)
    stream = Parameter(
        type="void*", name="stream", says="a cudaStream_t of the current device", value="_stream(x.device)"
    )
    return (*rows, stream) if takes_stream else rows


def shared_by(specs: tuple[ScanSpec, ...], names: tuple[str, ...]) -> ScanSpec:
    """The first of these specs. Raises UnsupportedRequest where another one differs in more than ``names``."""
    first = specs[0]
    for other in specs[1:]:
        pairs = zip(first.to_dict().items(), other.to_dict().values(), strict=True)
        apart = [name for (name, mine), its in pairs if mine != its and name not in names]
        if apart:
            raise UnsupportedRequest(
                f"one file of {first} and {other}",
                allowed=f"specs that differ in {', '.join(names)} alone",
                value=f"they differ in {', '.join(apart)}",
                hint="export them to a file each",
            )
    return first
