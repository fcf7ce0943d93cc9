"""``scanops record`` and ``scanops precompile``: from a program to a folder with the kernels it asks for."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scanops import environment
from scanops.cli.output import (
    Command,
    FilePath,
    error_fields,
    exit_code,
    print_errors,
    print_json,
    progress,
    say,
)
from scanops.cli.specs import import_option
from scanops.codegen.lines import any_length
from scanops.codegen.plan import make_plan
from scanops.emulator import CPU
from scanops.errors import MissingRequirement
from scanops.processes import jobs_that_fit
from scanops.specfile import SpecFile, check_writable, load

if TYPE_CHECKING:
    from scanops.precompile import Built

__all__ = ["precompile", "record"]

STDERR = 2  # file descriptor


@click.command(
    "record",
    cls=Command,
    example="scanops record -o specs.toml -- python train.py\nscanops precompile specs.toml --targets sm_90 -o pack",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "-o", "--output", type=FilePath(), default=Path("specs.toml"), show_default=True, help="The spec file to add to."
)
@import_option
@click.argument("program", metavar="-- PROGRAM [WORD]...", nargs=-1, required=True, type=click.UNPROCESSED)
def record(output: Path, program: tuple[str, ...], as_json: bool) -> None:
    """Run a program and record the specs of its kernels.

    The specs of all its processes are added to the spec file: several programs can be recorded into one file. Exits
    with the program's exit status. SCANOPS_RECORD=FILE does the same without this command.
    """
    path = output.expanduser().absolute()
    check_writable(path)  # a file that cannot be written is reported before an hour's run
    before = load(path) if path.exists() else SpecFile(path)
    code = _run(program, path, quiet=as_json)
    file = load(path) if path.exists() else before
    remarks = [] if _calls(file) > _calls(before) else [
        "this run asked for no kernel: scans of CPU tensors outside scanops.emulate() ask for none"
    ]  # fmt: skip
    remarks += file.remarks(target for _, target in file.wanted if target)
    if as_json:
        kernels = [{"spec": spec.slug, "target": target, "count": n} for (spec, target), n in file.wanted.items()]
        unknown = {operator: sorted(slug for slug, _ in slugs) for operator, slugs in file.unknown.items()}
        facts = {"file": str(path), "kernels": kernels, "unknown": unknown, "remarks": remarks}
        print_json({"ok": code == 0, "exit_code": code, **facts})
    else:
        for words in (f"{len(file.wanted)} kernels in {path}", *remarks):
            say(f"scanops record: {words}", stderr=True)
    click.get_current_context().exit(code)


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
@click.option("--native", is_flag=True, help="Also the C++ call path, for the torch and the Python that run this.")
@import_option
def precompile(
    path: Path,
    targets: str,
    output: Path,
    jobs: int | None,
    memory: float | None,
    generic: bool,
    native: bool,
    as_json: bool,
) -> None:
    """Build the kernels of a spec file into a folder.

    Builds several kernels at a time; - reads the file from standard input. Needs nvcc and no GPU. Kernels that the
    folder has are left alone, so that a run that was stopped can be repeated. The folder has the layout of a store and
    can be packed. Exits with 1 when a kernel could not be built, after all others.
    """
    from scanops import precompile as ahead  # imports torch, which other commands do without

    path = Path("/dev/stdin") if str(path) == "-" else path
    names = [name.strip() for name in targets.split(",") if name.strip()]
    file = load(path)
    for remark in file.remarks(names or {target for _, target in file.wanted if target}):
        say(f"scanops precompile: {remark}", stderr=True)
    wanted = ahead.expected(file.wanted, names, path)
    if generic:
        wanted = list(dict.fromkeys([*wanted, *((any_length(spec), target) for spec, target in wanted)]))
    for spec, target in wanted:  # a wrong request is reported before anything is built
        if target != CPU:
            make_plan(spec, target)
    began, done, at_once = time.perf_counter(), 0, jobs_that_fit(jobs, memory)
    with progress() as report:

        def said(outcome: Built) -> None:
            nonlocal done
            done += 1
            report(outcome.name, done, len(wanted))

        outcomes = ahead.precompile(wanted, output.expanduser().absolute(), jobs=at_once, said=said, native=native)
    seconds = time.perf_counter() - began
    errors = [outcome.error for outcome in outcomes if outcome.error]
    kept = [outcome for outcome in outcomes if not outcome.error]
    new = sum(not outcome.found for outcome in kept)
    numbers = {
        "built": new,
        "found": len(kept) - new,
        "failed": len(errors),
        "seconds": round(seconds, 3),
        "kernels_per_minute": round(60 * new / seconds, 1),
        "bytes_per_kernel": round(sum(outcome.bytes for outcome in kept) / max(1, len(kept))),
    }
    if as_json:
        kernels = [_fields(outcome) for outcome in outcomes]
        print_json({"ok": not errors, "folder": str(output), "jobs": at_once, **numbers, "kernels": kernels})
    else:
        print_errors((outcome.name, outcome.error) for outcome in outcomes if outcome.error)
        say(
            f"{new} built, {len(kept) - new} found, {len(errors)} failed in {seconds:.1f} s by {at_once} at a time: "
            f"{numbers['kernels_per_minute']} kernels a minute, {numbers['bytes_per_kernel']} bytes each, in {output}"
        )
    click.get_current_context().exit(max(map(exit_code, errors), default=0))


def _run(program: tuple[str, ...], path: Path, *, quiet: bool) -> int:
    """Run the program with SCANOPS_RECORD. Return its exit status, or 128 and the signal for one that was killed."""
    changed = environment.inherited(SCANOPS_RECORD=str(path))
    try:
        # With --json, standard output carries the JSON document alone.
        process = subprocess.Popen(program, env=changed, stdout=STDERR if quiet else None)
    except OSError as problem:
        raise MissingRequirement(
            f"run {program[0]}", allowed="a program that can be started", value=str(problem), hint="check its name"
        ) from problem
    while process.returncode is None:
        with contextlib.suppress(KeyboardInterrupt):  # the terminal sends it to the program, too, which decides
            process.wait()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _calls(file: SpecFile) -> int:
    """Return the calls that a spec file counts, of operators that are known here and of others."""
    return sum(file.wanted.values()) + sum(sum(slugs.values()) for slugs in file.unknown.values())


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
