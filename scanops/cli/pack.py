"""``scanops pack``, ``scanops unpack`` and ``scanops store verify``: kernels as one file, and their digests."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

import click

from scanops import environment
from scanops.cli.output import Command, FilePath, print_json, say, working
from scanops.errors import BadSignature, BadStoreEntry
from scanops.files import format_size, parse_size
from scanops.packs import archive, manifest
from scanops.store.entry import checked
from scanops.store.layers import entries_of
from scanops.store.packs import PACK, SIGNATURE, parse
from scanops.store.root import check_root

__all__ = ["pack", "unpack", "verify"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(
    "pack",
    cls=Command,
    example="scanops pack kernels --sign KEY.pem -o kernels.tar.gz\n"
    "scanops pack kernels -o my_kernels-1.0-py3-none-linux_x86_64.whl",
)
@click.argument("directory", type=_FOLDER)
@click.option(
    "-o",
    "--output",
    required=True,
    type=FilePath(),
    help=f"The file to write; its name ends in {', '.join(archive.FORMATS)}.",
)
@click.option(
    "--sign",
    "key",
    metavar="KEY.pem",
    type=_FILE,
    help="Sign with an Ed25519 key, from openssl genpkey -algorithm ed25519.",
)
def pack(directory: Path, output: Path, key: Path | None, as_json: bool) -> None:
    """Write a folder of kernels as one file.

    Verifies the kernels in DIRECTORY and describes them in pack.json, which becomes part of the file. DIRECTORY has the
    layout of a store: the folder that SCANOPS_STORE named when `scanops build` ran, for example. The same kernels give
    the same bytes. scanops finds an installed wheel by itself. The signature is written to pack.json.sig in DIRECTORY
    and in the file; an earlier signature stays as long as the kernels do.
    """
    with working(f"packing {directory}"):
        manifest.finish(directory)
    signer = None
    if key:
        from scanops.store.signatures import sign  # needs the package cryptography

        signer = sign(directory, key, lambda: str(click.prompt(f"Passphrase of {key}", hide_input=True, err=True)))
    with working(f"packing {directory}"):
        contents = archive.pack(directory, output)
    signed = (directory / SIGNATURE).exists()
    kernels, size, targets = len(contents["entries"]), output.stat().st_size, contents["targets"]
    if as_json:
        facts = {"kernels": kernels, "bytes": size, "targets": targets, "signed": signed, "signer": signer}
        print_json({"ok": True, "file": str(output), **facts})
        return
    by = f"signed by {signer}" if signer else "signed before" if signed else "not signed"
    sizes = f"{format_size(size)}, {format_size(size // kernels)} a kernel"
    say(f"{output}: {kernels} kernels for {', '.join(targets)}, {sizes}, {by}")


@click.command(
    "unpack", cls=Command, example="scanops unpack kernels.tar.gz kernels\nexport SCANOPS_PACKS=$PWD/kernels"
)
@click.argument("file", type=_FILE)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--max-size",
    default=format_size(archive.MAX_BYTES),
    show_default=True,
    help="Refuse a larger pack; none: no limit.",
)
def unpack(file: Path, directory: Path, max_size: str, as_json: bool) -> None:
    """Unpack an archive or a wheel of kernels.

    Extracts what pack.json lists from FILE into the new folder DIRECTORY, and verifies every byte.
    """
    size = parse_size(max_size, asked="read --max-size")
    with working(f"unpacking {file}"):
        contents = archive.unpack(file, directory.absolute(), max_bytes=math.inf if size is None else size)
    kernels, targets = len(contents["entries"]), contents["targets"]
    if as_json:
        print_json({"ok": True, "directory": str(directory), "kernels": kernels, "targets": targets})
    else:
        say(f"{directory}: {kernels} kernels for {', '.join(targets)}")
        click.echo(f"export SCANOPS_PACKS={shlex.quote(str(directory.absolute()))}")


@click.command("verify", cls=Command, example="scanops store verify kernels --key PUB.pem\nscanops store verify")
@click.argument("directory", required=False, type=_FOLDER)
@click.option(
    "--key",
    metavar="PUB.pem",
    type=_FILE,
    help="Verify that one of the public keys in this file signed it. By default SCANOPS_REQUIRE_SIGNED.",
)
def verify(directory: Path | None, key: Path | None, as_json: bool) -> None:
    """Verify every byte of a pack or a store.

    Compares a pack with its pack.json, or the kernels of a store with their manifests. Loads and changes nothing.
    Without DIRECTORY the user's store is verified. Exits with 1 when anything is wrong.
    """
    root = environment.store_root() if directory is None else directory.absolute()
    with working(f"verifying {root}"):
        kernels, signer = _verified(root, key, needed=directory is not None)
    signed = (root / SIGNATURE).exists()
    if as_json:
        print_json({"ok": True, "directory": str(root), "kernels": kernels, "signed": signed, "signer": signer})
    else:
        by = f", signed by {signer}" if signer else ", signed: --key PUB.pem verifies by whom" if signed else ""
        say(f"{root}: {kernels} kernels, unchanged since they were written{by}")


def _verified(root: Path, key: Path | None, *, needed: bool) -> tuple[int, str | None]:
    """Return the number of kernels and the signer of a pack or a store. ``needed``: one without kernels is an error."""
    if (root / PACK).exists():
        check_root(root, system=True)
        key = key or environment.require_signed()
        if key is None:
            return len(manifest.verify(root)["entries"]), None
        from scanops.store.signatures import check, public_keys  # need the package cryptography

        data, signer = check(root, public_keys(key.absolute()))
        return len(manifest.verify(root, parse(data, root))["entries"]), signer
    if key:
        raise BadSignature(
            f"verify the signature of {root}",
            allowed=f"a folder with {PACK}, which is what is signed",
            value=f"no {PACK}",
            hint=f"scanops pack {shlex.quote(str(root))} --sign KEY.pem -o FILE",
        )
    found = list(entries_of(root)) if check_root(root) else []
    verdicts = ((entry.directory.name, checked(entry.directory, entry.identity)) for entry in found)
    problems = [f"{name}: {verdict}" for name, verdict in verdicts if isinstance(verdict, str)]
    if problems:
        raise BadStoreEntry(
            f"verify the store {root}",
            allowed="kernels that match their manifests",
            value="\n".join(problems),
            hint="delete these folders; the next use builds the kernels again",
        )
    if needed and not found:
        raise BadStoreEntry(
            f"verify {root}",
            allowed=f"a pack, or a store with kernels in it: a folder with {PACK}, or with entries",
            value="neither",
            hint="name the folder that `scanops unpack` or `scanops precompile` made",
        )
    return len(found), None
