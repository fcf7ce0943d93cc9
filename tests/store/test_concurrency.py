"""One build for each kernel, whoever asks and whoever dies."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from scanops.artifact import BuildRequest
from scanops.processes import at_once
from scanops.store.lock import building, is_free
from scanops.store.store import Store
from tests.store.sources import counting_cxx, needs_cxx, python, script

pytestmark = needs_cxx

ASK = """
entry = Store(root).get_or_build(request)
assert load(entry).scanops_abi() == 3
print(entry.directory)
"""


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


def test_threads_that_wait_in_vain_share_one_build(
    store: Store,
    request_cpu: BuildRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Build once beside a holder of the lock that is stopped, however many threads wait for it."""
    compiler, count = counting_cxx(tmp_path)
    monkeypatch.setenv("SCANOPS_CXX", str(compiler))
    monkeypatch.setenv("SCANOPS_LOCK_SECONDS", "2")
    locks = store.root / ".locks"
    locks.mkdir(parents=True)
    store.root.chmod(0o700)
    with building(locks, request_cpu.identity, "sum-f32", 1.0):
        assert not is_free(locks, request_cpu.identity[:16])
        entries = at_once(lambda _: store.get_or_build(request_cpu), range(16), 16)
    assert {entry.directory.parent for entry in entries} == {store.root}
    assert count.read_text() == "x\n"
    assert f"process {os.getpid()} on" in caplog.text


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
