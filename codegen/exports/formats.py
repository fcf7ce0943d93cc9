"""The formats of exported files, and what each of them can hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scanops.codegen.exports.module import ALIKE, Module
from scanops.codegen.exports.page import Page, page_of
from scanops.codegen.source import environment
from scanops.codegen.spec import ScanSpec, check_spec
from scanops.codegen.targets import DEFAULT_TARGET
from scanops.errors import UnsupportedRequest

__all__ = ["FORMATS", "Format", "export"]

KERNELBENCH_DTYPES = ("float32", "float16", "bfloat16")  # the evaluator casts every tensor to one of these
KERNELBENCH_LINES = 32768  # of the example inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of exported files."""

    suffix: str  # of the file name
    says: str  # a description in a phrase
    write: Callable[[tuple[ScanSpec, ...], str, int | None, str], str]  # (specs, target, lines, command) -> text


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
        >>> "class ModelNew(nn.Module)" in text
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
    words = " ".join(spec.slug for spec in listed)
    planned = "" if lines is None else f" --lines {lines}"
    return row.write(listed, target, lines, f"scanops export {words} --format {format} --target {target}{planned}")


def _cu(specs: tuple[ScanSpec, ...], target: str, lines: int | None, command: str) -> str:
    if len(specs) > 1:
        raise UnsupportedRequest(
            "several kernels in one .cu",
            allowed="one: every kernel has a launcher of the same name",
            value=", ".join(spec.slug for spec in specs),
            hint="export them to a file each",
        )
    template = environment().get_template("exports/kernel.cu.j2")
    return template.render(kernel=page_of(specs[0], target, lines), command=command)


def _modelnew(specs: tuple[ScanSpec, ...], target: str, lines: int | None, command: str) -> str:
    return _python("modelnew", Module(pages=_pages(specs, target, lines), command=command))


def _kernelbench(specs: tuple[ScanSpec, ...], target: str, lines: int | None, command: str) -> str:
    first = specs[0]
    listed = [source.dtype.name for source in first.sources if source.name != "mask"]
    _refuse(
        "KernelBench",
        first,
        (
            (first.segments is not None, "no segments: the evaluator casts flags and offsets"),
            (not set(listed) <= set(KERNELBENCH_DTYPES), "operands of " + ", ".join(KERNELBENCH_DTYPES)),
            (first.initial, "lines without a carry-in"),
            (first.final or first.indexed, "one result: the evaluator compares a single tensor"),
            (first.input_layout == "transposed", "contiguous operands, as the evaluator's are"),
        ),
    )
    both = tuple(each for spec in specs for each in _either_mask(spec))
    length = first.length or first.capacity
    shape = (length, first.inner) if first.inner > 1 else (KERNELBENCH_LINES, length)
    return _python("kernelbench", Module(pages=_pages(both, target, lines), command=command, shape=shape))


def _either_mask(spec: ScanSpec) -> tuple[ScanSpec, ...]:
    """Return the spec with either mask: KernelBench draws a bool mask, which its evaluator casts to the precision."""
    if spec.mask is None:
        return (spec,)
    return tuple(replace(spec, mask=mask) for mask in ("bool", spec.dtype))


def _gpumode(specs: tuple[ScanSpec, ...], target: str, lines: int | None, command: str) -> str:
    first = specs[0]
    _refuse(
        "GPU MODE's prefix sum",
        first,
        (
            (
                len(first.sources) > 1 or first.by_offsets or first.initial,
                "one input",
            ),
            (first.final or first.indexed, "one output"),
            (first.inner > 1 or first.strided, "one dimension, contiguous"),
        ),
    )
    text = _python(
        "gpumode",
        Module(
            pages=_pages(specs, target, lines, takes_stream=False), command=command, takes_stream=False, has_out=True
        ),
    )
    if "stream" in text.lower():
        raise UnsupportedRequest(
            f"the scan {first} in a file for GPU MODE",
            allowed="a text without the word stream, which its server refuses anywhere",
            value="an operator with the word in its name or expressions",
            hint="rename it",
        )
    return text


def _pages(specs: tuple[ScanSpec, ...], target: str, lines: int | None, takes_stream: bool = True) -> tuple[Page, ...]:
    first = specs[0].to_dict()
    for spec in specs[1:]:
        apart = [name for name, value in spec.to_dict().items() if value != first[name] and name not in ALIKE]
        if apart:
            raise UnsupportedRequest(
                f"one file of {specs[0]} and {spec}",
                allowed=f"specs that differ in {', '.join(ALIKE)} alone",
                value=f"they differ in {', '.join(apart)}",
                hint="export them to a file each",
            )
    pages = tuple(page_of(spec, target, lines, takes_stream=takes_stream) for spec in specs)
    for page in pages[1:]:
        if page.signature != pages[0].signature:
            raise UnsupportedRequest(
                f"one file of {pages[0].spec} and {page.spec}",
                allowed="kernels whose launchers take the same arguments",
                value=f"({page.signature}) beside ({pages[0].signature})",
                hint="export them to a file each",
            )
    return pages


def _python(format: str, module: Module) -> str:
    return environment().get_template(f"exports/{format}.py.j2").render(file=module)


def _refuse(what: str, spec: ScanSpec, rules: tuple[tuple[bool, str], ...]) -> None:
    """Raise UnsupportedRequest for the first broken rule."""
    for broken, allowed in rules:
        if broken:
            raise UnsupportedRequest(
                f"the scan {spec} in a file for {what}",
                allowed=allowed,
                value=spec.describe(),
                hint="export it with --format modelnew, which takes any spec",
            )


FORMATS: dict[str, Format] = {
    "modelnew": Format(suffix=".py", says="a torch.nn.Module that builds its CUDA with load_inline", write=_modelnew),
    "cu": Format(suffix=".cu", says="CUDA with a plain C launcher", write=_cu),
    "kernelbench": Format(suffix=".py", says="a file for KernelBench", write=_kernelbench),
    "gpumode": Format(suffix=".py", says="a submission to GPU MODE's prefix sum boards", write=_gpumode),
}
