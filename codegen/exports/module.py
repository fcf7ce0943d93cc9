"""What the template of an exported Python file prints around its kernels: names, checks and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scanops.codegen.dtypes import DType
from scanops.codegen.exports.page import NAMES, Page, Parameter
from scanops.codegen.spec import ScanSpec, Source
from scanops.codegen.targets import Target

__all__ = ["ALIKE", "Module"]

# Fields in which the kernels of one file may differ.
ALIKE = ("length", "at_most", "multiple", "inner", "mask", "aligned")

# The oldest torch that has every name of a file, 1.13, and the first that has a younger dtype.
TORCH = "1.13"
LATER_TORCH = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), "2.1"),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz"), "2.2"),
    **dict.fromkeys(("uint16", "uint32", "uint64"), "2.3"),
}
BOUNDARY = 16  # bytes; the widest access of a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A tensor of a call, and the dtypes that it may have."""

    name: str
    dtypes: tuple[str, ...]

    @property
    def listed(self) -> str:
        """The dtypes as a Python tuple."""
        return f"({self.dtypes[0]},)" if len(self.dtypes) == 1 else f"({', '.join(self.dtypes)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """A condition on the layout of an operand: the test that finds it broken, and the requirement in words."""

    name: str
    wrong: str
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A Python file: its kernels, which all take the same kinds of tensors."""

    pages: tuple[Page, ...]
    command: str  # the command that writes the file
    takes_stream: bool = True
    has_out: bool = False  # whether the caller may pass the output
    shape: tuple[int, ...] = ()  # of the example inputs

    @property
    def spec(self) -> ScanSpec:
        """The spec of the first kernel, which stands for what all have in common."""
        return self.pages[0].spec

    @property
    def target(self) -> Target:
        """The architecture that the text is planned for."""
        return self.pages[0].plan.target

    @property
    def formula(self) -> str:
        """The formula of the operator, escaped for a docstring."""
        return self.spec.operator.formula.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')

    @staticmethod
    def quoted(text: str) -> str:
        """Return a text as a Python literal, a raw one where its quotes allow."""
        quotes = next((each for each in ('"""', "'''") if each not in text), "")
        return f"r{quotes}\n{text}{quotes}" if quotes else repr(f"\n{text}")

    @property
    def toolkit(self) -> str:
        """The CUDA toolkits that compile the text."""
        return self.pages[0].toolkit

    @property
    def torch(self) -> str:
        """The oldest torch that has every dtype of the file."""
        rows = [*(source.dtype for source in self.spec.sources), self.spec.out]
        return max((LATER_TORCH.get(row.name, TORCH) for row in rows), key=lambda text: [*map(int, text.split("."))])

    @property
    def operands(self) -> tuple[str, ...]:
        """The tensors besides x that are read item by item."""
        return tuple(_name(source) for source in self.spec.sources[1:])

    @property
    def inputs(self) -> tuple[str, ...]:
        """Everything that a call takes besides x."""
        return (
            *self.operands,
            *(["offsets"] if self.spec.by_offsets else []),
            *(["initial"] if self.spec.initial else []),
        )

    @property
    def arguments(self) -> str:
        """The names of ``inputs`` as parameters that follow x."""
        return self.named(self.inputs)

    @staticmethod
    def named(names: Sequence[str]) -> str:
        """Return names as a parameter list that follows another name."""
        return "".join(f", {name}" for name in names)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The arguments of the plain launcher."""
        return self.pages[0].parameters

    @property
    def constants(self) -> tuple[Parameter, ...]:
        """Those arguments that are the same for all tensors of the same shapes and strides."""
        return tuple(row for row in self.parameters if not row.each_call and row.value != row.name)

    @property
    def takes_neighbours(self) -> bool:
        """Whether the launcher takes the dimension whose lines are adjacent."""
        return self.pages[0].plan.takes_neighbours

    @property
    def out(self) -> str:
        """The dtype of the result, in Python."""
        return _torch(self.spec.out)

    @property
    def carry(self) -> str:
        """The dtype of carry-in and carry-out, in Python."""
        return _torch(self.spec.carry)

    @property
    def returned(self) -> str:
        """The names of the outputs of a call."""
        spec = self.spec
        return ", ".join(["y", *(["indices"] if spec.indexed else []), *(["carry_out"] if spec.final else [])])

    @property
    def checked(self) -> tuple[Checked, ...]:
        """Every tensor of a call with its dtypes."""
        masks = dict.fromkeys(f"torch.{page.spec.mask}" for page in self.pages)
        rows = [
            Checked(name=_name(source), dtypes=tuple(masks) if source.name == "mask" else (_torch(source.dtype),))
            for source in self.spec.sources
        ]
        rows += [Checked(name="offsets", dtypes=(f"torch.{self.spec.segments}",))] if self.spec.by_offsets else []
        return (*rows, *([Checked(name="initial", dtypes=(self.carry,))] if self.spec.initial else []))

    @property
    def expanded(self) -> tuple[str, ...]:
        """Operands that may be broadcast."""
        return tuple(_name(source) for source in self.spec.sources[1:] if source.layout != "dense")

    @property
    def laid(self) -> tuple[Laid, ...]:
        """The conditions on the layouts of the operands."""
        return tuple(row for source in self.spec.sources for row in _laid(_name(source), source.layout))

    @property
    def bounded(self) -> tuple[Laid, ...]:
        """The conditions on the alignment of the operands."""
        return tuple(row for source in self.spec.sources for row in _bounded(_name(source), source.layout))

    @property
    def by_columns(self) -> bool:
        """Whether some operand is a view with adjacent columns."""
        return "columns" in self.spec.layouts

    @property
    def turned(self) -> tuple[bool, ...]:
        """Whether each operand is transposed."""
        return tuple(source.layout == "transposed" for source in self.spec.sources)

    @property
    def dim(self) -> int:
        """The default of the scanned dimension."""
        return -1 if self.spec.inner == 1 else -2

    @property
    def drawn(self) -> tuple[str, ...]:
        """Expressions that draw example inputs: x, then the other operands."""
        return tuple(_drawn(source.dtype, self.shape) for source in self.spec.sources)

    @property
    def says(self) -> tuple[str, ...]:
        """The inputs and outputs of a call, one per line."""
        spec = self.spec
        tensors = [f"{row.name}: {' or '.join(row.dtypes)}".replace("torch.", "") for row in self.checked]
        words = {
            "mask": ", one per item: a bool mask selects, a numeric one multiplies",
            "gate": ", one per item: the factor of the result before it",
            "segment_starts": ", one per item: True where a segment begins",
            "offsets": ": 0, the beginning of each further segment, and the length",
            "initial": " or a number: the carry-in of each line, expandable to x's shape without dim",
        }
        lines = [line + words.get(line.split(":")[0], "") for line in tensors]
        results = [f"y, {spec.out.name}", *(["indices, int64"] if spec.indexed else [])]
        results += [f"the carry-out of each line, {spec.carry.name}"] if spec.final else []
        return (*lines, f"Returns {'; '.join(results)}.")

    @staticmethod
    def lengths(page: Page) -> tuple[int, int]:
        """Return the shortest and the longest line of a kernel."""
        return (1 if page.spec.takes_length else page.spec.capacity, page.spec.capacity)

    @staticmethod
    def boundary(page: Page) -> int:
        """Return the alignment of operands in bytes; an odd number of columns is read item by item."""
        spec = page.spec
        by_item = spec.inner > 1 and spec.inner % 2 == 1 and spec.input_layout != "transposed"
        return BOUNDARY if spec.aligned and not by_item else 1


def _name(source: Source) -> str:
    return NAMES.get(source.name, source.name)


def _torch(dtype: DType) -> str:
    return f"torch.{dtype.name}"


def _laid(name: str, layout: str) -> tuple[Laid, ...]:
    other = name != "x"
    rows = {
        "dense": (
            f"{f'{name}.shape != x.shape or ' if other else ''}not {name}.is_contiguous()",
            f"has to be contiguous{', of the shape of x' if other else ''}",
        ),
        "rows": (f"{name}.shape[dim] > 1 and {name}.stride(dim) != 1", "has to have contiguous lines"),
        "columns": (f"not {name}[(0,) * (dim + 1)].is_contiguous()", "has to be contiguous behind dim"),
    }
    return tuple(Laid(name=name, wrong=wrong, says=says) for key, (wrong, says) in rows.items() if key == layout)


def _bounded(name: str, layout: str) -> tuple[Laid, ...]:
    rows = {
        "dense": (f"{name}.data_ptr() % self.boundary", ""),
        "columns": (f"any(at % self.boundary for at in _begins({name}, dim))", ", as do its rows,"),
    }
    return tuple(Laid(name=name, wrong=wrong, says=says) for key, (wrong, says) in rows.items() if key == layout)


def _drawn(dtype: DType, shape: tuple[int, ...]) -> str:
    sizes = ", ".join(map(str, shape))
    if dtype.kind == "bool":
        return f"torch.randint(0, 2, ({sizes})).bool()"
    return f"torch.rand({sizes})" if dtype.name == "float32" else f"torch.rand({sizes}, dtype={_torch(dtype)})"
