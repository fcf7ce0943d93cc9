"""Refusals of ``ScanSpec``: what no kernel supports, with what is allowed and what to do instead."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scanops.codegen.dtypes import DTYPES, DType, accumulator_of, default_result, dtype_named, kept_result
from scanops.codegen.operator import COMPENSATED, Operator
from scanops.codegen.slugs import LAYOUTS, LINE
from scanops.errors import UnsupportedRequest

if TYPE_CHECKING:
    from scanops.codegen.spec import ScanSpec

__all__ = [
    "AGAIN_LENGTHS",
    "MAX_LENGTH",
    "check_again",
    "check_fields",
    "check_indices",
    "check_operands",
    "check_output",
    "named_accumulator",
]

MAX_LENGTH = 2**31
"""Maximum number of items in a line. Offsets inside a row are 32-bit where they fit, offsets of rows always 64-bit."""

SEGMENTS = (None, "flags", "int32", "int64")  # head flags, or the dtype of offsets
FLAGS = ("reverse", "exclusive", "initial", "final", "aligned", "again")
# Bytes of the accumulator, and the longest row that a block scans twice in its registers; half of it for misaligned
# rows.
AGAIN_LENGTHS = {4: 4096, 8: 2048}
# Three mistakes with ``i``, the index along the line, would give wrong results silently, and are refused instead.
# Elements converted to an integer output dtype before they are compared; an index kept in a field of the accumulator's
# type, where float32 is exact only up to 2^24; and an index written to an output dtype that cannot hold it.
EXACT = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24, "complex64": 2**24}  # else at least 2^53 or ``highest``
CAST = r"(?:(?:\(\s*[A-Za-z_][\w ]*\)|static_cast\s*<[^>]*>|Value|\()\s*)*"  # casts and opening brackets
# i itself as the value of an expression: alone, cast, in brackets, or as a branch of a conditional.
YIELDS_INDEX = re.compile(rf"(?:^|[?:])\s*{CAST}i[\s)]*(?:$|:)")


def check_operands(spec: ScanSpec, operator: Operator) -> None:
    """Raise UnsupportedRequest unless the spec has the gate, the saved tensor and the mask that the operator reads."""
    _check_gate(spec, operator)
    _check_saved(spec, operator)
    if spec.segments is not None and spec.segments not in SEGMENTS:
        raise _not_among("segments", spec.segments, SEGMENTS)


def check_output(spec: ScanSpec, operator: Operator) -> None:
    """Raise UnsupportedRequest unless results of the operator may have the output dtype."""
    if not spec.out.stored:
        raise UnsupportedRequest(
            f"{spec.op}: the output dtype is for inputs only",
            allowed=", ".join(name for name, row in DTYPES.items() if row.stored and row.kind in operator.kinds),
            value=f"dtype={spec.out_dtype}",
            hint="leave dtype out, or pass float32 or a half type, and convert the result",
        )
    if operator.gives != "index" and spec.out.kind not in operator.kinds:
        raise UnsupportedRequest(
            f"{spec.op}: the output dtype must be of kind {' or '.join(operator.kinds)}",
            allowed=f"an output dtype of kind {' or '.join(operator.kinds)}",
            value=f"dtype={spec.out_dtype}",
            hint=_hint_of_kinds(operator, default_result(operator.gives, spec.term)),
        )


def check_fields(spec: ScanSpec, operator: Operator) -> None:
    """Raise UnsupportedRequest unless lengths, layouts and flags have values that they may have together."""
    for flag in FLAGS:
        if not isinstance(getattr(spec, flag), bool):
            raise _not_among(flag, getattr(spec, flag), (True, False))
    _check_range("multiple", spec.multiple, MAX_LENGTH, "leave multiple out, for any length")
    if spec.at_most is not None:
        _check_range("at_most", spec.at_most, MAX_LENGTH, "leave at_most out, for any length")
    if spec.length is not None:
        _check_range("length", spec.length, MAX_LENGTH, "split the tensor along the scanned dimension")
        _check_fixed(spec)
    _check_range("inner", spec.inner, MAX_LENGTH, "scan slices of the trailing dimensions")
    for name in ("input", "mask", "gate", "starts"):
        if getattr(spec, f"{name}_layout") != "dense":
            _check_layout(spec, name, f"{name}_layout")
    if spec.initial and not operator.resumes:
        raise UnsupportedRequest(
            f"{spec.op}: the operator takes no carry-in",
            allowed="a carry-in for operators with `resume`",
            value=f"op={spec.op!r}, initial={spec.initial!r}",
            hint="leave initial out, or give the operator a resume expression for each field of its state",
        )


def named_accumulator(spec: ScanSpec, operator: Operator) -> str | None:
    """Return the requested accumulator by name, None if it is the default, or raise UnsupportedRequest."""
    if spec.accumulate is None:
        return None
    default = accumulator_of(kept_result(spec.term) if operator.gives == "index" else spec.out)
    legal = [row.name for row in DTYPES.values() if _is_accumulator(row, default)]
    words = [COMPENSATED] if spec.out.kind == "float" and COMPENSATED in operator.forms else []
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


def _check_saved(spec: ScanSpec, operator: Operator) -> None:
    """Raise UnsupportedRequest unless the saved tensor and the mask are those that the gradient reads."""
    kinds = {"": (), "value": ("float", "complex"), "place": ("int",)}[operator.saved]
    if spec.again and any(operator.before):
        kinds = ()
    fits = dtype_named(spec.saved).kind in kinds if spec.saved else not kinds
    if not fits:
        raise UnsupportedRequest(
            f"{spec.op}: saved must be {'a dtype of kind ' + ' or '.join(kinds) if kinds else 'None'}",
            allowed=f"a dtype of kind {' or '.join(kinds)}" if kinds else "none",
            value=f"op={spec.op!r}, saved={spec.saved!r}",
            hint="pass the dtype of the saved tensor" if kinds else "leave saved out",
        )
    if operator.masked and spec.mask not in (None, "bool"):
        raise UnsupportedRequest(
            f"{spec.op}: mask must be bool",
            allowed="a bool mask, or none",
            value=f"mask={spec.mask!r}",
            hint="multiply the items, and their gradient",
        )


def check_again(spec: ScanSpec) -> None:
    """Raise UnsupportedRequest unless the forward scan can be recomputed in one tile: dense, aligned rows."""
    most = AGAIN_LENGTHS.get(accumulator_of(spec.accumulator).bytes, 0) // (1 if spec.divides(spec.access_items) else 2)
    whole = spec.aligned and spec.inner == 1 and spec.segments is None and spec.layouts == {"dense"}
    if not (whole and spec.operator.before and spec.capacity <= most):
        raise UnsupportedRequest(
            f"{spec.op}: again=True is not possible for this spec",
            allowed=f"a gradient with `before`, of rows of at most {most} items without segments, aligned, dense",
            value=f"op={spec.op!r}, {spec.items_text} items, inner={spec.inner}, segments={spec.segments!r}, "
            f"layouts {', '.join(sorted(spec.layouts))}, aligned={spec.aligned}",
            hint="compute the exclusive results first, and pass them as the saved tensor",
        )


def _index_fields(operator: Operator) -> tuple[str, ...]:
    """The state fields that hold an index: declared as one, or lifted from ``i`` itself."""
    rows = zip(operator.fields, operator.field_types, operator.lift, strict=True)
    return tuple(name for name, kind, text in rows if kind == "index" or YIELDS_INDEX.search(text))


def check_indices(spec: ScanSpec, operator: Operator) -> None:
    """Raise UnsupportedRequest if indices, or elements beside them, would be wrong in the results of ``spec``."""
    term, out, gives_index = spec.term, spec.out, operator.gives == "index"
    if gives_index and (term.kind not in operator.kinds or out.name not in ("int32", "int64")):
        raise UnsupportedRequest(
            f"{operator.name}: elements of dtype {term.name} and indices of dtype {out.name} are not supported",
            allowed=f"elements of kind {' or '.join(operator.kinds)}; indices of dtype int64 or int32",
            value=f"dtype={out.name}, elements {term.name}",
            hint="leave dtype out: the indices are int64",
        )
    if not gives_index and term.kind in ("float", "complex") and out.kind in ("int", "bool"):
        raise UnsupportedRequest(
            f"{operator.name}: elements of dtype {term.name} would be converted to the output dtype {out.name} "
            "before the scan",
            allowed="gives='index' for an operator whose output is an index: its elements keep their dtype",
            value=f"dtype={out.name}",
            hint=f"construct the operator with gives='index', or convert the elements first: x.to(torch.{out.name})",
        )
    last = spec.capacity - 1
    value = accumulator_of(spec.accumulator)
    for name, kind in zip(operator.fields, operator.field_types, strict=True):
        if kind == "value" and name in _index_fields(operator) and last > _exact(value):
            raise UnsupportedRequest(
                f"{operator.name}: the field {name!r} holds an index as {value.name}, exact only up to {_exact(value)}",
                allowed=f"a field of type 'index' for lines of up to {spec.capacity} elements",
                value=f"fields={operator.fields}, types={operator.field_types}",
                hint=f"construct the operator with places=({name!r},), or with types: 'index' for {name!r}",
            )
    if _projects_index(operator) and last > _exact(out):
        raise UnsupportedRequest(
            f"{operator.name}: the output dtype {out.name} holds indices only up to {_exact(out)}",
            allowed=f"an output dtype that holds every index of lines of up to {spec.capacity} elements",
            value=f"dtype={out.name}",
            hint="pass dtype=torch.int64"
            if gives_index
            else "construct the operator with gives='index': the output is int64 and the elements keep their dtype",
        )


def _exact(dtype: DType) -> int:
    """The largest n such that ``dtype`` holds every integer from 0 to n."""
    return EXACT.get(dtype.name) or (int(dtype.highest) if dtype.kind in ("int", "bool") else 2**53)


def _projects_index(operator: Operator) -> bool:
    """Whether the output is a state field that holds an index, up to casts and brackets."""
    found = _index_fields(operator)
    names = found and (("state",) if operator.field_types == ("value",) else tuple(f"state.{name}" for name in found))
    return any(re.fullmatch(rf"\s*{CAST}{re.escape(name)}[\s)]*", operator.project) for name in names)


def _check_gate(spec: ScanSpec, operator: Operator) -> None:
    if operator.gated != (spec.gate is not None):
        raise UnsupportedRequest(
            f"{spec.op}: {'a gate dtype is required' if operator.gated else 'the operator has no gate'}",
            allowed="a gate for operators whose lift reads one, and for no other",
            value=f"op={spec.op!r}, gate={spec.gate!r}",
            hint="pass the gate's dtype as gate" if operator.gated else "leave gate out",
        )


def _check_range(name: str, value: object, limit: int, hint: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise UnsupportedRequest(
            f"{name} must be an integer from 1 to {limit}",
            allowed=f"an integer from 1 to {limit}",
            value=f"{name}={value!r}",
            hint=hint,
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


def _check_layout(spec: ScanSpec, operand: str, name: str) -> None:
    layout = getattr(spec, name)
    layouts = LAYOUTS if operand == "input" else (*LAYOUTS, LINE)
    if not isinstance(layout, str) or layout not in layouts:
        raise _not_among(name, layout, layouts)
    present = ["input", *(each for each in ("mask", "gate", "saved") if getattr(spec, each))]
    present += ["starts"] if spec.segments == "flags" else []
    if operand not in present:
        raise UnsupportedRequest(
            f"{name} must be 'dense' without the operand {operand}",
            allowed=", ".join(f"{each}_layout" for each in present),
            value=f"{name}={layout!r}",
            hint=f"leave {name} out, or add the operand: mask, gate, or segments='flags'",
        )
    if spec.inner == 1 and layout == "columns":
        raise UnsupportedRequest(
            f"{name}='columns' needs inner above 1",
            allowed="the layout columns for inner above 1",
            value=f"inner={spec.inner}, {name}={layout!r}",
            hint="pass strided, or rows if the items of a line are contiguous",
        )


def _not_among(name: str, value: object, choices: tuple[object, ...]) -> UnsupportedRequest:
    listed = " or ".join(repr(choice) for choice in choices)
    return UnsupportedRequest(
        f"{name} must be {listed}",
        allowed=listed,
        value=f"{name}={value!r}",
        hint=f"pass one of these as {name}",
    )
