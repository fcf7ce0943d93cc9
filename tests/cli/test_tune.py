"""``scanops tune`` without a GPU: what it would measure, its files, and a laboratory that makes times up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from scanops import measure
from scanops.codegen.candidates import candidates
from scanops.codegen.plan import Plan
from scanops.codegen.spec import ScanSpec
from scanops.requests.request import make_request
from scanops.tuning import Entry, Measured, read, write
from tests.tuning.laboratory import FakeLaboratory

Call = Callable[..., Result]
Parsed = Callable[[str], Any]
SLUG, OTHER_SLUG, TARGET = "sum-f32-n1000", "prod-f32-n4096", "sm_90"
PLANS = list(candidates(ScanSpec.parse(SLUG), TARGET))
ENTRY = Entry(
    target=TARGET,
    gpu="a GPU",
    spec=SLUG,
    strategy=PLANS[1].strategy,
    plan=PLANS[1].numbers(),
    measured=Measured(lines=10, default_us=12.0, tuned_us=10.0, rounds=45),
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("SCANOPS_TUNING", str(path))
    return path


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Plan], float]], None]:
    """A GPU on which plans take what the test says."""

    def install(microseconds: Callable[[Plan], float]) -> None:
        monkeypatch.setattr(measure, "require_gpu", lambda: (TARGET, "a GPU", 132))
        monkeypatch.setattr(measure, "items_that_fit", lambda spec: 2**20)
        monkeypatch.setattr(measure, "GpuLaboratory", lambda spec, lines, jobs: FakeLaboratory(microseconds))

    return install


def test_a_better_plan_is_kept(call: Call, parsed: Parsed, file: Path, made_up: Any) -> None:
    made_up(lambda plan: 80.0 if plan == PLANS[1] else 100.0)
    result = call("tune", SLUG, OTHER_SLUG, "--json")
    assert result.exit_code == 0, result.output
    answer = parsed(result.stdout)
    assert (answer["device"], answer["file"]) == ("a GPU", str(file))
    first, second = answer["specs"]
    assert (first["improved"], first["default_us"], first["best_us"]) == (True, 100.0, 80.0)
    assert first["best"] == {"strategy": PLANS[1].strategy, **PLANS[1].numbers()}
    assert second["improved"] is False and second["best"] == second["default"]
    (entry,) = read(file).values()
    assert (entry.key, entry.plan) == ((TARGET, "a GPU", SLUG), PLANS[1].numbers())
    assert entry.measured.lines == 2**20 // 1000

    table = call("tune", SLUG)
    assert "1.250" in table.stdout and str(file) in table.stdout
    made_up(lambda plan: 100.0)  # what was better once is so no longer
    assert "the planner's own" in call("tune", SLUG).stdout
    assert read(file) == {}


def test_other_entries_of_the_file_stay(call: Call, file: Path, made_up: Any) -> None:
    elsewhere = Entry(**{**{name: getattr(ENTRY, name) for name in ENTRY.__slots__}, "gpu": "another GPU"})
    write(file, [ENTRY, elsewhere])
    made_up(lambda plan: 100.0)
    assert call("tune", SLUG).exit_code == 0
    assert read(file) == {elsewhere.key: elsewhere}


def test_without_a_gpu(call: Call, file: Path) -> None:
    if measure.torch.cuda.is_available():
        pytest.skip("there is one")
    result = call("tune", SLUG)
    assert result.exit_code == 1
    assert "--dry-run" in result.stderr
    assert not file.exists()


def test_dry_run(call: Call, parsed: Parsed) -> None:
    answer = parsed(call("tune", SLUG, "--dry-run", "--target", TARGET, "--json").stdout)
    (listed,) = answer["specs"]
    assert listed["plans"] == [{"strategy": plan.strategy, **plan.numbers()} for plan in PLANS]
    text = call("tune", SLUG, "--dry-run", "--target", TARGET).stdout
    assert PLANS[-1].describe() in text


def test_list_and_merge(call: Call, parsed: Parsed, file: Path) -> None:
    assert "not there" in call("tune", "--list").stdout
    first, second = file.with_name("a.json"), file.with_name("b.json")
    write(first, [ENTRY])
    write(second, [])
    assert call("tune", "--merge", str(first), str(second), "-o", str(file)).exit_code == 0
    text = call("tune", "--list").stdout
    assert f"{SLUG} on {TARGET}, a GPU: 1.200" in text
    (found,) = parsed(call("tune", "--list", "--json").stdout)["files"]
    assert found["entries"][0]["plan"] == ENTRY.plan


def test_a_bad_file_shows_before_anything_is_measured(call: Call, file: Path, made_up: Any) -> None:
    def never(plan: Plan) -> float:
        raise AssertionError("measured")

    made_up(never)
    file.write_text("{")
    for words in (("tune", SLUG), ("tune", "--list")):
        result = call(*words)
        assert (result.exit_code, "BadTuning" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--list", SLUG),
        ("--list", "--merge"),
        (SLUG, "--dry-run", "--merge"),
        (SLUG, "--target", TARGET),
        ("--merge", "a.json"),
        ("sum-f32",),
        (SLUG, "--rounds", "1"),
    ],
)
def test_a_wrong_request(words: tuple[str, ...], call: Call) -> None:
    assert call("tune", *words).exit_code == 2


def test_every_layout_has_its_tensors() -> None:
    for slug in ("sum-f32-n100", "sum-f32-n100-rows", "sum-f32-n100-strided", "sum-i8-n9-mask_b8-rows_mask-unaligned"):
        spec = ScanSpec.parse(slug)
        x, mask, out = measure.tensors_for(spec, 6, "cpu")
        assert x.shape == out.shape == (6, spec.length) and (mask is None) == (spec.mask is None)
        assert x.is_contiguous() == (spec.input_layout == "dense")
        assert (x.stride(1) == 1) == (spec.input_layout != "strided")


@pytest.mark.parametrize("tail", ["f32-n100", "bf16-n1001-inner50", "f32-n100-mask_b8", "f32-n100-inner64"])
@pytest.mark.parametrize("aligned", [True, False])
def test_transposed_tensors_ask_for_the_spec(tail: str, aligned: bool) -> None:
    spec = ScanSpec.parse(f"sum-{tail}-transposed{'' if aligned else '-unaligned'}")
    x, mask, out = measure.tensors_for(spec, 2 * 64 * spec.inner, "cpu")
    request = make_request(x, "sum", 1, mask=mask, reverse=False, exclusive=False, dtype=None, out=out)
    assert request.spec(out, 3) == spec
