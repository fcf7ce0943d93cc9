"""The plan of a spec: an entry for this spec, target and GPU if its plan is valid, else the planner's."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from scanops.builders.toolchain import find_nvcc
from scanops.codegen.candidates import candidates
from scanops.codegen.plan import Plan, make_plan
from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.errors import BadTuning, BuildFailure
from scanops.runtime.kernels import compile, find
from scanops.tuning import files
from scanops.tuning.files import Entry, Measured, write

SPEC, TARGET, GPU = ScanSpec(op="sum", dtype="float32", length=1000), "sm_90", "a GPU"
OWN, OTHER = list(candidates(SPEC, TARGET))[:2]


def entry_of(chosen: Plan = OTHER, **changes: object) -> Entry:
    """An entry with the plan ``chosen``, and with these fields changed."""
    measured = Measured(lines=10, default_us=12.0, tuned_us=10.0, rounds=45)
    entry = Entry(
        target=TARGET, gpu=GPU, spec=SPEC.slug, strategy=chosen.strategy, plan=chosen.numbers(), measured=measured
    )
    return replace(entry, **changes)  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only tuning file, on a machine with GPU."""
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("SCANOPS_TUNING", str(path))
    monkeypatch.setattr(files, "gpu_name", lambda target: GPU if target == TARGET else "")
    return path


def test_the_first_entry_for_spec_target_and_gpu_is_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read in order; one that does not exist is skipped."""
    first, second = file.with_name("first.json"), file.with_name("second.json")
    monkeypatch.setenv("SCANOPS_TUNING", f"{file}:{first}:{second}")
    assert files.tuned_plan(SPEC, TARGET) == (OWN, None)
    write(first, [entry_of()])
    write(second, [entry_of(OWN)])
    plan, found = files.tuned_plan(SPEC, TARGET)
    assert found is not None and found.path == first
    assert plan == OTHER and render(plan) != render(OWN)


@pytest.mark.parametrize("changes", [{"gpu": "another GPU"}, {"target": "sm_80"}, {"spec": "sum-f32-n1001"}])
def test_entries_for_something_else_are_ignored(changes: dict[str, object], file: Path) -> None:
    """So are all entries in the emulator, which runs the planner's plan."""
    write(file, [entry_of(**changes), entry_of(target="cpu")])
    assert files.tuned_plan(SPEC, TARGET) == (make_plan(SPEC, TARGET), None) == files.tuned_plan(SPEC, "cpu")


STALE: tuple[dict[str, object], ...] = (
    {"strategy": "carrier pigeon"},
    {"plan": {**OTHER.numbers(), "feathers": 3}},
    {"plan": {"threads": 128}},
    {"plan": {**OTHER.numbers(), "threads": "many"}},
    {"plan": {**OTHER.numbers(), "tiles": 7}},
)


@pytest.mark.parametrize("changes", STALE, ids=str)
def test_an_invalid_plan_falls_back_with_one_warning(
    changes: dict[str, object], file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Commands that ask for the tuned plan raise BadTuning instead."""
    write(file, [entry_of(**changes)])
    with pytest.raises(BadTuning) as caught:
        files.tuned_plan(SPEC, TARGET)
    assert all(word in caught.value.asked for word in (str(file), SPEC.slug, GPU))
    assert f"scanops tune {SPEC}" in caught.value.hint
    with caplog.at_level(logging.WARNING, "scanops"):
        assert files.usable_entry(SPEC, TARGET) is None
        assert files.usable_entry(SPEC, TARGET) is None
    assert len(caplog.records) == 1 and str(file) in caplog.text


def test_a_bad_file_stops_a_build(file: Path) -> None:
    """A file that is no tuning file is a mistake of the user, not an upgrade's."""
    file.write_text("{")
    with pytest.raises(BadTuning):
        compile(SPEC, TARGET)


def test_a_kernel_is_built_by_its_entry(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tuned kernel is another store entry than the planner's, and both are found again."""
    try:
        if TARGET not in find_nvcc().targets:
            pytest.skip("an nvcc that does not know the target")
    except BuildFailure:
        pytest.skip("no nvcc")
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    own = compile(SPEC, TARGET)
    assert (own.plan, own.measured) == (OWN, None)
    write(file, [entry_of()])
    assert find(SPEC, TARGET) is None
    for _ in range(2):  # built, then found by its index entry
        kernel = compile(SPEC, TARGET)
        assert kernel.plan == OTHER and kernel.measured is not None
        assert kernel.path != own.path
        assert OTHER.describe() in kernel.source
    assert find(SPEC, TARGET) is not None
    write(file, [])
    assert compile(SPEC, TARGET).path == own.path
