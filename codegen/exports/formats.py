"""The formats of exported files, and what each of them can hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from scanops.codegen.exports.texts import python_text, units_of
from scanops.codegen.lines import key_for
from scanops.codegen.planner import plan_kernel
from scanops.codegen.source import environment
from scanops.codegen.spec import ScanSpec, spec_of
from scanops.codegen.targets import DEFAULT_TARGET, target_named
from scanops.errors import UnsupportedRequest

__all__ = ["FORMATS", "export"]

# Fields in which the kernels of one file may differ.
ALIKE = ("length", "at_most", "multiple", "inner", "mask", "aligned")
KERNELBENCH_DTYPES = ("float32", "float16", "bfloat16")  # the evaluator casts every tensor to one of these
FORMATS = {
    "modelnew": "a torch.nn.Module that builds its CUDA with load_inline",
    "cu": "CUDA with a plain C launcher",
    "kernelbench": "a file for KernelBench",
    "gpumode": "a submission to GPU MODE's prefix sum boards",
}


def export(
    specs: ScanSpec | str | Sequence[ScanSpec | str],
    format: str = "modelnew",
    target: str = DEFAULT_TARGET,
    *,
    lines: int | None = None,
) -> str:
    """Return a file that computes ``specs`` without scanops: it needs torch, or CUDA alone.

    Args:
        specs: a ScanSpec or its short name; for a Python file also several that differ only in length, ``inner``,
            ``aligned`` and the dtype of the mask: each call uses the first kernel that matches its tensors.
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
    listed = tuple(map(spec_of, specs if isinstance(specs, list | tuple) else (specs,)))
    if not isinstance(format, str) or format not in FORMATS:
        raise _refuse(f"an export in the format {format!r}", ", ".join(FORMATS), repr(format), "name one of these")
    if not listed:
        raise _refuse("an export of no spec", "one spec or more", "none", "pass the spec of a kernel")
    slugs = [spec.slug for spec in listed]
    asked = f"{slugs[0]} in the format {format}"
    for allowed, holds, hint in _rules(format, listed):
        if not holds:
            raise _refuse(asked, allowed, ", ".join(slugs), hint)
    planned = "" if lines is None else f" --lines {lines}"
    imported = " --import SPECS.toml" if any(spec.map for spec in listed) else ""
    command = f"scanops export {' '.join(slugs)} --format {format} --target {target}{planned}{imported}"
    if format == "kernelbench":  # draws bool masks, which the evaluator casts to the precision of the run
        masks = [replace(spec, mask=mask) if spec.mask else spec for spec in listed for mask in ("bool", spec.dtype)]
        listed = tuple(dict.fromkeys(masks))
    plans = [plan_kernel(key_for(spec, target_named(target).name, lines)) for spec in listed]
    units = units_of(plans, takes_stream=format != "gpumode")
    if format == "cu":
        return environment().get_template("exports/kernel.cu.j2").render(unit=units[0], command=command)
    text = python_text(units, format, command)
    if format == "gpumode" and "stream" in text.lower():
        allowed = "a text without the word stream, which the server refuses anywhere"
        hint = "rename the operator or its fields"
        raise _refuse(asked, allowed, "an operator with the word in its name or expressions", hint)
    return text


def _rules(format: str, specs: Sequence[ScanSpec]) -> Iterator[tuple[str, bool, str]]:
    """Yield what a file of a format can hold, whether ``specs`` keep to it, and what to do where they do not."""
    first = specs[0]
    kinds = [{**spec.to_dict(), **dict.fromkeys(ALIKE)} for spec in specs]
    contiguous = "export the scan of contiguous tensors, and pass x.contiguous()"
    yield "as many results as items", not first.complete, "export the inclusive scan, and pad its result"
    generate = f"print the kernel alone: scanops generate {first.slug}"
    yield "no carries of segments and no chunks of segments", not first.every_offset, generate
    yield "lines of one GPU", not first.linked, generate
    yield "no sum over lines", not (first.states or first.line_sums), generate
    yield "operands that are not transposed", "transposed" not in first.layouts, contiguous
    other = "use --format modelnew"
    if format == "cu":
        one = "one spec: every kernel has a launcher of the same name"
        yield one, len(specs) == 1, "export each to a file of its own, or use --format modelnew"
    if format == "kernelbench":
        dtypes = {source.dtype.name for source in first.sources if source.name != "mask"}
        yield "no segments: the evaluator casts flags and offsets", first.segments is None, other
        yield f"operands of {', '.join(KERNELBENCH_DTYPES)}", dtypes <= set(KERNELBENCH_DTYPES), other
        yield "lines without a carry-in", not first.initial, other
        yield "one result: the evaluator compares a single tensor", not (first.final or first.doubled), other
    if format == "gpumode":
        yield "one input", first.alone and not (first.by_offsets or first.initial), other
        yield "one output", not (first.final or first.doubled), other
        yield "one dimension", first.inner == 1, other
    if format in ("kernelbench", "gpumode"):
        yield "contiguous operands", not first.strided, contiguous
    alike = f"specs that differ in {', '.join(ALIKE)} alone"
    yield alike, kinds.count(kinds[0]) == len(kinds), "export each to a file of its own"


def _refuse(asked: str, allowed: str, value: str, hint: str) -> UnsupportedRequest:
    return UnsupportedRequest(asked, allowed=allowed, value=value, hint=hint)
