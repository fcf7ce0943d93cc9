"""``scanops pack``: a folder of kernels as one file."""

from __future__ import annotations

from pathlib import Path

import click

from scanops.cli.output import Command, print_json, working
from scanops.packs.archive import FORMATS, pack
from scanops.packs.manifest import finish
from scanops.storage.sizes import format_size

__all__ = ["command"]


@click.command(
    "pack",
    cls=Command,
    example="scanops pack kernels -o kernels.tar.gz\nscanops pack kernels -o my_kernels-1.0-py3-none-linux_x86_64.whl",
)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The file to write; its name ends in {', '.join(FORMATS)}.",
)
def command(directory: Path, output: Path, as_json: bool) -> None:
    """Check the kernels in DIRECTORY, describe them in pack.json and write all of it to one file.

    DIRECTORY is laid out as the store is: what SCANOPS_STORE named when `scanops build` ran, for example. The same
    kernels give the same bytes. A wheel is found by scanops once it is installed.
    """
    with working(f"packing {directory}"):
        finish(directory)
        contents = pack(directory, output)
    kernels, size = len(contents["entries"]), output.stat().st_size
    if as_json:
        print_json({"ok": True, "file": str(output), "kernels": kernels, "bytes": size, "targets": contents["targets"]})
    else:
        click.echo(
            f"{output}: {kernels} kernels for {', '.join(contents['targets'])}, {format_size(size)}, "
            f"{format_size(size // kernels)} a kernel"
        )
