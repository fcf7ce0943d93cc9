"""Refusals of ``ScanSpec``: what no kernel supports, with what is allowed and what to do instead.

The constructor of a ``ScanSpec`` runs these checks, so that this module cannot import its type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from scanops.codegen.derivatives import longest_recomputed
from scanops.codegen.dtypes import DTYPES, DType, accumulator_of, default_result, dtype_named
from scanops.codegen.layouts import LAYOUTS, LINE, STEP
from scanops.codegen.operator import COMPENSATED
from scanops.codegen.operators import Operator
from scanops.errors import UnsupportedRequest, format_value

MAX_LENGTH = 2**31
"""Maximum number of items in a line. Offsets inside a row are 32-bit where they fit, offsets of rows always 64-bit."""

LEGAL: dict[str, tuple[object, ...]] = {
    "segments": (None, "flags", "int32", "int64"),  # head flags, or the dtype of offsets
    "ragged": (None, "int32", "int64"),
    "input_layout": LAYOUTS,
    **dict.fromkeys(("mask_layout", "gate_layout", "starts_layout"), (*LAYOUTS, LINE, STEP)),
    **dict.fromkeys(
        (
            "reverse",
            "exclusive",
            "complete",
            "initial",
            "final",
            "totals",
            "per_segment",
            "chunked",
            "aligned",
            "saved_results",
            "linked",
            "saved_initial",
            "saves",
        ),
        (True, False),
    ),
}
MOST_STATES = 256  # of a line, which outputs are sums over
WHOLE = {  # numbers from 1 to MAX_LENGTH, with a hint
    "length": "split the tensor along the scanned dimension",
    "at_most": "leave at_most out, for any length",
    "multiple": "leave multiple out, for any length",
    "inner": "scan slices of the trailing dimensions",
}

SpecMistake = tuple[str, str, str, str]  # what is wrong, what is allowed, the offending value, a hint


def refuse(spec: Any, mistakes: Iterator[SpecMistake]) -> None:
    """Raise UnsupportedRequest for the first mistake in a spec."""
    for what, allowed, value, hint in mistakes:
        raise UnsupportedRequest(f"{spec.op}: {what}", allowed=allowed, value=value, hint=hint)


def in_fields(spec: Any, row: Operator) -> Iterator[SpecMistake]:
    """Yield what is wrong with the fields that a spec was given: values, then those that do not go together."""

    def told(*names: str) -> str:
        return ", ".join(f"{name}={format_value(getattr(spec, name))}" for name in names)

    for name, legal in LEGAL.items():
        value = getattr(spec, name)
        if not any(type(value) is type(each) and value == each for each in legal):
            listed = " or ".join(map(repr, legal))
            yield f"{name} must be {listed}", listed, told(name), f"pass one of these as {name}"
    for name, hint in WHOLE.items():
        value, allowed = getattr(spec, name), f"an integer from 1 to {MAX_LENGTH}"
        absent = value is None and name in ("length", "at_most")
        if not absent and not (type(value) is int and 1 <= value <= MAX_LENGTH):
            small = not isinstance(value, int) or value < 1
            yield f"{name} must be {allowed}", allowed, told(name), f"pass {name}=1 or more" if small else hint
    for name, default in (("at_most", None), ("multiple", 1)):
        if spec.length is not None and getattr(spec, name) != default:
            allowed = f"{name} with length=None, for a variable-length kernel"
            yield f"{name} needs length=None", allowed, told("length", name), f"pass length=None, or leave {name} out"
    present = {"input": True, "mask": spec.mask, "gate": spec.gate, "starts": spec.segments == "flags"}
    for operand, given in present.items():
        name = f"{operand}_layout"
        if not given and getattr(spec, name) != "dense":
            allowed = ", ".join(f"{each}_layout" for each, given in present.items() if given)
            hint = f"leave {name} out, or add the operand: mask, gate, or segments='flags'"
            yield f"{name} must be 'dense' without the operand {operand}", allowed, told(name), hint
        if spec.inner == 1 and (layout := getattr(spec, name)) in ("columns", STEP):
            hint = "pass strided, or rows if the items of a line are contiguous"
            yield (
                f"{name}={layout!r} needs inner above 1",
                "inner above 1, or another layout",
                told("inner", name),
                hint,
            )
    if row.gated != (
        len(spec.fusion.elements) > 1 if spec.fusion and not spec.fusion.fields else spec.gate is not None
    ):
        what = "a gate dtype is required" if row.gated else "the operator has no gate"
        hint = "pass the gate's dtype as gate" if row.gated else "leave gate out"
        yield what, "a gate for operators whose lift reads one, and for no other", told("op", "gate"), hint
    kinds = {"": (), "value": ("float", "complex"), "place": ("int",)}[row.saved]
    if dtype_named(spec.saved).kind not in kinds if spec.saved else kinds and len(row.before) < 2:
        allowed = f"a dtype of kind {' or '.join(kinds)}" if kinds else "None"
        hint = "pass the dtype of the saved tensor" if kinds else "leave saved out"
        yield f"saved must be {allowed}", allowed, told("op", "saved"), hint
    if spec.mask is not None and dtype_named(spec.mask).kind == "int" and not row.integer_masks:
        allowed = "a bool mask, which selects, or a floating or complex one, which multiplies; integers for sums alone"
        hint = "pass mask.bool(), which selects; to multiply, scan x * mask"
        yield "mask must not hold integers", allowed, f"mask.dtype=torch.{spec.mask}", hint
    if row.masked and spec.mask not in (None, "bool"):
        yield "mask must be bool", "a bool mask, or none", told("mask"), "multiply the items, and their gradient"
    if spec.complete:
        near = tuple(f"{name}_layout" for name, given in present.items() if given)
        apart = {"transposed", *(("dense",) if spec.inner > 1 else ())}  # batches of results are longer than of items
        alone = spec.exclusive and not (spec.segments or spec.saved or spec.final)
        if not (alone and apart.isdisjoint(getattr(spec, name) for name in near)):
            allowed = "exclusive=True without segments, saved tensor and carry-out, and layouts of operands "
            allowed += "with one item less"
            hint = "pass layouts columns, strided or line; the last output is the carry-out"
            value = told("exclusive", "segments", "saved", "final", *near)
            yield "complete=True does not fit the other fields", allowed, value, hint
    if spec.per_segment and (spec.segments in (None, "flags") or not (spec.initial or spec.final)):
        allowed = "carries per segment beside offsets, with initial or final"
        hint = "leave per_segment out, or pass segments='int32' or 'int64' and initial or final"
        yield (
            "per_segment needs offsets and carries",
            allowed,
            told("per_segment", "segments", "initial", "final"),
            hint,
        )
    if spec.chunked and (spec.segments in (None, "flags") or spec.per_segment):
        allowed = "chunks of segments that offsets give, without carries per segment"
        hint = "pass segments='int32' or 'int64', and leave per_segment out"
        yield "chunked needs offsets", allowed, told("chunked", "segments", "per_segment"), hint
    if type(spec.states) is not int or not 0 <= spec.states <= MOST_STATES:
        allowed = f"an integer from 0 to {MOST_STATES}"
        yield f"states must be {allowed}", allowed, told("states"), "split the summed dimension"
    if spec.states and (spec.length is not None or spec.exclusive or not spec.fusion or spec.op != "linear"):
        allowed = "op='linear' with map, length=None, and inclusive results"
        yield (
            "states do not fit the other fields",
            allowed,
            told("op", "length", "exclusive", "map"),
            "leave states out",
        )
    if (spec.saves or spec.gradient) and not spec.states:
        yield "saves and gradient need states", "states of a recurrence", told("saves", "gradient"), "leave them out"
    if re.fullmatch("[01]*", str(spec.gradient)) is None:
        yield "gradient must be zeros and ones", "a 0 or 1 for each operand", told("gradient"), "leave it out"
    further = len(spec.fusion.outputs) - 1 if spec.fusion else int(bool(row.second))
    if type(spec.line_sums) is not int or not 0 <= spec.line_sums <= further:
        allowed = "a number of outputs after the first"
        yield f"line_sums must be {allowed}, 0 to {further}", allowed, told("line_sums"), "leave line_sums out"
    if spec.line_sums:
        lacking = ("complete", "totals", "ragged", "states")
        near = tuple(f"{name}_layout" for name, given in present.items() if given)
        turned = "transposed" in [getattr(spec, name) for name in near]
        if spec.inner == 1 or turned or any(getattr(spec, name) for name in lacking):
            allowed = "line_sums of columns (inner above 1) that are not transposed, without "
            allowed += "complete results, totals, chunks and states"
            value = told("line_sums", "inner", *lacking, *near)
            yield "line_sums do not fit the other fields", allowed, value, "leave line_sums out, and sum the outputs"
    if spec.totals:
        whole = ("exclusive", "segments", "initial", "complete", "ragged", "linked", "map")
        if not spec.final or row.fields[:2] != ("gate", "value") or any(getattr(spec, name) for name in whole):
            allowed = (
                "recurrences with final=True, without exclusive results, segments, carry-in, links and expressions"
            )
            value = told("op", "final", *whole)
            yield "totals=True does not fit the other fields", allowed, value, "leave totals out"
    if spec.ragged:
        others = ("inner", "segments", "saved", "complete", "initial", "final")
        found = {getattr(spec, f"{name}_layout") for name in present}
        plain = not any(getattr(spec, name) for name in others[1:]) and found <= {"dense", "columns", LINE}
        if spec.length is not None or spec.inner == 1 or row.places_items or not plain:
            value = told("op", "length", *others, *(f"{name}_layout" for name in present))
            allowed = "length=None and inner above 1, without segments, saved tensor, complete results, carries and "
            allowed += "indices, layouts dense, columns or line"
            yield "ragged lines do not fit the other fields", allowed, value, "pass segments in place of ragged"
    if spec.linked:
        unlinked = ("per_segment", "ragged", "complete", "map", "initial", "final")
        if any(getattr(spec, name) for name in unlinked) or row.indices or spec.segments not in (None, "flags"):
            allowed = (
                "an operator without indices, and segments by flags or none; kernels of linked lines take carries "
            )
            allowed += "without initial and final"
            value = told("op", "linked", "segments", *unlinked)
            yield "linked lines do not fit the other fields", allowed, value, "leave linked out"
    if spec.initial and not row.resumes:
        hint = "leave initial out, or give the operator a resume expression for each field of its state"
        yield "the operator takes no carry-in", "a carry-in for operators with `resume`", told("op", "initial"), hint


def accumulators(spec: Any, row: Operator) -> tuple[str | None, DType, DType]:
    """Return the accumulator by name, None if it is the default, its row, and the row of carries.

    Raises UnsupportedRequest for an accumulator that does not fit the output.
    """
    scanned = dtype_named(spec.fusion.scanned) if spec.fusion else spec.out
    default, accumulate, accumulator = accumulator_of(scanned), spec.accumulate, scanned
    if accumulate is not None:
        legal = [each for each in DTYPES.values() if each.stored and each.kind == default.kind in ("float", "complex")]
        legal = [each for each in legal if each.bytes >= default.bytes]
        words = [COMPENSATED] if spec.out.kind == "float" and COMPENSATED in row.forms else []
        found = next((each for each in legal if accumulate in (each.name, each.tag, f"torch.{each.name}")), None)
        if found is None and accumulate not in words:
            listed = ", ".join(map(repr, [*(each.name for each in legal), *words])) + ", or None for the first of these"
            raise UnsupportedRequest(
                f"{spec.op}: accumulate does not fit {spec.out_dtype} output",
                allowed=listed if legal else "None: integers wrap around identically in any width",
                value=f"accumulate={accumulate!r}",
                hint="leave accumulate out, or pass a wider dtype of the result's kind",
            )
        if found is not None:
            accumulate, accumulator = (None, scanned) if found == default else (found.name, found)
    carry = accumulator_of(accumulator) if accumulator.kind == "float" else accumulator
    if spec.totals:  # two numbers: what is accumulated in the parts of a complex one
        carry = DTYPES["complex64" if carry.bytes == DTYPES["float32"].bytes else "complex128"]
    return accumulate, accumulator, carry


def in_results(spec: Any, row: Operator) -> Iterator[SpecMistake]:
    """Yield why no kernel computes the results: their dtype, a forward scan that fits no tile, or indices."""
    kinds, default = " or ".join(row.kinds), default_result(row.gives, spec.term)
    if spec.line_sums:
        dtypes = {each.dtype for each in spec.fusion.outputs[-spec.line_sums :]} if spec.fusion else {spec.carry.name}
        if len(dtypes) > 1 or not dtypes <= {"float32", "float64"}:
            allowed = "outputs that are all computed in float32, or all in float64"
            value = f"line_sums={spec.line_sums} of {', '.join(sorted(dtypes))}"
            yield "the outputs cannot be summed over lines", allowed, value, "leave line_sums out, and sum the outputs"
    if not spec.out.stored:
        allowed = ", ".join(name for name, each in DTYPES.items() if each.stored and each.kind in row.kinds)
        hint = "leave dtype out, or pass float32 or a half type, and convert the result"
        yield "the output dtype is for inputs only", allowed, f"dtype={spec.out_dtype}", hint
    if spec.accumulator.kind not in row.kinds:
        hint = f"pass an input, or a dtype, of kind {kinds}"
        hint = f"leave dtype out: the default here is {default.name}" if default.kind in row.kinds else hint
        allowed = f"an output dtype of kind {kinds}"
        yield f"the output dtype must be of kind {kinds}", allowed, f"dtype={spec.out_dtype}", hint
    # The result before each item is found in one tile: dense, aligned rows.
    bytes_of_state = accumulator_of(spec.accumulator).bytes
    most = longest_recomputed(bytes_of_state, is_aligned=spec.divides(spec.access_items))
    whole = spec.aligned and spec.inner == 1 and spec.segments is None and spec.layouts == {"dense"}
    if spec.recomputes and not (whole and spec.capacity <= most):
        allowed = f"a gradient with `before`, of rows of at most {most} items without segments, aligned, dense"
        value = f"op={spec.op!r}, saved={spec.saved!r}, {spec.items_text} items, inner={spec.inner}, "
        value += f"segments={spec.segments!r}, layouts {', '.join(sorted(spec.layouts))}, aligned={spec.aligned}"
        hint = "pass the forward scan's results as the saved tensor, with saved_results=True"
        yield "no kernel recomputes the result before each item of this spec", allowed, value, hint
    if (spec.saved_results and not (spec.saved and row.before)) or (spec.saved_initial and not spec.saved_results):
        value = f"op={spec.op!r}, saved={spec.saved!r}, saved_results={spec.saved_results}, "
        value += f"saved_initial={spec.saved_initial}"
        hint = "leave both out, or pass the dtype of the saved results as saved"
        yield "saved_results needs results", "a gradient with `before`, and their dtype as saved", value, hint
