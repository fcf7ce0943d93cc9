"""Short names of specs: usable in file names, and parsed back to the same spec. docs/short-names.md has the grammar."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from scanops.codegen.dtypes import default_result, dtype_named
from scanops.codegen.operator import COMPENSATED
from scanops.errors import UnsupportedRequest, did_you_mean

if TYPE_CHECKING:
    from scanops.codegen.spec import ScanSpec

__all__ = ["LAYOUTS", "LINE", "WORDS", "Layout", "fields_of", "slug_of"]

Layout = Literal["dense", "rows", "columns", "transposed", "strided", "line"]
LAYOUTS: tuple[Layout, ...] = ("dense", "rows", "columns", "transposed", "strided")  # of any operand
LINE: Layout = "line"  # of a mask, a gate or head flags: one item for the whole line
ANY = "any"  # the length is an argument

# The field and the value that a suffix stands for.
WORDS: dict[str, tuple[str, object]] = {
    "segments": ("segments", "flags"),
    "offsets_i32": ("segments", "int32"),
    "offsets_i64": ("segments", "int64"),
    "reverse": ("reverse", True),
    "exclusive": ("exclusive", True),
    "initial": ("initial", True),
    "final": ("final", True),
    "again": ("again", True),
    **{layout: ("input_layout", layout) for layout in LAYOUTS[1:]},
    **{
        f"{layout}_{name}": (f"{name}_layout", layout)
        for name in ("mask", "gate", "starts")
        for layout in (*LAYOUTS[1:], LINE)
    },
    "unaligned": ("aligned", False),
}
PREFIXES = {
    "n": "length",
    "le": "at_most",
    "by": "multiple",
    "inner": "inner",
    "out_": "out_dtype",
    "acc_": "accumulate",
    "mask_": "mask",
    "gate_": "gate",
    "saved_": "saved",
}


def slug_of(spec: ScanSpec) -> str:
    """Return the short name of a spec: operator, dtype and length, then every field that is not at its default."""
    parts = [spec.op, spec.input.tag, ANY if spec.takes_length else f"n{spec.length}"]
    parts += [f"le{spec.at_most}"] if spec.at_most else []
    parts += [f"by{spec.multiple}"] if spec.multiple != 1 else []
    parts += [f"inner{spec.inner}"] if spec.inner != 1 else []
    parts += [f"out_{spec.out.tag}"] if spec.out != default_result(spec.operator.gives, spec.term) else []
    compensated = spec.accumulate == COMPENSATED
    parts += [f"acc_{COMPENSATED if compensated else spec.accumulator.tag}"] if spec.accumulate else []
    parts += [f"mask_{dtype_named(spec.mask).tag}"] if spec.mask else []
    parts += [f"gate_{dtype_named(spec.gate).tag}"] if spec.gate else []
    parts += [f"saved_{dtype_named(spec.saved).tag}"] if spec.saved else []
    parts += [word for word, (name, value) in WORDS.items() if getattr(spec, name) == value]
    return "-".join(parts)


def fields_of(slug: str) -> dict[str, Any]:
    """Return the fields that a short name gives. Raises UnsupportedRequest for an invalid name."""
    if not isinstance(slug, str):
        raise _unreadable(slug, "")
    if "few" in slug.split("-"):  # of earlier versions
        raise UnsupportedRequest(
            f"invalid scan spec {slug!r}",
            allowed="a short name, which says nothing of the number of lines",
            value="'few'",
            hint=f"write {slug.replace('-few', '')}, and lines=N or --lines N where a kernel is planned for N lines",
        )
    op, *words = slug.split("-")
    values: dict[str, Any] = {"op": op}
    name: str
    value: object
    for position, word in enumerate(words):
        found = re.fullmatch(r"(n|le|by|inner)(0|[1-9][0-9]{0,18})|(out_|acc_|mask_|gate_|saved_)([a-z0-9]+)", word)
        if position == 0:
            name, value = "dtype", word
        elif word == ANY:
            name, value = "length", None
        elif word in WORDS:
            name, value = WORDS[word]
        elif found:
            name, value = PREFIXES[found[1] or found[3]], int(found[2]) if found[2] else found[4]
        else:
            raise _unreadable(slug, word)
        if name in values:
            raise _unreadable(slug, word)  # a field given twice
        values[name] = value
    if "length" not in values:
        raise _unreadable(slug, "")
    return values


def _unreadable(slug: str, word: str) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"invalid scan spec {slug!r}",
        allowed="OP-DTYPE-nLENGTH or OP-DTYPE-any[-leLENGTH][-byITEMS], then any of innerK, out_DTYPE, acc_DTYPE, "
        f"acc_{COMPENSATED}, mask_DTYPE, gate_DTYPE, saved_DTYPE, " + ", ".join(WORDS),
        value=repr(word) if word else f"neither nLENGTH nor {ANY}",
        hint=did_you_mean(word, WORDS) + "write sum-f32-n32768-mask_b8-reverse, for example",
    )
