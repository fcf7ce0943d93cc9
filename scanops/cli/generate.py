"""``scanops generate``: print a kernel."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click
from rich.syntax import Syntax

from scanops.cli.output import Command, FilePath, console, print_json
from scanops.cli.specs import spec_options, specs_of
from scanops.codegen.plan import make_plan
from scanops.codegen.source import render
from scanops.codegen.strategies.base import Plan
from scanops.codegen.targets import DEFAULT_TARGET
from scanops.files import write_text

__all__ = ["command", "sha256", "show"]


@click.command(
    "generate",
    cls=Command,
    example="scanops generate sum-f32-n32768-mask_b8-reverse --target sm_90\n"
    "scanops generate --op sum --dtype float32 --length 32768 --mask bool --reverse\n"
    "scanops generate --op linear --dtype bf16 --gate bf16 --any-length --at-most 8192 --segments int32 --initial",
)
@click.argument("slug", metavar="[SPEC]", required=False)
@click.option("--target", default=DEFAULT_TARGET, show_default=True, help="GPU architecture to plan for.")
@click.option("-o", "--output", type=FilePath(dash=True), help="Write the source to this file.")
@spec_options
def command(
    slug: str | None, target: str, output: Path | None, as_json: bool, **options: str | int | bool | None
) -> None:
    """Print the CUDA source of a kernel.

    SPEC is a spec's short name, as kernels carry it in their banner; the options say the same, field by field. The
    text needs neither a GPU nor a compiler and is the same on every machine. It is coloured on a terminal only.
    """
    (spec,) = specs_of([slug] if slug is not None else [], options)
    plan = make_plan(spec, target)
    source = render(plan)
    if output is not None:
        write_text(output, source, f"the source to {output}")
    if as_json:
        print_json({"ok": True, **_described(plan), "source": source, "sha256": sha256(source)})
    elif output is not None:
        click.echo(f"wrote {output}", err=True)
    else:
        show(source)


def _described(plan: Plan) -> dict[str, object]:
    return {
        "spec": plan.spec.to_dict(),
        "slug": plan.spec.slug,
        "target": plan.target.name,
        "plan": {"summary": plan.describe(), "why": plan.why, "strategy": plan.strategy, **plan.numbers()},
    }


def sha256(source: str) -> str:
    """Of a text, in hex."""
    return hashlib.sha256(source.encode()).hexdigest()


def show(source: str, language: str = "cuda") -> None:
    """Print a text, in colours on a terminal."""
    screen = console()
    if screen.is_terminal:
        # Syntax by itself would cut lines at the edge and pad the others, which spoils a copy of the text.
        lexer = Syntax("", language, theme="ansi_dark", background_color="default")
        screen.print(lexer.highlight(source), soft_wrap=True, end="")
    else:
        click.echo(source, nl=False)
