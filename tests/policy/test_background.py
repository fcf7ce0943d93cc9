"""The generic kernel serves at once, the kernel itself takes over, and no exit of a process waits for it."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import scanops
from scanops.builders import programs
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.lines import any_length
from scanops.runtime import kernels
from scanops.runtime.policies import POLICIES
from tests.policy.conftest import SPEC, X, Y
from tests.store.sources import needs_nvrtc, script

SECONDS = 60.0  # for one kernel on a busy machine
KEY = KernelKey(SPEC, "cpu")


def until(met: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not met():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.02)


def scanned() -> torch.Tensor:
    with scanops.emulate(), scanops.policy("background"):
        return scanops.cumsum(X, 1)


def test_the_kernel_itself_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker builds it once, however many threads ask."""
    built: list[str] = []
    build, answered = kernels.Miss.build, threading.Event()

    def watched(miss: kernels.Miss) -> object:
        built.append(miss.key.spec.slug)
        assert miss.key.spec != SPEC or answered.wait(SECONDS)  # by the generic one
        return build(miss)

    monkeypatch.setattr(kernels.Miss, "build", watched)
    assert torch.equal(scanned(), Y) and kernels.recall_own(any_length(KEY)) is not None
    with ThreadPoolExecutor(8) as threads:
        assert all(torch.equal(y, Y) for y in threads.map(lambda _: scanned(), range(8)))
    assert not kernels.recall_own(KEY)
    answered.set()
    until(lambda: kernels.recall_own(KEY))
    assert torch.equal(scanned(), Y) and built == [any_length(KEY).spec.slug, SPEC.slug]
    assert sum(thread.name == "scanops-background" for thread in threading.enumerate()) == 1


@needs_nvrtc
def test_nvrtc_builds_in_the_worker_s_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "run", lambda *_, **__: pytest.fail("started a process"))
    standing_in = kernels.obtain(KernelKey(SPEC, "sm_90"), POLICIES["background"])
    assert standing_in is not None and (standing_in.spec, standing_in.builder) == (any_length(KEY).spec, "nvrtc")
    until(lambda: kernels.recall_own(KernelKey(SPEC, "sm_90")))
    kernel = kernels.recall_own(KernelKey(SPEC, "sm_90"))
    assert kernel is not None and kernel.path.name == "kernel.cubin"


def test_a_failure_is_logged_once_and_the_calls_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with scanops.emulate():
        scanops.prepare([any_length(KEY).spec])
    monkeypatch.setenv("SCANOPS_CXX", "no-such-compiler")
    with caplog.at_level(logging.ERROR, "scanops"):
        assert torch.equal(scanned(), Y)
        until(lambda: bool(caplog.records))
        for _ in range(3):
            assert torch.equal(scanned(), Y)
    assert len(caplog.records) == 1
    assert SPEC.slug in caplog.text and "no-such-compiler" in caplog.text


ENDS = """
import time, torch, scanops
with scanops.emulate(), scanops.policy("background"):
    scanops.cumsum(torch.ones(3, 100), 1)
    time.sleep({pause})
    print("done", flush=True)
"""


def test_a_process_ends_without_waiting(store: Path) -> None:
    """Whether the worker has begun with a kernel or not."""
    scanops.compile(any_length(KEY).spec, "cpu")
    mark = store.parent / "began"
    env = os.environ | {"SCANOPS_CXX": str(script(store.parent / "slow", f"echo $$ >> {mark}; sleep 300; true"))}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": env}
    running = [subprocess.Popen([sys.executable, "-c", ENDS.format(pause=pause)], **pipes) for pause in (0.0, 0.4)]
    for process in running:
        assert process.communicate(timeout=SECONDS) == ("done\n", "") and process.returncode == 0
    began = [int(line) for line in mark.read_text().split()] if mark.exists() else []
    until(lambda: not any(Path(f"/proc/{group}").exists() for group in began))  # no compiler outlives it


def test_a_child_has_a_worker_of_its_own() -> None:
    scanned()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            assert torch.equal(scanned(), Y)
            until(lambda: kernels.recall_own(KEY))
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    until(lambda: kernels.recall_own(KEY))
