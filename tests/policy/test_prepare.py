"""Kernels ahead: from specs, short names and calls."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import scanops
from scanops import ScanSpec, emulation, precompile
from scanops.errors import BuildFailure, MissingKernel, UnsupportedRequest
from scanops.runtime import obtain, policies
from scanops.runtime.obtain import Kernel
from tests.store.sources import needs_cxx

pytestmark = needs_cxx

SPEC = ScanSpec(op="sum", dtype="float32", length=100)
X = torch.ones(3, 60)


def test_specs_short_names_and_calls() -> None:
    with scanops.emulate():
        kernels = scanops.prepare([SPEC, SPEC.slug, "prod-f32-n64", lambda: scanops.cumsum(X, 1, reverse=True)])
        assert [kernel.spec.slug for kernel in kernels] == [SPEC.slug, "prod-f32-n64", "sum-f32-n60-reverse"]
        assert all(obtain.held(kernel.spec, kernel.target) for kernel in kernels)
        with scanops.policy("never"):
            assert torch.equal(scanops.cumsum(torch.ones(3, 100), 1)[0], torch.arange(1, 101.0))


def test_it_builds_under_every_policy_but_never() -> None:
    with scanops.policy("fallback"), scanops.emulate():
        (kernel,) = scanops.prepare([lambda: scanops.cumsum(X, 1)])
        assert kernel.spec.slug == "sum-f32-n60"


def test_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    (kernel,) = scanops.prepare("sum-f32-n64", "cpu")
    assert (kernel.spec.slug, kernel.target) == ("sum-f32-n64", "cpu")
    with pytest.raises(UnsupportedRequest, match="sm_12"):
        scanops.prepare([SPEC], ["sm_12"])


@pytest.mark.parametrize("what", [lambda: scanops.cumsum(X, 1), 3, "no-such-spec"])
def test_what_cannot_be_prepared(what: object) -> None:
    with pytest.raises(UnsupportedRequest):
        scanops.prepare([what])  # type: ignore[list-item]


LENGTHS = (3, 4, 5, 6)


def at_once(monkeypatch: pytest.MonkeyPatch, work: Callable[[policies.Miss], Kernel]) -> list[str]:
    """Four builds at a time, by ``work``; the threads that they are in."""
    threads: list[str] = []

    def built(miss: policies.Miss) -> Kernel:
        threads.append(threading.current_thread().name)
        return work(miss)

    monkeypatch.setattr(policies.Strict, "miss", lambda self, miss: built(miss))
    monkeypatch.setattr(precompile, "jobs_that_fit", lambda: len(LENGTHS))
    return threads


@pytest.mark.parametrize("name", ["build", "fallback"])
def test_specs_are_built_at_the_same_time(name: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order in which they end, and by compilers that share nothing with each other."""
    gate = threading.Barrier(len(LENGTHS))

    def together(miss: policies.Miss) -> Kernel:
        gate.wait(60)  # breaks where they come one after another
        time.sleep(0.1 * (LENGTHS[-1] - (miss.spec.length or 0)))
        assert (policies.current().name, emulation.active() is not None) == ("build", True)
        return miss.build()

    threads = at_once(monkeypatch, together)
    slugs = [f"sum-f32-n{length}" for length in LENGTHS]
    with scanops.policy(name), scanops.emulate(), scanops.record() as used:
        prepared = scanops.prepare(slugs)
        assert policies.current().name == name
    assert [kernel.spec.slug for kernel in prepared] == [spec.slug for spec in used] == slugs
    assert len(set(threads)) == len(LENGTHS)
    assert all(obtain.held(kernel.spec, "cpu") for kernel in prepared)
    routes = [json.loads(path.read_bytes())["toolchain"]["route"] for path in store.glob("*/manifest.json")]
    assert routes == ["cpu"] * len(LENGTHS)


def test_a_function_is_called_once_and_here(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    at_once(monkeypatch, lambda miss: miss.build())

    def scans() -> None:
        calls.append(threading.current_thread())
        scanops.cumsum(X, 1)

    with scanops.emulate():
        prepared = scanops.prepare(["sum-f32-n5", scans, "sum-f32-n6"])
    assert [kernel.spec.length for kernel in prepared] == [5, 60, 6]
    assert calls == [threading.current_thread()]


def test_the_first_failure_is_raised_and_the_others_are_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(miss: policies.Miss) -> Kernel:
        if miss.spec.length == LENGTHS[-1]:
            return miss.build()
        time.sleep(0.1 * (LENGTHS[-1] - (miss.spec.length or 0)))  # the first is the last to fail
        where = f"sm_{miss.spec.length}" if miss.spec.length == LENGTHS[0] else "a target"
        raise BuildFailure(f"build for {where}", allowed="all", value="none", hint="none")

    at_once(monkeypatch, fails)
    with pytest.raises(BuildFailure, match="build for sm_3"):
        scanops.prepare([f"sum-f32-n{length}" for length in LENGTHS], "cpu")
    said = [record.getMessage().splitlines()[0] for record in caplog.records]
    assert said == [
        "not prepared: sum-f32-n3 for cpu: build for sm_3",
        "not prepared: sum-f32-n4 for cpu, sum-f32-n5 for cpu: build for a target",
    ]
    held = [obtain.held(ScanSpec.parse(f"sum-f32-n{length}"), "cpu") is not None for length in LENGTHS]
    assert held == [False, False, False, True]


def test_never_builds_nothing_and_names_all(caplog: pytest.LogCaptureFixture, store: Path) -> None:
    scanops.compile(ScanSpec.parse("sum-f32-n4"), "cpu")
    with scanops.policy("never"), pytest.raises(MissingKernel, match="sum-f32-n3"):
        scanops.prepare([f"sum-f32-n{length}" for length in LENGTHS], "cpu")
    assert [word for word in ("n3", "n4", "n5", "n6") if f"sum-f32-{word} " in caplog.text] == ["n3", "n5", "n6"]
    assert len(caplog.records) == 1  # the reason is the same
    assert len(list(store.glob("*/manifest.json"))) == 1


def test_nothing_is_built_while_this_thread_captures(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    """Whether a graph is captured is asked of the current stream, and another thread has another one."""
    here = threading.current_thread()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: threading.current_thread() is here)
    monkeypatch.setattr(precompile, "jobs_that_fit", lambda: len(LENGTHS))
    with pytest.raises(MissingKernel, match="captured"):
        scanops.prepare([f"sum-f32-n{length}" for length in LENGTHS], "cpu")
    assert not list(store.glob("*/manifest.json"))


def test_what_is_wrong_shows_before_anything_is_built(store: Path) -> None:
    with pytest.raises(UnsupportedRequest, match="sm_12"):
        scanops.prepare([SPEC], ["cpu", "sm_12"])
    assert not store.exists()
