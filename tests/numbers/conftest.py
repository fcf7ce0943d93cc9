"""Where kernels run in these tests: emulated everywhere, and on a GPU when there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import scanops
from tests.numbers.oracle import affine_in_table


@pytest.fixture(autouse=True)
def affine_operator() -> Iterator[None]:
    """The non-commutative operator is in the table for the length of a test."""
    with affine_in_table():
        yield


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of a test's tensors; "cpu" means that kernels run emulated, threads in a shuffled order."""
    if request.param == "gpu":
        yield "cuda"
    else:
        with scanops.emulate(seed=12345):
            yield "cpu"
