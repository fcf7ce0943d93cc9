"""The native part of calls: built once for all runs of the tests, switched on for the length of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import scanops
from scanops.runtime import calls, native
from tests.routes import compilers_alone

__all__ = ["compilers_alone"]


class Counted:
    """How many calls were served natively, since the fixture began."""

    def __init__(self) -> None:
        self.calls = 0

    def during(self, call: object) -> int:
        before = self.calls
        call()  # type: ignore[operator]
        return self.calls - before


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    """Native calls of emulated kernels, nothing learnt yet; and their count."""
    monkeypatch.setenv("SCANOPS_LOCK_SECONDS", "600")  # another worker may be building it
    assert native.get(build=True)
    native.forget()
    calls.forget()
    count, served = Counted(), native.served

    def counting(*given: object) -> object:
        found = served(*given)
        count.calls += found is not None
        return found

    native.served = counting  # type: ignore[assignment]
    try:
        with scanops.emulate(seed=3):
            yield count
    finally:
        native.unload()
        native.forget()
