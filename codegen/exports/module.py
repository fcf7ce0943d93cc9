"""What a Python file says around its kernels: names, checks and values, for the template to print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scanops.codegen.dtypes import DType
from scanops.codegen.exports.page import Page, Parameter
from scanops.codegen.spec import ScanSpec, Source
from scanops.codegen.targets import Target

__all__ = ["ALIKE", "Module"]

# In what the kernels of one file may differ: the shapes they are for, and the dtype of a mask.
ALIKE = ("length", "at_most", "multiple", "inner", "mask", "lines", "aligned")

# The first torch that has a dtype, where the file needs a later one than for all else. 1.13 is the oldest whose
# load_inline and torch.cuda have every name that a file uses.
TORCH = "1.13"
LATER_TORCH = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), "2.1"),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz"), "2.2"),
    **dict.fromkeys(("uint16", "uint32", "uint64"), "2.3"),
}
LINE = 120  # characters that a line of Python has at most
BOUNDARY = 16  # bytes; the widest access of a thread
_CTYPES = {
    "const void*": "ctypes.c_void_p",
    "void*": "ctypes.c_void_p",
    "long long": "ctypes.c_longlong",
    "int": "ctypes.c_int",
    "const long long*": "ctypes.POINTER(ctypes.c_longlong)",
}
_NAMES = {"input": "x", "starts": "segment_starts"}  # of operands, where Python's differ from the kernel's


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """What is passed to the kernel's library, and as which ctype."""

    name: str
    ctype: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A tensor that is looked at, and the dtypes that it may have."""

    name: str
    dtypes: tuple[str, ...]

    @property
    def listed(self) -> str:
        """The dtypes as a tuple, in Python."""
        return f"({self.dtypes[0]},)" if len(self.dtypes) == 1 else f"({', '.join(self.dtypes)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """A condition on how an operand lies, and what is said where it does not."""

    wrong: str
    shown: str
    says: str

    @property
    def raised(self) -> str:
        """The statement that says so, over several lines where one is too short."""
        line = f'raise ValueError(f"{self.shown} {self.says}")'
        parts = f'f"{self.shown} {self.says}"'
        if len(parts) > LINE - 12:
            parts = f'f"{self.shown} "\n            "{self.says}"'
        return line if len(line) <= LINE - 8 else f"raise ValueError(\n            {parts}\n        )"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """An operand that is read by whole accesses, and the condition under which it cannot be."""

    name: str
    off: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A Python file: its kernels, which all read and write the same kinds of tensors."""

    pages: tuple[Page, ...]
    command: str  # that writes it
    takes_stream: bool = True
    has_out: bool = False  # whether the caller may say where the result goes
    shape: tuple[int, ...] = ()  # of the tensors that are drawn to try it

    @property
    def spec(self) -> ScanSpec:
        """What all kernels have in common is read from the first one's spec."""
        return self.pages[0].spec

    @property
    def target(self) -> Target:
        """The architecture the text is planned for."""
        return self.pages[0].plan.target

    @property
    def formula(self) -> str:
        """The result, as a docstring has it: what somebody wrote of their own operator may have quotes in it."""
        return self.spec.operator.formula.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')

    @staticmethod
    def quoted(text: str) -> str:
        """A text in Python, as it reads where its quotes allow."""
        quotes = next((each for each in ('"""', "'''") if each not in text), "")
        return f"r{quotes}\n{text}{quotes}" if quotes else repr(f"\n{text}")

    @property
    def toolkit(self) -> str:
        """Which CUDA toolkits compile it."""
        return self.pages[0].toolkit

    @property
    def torch(self) -> str:
        """The oldest torch."""
        rows = [*(source.dtype for source in self.spec.sources), self.spec.out]
        return max((LATER_TORCH.get(row.name, TORCH) for row in rows), key=lambda text: [*map(int, text.split("."))])

    @property
    def operands(self) -> tuple[str, ...]:
        """The tensors beside x that are read item by item."""
        return tuple(_name(source) for source in self.spec.sources[1:])

    @property
    def inputs(self) -> tuple[str, ...]:
        """All that a call is given beside x."""
        return (
            *self.operands,
            *(["offsets"] if self.spec.by_offsets else []),
            *(["initial"] if self.spec.initial else []),
        )

    @property
    def arguments(self) -> str:
        """The same as parameters of a function that come behind x."""
        return self.named(self.inputs)

    @staticmethod
    def named(names: Sequence[str]) -> str:
        """Names behind another one."""
        return "".join(f", {name}" for name in names)

    @property
    def parameters(self) -> tuple[Argument, ...]:
        """What is passed to the plain launcher."""
        return tuple(_argument(row) for row in self.pages[0].parameters)

    @property
    def takes_neighbours(self) -> bool:
        """Whether the launcher is told which lines lie side by side."""
        return self.pages[0].plan.takes_neighbours

    @property
    def out(self) -> str:
        """The result's dtype, in Python."""
        return _torch(self.spec.out)

    @property
    def carry(self) -> str:
        """That of what lines go on from."""
        return _torch(self.spec.carry)

    @property
    def returned(self) -> str:
        """What a call gives."""
        spec = self.spec
        return ", ".join(["y", *(["indices"] if spec.indexed else []), *(["carry_out"] if spec.final else [])])

    @property
    def checked(self) -> tuple[Checked, ...]:
        """Every tensor of a call, and its dtypes."""
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
        """What is checked of where operands lie."""
        return tuple(row for source in self.spec.sources for row in _laid(_name(source), source.layout))

    @property
    def bounded(self) -> tuple[Bounded, ...]:
        """Operands that have to begin on a boundary."""
        return tuple(row for source in self.spec.sources for row in _bounded(_name(source), source.layout))

    @property
    def by_columns(self) -> bool:
        """Whether some operand is a view whose columns are neighbours."""
        return "columns" in self.spec.layouts

    @property
    def turned(self) -> tuple[bool, ...]:
        """Which operands are transposed."""
        return tuple(source.layout == "transposed" for source in self.spec.sources)

    @property
    def dim(self) -> int:
        """The scanned dimension of the tensors that are drawn, or where a caller says nothing."""
        return -1 if self.spec.inner == 1 else -2

    @property
    def drawn(self) -> tuple[str, ...]:
        """Expressions for tensors to try it with: x, then what is read beside it."""
        return tuple(_drawn(source.dtype, self.shape) for source in self.spec.sources)

    @property
    def says(self) -> tuple[str, ...]:
        """What a call takes and gives, a line each."""
        spec = self.spec
        tensors = [f"{row.name}: {' or '.join(row.dtypes)}".replace("torch.", "") for row in self.checked]
        words = {
            "mask": ", one an item: a bool one selects, a numeric one multiplies",
            "gate": ", one an item: what the result before it is multiplied by",
            "segment_starts": ", one an item: True where the scan begins anew",
            "offsets": ": 0, then where each further segment begins, at last the length",
            "initial": " or a number: what lines go on from, of a shape that expands to x's without dim",
        }
        lines = [line + words.get(line.split(":")[0], "") for line in tensors]
        results = [f"y, {spec.out.name}", *(["indices, int64"] if spec.indexed else [])]
        results += [f"what goes on from each line, {spec.carry.name}"] if spec.final else []
        return (*lines, f"Gives {'; '.join(results)}.")

    @staticmethod
    def lengths(page: Page) -> tuple[int, int]:
        """The shortest and the longest line of a kernel."""
        return (1 if page.spec.takes_length else page.spec.capacity, page.spec.capacity)

    @staticmethod
    def boundary(page: Page) -> int:
        """Where its operands have to begin: an odd number of columns is read item by item."""
        spec = page.spec
        by_item = spec.inner > 1 and spec.inner % 2 == 1 and spec.input_layout != "transposed"
        return BOUNDARY if spec.aligned and not by_item else 1


