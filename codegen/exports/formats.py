"""The formats of exported files, and what each of them can hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scanops.codegen.exports.launcher import Unit, unit_of
from scanops.codegen.exports.module import Module, module_of
from scanops.codegen.source import environment
from scanops.codegen.spec import ScanSpec, check_spec
from scanops.codegen.targets import DEFAULT_TARGET
from scanops.errors import UnsupportedRequest

__all__ = ["FORMATS", "Format", "export"]

# Fields in which the kernels of one file may differ.
ALIKE = ("length", "at_most", "multiple", "inner", "mask", "aligned")
KERNELBENCH_DTYPES = ("float32", "float16", "bfloat16")  # the evaluator casts every tensor to one of these
KERNELBENCH_LINES = 32768  # of the example inputs
PRIVATE = re.compile(r"(?:@.+\n)?def (_\w+)\(")  # begins a helper of an exported file

Rules = Iterator[tuple[bool, str]]  # whether specs break a rule, and what the rule allows


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of exported files."""

    suffix: str  # of the file name
    says: str  # a description in a phrase
    rules: Callable[[tuple[ScanSpec, ...]], Rules]  # of the specs that it can hold


def export(
    specs: ScanSpec | Sequence[ScanSpec],
    format: str = "modelnew",
    target: str = DEFAULT_TARGET,
    *,
    lines: int | None = None,
) -> str:
    """Return a file that computes ``specs`` without scanops: it needs torch, or CUDA alone.

    Args:
        specs: one spec; for a Python file also several that differ only in length, ``inner``, ``aligned`` and the
            dtype of the mask: each call uses the first kernel that matches its tensors.
        format: ``"modelnew"``, a ``torch.nn.Module`` around ``load_inline``; ``"cu"``, CUDA with a plain C launcher;
            ``"kernelbench"``, a file for KernelBench; ``"gpumode"``, a submission to GPU MODE's prefix sum boards.
        target: the oldest architecture that runs the file, such as ``"sm_70"``.
        lines: the number of lines that the kernels are planned for, by default as many as fill the GPU. They serve any.

    Returns:
        The text, the same bytes on every machine.

    Raises:
        UnsupportedRequest: unknown format or target, or a spec that the format cannot express.

    Example:
        >>> text = export(ScanSpec(op="prod", dtype="float32", length=32768))
        >>> "class ModelNew(torch.nn.Module)" in text
        True
    """
    listed: tuple[Any, ...] = tuple(specs) if isinstance(specs, list | tuple) else (specs,)
    for spec in listed:
        check_spec(spec)
    row = FORMATS.get(format) if isinstance(format, str) else None
    if row is None:
        raise UnsupportedRequest(
            f"an export in the format {format!r}",
            allowed=", ".join(FORMATS),
            value=repr(format),
            hint="name one of the formats above",
        )
    if not listed:
        raise UnsupportedRequest(
            "an export of no spec", allowed="one spec or more", value="none", hint="pass the spec of a kernel"
        )
    for broken, allowed in row.rules(listed):
        if broken:
            raise _unfit(listed[0], format, allowed, ", ".join(spec.describe() for spec in listed))
    planned = "" if lines is None else f" --lines {lines}"
    command = f"scanops export {' '.join(spec.slug for spec in listed)} --format {format} --target {target}{planned}"
    held = _with_either_mask(listed) if format == "kernelbench" else listed
    units = tuple(unit_of(spec, target, lines, takes_stream=format != "gpumode") for spec in held)
    if row.suffix == ".cu":
        return environment().get_template("exports/kernel.cu.j2").render(unit=units[0], command=command)
    _check_alike(units)
    text = _python(module_of(units, format, command, KERNELBENCH_LINES))
    if format == "gpumode" and "stream" in text.lower():
        allowed = "a text without the word stream, which the server refuses anywhere"
        raise _unfit(listed[0], format, allowed, "an operator with the word in its name or expressions")
    return text


def _python(file: Module) -> str:
    """Return a Python file. It has no private function that nothing in it calls: those are for other specs."""
    text = environment().get_template("exports/scan.py.j2").render(file=file)
    head, mark, kernels = text.partition("\n\n\nSOURCE_1 = ")
    blocks, left = head.split("\n\n\n"), [""]
    while len(left) != len(blocks):
        left, names = blocks, re.findall(r"\b_\w+", "\n".join(blocks))
        blocks = [block for block in left if not (found := PRIVATE.match(block)) or names.count(found[1]) > 1]
    return "\n\n\n".join(blocks) + mark + kernels


def _check_alike(units: Sequence[Unit]) -> None:
    """Raise UnsupportedRequest for kernels that one function cannot launch."""
    first, fields = units[0], units[0].spec.to_dict()
    for unit in units[1:]:
        apart = [name for name, value in unit.spec.to_dict().items() if value != fields[name] and name not in ALIKE]
        if apart:
            allowed, value = f"specs that differ in {', '.join(ALIKE)} alone", f"they differ in {', '.join(apart)}"
        elif unit.signature != first.signature:
            allowed = "kernels whose launchers take the same arguments"
            value = f"({', '.join(unit.signature)}) beside ({', '.join(first.signature)})"
        else:
            continue
        raise UnsupportedRequest(
            f"one file of {first.spec} and {unit.spec}",
            allowed=allowed,
            value=value,
            hint="export them to a file each",
        )


def _with_either_mask(specs: tuple[ScanSpec, ...]) -> tuple[ScanSpec, ...]:
    """Return each masked spec with either mask: KernelBench draws bools, which its evaluator casts to the precision."""
    both = [replace(spec, mask=mask) if spec.mask else spec for spec in specs for mask in ("bool", spec.dtype)]
    return tuple(dict.fromkeys(both))


def _any(specs: tuple[ScanSpec, ...]) -> Rules:
    yield from ()


def _one(specs: tuple[ScanSpec, ...]) -> Rules:
    yield len(specs) > 1, "one: every kernel has a launcher of the same name"


def _kernelbench(specs: tuple[ScanSpec, ...]) -> Rules:
    first = specs[0]
    dtypes = {source.dtype.name for source in first.sources if source.name != "mask"}
    yield first.segments is not None, "no segments: the evaluator casts flags and offsets"
    yield not dtypes <= set(KERNELBENCH_DTYPES), f"operands of {', '.join(KERNELBENCH_DTYPES)}"
    yield first.initial, "lines without a carry-in"
    yield first.final or first.indexed, "one result: the evaluator compares a single tensor"
    yield first.input_layout == "transposed", "contiguous operands, as the evaluator's are"


def _gpumode(specs: tuple[ScanSpec, ...]) -> Rules:
    first = specs[0]
    yield not first.alone or first.by_offsets or first.initial, "one input"
    yield first.final or first.indexed, "one output"
    yield first.inner > 1 or first.strided, "one dimension, contiguous"


def _unfit(spec: ScanSpec, format: str, allowed: str, value: str) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"the scan {spec} in the format {format}",
        allowed=allowed,
        value=value,
        hint="export it with --format modelnew, which takes any spec",
    )


FORMATS: dict[str, Format] = {
    "modelnew": Format(suffix=".py", says="a torch.nn.Module that builds its CUDA with load_inline", rules=_any),
    "cu": Format(suffix=".cu", says="CUDA with a plain C launcher", rules=_one),
    "kernelbench": Format(suffix=".py", says="a file for KernelBench", rules=_kernelbench),
    "gpumode": Format(suffix=".py", says="a submission to GPU MODE's prefix sum boards", rules=_gpumode),
}
