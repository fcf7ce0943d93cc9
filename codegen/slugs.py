"""Short names of specs: usable in file names, and parsed back to the same spec. docs/short-names.md has the grammar."""

from __future__ import annotations

import re
from typing import Any

from scanops.codegen.fusion.fusion import text_named
from scanops.codegen.layouts import LAYOUTS, LINE, STEP
from scanops.codegen.operator import COMPENSATED
from scanops.errors import UnsupportedRequest, did_you_mean

ANY = "any"  # the length is an argument

# The field and the value that a suffix stands for.
WORDS: dict[str, tuple[str, object]] = {
    "segments": ("segments", "flags"),
    "offsets_i32": ("segments", "int32"),
    "offsets_i64": ("segments", "int64"),
    "chunked": ("chunked", True),
    "ragged_i32": ("ragged", "int32"),
    "ragged_i64": ("ragged", "int64"),
    "reverse": ("reverse", True),
    "exclusive": ("exclusive", True),
    "complete": ("complete", True),
    "initial": ("initial", True),
    "final": ("final", True),
    "totals": ("totals", True),
    "per_segment": ("per_segment", True),
    "linked": ("linked", True),
    "results_saved": ("saved_results", True),
    "initial_saved": ("saved_initial", True),
    **{layout: ("input_layout", layout) for layout in LAYOUTS[1:]},
    **{
        f"{layout}_{name}": (f"{name}_layout", layout)
        for name in ("mask", "gate", "starts")
        for layout in (*LAYOUTS[1:], LINE, STEP)
    },
    "saves": ("saves", True),
    "unaligned": ("aligned", False),
}
# The field that a suffix with a value stands for.
PREFIXES = {
    "n": "length",
    "le": "at_most",
    "by": "multiple",
    "inner": "inner",
    "states": "states",
    "sums": "line_sums",
    "out_": "out_dtype",
    "acc_": "accumulate",
    "mask_": "mask",
    "gate_": "gate",
    "saved_": "saved",
    "grad_": "gradient",
}
VALUED = re.compile(r"(n|le|by|inner|states|sums)(0|[1-9][0-9]{0,18})|(out_|acc_|mask_|gate_|saved_|grad_)([a-z0-9]+)")
MAP = "map_"  # with a digest of expressions, known where these are
ABSENT = {
    "multiple": 1,
    "inner": 1,
    "states": 0,
    "gradient": "",
    "line_sums": 0,
}  # values that have no suffix, beside None


def fields_of(slug: str, map: str = "") -> dict[str, Any]:
    """Return the fields that a short name gives, and the text of its expressions. Raises UnsupportedRequest."""
    if not isinstance(slug, str):
        raise _unreadable(slug, "")
    op, _, rest = slug.partition("-")
    dtype, *words = rest.split("-")
    values: dict[str, Any] = {"op": op, "dtype": dtype}
    for word in words:
        name, value = WORDS.get(word, ("", None)) if word != ANY else ("length", None)
        if word.startswith(MAP):
            name, value = "map", text_named(word.removeprefix(MAP), map)
        elif found := VALUED.fullmatch(word):
            name, value = PREFIXES[found[1] or found[3]], int(found[2]) if found[2] else found[4]
        if not name or name in values:  # no field, or one given twice
            raise _unreadable(slug, word)
        values[name] = value
    if "length" not in values:
        raise _unreadable(slug, "")
    return values


def _unreadable(slug: str, word: str) -> UnsupportedRequest:
    hint = did_you_mean(word, WORDS) + "write sum-f32-n32768-mask_b8-reverse, for example"
    if word == "few":  # of earlier versions
        hint = f"write {slug.replace('-few', '')}, and lines=N or --lines N where a kernel is planned for N lines"
    return UnsupportedRequest(
        f"invalid scan spec {slug!r}",
        allowed="OP-DTYPE-nLENGTH or OP-DTYPE-any[-leLENGTH][-byITEMS], then any of innerK, out_DTYPE, acc_DTYPE, "
        f"acc_{COMPENSATED}, mask_DTYPE, gate_DTYPE, saved_DTYPE, " + ", ".join(WORDS),
        value=repr(word) if word else f"neither nLENGTH nor {ANY}",
        hint=hint,
    )
