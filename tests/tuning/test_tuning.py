"""Which plan is kept; tuning files, written, read and refused; the plan of a spec, which an entry may replace."""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from scanops import tuning
from scanops.build_request import plan_for
from scanops.codegen.candidates import candidates
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.planner import Plan, make_plan
from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.errors import BadTuning, BuildFailure, UnusableFile
from scanops.measure import tune
from scanops.precompile import compile
from scanops.runtime.kernels import find
from scanops.tuning import SCHEMA, Measured, TuningEntry, read, write
from tests.store.sources import needs_nvcc

GPU = "a GPU"


def entry(plan: Plan) -> TuningEntry:
    """A tuning entry for this plan, measured on ``GPU`` at 1.2 times the planner's speed."""
    return TuningEntry.of(plan, GPU, Measured(lines=10, default_us=12.0, tuned_us=10.0, rounds=45))


class FakeLaboratory:
    """Plans that take ``microseconds(plan)``, give or take ``noise``."""

    def __init__(
        self,
        microseconds: Callable[[Plan], float],
        *,
        noise: float = 0.0,
        unusable: Callable[[Plan], bool] = lambda plan: False,
        lines: int = 10,
    ) -> None:
        self.lines = lines
        self.microseconds, self.noise, self.unusable = microseconds, noise, unusable
        self.asked: list[tuple[int, int]] = []  # (plans, rounds) of each comparison
        self._random = random.Random(7)

    def problems(self, plans: Sequence[Plan], said: Callable[[str, int, int], object]) -> Mapping[Plan, str]:
        for what in ("building", "checking"):
            said(what, len(plans), len(plans))
        return {plan: "unusable" for plan in plans if self.unusable(plan)}

    def times(self, plans: Sequence[Plan], rounds: int) -> Mapping[Plan, list[float]]:
        self.asked.append((len(plans), rounds))

        def once(plan: Plan) -> float:
            return self.microseconds(plan) * (1 + self._random.uniform(-1, 1) * self.noise)

        return {plan: [once(plan) for _ in range(rounds)] for plan in plans}


# ---- which plan is kept; tuning files; the plan of a spec

SPEC, TARGET = ScanSpec(op="sum", dtype="float32", length=32768), "sm_90"
KEY = KernelKey(SPEC, TARGET)
PLANS = list(candidates(KEY))
OWN, OTHER, *_, GOOD = PLANS
ENTRY = entry(OTHER)
ROW = asdict(ENTRY)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only tuning file."""
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("SCANOPS_TUNING", str(path))
    return path


def test_a_file_is_written_and_read_again(tmp_path: Path) -> None:
    """Folders are made, no draft is left, a change is seen; a file that does not exist has no entries."""
    path = tmp_path / "deep" / "tuning.json"
    assert read(path) == {}
    other = replace(ENTRY, few=True)
    write(path, [ENTRY, other])
    assert read(path) == {ENTRY.key: ENTRY, other.key: other}
    assert json.loads(path.read_text(encoding="utf-8"))["schema"] == SCHEMA
    assert [file.name for file in path.parent.iterdir()] == ["tuning.json"]
    write(path, [])
    assert read(path) == {} == read(Path(os.devnull))


@pytest.mark.parametrize(
    ("slug", "former"),
    [
        ("sum-f32-n65536", {"persistent": "wave"}),
        ("sum-f32-n32768", {"one_block_per_sm": "alone"}),
        ("sum-f32-n4096-inner1024", {"columns_lookback": "panels", "strided_columns": "apart"}),
    ],
)
def test_a_file_with_former_names_is_read(slug: str, former: dict[str, str], file: Path) -> None:
    """Files of earlier versions: their strategies and numbers are written under the present names."""
    key = KernelKey(ScanSpec.parse(slug), TARGET)
    plan = next(plan for plan in candidates(key) if {plan.strategy, *plan.numbers()} >= former.keys())
    row = asdict(entry(plan))
    numbers = {former.get(name, name): value for name, value in row["plan"].items()}
    old = {**row, "strategy": former.get(row["strategy"], row["strategy"]), "plan": numbers}
    assert old != row
    file.write_text(json.dumps({"schema": SCHEMA, "entries": [old]}))
    assert list(read(file).values()) == [entry(plan)]
    choice = tuning.entry_for(key)
    assert choice is not None and tuning.plan_of(choice, key) == plan


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "the file: "),
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "instead of an object"),
        ('{"schema": 1}', "'entries' of the file is missing"),
        ('{"schema": 1, "entries": 3}', "'entries' of the file is 3"),
        ('{"schema": 2, "entries": []}', "schema 2"),
        ([1], r"'entries' of the file\[0\] is 1"),
        ([ROW, {"spec": "sum-f32-n7"}], "entry 1: 'target' of entry 1 is missing"),
        ([{**ROW, "gpu": 3}], "'gpu' of entry 0 is 3"),
        ([{**ROW, "colour": "red"}], "entry 0: .*'colour'"),
        *(([{**ROW, "measured": {**ROW["measured"], "tuned_us": us}}], "positive") for us in (0, 1e999, 10**400)),
        ([ROW, ROW], "again"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_bad_file_is_refused(content: Any, words: str, file: Path) -> None:
    """BadTuning names the file and the entry; a file that is none stops a build, too."""
    file.write_text(content if isinstance(content, str) else json.dumps({"schema": 1, "entries": content}))
    for use in (lambda: read(file), lambda: compile(SPEC, TARGET)):
        with pytest.raises(BadTuning, match=words) as caught:
            use()
        assert str(file) in caught.value.asked and caught.value.hint


def test_what_is_no_file_and_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """A folder, a pipe that nobody writes to, a device without end, a file of gigabytes: refused at once."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    with (tmp_path / "great").open("wb") as file:
        file.truncate(2**33)
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "device", tmp_path / "great"):
        with pytest.raises(BadTuning):
            read(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableFile, match="write measured plans"):
        write(tmp_path / "file" / "tuning.json", [])


