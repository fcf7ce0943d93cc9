"""The examples train alike with scanops and without, and say so when they do not."""

from __future__ import annotations

import json
import re
import runpy
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import monotonic_attention
import scanops
import scans
import selective_state_space
import spline_flow
import training
from tests.scripts import Forked, ran

EXAMPLES = Path(__file__).parents[2] / "examples"
# Module -> the operators whose kernels serve it, and a part of the first loss that the last ones stay below.
SERVED = {
    selective_state_space: ({"linear"}, 0.9),
    monotonic_attention: ({"sum", "logcumsumexp"}, 0.98),
    spline_flow: ({"prod", "sum"}, 0.96),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("module", SERVED, ids=lambda module: module.__name__)
def test_the_curves_are_the_same(module: object, device: str) -> None:
    example, (operators, part) = module.EXAMPLE, SERVED[module]
    size, steps, last = ("small", 30, 6) if device == "cpu" else ("large", 50, 5)
    outcome = training.compare(example, example.sizes[size], steps=steps, device=device)
    assert outcome.same, f"{outcome.difference} apart, {outcome.allowed} allowed"
    reference = outcome.curves[next(iter(example.ways))]
    for name, curve in outcome.curves.items():
        assert training.difference(curve, reference) <= outcome.allowed, name
        assert statistics.mean(curve.losses[-last:]) < (part if device == "cpu" else 1) * curve.losses[0], name
        assert device == "cpu" or curve.peak_bytes > 0, name
    assert device == "cuda" or operators <= {scanops.ScanSpec.parse(slug).op for slug in outcome.kernels}


def test_a_sequence_over_two_ranks_trains_as_on_one() -> None:
    words = ("--nproc-per-node", 2, EXAMPLES / "distributed_recurrence.py", "--steps", 8, "--length", 24)
    said = ran(sys.executable, "-m", "torch.distributed.run", *words, OMP_NUM_THREADS="1").stdout
    assert "[8, 16] of the time steps" in said and "losses agree" in said


@pytest.mark.parametrize(
    ("name", "said"),
    {
        "advantages": r"episodes end: the same, .* apart",
        "expert_positions": r"235 to 290 each, 84 dropped: the same, 0e\+00 apart",
        "survival": r"definition.*: the same, .*\n.*: the same",
        "volume_rendering": r"rendering, .*: the same, .*\n.*gradient, .*: the same",
        "serving": r"256 tokens: sum-f32-n256-exclusive on \w+: .* hit in pack [\s\S]*5 hit, 2 not in the pack",
    }.items(),
)
def test_a_short_script_prints_its_result(name: str, said: str, forked: Forked, tmp_path: Path) -> None:
    path = EXAMPLES / f"{name}.py"
    assert re.search(said, forked(tmp_path, (str(path), path.read_text(encoding="utf-8"))))


def test_a_slightly_wrong_scan_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(x, dim, **options):
        return scanops.cumsum(x, dim, **options) * (1 + 1e-5)

    monkeypatch.setattr(training, "SCANOPS", replace(scans.SCANOPS, cumsum=wrong))
    status = training.main([monotonic_attention.EXAMPLE], ["--steps", "20", "--device", "cpu"])
    assert status == 1
    assert "loss curves DIFFER" in capsys.readouterr().out


def test_the_scans_without_scanops_are_right() -> None:
    generator = torch.Generator().manual_seed(0)
    x, gate = (torch.rand((3, 2, 5), generator=generator, dtype=torch.float64) for _ in range(2))
    for dim in (0, 1, -1):
        for ways in (scans.TORCH, scans.DOUBLING):
            torch.testing.assert_close(ways.linear_scan(gate, x, dim), scanops.linear_scan(gate, x, dim))
            torch.testing.assert_close(ways.logcumsumexp(x, dim), scanops.logcumsumexp(x, dim))
            for exclusive in (False, True):
                for name in ("cumsum", "cumprod"):
                    found, expected = (getattr(each, name)(x, dim, exclusive=exclusive) for each in (ways, scanops))
                    torch.testing.assert_close(found, expected)


def test_a_training_that_diverges_is_not_the_same() -> None:
    for losses in ((1.0, float("nan")), (float("nan"), 1.0)):
        curve = training.Curve(losses=losses, ms=1.0, peak_bytes=None)
        apart = training.difference(curve, curve)
        assert not training.Outcome(size=None, kernels=(), curves={}, difference=apart, rounding=1e-6).same


@pytest.mark.parametrize("modules", [list(SERVED), [spline_flow]], ids=["all", "one"])
def test_they_run_as_programs(
    modules: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = EXAMPLES / f"{modules[0].__name__}.py" if len(modules) == 1 else EXAMPLES
    output = tmp_path / "examples.json"
    monkeypatch.setattr(sys, "argv", ["examples", "--steps", "2", "--device", "cpu", "-o", str(output)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0, capsys.readouterr()
    record = json.loads(output.read_text(encoding="utf-8"))
    assert {"device", "versions", "date"} <= record.keys()
    assert list(record["examples"]) == [module.EXAMPLE.name for module in modules]
    for each in record["examples"].values():
        assert each["same_curve"] and "scanops" in each["ways"]
        assert all(way["ms_a_step"] > 0 for way in each["ways"].values())


@pytest.mark.parametrize("steps", ["0", "-1", "many"])
def test_a_number_of_steps_that_makes_no_sense_is_refused(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        training.main([spline_flow.EXAMPLE], ["--device", "cpu", "--steps", steps])
    assert ended.value.code == 2
    assert "--steps: a whole number from 1 on, and not" in capsys.readouterr().err
