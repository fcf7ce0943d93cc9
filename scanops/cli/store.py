"""``scanops store``: list, show, verify and prune the kernels on disk."""

from __future__ import annotations

import json
from itertools import groupby

import click

from scanops import environment
from scanops.cli.output import Command, print_json, say, working
from scanops.cli.pack import verify
from scanops.codegen.spec import ScanSpec
from scanops.errors import BadStoreEntry, MissingKernel, UnsupportedRequest
from scanops.files import format_size, parse_size
from scanops.packs.manifest import spec_fields
from scanops.store.layers import Place, Row, places, rows
from scanops.store.root import check_root
from scanops.store.usage import IDLE_SECONDS, Pruned, prune

__all__ = ["store"]


@click.group("store")
def store() -> None:
    """List, show, verify and prune the kernels on disk.

    These are the kernels of the user's store (SCANOPS_STORE) and of the packs below it (SCANOPS_PACKS, wheels).
    """


@store.command("list", cls=Command, example="scanops store list\nscanops store list --json | jq '.kernels[].slug'")
def list_(as_json: bool) -> None:
    """List kernels, in the order of lookups.

    Each line names the spec, the target, the size and the first digits of the identity. Places that a lookup passes
    over are reported on standard error.
    """
    found = rows()
    unused = [(place, why) for place in places() if (why := _unused(place))]
    if as_json:
        skipped = [{"kind": place.kind, "root": str(place.root), "problem": why} for place, why in unused]
        print_json({"ok": True, "kernels": [_fields(row) for row in found], "unused": skipped})
        return
    width = min(44, max((len(row.slug) for row in found), default=0))  # with which a row fits 80 columns
    for place, each in groupby(found, key=lambda row: row.place):
        say(f"{place.kind} {place.root}", style="bold")
        for row in each:
            say(f"  {row.slug:<{width}}  {row.target:<6}  {format_size(row.size):>8}  {row.entry.identity[:12]}")
    say(f"{len(found)} kernels, {format_size(sum(row.size for row in found))}")
    for place, why in unused:
        say(f"{place.kind} {place.root}: not used: {why}", stderr=True)


@store.command("show", cls=Command, example="scanops store show sum-f32-n32768")
@click.argument("name", metavar="SLUG|IDENTITY")
def show(name: str, as_json: bool) -> None:
    """Print the manifests of kernels.

    NAME is a slug, or four or more hexadecimal digits with which an identity begins.
    """
    found = [row for row in rows() if row.slug == name or (len(name) >= 4 and row.entry.identity.startswith(name))]
    if not found:
        raise MissingKernel(
            f"show the kernel {name}",
            allowed="a slug, or four or more digits of an identity, that `scanops store list` prints",
            value=name,
            hint=f"`scanops plan {name}` lists the nearest kernels, `scanops build {name}` builds it",
        )
    shown = [{**_fields(row), "manifest": row.entry.manifest} for row in found]
    if as_json:
        print_json({"ok": True, "kernels": shown})
    else:
        click.echo("\n".join(json.dumps(each, indent=2) for each in shown))


@store.command("prune", cls=Command, example="scanops store prune --max-size 1GB --dry-run")
@click.option("--max-size", required=True, help="Size the store may keep: 1GB, 500MiB, 0.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@click.option(
    "--idle",
    type=click.FloatRange(min=0),
    default=IDLE_SECONDS,
    show_default=True,
    help="Seconds since its last use after which a kernel may be removed.",
)
def prune_(max_size: str, dry_run: bool, idle: float, as_json: bool) -> None:
    """Remove the kernels used longest ago.

    Removes kernels from the user's store until it is no larger than --max-size. Kernels that a running process has
    loaded stay, and so do packs.
    """
    size = parse_size(max_size, asked="read --max-size")
    if size is None:
        raise UnsupportedRequest(
            "prune the store", allowed="--max-size with a size", value=max_size, hint="pass --max-size 1GB, for example"
        )
    root = environment.store_root()
    done = Pruned(before=0, after=0, removed=(), kept=0)
    if check_root(root):
        with working(f"pruning {root}"):
            done = prune(root, size, idle=idle, dry_run=dry_run)
    if done.refused:
        raise BadStoreEntry(
            f"prune the store {root}",
            allowed="kernels that this user may remove",
            value=f"{done.refused}; {len(done.removed)} kernels removed, {format_size(done.after)} left",
            hint="make the store writable, or prune it as its owner",
        ) from done.refused
    if as_json:
        removed = [{"directory": str(item.path), "bytes": item.size} for item in done.removed]
        facts = {"before_bytes": done.before, "after_bytes": done.after, "in_use": done.kept, "removed": removed}
        print_json({"ok": True, "store": str(root), "dry_run": dry_run, **facts})
        return
    for item in done.removed:
        say(f"{item.path.name}  {format_size(item.size)}")
    say(
        f"{root}: {len(done.removed)} {'would be removed' if dry_run else 'removed'}, {done.kept} in use, "
        f"{format_size(done.before)} -> {format_size(done.after)}"
    )


store.add_command(verify)


def _unused(place: Place) -> str | None:
    """Why lookups pass over a place; None for one that is used, and for a store that does not exist yet."""
    if place.problem is not None:
        return f"{place.problem.value}; {place.problem.hint}"
    return "no such folder" if place.kind == "pack" and not place.exists else None


def _fields(row: Row) -> dict[str, object]:
    try:
        spec = spec_fields(ScanSpec.parse(row.slug))
    except UnsupportedRequest:
        spec = None  # of an operator that this process does not know
    return {
        "slug": row.slug,
        "spec": spec,
        "target": row.target,
        "identity": row.entry.identity,
        "bytes": row.size,
        "kind": row.place.kind,
        "directory": str(row.entry.directory),
    }