def tuned_plan(spec: ScanSpec, target: str) -> tuple[Plan, tuning.Choice | None]:
    """The plan that `scanops plan` shows, and the entry it is from."""
    key = KernelKey(spec, target)
    choice = None if target == "cpu" else tuning.entry_for(key)
    return plan_for(key, choice), choice


def test_the_first_entry_for_spec_and_target_is_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read in order; one that does not exist is skipped, and so are entries for something else."""
    first, second = file.with_name("first.json"), file.with_name("second.json")
    monkeypatch.setenv("SCANOPS_TUNING", f"{file}:{first}:{second}")
    others = [replace(ENTRY, few=True), replace(ENTRY, target="sm_80"), replace(ENTRY, target="cpu")]
    write(first, [*others, replace(ENTRY, spec="sum-f32-n1001")])
    assert tuned_plan(SPEC, TARGET) == (OWN, None) == (make_plan(SPEC, TARGET), None)
    assert tuned_plan(SPEC, "cpu") == (OWN, None)  # the emulator runs the planner's plan
    write(first, [*others, ENTRY])
    write(second, [replace(ENTRY, plan=OWN.numbers())])
    plan, found = tuned_plan(SPEC, TARGET)
    assert found is not None and found.path == first
    assert plan == OTHER and render(plan) != render(OWN)


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "carrier pigeon"},
        {"plan": {"threads": 128}},
        *({"plan": {**OTHER.numbers(), **odd}} for odd in ({"feathers": 3}, {"threads": "many"}, {"tiles": 7})),
    ],
    ids=str,
)
def test_an_invalid_plan_is_warned_of_once(
    changes: dict[str, Any], file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Commands that ask for the tuned plan raise BadTuning instead."""
    write(file, [replace(ENTRY, **changes)])
    with pytest.raises(BadTuning) as caught:
        tuned_plan(SPEC, TARGET)
    assert all(word in caught.value.asked for word in (str(file), SPEC.slug, GPU))
    assert f"scanops tune {SPEC}" in caught.value.hint
    choice = tuning.entry_for(KEY)
    assert choice is not None
    with caplog.at_level(logging.WARNING, "scanops"):
        assert [tuning.usable(choice, KEY) for _ in range(2)] == [False, False]
    assert len(caplog.records) == 1 and str(file) in caplog.text


@needs_nvcc
def test_a_kernel_is_built_by_its_entry(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tuned kernel is another store entry than the planner's, and both are found again."""
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    own = compile(SPEC, TARGET)
    assert (own.plan, own.measured) == (OWN, None)
    write(file, [ENTRY])
    assert find(KEY) is None
    for _ in range(2):  # built, then found by its index entry
        kernel = compile(SPEC, TARGET)
        assert kernel.plan == OTHER and kernel.measured is not None
        assert kernel.path != own.path and OTHER.describe() in kernel.source
    write(file, [])
    assert compile(SPEC, TARGET).path == own.path


@pytest.mark.parametrize(
    ("gain", "noise", "kept"),
    [(1.2, 0, True), (1.1, 0.05, True), (0.9, 0, False), (1.005, 0, False), (1.0, 0.2, False)],
)
def test_the_best_plan_is_kept_if_its_gain_exceeds_margin_and_noise(gain: float, noise: float, kept: bool) -> None:
    said: list[tuple[str, int, int]] = []
    laboratory = FakeLaboratory(lambda plan: 100.0 / gain if plan == GOOD else 100.0, noise=noise)
    outcome = tune(KEY, laboratory, said=lambda *words: said.append(words))
    found = outcome.entry("a GPU")
    assert (outcome.default, outcome.improved, found is not None) == (make_plan(SPEC, TARGET), kept, kept)
    assert (outcome.best == GOOD or not kept, outcome.tried) == (True, len(PLANS))
    assert {what for what, _, _ in said} == {"building", "checking", "measuring"}
    assert all(0 <= done <= of for _, done, of in said)
    if found and not noise:
        assert outcome.measured.gain == pytest.approx(gain, abs=1e-3)
        assert (found.key, found.plan) == ((TARGET, SPEC.slug, False), GOOD.numbers())
        assert (found.measured.lines, found.measured.default_us, found.measured.rounds) == (10, 100.0, 45)


def test_a_winner_is_measured_again_against_the_planners_own() -> None:
    """A plan that is ahead in the first comparison and behind in the one that decides is not kept."""
    laboratory = FakeLaboratory(lambda plan: (90.0 if len(laboratory.asked) < 2 else 110.0) if plan == GOOD else 100.0)
    assert not tune(KEY, laboratory).improved
    assert [plans for plans, _ in laboratory.asked] == [len(PLANS), 2]


def test_wrong_and_broken_plans_are_never_timed() -> None:
    laboratory = FakeLaboratory(lambda plan: 50.0 if plan in PLANS[1:4] else 100.0, unusable=PLANS[1:4].__contains__)
    outcome = tune(KEY, laboratory)
    assert (outcome.improved, [plan for plan, _ in outcome.refused]) == (False, PLANS[1:4])
    assert laboratory.asked[0] == (len(PLANS) - 3, 15)
    with pytest.raises(BuildFailure, match="unusable"):  # without the planner's own there is nothing to compare with
        tune(KEY, FakeLaboratory(lambda plan: 1.0, unusable=PLANS[:1].__contains__))
