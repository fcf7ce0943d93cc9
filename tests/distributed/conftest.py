"""Ranks that all tests of a process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.processes import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Three processes that emulate kernels and write one another's memory."""
    found = Ranks(3)
    yield found
    found.end()
