"""The dtype table: names, C types in memory and in registers, accumulator types, conversions.

Integer arithmetic uses the unsigned type of the same width, because signed overflow is undefined in C++ and torch's
integers wrap around; comparisons use a type of the dtype's own signedness. Half types and 8-bit floats are stored as
bits and computed in float; 8-bit floats are inputs only, because a running sum soon exceeds their range. Complex types
are a struct of two reals (stages/complex.cuh.j2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from scanops.errors import UnsupportedRequest, did_you_mean


def derived() -> Any:
    """Return a field of a frozen dataclass that follows from the others: ``set_derived`` gives it its value."""
    return field(init=False, repr=False, compare=False)


def set_derived(row: object, **values: object) -> None:
    """Set fields of a frozen dataclass in its ``__post_init__``."""
    for name, value in values.items():
        object.__setattr__(row, name, value)


Kind = Literal["bool", "int", "float", "complex"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DType:
    """One element type: its names, C types and conversions."""

    name: str  # torch's name, without the "torch." prefix
    tag: str  # the code in short names
    kind: Kind
    bytes: int  # size in memory
    storage: str  # C type in memory
    value: str = ""  # C type of a converted value, signed where the dtype is; by default ``storage``
    # Kinds of other dtypes that torch promotes it with.
    promotes_with: tuple[Kind, ...] = ("bool", "int", "float", "complex")
    parts: tuple[str, ...] = ("",)  # C suffix of each number in a value
    read: str = "{x}"  # storage -> value
    write: str = ""  # accumulator -> storage; by default a cast, if their types differ
    rounded: str = "({value})({x})"  # any value rounded to this dtype, as a value
    stored: bool = True  # whether results may have this dtype
    accumulator: str = derived()  # C type it is scanned in, unsigned for integers
    ordered: str = derived()  # C type it is scanned in by operators that compare
    lowest: int | float = derived()  # the least value, -inf for floating dtypes; of complex dtypes, of the real part
    highest: int | float = derived()  # the greatest value

    def __post_init__(self) -> None:
        value = accumulator = ordered = self.value or self.storage
        lowest, highest = -inf, inf
        if self.kind in ("bool", "int"):
            accumulator = "unsigned long long" if self.bytes == 8 else "unsigned int"
            ordered = value if self.bytes >= 4 else "int"
            bits, signed = 8 * self.bytes if self.kind == "int" else 1, self.name.startswith("int")
            lowest, highest = -(2 ** (bits - 1)) * signed, 2 ** (bits - signed) - 1
        write = self.write or ("{x}" if self.storage == accumulator else f"({self.storage})({{x}})")
        set_derived(self, value=value, write=write, accumulator=accumulator, ordered=ordered)
        set_derived(self, lowest=lowest, highest=highest)


_ROWS = (
    DType(name="bool", tag="b8", kind="bool", bytes=1, storage="unsigned char", value="bool",
          read="({x} != 0)", write="({x} != 0)", rounded="({x} != 0)"),
    DType(name="uint8", tag="u8", kind="int", bytes=1, storage="unsigned char",
          rounded="(unsigned char)(long long)({x})"),  # a negative float wraps around, as in torch
    DType(name="int8", tag="i8", kind="int", bytes=1, storage="signed char"),
    DType(name="int16", tag="i16", kind="int", bytes=2, storage="short"),
    DType(name="int32", tag="i32", kind="int", bytes=4, storage="int"),
    DType(name="int64", tag="i64", kind="int", bytes=8, storage="long long"),
    # torch supports these three for storage and little else.
    DType(name="uint16", tag="u16", kind="int", bytes=2, storage="unsigned short", promotes_with=("float",)),
    DType(name="uint32", tag="u32", kind="int", bytes=4, storage="unsigned int", promotes_with=("float",)),
    DType(name="uint64", tag="u64", kind="int", bytes=8, storage="unsigned long long", promotes_with=("float",)),
    DType(name="float16", tag="f16", kind="float", bytes=2, storage="unsigned short", value="float",
          read="half_to_float({x})", write="float_to_half({x})",
          rounded="half_to_float(float_to_half((float)({x})))"),
    DType(name="bfloat16", tag="bf16", kind="float", bytes=2, storage="unsigned short", value="float",
          read="bfloat_to_float({x})", write="float_to_bfloat({x})",
          rounded="bfloat_to_float(float_to_bfloat((float)({x})))"),
    *(DType(name=f"float8_{tag}", tag=tag, kind="float", bytes=1, storage="unsigned char", value="float",
            promotes_with=(), read=f"{tag}_to_float({{x}})", stored=False)
      for tag in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")),
    DType(name="float32", tag="f32", kind="float", bytes=4, storage="float"),
    DType(name="float64", tag="f64", kind="float", bytes=8, storage="double"),
    DType(name="complex64", tag="c64", kind="complex", bytes=8, storage="Complex<float>", parts=(".re", ".im"),
          rounded="complex_of<float>({x})"),
    DType(name="complex128", tag="c128", kind="complex", bytes=16, storage="Complex<double>", parts=(".re", ".im"),
          rounded="complex_of<double>({x})"),
)  # fmt: skip

WHOLE_BYTES = 64  # of a run of contiguous memory that is worth a transposition: two 32-byte sectors
# Types of a field of a scan state: C type and bytes. A line has at most 2^31 elements, so an int holds every index.
FIELD_TYPES: dict[str, tuple[str, int]] = {
    "index": ("int", 4),
    "int32": ("int", 4),
    "int64": ("long long", 8),
    "float32": ("float", 4),
    "float64": ("double", 8),
}
# Words for the state before the first element, by the dtype that is scanned in.
BOUNDS: dict[str, Callable[[DType], int | float]] = {
    "lowest": lambda out: out.lowest,
    "highest": lambda out: out.highest,
    "ones": lambda out: -1 if out.lowest < 0 else out.highest,  # every bit set
}
DTYPES: dict[str, DType] = {row.name: row for row in _ROWS}
_BY_TAG: dict[str, DType] = {row.tag: row for row in _ROWS}
_KIND_ORDER = {"bool": 0, "int": 1, "float": 2, "complex": 3}


def dtype_named(dtype: object, *, role: str = "dtype") -> DType:
    """Return the row of a torch dtype, a name or a code. ``role`` names the argument in the error."""
    name = str(dtype).removeprefix("torch.")
    row = DTYPES.get(name) or _BY_TAG.get(name)
    if row is None:
        raise UnsupportedRequest(
            f"{role} is not supported",
            allowed=", ".join(DTYPES),
            value=repr(dtype),
            hint=did_you_mean(name, (*DTYPES, *_BY_TAG)) + "convert the tensor first: x.to(torch.float32), for example",
        )
    return row


def promote(first: DType, second: DType) -> DType:
    """The dtype of ``first * second`` for two tensors of at least one dimension: ``torch.result_type``'s rule.

    Raises UnsupportedRequest where torch has none.
    """
    if first == second:
        return first
    if second.kind not in first.promotes_with or first.kind not in second.promotes_with:
        raise UnsupportedRequest(
            "torch has no promotion of items times mask or gate",
            allowed=f"{first.name} with {_partners(first)}; {second.name} with {_partners(second)}: torch has no "
            "promotion of others",
            value=f"dtypes {first.name} and {second.name}",
            hint="convert one of them first, or pass a bool mask, which selects",
        )
    low, high = sorted((first, second), key=lambda d: (_KIND_ORDER[d.kind], d.bytes))
    if low.kind == "float" and high.kind == "complex" and high.bytes < 2 * low.bytes:  # a part is as wide as the float
        return DTYPES["complex128"]
    if low.kind != high.kind:
        return high
    if low.kind == "float" and low.bytes == high.bytes:  # float16 and bfloat16: neither holds the other
        return DTYPES["float32"]
    if low.kind == "int" and low.bytes == high.bytes:  # uint8 and int8: neither holds the other
        return DTYPES["int16"]
    return high


def _partners(dtype: DType) -> str:
    """The names of the dtypes that torch promotes with ``dtype``."""
    both = (row for row in _ROWS if row.kind in dtype.promotes_with and dtype.kind in row.promotes_with)
    return ", ".join(dict.fromkeys((dtype.name, *(row.name for row in both))))


def literal(number: float) -> str:
    """A bound of a dtype as a C++ literal; ``infinity()`` is a function of the kernel."""
    if number in (inf, -inf):
        return "infinity()" if number > 0 else "-infinity()"
    suffix = "ULL" if number >= 2**63 else "LL" if abs(number) > 2**31 else ""
    # The least signed value has no literal: its magnitude exceeds the type by one.
    lone = number in (-(2**31), -(2**63))
    return f"-{-number - 1}{suffix} - 1" if lone else f"{number}{suffix}"


def numbers_of(start: Any, out: DType) -> Any:
    """Replace the words in a number, a word or a tuple of these by the bounds of dtype ``out``."""
    if isinstance(start, tuple):
        return tuple(numbers_of(part, out) for part in start)
    return BOUNDS[start](out) if isinstance(start, str) else start


def accumulator_of(dtype: DType) -> DType:
    """The dtype whose C type ``dtype`` is scanned in: float32 for half types, an unsigned type for integers."""
    return next((row for row in _ROWS if row.storage == dtype.accumulator), dtype)


def kept_result(term: DType) -> DType:
    """The result dtype that keeps ``term``: float32 for 8-bit floats, which no result has."""
    return term if term.stored else DTYPES["float32"]


def default_result(gives: str, term: DType) -> DType:
    """The default output dtype of an operator that ``gives`` results as its row says, for items of dtype ``term``."""
    if gives in ("bool", "index"):
        return DTYPES["bool" if gives == "bool" else "int64"]
    widens = gives == "widened" and term.kind in ("bool", "int")  # as in torch.cumsum and torch.cumprod
    return DTYPES["int64"] if widens else kept_result(term)
