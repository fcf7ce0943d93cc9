"""``ScanSpec``: a validated request for one scan, the input of the planner."""

from __future__ import annotations

from dataclasses import dataclass, fields

from scanops.codegen.dtypes import DTYPES, DType, accumulator_of, dtype_named, kept_result, promote
from scanops.codegen.indices import check_indices
from scanops.codegen.operator import COMPENSATED
from scanops.codegen.operators import Operator, is_built_in, operator_named
from scanops.codegen.saved import check_again, check_saved
from scanops.codegen.slugs import LAYOUTS, WORDS, Layout, fields_of, slug_of
from scanops.errors import UnsupportedRequest

__all__ = ["ACCESS_BYTES", "MAX_LENGTH", "ScanSpec", "Source", "check_spec"]

MAX_LENGTH = 2**31
"""Maximum number of items in a line. Offsets inside a row are 32-bit where they fit, offsets of rows always 64-bit."""

ACCESS_BYTES = 16  # the widest load or store of a thread
SEGMENTS = (None, "flags", "int32", "int64")  # head flags, or the dtype of offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An operand with one item for each item that is scanned."""

    name: str  # name of the kernel's parameter
    type: str  # C type of an item
    pointer: str  # C name of the pointer to a thread's part
    dtype: DType
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSpec:
    """The full description of one scan: everything that a kernel is specialised for.

    The tensor is viewed as ``[outer, length, inner]`` and scanned along the middle; ``inner`` is 1 when the scanned
    dimension is the last. A *line* is one scanned sequence; there are ``outer * inner`` of them. The output is
    contiguous. Raises ``UnsupportedRequest`` for combinations that no kernel supports. ``str(spec)`` is its short name.

    >>> print(ScanSpec(op="sum", dtype="float32", length=32768, mask="bool", reverse=True))
    sum-f32-n32768-mask_b8-reverse
    """

    op: str  # a row of the operator table
    dtype: str  # of the input; torch's name, a tag such as "f32", or a torch dtype
    length: int | None  # items in a line, 1 to MAX_LENGTH; None: an argument of the kernel
    at_most: int | None = None  # longest line of a variable-length kernel; None: MAX_LENGTH
    multiple: int = 1  # divides every length of a variable-length kernel
    out_dtype: str = ""  # of the output; by default the operator's for the masked input
    accumulate: str | None = None  # None: the output's dtype, float32 for half types; a wider dtype; or "compensated"
    mask: str | None = None  # None; "bool", which selects; or a numeric dtype, which multiplies
    gate: str | None = None  # dtype of the second input, for operators that have one
    saved: str | None = None  # of a gradient: dtype of the saved tensor, which is dense
    again: bool = (
        False  # of a gradient: recompute the forward prefixes in the tile, or read saved results shifted by one item
    )
    segments: str | None = None  # None; "flags": a bool operand of head flags; or the dtype of offsets
    reverse: bool = False  # scan from the last item to the first
    exclusive: bool = False  # output i leaves item i out; the first output is the identity
    initial: bool = False  # lines start from a carry-in instead of the identity
    final: bool = False  # the carry-out of each line is returned
    inner: int = 1  # product of the sizes after the scanned dimension
    input_layout: Layout = "dense"  # dense: contiguous, as the output; rows: the items of a row are contiguous, rows
    # start anywhere; columns: neighbouring lines are adjacent in memory, rows and batches start anywhere; transposed:
    # the items of a column are contiguous (inner > 1), or items at the same index of several rows (inner 1); strided:
    # any other strides
    mask_layout: Layout = "dense"  # likewise for the mask, which may be broadcast (stride 0)
    gate_layout: Layout = "dense"  # likewise for the gate
    starts_layout: Layout = "dense"  # likewise for the head flags
    aligned: bool = True  # dense operands start on a 16-byte boundary, and so do the rows of a columns operand and the
    # runs of a transposed one

    def __post_init__(self) -> None:
        operator = operator_named(self.op)
        _set(self, "dtype", dtype_named(self.dtype, role="input dtype").name)
        if self.mask is not None:
            _set(self, "mask", dtype_named(self.mask, role="mask dtype").name)
        if self.gate is not None:
            _set(self, "gate", dtype_named(self.gate, role="gate dtype").name)
        if self.saved is not None:
            _set(self, "saved", dtype_named(self.saved, role="saved dtype").name)
        _check_gate(self, operator)
        check_saved(self, operator)
        _check_choice("segments", self.segments, SEGMENTS)
        default = operator.result(self.term)
        _set(self, "out_dtype", dtype_named(self.out_dtype or default.name, role="output dtype").name)
        if not self.out.stored:
            raise UnsupportedRequest(
                f"{self.op}: the output dtype is for inputs only",
                allowed=", ".join(name for name, row in DTYPES.items() if row.stored and row.kind in operator.kinds),
                value=f"dtype={self.out_dtype}",
                hint="leave dtype out, or pass float32 or a half type, and convert the result",
            )
        if operator.gives != "index" and self.out.kind not in operator.kinds:
            raise UnsupportedRequest(
                f"{self.op}: the output dtype must be of kind {' or '.join(operator.kinds)}",
                allowed=f"an output dtype of kind {' or '.join(operator.kinds)}",
                value=f"dtype={self.out_dtype}",
                hint=_hint_of_kinds(operator, default),
            )
        _set(self, "accumulate", _accumulator(self))
        _check_range("multiple", self.multiple, MAX_LENGTH, "leave multiple out, for any length")
        if self.at_most is not None:
            _check_range("at_most", self.at_most, MAX_LENGTH, "leave at_most out, for any length")
        if self.length is not None:
            _check_range("length", self.length, MAX_LENGTH, "split the tensor along the scanned dimension")
            _check_fixed(self)
        _check_range("inner", self.inner, MAX_LENGTH, "scan slices of the trailing dimensions")
        present = [source.name for source in self.sources]
        for name in ("input_layout", "mask_layout", "gate_layout", "starts_layout"):
            _check_choice(name, getattr(self, name), LAYOUTS)
            if getattr(self, name) != "dense" and name.removesuffix("_layout") not in present:
                raise UnsupportedRequest(
                    f"{name} must be 'dense' without the operand {name.removesuffix('_layout')}",
                    allowed=", ".join(f"{each}_layout" for each in present),
                    value=f"{name}={getattr(self, name)!r}",
                    hint=f"leave {name} out, or add the operand: mask, gate, or segments='flags'",
                )
            if self.inner == 1 and getattr(self, name) == "columns":
                raise UnsupportedRequest(
                    f"{name}='columns' needs inner above 1",
                    allowed="the layout columns for inner above 1",
                    value=f"inner={self.inner}, {name}={getattr(self, name)!r}",
                    hint="pass strided, or rows if the items of a line are contiguous",
                )
        if operator.places_items and not is_built_in(operator):
            check_indices(self, operator)
        if self.initial and not operator.resumes:
            raise UnsupportedRequest(
                f"{self.op}: the operator takes no carry-in",
                allowed="a carry-in for operators with `resume`",
                value=f"op={self.op!r}, initial={self.initial!r}",
                hint="leave initial out, or give the operator a resume expression for each field of its state",
            )
        for flag in ("reverse", "exclusive", "initial", "final", "aligned", "again"):
            _check_choice(flag, getattr(self, flag), (True, False))
        if self.again:
            check_again(self)

    @property
    def takes_length(self) -> bool:
        """Whether the length is an argument of the kernel."""
        return self.length is None

    @property
    def capacity(self) -> int:
        """The longest line that the kernel accepts."""
        return self.length or self.at_most or MAX_LENGTH

    @property
    def items_text(self) -> str:
        """The length for messages: "32768", or "up to 4096" items."""
        return str(self.length) if self.length else f"up to {self.capacity}"

    def divides(self, items: int) -> bool:
        """Whether the length of every line is a multiple of ``items``."""
        return (self.length or self.multiple) % items == 0

    @property
    def access_items(self) -> int:
        """Items per access of a thread, with at most 16 bytes for every operand."""
        return ACCESS_BYTES // max(*(source.dtype.bytes for source in self.sources), *self.result_bytes)

    @property
    def operator_row(self) -> Operator:
        """The operator's row as it is registered."""
        return operator_named(self.op)

    @property
    def operator(self) -> Operator:
        """The operator's row, in the variant for the accumulator."""
        row = self.operator_row
        return row.variants.get(COMPENSATED if self.compensated else self.out.kind, row)

    @property
    def input(self) -> DType:
        """The row of the input's dtype."""
        return dtype_named(self.dtype)

    @property
    def out(self) -> DType:
        """The row of the output's dtype."""
        return dtype_named(self.out_dtype)

    @property
    def compensated(self) -> bool:
        """Whether the scan keeps the rounding error of each sum or product (compensated)."""
        return self.accumulate == COMPENSATED

    @property
    def accumulator(self) -> DType:
        """The dtype that elements are converted to and scanned in: ``accumulate``, else the output's.

        Where the output is an index (``gives="index"``), elements keep their own dtype.
        """
        if self.accumulate and not self.compensated:
            return dtype_named(self.accumulate)
        return kept_result(self.term) if self.operator_row.gives == "index" else self.out

    @property
    def carry(self) -> DType:
        """The dtype of carry-in and carry-out: as exact as the accumulator, an index where the output is one."""
        if self.operator_row.gives == "index":
            return self.out
        return accumulator_of(self.accumulator) if self.accumulator.kind == "float" else self.accumulator

    @property
    def indexed(self) -> bool:
        """Whether the second output holds indices."""
        return bool(self.operator.indices)

    @property
    def doubled(self) -> bool:
        """Whether there is a second output."""
        return self.operator.doubled

    @property
    def result_bytes(self) -> tuple[int, ...]:
        """Bytes per item of each output."""
        if self.indexed:
            return self.out.bytes, DTYPES["int64"].bytes
        return (self.out.bytes,) * (1 + self.doubled)

    @property
    def widens(self) -> bool:
        """Whether an item of some output is larger than an input item."""
        return self.input.bytes < max(self.result_bytes)

    @property
    def keeps_bytes(self) -> bool:
        """Whether a result is as large as its item, so that it can overwrite the item in shared memory."""
        return self.result_bytes == (self.input.bytes,)

    @property
    def mask_dtype(self) -> DType | None:
        """The row of the mask's dtype, None without a mask."""
        return dtype_named(self.mask) if self.mask else None

    @property
    def weight(self) -> DType | None:
        """The row of the dtype of a numeric mask; None without one."""
        return None if self.mask == "bool" else self.mask_dtype

    @property
    def sources(self) -> tuple[Source, ...]:
        """The operands with one item per scanned item, in the order of the kernel's parameters."""
        rows = (
            ("input", "Input", "x", self.dtype),
            ("mask", "Mask", "m", self.mask),
            ("gate", "Gate", "g", self.gate),
            ("saved", "Saved", "v", self.saved),
            ("starts", "Start", "b", "bool" if self.segments == "flags" else None),
        )
        return tuple(
            Source(
                name=name,
                type=kind,
                pointer=at,
                dtype=dtype_named(dtype),
                layout=getattr(self, f"{name}_layout", "dense"),
            )
            for name, kind, at, dtype in rows
            if dtype is not None
        )

    @property
    def layouts(self) -> frozenset[Layout]:
        """The layouts of all operands."""
        return frozenset(source.layout for source in self.sources)

    @property
    def read_bytes(self) -> int:
        """Bytes that are read per item, over all operands."""
        return sum(source.dtype.bytes for source in self.sources)

    @property
    def alone(self) -> bool:
        """Whether the input is the only operand."""
        return len(self.sources) == 1

    @property
    def by_offsets(self) -> bool:
        """Whether segments are given by offsets."""
        return self.segments not in (None, "flags")

    @property
    def strided(self) -> bool:
        """Whether some operand is not dense."""
        return self.layouts != {"dense"}

    @property
    def term(self) -> DType:
        """The promoted dtype of the items (input, times numeric mask, with gate) before the accumulator's."""
        term = promote(self.input, self.weight) if self.weight else self.input
        return promote(term, dtype_named(self.gate)) if self.gate else term

    @property
    def slug(self) -> str:
        """The short name, which ``parse`` reads back: usable in file names, stable between versions."""
        return slug_of(self)

    def __str__(self) -> str:
        return self.slug

    @classmethod
    def parse(cls, slug: str) -> ScanSpec:
        """Return the spec with this short name. Raises UnsupportedRequest for an invalid one.

        >>> ScanSpec.parse("prod-f32-n1000-reverse").length
        1000
        """
        return cls(**fields_of(slug))

    def describe(self) -> str:
        """Return a one-line description in words."""
        count = self.items_text
        count += f", a multiple of {self.multiple}," if self.multiple != 1 else ""
        parts = [f"{count} {self.dtype} items" + (f" of stride {self.inner}" if self.inner != 1 else "")]
        use = "multiplies" if self.weight else "is passed on" if self.operator.masked else "selects"
        parts += [f"the {self.mask} mask {use}"] if self.mask else []
        parts += [f"a {self.gate} gate"] if self.gate else []
        parts += [f"saved {self.saved} items"] if self.saved else []
        parts += [word for word, (name, value) in WORDS.items() if getattr(self, name) == value]
        parts += [f"accumulated {'with compensation' if self.compensated else f'in {self.accumulate}'}"] * bool(
            self.accumulate
        )
        return ", ".join([*parts, f"{self.out_dtype} out"])

    def to_dict(self) -> dict[str, object]:
        """Return every field by name, for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def check_spec(value: object) -> None:
    """Raise UnsupportedRequest unless ``value`` is a ScanSpec; the hint shows how to parse a short name."""
    if not isinstance(value, ScanSpec):
        raise UnsupportedRequest(
            "spec must be a ScanSpec",
            allowed="a scanops.ScanSpec",
            value=repr(value),
            hint=f"pass scanops.ScanSpec.parse({value!r})" if isinstance(value, str) else "construct one",
        )


def _set(spec: ScanSpec, name: str, value: object) -> None:
    object.__setattr__(spec, name, value)  # normalise a field of a frozen dataclass


def _accumulator(spec: ScanSpec) -> str | None:
    """The requested accumulator by name; None if it is the default."""
    if spec.accumulate is None:
        return None
    default = accumulator_of(kept_result(spec.term) if spec.operator_row.gives == "index" else spec.out)
    legal = [row.name for row in DTYPES.values() if _is_accumulator(row, default)]
    words = [COMPENSATED] if spec.out.kind == "float" and COMPENSATED in spec.operator_row.forms else []
    if spec.accumulate in words:
        return spec.accumulate
    name = next(
        (row.name for row in DTYPES.values() if spec.accumulate in (row.name, row.tag, f"torch.{row.name}")), ""
    )
    if name not in legal:
        raise UnsupportedRequest(
            f"{spec.op}: accumulate does not fit {spec.out_dtype} output",
            allowed=", ".join(map(repr, [*legal, *words])) + ", or None for the first of these"
            if legal
            else "None: integers wrap around identically in any width",
            value=f"accumulate={spec.accumulate!r}",
            hint="leave accumulate out, or pass a wider dtype of the result's kind",
        )
    return None if name == default.name else name


def _is_accumulator(row: DType, default: DType) -> bool:
    return row.stored and row.kind == default.kind in ("float", "complex") and row.bytes >= default.bytes


def _hint_of_kinds(operator: Operator, default: DType) -> str:
    if default.kind in operator.kinds:
        return f"leave dtype out: the default here is {default.name}"
    return f"pass an input, or a dtype, of kind {' or '.join(operator.kinds)}"


def _check_range(name: str, value: object, limit: int, hint: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise UnsupportedRequest(
            f"{name} must be an integer from 1 to {limit}",
            allowed=f"an integer from 1 to {limit}",
            value=f"{name}={value!r}",
            hint=hint,
        )


def _check_gate(spec: ScanSpec, operator: Operator) -> None:
    if operator.gated != (spec.gate is not None):
        raise UnsupportedRequest(
            f"{spec.op}: {'a gate dtype is required' if operator.gated else 'the operator has no gate'}",
            allowed="a gate for operators whose lift reads one, and for no other",
            value=f"op={spec.op!r}, gate={spec.gate!r}",
            hint="pass the gate's dtype as gate" if operator.gated else "leave gate out",
        )


def _check_fixed(spec: ScanSpec) -> None:
    for name, given in (("at_most", spec.at_most), ("multiple", None if spec.multiple == 1 else spec.multiple)):
        if given is not None:
            raise UnsupportedRequest(
                f"{name} needs length=None",
                allowed=f"{name} with length=None, for a variable-length kernel",
                value=f"length={spec.length!r}, {name}={given!r}",
                hint=f"pass length=None, or leave {name} out",
            )


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if not isinstance(value, tuple({type(choice) for choice in choices})) or value not in choices:
        raise UnsupportedRequest(
            f"{name} must be {' or '.join(repr(choice) for choice in choices)}",
            allowed=" or ".join(repr(choice) for choice in choices),
            value=f"{name}={value!r}",
            hint=f"pass one of these as {name}",
        )
