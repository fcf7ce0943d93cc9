"""The lock of a build: what is said while it is waited for, where there is none, and what a fork takes along."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import threading
from pathlib import Path
from typing import NoReturn

import pytest

import scanops.builders.build
from scanops.artifact import BuildRequest
from scanops.processes import at_once
from scanops.store import lock
from scanops.store.lock import is_free, locked
from scanops.store.store import Store
from tests.store.sources import counting_cxx, needs_cxx, python

pytestmark = needs_cxx


def test_who_waits_is_told_for_whom_and_since_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "scanops")
    monkeypatch.setattr(lock, "_LINE_SECONDS", 0.1)
    path = tmp_path / "x.lock"
    inside: list[bool] = []
    with locked(path, "build it", 1.0, "going on"):
        os.utime(path, (0, path.stat().st_mtime - 7))
        with locked(path, "build it", 0.3, "going on"):
            inside.append(True)
    holder = rf"process {os.getpid()} on {re.escape(os.uname().nodename)}, for (7|8) s now,"
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert inside and len(said) >= 3
    assert said[0][0] == "INFO" and re.fullmatch(f"waiting for {holder} to build it", said[0][1])
    assert all(level == "WARNING" and re.search(holder, words) for level, words in said[1:])
    assert said[-1][1].startswith("waited 0.3 s") and said[-1][1].endswith("going on")
    assert path.read_bytes() == b""  # nobody holds it
    assert is_free(tmp_path, "x")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO])
def test_where_there_are_no_locks_each_builds_and_all_agree(
    store: Store,
    request_cpu: BuildRequest,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def no_lock(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    together = threading.Barrier(3)  # all of them build
    honest = scanops.builders.build.build
    monkeypatch.setattr(fcntl, "flock", no_lock)
    monkeypatch.setattr(scanops.builders.build, "build", lambda *words: (together.wait(30), honest(*words))[1])
    entries = at_once(lambda _: Store(store.root).get_or_build(request_cpu), range(3), 3)
    assert [entry.directory.parent for entry in entries] == [store.root] * 3  # one published, two use what it did
    assert len({entry.manifest["sha256"] for entry in entries}) == 1
    assert caplog.text.count(f"no lock in {store.root}") == 3 and os.strerror(number) in caplog.text
    assert list((store.root / ".staging").iterdir()) == []
    assert is_free(store.root / ".locks", request_cpu.identity[:16])  # else nothing the dead leave would ever go


FORKS = """
import logging
from scanops import workload
from scanops.codegen.spec import ScanSpec
from scanops.processes import LOADING, NO_FORK
from scanops.store.lock import is_free, locked

def held_by_a_thread(lock, done):
    taken = threading.Event()
    def hold():
        with lock:
            taken.set()
            done()
    threading.Thread(target=hold).start()
    taken.wait()

def in_a_child(action):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs dies of it
        try:
            action()
            os._exit(0)
        finally:
            os._exit(1)
    return child

def ended_well(child):
    return os.waitpid(child, 0)[1] == 0

# A lock of the process, held by a thread that the child lacks: free in it, or its fork has waited.
ended = threading.Event()
held_by_a_thread(workload._LOCK, lambda: ended.wait(60))
with workload.recording():
    note = in_a_child(lambda: workload.note(ScanSpec(op="sum", dtype="float32", length=5), "cpu"))
assert ended_well(note)
ended.set()
for lock in (LOADING, NO_FORK):
    freed = []
    held_by_a_thread(lock, lambda: (time.sleep(0.3), logging.getLogger("of a module"), freed.append(True)))
    child = in_a_child(lock.acquire)
    assert freed and ended_well(child)

# The lock of a build: a child takes none along, so that it goes with its holder.
for end in ("released", "killed"):
    reader, writer = os.pipe()
    waits, lets_go = os.pipe()
    holder = os.fork()
    if holder == 0:
        with locked(root / "x.lock", "hold", 1, "failing"):
            # It says itself that it is there: before that, what a fork does in a child may not have been done.
            in_a_child(lambda: (os.write(writer, b"%20d" % os.getpid()), time.sleep(20)))
            os.read(waits, 1)
        os.write(writer, b"released")
        time.sleep(20)
    grandchild = int(os.read(reader, 20))
    assert not is_free(root, "x"), end
    if end == "released":
        os.write(lets_go, b"!")
        assert os.read(reader, 20) == b"released"
    else:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
    os.kill(grandchild, 0)  # is alive
    assert is_free(root, "x"), end
    for process in (grandchild, *((holder,) if end == "released" else ())):
        os.kill(process, signal.SIGKILL)
"""


def test_forks(tmp_path: Path) -> None:
    out, error = python(FORKS, tmp_path).communicate(timeout=120)
    assert (out, error) == ("", "")


FIRST_BUILDS = """
import faulthandler
store = Store(root)
together = threading.Barrier(8)
children = []
def build(number):
    together.wait()
    store.get_or_build(BuildRequest(name="k", source=CPU_SOURCE + f"// {number % 2}", target="cpu"))
def fork():
    together.wait()
    for number in range(5):
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(40, exit=True)  # where a child hangs
            Store(store.root).get_or_build(BuildRequest(name="k", source=CPU_SOURCE + f"// {number}", target="cpu"))
            os._exit(0)
        children.append(child)
        time.sleep(0.002)
threads = [threading.Thread(target=build, args=(number,)) for number in range(4)]
threads += [threading.Thread(target=fork) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
statuses = [os.waitpid(child, 0)[1] for child in children]
assert statuses == [0] * 20, statuses
"""


@pytest.mark.parametrize("_", range(3))
def test_forks_beside_the_first_builds_of_a_process(tmp_path: Path, _: int) -> None:
    """Fork from four threads while four others import the builders and build: one build of each kernel."""
    compiler, count = counting_cxx(tmp_path)
    process = python(FIRST_BUILDS, tmp_path / "store", SCANOPS_CXX=str(compiler))
    assert process.communicate(timeout=120) == ("", "")
    assert count.read_text() == 5 * "x\n"


EMULATED_FORK = """
import os, signal, sys, threading, torch, scanops
x = torch.arange(2 * 4096 % 97, 2 * 4096 + 2 * 4096 % 97, dtype=torch.float32).view(2, 4096) % 5
def scan():
    with scanops.emulate():
        return scanops.cumsum(x, 1)
assert torch.equal(scan(), x.cumsum(1))
ending = threading.Event()
def busy():
    while not ending.is_set():
        scan()
thread = threading.Thread(target=busy)
thread.start()
statuses = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if torch.equal(scan(), x.cumsum(1)) else 1)
    statuses.append(os.waitpid(child, 0)[1])
ending.set()
thread.join()
assert statuses == [0] * 20, statuses
"""


def test_forks_while_an_emulated_kernel_runs() -> None:
    process = python(EMULATED_FORK, begin="", OMP_NUM_THREADS="1")
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0, out + error
