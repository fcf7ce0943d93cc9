"""Which way kernels are built in tests that are about something else."""

from __future__ import annotations

import pytest

from scanops.artifact import CPU
from scanops.builders.inline import LoadInline


@pytest.fixture(autouse=True)
def compilers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build emulated kernels without load_inline, which takes half as long again; tests/builders holds both routes."""
    found = LoadInline.available

    def available(builder: LoadInline, target: str) -> str | None:
        return "not in this test" if target == CPU else found(builder, target)

    monkeypatch.setattr(LoadInline, "available", available)
