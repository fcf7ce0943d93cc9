"""Whole requests, drawn at random: each gives the right answer or a typed error, and never anything else.

    SCANOPS_FUZZ=10000 pytest tests/requests/test_fuzz.py -m gpu --hypothesis-profile=explore

``SCANOPS_FUZZ`` is the number of examples of each test. On a GPU what a kernel is specialised for is one of a few
hundred recipes, whose kernels are built as they are drawn; data, outs and what is wrong with a call are drawn anew.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import scanops
from benchmarks.odd_calls import run
from tests.requests.calls import CHANGES, holds
from tests.requests.recipes import OUTS, Call, Recipe, recipe

EXAMPLES = int(os.environ.get("SCANOPS_FUZZ", "0"))


@st.composite
def any_recipe(draw: st.DrawFn) -> Recipe:
    return recipe(lambda options: draw(st.sampled_from(options)))


def calls(recipes: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Call]:
    """Calls of these recipes, one in five of them wrong."""
    return st.builds(
        Call,
        recipe=recipes,
        seed=st.integers(0, 2**16),
        special=st.booleans(),
        out=st.sampled_from(OUTS),
        wrong=st.one_of(*[st.none()] * 4, st.sampled_from(list(CHANGES))),
    )


def examples(count: int) -> settings:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=EXAMPLES or count, deadline=None, suppress_health_check=slow)


@examples(36)
@given(call=calls(any_recipe()))
def test_emulated(call: Call) -> None:
    with scanops.emulate(seed=5):
        holds(call, "cpu", note)


@pytest.mark.gpu
@examples(400)
@given(call=calls(st.integers(1, 500).map(lambda number: recipe(random.Random(number).choice))))
def test_on_a_gpu(call: Call) -> None:
    holds(call, "cuda", note)


@pytest.mark.filterwarnings("ignore")
def test_odd_calls_give_right_answers_or_typed_errors() -> None:
    """By PyTorch's operators, half of them recipes; as ``python -m benchmarks soak --calls`` makes them."""
    outcome = run(EXAMPLES or 1000, seed=11)
    assert not outcome.raw and not outcome.wrong
    assert outcome.right > outcome.calls / 3 and outcome.refused > outcome.calls / 10
