"""Whole requests, drawn at random: each gives the right answer or a typed error, and never anything else.

    SCANOPS_FUZZ=10000 pytest tests/requests/test_fuzz.py -m gpu --hypothesis-profile=explore

``SCANOPS_FUZZ`` is the number of examples of each test. What a kernel is specialised for comes from a pool of a few
hundred recipes on a GPU, all built beforehand on all cores; data, outs and what is wrong with a call are drawn anew.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import scanops
from benchmarks.common import build_kernels
from scanops.codegen.spec import ScanSpec
from scanops.errors import ScanopsError
from scanops.requests.request import make_request
from scanops.runtime.kernels import default_target
from tests.requests.built import CHANGES, Built
from tests.requests.recipes import (
    DOUBTFUL,
    INITIALS,
    NUMBERS,
    OF_OTHER_KERNELS,
    OPS,
    SEGMENTS,
    SHAPES,
    VIEWS,
    WRONGS,
    Call,
    Recipe,
    any_recipe,
    calls,
    recipe,
)  # fmt: skip

EXAMPLES = int(os.environ.get("SCANOPS_FUZZ", "0"))
COUNTS = {"composed": EXAMPLES or 400, "emulated": EXAMPLES or 36, "gpu": EXAMPLES or 400}
POOL = 500  # recipes on a GPU


def holds(call: Call, device: str, note: Callable[[str], object] = str) -> None:
    """Run the call, described to ``note``: it gives the sequential walk's results, or a typed error with four parts."""
    built = Built(call, device)
    positional, options = built.arguments()
    expected = built.expected() if call.wrong is None and built.legal else None
    outs = options["out"] if isinstance(options["out"], tuple) else (options["out"],)
    kept = None if any(out is built.x for out in outs) else built.x.clone()
    name = {"linear": "linear_scan"}.get(call.recipe.op, call.recipe.op)
    function = getattr(scanops, name) if built.gated or built.indexed else scanops.scan
    note(f"{name} of x={built.x.shape} {built.x.dtype} {built.x.stride()}, to {built.dtype}, initial {built.initial}")
    try:
        found = function(*positional, **options)
    except ScanopsError as error:
        assert call.wrong is not None or not built.legal, f"refused: {error}"
        assert all(str(part).strip() for part in (error.asked, error.allowed, error.value, error.hint))
        return
    assert kept is None or torch.equal(bytes_of(kept), bytes_of(built.x)), "the input has changed"
    assert call.wrong not in WRONGS, "what makes no sense was scanned"
    if call.wrong is not None:
        return  # it did not apply: an empty out overlaps nothing
    assert expected is not None, "a dtype that is not legal was scanned"
    results = flat(found)
    assert len(results) == len(expected)
    for y, wanted, out in itertools.zip_longest(results, expected, outs):
        assert y.dtype == wanted.dtype and y.shape == wanted.shape
        assert y is out if out is not None else y.is_contiguous()
        close = call.recipe.op == "logcumsumexp"
        agree(y.cpu(), wanted, close=close)


def agree(y: torch.Tensor, wanted: torch.Tensor, *, close: bool) -> None:
    """Equal, NaN to NaN, or where logarithms are taken within rounding and whole turns of an angle."""
    if not close:
        torch.testing.assert_close(y, wanted, equal_nan=True, rtol=0.0, atol=0.0)
    elif not y.is_complex():
        torch.testing.assert_close(y, wanted, equal_nan=True)
    else:
        finite = wanted.isfinite() & (wanted.real > -100)
        rounding = {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(y[finite].exp(), wanted[finite].exp(), **rounding)
        torch.testing.assert_close(y.real[~finite], wanted.real[~finite], equal_nan=True, **rounding)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)


def flat(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else [part for each in found for part in flat(each)]


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
        built = Built(Call(recipe=each, seed=0, special=False, out="none", wrong=None), "cuda")
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
    ran, wrongs = [0], [wrong for wrong in WRONGS + DOUBTFUL if wrong not in OF_OTHER_KERNELS]

    @examples("gpu")
    @given(call=calls(st.sampled_from(built_pool), wrongs))
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
    legal = [Built(Call(recipe=each, seed=0, special=False, out="none", wrong=None), "cpu").legal for each in found]
    assert sum(legal) > POOL // 4


def test_everything_wrong_is_drawn() -> None:
    assert set(CHANGES) == {*WRONGS, *DOUBTFUL}
