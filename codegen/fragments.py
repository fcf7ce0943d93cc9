"""The C++ types and expressions of a spec: every text about dtypes and the operator that a template prints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from scanops.codegen.dtypes import DType, dtype_named, literal
from scanops.codegen.operator import FIELD_TYPES, Operator
from scanops.codegen.spec import ScanSpec

__all__ = ["Fragments", "fragments"]

INT_BYTES = 4  # of a register, the least that a loaded item takes
DOUBLE_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragments:
    """C++ text for one spec. Expressions use the names given in the comments."""

    value: str  # C type of the accumulator
    scalar_state: bool  # a state is a plain Value, not a struct
    fields: tuple[tuple[str, str], ...]  # (C type, name) of the state's fields
    parts: tuple[str | None, ...]  # C suffix of each part of a state that one shuffle moves; None: a part that is
    # not exchanged
    lift: tuple[str, ...]  # one expression for each field
    identity: tuple[str, ...]  # one constant for each field
    resume: tuple[str, ...]  # x (Value), a carry-in -> one expression for each field; or none
    element: str  # x (Input) and m (Mask) -> Value
    gate: str  # g (Gate) -> Value; empty without one
    saved: str  # v (Saved) -> Value, or int where it is a place; empty without one
    second: str  # state -> the second output, if it is no index
    final: str  # state -> Carry
    result: str  # state -> Output
    calls: bool  # combine and result are called instead of inlined
    state_bytes: int  # size of one State
    held_bytes: int  # register bytes of one state; own fields are recomputed from loaded operands


def fragments(spec: ScanSpec) -> Fragments:
    """Return the C++ text for ``spec``."""
    return _of_row(spec, spec.operator)


@lru_cache(maxsize=128)  # a planner asks for those of one spec a hundred times; by row, as a name may get another one
def _of_row(spec: ScanSpec, operator: Operator) -> Fragments:
    out = spec.accumulator
    return Fragments(
        value=_value(spec),
        scalar_state=_is_scalar(operator),
        fields=tuple(
            (_field_type(kind), name) for kind, name in zip(operator.field_types, operator.fields, strict=True)
        ),
        parts=_parts(spec),
        lift=_as_fields(spec, operator.lift),
        resume=_constants(spec, operator.resumes),
        identity=_constants(spec, operator.identity),
        element=_element(spec),
        gate=_converted("g", spec.gate, spec),
        saved="" if spec.again else "(int)v" if operator.saved == "place" else _converted("v", spec.saved, spec),
        second=_narrowed(spec, spec.out, operator.second) if operator.second else "",
        final=_narrowed(spec, spec.carry, operator.carried or operator.project),
        result=_narrowed(spec, spec.out, operator.project),
        calls=operator.costly and out.bytes >= DOUBLE_BYTES,
        state_bytes=_state_bytes(spec, operator.field_types),
        held_bytes=_held_bytes(spec),
    )


def _parts(spec: ScanSpec) -> tuple[str | None, ...]:
    operator, whole = spec.operator, spec.accumulator.parts
    passed = zip(operator.passed, operator.field_types, strict=False)
    parts = [f".{name}{part}" for name, kind in passed for part in (whole if kind == "value" else ("",))]
    plain = whole if _is_scalar(operator) else tuple(parts)
    own = (None,) * len(operator.own)
    return (*plain, *own) if spec.segments is None else (*(f".plain{part}" for part in plain), *own, ".bounds")


def _held_bytes(spec: ScanSpec) -> int:
    whole = _state_bytes(spec, spec.operator.field_types)
    loaded = sum(max(INT_BYTES, source.dtype.bytes) for source in spec.sources)
    loaded += spec.carry.bytes if spec.again and not spec.saved else 0  # else it takes the place of what was saved
    operator = spec.operator
    return max(loaded, _state_bytes(spec, operator.field_types[: len(operator.passed)])) if operator.own else whole


def _is_scalar(operator: Operator) -> bool:
    """Whether a state is a plain Value. A single field of another type is a struct's, so that State is not Value."""
    return operator.field_types == ("value",)


def _field_type(kind: str) -> str:
    """The C type of a state field of a type that ``Operator.types`` names."""
    return "Value" if kind == "value" else FIELD_TYPES[kind][0]


