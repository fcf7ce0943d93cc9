from __future__ import annotations

import shutil

import pytest

from scanops.artifact import BuildRequest
from scanops.store import index
from scanops.store.store import Store
from tests.store.sources import needs_cxx

pytestmark = [needs_cxx, pytest.mark.usefixtures("without_torch")]


def test_an_alias_outlives_the_process_that_made_it(store: Store, request_cpu: BuildRequest) -> None:
    assert store.alias("key") is None
    entry = store.get_or_build(request_cpu)
    store.remember("key", entry.identity)
    later = Store(store.root)
    assert later.alias("key") == entry.identity
    assert later.alias("another key") is None
    assert later.find(entry.identity) == entry
    Store(store.root).remember("second key", entry.identity)
    assert later.alias("second key") == entry.identity
    assert [path.suffix for path in (store.root / "index").rglob("*") if path.is_file()] == [".json", ".json"]


def test_an_identity_without_an_entry_is_not_remembered(store: Store) -> None:
    store.remember("key", "0" * 64)
    assert store.alias("key") is None


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"[]",
        b"{}",
        index.record("key", "0" * 64, "sum-" + "0" * 16),
        index.record("key", "0", "x"),
        index.record("key", "0" * 64, "../../sum-" + "0" * 16),
    ],
)
def test_a_corrupt_alias_is_a_miss(store: Store, request_cpu: BuildRequest, record: bytes) -> None:
    store.remember("key", store.get_or_build(request_cpu).identity)
    next((store.root / "index").rglob("*.json")).write_bytes(record)
    assert Store(store.root).alias("key") is None


def test_a_dangling_alias_is_a_miss(store: Store, request_cpu: BuildRequest) -> None:
    entry = store.get_or_build(request_cpu)
    store.remember("key", entry.identity)
    shutil.rmtree(entry.directory)
    assert Store(store.root).alias("key") is None
