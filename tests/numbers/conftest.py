"""Where kernels run in these tests: emulated everywhere, and on a GPU when there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import scanops
from scanops.codegen.operators import OPERATORS
from tests.numbers.oracle import AFFINE
from tests.routes import compilers_alone

__all__ = ["compilers_alone"]


@pytest.fixture(autouse=True)
def affine_operator() -> Iterator[None]:
    """The non-commutative operator is in the table for the length of a test."""
    OPERATORS["affine"] = AFFINE
    yield
    del OPERATORS["affine"]


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of a test's tensors; "cpu" means that kernels run emulated, threads in a shuffled order."""
    if request.param == "gpu":
        yield "cuda"
    else:
        with scanops.emulate(seed=12345):
            yield "cpu"
