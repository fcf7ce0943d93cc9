"""What a fork takes along: a child works as any process, holds no lock of its parent and waits for none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.sources import counting_cxx, needs_nvrtc, python

FORKS = """
import logging
from scanops.processes import LOADING, NO_FORK
from scanops.store.root import is_free, locked

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
for _ in range(15):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if work() == expected else 1)
    statuses.append(os.waitpid(child, 0)[1])
ending.set()
for thread in threads:
    thread.join()
assert statuses == [0] * 15, statuses
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
    cubin = nvrtc.compiled(found, CUDA.source, Path("kernel.cu"), nvrtc.options(found, CUDA))[2]
    assert resource.getrlimit(resource.RLIMIT_STACK) == limit
    return cubin
"""


@pytest.mark.parametrize("work", [EMULATED, pytest.param(COMPILED, marks=needs_nvrtc)], ids=["emulated", "nvrtc"])
def test_forks_beside_busy_threads(work: str) -> None:
    process = python(BUSY.format(work=work), begin="", OMP_NUM_THREADS="1")
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0, out + error
