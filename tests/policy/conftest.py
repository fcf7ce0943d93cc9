"""Each test has a store of its own, and a process that holds no kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scanops import workload
from scanops.runtime import calls, obtain

__all__ = ["expected", "store"]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "store"
    monkeypatch.setenv("SCANOPS_STORE", str(root))
    for name in ("SCANOPS_POLICY", "SCANOPS_RECORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(obtain, "_KERNELS", {})
    monkeypatch.setattr(workload, "_FILE", [])
    calls.forget()
    return root


def expected(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x, 1)
