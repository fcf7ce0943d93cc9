"""``scanops tune`` and ``scanops bench``: measurements on the GPU."""

from __future__ import annotations

import importlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scanops import environment
from scanops.cli.output import Command, FilePath, print_json, progress, say
from scanops.cli.plan import gpu_target
from scanops.codegen.adjoints import ADJOINT_ROWS
from scanops.codegen.candidates import candidates
from scanops.codegen.figures import lines_for
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import DEFAULT_TARGET
from scanops.errors import MissingRequirement, UnsupportedRequest
from scanops.processes import jobs_that_fit
from scanops.tuning.files import Entry, merged, read, write

if TYPE_CHECKING:
    from scanops.tuning.experiment import Outcome

__all__ = ["bench", "tune"]


@click.command(
    "tune",
    cls=Command,
    example="scanops tune sum-f32-n1000 prod-f32-n4096-inner64\nscanops tune sum-f32-n1000 --dry-run\n"
    "scanops tune --list\nscanops tune --merge a.json b.json -o both.json",
)
@click.argument("words", metavar="SPEC...", nargs=-1)
@click.option("--lines", type=int, help="Lines of the tensors; by default as many as make about 2^28 items.")
@click.option("--rounds", type=click.IntRange(3), default=15, show_default=True, help="Runs of each plan.")
@click.option("--jobs", type=click.IntRange(1), help="Builds at a time; by default one a core.")
@click.option("-o", "--output", type=FilePath(), help="The file to keep results in.")
@click.option("--dry-run", is_flag=True, help="List the plans that would be measured; needs no GPU.")
@click.option("--target", help="With --dry-run: the architecture to plan for.")
@click.option("--list", "listed", is_flag=True, help="Show what the files hold.")
@click.option("--merge", is_flag=True, help="SPEC... are files: put their entries into the one named by -o.")
def tune(
    words: tuple[str, ...],
    lines: int | None,
    rounds: int,
    jobs: int | None,
    output: Path | None,
    dry_run: bool,
    target: str | None,
    listed: bool,
    merge: bool,
    as_json: bool,
) -> None:
    """Measure plans on this GPU and keep the fastest.

    Results are checked before anything is timed, plans run in turns on a cold L2, and the fastest is measured against
    the planner's own once more: a plan that does not win by more than the noise is not kept. Kept plans are written to
    a JSON file from which kernels are then planned: the first of SCANOPS_TUNING, else tuning.json in your
    configuration folder. Files can be copied and merged.
    """
    chosen = [name for name, given in (("--dry-run", dry_run), ("--list", listed), ("--merge", merge)) if given]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} do not go together.")
    if target and not dry_run:
        raise click.UsageError("--target goes with --dry-run: plans are measured on the GPU that is here.")
    if listed == bool(words):
        raise click.UsageError("--list takes no SPEC." if listed else "Name a SPEC such as sum-f32-n32768.")
    if merge:
        _merge([Path(word) for word in words], output, as_json)
        return
    if listed:
        _list(as_json)
        return
    specs = [ScanSpec.parse(word) for word in words]
    for spec in specs:
        if spec.op in ADJOINT_ROWS:
            raise UnsupportedRequest(
                f"to tune {spec}",
                allowed="scans that are called by their names",
                value=f"the gradient {spec.op!r}",
                hint="tune the scan whose gradient it is; the planner's own plan serves the gradient",
            )
        if spec.takes_length:
            raise UnsupportedRequest(
                f"to tune {spec}",
                allowed="specs of one length",
                value="a length that is an argument",
                hint="its kernel serves every length by the same plan; name a length",
            )
    if dry_run:
        _dry_run(specs, target or gpu_target() or DEFAULT_TARGET, as_json)
    else:
        _tune(specs, lines, rounds, jobs, output or environment.tuning_files()[0], as_json)


