"""``scanops tune``: plans measured on this GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from scanops import environment
from scanops.cli.output import Answer, Command, FilePath, Spec, progress
from scanops.codegen.figures import lines_for
from scanops.codegen.lines import keys_for
from scanops.codegen.operators import GRADIENTS
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest
from scanops.forks import import_late
from scanops.processes import jobs_that_fit
from scanops.tuning import read, write

if TYPE_CHECKING:
    from scanops.measure import Outcome

__all__ = ["command"]


@click.command(
    "tune",
    cls=Command,
    example="scanops tune sum-f32-n1000 prod-f32-n4096-inner64",
)
@click.argument("specs", metavar="SPEC...", type=Spec(), nargs=-1, required=True)
@click.option("--lines", type=int, help="Number of lines to plan for (default: about 2^28 items in total).")
@click.option("--rounds", type=click.IntRange(3), default=15, show_default=True, help="Runs of each plan.")
@click.option("--jobs", type=click.IntRange(1), help="Builds at a time; by default one a core.")
@click.option("-o", "--output", type=FilePath(), help="The file to keep results in.")
def command(
    specs: tuple[ScanSpec, ...], lines: int | None, rounds: int, jobs: int | None, output: Path | None
) -> Answer:
    """Measure plans on this GPU and keep the fastest.

    Where the plan for few lines is another, it is tuned as well, unless --lines is given. Results are checked before
    anything is timed, plans run in turns on a cold L2, and the fastest is measured against the planner's own once more:
    a plan that does not win by more than the noise is not kept. Kept plans are written to
    a JSON file from which kernels are then planned: the first of SCANOPS_TUNING, else tuning.json in your
    configuration folder. Files can be copied to other machines, and apply to all GPUs of the architecture.
    """
    for spec in specs:
        if spec.op in GRADIENTS or spec.takes_length:
            raise UnsupportedRequest(
                f"to tune {spec}",
                allowed="scans that are called by their names, of one length",
                value=f"the gradient {spec.op!r}" if spec.op in GRADIENTS else "a length that is an argument",
                hint="tune the scan whose gradient it is, or name a length; the planner's own plan serves this kernel",
            )
    measure = import_late("scanops.measure")  # imports torch
    path, (target, device, multiprocessors) = output or environment.tuning_files()[0], measure.require_gpu()
    entries = dict(read(path))  # what is wrong with the file shows before anything is measured
    improved = 0
    found: list[dict[str, object]] = []
    said: list[str | tuple[str, str]] = []
    wanted = [key for spec in specs for key in keys_for(spec, target, lines)]
    for number, key in enumerate(wanted, 1):
        spec, name = key.spec, f"{key.spec}" + ", few lines" * key.is_few
        count = lines or lines_for(key, multiprocessors, measure.items_that_fit(spec))
        report = progress(f"{name} ({number} of {len(wanted)}): ")
        trials = measure.GpuLaboratory(spec, count, jobs_that_fit(jobs))
        outcome = measure.tune(key, trials, rounds=rounds, said=report)
        del trials  # its tensors make room for the next ones
        entries.pop((target, spec.slug, key.is_few), None)
        if entry := outcome.entry(device):
            entries[entry.key] = entry
        write(path, entries.values())  # after each: what was measured is not lost
        improved += outcome.improved
        found.append({"spec": spec.slug, "few": key.is_few, **_fields(outcome)})
        times = outcome.measured
        said.append((f"{name}: {outcome.tried} plans, the planner's {times.default_us:.1f} us", "bold"))
        best = f"{times.tuned_us:.1f} us, {times.gain:.3f} times as fast: {outcome.best.describe()}"
        said.append(f"  {best if outcome.improved else 'none is better'}")
    rest = "the planner's own plans serve the others"
    said.append(f"{improved} of {len(wanted)} improved on {device}, kept in {path}; {rest}.")
    return Answer({"device": device, "target": target, "file": str(path), "specs": found}, said)


def _fields(outcome: Outcome) -> dict[str, object]:
    return {
        "lines": outcome.measured.lines,
        "rounds": outcome.measured.rounds,
        "tried": outcome.tried,
        "improved": outcome.improved,
        "default_us": outcome.measured.default_us,
        "best_us": outcome.measured.tuned_us,
        "default": {"strategy": outcome.default.strategy, **outcome.default.numbers()},
        "best": {"strategy": outcome.best.strategy, **outcome.best.numbers()},
        "refused": [{"plan": plan.describe(), "why": why} for plan, why in outcome.refused],
    }