def _name(source: Source) -> str:
    return _NAMES.get(source.name, source.name)


def _torch(dtype: DType) -> str:
    return f"torch.{dtype.name}"


def _argument(row: Parameter) -> Argument:
    return Argument(name=row.name, ctype=_CTYPES[row.type], value=row.value)


def _laid(name: str, layout: str) -> tuple[Laid, ...]:
    shown = f"{name} of shape {{tuple({name}.shape)}} and strides {{{name}.stride()}}"
    same = "" if name == "x" else f"{name}.shape != x.shape or "
    rows = {
        "dense": (
            f"{same}not {name}.is_contiguous()",
            "has to be contiguous" + ("" if name == "x" else ", of x's shape"),
        ),
        "rows": (f"{name}.shape[dim] > 1 and {name}.stride(dim) != 1", "has to have its lines contiguous"),
        "columns": (f"not {name}[(0,) * (dim + 1)].is_contiguous()", "has to have all behind dim contiguous"),
    }
    return tuple(Laid(wrong=wrong, shown=shown, says=says) for where, (wrong, says) in rows.items() if where == layout)


def _bounded(name: str, layout: str) -> tuple[Bounded, ...]:
    rows = {
        "dense": (f"{name}.data_ptr() % self.boundary", ""),
        "columns": (f"any(at % self.boundary for at in _begins({name}, dim))", ", as do its rows,"),
    }
    return tuple(Bounded(name=name, off=off, where=words) for where, (off, words) in rows.items() if where == layout)


def _drawn(dtype: DType, shape: tuple[int, ...]) -> str:
    sizes = ", ".join(map(str, shape))
    if dtype.kind == "bool":
        return f"torch.randint(0, 2, ({sizes})).bool()"
    return f"torch.rand({sizes})" if dtype.name == "float32" else f"torch.rand({sizes}, dtype={_torch(dtype)})"
