"""The C++ types and expressions of a spec: every text about dtypes and the operator that a template prints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from scanops.codegen.dtypes import FIELD_TYPES, DType, accumulator_of, dtype_named, literal, part_of
from scanops.codegen.operators import operator_named
from scanops.codegen.spec import ScanSpec

INT_BYTES = 4  # of a register, the least that a loaded item takes
DOUBLE_BYTES = 8
# By C type: the texts that are of this type without a cast
LITERALS = {"int": r"i|-?\d+", "long long": r"-?\d+LL", "float": r"-?[\d.]+(e[+-]?\d+)?f", "double": r"-?\d+\.\d+"}
CAST_OF_NAME = re.compile(r"\(([\w ]+)\)\((\w+)\)")  # (type)(name)


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
    begin: str  # w (Begin), the forward carry-in, -> Value: what stands before the first result of a line; or a number
    start: str  # the same of a segment, which takes no carry-in
    second: str  # state -> the second output, if it is no index
    final: str  # state -> Carry
    result: str  # state -> Output
    quick: str  # likewise, where the operator's condition for it holds; or empty
    halves: bool  # whether first result and carry-out are: functions of expressions are less exact
    calls: bool  # combine and result are called instead of inlined
    exchanged: tuple[str, ...]  # each part of the states `s`, exchanged by a function, or {} where it is not exchanged
    state_bytes: int  # size of one State
    held_bytes: int  # register bytes of one state; own fields are recomputed from loaded operands

    @property
    def inlining(self) -> str:
        """The qualifier of functions that are as costly as combine."""
        return "__noinline__" if self.calls else "__forceinline__"

    def state_of(self, expressions: tuple[str, ...]) -> str:
        """The state with these values of its fields."""
        return expressions[0] if self.scalar_state else self.group(*expressions)

    def exchange(self) -> str:
        """The state of the exchanged parts."""
        return self.exchanged[0] if self.parts == ("",) else self.group(*self.exchanged)

    @staticmethod
    def group(*expressions: str) -> str:
        """The value of a struct with these members."""
        return f"{{{', '.join(expressions)}}}"


@lru_cache(maxsize=128)  # a planner asks for those of one spec often
def fragments(spec: ScanSpec) -> Fragments:
    """Return the C++ text for ``spec``."""
    operator, out = spec.operator, spec.accumulator
    types = operator.field_types
    value = out.ordered if operator.ordered else out.accumulator
    # A single field of another type than the accumulator's is a struct's, so that State is not Value.
    scalar = types == ("value",)
    state, bounds = ("", []) if spec.segments is None else (".plain", [".bounds"])
    passed = [
        f"{state}{'' if scalar else f'.{name}'}{part}"
        for name, kind in zip(operator.passed, types, strict=False)
        for part in (out.parts if kind == "value" else ("",))
    ]
    parts = (*passed, *[None] * len(operator.own), *bounds)
    state_bytes = held_bytes = _state_bytes(spec, types)
    if spec.fusion and spec.fusion.fields:
        held_bytes = max(INT_BYTES, spec.fusion.held_bytes) + state_bytes // 8  # there are fewer prefixes than items
    elif operator.own and spec.fusion:
        held_bytes = spec.fusion.held_bytes + _state_bytes(spec, types[: len(operator.passed)])
    elif operator.own:
        loaded = sum(max(INT_BYTES, each.dtype.bytes) for each in spec.sources if each.pointer != "w")  # one for a line
        loaded += spec.carry.bytes if spec.recomputes else 0  # else it takes the place of what was saved
        held_bytes = max(loaded, _state_bytes(spec, types[: len(operator.passed)]))
    return Fragments(
        value=value,
        scalar_state=scalar,
        fields=tuple(
            ("Value" if kind == "value" else FIELD_TYPES[kind][0], name)
            for kind, name in zip(types, operator.fields, strict=True)
        ),
        parts=parts,
        exchanged=tuple("{}" if part is None else f"exchange(s{part}...)" for part in parts),
        lift=_as_fields(spec, value, operator.lift),
        resume=_as_fields(spec, value, operator.resumes),
        identity=_as_fields(spec, value, operator.identity),
        element=_element(spec, value),
        gate=_convert_operand("g", spec.gate, spec, value),
        saved="" if spec.recomputes else _read_saved(spec, value),
        begin=_begin(spec, value) if spec.saved_results else "",
        start=_start(spec) if spec.saved_results else "",
        second=(operator.second if spec.line_sums else _narrow(spec, spec.out, operator.second))
        if operator.second
        else "",
        final=_pair(spec) if spec.totals else _narrow(spec, spec.carry, operator.carried or operator.project),
        result=_narrow(spec, spec.out, operator.project),
        quick=_narrow(spec, spec.out, operator.quick[1]) if operator.quick else "",
        halves=spec.out.bytes < INT_BYTES and not spec.final,
        calls=operator.costly and out.bytes >= DOUBLE_BYTES,
        state_bytes=state_bytes,
        held_bytes=held_bytes,
    )


def _pair(spec: ScanSpec) -> str:
    """The value of a recurrence and the product of its gates: finite, so that times a carry of 0 it is 0."""
    most = "3.402823466e+38f" if spec.carry.name == "complex64" else "1.7976931348623157e+308"
    product = f"state.gate > {most} ? {most} : state.gate < -{most} ? -{most} : state.gate"
    return f"{spec.carry.storage}{{state.value, {product}}}"


def _state_bytes(spec: ScanSpec, types: tuple[str, ...]) -> int:
    of_value = max(spec.accumulator.bytes, INT_BYTES)
    sizes = [of_value if kind == "value" else FIELD_TYPES[kind][1] for kind in types]
    end = 0
    for size in (*sizes, max(sizes)):  # each field lies on a boundary of its own size, and so does the next state
        end = -(-end // size) * size + size
    plain = end - max(sizes)
    return plain if spec.segments is None else plain + max(sizes)  # INT_BYTES, and what keeps the boundary


def _narrow(spec: ScanSpec, to: DType, text: str) -> str:
    """A result converted from the accumulator to a dtype, then to its storage type."""
    if spec.accumulator != to:
        text = to.rounded.format(x=text) if to.kind == "complex" else f"({to.accumulator})({text})"
    return _plain(to.write.format(x=text))


def _as_fields(spec: ScanSpec, value: str, expressions: tuple[str, ...]) -> tuple[str, ...]:
    """Convert expressions to the types of the state's fields, with the bounds of the dtype substituted.

    The braces of a struct refuse narrowing conversions, and would take two numbers for the two parts of a complex one.
    """
    types, out = spec.operator.field_types, spec.accumulator
    bounds = {"lowest": literal(out.lowest, part_of(out)), "highest": literal(out.highest, part_of(out))}
    number = r"\d+" if value.startswith("unsigned") else r"-?\d+"
    texts = []
    for kind, text in zip(types, expressions, strict=False):  # no expression: the operator takes no carry-in
        bounded = re.sub(r"\b(?:lowest|highest)\b", lambda found: bounds[found[0]], text)
        if kind != "value":
            name = FIELD_TYPES[kind][0]
            fits = name in LITERALS and re.fullmatch(LITERALS[name], text) is not None
            texts.append(text if fits else _plain(f"({name})({bounded})"))
        elif out.kind == "complex":
            real = re.fullmatch(r"-?[\d.]+|-?infinity\(\)", bounded)
            whole = out.rounded.format(x=bounded) if text not in ("x", "g") else text
            texts.append(f"{{{bounded}, 0}}" if real else whole)
        else:
            fits = types == ("value",) or re.fullmatch(rf"x|g|{number}|lowest|highest", text) is not None
            texts.append(bounded if fits else _plain(f"(Value)({bounded})"))
    return tuple(texts)


def _convert_operand(item: str, dtype: str | None, spec: ScanSpec, value: str) -> str:
    """An operand beside the items, converted to the accumulator."""
    if dtype is None:
        return ""
    row = dtype_named(dtype)
    return _accumulate(row.read.format(x=item), row, spec, value)


def _read_saved(spec: ScanSpec, value: str) -> str:
    """An item of the saved tensor: a place in the line, or a value converted as other operands are."""
    return "(int)v" if spec.operator.saved == "place" else _convert_operand("v", spec.saved, spec, value)


def _begin(spec: ScanSpec, value: str) -> str:
    """What stands before the first result of a line: the forward scan's carry-in, or its start."""
    return _convert_operand("w", spec.carry.name, spec, value) if spec.saved_initial else _start(spec)


