"""``scanops generate`` and ``scanops export``: the text of kernels, which needs neither a GPU nor a compiler."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import click

from scanops.cli.output import LINES, Answer, Command, FilePath, Spec, as_json, import_option, say
from scanops.codegen.exports.formats import FORMATS
from scanops.codegen.exports.formats import export as exported
from scanops.codegen.headers import inline_headers
from scanops.codegen.lines import key_for
from scanops.codegen.planner import plan_kernel
from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import DEFAULT_TARGET, target_named
from scanops.files import write_text

__all__ = ["export", "generate"]

_FORMATS = "; ".join(f"{name}: {says}" for name, says in FORMATS.items())


@click.command(
    "generate",
    cls=Command,
    example="scanops generate sum-f32-n32768-mask_b8-reverse --target sm_90\n"
    "scanops generate linear-bf16-any-le8192-gate_bf16-offsets_i32-initial",
)
@click.argument("spec", metavar="SPEC", type=Spec())
@click.option("--target", default=DEFAULT_TARGET, show_default=True, help="GPU architecture to plan for.")
@click.option("--lines", type=int, help=LINES)
@click.option("-o", "--output", type=FilePath(), help="Write the source to this file.")
@import_option
def generate(spec: ScanSpec, target: str, lines: int | None, output: Path | None) -> Answer:
    """Print the CUDA source of a kernel.

    SPEC is a spec's short name, as kernels have it in their first lines. The text needs neither a GPU nor a compiler
    and is the same on every machine.
    """
    plan = plan_kernel(key_for(spec, target_named(target).name, lines))
    source = inline_headers(render(plan))
    numbers = {
        "summary": plan.describe(),
        "why": plan.why,
        "origin": plan.origin,
        "strategy": plan.strategy,
        **plan.numbers(),
    }
    facts = {
        "spec": spec.to_dict(),
        "slug": spec.slug,
        "target": plan.target.name,
        "few": plan.key.is_few,
        "plan": numbers,
    }
    return _deliver(source, "source", output, facts)


@click.command(
    "export",
    cls=Command,
    example="scanops export prod-f32-n32768 -o model_new.py\n"
    "scanops export prod-f32-n1024 prod-f32-n1024-inner1024 -o cumprod_any_dim.py\n"
    "scanops export sum-f32-n32768-mask_b8 --format kernelbench --target sm_80 -o model_new.py\n"
    "scanops export sum-f32-any-le1073741824 --lines 1 --format gpumode -o submission.py",
)
@click.argument("specs", metavar="SPEC...", type=Spec(), nargs=-1, required=True)
@click.option("--format", "form", metavar="FORMAT", default="modelnew", show_default=True, help=f"{_FORMATS}.")
@click.option("--target", default=DEFAULT_TARGET, show_default=True, help="The oldest GPU architecture it is for.")
@click.option("--lines", type=int, help=LINES)
@click.option("-o", "--output", type=FilePath(), help="Write to this file.")
@import_option
def export(specs: tuple[ScanSpec, ...], form: str, target: str, lines: int | None, output: Path | None) -> Answer:
    """Write a kernel as a file that needs no scanops.

    The file holds the kernel and what launches it, and needs torch, or CUDA alone. SPEC is a spec's short name. Several
    specs go into one Python file, which uses the first that matches the tensors of a call. Needs neither a GPU nor a
    compiler.
    """
    text = exported(list(specs), form, target, lines=lines)
    facts = {"specs": [spec.slug for spec in specs], "format": form, "target": target}
    return _deliver(text, "text", output, facts)


def _deliver(text: str, name: str, output: Path | None, facts: Mapping[str, object]) -> Answer:
    """Write ``text`` to the file, if one is named, else print it. With --json it is part of the answer."""
    if output is not None:
        write_text(output, text, f"the {name} to {output}")
    if not as_json():
        if output is not None:
            say(f"wrote {output}", stderr=True)
        else:
            click.echo(text, nl=False)
    return Answer({**facts, name: text, "sha256": hashlib.sha256(text.encode()).hexdigest()})
