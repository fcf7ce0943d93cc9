"""The native part of calls: built once for all runs of the tests, switched on for the length of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import scanops
from scanops.runtime import calls, native
from tests.native.driver import Driver as Driver
from tests.native.driver import cuda as cuda
from tests.native.driver import entry_of as entry_of


class Counted:
    """The number of calls that were served natively since the fixture began."""

    calls = 0

    def during(self, call: Callable[[], object]) -> int:
        """Return how many a call serves."""
        before = self.calls
        call()
        return self.calls - before


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    """Serve emulated kernels natively, with nothing learnt yet, and count."""
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
    with scanops.emulate(seed=3):
        yield count
    native.served = None
    native.forget()
