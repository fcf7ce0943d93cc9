"""``scanops bench``: every kind of scan against its peers and a copy of the same bytes."""

from __future__ import annotations

import json
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from scanops.cli.output import Command, FilePath, console, print_json, print_table
from scanops.errors import UnsupportedRequest
from scanops.files import reading, write_text, writing

if TYPE_CHECKING:
    from scanops.bench.cells import Cell

__all__ = ["command"]


@click.command(
    "bench",
    cls=Command,
    example="scanops bench -o h200.json --picture h200.svg\nscanops bench --quick --filter 'middle dims'",
)
@click.option("--filter", "text", default="", metavar="TEXT", help="Only cells whose name or family contains this.")
@click.option("--groups", default="", metavar="NAMES", help="Of table,random,variants,offsets,views; by default all.")
@click.option("--quick", is_flag=True, help="A few cells of each group.")
@click.option("--no-peers", is_flag=True, help="Only scanops and the copy.")
@click.option("--seed", type=int, help="Draws the random lengths; by default a new one each run.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    default=0.06,
    show_default=True,
    help="Seconds of timed runs for a figure.",
)
@click.option("-o", "--output", type=FilePath(), help="Write the JSON to this file.")
@click.option(
    "--into",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Put the cells into the JSON of an earlier run, in place of those of the same name.",
)
@click.option("--picture", type=FilePath(), help="Draw it: NAME.svg or NAME.png.")
def command(
    text: str,
    groups: str,
    quick: bool,
    no_peers: bool,
    seed: int | None,
    budget: float,
    output: Path | None,
    into: Path | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Benchmark scans against torch, Triton and CUB.

    The peers are a copy of the same bytes, torch, torch.compile, Triton and CUB.
    Results are checked before anything is timed; what moves little runs on a cold L2; figures are medians. Exits
    with 1 when a result is wrong or could not be measured.
    """
    from scanops.bench.grid import GROUPS, cells, select
    from scanops.bench.report import merged

    seed = secrets.randbelow(2**31) if seed is None else seed
    names = [name.strip() for name in groups.split(",")] if groups else list(GROUPS)
    chosen = select(cells(seed, names), text=text, quick=quick)
    for path in (output, into, picture):
        _check_folder(path)
    options = {"filter": text, "groups": names, "quick": quick, "peers": not no_peers, "budget": budget}
    earlier = {} if into is None else _read(into)
    document = _measured(chosen, seed, options, picture)
    if output is not None:
        _write(output, document)
    if into is not None:
        _write(into, merged(earlier, document))
    if picture is not None:
        from scanops.bench.picture import draw

        with writing(f"the picture {picture}"):
            draw(document, picture)
    if as_json:
        print_json(document)
    else:
        _print(document)
    click.get_current_context().exit(1 if document["summary"]["wrong"] else 0)


def _measured(chosen: list[Cell], seed: int, options: dict[str, Any], picture: Path | None) -> dict[str, Any]:
    from scanops.bench.report import document
    from scanops.bench.run import host_microseconds, measure_all, require_gpu, surroundings

    require_gpu()
    if picture is not None:
        from scanops.bench.picture import require_matplotlib

        require_matplotlib(picture)
    began = time.perf_counter()
    place = surroundings()
    with _progress(len(chosen)) as said:
        rows = list(measure_all(chosen, peers=options["peers"], budget=options["budget"], said=said))
    return document(
        rows,
        device=place.device,
        versions=place.versions,
        date=place.date,
        seed=seed,
        options=options,
        seconds=time.perf_counter() - began,
        call_us=host_microseconds() if all("error" not in row for row in rows) else None,
    )


def _print(document: dict[str, Any]) -> None:
    from scanops.bench.report import summary_lines, table

    print_table(table(document["cells"]))
    console().print(Text(f"{document['device']}, {document['wall_seconds']:.0f} s"), soft_wrap=True)
    for line in summary_lines(document["summary"]):
        console().print(Text(line, style="bold"), soft_wrap=True)


def _write(path: Path, document: dict[str, Any]) -> None:
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n", f"the figures to {path}")


def _read(path: Path) -> dict[str, Any]:
    """The document of an earlier run, looked at before anything is measured."""
    try:
        with reading(str(path)):
            document = json.loads(path.read_text(encoding="utf-8"))
        if {"device", "versions", "seed", "cells"} <= document.keys():
            return dict(document)
    except (ValueError, AttributeError):
        pass
    raise UnsupportedRequest(
        f"to put figures into {path}",
        allowed="a file that `scanops bench -o` wrote",
        value="no such document",
        hint="write the figures to a file of their own with -o",
    )


def _check_folder(path: Path | None) -> None:
    """What keeps the file from being written shows before an hour's run."""
    if path is not None:
        with writing(str(path)), os.scandir(path.absolute().parent):
            pass


class _progress:
    """What is under way, on standard error: one line that changes on a terminal, a line now and then elsewhere."""

    EVERY = 10.0  # seconds

    def __init__(self, total: int) -> None:
        self._screen = console(stderr=True)
        self._status = self._screen.status("") if self._screen.is_terminal else None
        self._total, self._said, self._last = total, 0, 0.0

    def __enter__(self) -> _progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def __call__(self, words: str) -> None:
        self._said += " dim " in words
        line = f"{self._said} of {self._total}: {words}"
        if self._status:
            self._status.update(Text(line))
        elif time.monotonic() - self._last > self.EVERY:
            self._last = time.monotonic()
            self._screen.print(Text(line), soft_wrap=True)
