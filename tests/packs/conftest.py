from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanops.artifact import BuildRequest
from scanops.builders import inline
from scanops.codegen.spec import ScanSpec
from scanops.packs.manifest import finish
from scanops.store import layers
from scanops.store.identity import request_of
from scanops.store.packs import installed
from scanops.store.store import Store
from tests.store.sources import CPU_SOURCE

SPEC = ScanSpec(op="sum", dtype="float32", length=24)
OTHER = BuildRequest(name="of-a-user", source=CPU_SOURCE, target="cpu")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished pack of a generated kernel and one that is no spec's; not to be changed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inline, "unavailable", lambda target: "not in this test")
        root = tmp_path_factory.mktemp("built") / "pack"
        for request in (request_of(SPEC, "cpu"), OTHER):
            Store(root).get_or_build(request)
        finish(root)
    return root


@pytest.fixture
def pack(built: Path, tmp_path: Path) -> Path:
    """A copy to be changed at will."""
    shutil.copytree(built, tmp_path / "pack", ignore=shutil.ignore_patterns(".*"))
    return tmp_path / "pack"


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A machine with a store that cannot be made, no compiler, and no pack yet."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "absent"))
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "no-tools"))
    monkeypatch.delenv("SCANOPS_PACKS", raising=False)
    caches = (layers._layers, installed)
    for cache in caches:
        cache.cache_clear()
    yield monkeypatch
    for cache in caches:
        cache.cache_clear()
