"""One build for each kernel, whatever process or thread asks, waits or dies: the locks of builds."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import NoReturn

import pytest

import scanops.builders.build
from benchmarks import stress
from scanops.processes import at_once
from scanops.requests.geometry import ScanArguments
from scanops.store import root
from scanops.store.root import building, is_free
from scanops.store.store import Store
from tests.store.sources import KERNEL, counting_cxx, python, script


def test_stress() -> None:
    """Run benchmarks/stress.py with few processes; by itself it has 64, and 500 kills."""
    assert ScanArguments._fields_[: len(stress.Arguments._fields_)] == stress.Arguments._fields_
    found = stress.measure(processes=4, times=6, seed=20)
    assert stress.is_as_promised(found), found
    assert found["same"]["builds"] == 1 and found["same"]["right"] == 4
    assert found["keys"]["builds"] == found["keys"]["sound"] == 4
    assert sum(found["kills"]["killed"].values()) == found["kills"]["right"] == 6


def test_a_killed_builder_holds_nobody_up(store: Store, tmp_path: Path) -> None:
    marker = tmp_path / "compiling"
    stuck = script(
        tmp_path / "stuck-g++", f'[ "$1" = --version ] && exec g++ --version\ntouch "{marker}"\nexec sleep 60'
    )
    builder = python("Store(root).get_or_build(request)", store.root, SCANOPS_CXX=str(stuck))
    try:
        deadline = time.monotonic() + 30
        while not marker.exists():
            assert time.monotonic() < deadline and builder.poll() is None
            time.sleep(0.02)
        # The builder alone: its compiler lives on and must not keep the lock.
        os.kill(builder.pid, signal.SIGKILL)
        builder.wait(timeout=10)
        started = time.monotonic()
        entry = store.get_or_build(KERNEL)
        assert time.monotonic() - started < 10
        assert Store(store.root).find(KERNEL.identity) == entry
    finally:
        os.killpg(builder.pid, signal.SIGKILL)
        builder.communicate()


def test_threads_that_wait_in_vain_share_one_build(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Build once beside a holder of the lock that is stopped, and log for whom each of the threads waits."""
    compiler, count = counting_cxx(tmp_path)
    monkeypatch.setenv("SCANOPS_CXX", str(compiler))
    monkeypatch.setenv("SCANOPS_LOCK_SECONDS", "2")
    monkeypatch.setattr(root, "_LINE_SECONDS", 0.5)
    caplog.set_level(logging.INFO, "scanops")
    locks = store.root / ".locks"
    locks.mkdir(parents=True)
    store.root.chmod(0o700)
    with building(locks, KERNEL.identity, "sum-f32", 1.0):
        assert not is_free(locks, KERNEL.identity[:16])
        (held,) = locks.iterdir()
        os.utime(held, (0, held.stat().st_mtime - 7))
        entries = at_once(lambda _: store.get_or_build(KERNEL), range(16), 16)
    assert {entry.directory.parent for entry in entries} == {store.root}
    assert count.read_text() == "x\n"
    holder = rf"process {os.getpid()} on {re.escape(os.uname().nodename)}, for \d+ s now, to build sum-f32"
    waiting = [each.levelname for each in caplog.records if re.fullmatch(f"waiting for {holder}", each.getMessage())]
    assert (waiting[0], waiting.count("INFO")) == ("INFO", 16) and waiting.count("WARNING") >= 16
    vain = f"waited 2 s for {holder} .*; asking for the second lock"
    assert len([each for each in caplog.messages if re.fullmatch(vain, each)]) == 16
    assert is_free(locks, KERNEL.identity[:16])
    assert {path.read_bytes() for path in locks.iterdir()} == {b""}  # nobody holds one


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO])
def test_where_there_are_no_locks_each_builds_and_all_agree(
    store: Store, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_lock(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    together = threading.Barrier(3)  # all of them build
    honest = scanops.builders.build.build
    monkeypatch.setattr(fcntl, "flock", no_lock)
    monkeypatch.setattr(scanops.builders.build, "build", lambda *words: (together.wait(30), honest(*words))[1])
    entries = at_once(lambda _: Store(store.root).get_or_build(KERNEL), range(3), 3)
    assert [entry.directory.parent for entry in entries] == [store.root] * 3  # one published, two use what it did
    assert len({entry.manifest["sha256"] for entry in entries}) == 1
    assert caplog.text.count(f"no lock in {store.root}") == 3 and os.strerror(number) in caplog.text
    assert list((store.root / ".staging").iterdir()) == []
    assert is_free(store.root / ".locks", KERNEL.identity[:16])  # else nothing the dead leave would ever go


def test_looking_up_and_loading_imports_neither_torch_nor_the_builder(store: Store) -> None:
    store.remember("key", store.get_or_build(KERNEL))
    code = """
import sys
from pathlib import Path
from scanops.artifact import ABI
from scanops.store.library import load
from scanops.store.store import Store
entry = Store(Path(sys.argv[1])).lookup("sum-f32", "cpu", "key")
assert load(entry).scanops_abi() == ABI
names = "torch", "filelock", "jinja2", "subprocess", "scanops.builders.build"
print(*[name for name in names if name in sys.modules])
"""
    assert python(code, store.root, begin="").communicate(timeout=30) == ("\n", "")
