"""The dtype table: names, C types in memory and in registers, accumulator types, conversions.

Integer arithmetic uses the unsigned type of the same width, because signed overflow is undefined in C++ and torch's
integers wrap around; comparisons use a type of the dtype's own signedness. Half types and 8-bit floats are stored as
bits and computed in float; 8-bit floats are inputs only, because a running sum soon exceeds their range. Complex types
are a struct of two reals (stages/complex.cuh.j2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from math import copysign, inf, isfinite, isnan
from typing import Any, Literal, NamedTuple

from scanops.errors import UnsupportedRequest, did_you_mean, format_value


def late_field() -> Any:
    """Return a field of a frozen dataclass that follows from the others: ``set_derived`` gives it its value."""
    return field(init=False, repr=False, compare=False)


def set_derived(row: object, **values: object) -> None:
    """Set fields of a frozen dataclass in its ``__post_init__``."""
    for name, value in values.items():
        object.__setattr__(row, name, value)


Kind = Literal["bool", "int", "float", "complex"]


class FloatFormat(NamedTuple):
    """The numbers of a floating dtype."""

    digits: int  # bits of the significand, the implicit one included
    least: int  # exponent of the least normal number
    highest: float  # the greatest finite number
    has_infinity: bool = True


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
    format: FloatFormat | None = None  # of floating dtypes
    accumulator: str = late_field()  # C type it is scanned in, unsigned for integers
    ordered: str = late_field()  # C type it is scanned in by operators that compare
    lowest: int | float = late_field()  # the least value, -inf for floating dtypes; of complex dtypes, of the real part
    highest: int | float = late_field()  # the greatest value

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
          rounded="half_to_float(float_to_half((float)({x})))", format=FloatFormat(11, -14, 65504.0)),
    DType(name="bfloat16", tag="bf16", kind="float", bytes=2, storage="unsigned short", value="float",
          read="bfloat_to_float({x})", write="float_to_bfloat({x})",
          rounded="bfloat_to_float(float_to_bfloat((float)({x})))",
          format=FloatFormat(8, -126, (2 - 2**-7) * 2.0**127)),
    *(DType(name=f"float8_{tag}", tag=tag, kind="float", bytes=1, storage="unsigned char", value="float",
            promotes_with=(), read=f"{tag}_to_float({{x}})", stored=False, format=format)
      for tag, format in (("e4m3fn", FloatFormat(4, -6, 448.0, False)), ("e5m2", FloatFormat(3, -14, 57344.0)),
                          ("e4m3fnuz", FloatFormat(4, -7, 240.0, False)),
                          ("e5m2fnuz", FloatFormat(3, -15, 57344.0, False)))),
    DType(name="float32", tag="f32", kind="float", bytes=4, storage="float",
          format=FloatFormat(24, -126, (2 - 2**-23) * 2.0**127)),
    DType(name="float64", tag="f64", kind="float", bytes=8, storage="double",
          format=FloatFormat(53, -1022, (2 - 2**-52) * 2.0**1023)),
    DType(name="complex64", tag="c64", kind="complex", bytes=8, storage="Complex<float>", parts=(".re", ".im"),
          rounded="complex_of<float>({x})"),
    DType(name="complex128", tag="c128", kind="complex", bytes=16, storage="Complex<double>", parts=(".re", ".im"),
          rounded="complex_of<double>({x})"),
)  # fmt: skip

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


def part_of(dtype: DType) -> DType:
    """The dtype of each part of a complex dtype; any other dtype itself."""
    return {"complex64": DTYPES["float32"], "complex128": DTYPES["float64"]}.get(dtype.name, dtype)


def number_in(value: complex, dtype: DType, role: str = "a number") -> Any:
    """Return a Python number as a bool, int, float or complex number of ``dtype``. ``role`` names it in the error.

    Raises UnsupportedRequest for a number that the dtype does not hold: floats may round, and nothing else changes.
    """
    part = part_of(dtype)
    if dtype.kind == "complex" and isinstance(value, complex):
        return complex(number_in(value.real, part, role), number_in(value.imag, part, role))
    if isinstance(value, bool | int | float):
        if part.format is not None:
            *_, highest, has_infinity = part.format
            if -highest <= value <= highest or value != value or (has_infinity and value in (inf, -inf)):
                return float(value)
        elif dtype.lowest <= value <= dtype.highest and value == int(value):
            return bool(value) if dtype.kind == "bool" else int(value)
    if part.format is None:
        allowed = "True and False" if dtype.kind == "bool" else f"integers from {dtype.lowest} to {dtype.highest}"
    else:
        also = ", inf and nan" if part.format.has_infinity else " and nan"
        allowed = f"numbers from {-part.format.highest:.5g} to {part.format.highest:.5g}{also}"
    raise UnsupportedRequest(
        f"{dtype.name} does not hold {role}",
        allowed=allowed,
        value=format_value(value),
        hint="pass a number of that range, or compute in a dtype that holds it",
    )


def convert_number(value: float, dtype: DType) -> Any:
    """Return a real number converted to ``dtype`` as a cast in C++ does: integers wrap around, fractions are dropped.

    Raises UnsupportedRequest where the result of such a cast is undefined.
    """
    if dtype.kind == "bool":
        return bool(value)
    if dtype.kind == "int":
        if isinstance(value, int):
            size = 2 ** (8 * dtype.bytes)
            return (int(value) - int(dtype.lowest)) % size + int(dtype.lowest)
        return number_in(float(int(value)) if isfinite(value) else value, dtype)
    if dtype.format is not None and isfinite(value) and abs(value) > dtype.format.highest:
        return copysign(inf, value)
    return float(value)


def literal(value: complex, dtype: DType) -> str:
    """Return a number as a C++ expression of type ``dtype.value``, rounded to ``dtype``. Kernels define ``infinity()``.

    Raises UnsupportedRequest for a number that the dtype does not hold.
    """
    number = number_in(value, dtype)
    if dtype.kind == "complex":
        whole = complex(number)
        return f"{dtype.value}{{{literal(whole.real, part_of(dtype))}, {literal(whole.imag, part_of(dtype))}}}"
    if dtype.kind == "bool":
        return str(number).lower()
    if dtype.kind == "int":
        signed = dtype.lowest < 0
        suffix = ("LL" if signed else "ULL") if dtype.bytes == 8 else "U" if number >= 2**31 else ""
        # The least signed value has no literal: its magnitude exceeds the type by one.
        lone = dtype.bytes >= 4 and signed and number == dtype.lowest
        return f"({number + 1}{suffix} - 1)" if lone else f"{number}{suffix}"
    single = dtype.value == "float"
    if not isfinite(number):
        text = "NAN" if isnan(number) else "infinity()" if number > 0 else "-infinity()"
        return text if single else f"(double){text}"
    return f"{_shortest(nearest(number, dtype))}f" if single else repr(number)


def nearest(number: float | Fraction, dtype: DType) -> float:
    """The number of a floating dtype that is nearest to one in its range; of two the even one."""
    assert dtype.format is not None
    digits, least, *_ = dtype.format
    exact = Fraction(number)
    if not exact:
        return float(number)
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent  # 2^exponent <= size < 2^(exponent + 1)
    step = Fraction(2) ** (max(exponent, least) - digits + 1)
    return copysign(float(round(exact / step) * step), number)


def _shortest(number: float) -> str:
    """The shortest decimal that is this float32."""
    row = DTYPES["float32"]
    texts = (repr(float(f"{number:.{digits}g}")) for digits in range(1, 10))
    return next(text for text in texts if nearest(Fraction(text), row) == number)


def numbers_of(start: Any, out: DType) -> Any:
    """Replace the words in a number, a word or a tuple of these by the bounds of dtype ``out``."""
    if isinstance(start, tuple):
        return tuple(numbers_of(part, out) for part in start)
    return BOUNDS[start](out) if isinstance(start, str) else start


def accumulator_of(dtype: DType) -> DType:
    """The dtype whose C type ``dtype`` is scanned in: float32 for half types, an unsigned type for integers."""
    return next((row for row in _ROWS if row.storage == dtype.accumulator), dtype)


def result_dtype_of(term: DType) -> DType:
    """The result dtype that keeps ``term``: float32 for 8-bit floats, which no result has."""
    return term if term.stored else DTYPES["float32"]


def default_result(gives: str, term: DType) -> DType:
    """The default output dtype of an operator that ``gives`` results as its row says, for items of dtype ``term``."""
    if gives == "bool":
        return DTYPES["bool"]
    widens = gives == "widened" and term.kind in ("bool", "int")  # as in torch.cumsum and torch.cumprod
    return DTYPES["int64"] if widens else result_dtype_of(term)
