from __future__ import annotations

from pathlib import Path

import pytest

from scanops.artifact import BuildRequest
from scanops.store.store import Store
from tests.store.sources import COMPILERS_ALONE, CPU_SOURCE


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def request_cpu() -> BuildRequest:
    return BuildRequest(name="sum-f32", source=CPU_SOURCE, target="cpu")


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build with the compilers alone: the store does not care, and it saves importing torch."""
    monkeypatch.setattr(*COMPILERS_ALONE)