@click.command(
    "bench",
    cls=Command,
    context_settings={"ignore_unknown_options": True},
    example="scanops bench -o h200.json --picture h200.svg\nscanops bench --quick --filter 'middle dims'",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[GRID OPTION]...")
def bench(arguments: tuple[str, ...], as_json: bool) -> None:
    """Benchmark scans against torch, Triton and CUB.

    The peers include a copy of the same bytes and torch.compile. Runs `python -m benchmarks grid` of a source checkout,
    whose --help lists the options: the wheel has no benchmarks. Exits with 1 when a result is wrong or could not be
    measured.
    """
    root = Path(__file__).parents[2]
    if not (root / "benchmarks" / "grid.py").is_file():
        raise MissingRequirement(
            "to run the benchmarks",
            allowed="a source checkout of scanops, which has a folder benchmarks/",
            value=f"scanops is installed in {root}, without benchmarks",
            hint="clone the repository and run `python -m benchmarks grid` there",
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    grid = importlib.import_module("benchmarks.grid")
    click.get_current_context().exit(grid.main([*arguments, *(["--json"] if as_json else [])]))


def _tune(specs: list[ScanSpec], lines: int | None, rounds: int, jobs: int | None, path: Path, as_json: bool) -> None:
    from scanops import measure
    from scanops.tuning.experiment import tune as tuned

    target, device = measure.require_gpu(), measure.device_name()
    entries = dict(read(path))  # what is wrong with the file shows before anything is measured
    multiprocessors = measure.multiprocessors()
    outcomes: list[tuple[Outcome, int]] = []
    for number, spec in enumerate(specs, 1):
        many = lines or lines_for(spec, multiprocessors, measure.items_that_fit(spec))
        with progress(f"{spec} ({number} of {len(specs)})") as said:
            trials = measure.GpuLaboratory(spec, many, jobs_that_fit(jobs))
            outcome = tuned(spec, target, trials, rounds=rounds, said=said)
            del trials  # its tensors make room for the next ones
        entries.pop((target, device, spec.slug), None)
        if entry := outcome.entry(device, many):
            entries[entry.key] = entry
        write(path, entries.values())  # after each: what was measured is not lost
        outcomes.append((outcome, many))
    if as_json:
        found = [_fields(outcome, many) for outcome, many in outcomes]
        print_json({"ok": True, "device": device, "target": target, "file": str(path), "specs": found})
        return
    for outcome, _ in outcomes:
        say(f"{outcome.spec.slug}: {outcome.tried} plans, the planner's {outcome.default_us:.1f} us", style="bold")
        best = f"{outcome.best_us:.1f} us, {outcome.gain:.3f} times as fast: {outcome.best.describe()}"
        say(f"  {best if outcome.improved else 'none is better'}")
    kept = sum(outcome.improved for outcome, _ in outcomes)
    say(f"{kept} of {len(outcomes)} improved on {device}, kept in {path}; the planner's own plans serve the others.")


def _fields(outcome: Outcome, lines: int) -> dict[str, object]:
    def described(strategy: str, numbers: dict[str, object]) -> dict[str, object]:
        return {"strategy": strategy, **numbers}

    return {
        "spec": outcome.spec.slug,
        "lines": lines,
        "rounds": outcome.rounds,
        "tried": outcome.tried,
        "improved": outcome.improved,
        "default_us": round(outcome.default_us, 3),
        "best_us": round(outcome.best_us, 3),
        "default": described(outcome.default.strategy, outcome.default.numbers()),
        "best": described(outcome.best.strategy, outcome.best.numbers()),
        "refused": [{"plan": plan.describe(), "why": why} for plan, why in outcome.refused],
    }


def _dry_run(specs: list[ScanSpec], target: str, as_json: bool) -> None:
    plans = {spec: list(candidates(spec, target)) for spec in specs}
    if as_json:
        found = [
            {"spec": spec.slug, "plans": [{"strategy": plan.strategy, **plan.numbers()} for plan in listed]}
            for spec, listed in plans.items()
        ]
        print_json({"ok": True, "target": target, "specs": found})
        return
    for spec, listed in plans.items():
        say(f"{spec} on {target}: {len(listed)} plans, the planner's own first", style="bold")
        for plan in listed:
            say(f"  {plan.describe()}")


def _list(as_json: bool) -> None:
    files = {path: read(path) for path in environment.tuning_files()}
    if as_json:
        found = [
            {"path": str(path), "exists": path.exists(), "entries": [asdict(entry) for entry in entries.values()]}
            for path, entries in files.items()
        ]
        print_json({"ok": True, "files": found})
        return
    for path, entries in files.items():
        say(f"{path}: {len(entries)} plans" if path.exists() else f"{path}: not there", style="bold")
        for entry in sorted(entries.values(), key=lambda entry: entry.key):
            say(f"  {_described(entry)}")


def _described(entry: Entry) -> str:
    numbers = ", ".join(f"{name} {value}" for name, value in entry.plan.items())
    gain = entry.measured.default_us / entry.measured.tuned_us
    return f"{entry.spec} on {entry.target}, {entry.gpu}: {gain:.3f} by {entry.strategy}: {numbers}"


def _merge(paths: list[Path], output: Path | None, as_json: bool) -> None:
    if output is None:
        raise click.UsageError("Name the file to write with -o.")
    entries = merged(paths)
    write(output, entries)
    if as_json:
        print_json({"ok": True, "file": str(output), "entries": len(entries)})
    else:
        say(f"{len(entries)} plans from {len(paths)} files in {output}")
