"""The root folder of a store or a pack, and the index records and build locks below it.

The libraries below a root are loaded into the process, so only its user may write there: the root is checked before
anything below it is used, and what is below as it is opened (scanops/files.py).

    root/index/<aa>/<sha256 of the key>     the name of an entry's folder, so that a new process need not render
    root/.locks/<16 hex of identity>.lock   held while a kernel is built: one builder over threads and processes

The operating system drops a lock when its holder dies. Locks save work and are not needed for correctness: publishing
is atomic, so a process that waits too long, or has a file system without locks, builds a private copy. They are flock
with no library above it: where there is no flock, those fall back to files that outlive their holder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import shlex
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from scanops.errors import BadStoreEntry
from scanops.files import OTHERS_WRITE, opened_folder, read_file, secure, write_owned
from scanops.forks import reset_in_child

_LOG = logging.getLogger("scanops")
FOLDER = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]*-[0-9a-f]{16}")  # of an entry: its slug, 16 digits of its identity

_POLL_SECONDS = 0.05
_LINE_SECONDS = 10.0  # between two lines about the same wait
_STALE_SECONDS = 3600.0  # age of what a dead builder has left
_TAKEN = (errno.EAGAIN, errno.EACCES)  # network file systems answer the second
_SUFFIXES = (".lock", ".second.lock")
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN: set[int] = set()  # descriptors of lock files that this process has opened


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


# ---- build locks


@contextlib.contextmanager
def building(folder: Path, identity: str, name: str, seconds: float) -> Iterator[None]:
    """Hold the build lock of ``identity`` for a ``with`` block.

    After ``seconds`` of waiting, for a holder that is stopped for example, the second lock of the same kernel is asked
    for: all who have waited in vain share one more build. After another ``seconds`` each goes on without a lock.
    """
    first, second = (folder / f"{identity[:16]}{suffix}" for suffix in _SUFFIXES)
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(locked(first, f"build {name}", seconds, "asking for the second lock"))
        if held is False:  # where there are no locks, the second is none either
            stack.enter_context(locked(second, f"build {name} a second time", seconds, "building a private copy"))
        yield


@contextlib.contextmanager
def locked(path: Path, what: str, seconds: float, otherwise: str) -> Iterator[bool | None]:
    """Hold the lock file ``path`` for a ``with`` block, or go on without it after ``seconds``.

    Yields True with the lock, False after waiting in vain, None where the file system has no locks. ``what`` the holder
    does and what is done ``otherwise`` are for the log, which names the holder and its age.
    """
    handle, held = -1, None
    try:
        try:
            handle = os.open(path, _FLAGS | os.O_CREAT, 0o600)
            _OPEN.add(handle)
            held = _take_lock(handle) or _wait(handle, what, seconds, otherwise)
            if held:
                with contextlib.suppress(OSError):  # on a full disk the log names no holder
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
        except OSError as problem:
            _LOG.warning("no lock in %s to %s (%s); going on without", path.parent, what, problem)
        yield held
    finally:
        if handle in _OPEN:  # not in a child, which has closed its copies
            if held:  # unlocked explicitly: a process forked without Python's knowledge may have a copy
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, 0)
                    fcntl.flock(handle, fcntl.LOCK_UN)
            _OPEN.discard(handle)
            os.close(handle)


def sweep(root: Path) -> None:
    """Remove what processes that died have left in .staging for an hour: builds whose locks nobody holds."""
    for stage in (root / ".staging").glob("*"):
        with contextlib.suppress(OSError):
            if abs(time.time() - stage.stat().st_mtime) > _STALE_SECONDS and is_free(root / ".locks", stage.name[:16]):
                shutil.rmtree(stage, ignore_errors=True)


def is_free(folder: Path, prefix: str) -> bool:
    """Return whether nobody builds the kernel whose identity starts with ``prefix``, as far as locks can tell."""
    for suffix in _SUFFIXES:
        with contextlib.suppress(OSError):
            handle = os.open(folder / f"{prefix}{suffix}", _FLAGS)
            try:
                if not _take_lock(handle):
                    return False
            finally:
                os.close(handle)
    return True


def _wait(handle: int, what: str, seconds: float, otherwise: str) -> bool:
    """Return whether the lock was taken within ``seconds``."""
    began, lines = time.monotonic(), 0
    while not _take_lock(handle):
        waited = time.monotonic() - began
        if waited >= seconds:
            _LOG.warning("waited %g s for %s to %s (SCANOPS_LOCK_SECONDS); %s", seconds, _who(handle), what, otherwise)
            return False
        if waited >= lines * _LINE_SECONDS:
            _LOG.log(logging.WARNING if lines else logging.INFO, "waiting for %s to %s", _who(handle), what)
            lines += 1
        time.sleep(min(_POLL_SECONDS, seconds - waited))
    return True


def _who(handle: int) -> str:
    """Return the holder of a lock file, and for how long it has held it by the clock of the file system."""
    try:
        name, since = os.pread(handle, 200, 0).decode(errors="replace"), os.fstat(handle).st_mtime
    except OSError:
        name = ""
    return f"{name}, for {max(0.0, time.time() - since):.0f} s now," if name else "another process"


def _take_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in _TAKEN:
            return False
        raise
    return True


@reset_in_child
def _close_copies() -> None:
    """Close the child's copies of the descriptors: they would hold the locks after the holder has died."""
    while _OPEN:
        os.close(_OPEN.pop())
