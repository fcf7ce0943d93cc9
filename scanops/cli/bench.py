"""``scanops bench``: run the benchmark grid of a source checkout."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click

import scanops
from scanops.cli.output import Command
from scanops.errors import MissingRequirement

__all__ = ["command"]


@click.command(
    "bench",
    cls=Command,
    context_settings={"ignore_unknown_options": True},
    example="scanops bench -o h200.json --picture h200.svg\nscanops bench --quick --filter 'middle dims'",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[GRID OPTION]...")
def command(arguments: tuple[str, ...], as_json: bool) -> None:
    """Measure scans against a copy, torch, torch.compile, Triton and CUB.

    The same as `python -m benchmarks grid` in a source checkout, which lists the options with --help; the benchmarks
    are not part of the wheel. Exits with 1 when a result is wrong or could not be measured.
    """
    root = Path(scanops.__file__).parents[1]
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
