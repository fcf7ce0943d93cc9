"""Specs on the command line: by short name or field by field, with ``--import`` for operators of one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from scanops.codegen.spec import ScanSpec
from scanops.environment import AUTO, BUILDERS
from scanops.specfile import import_modules

__all__ = ["LINES", "builder_option", "import_option", "spec_options", "specs_of"]

LINES = "Lines of the tensor to plan for; by default as many as fill the GPU."

F = TypeVar("F", bound=Callable[..., Any])

_NEEDED = ("op", "dtype", "length")
_LAYOUT = "dense (default), rows, columns, transposed or strided."
_SPREAD = f"{_LAYOUT} Or line: one item for the whole line."
# In the order of --help. The names of parameters are those of ScanSpec's fields after this prefix, which keeps them
# apart from a command's own.
_PREFIX = "spec_"
_WORD = {"metavar": "DTYPE"}
_SWITCH = {"is_flag": True, "default": None}
_OPTIONS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("--op", "op", {"metavar": "NAME"}, "Operator: sum, prod, max, linear ..."),
    ("--dtype", "dtype", _WORD, "Of the input: float32, bf16 ..."),
    ("--length", "length", {"type": int}, "Items in a line, the scanned sequence."),
    ("--any-length", "any_length", _SWITCH, "The length is an argument of the kernel; replaces --length."),
    ("--at-most", "at_most", {"type": int}, "With --any-length: the longest line."),
    ("--multiple", "multiple", {"type": int}, "With --any-length: lengths are multiples of this."),
    ("--mask", "mask", _WORD, "bool selects, a numeric dtype multiplies."),
    ("--gate", "gate", _WORD, "Of the gates, with --op linear."),
    ("--saved", "saved", _WORD, "Of the saved tensor of a forward scan, with the --op of a gradient."),
    ("--saved-results", "saved_results", _SWITCH, "The saved tensor holds results, not those before each item."),
    ("--segments", "segments", {"metavar": "HOW"}, "flags: bool head flags; int32 or int64: offsets of that dtype."),
    ("--reverse", "reverse", _SWITCH, "Scan from the last item to the first."),
    ("--exclusive", "exclusive", _SWITCH, "Exclusive scan: result i leaves out item i."),
    (
        "--complete",
        "complete",
        _SWITCH,
        "With --exclusive: a last result includes every item; the length counts results.",
    ),
    ("--initial", "initial", _SWITCH, "With a carry-in, the state that enters each line."),
    ("--final", "final", _SWITCH, "With a carry-out, the final state of each line."),
    ("--per-segment", "per_segment", _SWITCH, "With carries of the segments that offsets give, not of lines."),
    ("--inner", "inner", {"type": int}, "Adjacent columns: the stride of the scanned dimension; 1: contiguous."),
    ("--out-dtype", "out_dtype", _WORD, "Of the output, where it is not the one that torch gives."),
    ("--accumulate", "accumulate", _WORD, "Accumulator: a wider dtype, or compensated (Kahan summation)."),
    ("--input-layout", "input_layout", {"metavar": "LAYOUT"}, _LAYOUT),
    *((f"--{name}-layout", f"{name}_layout", {"metavar": "LAYOUT"}, _SPREAD) for name in ("mask", "gate", "starts")),
    ("--unaligned", "aligned", {"flag_value": False, "type": bool, "default": None}, "Not on 16-byte boundaries."),
)
_FLAGS = {field: flag for flag, field, *_ in _OPTIONS}


def spec_options(command: F) -> F:
    """Give a command an option for each field of a spec, and ``--import``."""
    command = import_option(command)
    for flag, field, settings, meaning in reversed(_OPTIONS):
        command = click.option(flag, _PREFIX + field, help=meaning, **settings)(command)
    return command


def builder_option(command: F) -> F:
    """Give a command ``--builder``: who builds kernels for GPUs."""
    meaning = "Who builds for GPUs; nvrtc makes cubins. By default SCANOPS_BUILDER, else the first that works here."
    return click.option("--builder", type=click.Choice(BUILDERS), default=AUTO, help=meaning)(command)


def import_option(command: F) -> F:
    """Give a command ``--import MODULE``: the module is imported and its operators registered before specs are read."""
    return click.option(
        "--import",
        metavar="MODULE",
        multiple=True,
        is_eager=True,
        expose_value=False,
        callback=lambda context, option, names: import_modules(names),
        help="Import a module that defines operators, before specs are read; may be repeated.",
    )(command)


def specs_of(slugs: Sequence[str], options: Mapping[str, str | int | bool | None]) -> list[ScanSpec]:
    """Return the specs of these short names, or the spec that the options of ``spec_options`` describe."""
    fields: dict[str, Any] = {name.removeprefix(_PREFIX): value for name, value in options.items() if value is not None}
    if slugs and fields:
        raise click.UsageError(f"SPEC names every field: leave out {_flags(fields)}, or leave out SPEC.")
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
