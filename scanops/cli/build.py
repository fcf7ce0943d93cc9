"""``scanops build``: have kernels in the store."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import click
from rich import box
from rich.table import Table

from scanops.builders.toolchain import find_nvcc
from scanops.cli.output import Command, error_fields, exit_code, print_errors, print_json, print_table, working
from scanops.cli.specs import spec_options, specs_of
from scanops.codegen.plan import make_plan
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import DEFAULT_TARGET
from scanops.errors import BuildFailure, ScanopsError
from scanops.jobs import at_once, jobs_that_fit
from scanops.runtime.kernels import CPU, default_target, is_built
from scanops.runtime.obtain import Kernel, obtain
from scanops.runtime.policies import STRICT
from scanops.store.store import Store

__all__ = ["command", "usual_target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """One kernel asked for."""

    spec: ScanSpec
    target: str
    found: bool  # it was in the store already
    seconds: float  # this command spent on it
    kernel: Kernel | None  # None when it could not be built
    error: ScanopsError | None


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
    """Build kernels, or find them in the store.

    SPEC is a spec's short name; the options after --target describe one kernel, field by field.

    Building for a GPU needs nvcc and no GPU. What is built is kept in the store, where scanops looks first.
    """
    specs = specs_of(slugs, options)
    wanted = [(spec, target) for target in targets or (usual_target(),) for spec in specs]
    for spec, target in wanted:  # what is wrong with the request shows before anything is built
        if target != CPU:
            make_plan(spec, target)
    wanted = list(dict.fromkeys(wanted))
    (spec, target), count = wanted[0], len(wanted)
    what = f"{spec} for {target}" if count == 1 else f"{count} kernels"
    with working(f"building {what}"):
        outcomes = at_once(_build, wanted, jobs_that_fit())
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if as_json:
        first = {"error": error_fields(errors[0])} if errors else {}
        print_json({"ok": not errors, **first, "kernels": [_fields(outcome) for outcome in outcomes]})
    else:
        print_table(_table(outcomes))
        print_errors((_name(outcome), outcome.error) for outcome in outcomes if outcome.error)
    click.get_current_context().exit(max(map(exit_code, errors), default=0))


def usual_target() -> str:
    """What to build for when nobody says: the GPU here, else sm_90 if there is nvcc, else cpu."""
    try:
        target = default_target()
    except ModuleNotFoundError:  # no torch: it can build all the same
        target = CPU
    if target != CPU:
        return target
    try:
        find_nvcc()
    except BuildFailure:
        return CPU
    return DEFAULT_TARGET


def _build(wanted: tuple[ScanSpec, str]) -> _Outcome:
    spec, target = wanted
    found, kernel, error = False, None, None
    started = time.perf_counter()
    try:
        found = is_built(spec, target)
        kernel = obtain(spec, target, STRICT, Store())  # the command asks for a build, whatever SCANOPS_POLICY is
    except ScanopsError as problem:
        error = problem
    seconds = time.perf_counter() - started
    return _Outcome(spec=spec, target=target, found=found, seconds=seconds, kernel=kernel, error=error)


def _name(outcome: _Outcome) -> str:
    return f"{outcome.spec.slug} for {outcome.target}"


def _fields(outcome: _Outcome) -> dict[str, object]:
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


def _table(outcomes: list[_Outcome]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, justify in _COLUMNS:
        table.add_column(heading, justify="right" if justify == ">" else "left", overflow="fold")
    for outcome in outcomes:
        table.add_row(*_row(outcome))
    return table


_COLUMNS = (
    ("spec", "<"),
    ("target", "<"),
    ("", "<"),
    ("seconds", ">"),
    ("registers", ">"),
    ("shared", ">"),
    ("spills", ">"),
    ("library", "<"),
)


def _row(outcome: _Outcome) -> list[str]:
    kernel = outcome.kernel
    asked = [outcome.spec.slug, outcome.target]
    if kernel is None:
        return [*asked, "failed", f"{outcome.seconds:.2f}", "", "", "", ""]
    used = kernel.resources
    # Stores and loads come in pairs, more or less; their sum says how much traffic the spills make.
    spills = None if used is None else (used.spill_store_bytes or 0) + (used.spill_load_bytes or 0)
    numbers = (used and used.registers, used and used.shared_bytes, spills)
    return [
        *asked,
        "found" if outcome.found else "built",
        f"{outcome.seconds:.2f}",
        *("-" if number is None else str(number) for number in numbers),
        str(kernel.path),
    ]
