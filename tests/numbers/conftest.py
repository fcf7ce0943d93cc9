"""Where kernels run in these tests: emulated everywhere, and on a GPU when there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.numbers.oracle import affine_in_table


@pytest.fixture(autouse=True)
def affine_operator() -> Iterator[None]:
    """The non-commutative operator is in the table for the length of a test."""
    with affine_in_table():
        yield


@pytest.fixture
def device(kernels: str) -> str:
    """The device of a test's tensors: kernels run, on "cpu" emulated."""
    return kernels
