"""Whole requests, drawn at random: each gives the right answer or a typed error, and never anything else.

    SCANOPS_FUZZ=10000 pytest tests/requests/test_fuzz.py -m gpu --hypothesis-profile=explore

``SCANOPS_FUZZ`` is the number of examples of each test. What a kernel is specialised for comes from a pool of a few
hundred recipes on a GPU, all built beforehand on all cores; data, outs and what is wrong with a call are drawn anew.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import scanops
from benchmarks.common import build_kernels
from scanops.codegen.spec import ScanSpec
from scanops.requests.request import make_request
from scanops.runtime.kernels import default_target
from tests.requests.built import Built
from tests.requests.calls import CHANGES, holds
from tests.requests.recipes import INITIALS, NUMBERS, OPS, OUTS, SEGMENTS, SHAPES, VIEWS, Call, Recipe, recipe

EXAMPLES = int(os.environ.get("SCANOPS_FUZZ", "0"))
COUNTS = {"composed": EXAMPLES or 400, "emulated": EXAMPLES or 36, "gpu": EXAMPLES or 400}
POOL = 500  # recipes on a GPU


def calls(recipes: st.SearchStrategy[Recipe], wrongs: Iterable[str] = CHANGES) -> st.SearchStrategy[Call]:
    """Calls of these recipes, one in five of them wrong."""
    return st.builds(
        Call,
        recipe=recipes,
        seed=st.integers(0, 2**16),
        special=st.booleans(),
        out=st.sampled_from(OUTS),
        wrong=st.one_of(*[st.none()] * 4, st.sampled_from(list(wrongs))),
    )


@st.composite
def any_recipe(draw: st.DrawFn) -> Recipe:
    return recipe(lambda options: draw(st.sampled_from(options)))


def examples(kind: str) -> settings:
    return settings(
        max_examples=COUNTS[kind],
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@examples("composed")
@given(call=calls(any_recipe()))
def test_composed(call: Call) -> None:
    holds(call, "cpu", note)


@examples("emulated")
@given(call=calls(any_recipe()))
def test_emulated(call: Call) -> None:
    with scanops.emulate(seed=5):
        holds(call, "cpu", note)


def pool() -> list[Recipe]:
    """The same in every run."""
    return [recipe(random.Random(number).choice) for number in range(POOL)]


@pytest.fixture(scope="module")
def built_pool() -> list[Recipe]:
    """Every kernel of the pool is in the store."""
    found, size = pool(), torch.cuda.get_device_properties().multi_processor_count
    specs: list[ScanSpec] = []
    for each in found:
        built = Built(Call(recipe=each), "cuda")
        if built.legal and built.x.numel():
            specs.append(spec_of(built, size))
    assert not build_kernels(list(dict.fromkeys(specs)), default_target())
    return found


def spec_of(built: Built, multiprocessors: int) -> ScanSpec:
    options = built.options()
    names = {"return_final": "final", "segment_starts": "starts"}
    given = {names.get(name, name): value for name, value in options.items()}
    request = make_request(
        built.x.expand(built.call.recipe.shape), built.call.recipe.op, built.call.recipe.dim, gate=built.gate, **given
    )
    out = torch.empty(request.x.shape, dtype=request.dtype, device=request.x.device)
    return request.spec(out, multiprocessors)


@pytest.mark.gpu
def test_on_a_gpu(built_pool: list[Recipe]) -> None:
    ran, others = [0], ("x complex", "dtype complex", "out is the mask")  # other kernels than the recipe

    @examples("gpu")
    @given(call=calls(st.sampled_from(built_pool), [wrong for wrong in CHANGES if wrong not in others]))
    def each(call: Call) -> None:
        ran[0] += 1
        holds(call, "cuda", note)

    each()
    print(f"{ran[0]} requests")


def test_the_pool_has_everything() -> None:
    found = pool()
    assert {each.op for each in found} == set(OPS) and {each.x_dtype for each in found} == set(NUMBERS)
    assert {each.shape for each in found} == set(SHAPES) and {each.view for each in found} == set(VIEWS)
    assert {each.initial for each in found} == set(INITIALS) and {each.segments for each in found} == set(SEGMENTS)
    assert found[0] == recipe(random.Random(0).choice)
    legal = [Built(Call(recipe=each), "cpu").legal for each in found]
    assert sum(legal) > POOL // 4
