"""``scanops store``, ``pack`` and ``unpack``: the kernels on disk, and kernels as one file."""

from __future__ import annotations

import shlex
from itertools import groupby
from pathlib import Path

import click

from scanops import environment
from scanops.cli.output import Answer, Command, FilePath, as_json, say, working
from scanops.errors import BadSignature, BadStoreEntry
from scanops.files import format_size, size_of
from scanops.forks import import_late
from scanops.store import archive
from scanops.store.entry import MANIFEST, Entry, verify_entry
from scanops.store.layers import Place, entries_of, folders_of, places
from scanops.store.packs import PACK, SIGNATURE, finish, parse
from scanops.store.packs import verify as verify_pack
from scanops.store.root import check_root
from scanops.store.usage import prune

__all__ = ["pack", "store", "unpack"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group("store")
def store() -> None:
    """List, verify and prune the kernels on disk.

    These are the kernels of the user's store (SCANOPS_STORE) and of the packs below it (SCANOPS_PACKS, or pip).
    """


@store.command("list", cls=Command, example="scanops store list\nscanops store list --json | jq '.kernels[].slug'")
def list_() -> Answer:
    """List kernels, in the order of lookups.

    Sizes are those of a kernel's files, then come the beginning of the identity and the builder: nvrtc makes cubins,
    the others make libraries. Places that a lookup passes over are reported on standard error. With --json each kernel
    comes with its folder, whose manifest.json says how it was built.
    """
    searched = places()
    found = [(place, entry) for place in searched if not place.unused for entry in entries_of(place.root)]
    unused = [(place.kind, place.root, place.unused) for place in searched if place.problem]
    read = {entry.directory for _, entry in found}
    for place in (place for place in searched if not place.unused):
        damaged = [path for path in folders_of(place.root) if path not in read]
        unused += [(place.kind, path, f"{MANIFEST} cannot be read; scanops store verify") for path in damaged]
    width = min(39, max((len(entry.slug) for _, entry in found), default=0))  # with which a row fits 80 columns
    total = 0
    lines: list[str | tuple[str, str]] = []
    for place, each in groupby(found, key=lambda row: row[0]):
        lines.append((f"{place.kind} {place.root}", "bold"))
        for _, entry in each:
            size = size_of(entry.directory)
            total += size
            facts = f"{entry.target:<6}  {format_size(size):>8}  {entry.identity[:7]} {entry.builder}"
            lines.append(f"  {entry.slug:<{width}}  {facts}")
    lines.append(f"{len(found)} kernels, {format_size(total)}")
    for kind, path, problem in [] if as_json() else unused:
        say(f"{kind} {path}: not used: {problem}", stderr=True)
    skipped = [{"kind": kind, "root": str(path), "problem": problem} for kind, path, problem in unused]
    return Answer({"kernels": [_fields(*row) for row in found], "unused": skipped}, lines)


@store.command("prune", cls=Command, example="scanops store prune --days 7 --dry-run")
@click.option(
    "--days", type=click.FloatRange(min=0), default=30, show_default=True, help="Days since the last use of a kernel."
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
def prune_(days: float, dry_run: bool) -> Answer:
    """Remove the kernels that were not used for some days.

    Removes them from the user's store. Packs stay, and so do kernels that were used within the hour. Processes that
    have loaded a removed kernel run on.
    """
    root = environment.store_root()
    working(f"pruning {root}")
    try:
        done = prune(root, days, dry_run=dry_run) if check_root(root) else []
    except OSError as problem:
        raise BadStoreEntry(
            f"prune the store {root}",
            allowed="kernels that this user may remove",
            value=str(problem),
            hint="make the store writable, or prune it as its owner",
        ) from problem
    removed = [{"directory": str(path), "bytes": size} for path, size in done]
    total = f"{len(done)} {'would be ' * dry_run}removed, {format_size(sum(size for _, size in done))}"
    lines = [*(f"{path.name}  {format_size(size)}" for path, size in done), f"{root}: {total}"]
    return Answer({"store": str(root), "dry_run": dry_run, "removed": removed}, lines)


@store.command("verify", cls=Command, example="scanops store verify kernels --key PUB.pem\nscanops store verify")
@click.argument("directory", required=False, type=_FOLDER)
@click.option(
    "--key",
    metavar="PUB.pem",
    type=_FILE,
    help="Verify that one of the public keys in this file signed it. By default SCANOPS_REQUIRE_SIGNED.",
)
def verify(directory: Path | None, key: Path | None) -> Answer:
    """Verify every byte of a pack or a store.

    Compares a pack with its pack.json, or the kernels of a store with their manifests. Without a signature that shows
    damage and not who made the kernels. Loads and changes nothing.
    Without DIRECTORY the user's store is verified. Exits with 1 when anything is wrong.
    """
    root = environment.store_root() if directory is None else directory.absolute()
    working(f"verifying {root}")
    kernels, signer = _verify(root, key, needed=directory is not None)
    signed = (root / SIGNATURE).exists()
    facts = {"directory": str(root), "kernels": kernels, "signed": signed, "signer": signer}
    if signer:
        return Answer(facts, [f"{root}: {kernels} kernels, unchanged since they were signed by {signer}"])
    lines = [
        f"{root}: {kernels} kernels, complete and as their {PACK if (root / PACK).exists() else MANIFEST} states",
        "not verified: who made them. A user who could write the files could change that file, too; "
        + ("--key PUB.pem verifies the signature" if signed else "a signature would show it: scanops pack --sign"),
    ]
    return Answer(facts, lines)


@click.command(
    "pack",
    cls=Command,
    example="scanops pack kernels --sign KEY.pem -o kernels.tar.xz",
)
@click.argument("directory", type=_FOLDER)
@click.option(
    "-o",
    "--output",
    required=True,
    type=FilePath(),
    help=f"The file to write; its name ends in {archive.SUFFIX}.",
)
@click.option(
    "--sign",
    "key",
    metavar="KEY.pem",
    type=_FILE,
    help="Sign with an Ed25519 key, from openssl genpkey -algorithm ed25519.",
)
def pack(directory: Path, output: Path, key: Path | None) -> Answer:
    """Write a folder of kernels as one file.

    Verifies the kernels in DIRECTORY and describes them in pack.json, which becomes part of the file. DIRECTORY has the
    layout of a store: the folder that SCANOPS_STORE named when `scanops build` ran, for example. The same kernels give
    the same bytes. The signature is written to pack.json.sig in DIRECTORY
    and in the file; an earlier signature stays as long as the kernels do.
    """
    working(f"packing {directory}")
    finish(directory)
    signer = None
    if key:
        sign = import_late("scanops.store.signatures").sign  # needs the package cryptography
        signer = sign(directory, key, lambda: str(click.prompt(f"Passphrase of {key}", hide_input=True, err=True)))
    contents = archive.pack(directory, output)
    signed = (directory / SIGNATURE).exists()
    kernels, size, targets = len(contents["entries"]), output.stat().st_size, contents["targets"]
    by = f"signed by {signer}" if signer else "signed before" if signed else "not signed"
    sizes = f"{format_size(size)}, {format_size(size // kernels)} a kernel"
    platform = contents["platform"]
    facts = {"kernels": kernels, "bytes": size, "targets": targets, "platform": platform}
    lines = [f"{output}: {kernels} kernels for {', '.join(targets)}, platform {platform}, {sizes}, {by}"]
    return Answer({"file": str(output), **facts, "signed": signed, "signer": signer}, lines)


@click.command(
    "unpack", cls=Command, example="scanops unpack kernels.tar.xz kernels\nexport SCANOPS_PACKS=$PWD/kernels"
)
@click.argument("file", type=_FILE)
@click.argument("directory", type=click.Path(path_type=Path))
def unpack(file: Path, directory: Path) -> Answer:
    """Unpack an archive of kernels.

    Extracts what pack.json lists from FILE into the new folder DIRECTORY, and verifies every byte.
    """
    working(f"unpacking {file}")
    contents = archive.unpack(file, directory.absolute())
    kernels, targets = len(contents["entries"]), contents["targets"]
    if not as_json():
        say(f"{directory}: {kernels} kernels for {', '.join(targets)}")
        click.echo(f"export SCANOPS_PACKS={shlex.quote(str(directory.absolute()))}")  # as it is, for a shell
    return Answer({"directory": str(directory), "kernels": kernels, "targets": targets})


def _verify(root: Path, key: Path | None, *, needed: bool) -> tuple[int, str | None]:
    """Return the number of kernels and the signer of a pack or a store. ``needed``: one without kernels is an error."""
    if (root / PACK).exists():
        check_root(root, system=True)
        key = key or environment.require_signed()
        if key is None:
            return len(verify_pack(root)["entries"]), None
        signatures = import_late("scanops.store.signatures")  # needs the package cryptography
        data, signer = signatures.check(root, signatures.public_keys(key.absolute()))
        return len(verify_pack(root, parse(data, root))["entries"]), signer
    if key:
        raise BadSignature(
            f"verify the signature of {root}",
            allowed=f"a folder with {PACK}, which is what is signed",
            value=f"no {PACK}",
            hint=f"scanops pack {shlex.quote(str(root))} --sign KEY.pem -o FILE",
        )
    found = list(folders_of(root)) if check_root(root) else []
    verdicts = ((path.name, verify_entry(path, path.name[-16:])) for path in found)
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


def _fields(place: Place, entry: Entry) -> dict[str, object]:
    return {
        "slug": entry.slug,
        "spec": entry.spec and entry.spec.to_dict(),
        "target": entry.target,
        "form": entry.form,
        "builder": entry.builder,
        "identity": entry.identity,
        "bytes": size_of(entry.directory),
        "kind": place.kind,
        "directory": str(entry.directory),
    }
