from __future__ import annotations

from pathlib import Path

import pytest

from scanops.artifact import BuildRequest
from scanops.store.store import Store
from tests.store.sources import CPU_SOURCE


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def request_cpu() -> BuildRequest:
    return BuildRequest(name="sum-f32", source=CPU_SOURCE, target="cpu")
