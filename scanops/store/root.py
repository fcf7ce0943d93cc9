"""The root folder of a store or a pack, and the index records below it.

The libraries below a root are loaded into the process, so only its user may write there: the root is checked before
anything below it is used, and what is below as it is opened (scanops/files.py).

    root/index/<aa>/<sha256 of the key>.json   from a lookup key to an entry, so that a new process need not render
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scanops.errors import BadStoreEntry
from scanops.files import OTHERS_WRITE, opened_folder, parse_object, read_file, secure, write_owned

_LOG = logging.getLogger("scanops")
_ROOM_BYTES = 1 << 20  # more than a build writes
_RECORD_BYTES = 4096  # of an index record, at most; one has about 300
_IDENTITY = re.compile(r"[0-9a-f]{64}")


def check_root(root: Path, *, system: bool = False) -> bool:
    """Return True when the root exists and is safe, False when it does not exist.

    ``system``: root may own it too, as a pack that an administrator has installed. Raises BadStoreEntry for a root
    that cannot be read, is no folder, belongs to somebody else, or may be written by others. The hint is a command that
    also mends everything below the root.
    """
    kind, variable = ("pack", "SCANOPS_PACKS") if system else ("store", "SCANOPS_STORE")
    owners = {os.geteuid(), 0} if system else {os.geteuid()}
    own, quoted = f"set {variable} to a folder of your own", shlex.quote(str(root))

    def refused(allowed: str, value: str, hint: str) -> BadStoreEntry:
        return BadStoreEntry(f"use the {kind} {root}", allowed=allowed, value=value, hint=hint)

    try:
        link = root.lstat()
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            facts = os.fstat(handle)
        finally:
            os.close(handle)
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        unpack = f"scanops unpack {quoted} DIRECTORY, and name that in SCANOPS_PACKS"
        move = f"set {variable} to a folder, or move the file away"
        raise refused("a folder", "a file of that name", unpack if system else move) from None
    except OSError as problem:
        hint = f"{own}, or let its owner run chmod -R go+rX {quoted}"
        raise refused("a folder its user can read", problem.strerror or str(problem), hint) from problem
    owner = next((each.st_uid for each in (facts, link) if each.st_uid not in owners), None)
    if owner is not None:
        allowed = f"a folder of uid {' or '.join(map(str, sorted(owners, reverse=True)))}"
        raise refused(allowed, f"owned by uid {owner}", own)
    if facts.st_mode & OTHERS_WRITE:
        # What others could write, or own, is removed and not corrected: nothing would show that they changed it.
        not_ours = f"! -user {os.geteuid()}" + (" ! -user 0" if system else "")
        remove = f"find {quoted}/ -mindepth 1 '(' -perm /022 -o {not_ours} ')' -prune -exec rm -rf {{}} +"
        again = "unpack the pack again if kernels are missing then" if system else "kernels are built again when needed"
        hint = f"{remove} && chmod -R go-w {quoted}  # removes what others could have changed; {again}"
        raise refused("a folder that only its owner may write", f"mode {stat.S_IMODE(facts.st_mode):04o}", hint)
    return True


def create_root(root: Path) -> None:
    """Make the root, mode 0700, unless it is there. Raises BadStoreEntry where that cannot be done."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise unwritable(root, problem) from problem


def make_folders(root: Path, *names: str) -> None:
    """Make folders below the root, mode 0700, and take them back from others where they are there. Raises OSError."""
    for name in names:
        (root / name).mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(PermissionError):
            secure(root / name, sync=False)


def require_room(folder: Path) -> None:
    """Raise OSError where there is no room for a build: a linker on a full disk fails without saying so."""
    write_owned(folder / "room", bytes(_ROOM_BYTES))
    (folder / "room").unlink()


def unwritable(root: Path, problem: OSError) -> BadStoreEntry:
    """Return the error for a store that cannot take a new kernel."""
    return BadStoreEntry(
        f"write to the store {root}",
        allowed="a folder this user can write, with room left",
        value=str(problem),
        hint="set SCANOPS_STORE to such a folder, or name one after -o; kernels already in the store can still be used",
    )


def read_index(root: Path, key: str, listed: Mapping[str, Mapping[str, Any]] | None = None) -> tuple[str, str] | None:
    """Return (identity, folder name) for ``key``; None for a record that is missing, corrupt, unsafe or dangling.

    With ``listed``, path below the root -> size and SHA-256, also for a record that is not listed or differs. The
    digest in a record is no signature: the entry that it leads to must state the spec that was asked for.
    """
    folder, name = _record_path(key)
    try:
        with opened_folder(root, "index", folder) as handle:
            data = read_file(name, _RECORD_BYTES, handle)
        if listed is not None and hashlib.sha256(data).hexdigest() != listed[f"index/{folder}/{name}"]["sha256"]:
            return None
        fields = parse_object(data)
        identity, entry = fields["identity"], fields["directory"]
        # The name becomes a path: only a folder of this identity directly below the root is accepted.
        sound = _IDENTITY.fullmatch(identity) and entry.endswith("-" + identity[:16]) and "/" not in entry
        sound = sound and data == index_record(key, identity, entry)
        return (identity, entry) if sound and (root / entry).is_dir() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_index(root: Path, key: str, identity: str, entry: str) -> None:
    """Record that ``key`` leads to the folder ``entry``, in one step. Raises OSError where it cannot be written."""
    folder, name = _record_path(key)
    make_folders(root, "index", f"index/{folder}")
    write_owned(root / "index" / folder / name, index_record(key, identity, entry), 0o600)


def index_record(key: str, identity: str, entry: str) -> bytes:
    """Return the bytes that are kept for ``key``, with a digest over all three."""
    digest = hashlib.sha256(json.dumps([key, identity, entry]).encode()).hexdigest()
    return (json.dumps({"identity": identity, "directory": entry, "sha256": digest}) + "\n").encode()


def _record_path(key: str) -> tuple[str, str]:
    name = hashlib.sha256(key.encode()).hexdigest()
    return name[:2], f"{name}.json"
