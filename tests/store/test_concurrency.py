"""One build for each kernel, whatever process or thread asks, waits, forks or dies."""

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

import scanops.builders
from benchmarks import stress
from scanops.processes import at_once
from scanops.store import Store
from scanops.store import locks as build_locks
from scanops.store.locks import hold_build_lock, is_free
from tests.store.sources import KERNEL, counting_cxx, needs_nvrtc, python, script


def test_stress() -> None:
    """Run benchmarks/stress.py with few processes; by itself it has 64, and 500 kills."""
    found = stress.measure(processes=2, times=3, seed=20)
    assert stress.is_as_promised(found), found
    assert found["same"]["builds"] == 1 and found["same"]["right"] == 2
    assert found["keys"]["builds"] == found["keys"]["sound"] == 2
    assert sum(found["kills"]["killed"].values()) == found["kills"]["right"] == 3


def test_a_killed_builder_holds_nobody_up(store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
        with caplog.at_level(logging.INFO, "scanops"):
            entry = store.get_or_build(KERNEL)
        assert "waiting for" not in caplog.text
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
    monkeypatch.setenv("SCANOPS_LOCK_SECONDS", "4")
    monkeypatch.setattr(build_locks, "_LINE_SECONDS", 0.5)
    caplog.set_level(logging.INFO, "scanops")
    locks = store.root / ".locks"
    locks.mkdir(parents=True)
    store.root.chmod(0o700)
    with hold_build_lock(locks, KERNEL.identity, "sum-f32", 1.0):
        assert not is_free(locks, KERNEL.identity[:16])
        (held,) = locks.iterdir()
        os.utime(held, (0, held.stat().st_mtime - 7))
        entries = at_once(lambda _: store.get_or_build(KERNEL), range(16), 16)
    assert {entry.directory.parent for entry in entries} == {store.root}
    assert count.read_text() == "x\n"
    holder = rf"process {os.getpid()} on {re.escape(os.uname().nodename)}, for \d+ s now, to build sum-f32"
    waiting = [each.levelname for each in caplog.records if re.fullmatch(f"waiting for {holder}", each.getMessage())]
    assert (waiting[0], waiting.count("INFO")) == ("INFO", 16) and waiting.count("WARNING") >= 16
    vain = f"waited 4 s for {holder} .*; asking for the second lock"
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
    honest = scanops.builders.build
    monkeypatch.setattr(fcntl, "flock", no_lock)
    monkeypatch.setattr(scanops.builders, "build", lambda *words: (together.wait(30), honest(*words))[1])
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
from scanops.codegen.abi import ABI
from scanops.store.library import load
from scanops.store import Store
entry = Store(Path(sys.argv[1])).lookup("sum-f32", "cpu", "key")
assert load(entry).scanops_abi() == ABI
names = "torch", "filelock", "jinja2", "subprocess", "scanops.builders"
print(*[name for name in names if name in sys.modules])
"""
    assert python(code, store.root, begin="").communicate(timeout=30) == ("\n", "")


FORKS = """
import logging
from scanops.forks import FORK_LOCK
from scanops.store.locks import hold_lock, is_free

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

# A lock of the process, held by a thread that the child lacks: the fork waits for it.
freed = []
held_by_a_thread(FORK_LOCK, lambda: (time.sleep(0.3), logging.getLogger("of a module"), freed.append(True)))
child = in_a_child(FORK_LOCK.acquire)
assert freed and ended_well(child)

# The lock of a build: a child takes none along, so that it goes with its holder.
for end in ("released", "killed"):
    reader, writer = os.pipe()
    waits, lets_go = os.pipe()
    holder = os.fork()
    if holder == 0:
        with hold_lock(root / "x.lock", "hold", 1, "failing"):
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


# Forks beside threads that are busy with the same work; a child that waits for a lock of theirs dies of an alarm.
BUSY = """
import os, signal, sys, threading
{work}
expected, ending, statuses = work(), threading.Event(), []
def busy():
    while not ending.is_set():
        assert work() == expected
threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(8):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if work() == expected else 1)
    statuses.append(os.waitpid(child, 0)[1])
ending.set()
for thread in threads:
    thread.join()
assert statuses == [0] * 8, statuses
"""
EMULATED = """
import torch, scanops
x = torch.arange(8192.0).view(2, 4096) % 5
def work():
    with scanops.emulate():
        return scanops.cumsum(x, 1).equal(x.cumsum(1)) or sys.exit("wrong")
"""
COMPILED = """
import resource
from pathlib import Path
from scanops.builders import nvrtc
from tests.store.sources import CUDA
found, limit = nvrtc.require("sm_90"), resource.getrlimit(resource.RLIMIT_STACK)
def work():
    cubin = nvrtc.compile_cubin(found, CUDA.source, Path("kernel.cu"), nvrtc.options(found, CUDA))[2]
    assert resource.getrlimit(resource.RLIMIT_STACK) == limit
    return cubin
"""


@pytest.mark.parametrize("work", [EMULATED, pytest.param(COMPILED, marks=needs_nvrtc)], ids=["emulated", "nvrtc"])
def test_forks_beside_busy_threads(work: str) -> None:
    process = python(BUSY.format(work=work), begin="", OMP_NUM_THREADS="1")
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0, out + error
