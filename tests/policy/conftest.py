"""Each test has a store of its own, and a process that holds no kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import scanops
from scanops import ScanSpec, recording
from scanops.runtime import call_cache, kernels

LENGTH = 100
SPEC = ScanSpec(op="sum", dtype="float32", length=LENGTH)
X = torch.arange(3.0 * LENGTH).reshape(3, LENGTH) % 7
Y = torch.cumsum(X, 1)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "store"
    monkeypatch.setenv("SCANOPS_STORE", str(root))
    for name in ("SCANOPS_POLICY", "SCANOPS_RECORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(kernels, "_KERNELS", {})
    monkeypatch.setattr(recording, "_FILE", [])
    monkeypatch.setattr(recording, "OPEN", [])
    call_cache.forget()
    return root


def scanned() -> torch.Tensor:
    """Scan X, whose kernel is that of SPEC, in the emulator."""
    with scanops.emulate():
        return scanops.cumsum(X, 1)


def kept(store: Path) -> set[str]:
    """Return the short names of the kernels in a store."""
    return {path.parent.name.rpartition("-")[0] for path in store.glob("*/manifest.json")}
