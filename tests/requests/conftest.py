"""Where a call is served: by torch's own operations, by emulated kernels, and on a GPU when there is one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import scanops


@pytest.fixture(params=["composed", "emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of a test's tensors: on "cpu" once without kernels and once with emulated ones."""
    with scanops.emulate(seed=7) if request.param == "emulated" else contextlib.nullcontext():
        yield "cuda" if request.param == "gpu" else "cpu"
