"""``scanops build``: build kernels into the store."""

from __future__ import annotations

from dataclasses import asdict

import click

from scanops.artifact import CPU
from scanops.builders.toolchain import find_nvcc
from scanops.cli.output import (
    Command,
    error_fields,
    exit_code,
    print_errors,
    print_json,
    resources_text,
    say,
    working,
)
from scanops.cli.plan import gpu_target
from scanops.cli.specs import spec_options, specs_of
from scanops.codegen.plan import make_plan
from scanops.codegen.targets import DEFAULT_TARGET
from scanops.errors import BuildFailure
from scanops.precompile import Built, built
from scanops.processes import at_once, jobs_that_fit
from scanops.store.store import Store

__all__ = ["command"]


@click.command(
    "build",
    cls=Command,
    example="scanops build sum-f32-n32768-reverse prod-f32-n32768 --target sm_80 --target sm_90",
)
@click.argument("slugs", metavar="[SPEC]...", nargs=-1)
@click.option(
    "--target",
    "targets",
    multiple=True,
    help="Architecture to build for, or cpu for the emulator; may be repeated. By default that of the GPU here, "
    "else sm_90 if there is nvcc, else cpu.",
)
@spec_options
def command(
    slugs: tuple[str, ...], targets: tuple[str, ...], as_json: bool, **options: str | int | bool | None
) -> None:
    """Build kernels into the store.

    Kernels that the store or a pack has are not built again. SPEC is a spec's short name; the options after --target
    give the same field by field. To build for a GPU takes nvcc and no GPU.
    """
    specs = specs_of(slugs, options)
    wanted = list(dict.fromkeys((spec, target) for target in targets or (_usual_target(),) for spec in specs))
    for spec, target in wanted:  # a wrong request is reported before anything is built
        if target != CPU:
            make_plan(spec, target)
    what = f"{wanted[0][0]} for {wanted[0][1]}" if len(wanted) == 1 else f"{len(wanted)} kernels"
    with working(f"building {what}"):
        outcomes = at_once(lambda each: built(each, Store()), wanted, jobs_that_fit())
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if as_json:
        first = {"error": error_fields(errors[0])} if errors else {}
        print_json({"ok": not errors, **first, "kernels": [_fields(outcome) for outcome in outcomes]})
    else:
        for outcome in outcomes:
            _print(outcome)
        print_errors((outcome.name, outcome.error) for outcome in outcomes if outcome.error)
    click.get_current_context().exit(max(map(exit_code, errors), default=0))


def _usual_target() -> str:
    """Return the target of the GPU here, else sm_90 if there is nvcc, else cpu."""
    if target := gpu_target():
        return target
    try:
        find_nvcc()
    except BuildFailure:
        return CPU
    return DEFAULT_TARGET


def _print(outcome: Built) -> None:
    kernel, how = outcome.kernel, "found" if outcome.found else "built"
    say(f"{outcome.spec.slug}  {outcome.target}  {how if kernel else 'failed'}  {outcome.seconds:.2f} s")
    if kernel and kernel.resources:
        say(f"  {resources_text(kernel.resources)}")
    if kernel:
        say(f"  {kernel.path}")


def _fields(outcome: Built) -> dict[str, object]:
    kernel, error = outcome.kernel, outcome.error
    asked: dict[str, object] = {"slug": outcome.spec.slug, "target": outcome.target, "ok": kernel is not None}
    if kernel is None:
        return {**asked, "error": error_fields(error) if error else None}
    return {
        **asked,
        "found": outcome.found,
        "seconds": round(outcome.seconds, 3),
        "build_seconds": kernel.build_seconds,
        "resources": asdict(kernel.resources) if kernel.resources else None,
        "path": str(kernel.path),
        "source": str(kernel.source_path),
    }