def _state_bytes(spec: ScanSpec, types: tuple[str, ...]) -> int:
    of_value = max(spec.accumulator.bytes, 4)
    sizes = [of_value if kind == "value" else FIELD_TYPES[kind][1] for kind in types]
    end = 0
    for size in (*sizes, max(sizes)):  # each field lies on a boundary of its own size, and so does the next state
        end = -(-end // size) * size + size
    plain = end - max(sizes)
    return plain if spec.segments is None else plain + max(sizes)  # INT_BYTES, and what keeps the boundary


def _value(spec: ScanSpec) -> str:
    return spec.accumulator.ordered if spec.operator.ordered else spec.accumulator.accumulator


def _narrowed(spec: ScanSpec, to: DType, text: str) -> str:
    """A result converted from the accumulator to a dtype, then to its storage type."""
    if spec.accumulator != to:
        text = to.rounded.format(x=text) if to.kind == "complex" else f"({to.accumulator})({text})"
    return to.write.format(x=text)


def _converted(item: str, dtype: str | None, spec: ScanSpec) -> str:
    """An operand converted to the accumulator. Half types are computed in float, so no rounding is needed."""
    if dtype is None:
        return ""
    row = dtype_named(dtype)
    text = row.read.format(x=item)
    if "complex" in (row.kind, spec.accumulator.kind):
        return _convert(text, row, spec.accumulator)
    return f"({_value(spec)})({text})"


def _as_fields(spec: ScanSpec, expressions: tuple[str, ...]) -> tuple[str, ...]:
    """Convert expressions to the types of the state's fields, as needed inside the braces of a struct.

    Braces refuse narrowing conversions, and would take two numbers for the two parts of a complex one.
    """
    operator, of_parts = spec.operator, spec.accumulator.kind == "complex"
    if not expressions or (_is_scalar(operator) and not of_parts):
        return expressions
    unsigned = _value(spec).startswith("unsigned")

    def converted(kind: str, text: str) -> str:
        if of_parts and kind == "value":
            return _complex(text, spec.accumulator)
        if kind == "value":
            fits = re.fullmatch(r"x|g|\d+|lowest|highest" if unsigned else r"x|g|-?\d+|lowest|highest", text)
        else:
            fits = re.fullmatch(r"i|-?\d+", text) if FIELD_TYPES[kind][0] == "int" else None
        return text if fits else f"({_field_type(kind)})({text})"

    return tuple(converted(*pair) for pair in zip(operator.field_types, expressions, strict=True))


def _complex(text: str, out: DType) -> str:
    if text in ("x", "g"):
        return text
    real = re.fullmatch(r"-?[\d.]+|-?infinity\(\)", text)
    return f"{{{text}, 0}}" if real else out.rounded.format(x=text)


def _constants(spec: ScanSpec, expressions: tuple[str, ...]) -> tuple[str, ...]:
    """Constants and carry-in expressions as fields, with the bounds of the dtype substituted."""
    out = spec.accumulator
    bounds = {"lowest": literal(out.lowest), "highest": literal(out.highest)}

    def bounded(text: str) -> str:
        return re.sub(r"\b(lowest|highest)\b", lambda found: bounds[found[0]], text)

    if out.kind == "complex":
        return _as_fields(spec, tuple(map(bounded, expressions)))
    return tuple(map(bounded, _as_fields(spec, expressions)))


def _element(spec: ScanSpec) -> str:
    """Read, multiply by the numeric mask in the promoted dtype, convert to the accumulator: in torch's order.

    With a wider accumulator, items are converted to it and not to the output's dtype first. Products of half types stay
    in float: rounding them to half first, as ``x * mask`` does, would only lose bits.
    """
    term, text = spec.input, spec.input.read.format(x="x")
    if spec.weight:
        left = _convert(text, spec.input, spec.term)
        right = _convert(spec.weight.read.format(x="m"), spec.weight, spec.term)
        term, text = spec.term, _product(left, right, spec.term)
    text = _convert(text, term, spec.accumulator)
    return text if _value(spec) == spec.accumulator.value else f"({_value(spec)})({text})"


def _convert(text: str, source: DType, to: DType) -> str:
    if source.kind == "complex" and to.kind not in ("complex", "bool"):
        text = f"({text}).re"  # as torch does it; and as true as any number is one with any part
    exact = source == to or (source.value == to.value and to.storage == to.value)
    return text if exact else to.rounded.format(x=text, value=to.value)


def _product(left: str, right: str, dtype: DType) -> str:
    if dtype.kind in ("float", "complex"):
        return f"{left} * {right}"
    return f"({dtype.value})(({dtype.accumulator})({left}) * ({dtype.accumulator})({right}))"
