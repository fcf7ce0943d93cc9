"""Whole requests, drawn at random: each gives the right answer or a typed error, and never anything else.

    SCANOPS_FUZZ=10000 pytest tests/requests/test_fuzz.py -m gpu

``SCANOPS_FUZZ`` is the number of calls of each test. On a GPU what a kernel is specialised for is one of a few hundred
recipes, whose kernels are built as they are drawn; data and outs are drawn anew.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import replace

import pytest

import scanops
from benchmarks.odd_calls import run
from tests.requests.recipes import SHAPES, Built, drawn, holds

COUNT = int(os.environ.get("SCANOPS_FUZZ", "0"))


@pytest.mark.parametrize(("shape", "seed"), itertools.product(SHAPES, range(COUNT // len(SHAPES) or 2)), ids=str)
def test_emulated(shape: tuple[int, ...], seed: int) -> None:
    """Right calls of each shape: no dimension, empty lines, lines of one item, many dimensions."""
    pick, call = random.Random(f"{shape} {seed}"), None
    while call is None or not Built(call, "cpu").legal:
        call = replace(drawn(pick), shape=shape, dim=pick.randrange(max(1, len(shape))))
    with scanops.emulate(seed=5):
        holds(call, "cpu", print)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(COUNT or 400))
def test_on_a_gpu(seed: int) -> None:
    holds(drawn(random.Random(seed), random.Random(seed % 500)), "cuda", print)


@pytest.mark.filterwarnings("ignore")
def test_calls_of_pytorchs_operators() -> None:
    """Half of them drawn as above, half of them odd, as ``python -m benchmarks soak --calls`` makes them."""
    outcome = run(COUNT or 1000, seed=11)
    assert not outcome.raw and not outcome.wrong
    assert outcome.right > outcome.calls / 3 and outcome.refused > outcome.calls / 10
