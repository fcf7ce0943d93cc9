"""``scanops list`` and ``scanops info``: the kernels that are there."""

from __future__ import annotations

import json

import click
from rich import box
from rich.table import Table

from scanops.cli.output import Command, print_json, print_table
from scanops.codegen.spec import ScanSpec
from scanops.errors import MissingKernel, UnsupportedRequest
from scanops.packs.manifest import spec_fields
from scanops.sizes import format_size
from scanops.store.layers import Place, Row, places, rows

__all__ = ["command", "info"]


@click.command("list", cls=Command, example="scanops list\nscanops list --json | jq '.kernels[].slug'")
def command(as_json: bool) -> None:
    """List the kernels of the store and of the packs below it, in the order they are looked for."""
    found = rows()
    unused = [(place, why) for place in places() if (why := _unused(place))]
    if as_json:
        skipped = [{"kind": place.kind, "root": str(place.root), "problem": why} for place, why in unused]
        print_json({"ok": True, "kernels": [_fields(row) for row in found], "unused": skipped})
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("spec", "target", "size", "identity", "in"):
        table.add_column(heading, justify="right" if heading == "size" else "left", overflow="fold")
    for row in found:
        where = f"{row.place.kind} {row.place.root}"
        table.add_row(row.slug, row.target, format_size(row.size), row.entry.identity[:16], where)
    print_table(table)
    click.echo(f"{len(found)} kernels, {format_size(sum(row.size for row in found))}")
    for place, why in unused:
        click.echo(f"{place.kind} {place.root}: not used: {why}", err=True)


@click.command("info", cls=Command, example="scanops info sum-f32-n32768")
@click.argument("name", metavar="SLUG|IDENTITY")
def info(name: str, as_json: bool) -> None:
    """Show the manifests of the kernels with this slug, or whose identity begins with these hexadecimal digits."""
    found = [row for row in rows() if row.slug == name or (len(name) >= 4 and row.entry.identity.startswith(name))]
    if not found:
        raise MissingKernel(
            f"show the kernel {name}",
            allowed="a slug, or four or more digits of an identity, that `scanops list` shows",
            value=name,
            hint=f"`scanops explain {name}` says what is near it, `scanops build {name}` builds it",
        )
    shown = [{**_fields(row), "manifest": row.entry.manifest} for row in found]
    if as_json:
        print_json({"ok": True, "kernels": shown})
        return
    for each in shown:
        click.echo(json.dumps(each, indent=2))


def _unused(place: Place) -> str | None:
    """Why a place is passed over; None where it is not, and for a store that nobody has made yet."""
    if place.problem is not None:
        return f"{place.problem.value}; {place.problem.hint}"
    return "no such folder" if place.kind == "pack" and not place.exists else None


def _fields(row: Row) -> dict[str, object]:
    try:
        spec = spec_fields(ScanSpec.parse(row.slug))
    except UnsupportedRequest:
        spec = None  # of a user's operator
    return {
        "slug": row.slug,
        "spec": spec,
        "target": row.target,
        "identity": row.entry.identity,
        "bytes": row.size,
        "kind": row.place.kind,
        "directory": str(row.entry.directory),
    }
