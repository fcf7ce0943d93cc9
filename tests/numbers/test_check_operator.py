"""``check_operator``: correct operators pass, and a mistake is named."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import scanops
from scanops.codegen.operators import OPERATORS
from scanops.errors import BuildFailure, UnsupportedRequest
from scanops.store import Store
from tests.numbers.oracle import COMPOUND
from tests.numbers.test_own_operators import CONTINUANT, FINITE, LAST_VALID, changed


def test_a_correct_operator_passes(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report counts laws and scans; phases are logged, and printed on a terminal."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with caplog.at_level("INFO", "scanops"):
        report = scanops.check_operator(CONTINUANT, lengths=(6, 127), samples=FINITE)
    assert report.ok and not report.findings, str(report)
    assert report.laws > 1000 and report.scans >= 6 and report.items > 1000
    assert set(report.strategies) >= {"columns", "staged"}
    assert CONTINUANT.name in str(report) and "nothing wrong" in str(report)
    printed = capsys.readouterr().err.splitlines()
    assert printed == [line for line in caplog.messages if line.startswith("check_operator")] and len(printed) > 10
    monkeypatch.undo()
    assert not scanops.check_operator(CONTINUANT, lengths=()).scans
    assert not capsys.readouterr().err


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel in the user's store, no temporary folder and no name: a mistake is mended under the same name."""
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    wrong = dataclasses.replace(LAST_VALID, name="attempt", identity=("0", "0"))
    right = dataclasses.replace(LAST_VALID, name="attempt")
    known = dict(OPERATORS)
    assert not scanops.check_operator(wrong, lengths=(6,)).ok
    assert scanops.check_operator(right, lengths=(6,)).ok
    assert known == OPERATORS and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_every_strategy_is_reached_by_few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default lengths reach all strategies with at most 20 builds: a check takes seconds."""
    built: list[str] = []
    build = Store.get_or_build
    monkeypatch.setattr(Store, "get_or_build", lambda self, request: built.append(request.name) or build(self, request))
    report = scanops.check_operator(LAST_VALID)
    assert report.ok, str(report)
    assert set(report.strategies) >= {"block", "columns", "columns_lookback", "split", "staged", "warp", "persistent"}
    assert len(built) <= 20


@pytest.mark.parametrize("text", ["(x == x) * i", "x < x ? 0 : i"])
def test_an_index_in_a_field_of_floats_is_found(text: str) -> None:
    """check_operator lifts elements beyond index 2^24. A declared field and arithmetic with i are no findings."""
    index: dict[str, Any] = {
        "fields": ("value", "index"),
        "lift": ("x", text),
        "identity": ("0", "-1"),
        "start": (0, -1),
        "combine": ("newer.index >= 0 ? newer : older",),
        "kinds": ("float",),
    }
    loose = changed(LAST_VALID, **index, step=lambda h, x, i: (x, torch.full_like(h[1], i)), output=lambda h: h[0])
    (finding,) = scanops.check_operator(loose, lengths=(6,), samples=FINITE).findings
    assert (finding.law, finding.dtype) == ("exact indices", "float32") and "'index'" in finding.example
    assert scanops.check_operator(changed(loose, types=("value", "index")), lengths=(6,), samples=FINITE).ok
    weighted = changed(loose, lift=("x", "0 * x + i % 2"), step=lambda h, x, i: (x, h[1]))
    assert scanops.check_operator(weighted, lengths=(6,), samples=FINITE).ok


MEAN = scanops.Operator(
    name="mean",
    formula="y[i] = (x[0] + ... + x[i]) / (i + 1)",
    fields=("count", "mean"),
    lift=("1", "x"),
    combine=(
        "older.count + newer.count",
        "older.count == 0 ? newer.mean : older.mean + (newer.mean - older.mean) * newer.count"
        " / (older.count + newer.count)",
    ),
    identity=("0", "0"),
    project="state.mean",
    kinds=("float", "complex"),
    gives="kept",
    commutative=True,
    start=(0, 0),
    step=lambda h, x: (h[0] + 1, h[1] + (x - h[1]) / (h[0] + 1)),
    output=lambda h: h[1],
)
EITHER = dataclasses.replace(COMPOUND, name="either", kinds=("complex",), combine=("(1 + older) * (1 + newer) - 1",))


@pytest.mark.parametrize("operator", [MEAN, EITHER], ids=lambda operator: operator.name)
def test_the_arithmetic_of_complex_numbers(operator: scanops.Operator) -> None:
    """Complex fields add, multiply and divide with complex and real operands; laws and reference are tested."""
    finite = (1, 0.5, -1.5, 1j, 1 - 2j, 0.1 + 0.3j)
    report = scanops.check_operator(operator, lengths=(6, 127), samples=finite)
    assert report.ok and report.scans >= 3, str(report)
    wrong = dataclasses.replace(operator, step=lambda h, x: h)
    found = scanops.check_operator(wrong, lengths=(6,), samples=finite).findings
    assert {finding.dtype for finding in found} <= {"float32", "complex64"} and found


def test_a_complex_quotient(device: str) -> None:
    """Complex division gives torch's results for large and small operands, and for division by zero."""
    last = dataclasses.replace(
        EITHER,
        name="quotient",
        fields=("top", "bottom"),
        lift=("x", "1"),
        combine=("newer.bottom != 0 ? newer : older",),
        identity=("0", "0"),
        project="(state.top + 1) / state.top",
        commutative=False,
        output=lambda h: (h + 1) / h,
        step=lambda h, x: x,
    )
    x = torch.tensor([1 + 2j, 3e30 - 1e30j, -1e-20j, 1e19 + 1j, 0.5], dtype=torch.complex64, device=device)
    expected = (x.cpu().to(torch.complex128) + 1) / x.cpu().to(torch.complex128)
    torch.testing.assert_close(scanops.scan(x, last, 0).cpu(), expected.to(torch.complex64))
    assert not scanops.scan(x[:1] * 0, last, 0).isfinite().any()


