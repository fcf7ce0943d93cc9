"""``ScanSpec``: a validated request for one scan, the input of the planner."""

from __future__ import annotations

from dataclasses import Field, dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

from scanops.codegen.dtypes import (
    DTYPES,
    DType,
    default_result,
    dtype_named,
    late_field,
    promote,
    set_derived,
)
from scanops.codegen.fusion.fusion import Fusion, fusion_of
from scanops.codegen.layouts import LINE, WHOLE_BYTES, Layout
from scanops.codegen.operator import COMPENSATED
from scanops.codegen.operators import Operator, operator_named
from scanops.codegen.slugs import ABSENT, ANY, MAP, PREFIXES, WORDS, fields_of
from scanops.codegen.spec_checks import MAX_LENGTH as MAX_LENGTH
from scanops.codegen.spec_checks import accumulators, in_fields, in_results, refuse
from scanops.errors import UnsupportedRequest

ACCESS_BYTES = 16  # the widest load or store of a thread
CHUNK_LENGTH = 256  # items of chunks that are lines of their own, at most: those of one tile
ROLES = {"dtype": "input dtype", "mask": "mask dtype", "gate": "gate dtype", "saved": "saved dtype"}


class Source(NamedTuple):
    """An operand with one item for each item that is scanned."""

    name: str  # name of the kernel's parameter
    type: str  # C type of an item
    pointer: str  # C name of the pointer to a thread's part
    dtype: DType
    layout: Layout
    shift: int = 0  # items by which it is read further on in scan order

    @property
    def geometry(self) -> int:
        """Its place among the strides of a Geometry."""
        places = {"input": 0, "mask": 1, "gate": 2, "starts": 3}
        number = self.name.removeprefix("further")
        return 3 + int(number) if number.isdecimal() else places.get(self.name, 0)

    @property
    def origin(self) -> str:
        """C name of the part of the operand that this one is a repetition of, or its own."""
        return "b" if self.pointer == "e" else self.pointer


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
    mask: str | None = None  # None; "bool", which selects; or a numeric dtype, which multiplies (integers: sums only)
    gate: str | None = None  # dtype of the second input, for operators that have one
    saved: str | None = None  # of a gradient: dtype of the saved tensor, which is dense
    saved_results: bool = False  # `saved` holds the forward scan's results; by default the result before each item
    saved_initial: bool = False  # beside these, an operand holds the carry-in of each line of the forward scan
    segments: str | None = None  # None; "flags": a bool operand of head flags; or the dtype of offsets
    reverse: bool = False  # scan from the last item to the first
    exclusive: bool = False  # output i leaves item i out; the first output is the identity
    complete: bool = False  # of an exclusive scan: a last output includes every item, so operands have one item less
    initial: bool = False  # lines start from a carry-in instead of the identity
    final: bool = False  # the carry-out of each line is returned
    totals: bool = False  # of a recurrence: no results, and the carry-out is its value and the product of its gates
    # Of columns (inner > 1): so many of the outputs, the last ones, are stored as sums, over each line or over the part
    # of one that a block takes.
    line_sums: int = 0
    per_segment: bool = False  # of segments by offsets: a carry for each segment of a line, not for the line
    # Lines span several ranks, whose kernels hand on their states. All ranks have one kernel: its arguments say which
    # ranks are before and after it, and hold a carry-in of the first one and a place for the carry-out of the last one.
    linked: bool = False
    chunked: bool = False  # of segments by offsets: they begin again every so many items, an argument of the kernel
    ragged: str | None = None  # lines are such chunks of the segments of longer ones: dtype of the offsets of segments
    inner: int = 1  # product of the sizes after the scanned dimension
    input_layout: Layout = "dense"  # dense: contiguous, as the output; rows: the items of a row are contiguous, rows
    # start anywhere; columns: neighbouring lines are adjacent in memory, rows and batches start anywhere; transposed:
    # the items of a column are contiguous (inner > 1), or items at the same index of several rows (inner 1), and so are
    # those of the output in the other direction, WHOLE_BYTES at least; strided: any other strides
    mask_layout: Layout = "dense"  # likewise for the mask; line: one item for the whole line (stride 0 along it)
    gate_layout: Layout = "dense"  # likewise for the gate
    starts_layout: Layout = "dense"  # likewise for the head flags
    map: str = ""  # text of a Fusion: expressions around the scan, and the operands beside the input; "": none
    states: int = 0  # of a recurrence with sums: states of a line, which outputs are sums over; 0: it has none. Then
    # layouts are those of ``map``; input_layout: rows: the steps of a line are contiguous in the results; transposed:
    # neighbouring lines are; strided: neither. multiple: items of runs that are aligned in all operands
    saves: bool = False  # beside states: states are written every so many steps, for the backward pass
    gradient: str = ""  # beside states, of the backward kernel: for each operand 1 if its gradient is wanted, else 0
    aligned: bool = True  # dense operands start on a 16-byte boundary, and so do the rows of a columns operand and the
    # runs of a transposed one

    # ---- what follows from the fields above, set once

    operator: Operator = late_field()  # its row, in the form for the accumulator
    input: DType = late_field()  # the row of the input's dtype
    weight: DType | None = late_field()  # that of a numeric mask; None without one
    term: DType = late_field()  # the promoted dtype of items (input, times numeric mask, with gate)
    out: DType = late_field()  # the row of the output's dtype
    accumulator: DType = late_field()  # of the scan: ``accumulate``, the output's, or the items' for an index
    carry: DType = late_field()  # of carries: as exact as the accumulator, or an index
    sources: tuple[Source, ...] = late_field()  # the operands with one item per scanned item, in the kernel's order
    streams: tuple[Source, ...] = late_field()  # of them, those with an item for each of a line
    per_line: tuple[Source, ...] = late_field()  # the others, with one item for a line
    layouts: frozenset[Layout] = late_field()  # of the operands
    strided: bool = late_field()  # whether some operand is not dense
    views: bool = late_field()  # the same, apart from those of one item per line
    takes_initial: bool = late_field()  # whether kernels take a carry-in
    stores_final: bool = late_field()  # whether kernels store a carry-out
    alone: bool = late_field()  # whether the input is the only operand
    by_offsets: bool = late_field()  # whether segments are given by offsets
    in_parts: bool = late_field()  # whether kernels take the number of items in a chunk
    every_offset: bool = late_field()  # whether kernels take all offsets, not only those between the first and the last
    takes_length: bool = late_field()  # whether the length is an argument of the kernel
    capacity: int = late_field()  # the longest line that the kernel accepts
    indexed: bool = late_field()  # whether the second output holds indices
    doubled: bool = late_field()  # whether there is a second output
    recomputes: bool = late_field()  # whether a gradient recomputes the forward scan, as nothing was saved
    # The head flags once more, an item further on: where forward scans go backwards, they say which results have no
    # result before them in their segment.
    next_starts: tuple[Source, ...] = late_field()
    looks_ahead: bool = late_field()  # whether some operand is read an item further on
    looks_on: bool = late_field()  # likewise of offsets, which kernels search twice
    read_bytes: int = late_field()  # per item, over all operands
    result_bytes: tuple[int, ...] = late_field()  # bytes per item of each output
    sum: DType = late_field()  # of the sums over lines
    fusion: Fusion | None = late_field()  # what ``map`` is the text of
    access_items: int = late_field()  # per access of a thread: at most 16 bytes of every operand
    widens: bool = late_field()  # whether an item of some output is larger than an input item
    keeps_bytes: bool = late_field()  # whether a result can overwrite its item in shared memory

    def __post_init__(self) -> None:
        row = operator_named(self.op)
        for name, role in ROLES.items():
            if name == "dtype" or getattr(self, name) is not None:
                set_derived(self, **{name: dtype_named(getattr(self, name), role=role).name})
        fusion = fusion_of(self.map) if self.map != "" else None
        set_derived(self, fusion=fusion)
        refuse(self, in_fields(self, row))
        rows: tuple[tuple[str, str, str, str | None, Layout, int], ...] = (
            ("input", "Input", "x", self.dtype, self.input_layout, 0),
            ("mask", "Mask", "m", self.mask, self.mask_layout, 0),
            ("gate", "Gate", "g", self.gate, self.gate_layout, 0),
            ("saved", "Saved", "v", self.saved, "dense", int(self.saved_results)),
            ("starts", "Start", "b", "bool" if self.segments == "flags" else None, self.starts_layout, 0),
            *(fusion.sources[1:] if fusion else ()),
        )
        sources = tuple(
            Source(name, kind, at, DTYPES[dtype], layout, shift)
            for name, kind, at, dtype, layout, shift in rows
            if dtype is not None
        )
        weight = None if self.mask in (None, "bool") else dtype_named(self.mask)
        term = items = sources[0].dtype
        term = promote(term, weight) if weight else term
        term = promote(term, dtype_named(self.gate)) if self.gate else term
        out = dtype_named(self.out_dtype or default_result(row.gives, term).name, role="output dtype")
        set_derived(self, out_dtype=out.name, input=items, weight=weight, term=term, out=out)
        accumulate, accumulator, carry = accumulators(self, row)
        operator = row.variants.get(COMPENSATED if accumulate == COMPENSATED else accumulator.kind, row)
        operator = fusion.row(operator, self) if fusion else operator
        accessed = sources  # the carry-in of a saved result has one item for each line, which is read by itself
        if self.saved_initial:
            begin = Source(name="further1", type="Begin", pointer="w", dtype=carry, layout=LINE)
            sources = (*sources, begin)
        streams = tuple(source for source in sources if source.layout != LINE)
        has_head_flags = self.saved_results and self.segments == "flags" and not self.reverse
        next_starts = tuple(
            each._replace(pointer="e", shift=1) for each in streams if each.name == "starts" and has_head_flags
        )
        streams += next_starts
        layouts = frozenset(source.layout for source in sources)
        second = (DTYPES["int64"].bytes if operator.indices else out.bytes,) if operator.doubled else ()
        made = (out.bytes, *second, *(DTYPES[each.dtype].bytes for each in (fusion.outputs[1:] if fusion else ())))
        several, made = len(made) > 1, made[: len(made) - self.line_sums]
        summed = DTYPES[fusion.outputs[-1].dtype] if fusion else carry
        set_derived(
            self,
            accumulate=accumulate,
            accumulator=accumulator,
            carry=carry,
            operator=operator,
            sources=sources,
            streams=streams,
            per_line=tuple(source for source in sources if source.layout == LINE),
            layouts=layouts,
            strided=layouts != {"dense"},
            views=not layouts <= {"dense", LINE},
            takes_initial=self.initial or (self.linked and row.resumes),
            stores_final=self.final or self.linked,
            alone=len(sources) == 1,
            by_offsets=self.segments not in (None, "flags"),
            in_parts=self.chunked or self.ragged is not None,
            every_offset=self.per_segment or self.chunked or self.ragged is not None,
            takes_length=self.length is None,
            capacity=self.length or self.at_most or MAX_LENGTH,
            indexed=bool(operator.indices),
            doubled=several,
            recomputes=self.saved is None and len(operator.before) > 1,
            next_starts=next_starts,
            looks_ahead=any(source.shift for source in sources),
            looks_on=self.saved_results
            and self.segments not in (None, "flags")
            and not (self.reverse and not self.per_segment),
            read_bytes=sum(source.dtype.bytes for source in streams),
            result_bytes=made,
            sum=summed,
            access_items=ACCESS_BYTES // max(*made, *(source.dtype.bytes for source in accessed)),
            widens=items.bytes < max(made),
            keeps_bytes=made == (items.bytes,) and not self.line_sums,
        )
        refuse(self, in_results(self, row))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(ScanSpec, **self.to_dict()), ()

    @property
    def items_text(self) -> str:
        """The length for messages: "32768", or "up to 4096" items."""
        return str(self.length) if self.length else f"up to {self.capacity}"

    def divides(self, items: int) -> bool:
        """Whether the length of every line is a multiple of ``items``."""
        return (self.length or self.multiple) % items == 0

    def in_chunks(self, items: int) -> ScanSpec:
        """Return the spec of the kernel that begins again every so many items of a segment.

        Where a tile holds them, and items of a chunk are rows of WHOLE_BYTES, each is a line and needs no look-back.
        """
        wide = self.inner * min(self.input.bytes, self.out.bytes) >= WHOLE_BYTES
        plain = self.layouts <= {"dense", "columns", LINE} and not self.operator.places_items
        if not (wide and plain) or items > CHUNK_LENGTH or self.saved or self.initial or self.final or self.line_sums:
            return replace(self, chunked=True)
        at_most = 1 << (items - 1).bit_length()
        return replace(self, length=None, at_most=at_most, ragged=self.segments, segments=None)

    @property
    def slug(self) -> str:
        """The short name, which ``parse`` reads back: usable in file names, stable between versions."""
        values = {name: getattr(self, name) for name in PREFIXES.values()}
        if self.out == default_result(self.operator.gives, self.term):
            values["out_dtype"] = None
        parts = [self.op, self.input.tag, *[ANY] * self.takes_length]
        for prefix, name in PREFIXES.items():
            if (value := values[name]) not in (None, ABSENT.get(name)):
                parts.append(f"{prefix}{DTYPES[value].tag if value in DTYPES else value}")
        parts += [f"{MAP}{self.fusion.digest}"] if self.fusion else []
        return "-".join([*parts, *(word for word, (name, value) in WORDS.items() if getattr(self, name) == value)])

    def __str__(self) -> str:
        return self.slug

    @classmethod
    def parse(cls, slug: str, map: str = "") -> ScanSpec:
        """Return the spec with this short name. Raises UnsupportedRequest for an invalid one.

        ``map``: the text of its expressions, where this process has not traced them.

        >>> ScanSpec.parse("prod-f32-n1000-reverse").length
        1000
        """
        return cls(**fields_of(slug, map))

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
        way = "with compensation" if self.accumulate == COMPENSATED else f"in {self.accumulate}"
        parts += [f"accumulated {way}"] if self.accumulate else []
        return ", ".join([*parts, f"{self.out_dtype} out"])

    def to_dict(self) -> dict[str, Any]:
        """Return every given field by name, for JSON."""
        return {each.name: getattr(self, each.name) for each in FIELDS}


FIELDS: tuple[Field[Any], ...] = tuple(each for each in fields(ScanSpec) if each.init)
"""The fields that a spec is given; the others are derived from them."""


def spec_of(value: object) -> ScanSpec:
    """Return a ScanSpec, given one or its short name. Raises UnsupportedRequest for anything else."""
    if isinstance(value, str):
        return ScanSpec.parse(value)
    if not isinstance(value, ScanSpec):
        raise UnsupportedRequest(
            "spec must be a ScanSpec or its short name",
            allowed="a scanops.ScanSpec, or a name such as 'sum-f32-n1024'",
            value=repr(value),
            hint="construct one: scanops.ScanSpec(op='sum', dtype='float32', length=1024)",
        )
    return value
