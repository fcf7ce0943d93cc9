"""Who may own and write a store. What lies in it is loaded into the process, so only its user may write there."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from scanops.errors import BadStoreEntry

__all__ = ["check_root", "create_root", "require_room", "unwritable"]

_ROOM_BYTES = 1 << 20  # more than a build writes


def check_root(root: Path, *, system: bool = False) -> bool:
    """True when the root exists and is safe, False when it does not exist. Raises BadStoreEntry when it is not safe.

    With ``system`` the administrator may own it too: a pack is often installed by root and used by others.
    """
    owners = {os.geteuid(), 0} if system else {os.geteuid()}
    quoted = shlex.quote(str(root))  # in what is there to be typed
    asked = f"use the {'pack' if system else 'store'} {root}"
    try:
        facts = [root.stat(), root.lstat()]
    except FileNotFoundError:
        return False
    except OSError as problem:
        raise BadStoreEntry(
            asked,
            allowed="a folder its user can read",
            value=problem.strerror or str(problem),
            hint=f"set {'SCANOPS_PACKS' if system else 'SCANOPS_STORE'} to a folder of your own",
        ) from problem
    if not stat.S_ISDIR(facts[0].st_mode):
        unpacked = f"scanops unpack {quoted} DIRECTORY, and name that in SCANOPS_PACKS"
        raise BadStoreEntry(
            asked,
            allowed="a folder",
            value="a file of that name",
            hint=unpacked if system else "set SCANOPS_STORE to a folder, or move the file away",
        )
    owner = next((fact.st_uid for fact in facts if fact.st_uid not in owners), None)
    if owner is not None:
        raise BadStoreEntry(
            asked,
            allowed=f"a folder of uid {' or '.join(map(str, sorted(owners, reverse=True)))}",
            value=f"owned by uid {owner}",
            hint=f"use a folder of your own (SCANOPS_STORE, SCANOPS_PACKS), or chown -R {os.geteuid()} {quoted}",
        )
    mode = stat.S_IMODE(facts[0].st_mode)
    if mode & 0o022:
        raise BadStoreEntry(
            asked,
            allowed="a folder that only its owner may write",
            value=f"mode {mode:04o}",
            hint=f"chmod {'-R ' if system else ''}go-w {quoted}",
        )
    if not os.access(root, os.R_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise BadStoreEntry(
            asked,
            allowed="a folder its user can read",
            value=f"mode {mode:04o} of uid {facts[0].st_uid}, this is uid {os.geteuid()}",
            hint=f"let its owner run chmod -R go+rX {quoted}",
        )
    return True


def create_root(root: Path) -> None:
    """Make the root, mode 0700, unless it is there. Raises BadStoreEntry where that cannot be done."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise unwritable(root, problem) from problem


def require_room(folder: Path) -> None:
    """Raises OSError where there is no room for a build: a linker on a full disk fails without a word of it."""
    path = folder / "room"
    with path.open("wb") as file:
        file.write(bytes(_ROOM_BYTES))
        file.flush()
        os.fsync(file.fileno())
    path.unlink()


def unwritable(root: Path, problem: OSError) -> BadStoreEntry:
    """The error for a store that cannot take a new kernel."""
    return BadStoreEntry(
        f"write to the store {root}",
        allowed="a folder this user can write, with room left",
        value=str(problem),
        hint="set SCANOPS_STORE to such a folder, or name one after -o; kernels already in the store can still be used",
    )