def _start(spec: ScanSpec) -> str:
    """The result before all items of the forward scan."""
    return str(operator_named(spec.operator.before[0]).start)


def _element(spec: ScanSpec, value: str) -> str:
    """Read, multiply by the numeric mask in the promoted dtype, convert to the accumulator: in torch's order.

    With a wider accumulator, items are converted to it and not to the output's dtype first. Products of half types stay
    in float: rounding them to half first, as ``x * mask`` does, would only lose bits.
    """
    term, text = spec.input, spec.input.read.format(x="x")
    if spec.weight:
        term = _widen(spec.term)
        left = _convert(text, spec.input, term)
        right = _convert(spec.weight.read.format(x="m"), spec.weight, term)
        if term.kind in ("float", "complex"):
            text = f"{left} * {right}"
        else:
            text = _plain(f"({term.value})(({term.accumulator})({left}) * ({term.accumulator})({right}))")
    return _accumulate(text, term, spec, value)


def _accumulate(text: str, source: DType, spec: ScanSpec, value: str) -> str:
    """A value converted to the dtype that is scanned in, then to the C type of the accumulator.

    Not by way of a half type of the results, which alone are rounded: a gate of 0.999 would become 1 in bfloat16.
    """
    to = _widen(spec.accumulator)
    text = _convert(text, source, to)
    return text if value == to.value else _plain(f"({value})({text})")


def _widen(dtype: DType) -> DType:
    """float32 for half types; any other dtype."""
    return accumulator_of(dtype) if dtype.kind == "float" else dtype


def _convert(text: str, source: DType, to: DType) -> str:
    if source.kind == "complex" and to.kind not in ("complex", "bool"):
        text = f"({text}).re"  # as torch does it; and as true as any number is one with any part
    exact = source == to or (source.value == to.value and to.storage == to.value)
    exact = exact or (source.kind == to.kind == "float" and source.bytes == 1)  # every other float holds them
    return text if exact else _plain(to.rounded.format(x=text, value=to.value))


def _plain(text: str) -> str:
    """An expression without the parentheses around a name that is cast."""
    return CAST_OF_NAME.sub(r"(\1)\2", text)
