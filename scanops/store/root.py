"""The root folder of a store or a pack: its libraries are loaded into the process, so only its user may write there.

Below a root, folders and files are checked one by one as they are opened (scanops/files.py). Here are also the parts:
objects that several kernels are linked with, kept beside them as ``root/.parts/<name>``, a SHA-256 and the bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from scanops.errors import BadStoreEntry
from scanops.files import opened_folder, read_trusted, write_owned

__all__ = ["check_root", "create_root", "make_folders", "read_part", "require_room", "unwritable", "write_part"]

_LOG = logging.getLogger("scanops")
_ROOM_BYTES = 1 << 20  # more than a build writes
_PART_BYTES = 1 << 28  # of a part, at most
_DIGEST_BYTES = hashlib.sha256().digest_size


def check_root(root: Path, *, system: bool = False) -> bool:
    """Return True when the root exists and is safe, False when it does not exist.

    ``system``: root may own it too, as a pack that an administrator has installed. Raises BadStoreEntry for a root
    that cannot be read, is no folder, belongs to somebody else, or may be written by others. The hint is a command that
    also mends everything below the root.
    """
    kind, variable = ("pack", "SCANOPS_PACKS") if system else ("store", "SCANOPS_STORE")
    owners = {os.geteuid(), 0} if system else {os.geteuid()}
    asked = f"use the {kind} {root}"
    try:
        link = root.lstat()
        with _opened(root) as handle:
            facts = os.fstat(handle)
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        unpack = f"scanops unpack {shlex.quote(str(root))} DIRECTORY, and name that in SCANOPS_PACKS"
        move = f"set {variable} to a folder, or move the file away"
        raise BadStoreEntry(
            asked, allowed="a folder", value="a file of that name", hint=unpack if system else move
        ) from None
    except OSError as problem:
        raise BadStoreEntry(
            asked,
            allowed="a folder its user can read",
            value=problem.strerror or str(problem),
            hint=f"set {variable} to a folder of your own, or let its owner run "
            f"chmod -R go+rX {shlex.quote(str(root))}",
        ) from problem
    owner = next((each.st_uid for each in (facts, link) if each.st_uid not in owners), None)
    if owner is not None:
        raise BadStoreEntry(
            asked,
            allowed=f"a folder of uid {' or '.join(map(str, sorted(owners, reverse=True)))}",
            value=f"owned by uid {owner}",
            hint=f"set {variable} to a folder of your own",
        )
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadStoreEntry(
            asked,
            allowed="a folder that only its owner may write",
            value=f"mode {stat.S_IMODE(facts.st_mode):04o}",
            hint=_mend(root, system=system),
        )
    return True


def _mend(root: Path, *, system: bool) -> str:
    """A command that makes a tree safe in which others could write.

    What they could write, or own, is removed and not corrected: it may have been changed, and nothing would show it.
    """
    quoted = shlex.quote(str(root))
    not_ours = f"! -user {os.geteuid()}" + (" ! -user 0" if system else "")
    remove = f"find {quoted}/ -mindepth 1 '(' -perm /022 -o {not_ours} ')' -prune -exec rm -rf {{}} + "
    again = "; unpack the pack again if kernels are missing then" if system else "; kernels are built again when needed"
    return f"{remove}&& chmod -R go-w {quoted}  # removes what others could have changed{again}"


@contextlib.contextmanager
def _opened(root: Path) -> Iterator[int]:
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def create_root(root: Path) -> None:
    """Make the root, mode 0700, unless it is there. Raises BadStoreEntry where that cannot be done."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise unwritable(root, problem) from problem


def make_folders(root: Path, *names: str) -> None:
    """Make folders below the root, mode 0700, and take them back from others where they are there. Raises OSError."""
    for name in names:
        folder = root / name
        folder.mkdir(mode=0o700, exist_ok=True)
        with opened_folder(folder.parent, follow=True) as above, contextlib.suppress(PermissionError):
            handle = os.open(folder.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            try:
                mode = stat.S_IMODE(os.fstat(handle).st_mode)
                if mode & (stat.S_IWGRP | stat.S_IWOTH):
                    os.fchmod(handle, mode & 0o755)
            finally:
                os.close(handle)


def require_room(folder: Path) -> None:
    """Raise OSError where there is no room for a build: a linker on a full disk fails without saying so."""
    path = folder / "room"
    with path.open("wb") as file:
        file.write(bytes(_ROOM_BYTES))
        file.flush()
        os.fsync(file.fileno())
    path.unlink()


def unwritable(root: Path, problem: OSError) -> BadStoreEntry:
    """Return the error for a store that cannot take a new kernel."""
    return BadStoreEntry(
        f"write to the store {root}",
        allowed="a folder this user can write, with room left",
        value=str(problem),
        hint="set SCANOPS_STORE to such a folder, or name one after -o; kernels already in the store can still be used",
    )


def read_part(root: Path, name: str) -> bytes | None:
    """Return a part; None when it is absent or corrupt, or when others could have changed it."""
    try:
        if not check_root(root):
            return None
        with opened_folder(root, follow=True) as top, opened_folder(".parts", top) as folder:
            data = read_trusted(name, _PART_BYTES, folder)
    except (OSError, BadStoreEntry):
        return None
    digest, part = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return part if hashlib.sha256(part).digest() == digest else None


def write_part(root: Path, name: str, part: bytes) -> None:
    """Keep a part, in one step. Does nothing but log where that cannot be done: it is made again when needed."""
    try:
        make_folders(root, ".parts")
        write_owned(root / ".parts" / name, hashlib.sha256(part).digest() + part, 0o600)
    except OSError as problem:
        _LOG.debug("%s is not kept in %s: %s", name, root, problem)
