"""The root folder of a store or a pack, and the index records below it.

The libraries below a root are loaded into the process, so only its user may write there: the root is checked before
anything below it is used, and what is below as it is opened (scanops/files.py).

    root/index/<aa>/<sha256 of the key>     the name of an entry's folder, so that a new process need not render
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import stat
from pathlib import Path

from scanops.errors import BadStoreEntry
from scanops.files import OTHERS_WRITE, opened_folder, read_file, secure, write_owned

FOLDER = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]*-[0-9a-f]{16}")  # of an entry: its slug, 16 digits of its identity


def check_root(root: Path, *, system: bool = False) -> bool:
    """Return True when the root exists and is safe, False when it does not exist.

    ``system``: root may own it too, as a pack that an administrator has installed. Raises BadStoreEntry for a root
    that cannot be read, is no folder, belongs to somebody else, or may be written by others. The root may be reached by
    a symbolic link that its owner has made.
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
        # No command to correct the folder: nothing would show what others changed in it, and it may hold other files.
        new = (
            f"scanops unpack the pack into a new folder, and name that in {variable}"
            if system
            else (
                f"set {variable}, or the option -o, to a folder that does not exist yet: it is made with the right mode"
            )
        )
        hint = f"{new}; chmod does not repair this one, whose kernels others could have replaced"
        raise refused("a folder that only its owner may write", f"mode {stat.S_IMODE(facts.st_mode):04o}", hint)
    return True


def create_root(root: Path, *names: str) -> None:
    """Make the root and folders below it, mode 0700, unless they are there. Raises BadStoreEntry, as ``check_root``."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_root(root)
        make_folders(root, *names)
    except OSError as problem:
        raise unwritable(root, problem) from problem


def make_folders(root: Path, *names: str) -> None:
    """Make folders below the root, mode 0700, and take them back from others where they are there. Raises OSError."""
    for name in names:
        (root / name).mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(PermissionError):
            secure(root / name, sync=False)


def unwritable(root: Path, problem: OSError) -> BadStoreEntry:
    """Return the error for a store that cannot take a new kernel."""
    return BadStoreEntry(
        f"write to the store {root}",
        allowed="a folder this user can write, with room left",
        value=str(problem),
        hint="set SCANOPS_STORE to such a folder, or name one after -o; kernels already in the store can still be used",
    )


def read_index(root: Path, key: str) -> str | None:
    """Return the folder of the entry that the index has for ``key``, or None: see ``read_record``."""
    return read_record(root, digest_of_key(key))


def read_record(root: Path, digest: str) -> str | None:
    """Return the folder that a record names; None for a record that is missing, corrupt, unsafe or dangling.

    It is a claim: the entry in that folder must state the spec that was asked for.
    """
    try:
        with opened_folder(root, "index", digest[:2]) as handle:
            name = read_file(digest, 255, handle).decode("ascii")
    except (OSError, ValueError):
        return None
    # The name becomes a path: only a folder directly below the root is accepted.
    return name if FOLDER.fullmatch(name) and (root / name).is_dir() else None


def write_index(root: Path, key: str, name: str) -> None:
    """Record that ``key`` leads to the folder ``name``, in one step. Raises OSError where it cannot be written."""
    path = record_path(digest_of_key(key))
    make_folders(root, "index", str(path.parent))
    write_owned(root / path, name.encode(), 0o600)


def digest_of_key(key: str) -> str:
    """Return the SHA-256 of a key, under which its record is kept."""
    return hashlib.sha256(key.encode()).hexdigest()


def record_path(digest: str) -> Path:
    """Return the path of a record below the root."""
    return Path("index", digest[:2], digest)
