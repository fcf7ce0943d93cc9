"""``scanops verify``: every byte of a pack, or of the store, against what is written down."""

from __future__ import annotations

from pathlib import Path

import click

from scanops import environment
from scanops.cli.output import Command, print_json, working
from scanops.errors import BadStoreEntry
from scanops.packs.manifest import PACK, verify
from scanops.storage.entry import entry_problem
from scanops.storage.layers import unsafe
from scanops.storage.listing import entries_of
from scanops.storage.root import check_root

__all__ = ["command"]


@click.command("verify", cls=Command, example="scanops verify kernels\nscanops verify")
@click.argument("directory", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
def command(directory: Path | None, as_json: bool) -> None:
    """Check a pack against its pack.json, or the kernels of a store against their manifests. Loads and changes nothing.

    Without DIRECTORY it is the user's store that is checked. Exits with 1 when anything is wrong.
    """
    root = environment.store_root() if directory is None else directory.absolute()
    with working(f"checking {root}"):
        kernels = _pack(root) if (root / PACK).exists() else _store(root)
    if as_json:
        print_json({"ok": True, "directory": str(root), "kernels": kernels})
    else:
        click.echo(f"{root}: {kernels} kernels, all as they were written")


def _pack(root: Path) -> int:
    check_root(root, system=True)
    return len(verify(root)["entries"])


def _store(root: Path) -> int:
    found = list(entries_of(root)) if check_root(root) else []
    checked = [(entry, unsafe(entry.directory) or entry_problem(entry.directory, entry.identity)) for entry in found]
    problems = [f"{entry.directory.name}: {problem}" for entry, problem in checked if problem]
    if problems:
        raise BadStoreEntry(
            f"verify the store {root}",
            allowed="kernels that agree with their manifests",
            value="\n".join(problems),
            hint="delete these folders; the next use builds the kernels again",
        )
    return len(found)
