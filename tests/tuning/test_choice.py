"""Which plan counts: an entry for this spec, this target and this GPU, else the planner's own."""

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
from scanops.runtime.kernels import compile, is_built
from scanops.tuning import choice
from scanops.tuning.files import Entry, Measured, write

SPEC, TARGET, GPU = ScanSpec(op="sum", dtype="float32", length=1000), "sm_90", "a GPU"
OWN, OTHER = list(candidates(SPEC, TARGET))[:2]


def entry_of(chosen: Plan = OTHER, **changes: object) -> Entry:

    entry = Entry(
        target=TARGET,
        gpu=GPU,
        spec=SPEC.slug,
        strategy=chosen.strategy,
        plan=chosen.numbers(),
        measured=Measured(lines=10, default_us=12.0, tuned_us=10.0, rounds=45),
    )
    return replace(entry, **changes)  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only file of measured plans, on a machine with that GPU."""
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("SCANOPS_TUNING", str(path))
    monkeypatch.setattr(choice, "gpu_name", lambda target: GPU if target == TARGET else "")
    return path


def test_an_entry_counts(file: Path) -> None:
    assert choice.tuned_plan(SPEC, TARGET) == (OWN, None)
    write(file, [entry_of()])
    plan, found = choice.tuned_plan(SPEC, TARGET)
    assert found is not None and found.path == file
    assert plan == OTHER
    assert render(plan) != render(OWN)


@pytest.mark.parametrize("changes", [{"gpu": "another GPU"}, {"target": "sm_80"}, {"spec": "sum-f32-n1001"}])
def test_entries_for_something_else_do_not(changes: dict[str, object], file: Path) -> None:
    write(file, [entry_of(**changes)])
    assert choice.tuned_plan(SPEC, TARGET) == (make_plan(SPEC, TARGET), None)


def test_the_emulator_runs_the_planners_own(file: Path) -> None:
    write(file, [entry_of(target="cpu")])
    assert choice.tuned_plan(SPEC, "cpu") == (OWN, None)


def test_the_first_file_that_knows_it_counts(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = file.with_name("first.json"), file.with_name("second.json")
    monkeypatch.setenv("SCANOPS_TUNING", f"{file}:{first}:{second}")  # the one in front does not exist
    write(first, [entry_of()])
    write(second, [entry_of(OWN)])
    found = choice.entry_for(SPEC, TARGET)
    assert found is not None and found.path == first


STALE = {
    "a strategy that is gone": {"strategy": "carrier pigeon"},
    "a number that is gone": {"plan": {**OTHER.numbers(), "feathers": 3}},
    "a number left out": {"plan": {"threads": 128}},
    "a number of another kind": {"plan": {**OTHER.numbers(), "threads": "many"}},
    "a truth for a number": {"plan": {**OTHER.numbers(), "threads": True}},
    "numbers that do not fit together": {"plan": {**OTHER.numbers(), "tiles": 7}},
    "a block that no GPU has": {"plan": {**OTHER.numbers(), "threads": 4096}},
    "a block of no threads": {"plan": {**OTHER.numbers(), "threads": 0}},
    "half a warp": {"plan": {**OTHER.numbers(), "threads": 16}},
}


@pytest.mark.parametrize("changes", STALE.values(), ids=STALE.keys())
def test_a_plan_that_no_kernel_has_is_refused(
    changes: dict[str, object], file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(file, [entry_of(**changes)])
    with pytest.raises(BadTuning) as caught:
        choice.tuned_plan(SPEC, TARGET)
    assert str(file) in caught.value.asked and SPEC.slug in caught.value.asked and GPU in caught.value.asked
    assert f"scanops tune {SPEC}" in caught.value.hint
    with caplog.at_level(logging.WARNING, "scanops"):
        assert choice.usable_entry(SPEC, TARGET) is None
        assert choice.usable_entry(SPEC, TARGET) is None
    assert len(caplog.records) == 1 and str(file) in caplog.text  # told once, and the planner's own plan counts


def test_a_bad_file_stops_a_build(file: Path) -> None:
    file.write_text("{")
    with pytest.raises(BadTuning):
        compile(SPEC, TARGET)


def test_a_kernel_is_built_by_its_entry(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        if TARGET not in find_nvcc().targets:
            pytest.skip("an nvcc that does not know the target")
    except BuildFailure:
        pytest.skip("no nvcc")
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    own = compile(SPEC, TARGET)
    assert (own.plan, own.measured) == (OWN, None)
    write(file, [entry_of()])
    assert not is_built(SPEC, TARGET)
    for _ in range(2):  # built, then found by its index entry
        kernel = compile(SPEC, TARGET)
        assert kernel.plan == OTHER and kernel.measured is not None
        assert kernel.path != own.path
        assert OTHER.describe() in kernel.source
    assert is_built(SPEC, TARGET)
    write(file, [])
    assert compile(SPEC, TARGET).path == own.path
