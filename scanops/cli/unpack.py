"""``scanops unpack``: a pack from its file."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

import click

from scanops.cli.output import Command, print_json, working
from scanops.packs.archive import MAX_BYTES, unpack
from scanops.sizes import format_size, parse_size

__all__ = ["command"]


@click.command(
    "unpack", cls=Command, example="scanops unpack kernels.tar.gz kernels\nexport SCANOPS_PACKS=$PWD/kernels"
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--max-size", default=format_size(MAX_BYTES), show_default=True, help="Refuse a pack larger than this; none: none."
)
def command(file: Path, directory: Path, max_size: str, as_json: bool) -> None:
    """Unpack an archive or a wheel of kernels.

    Unpacks FILE into the new folder DIRECTORY, every byte checked against pack.json.
    """
    size = parse_size(max_size, asked="read --max-size")
    limit = math.inf if size is None else size
    with working(f"unpacking {file}"):
        contents = unpack(file, directory.absolute(), max_bytes=limit)
    kernels = len(contents["entries"])
    if as_json:
        print_json({"ok": True, "directory": str(directory), "kernels": kernels, "targets": contents["targets"]})
    else:
        click.echo(f"{directory}: {kernels} kernels for {', '.join(contents['targets'])}")
        click.echo(f"export SCANOPS_PACKS={shlex.quote(str(directory.absolute()))}")
