from __future__ import annotations

import os
import pwd
import re
from pathlib import Path

import pytest

from scanops import environment, processes
from scanops.errors import BadStoreEntry, UnsupportedRequest
from scanops.store.root import check_root, create_root

PACKAGE = Path(environment.__file__).parent


def test_no_other_file_reads_the_environment() -> None:
    readers = [
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in ("os.environ", "getenv"))
    ]
    assert readers == [Path("environment.py")]


def test_every_variable_has_a_row_and_every_row_its_words() -> None:
    text = (PACKAGE / "environment.py").read_text(encoding="utf-8")
    assert set(re.findall(r'"((?:SCANOPS|CUDA)_[A-Z_]+)"', text)) == {row.name for row in environment.VARIABLES}
    for row in environment.VARIABLES:
        assert text.count(f'"{row.name}"') >= 2, f"{row.name} is in the table and read nowhere"
        assert row.default and row.meaning and callable(row.read)


def test_values_are_read_at_call_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCANOPS_LOCK_SECONDS", raising=False)
    assert environment.lock_seconds() == 60.0
    monkeypatch.setenv("SCANOPS_LOCK_SECONDS", "1.5")
    assert environment.lock_seconds() == 1.5
    for text in ("soon", "-1", "nan", "inf"):
        monkeypatch.setenv("SCANOPS_LOCK_SECONDS", text)
        with pytest.raises(UnsupportedRequest, match=f"read SCANOPS_LOCK_SECONDS: '{text}'"):
            environment.lock_seconds()
    for text, value in (("", False), ("0", False), ("no", False), ("1", True), ("yes", True)):
        monkeypatch.setenv("SCANOPS_VERBOSE", text)
        assert environment.verbose() is value


def test_an_overlay_is_taken_back_and_copies_are_made_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_ONE", "1")
    monkeypatch.delenv("SCANOPS_TWO", raising=False)
    with pytest.raises(KeyError), environment.overlaid({"SCANOPS_ONE": None, "SCANOPS_TWO": "2"}):
        assert "SCANOPS_ONE" not in os.environ
        assert os.environ["SCANOPS_TWO"] == "2"
        raise KeyError
    assert os.environ["SCANOPS_ONE"] == "1"
    assert "SCANOPS_TWO" not in os.environ

    def overlay() -> None:
        for _ in range(1000):
            with environment.overlaid({f"SCANOPS_{number}": "1" for number in range(50)}):
                pass

    def copy() -> None:
        assert all(environment.child(SCANOPS_TWO="2")["SCANOPS_TWO"] == "2" for _ in range(300))

    processes.at_once(lambda work: work(), (overlay, copy), 2)


PATHS = ("STORE", "PACKS", "TUNING", "REQUIRE_SIGNED", "RECORD", "NVCC", "NVRTC")


def test_a_user_without_a_home_has_a_store_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whom the system does not know, as a container is run by a number."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", *(row.name for row in environment.VARIABLES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    root = environment.store_root()
    assert root.is_absolute() and check_root(root) is False
    assert not any(path.exists() for path in environment.tuning_files())
    with pytest.raises(BadStoreEntry, match="this user has no home") as caught:
        create_root(root)
    assert "SCANOPS_STORE" in caught.value.hint
    reads = {row.name: row.read for row in environment.VARIABLES}
    for name in (*(f"SCANOPS_{name}" for name in PATHS), "CUDA_HOME"):
        monkeypatch.setenv(name, "~/somewhere")
        with pytest.raises(UnsupportedRequest, match=f"read {name}"):
            reads[name]()
