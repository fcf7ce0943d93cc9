"""The examples train alike with scanops and without, and say so when they do not."""

from __future__ import annotations

import json
import runpy
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import monotonic_attention
import scanops
import scans
import selective_state_space
import spline_flow
import training

EXAMPLES = Path(__file__).parents[2] / "examples"
# Module -> the operators whose kernels serve it, and a part of the first loss that the last ones stay below.
SERVED = {
    selective_state_space: ({"linear"}, 0.5),
    monotonic_attention: ({"sum", "logcumsumexp"}, 0.7),
    spline_flow: ({"prod", "sum"}, 0.75),
}


@pytest.mark.parametrize("module", SERVED, ids=lambda module: module.__name__)
def test_the_curves_are_the_same(module: object) -> None:
    example, (operators, part) = module.EXAMPLE, SERVED[module]
    outcome = training.compare(example, example.sizes["small"], steps=200, device="cpu")
    assert outcome.same, f"{outcome.difference} apart, {outcome.allowed} allowed"
    assert operators <= {scanops.ScanSpec.parse(slug).op for slug in outcome.kernels}
    reference = outcome.curves[next(iter(example.ways))]
    for name, curve in outcome.curves.items():
        assert training.difference(curve, reference) <= outcome.allowed, name
        assert statistics.mean(curve.losses[-20:]) < part * curve.losses[0], name


@pytest.mark.gpu
@pytest.mark.parametrize("module", SERVED, ids=lambda module: module.__name__)
def test_the_curves_are_the_same_on_a_gpu(module: object) -> None:
    example = module.EXAMPLE
    outcome = training.compare(example, example.sizes["large"], steps=50, device="cuda")
    assert outcome.same, f"{outcome.difference} apart, {outcome.allowed} allowed"
    for name, curve in outcome.curves.items():
        assert statistics.mean(curve.losses[-5:]) < curve.losses[0], name
        assert curve.peak_bytes > 0, name


def test_a_scan_that_is_a_little_wrong_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(x, dim, **options):
        return scanops.cumsum(x, dim, **options) * (1 + 1e-5)

    monkeypatch.setattr(training, "SCANOPS", replace(scans.SCANOPS, cumsum=wrong))
    status = training.main([monotonic_attention.EXAMPLE], ["--steps", "20", "--device", "cpu"])
    assert status == 1
    assert "NOT the same curve" in capsys.readouterr().out


@pytest.mark.parametrize("losses", [(1.0, float("nan")), (float("nan"), 1.0)])
def test_a_training_that_diverges_is_not_the_same(losses: tuple[float, ...]) -> None:
    curve = training.Curve(losses=losses, ms=1.0, peak_bytes=None)
    outcome = training.Outcome(
        size=None, kernels=(), curves={}, difference=training.difference(curve, curve), allowed=1e-6
    )
    assert not outcome.same


def test_a_training_that_rounding_carries_away_tells_nothing() -> None:
    outcome = training.Outcome(size=None, kernels=(), curves={}, difference=1e-2, allowed=2 * training.LOOSEST)
    assert not outcome.same


def test_all_of_them_run_as_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "examples.json"
    monkeypatch.setattr(sys, "argv", ["examples", "--steps", "2", "--device", "cpu", "-o", str(output)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES), run_name="__main__")
    assert ended.value.code == 0, capsys.readouterr()
    record = json.loads(output.read_text(encoding="utf-8"))
    assert {"device", "versions", "date"} <= record.keys()
    assert list(record["examples"]) == [module.EXAMPLE.name for module in SERVED]
    for each in record["examples"].values():
        assert each["same_curve"] and "scanops" in each["ways"]
        assert all(way["ms_a_step"] > 0 for way in each["ways"].values())
