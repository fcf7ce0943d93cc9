"""The target table."""

from __future__ import annotations

import pytest

from scanops.codegen.targets import DEFAULT_TARGET, TARGETS, Target, target_named

REQUIRED = {"sm_70", "sm_75", "sm_80", "sm_90", "sm_100", "sm_120"}
ROWS = pytest.mark.parametrize("row", TARGETS.values(), ids=lambda row: row.name)


def test_what_is_promised_is_there() -> None:
    """The documented targets and the default one."""
    assert TARGETS.keys() >= REQUIRED
    assert DEFAULT_TARGET in TARGETS


@ROWS
def test_a_row(row: Target) -> None:
    """Name, compute capability and features agree."""
    assert target_named(row.name) is row
    major, minor = row.capability
    assert row.name == f"sm_{major}{minor}"
    assert row.multiprocessors > 0
    assert row.threads in (1024, 1536, 2048)
    assert row.bfloat_convert == (row.capability >= (8, 0))


def test_rows_are_in_order() -> None:
    """By rising compute capability, each once."""
    capabilities = [row.capability for row in TARGETS.values()]
    assert capabilities == sorted(set(capabilities))
