"""``scanops build``, ``record`` and ``precompile``: kernels built into the store or into a folder."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from scanops import environment
from scanops.builders import unavailable
from scanops.cli.output import (
    Answer,
    Command,
    FilePath,
    Spec,
    as_json,
    builder_option,
    error_fields,
    exit_code,
    import_option,
    print_errors,
    progress,
    resources_text,
    say,
    target_option,
    working,
)
from scanops.cli.plan import gpu_target
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.lines import any_length, keys_for
from scanops.codegen.planner import plan_kernel
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import CPU, DEFAULT_TARGET
from scanops.environment import AUTO
from scanops.errors import MissingRequirement
from scanops.precompile import Built, check_wanted, expand_file, find_or_build
from scanops.precompile import precompile as into_folder
from scanops.processes import at_once, jobs_that_fit
from scanops.runtime.policies import STRICT
from scanops.specfile import SpecFile, check_writable, load
from scanops.store import Store

__all__ = ["build", "precompile", "record"]

STDERR = 2  # file descriptor


@click.command(
    "build",
    cls=Command,
    example="scanops build sum-f32-n32768-reverse prod-f32-n32768 --target sm_80 --target sm_90",
)
@click.argument("specs", metavar="SPEC...", type=Spec(), nargs=-1, required=True)
@target_option("Default: the target of this machine's GPU; without one sm_90 if a compiler for it works, else cpu.")
@click.option("--lines", type=int, help="Build only the kernel for so many lines.")
@builder_option
@import_option
def build(specs: tuple[ScanSpec, ...], targets: tuple[str, ...], lines: int | None, builder: str) -> Answer:
    """Build kernels into the store.

    Where a GPU is left idle by few lines, a spec has a second kernel for them, which is built too unless --lines is
    given. Kernels that the store or a pack has are not built again.

    SPEC is a spec's short name. To build for a GPU takes nvcc or NVRTC and no GPU.
    """
    chosen = targets or (_usual_target(builder),)
    pairs = dict.fromkeys(itertools.product(chosen, specs))
    wanted = [key for target, spec in pairs for key in keys_for(spec, target, lines)]
    _check(wanted, builder)
    what = f"{wanted[0].spec} for {wanted[0].target}" if len(wanted) == 1 else f"{len(wanted)} kernels"
    working(f"building {what}")
    outcomes = at_once(lambda each: find_or_build(each, Store(), builder), wanted, jobs_that_fit())
    said = []
    for outcome in outcomes:
        kernel, how = outcome.kernel, "found" if outcome.found else "built"
        name = outcome.key.spec.slug + ", few lines" * outcome.key.is_few
        said.append(f"{name}  {outcome.key.target}  {how if kernel else 'failed'}  {outcome.seconds:.2f} s")
        if kernel:
            said += [f"  {resources_text(kernel.resources)}"] if kernel.resources else []
            said.append(f"  {kernel.path}, by {kernel.builder}")
    error = next((outcome.error for outcome in outcomes if outcome.error), None)
    return _answer(outcomes, {"error": error_fields(error)} if error else {}, said)


@click.command(
    "record",
    cls=Command,
    example="scanops record -o specs.toml -- python train.py\nscanops precompile specs.toml --targets sm_90 -o pack",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "-o", "--output", type=FilePath(), default=Path("specs.toml"), show_default=True, help="The spec file to add to."
)
@click.argument("program", metavar="-- PROGRAM [WORD]...", nargs=-1, required=True, type=click.UNPROCESSED)
def record(output: Path, program: tuple[str, ...]) -> Answer:
    """Run a program and record the specs of its kernels.

    The specs of all its processes are added to the spec file: several programs can be recorded into one file. Exits
    with the program's exit status. SCANOPS_RECORD=FILE does the same without this command.
    """
    path = output.expanduser().absolute()
    check_writable(path)  # a file that cannot be written is reported before an hour's run
    before = load(path) if path.exists() else SpecFile(path)
    code = _run(program, path)
    file = load(path) if path.exists() else before
    remarks = []
    if file.calls == before.calls:
        remarks.append("no kernel with a name was asked for: scans of CPU tensors outside emulate() ask for none")
    count = f"{len(file.wanted)} specs in {path}" if path.exists() else f"nothing was written to {path}"
    for words in () if as_json() else (count, *remarks):
        say(f"scanops record: {words}", stderr=True)
    wanted = file.wanted.items()
    kernels = [{"spec": spec.slug, "target": target, "count": n} for (spec, target), n in wanted]
    facts = {"exit_code": code, "file": str(path), "kernels": kernels, "remarks": remarks}
    return Answer(facts, code=code)


@click.command(
    "precompile",
    cls=Command,
    example="scanops precompile specs.toml --targets sm_80,sm_90 -o pack --jobs 8",
)
@click.argument(
    "path", metavar="SPECS.toml", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
)
@target_option("By default those that the file names.")
@click.option(
    "-o", "--output", required=True, type=click.Path(file_okay=False, path_type=Path), help="The folder to build into."
)
@click.option(
    "--jobs", type=click.IntRange(1), help="Builds at a time; by default one a core, as far as memory allows."
)
@click.option("--generic", is_flag=True, help="Also the kernels that take the lengths of these as an argument.")
@click.option("--native", is_flag=True, help="Also the C++ call path, for the torch and the Python that run this.")
@builder_option
def precompile(
    path: Path, targets: tuple[str, ...], output: Path, jobs: int | None, generic: bool, native: bool, builder: str
) -> Answer:
    """Build the kernels of a spec file into a folder.

    Builds several kernels at a time; - reads the file from standard input. Needs nvcc or NVRTC and no GPU. Kernels
    that the folder already has are skipped, so a run that was stopped can be continued. The folder has the layout of a
    store and can be packed; with --builder nvrtc its kernels run on hosts of every kind. Exits with 1 when a kernel
    could not be built, after all others.
    """
    path = Path("/dev/stdin") if str(path) == "-" else path
    file = load(path)
    wanted = expand_file(file.wanted, targets, path)
    if generic:
        wanted = list(dict.fromkeys([*wanted, *map(any_length, wanted)]))
    _check(wanted, builder)
    began, done, several = time.perf_counter(), 0, jobs_that_fit(jobs)
    report = progress()

    def said(outcome: Built) -> None:
        nonlocal done
        done += 1
        report(str(outcome.key), done, len(wanted))

    folder = output.expanduser().absolute()
    outcomes = into_folder(wanted, folder, jobs=several, said=said, native=native, builder=builder)
    seconds = time.perf_counter() - began
    numbers = Counter("failed" if each.error else "found" if each.found else "built" for each in outcomes)
    counts = {name: numbers[name] for name in ("built", "found", "failed")}
    words = ", ".join(f"{number} {name}" for name, number in counts.items())
    line = f"{words} in {seconds:.1f} s by {several} at a time, in {output}"
    facts = {"folder": str(output), "jobs": several, **counts, "seconds": round(seconds, 3)}
    return _answer(outcomes, facts, [line])


def _usual_target(builder: str) -> str:
    """Return the target of the GPU here, else sm_90 if something builds for it, or a builder is named, else cpu."""
    builders = STRICT.by(builder).list_builders()
    here = gpu_target() or next((DEFAULT_TARGET for each in builders if not unavailable(each, DEFAULT_TARGET)), None)
    return here or (CPU if builder == AUTO else DEFAULT_TARGET)


def _check(wanted: Iterable[KernelKey], builder: str) -> None:
    """Raise what is wrong with a request before anything is built."""
    for key in wanted:
        check_wanted(key.target, builder)
        if key.target != CPU:
            plan_kernel(key)


def _answer(outcomes: Sequence[Built], facts: dict[str, object], lines: list[str]) -> Answer:
    """Return the answer about these kernels. Print the errors where they are not part of it."""
    errors = [(str(outcome.key), outcome.error) for outcome in outcomes if outcome.error]
    if not as_json():
        print_errors(errors)
    code = max((exit_code(error) for _, error in errors), default=0)
    return Answer({**facts, "kernels": [_fields(outcome) for outcome in outcomes]}, lines, code)


def _fields(outcome: Built) -> dict[str, object]:
    kernel, error = outcome.kernel, outcome.error
    return {
        "slug": outcome.key.spec.slug,
        "target": outcome.key.target,
        "few": outcome.key.is_few,
        "ok": error is None,
        "error": error_fields(error) if error else None,
        "found": outcome.found,
        "seconds": round(outcome.seconds, 3),
        "bytes": kernel.path.stat().st_size if kernel else 0,
        "build_seconds": kernel and kernel.build_seconds,
        "resources": asdict(kernel.resources) if kernel and kernel.resources else None,
        "builder": kernel and kernel.builder,
        "path": kernel and str(kernel.path),
        "source": kernel and str(kernel.source_path),
    }


def _run(program: tuple[str, ...], path: Path) -> int:
    """Run the program with SCANOPS_RECORD. Return its exit status, or 128 and the signal for one that was killed."""
    changed = environment.child(SCANOPS_RECORD=str(path))
    try:
        # With --json, standard output carries the JSON document alone.
        process = subprocess.Popen(program, env=changed, stdout=STDERR if as_json() else None)
    except OSError as problem:
        raise MissingRequirement(
            f"run {program[0]}", allowed="a program that can be started", value=str(problem), hint="check its name"
        ) from problem
    while process.returncode is None:
        with contextlib.suppress(KeyboardInterrupt):  # the terminal sends it to the program, too, which decides
            process.wait()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode
