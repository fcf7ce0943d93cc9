"""``scanops store verify``: every byte of a pack, or of the store, against what is written down."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from scanops import environment
from scanops.cli.output import Command, print_json, working
from scanops.errors import BadSignature, BadStoreEntry
from scanops.packs.manifest import verify
from scanops.store.entry import entry_problem
from scanops.store.layers import entries_of
from scanops.store.packs import PACK, SIGNATURE, parse
from scanops.store.root import check_root

__all__ = ["command"]


@click.command("verify", cls=Command, example="scanops store verify kernels --key PUB.pem\nscanops store verify")
@click.argument("directory", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--key",
    metavar="PUB.pem",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Check that one of the public keys in this file signed it. By default SCANOPS_REQUIRE_SIGNED.",
)
def command(directory: Path | None, key: Path | None, as_json: bool) -> None:
    """Check every byte of a pack or a store.

    Compares a pack with its pack.json, or the kernels of a store with their manifests. Loads and changes nothing.

    Without DIRECTORY it is the user's store that is checked. Exits with 1 when anything is wrong.
    """
    root = environment.store_root() if directory is None else directory.absolute()
    with working(f"checking {root}"):
        if (root / PACK).exists():
            kernels, signer = _pack(root, key or environment.require_signed())
        elif key:
            raise _unsigned(root)
        else:
            kernels, signer = _store(root), None
            if directory is not None and not kernels:
                raise _nothing(root)
    signed = (root / SIGNATURE).exists()
    if as_json:
        print_json({"ok": True, "directory": str(root), "kernels": kernels, "signed": signed, "signer": signer})
    else:
        by = f", signed by {signer}" if signer else ", signed by somebody: --key PUB.pem checks it" if signed else ""
        click.echo(f"{root}: {kernels} kernels, all as they were written{by}")


def _pack(root: Path, key: Path | None) -> tuple[int, str | None]:
    check_root(root, system=True)
    if key is None:
        return len(verify(root)["entries"]), None
    from scanops.store.signatures import check, public_keys  # need a package of their own

    data, signer = check(root, public_keys(key.absolute()))
    return len(verify(root, parse(data, root))["entries"]), signer


def _unsigned(root: Path) -> BadSignature:
    return BadSignature(
        f"verify the signature of {root}",
        allowed=f"a folder with {PACK}, which is what is signed",
        value=f"no {PACK}",
        hint=f"scanops pack {shlex.quote(str(root))} --sign KEY.pem -o FILE",
    )


def _nothing(root: Path) -> BadStoreEntry:
    return BadStoreEntry(
        f"verify {root}",
        allowed=f"a pack, or a store with kernels in it: a folder with {PACK}, or with entries",
        value="neither",
        hint="name the folder that `scanops unpack` or `scanops precompile` made",
    )


def _store(root: Path) -> int:
    found = list(entries_of(root)) if check_root(root) else []
    checked = [(entry, entry_problem(entry.directory, entry.identity)) for entry in found]
    problems = [f"{entry.directory.name}: {problem}" for entry, problem in checked if problem]
    if problems:
        raise BadStoreEntry(
            f"verify the store {root}",
            allowed="kernels that agree with their manifests",
            value="\n".join(problems),
            hint="delete these folders; the next use builds the kernels again",
        )
    return len(found)
