"""``check_operator``: right operators pass, and a mistake is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import scanops
from scanops.errors import UnsupportedRequest
from scanops.fusion.operators import FieldOperator
from tests.requests.checks import refused
from tests.scripts import loaded

EXAMPLES = loaded("docs/examples/fields.py")


def of_one(combine: Any, **options: Any) -> FieldOperator:
    """An operator whose state is one number."""
    options = {"identity": 0, **options}
    return scanops.operator(fields=("a",), combine=lambda older, newer: combine(older.a, newer.a), **options)


LATCHES = scanops.operator(  # bits that are set and reset: an item keeps some and sets others
    name="latches",
    fields={"keep": torch.int32, "set": torch.int32},
    identity=(-1, 0),
    combine=lambda older, newer: (older.keep & newer.keep, (older.set & newer.keep) | newer.set),
    project=lambda state: state.set,
)
ANY_BITS = of_one(lambda older, newer: older | newer)
DTYPES: dict[str, tuple[FieldOperator, Any, str]] = {  # operator, dtypes, the dtypes of the laws
    "bits": (ANY_BITS, None, "int64"),
    "bits of every width": (ANY_BITS, [torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64], "bool"),
    "declared fields": (LATCHES, None, "int32"),
    "fields of several dtypes": (
        scanops.operator(
            fields={"some": torch.bool, "value": None},
            lift=lambda some, x: (some, torch.where(some, x, 0.0)),
            combine=lambda older, newer: (
                older.some | newer.some,
                torch.where(newer.some, newer.value, older.value),
            ),
        ),
        [(torch.bool, torch.float32)],
        "bool, float64",
    ),
    "floats in halves": (of_one(torch.maximum, identity=-torch.inf), [torch.bfloat16], "float64"),
    "bool": (of_one(torch.logical_or, lift=lambda x: x > 0.5), None, "float64"),
}


@pytest.mark.parametrize("name", DTYPES)
def test_laws_in_the_dtypes_that_are_asked_for(name: str, caplog: pytest.LogCaptureFixture) -> None:
    operator, dtypes, laws = DTYPES[name]
    with caplog.at_level("INFO", "scanops"):
        report = scanops.check_operator(operator, dtypes=dtypes, lengths=(6, 65))
    assert report.ok and report.laws >= 7200 and report.items >= 600, str(report)
    assert any(line.endswith(f"laws in {laws}") for line in caplog.messages), caplog.messages


def test_a_report_says_what_was_done(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts laws and scans and names strategies; phases are logged, and printed on a terminal."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with caplog.at_level("INFO", "scanops"):
        report = scanops.check_operator(LATCHES, lengths=(6, 127))
    assert set(report.strategies) >= {"columns", "staged"}
    assert str(report) == f"latches: nothing wrong in 7200 laws, 4 scans of {report.items} items ({strategies(report)})"
    printed = capsys.readouterr().err.splitlines()
    assert printed == [line for line in caplog.messages if line.startswith("check_operator")] and len(printed) == 2
    monkeypatch.undo()
    assert str(scanops.check_operator(LATCHES, lengths=())) == "latches: nothing wrong in 7200 laws, 0 scans of 0 items"
    assert not capsys.readouterr().err


def strategies(report: Any) -> str:
    return ", ".join(report.strategies)


@pytest.mark.slow
def test_every_strategy_is_reached() -> None:
    report = scanops.check_operator(EXAMPLES.matrices, samples=(0.0, 1.0, -1.0, 0.5))
    assert report.ok, str(report)
    assert set(report.strategies) >= {"block", "columns", "columns_lookback", "split", "staged", "warp", "persistent"}


BROKEN: dict[str, tuple[FieldOperator, dict[str, Any], tuple[str, ...]]] = {
    "integers, not associative": (
        of_one(lambda older, newer: (older ^ newer) & 6),
        {"dtypes": [torch.int32]},
        ("identity on the left (int32)", "in the field 'a'"),
    ),
    "integers that wrap around": (
        of_one(lambda older, newer: torch.maximum(older, newer) + 0 * older, identity=-(2**31), lift=lambda x: x),
        {"dtypes": [torch.int64], "samples": (2**40, -(2**40))},
        ("identity on the left (int64)", "-1099511627776"),
    ),
    "no identity on the right": (
        scanops.operator(
            fields=("a", "b"),
            identity=0,
            lift=lambda x: (x, x),
            combine=lambda older, newer: (older.a + newer.a, newer.b),
        ),
        {},
        ("identity on the right (float64)", "in the field 'b'"),
    ),
    "found with states of two items": (  # single items have a = 1
        scanops.operator(
            fields=("a", "b"),
            identity=(0, 0),
            lift=lambda x: (x * 0 + 1, x),
            combine=lambda older, newer: (
                older.a + newer.a,
                older.b + newer.b + torch.where((older.a > 1) & (newer.a > 1), 1.0, 0.0),
            ),
        ),
        {},
        ("associativity", "c of ["),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_mistake_is_found(name: str) -> None:
    """The check stops at the first mistake, and its only finding names it."""
    operator, options, words = BROKEN[name]
    report = scanops.check_operator(operator, lengths=(6,), **options)
    (finding,) = report.findings
    assert all(word in str(finding) for word in words) and finding.law in str(report), str(report)


def test_dtypes_that_an_operator_does_not_take() -> None:
    """The operation is named with its dtype and its line; so is what no scan takes."""
    for call in (
        lambda: scanops.check_operator(ANY_BITS, dtypes=[torch.float32], lengths=()),
        lambda: scanops.scan(torch.ones(3), ANY_BITS, 0),
    ):
        error = refused(UnsupportedRequest, call)
        assert "bitwise_or of dtype float" in str(error).splitlines()[0] and "test_check_operator.py" in str(error)


@pytest.mark.parametrize(
    "options",
    [
        *({"lengths": (n,)} for n in (0, 1.5)),
        *({"samples": samples} for samples in ((), ("a",))),
        *({"dtypes": [dtypes]} for dtypes in ("int32", (torch.int32,))),
        *({"op": op} for op in (3, "sum")),
    ],
    ids=str,
)
def test_invalid_options(options: dict[str, Any]) -> None:
    """The first line names the option and its value."""
    ((name, value),) = options.items()
    error = refused(UnsupportedRequest, lambda: scanops.check_operator(**{"op": LATCHES, **options}))
    shown = repr(tuple(value) if isinstance(value, list) else value)
    assert f"invalid {name}: got {shown}" in str(error).splitlines()[0]
