"""``scanops prune``: make the store smaller."""

from __future__ import annotations

import click

from scanops import environment
from scanops.cli.output import Command, print_json, working
from scanops.errors import BadStoreEntry, UnsupportedRequest
from scanops.sizes import format_size, parse_size
from scanops.store.root import check_root
from scanops.store.usage import IDLE_SECONDS, Pruned, prune

__all__ = ["command"]


@click.command("prune", cls=Command, example="scanops prune --max-size 1GB --dry-run")
@click.option("--max-size", required=True, help="What may stay: 1GB, 500MiB, 0.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@click.option(
    "--idle",
    type=click.FloatRange(min=0),
    default=IDLE_SECONDS,
    show_default=True,
    help="Seconds since its last use after which a kernel may go.",
)
def command(max_size: str, dry_run: bool, idle: float, as_json: bool) -> None:
    """Remove kernels from the user's store, least recently used first, until it is no larger than --max-size.

    What a running process has loaded stays. Packs are never touched.
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
            value=f"{done.refused}; {len(done.removed)} kernels went, {format_size(done.after)} are left",
            hint="make the store writable, or prune it where it is",
        ) from done.refused
    if as_json:
        removed = [{"directory": str(item.path), "bytes": item.size} for item in done.removed]
        facts = {"before_bytes": done.before, "after_bytes": done.after, "in_use": done.kept, "removed": removed}
        print_json({"ok": True, "store": str(root), "dry_run": dry_run, **facts})
        return
    for item in done.removed:
        click.echo(f"{item.path.name}  {format_size(item.size)}")
    click.echo(
        f"{root}: {len(done.removed)} {'would go' if dry_run else 'removed'}, {done.kept} in use, "
        f"{format_size(done.before)} -> {format_size(done.after)}"
    )
