"""``scanops precompile``: build what a spec file names into a folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from scanops.cli.output import Command, console, error_fields, exit_code, print_errors, print_json
from scanops.codegen.lines import any_length
from scanops.codegen.plan import make_plan
from scanops.jobs import jobs_that_fit
from scanops.precompile import Built, expected, precompile
from scanops.runtime.kernels import CPU
from scanops.specfile import load

__all__ = ["command"]

_EVERY = 10.0  # seconds between lines where there is no terminal


@click.command(
    "precompile",
    cls=Command,
    example="scanops precompile specs.toml --targets sm_80,sm_90 -o pack --jobs 8",
)
@click.argument(
    "path", metavar="SPECS.toml", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
)
@click.option("--targets", default="", metavar="NAMES", help="sm_80,sm_90,...; by default those the file names.")
@click.option(
    "-o", "--output", required=True, type=click.Path(file_okay=False, path_type=Path), help="The folder to build into."
)
@click.option("--jobs", type=click.IntRange(1), help="Builds at a time; by default one a core.")
@click.option(
    "--memory",
    type=click.FloatRange(0, min_open=True),
    metavar="GB",
    help="Memory for builds, 1 GB each; by default what is available.",
)
@click.option("--generic", is_flag=True, help="Also the kernels that take the lengths of these as an argument.")
@click.option("--native", is_flag=True, help="Also what calls kernels without Python, for the torch at hand.")
def command(
    path: Path,
    targets: str,
    output: Path,
    jobs: int | None,
    memory: float | None,
    generic: bool,
    native: bool,
    as_json: bool,
) -> None:
    """Build the kernels that a spec file names into a folder, several at a time; - reads it from standard input.

    Needs nvcc and no GPU. Kernels that the folder has are left alone: run the same command again after it was stopped.
    The folder has the layout of a store. Exits with 1 when a kernel could not be built, after all others.
    """
    path = Path("/dev/stdin") if str(path) == "-" else path
    names = [name.strip() for name in targets.split(",") if name.strip()]
    file = load(path)
    wanted = expected(file.wanted, names, path)
    for remark in file.remarks(target for _, target in wanted):
        console(stderr=True).print(Text(f"scanops precompile: {remark}"), soft_wrap=True)
    if generic:
        wanted = list(dict.fromkeys([*wanted, *((any_length(spec), target) for spec, target in wanted)]))
    for spec, target in wanted:  # what is wrong with the request shows before anything is built
        if target != CPU:
            make_plan(spec, target)
    began = time.perf_counter()
    with _progress(len(wanted)) as said:
        at_once = jobs_that_fit(jobs, memory)
        folder = output.expanduser().absolute()
        outcomes = precompile(wanted, folder, jobs=at_once, said=said, native=native)
    seconds = time.perf_counter() - began
    errors = [outcome.error for outcome in outcomes if outcome.error]
    numbers = _numbers(outcomes, seconds)
    if as_json:
        kernels = [_fields(outcome) for outcome in outcomes]
        print_json({"ok": not errors, "folder": str(output), "jobs": at_once, **numbers, "kernels": kernels})
    else:
        print_errors((_name(outcome), outcome.error) for outcome in outcomes if outcome.error)
        console().print(Text(_summary(numbers, output, at_once)), soft_wrap=True)
    click.get_current_context().exit(max(map(exit_code, errors), default=0))


def _name(outcome: Built) -> str:
    return f"{outcome.spec.slug} for {outcome.target}"


def _numbers(outcomes: list[Built], seconds: float) -> dict[str, float]:
    new = [outcome for outcome in outcomes if not outcome.found and not outcome.error]
    kept = [outcome for outcome in outcomes if not outcome.error]
    return {
        "built": len(new),
        "found": len(kept) - len(new),
        "failed": len(outcomes) - len(kept),
        "seconds": round(seconds, 3),
        "kernels_per_minute": round(60 * len(new) / seconds, 1),
        "bytes_per_kernel": round(sum(outcome.bytes for outcome in kept) / max(1, len(kept))),
    }


def _summary(numbers: dict[str, float], output: Path, jobs: int) -> str:
    return (
        f"{numbers['built']} built, {numbers['found']} found, {numbers['failed']} failed in {numbers['seconds']:.1f} s "
        f"by {jobs} at a time: {numbers['kernels_per_minute']:.1f} kernels a minute, "
        f"{numbers['bytes_per_kernel']} bytes each, in {output}"
    )


def _fields(outcome: Built) -> dict[str, object]:
    return {
        "slug": outcome.spec.slug,
        "target": outcome.target,
        "ok": outcome.error is None,
        "found": outcome.found,
        "seconds": round(outcome.seconds, 3),
        "bytes": outcome.bytes,
        "error": error_fields(outcome.error) if outcome.error else None,
    }


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[Built], None]]:
    """On standard error: a bar on a terminal, a line now and then elsewhere."""
    screen = console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    done, last = 0, time.monotonic()
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def said(outcome: Built) -> None:
            nonlocal done, last
            done += 1
            words = _name(outcome)
            bar.update(task, completed=done, description=words)
            if not screen.is_terminal and (time.monotonic() - last > _EVERY or done == total):
                last = time.monotonic()
                screen.print(Text(f"{done} of {total}: {words}"), soft_wrap=True)

        yield said
