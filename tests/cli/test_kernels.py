"""``scanops generate``, ``export``, ``plan`` and ``build``: a kernel by the short name of its spec."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import scanops
from scanops import export, generate, make_plan, measure, tuning
from scanops.codegen.candidates import candidates
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.planner import Plan
from scanops.codegen.spec import ScanSpec
from scanops.operands import Operands, same
from scanops.tuning import read, write
from tests.cli.conftest import Ask, Call
from tests.store.sources import needs_nvcc
from tests.tuning.test_tuning import GPU, FakeLaboratory, entry

SLUG, SMALL = "sum-f32-n32768", "sum-f32-n5"
WORDS = ("plan", SLUG, "--target", "sm_90")
MASKED = "sum-f32-n32768-mask_b8-reverse"
SPEC = ScanSpec.parse(MASKED)
EXPORTED = "sum-f32-n32768-mask_b8"


def test_generate(call: Call, ask: Ask, tmp_path: Path) -> None:
    source = generate(SPEC, "sm_80")
    words, file = ("generate", MASKED, "--target", "sm_80"), tmp_path / "kernel.cu"
    answer = ask(*words)
    assert (answer["spec"], answer["slug"], answer["target"]) == (SPEC.to_dict(), MASKED, "sm_80")
    assert answer["plan"]["summary"] == make_plan(SPEC, "sm_80").describe()
    assert (answer["source"], answer["sha256"]) == (source, hashlib.sha256(source.encode()).hexdigest())
    result = call(*words, "-o", str(file))
    assert (result.exit_code, result.stdout, file.read_text()) == (0, "", source)


def test_export(call: Call, ask: Ask, tmp_path: Path) -> None:
    text = export(ScanSpec.parse(EXPORTED), "kernelbench", "sm_80")
    options, file = ("--format", "kernelbench", "--target", "sm_80"), tmp_path / "model_new.py"
    assert call("export", EXPORTED, *options).stdout == text
    result = call("export", EXPORTED, *options, "-o", str(file))
    assert (result.exit_code, result.stdout, file.read_text()) == (0, "", text)
    slugs = ["prod-f32-n1024", "prod-f32-n1024-inner1024"]
    answer = ask("export", *slugs)
    assert answer["text"] == export([ScanSpec.parse(slug) for slug in slugs])
    assert (answer["specs"], answer["format"], answer["target"]) == (slugs, "modelnew", "sm_90")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "store"
    monkeypatch.setenv("SCANOPS_STORE", str(root))
    return root


def test_figures(call: Call, ask: Ask) -> None:
    answer = ask(*WORDS, "--lines", "1000")
    plan = make_plan(ScanSpec.parse(SLUG), "sm_90")
    assert (answer["strategy"], answer["plan"], answer["why"]) == (plan.strategy, plan.numbers(), plan.why)
    assert answer["origin"] == plan.origin == "measured: block full, any GPU"
    assert (answer["bytes_an_item"], answer["bytes_moved"]) == (8, 1000 * 32768 * 8)
    assert answer["floor_us"] == pytest.approx(1000 * 32768 * 8 / 4.8e6, rel=1e-3)  # 4800 GB/s
    assert (answer["launch"]["lines"], answer["launch"]["threads"]) == (1000, plan.threads)
    assert min(answer["launch"]["blocks"], answer["occupancy"]["blocks"], answer["bytes_in_flight"]) > 0
    text = call(*WORDS).stdout
    labels = {line.split()[0] for line in text.splitlines() if line.startswith("  ") and line[2] != " "}
    shown = ("strategy", "plan", "why", "from", "grid", "bytes", "floor", "in", "registers", "shared", "occupancy")
    assert labels >= set(shown) and f"from       {plan.origin}\n" in text


def test_without_nvcc(call: Call, ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Figures are estimates."""
    for name in ("SCANOPS_NVCC", "SCANOPS_NVRTC"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    answer = ask(*WORDS)
    assert (answer["registers_from"], answer["resources"], answer["lookup"]["found"]) == ("estimate", None, None)
    assert call(*WORDS, "--check").exit_code == 1


def test_a_measured_plan_comes_first(call: Call, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "tuning.json", list(candidates(KernelKey(ScanSpec.parse(SLUG), "sm_90")))[1]
    tuning.write(path, [entry(other)])
    monkeypatch.setenv("SCANOPS_TUNING", str(path))
    answer = ask(*WORDS)
    assert (answer["from"]["file"], answer["plan"]) == (str(path), other.numbers())
    assert answer["origin"] == f"measured: {SLUG}"
    assert f"{path}: 10 us against 12 us" in call(*WORDS).stdout


def test_kernels_are_built_once_in_order_then_found(call: Call, ask: Ask, store: Path) -> None:
    words = ("build", SMALL, "prod-f32-n6", SMALL, "--target", "cpu")
    (built, second), (found, _) = (ask(*words)["kernels"] for _ in range(2))
    assert (second["slug"], second["ok"]) == ("prod-f32-n6", True)
    assert (built["slug"], built["target"], built["found"], found["found"]) == (SMALL, "cpu", False, True)
    assert found["path"] == built["path"] and Path(built["path"]).is_relative_to(store)
    assert Path(built["source"]).read_text(encoding="utf-8").startswith("// scanops")
    text = call("build", SMALL, "--target", "cpu")
    assert text.exit_code == 0 and built["path"] in text.stdout
    assert text.stdout.splitlines()[0].split()[:3] == [SMALL, "cpu", "found"]


@needs_nvcc
def test_registers_are_the_compilers(ask: Ask) -> None:
    (kernel,) = ask("build", SMALL, "--target", "sm_80")["kernels"]
    assert kernel["resources"]["registers"] > 0 and kernel["resources"]["spill_store_bytes"] == 0
    answer = ask("plan", SMALL, "--target", "sm_80")
    assert (answer["registers_from"], answer["registers"]) == ("compiler", kernel["resources"]["registers"])
    assert answer["resources"] == kernel["resources"] and answer["shared_bytes"]["declared"] >= 0


# ---- scanops tune with a laboratory that makes times up, and what it would measure

MadeUp = Callable[[Callable[[Plan], float]], None]
TUNED, OTHER_SLUG, TARGET = "sum-f32-n1000", "prod-f32-n4096", "sm_90"
PLANS = list(candidates(KernelKey(ScanSpec.parse(TUNED), TARGET)))
ENTRY = entry(PLANS[1])


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("SCANOPS_TUNING", str(path))
    return path


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    """A GPU on which plans take what the test says."""

    def install(microseconds: Callable[[Plan], float]) -> None:
        monkeypatch.setattr(measure, "require_gpu", lambda: (TARGET, GPU, 132))
        monkeypatch.setattr(measure, "items_that_fit", lambda spec: 2**20)
        monkeypatch.setattr(measure, "GpuLaboratory", lambda _, lines, jobs: FakeLaboratory(microseconds, lines=lines))

    return install


def test_a_better_plan_is_kept_and_other_entries_stay(call: Call, ask: Ask, file: Path, made_up: MadeUp) -> None:
    elsewhere = replace(ENTRY, target="sm_80")
    write(file, [replace(ENTRY, plan={}), elsewhere])
    made_up(lambda plan: 80.0 if plan == PLANS[1] else 100.0)
    answer = ask("tune", TUNED, OTHER_SLUG)
    assert (answer["device"], answer["file"]) == ("a GPU", str(file))
    first, second = answer["specs"]
    assert (first["improved"], first["default_us"], first["best_us"]) == (True, 100.0, 80.0)
    assert first["best"] == {"strategy": PLANS[1].strategy, **PLANS[1].numbers()}
    assert second["improved"] is False and second["best"] == second["default"]
    found = read(file)
    assert found.keys() == {ENTRY.key, elsewhere.key}
    assert (found[ENTRY.key].plan, found[ENTRY.key].measured.lines) == (PLANS[1].numbers(), 2**20 // 1000)
    text = call("tune", TUNED).stdout
    assert "1.250" in text and str(file) in text
    made_up(lambda plan: 100.0)  # what was better once is so no longer
    assert "the planner's own" in call("tune", TUNED).stdout
    assert read(file) == {elsewhere.key: elsewhere}
    file.write_text("{")
    made_up(lambda plan: pytest.fail("measured before the file was read"))
    assert ask("tune", TUNED, code=1)["error"]["kind"] == "BadTuning"


@pytest.mark.parametrize(
    "slug",
    [
        *(f"sum-f32-n100{tail}" for tail in ("", "-rows", "-strided", "-inner64-transposed", "-offsets_i32-initial")),
        "sum-f32-n100-mask_b8-rows_mask-unaligned",
        "linear-c64-n100-inner3-gate_c64-segments-initial-strided_gate",
        "linear-f32-n100-inner4-gate_f32-line_gate",
        "cummax-bf16-n100-final",
    ],
)
def test_a_kernel_of_the_spec_takes_its_operands(slug: str) -> None:
    """They ask for this very spec: whatever differs is refused."""
    spec = ScanSpec.parse(slug)
    operands = Operands(spec, 2 * 64 * spec.inner, "cpu")
    operands.fill_exactly()
    kernel = scanops.compile(spec, "cpu")
    with scanops.emulate():
        exact = operands.run(kernel)[0].clone()
        operands.fill_randomly()
        assert exact.isfinite().all() and not same(operands.run(kernel)[0], exact, exactly=False)
