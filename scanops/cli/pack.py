"""``scanops pack``: a folder of kernels as one file."""

from __future__ import annotations

from pathlib import Path

import click

from scanops.cli.output import Command, FilePath, print_json, working
from scanops.packs.archive import FORMATS, pack
from scanops.packs.manifest import finish
from scanops.sizes import format_size
from scanops.store.packs import SIGNATURE

__all__ = ["command"]


@click.command(
    "pack",
    cls=Command,
    example="scanops pack kernels --sign KEY.pem -o kernels.tar.gz\n"
    "scanops pack kernels -o my_kernels-1.0-py3-none-linux_x86_64.whl",
)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=FilePath(),
    help=f"The file to write; its name ends in {', '.join(FORMATS)}.",
)
@click.option(
    "--sign",
    "key",
    metavar="KEY.pem",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Sign it with this Ed25519 key, as `openssl genpkey -algorithm ed25519` writes it.",
)
def command(directory: Path, output: Path, key: Path | None, as_json: bool) -> None:
    """Write a folder of kernels as one file.

    Checks the kernels in DIRECTORY and describes them in pack.json, which goes into the file, too.

    DIRECTORY is laid out as the store is: what SCANOPS_STORE named when `scanops build` ran, for example. The same
    kernels give the same bytes. A wheel is found by scanops once it is installed. The signature is a file of DIRECTORY,
    pack.json.sig, and of what is written; an earlier one stays as long as the kernels do.
    """
    with working(f"packing {directory}"):
        finish(directory)
    signer = _signed(directory, key) if key else None
    with working(f"packing {directory}"):
        contents = pack(directory, output)
    signed = (directory / SIGNATURE).exists()
    kernels, size = len(contents["entries"]), output.stat().st_size
    if as_json:
        facts = {"kernels": kernels, "bytes": size, "targets": contents["targets"], "signed": signed, "signer": signer}
        print_json({"ok": True, "file": str(output), **facts})
    else:
        click.echo(
            f"{output}: {kernels} kernels for {', '.join(contents['targets'])}, {format_size(size)}, "
            f"{format_size(size // kernels)} a kernel, "
            + (f"signed by {signer}" if signer else "signed before" if signed else "not signed")
        )


def _signed(directory: Path, key: Path) -> str:
    from scanops.store.signatures import sign  # needs a package of its own

    return sign(directory, key, lambda: str(click.prompt(f"Passphrase of {key}", hide_input=True, err=True)))
