"""A spec on the command line: by its short name, or field by field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from scanops.codegen.spec import ScanSpec

__all__ = ["spec_options", "specs_of"]

F = TypeVar("F", bound=Callable[..., Any])

_NEEDED = ("op", "dtype", "length")
_LAYOUT = "dense (default), rows, columns, transposed or strided."
# In the order of --help. The names of parameters are those of ScanSpec's fields after this prefix, which keeps them
# apart from a command's own.
_PREFIX = "spec_"
_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--op", "op"), {"metavar": "NAME", "help": "Operator: sum, prod, max, linear ..."}),
    (("--dtype", "dtype"), {"metavar": "DTYPE", "help": "Of the input: float32, bf16 ..."}),
    (("--length", "length"), {"type": int, "help": "Items in a scanned line."}),
    (
        ("--any-length", "any_length"),
        {"is_flag": True, "default": None, "help": "The length is an argument of the kernel, in place of --length."},
    ),
    (("--at-most", "at_most"), {"type": int, "help": "With --any-length: the longest line."}),
    (("--multiple", "multiple"), {"type": int, "help": "With --any-length: lengths are multiples of this."}),
    (("--mask", "mask"), {"metavar": "DTYPE", "help": "bool selects, a numeric dtype multiplies."}),
    (("--gate", "gate"), {"metavar": "DTYPE", "help": "Of the gates, with --op linear."}),
    (("--saved", "saved"), {"metavar": "DTYPE", "help": "Of what a forward scan kept, with the --op of a gradient."}),
    (
        ("--again", "again"),
        {"is_flag": True, "default": None, "help": "In a gradient: what came before items is found in the tile."},
    ),
    (
        ("--segments", "segments"),
        {"metavar": "HOW", "help": "flags: a bool operand restarts the scan; int32 or int64: offsets do."},
    ),
    (("--reverse", "reverse"), {"is_flag": True, "default": None, "help": "Scan from the last item to the first."}),
    (("--exclusive", "exclusive"), {"is_flag": True, "default": None, "help": "Leave item i out of result i."}),
    (("--initial", "initial"), {"is_flag": True, "default": None, "help": "Lines go on from results carried in."}),
    (("--final", "final"), {"is_flag": True, "default": None, "help": "What goes on from each line is carried out."}),
    (("--inner", "inner"), {"type": int, "help": "Lines side by side in memory; 1: the last dimension is scanned."}),
    (("--out-dtype", "out_dtype"), {"metavar": "DTYPE", "help": "Of the output, where it is not torch's default."}),
    (
        ("--accumulate", "accumulate"),
        {"metavar": "DTYPE", "help": "What to compute in: a wider dtype, or compensated."},
    ),
    *(
        ((f"--{name}-layout", f"{name}_layout"), {"metavar": "LAYOUT", "help": _LAYOUT})
        for name in ("input", "mask", "gate", "starts")
    ),
    (
        ("--unaligned", "aligned"),
        {"flag_value": False, "type": bool, "default": None, "help": "Not on 16-byte boundaries."},
    ),
    (("--few", "lines"), {"flag_value": "few", "default": None, "help": "Fewer lines than fill a GPU."}),
)
_FLAGS = {field: flag for (flag, field), _ in _OPTIONS}


def spec_options(command: F) -> F:
    """Give a command an option for each field of a spec."""
    for (flag, field), settings in reversed(_OPTIONS):
        command = click.option(flag, _PREFIX + field, **settings)(command)
    return command


def specs_of(slugs: Sequence[str], options: Mapping[str, str | int | bool | None]) -> list[ScanSpec]:
    """The specs of these short names, or the one that the options of ``spec_options`` describe."""
    fields: dict[str, Any] = {name.removeprefix(_PREFIX): value for name, value in options.items() if value is not None}
    if slugs and fields:
        raise click.UsageError(f"SPEC says it all: leave out {_flags(fields)}, or leave out SPEC.")
    if slugs:
        return [ScanSpec.parse(slug) for slug in slugs]
    if fields.pop("any_length", False):
        if "length" in fields:
            raise click.UsageError("--any-length and --length do not go together.")
        fields["length"] = None
    missing = [name for name in _NEEDED if name not in fields]
    if missing:
        raise click.UsageError(f"Name a kernel: a SPEC such as sum-f32-n32768, or {_flags(missing)}.")
    return [ScanSpec(**fields)]


def _flags(fields: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(_FLAGS[name] for name in fields)
