"""One build for each kernel, whoever asks and whoever dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from scanops.artifact import BuildRequest
from scanops.store.entry import Entry
from scanops.store.lock import building, is_free
from scanops.store.store import Store
from tests.store.sources import counting_cxx, needs_cxx, python, script

pytestmark = needs_cxx

ASK = """
entry = Store(root).get_or_build(request)
assert load(entry).scanops_abi() == 3
print(entry.directory)
"""


def test_eight_processes_build_once(store: Store, tmp_path: Path) -> None:
    compiler, count = counting_cxx(tmp_path)
    asking = [python(ASK, store.root, SCANOPS_CXX=str(compiler)) for _ in range(8)]
    answers = [process.communicate(timeout=60) for process in asking]
    assert [process.returncode for process in asking] == [0] * 8, answers
    assert len({out for out, _ in answers}) == 1
    assert count.read_text() == "x\n"


def test_a_killed_builder_holds_nobody_up(store: Store, request_cpu: BuildRequest, tmp_path: Path) -> None:
    marker = tmp_path / "compiling"
    stuck = script(
        tmp_path / "stuck-g++", f'[ "$1" = --version ] && exec g++ --version\ntouch "{marker}"\nexec sleep 60'
    )
    builder = python(ASK, store.root, SCANOPS_CXX=str(stuck))
    try:
        deadline = time.monotonic() + 30
        while not marker.exists():
            assert time.monotonic() < deadline and builder.poll() is None
            time.sleep(0.02)
        # The builder alone: its compiler lives on and must not keep the lock.
        os.kill(builder.pid, signal.SIGKILL)
        builder.wait(timeout=10)
        started = time.monotonic()
        entry = store.get_or_build(request_cpu)
        assert time.monotonic() - started < 10
        assert Store(store.root).find(request_cpu.identity) == entry
    finally:
        os.killpg(builder.pid, signal.SIGKILL)
        builder.communicate()


@pytest.mark.parametrize("held", [False, True])
def test_sixteen_threads_share_one_build(
    store: Store,
    request_cpu: BuildRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    held: bool,
) -> None:
    """Build once; and once more beside a holder of the lock that is stopped, however many wait for it in vain."""
    compiler, count = counting_cxx(tmp_path)
    monkeypatch.setenv("SCANOPS_CXX", str(compiler))
    monkeypatch.setenv("SCANOPS_LOCK_SECONDS", "2" if held else "60")
    locks, prefix = store.root / ".locks", request_cpu.identity[:16]
    locks.mkdir(parents=True)
    store.root.chmod(0o700)
    entries: list[Entry] = []
    with building(locks, request_cpu.identity if held else 64 * "0", "sum-f32", 1.0):
        assert is_free(locks, prefix) is not held
        threads = [threading.Thread(target=lambda: entries.append(store.get_or_build(request_cpu))) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert len(entries) == 16 and {entry.directory.parent for entry in entries} == {store.root}
    assert count.read_text() == "x\n"
    assert (f"process {os.getpid()} on" in caplog.text) is held


def test_looking_up_and_loading_imports_neither_torch_nor_the_builder(store: Store, request_cpu: BuildRequest) -> None:
    store.remember("key", store.get_or_build(request_cpu))
    code = """
import sys
from pathlib import Path
from scanops.store.library import load
from scanops.store.store import Store
entry = Store(Path(sys.argv[1])).lookup("key", "sum-f32", "cpu")
assert load(entry).scanops_abi() == 3
names = "torch", "filelock", "jinja2", "subprocess", "scanops.builders.build"
print(*[name for name in names if name in sys.modules])
"""
    assert python(code, store.root, begin="").communicate(timeout=30) == ("\n", "")