def difference(combine: str) -> scanops.Operator:
    """A running difference, which no combine of numbers gives."""
    return changed(
        CONTINUANT,
        fields=("value",),
        lift=("x",),
        combine=(combine,),
        identity=("0",),
        project="state",
        kinds=("int",),
        start=0,
        step=lambda h, x: h - x,
        output=None,
    )


GREATEST = scanops.Operator(
    name="greatest",
    formula="y[i] = max(x[0], ..., x[i])",
    fields=("value",),
    lift=("x",),
    combine=("older < newer ? newer : older",),
    identity=("lowest",),
    project="state",
    commutative=True,
    ordered=True,
    start="lowest",
    step=torch.maximum,
)
# A mistake -> an operator that has it, and what the finding says
BROKEN: dict[str, tuple[scanops.Operator, tuple[str, ...]]] = {
    "swapped operands": (
        changed(
            CONTINUANT,
            combine=(
                "newer.a * older.a + newer.b * older.c",
                "newer.a * older.b + newer.b * older.d",
                "newer.c * older.a + newer.d * older.c",
                "newer.c * older.b + newer.d * older.d",
            ),
            project="state.b",
            output=lambda h: h[1],
        ),
        ("agreement",),
    ),
    "no identity on the left": (changed(LAST_VALID, identity=("1", "0")), ("identity on the left",)),
    "no identity on the right": (changed(LAST_VALID, identity=("lowest - lowest", "1")), ("identity on the right",)),
    "not commutative": (changed(LAST_VALID, commutative=True), ("commutativity",)),
    "complex, not commutative": (
        dataclasses.replace(EITHER, combine=("older + Value{newer.re, -newer.im}",)),
        ("(complex128)", "j"),
    ),
    "another reference": (changed(LAST_VALID, start=0), ("agreement",)),
    "a reference for numbers": (changed(LAST_VALID, step=lambda h, x: x if x == x else h), ("torch.where",)),
    # Laws are tested from single elements upwards: an example needs no longer range than it has.
    "found with one element": (
        difference("older - newer"),
        ("combine(identity, a) = -1, but a = 1, for a = 1",),
    ),
    "found with three elements": (
        difference("older == 0 ? newer : newer == 0 ? older : older - newer"),
        ("combine(combine(a, b), c) = 1, but combine(a, combine(b, c)) = 3, for a = 1, b = -1, c = 1",),
    ),
    "a kind too many": (  # complex numbers are one by default, and have no order
        GREATEST,
        ("C++ for each of its kinds (complex128)", "operator<", "leave it out of kinds="),
    ),
}
WITH_NAN = ("last_valid", "compound", "either")


@pytest.mark.parametrize("name", BROKEN)
def test_a_mistake_is_found(name: str) -> None:
    """The check stops at the first mistake, and its only finding names it."""
    operator, words = BROKEN[name]
    report = scanops.check_operator(
        operator, lengths=(6,), samples=None if operator.name.startswith(WITH_NAN) else FINITE
    )
    (finding,) = report.findings
    assert all(word in str(finding) for word in words) and finding.example and finding.law in str(report)


def test_cpp_that_does_not_compile() -> None:
    """The error has the expressions and the compiler's output, from check_operator and from compile."""
    operator = changed(LAST_VALID, combine=("newer.valid ? newer : oldr",))
    for call in (
        lambda: scanops.check_operator(operator),
        lambda: scanops.compile(
            scanops.ScanSpec(op=scanops.register_operator(operator).name, dtype="f32", length=4), "cpu"
        ),
    ):
        with pytest.raises(BuildFailure) as caught:
            call()
        assert "newer.valid ? newer : oldr" in str(caught.value.value) and "was not declared" in str(caught.value.value)
    del OPERATORS[operator.name]


@pytest.mark.parametrize("options", [{"lengths": (0,)}, {"lengths": (1.5,)}, {"samples": ()}, {"samples": ("a",)}])
def test_invalid_options(options: dict[str, Any]) -> None:
    """Invalid lengths, samples, dtypes and operators raise UnsupportedRequest."""
    with pytest.raises(UnsupportedRequest):
        scanops.check_operator(LAST_VALID, **options)
    with pytest.raises(UnsupportedRequest):
        scanops.check_operator(3)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedRequest):
        scanops.check_operator(LAST_VALID, dtypes=[torch.int32])
