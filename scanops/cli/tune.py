"""``scanops tune``: measure plans on the GPU at hand and keep what is better than the planner's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from scanops import environment
from scanops.cli.output import Command, FilePath, console, print_json, print_table
from scanops.cli.plan import usual_target
from scanops.codegen.adjoints import ADJOINT_ROWS
from scanops.codegen.candidates import candidates
from scanops.codegen.figures import lines_for
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest
from scanops.jobs import jobs_that_fit
from scanops.tuning.files import Entry, merged, read, write

if TYPE_CHECKING:
    from scanops.tuning.experiment import Outcome

__all__ = ["command"]


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
def command(
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
    """Measure the plans a spec could have on this GPU and keep the best one, where it beats the planner's own.

    Results are checked before anything is timed, plans are run in turns on a cold L2, and the best of them is compared
    with the planner's once more: what does not win that by more than the noise is not kept. Kept plans go to a JSON
    file of yours that kernels are then planned by: the first of SCANOPS_TUNING, else tuning.json in your configuration
    folder. Files can be copied and merged.
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
        _dry_run(specs, target or usual_target(), as_json)
    else:
        _tune(specs, lines, rounds, jobs, output or environment.tuning_files()[0], as_json)


def _tune(specs: list[ScanSpec], lines: int | None, rounds: int, jobs: int | None, path: Path, as_json: bool) -> None:
    from scanops import measure
    from scanops.tuning.experiment import tune

    target, device = measure.require_gpu(), measure.device_name()
    entries = dict(read(path))  # what is wrong with the file shows before anything is measured
    multiprocessors = measure.multiprocessors()
    outcomes: list[tuple[Outcome, int]] = []
    for number, spec in enumerate(specs, 1):
        many = lines or lines_for(spec, multiprocessors, measure.items_that_fit(spec))
        with _progress(f"{spec} ({number} of {len(specs)})") as said:
            trials = measure.GpuLaboratory(spec, many, jobs_that_fit(jobs))
            outcome = tune(spec, target, trials, rounds=rounds, said=said)
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
    print_table(_summary(outcomes))
    kept = sum(outcome.improved for outcome, _ in outcomes)
    _say(
        f"{kept} of {len(outcomes)} improved on {device}, kept in {path}; for the others the planner's own plan counts."
    )


def _summary(outcomes: list[tuple[Outcome, int]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, justify in (("spec", "<"), ("plans", ">"), ("planner's us", ">"), ("best us", ">"), ("gain", ">"),
                             ("kept", "<")):  # fmt: skip
        table.add_column(heading, justify="right" if justify == ">" else "left", overflow="fold")
    for outcome, _ in outcomes:
        table.add_row(
            outcome.spec.slug,
            str(outcome.tried),
            f"{outcome.default_us:.1f}",
            f"{outcome.best_us:.1f}",
            f"{outcome.gain:.3f}" if outcome.improved else "-",
            outcome.best.describe() if outcome.improved else "the planner's own",
        )
    return table


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
        _say(f"{spec} on {target}: {len(listed)} plans, the planner's own first", style="bold")
        for plan in listed:
            _say(f"  {plan.describe()}")


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
        _say(f"{path}: {len(entries)} plans" if path.exists() else f"{path}: not there", style="bold")
        for entry in sorted(entries.values(), key=lambda entry: entry.key):
            _say(f"  {_described(entry)}")


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
        _say(f"{len(entries)} plans from {len(paths)} files in {output}")


@contextlib.contextmanager
def _progress(title: str) -> Iterator[Callable[[str, int, int], object]]:
    """A bar on standard error while there is a terminal to show it on."""
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda what, done, of: bar.update(task, description=f"{title}: {what}", completed=done, total=of)


def _say(text: str, style: str = "") -> None:
    console().print(Text(text, style=style), soft_wrap=True)
