"""``scanops export``: a file that needs no scanops."""

from __future__ import annotations

from pathlib import Path

import click

from scanops.cli.generate import sha256, show
from scanops.cli.output import Command, FilePath, print_json
from scanops.cli.specs import spec_options, specs_of
from scanops.codegen.exports.formats import FORMATS, export
from scanops.codegen.targets import DEFAULT_TARGET
from scanops.files import write_text

__all__ = ["command"]

_FORMATS = "; ".join(f"{name}: {row.says}" for name, row in FORMATS.items())


@click.command(
    "export",
    cls=Command,
    example="scanops export prod-f32-n32768 -o model_new.py\n"
    "scanops export prod-f32-n1024 prod-f32-n1024-inner1024 -o cumprod_any_dim.py\n"
    "scanops export sum-f32-n32768-mask_b8 --format kernelbench --target sm_80 -o model_new.py\n"
    "scanops export sum-f32-any-le1073741824-few --format gpumode -o submission.py",
)
@click.argument("slugs", metavar="[SPEC]...", nargs=-1)
@click.option(
    "--format", "form", metavar="FORMAT", default="modelnew", show_default=True, help=f"What to write. {_FORMATS}."
)
@click.option("--target", default=DEFAULT_TARGET, show_default=True, help="The oldest GPU architecture it is for.")
@click.option("-o", "--output", type=FilePath(dash=True), help="Write it to this file.")
@spec_options
def command(
    slugs: tuple[str, ...],
    form: str,
    target: str,
    output: Path | None,
    as_json: bool,
    **options: str | int | bool | None,
) -> None:
    """Write a kernel and what launches it as one file, which needs torch, or CUDA alone, and no scanops.

    SPEC is a spec's short name; the options say the same, field by field. Several specs go into one file of Python,
    which takes the first that is for the tensors of a call. Needs neither a GPU nor a compiler.
    """
    specs = specs_of(slugs, options)
    text = export(specs, form, target)
    if output is not None:
        write_text(output, text, f"the export to {output}")
    if as_json:
        slugs_of = [spec.slug for spec in specs]
        print_json(
            {"ok": True, "specs": slugs_of, "format": form, "target": target, "text": text, "sha256": sha256(text)}
        )
    elif output is not None:
        click.echo(f"wrote {output}", err=True)
    else:
        show(text, "cuda" if FORMATS[form].suffix == ".cu" else "python")
