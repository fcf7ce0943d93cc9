"""Kernels ahead of time: from specs, short names and calls."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import scanops
from scanops import ScanSpec, emulator, environment, precompile
from scanops.codegen.kernel_key import KernelKey
from scanops.errors import BadSpecFile, BuildFailure, MissingKernel, UnsupportedRequest
from scanops.runtime import kernels
from tests.policy.conftest import SPEC, X, Y, kept

LENGTHS = (3, 4, 5, 6)
SLUGS = [f"sum-f32-n{length}" for length in LENGTHS]
BUILD = kernels.Miss.build


def is_held(slug: str) -> bool:
    return kernels.recall_own(KernelKey(ScanSpec.parse(slug), "cpu")) is not None


def test_specs_short_names_and_calls() -> None:
    calls = []

    def scans() -> None:
        calls.append(threading.current_thread())
        scanops.cumsum(X, 1, reverse=True)

    with scanops.emulate(), scanops.policy("fallback"):  # only "never" keeps it from building
        kernels = scanops.prepare([SPEC, SPEC.slug, "prod-f32-n64", scans])
        slugs = [SPEC.slug, "prod-f32-n64", f"{SPEC.slug}-reverse"]
        assert [kernel.spec.slug for kernel in kernels] == slugs and all(map(is_held, slugs))
        assert calls == [threading.current_thread()]
        with scanops.policy("never"):
            assert torch.equal(scanops.cumsum(X, 1), Y)
    (kernel,) = scanops.prepare("prod-f32-n64", "cpu")
    assert (kernel.spec.slug, kernel.target) == ("prod-f32-n64", "cpu")


def test_a_spec_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At start-up, without building: whether every kernel of a file is there, by a call and by a command."""
    path = tmp_path / "specs.toml"
    path.write_text(f'targets = ["sm_80"]\nspecs = ["{SPEC.slug}", "prod-f32-n65"]\n')
    with scanops.emulate():
        scanops.prepare([SPEC])
        with scanops.policy("never"), pytest.raises(MissingKernel, match="prod-f32-n65"):
            scanops.prepare(path)
        scanops.prepare(str(path))
        with scanops.policy("never"):
            assert [kernel.spec.slug for kernel in scanops.prepare(path)] == [SPEC.slug, "prod-f32-n65"]
    path.write_text('[[scan]]\nspec = "mine-f32-n9"\noperators = "mine"\n')
    with pytest.raises(BadSpecFile, match=r"\[\[scan\]\] number 1 of the spec file .*: got operators"):
        scanops.prepare([path])


@pytest.mark.parametrize("what", [[SPEC, "no-such-spec"], [SPEC, lambda: scanops.cumsum(X, 1)], [3], 5, None])
@pytest.mark.parametrize("targets", [None, ["cpu", "sm_12"], ["cpu"]], ids=str)
def test_what_cannot_be_prepared(what: Any, targets: list[str] | None, store: Path) -> None:
    """An invalid spec, call or target shows before anything is built."""
    with pytest.raises(UnsupportedRequest, match=r"^prepare: |no-such-spec|sm_12") as caught:
        scanops.prepare(what, targets)
    assert isinstance(what, list) or f"prepare: {what!r}" in str(caught.value)
    assert not store.exists()


def watch(monkeypatch: pytest.MonkeyPatch, miss: Callable[[kernels.Miss], object]) -> list[str]:
    """Let four builds run at a time, by ``miss``; return the names of the threads that they run in."""
    threads: list[str] = []

    def built(missing: kernels.Miss) -> object:
        threads.append(threading.current_thread().name)
        return miss(missing)

    monkeypatch.setattr(kernels.Miss, "build", built)
    monkeypatch.setattr(precompile, "jobs_that_fit", lambda: len(LENGTHS))
    return threads


def test_specs_are_built_at_the_same_time(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Returned in order whatever the order in which they end, and by compilers that share nothing."""
    gate = threading.Barrier(len(LENGTHS))

    def together(miss: kernels.Miss) -> object:
        gate.wait(60)  # breaks where they come one after another
        time.sleep(0.1 * (LENGTHS[-1] - (miss.key.spec.length or 0)))
        assert (environment.policy(), emulator.ACTIVE.get() is not None) == ("build", True)
        return BUILD(miss)

    threads = watch(monkeypatch, together)
    with scanops.policy("fallback"), scanops.emulate(), scanops.record() as used:
        prepared = scanops.prepare(SLUGS)
        assert environment.policy() == "fallback"
    assert [kernel.spec.slug for kernel in prepared] == [spec.slug for spec in used] == SLUGS
    assert len(set(threads)) == len(LENGTHS) and all(map(is_held, SLUGS))
    routes = [json.loads(path.read_bytes())["toolchain"]["route"] for path in store.glob("*/manifest.json")]
    assert routes == ["cpu"] * len(LENGTHS)


def test_one_failure_is_raised_others_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fails(miss: kernels.Miss) -> object:
        if miss.key.spec.length == LENGTHS[-1]:
            return BUILD(miss)
        time.sleep(0.1 * (LENGTHS[-1] - (miss.key.spec.length or 0)))  # the first is the last to fail
        where = f"sm_{miss.key.spec.length}" if miss.key.spec.length == LENGTHS[0] else "a target"
        raise BuildFailure(f"build for {where}", allowed="all", value="none", hint="none")

    watch(monkeypatch, fails)
    with pytest.raises(BuildFailure, match="build for sm_3"):
        scanops.prepare(SLUGS, "cpu")
    assert [record.getMessage().splitlines()[0] for record in caplog.records] == [
        "not prepared: sum-f32-n3 for cpu: build for sm_3: got none",
        "not prepared: sum-f32-n4 for cpu, sum-f32-n5 for cpu: build for a target: got none",
    ]
    assert list(map(is_held, SLUGS)) == [False, False, False, True]


def test_never_builds_nothing_and_names_all(caplog: pytest.LogCaptureFixture, store: Path) -> None:
    scanops.compile(ScanSpec.parse(SLUGS[1]), "cpu")
    with scanops.policy("never"), pytest.raises(MissingKernel, match=SLUGS[0]):
        scanops.prepare(SLUGS, "cpu")
    assert [slug for slug in SLUGS if f"{slug} " in caplog.text] == [SLUGS[0], *SLUGS[2:]]
    assert len(caplog.records) == 1  # the reason is the same
    assert kept(store) == {SLUGS[1]}
