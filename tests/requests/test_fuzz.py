"""Whole requests, drawn at random: each gives the right answer or a typed error, and never anything else.

    SCANOPS_FUZZ=10000 pytest tests/requests/test_fuzz.py -m gpu --hypothesis-profile=explore

``SCANOPS_FUZZ`` is the number of examples of each test. What a kernel is specialised for comes from a pool of a few
hundred recipes on a GPU, all built beforehand on all cores; data, outs and what is wrong with a call are drawn anew.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import scanops
from scanops.bench.builds import build_kernels
from scanops.codegen.dtypes import DTYPES, dtype_named
from scanops.codegen.operators import BUILT_IN
from scanops.codegen.spec import ScanSpec
from scanops.errors import ScanopsError
from scanops.kernels import default_target
from scanops.request import make_request
from tests.numbers import oracle

EXAMPLES = int(os.environ.get("SCANOPS_FUZZ", "0"))
COUNTS = {"composed": EXAMPLES or 400, "emulated": EXAMPLES or 36, "gpu": EXAMPLES or 400}
POOL = 400  # recipes on a GPU
T = TypeVar("T")
Pick = Callable[[Sequence[T]], T]

OPS = tuple(BUILT_IN)
NUMBERS = tuple(getattr(torch, name) for name in DTYPES)
SHAPES: tuple[tuple[int, ...], ...] = (
    (), (0,), (1,), (7,), (33,), (3, 5), (1, 64), (4, 31), (65, 2), (3, 0), (0, 4), (2, 1, 9), (2, 33, 3),
    (3, 4, 0), (1, 1, 1), (2, 130, 5), (2, 3, 4, 5), (1, 2, 1, 40), (2, 4, 3, 3), (1, 300), (2, 2049), (700, 3),
)  # fmt: skip
VIEWS = ("dense", "permuted", "stepped", "offset", "expanded", "channels_last")
MASKS = ("none", "none", "bool", "number")
SPREADS = ("full", "broadcast", "of lower rank", "0-d", "expanded")
OUTS = ("none", "none", "none", "fresh", "stepped", "alias")
# A call with one of these is refused, or means the same as without it.
WRONGS = (
    "dim too large", "dim too small", "dim a float", "dim a bool", "op unknown", "op no string",
    "mask of another shape", "mask a list", "dtype a string", "dtype complex", "x complex", "x sparse", "x a list",
    "out of another shape", "out of another dtype", "out overlaps", "out is the mask", "out expanded",
    "out needs a gradient", "reverse a number",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a kernel is specialised for."""

    op: str
    x_dtype: torch.dtype
    shape: tuple[int, ...]
    view: str
    dim: int
    mask: str
    mask_dtype: torch.dtype
    spread: str
    reverse: bool
    exclusive: bool
    dtype: torch.dtype | None


def recipe(pick: Pick[Any]) -> Recipe:
    shape = pick(SHAPES)
    rank = max(1, len(shape))
    op = pick(OPS)
    kinds = BUILT_IN[op].kinds
    likely = [dtype for dtype in NUMBERS if dtype_named(str(dtype)).kind in kinds]
    return Recipe(
        op=op,
        x_dtype=pick((*NUMBERS, *likely * 2)),
        shape=shape,
        view=pick(VIEWS),
        dim=pick(range(-rank, rank)),
        mask=pick(MASKS),
        mask_dtype=pick(NUMBERS[1:]),
        spread=pick(SPREADS),
        reverse=pick((False, True)),
        exclusive=pick((False, True)),
        dtype=pick((None, None, None, *NUMBERS, *likely)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A recipe with its data and what is wrong with it."""

    recipe: Recipe
    seed: int
    special: bool  # NaN and infinities among the items
    out: str
    wrong: str | None


def calls(recipes: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Call]:
    return st.builds(
        Call,
        recipe=recipes,
        seed=st.integers(0, 2**16),
        special=st.booleans(),
        out=st.sampled_from(OUTS),
        wrong=st.one_of(st.none(), st.none(), st.none(), st.sampled_from(WRONGS)),
    )


@st.composite
def any_recipe(draw: st.DrawFn) -> Recipe:
    return recipe(lambda options: draw(st.sampled_from(options)))


def laid(view: str, shape: tuple[int, ...], draw: Callable[[tuple[int, ...]], torch.Tensor]) -> torch.Tensor:
    """A tensor of that shape, lying as the view says."""
    if view == "permuted" and len(shape) > 1:
        return draw(shape[::-1]).permute(*reversed(range(len(shape))))
    if view == "stepped" and shape:
        return draw((*shape[:-1], 2 * shape[-1]))[..., ::2]
    if view == "offset" and shape:
        return draw((math.prod(shape) + 1,))[1:].reshape(shape)
    if view == "expanded" and shape and shape[0]:
        return draw((1, *shape[1:])).expand(shape)
    if view == "channels_last" and len(shape) == 4:
        return draw(shape).contiguous(memory_format=torch.channels_last)
    return draw(shape)


class Built:
    """The arguments of a call, and what it should give."""

    def __init__(self, call: Call, device: str) -> None:
        self.call, self.device, r = call, device, call.recipe
        self._generator = torch.Generator().manual_seed(call.seed)
        dtypes = (r.x_dtype, r.dtype) if r.mask != "number" else (r.x_dtype, r.dtype, r.mask_dtype)
        self._signed = torch.uint8 not in dtypes
        out = r.dtype or r.x_dtype
        floats = r.x_dtype.is_floating_point and out.is_floating_point and r.mask != "number"
        self._special = call.special and floats
        self.x = laid(r.view, r.shape, lambda shape: self._items(shape, r.x_dtype))
        self.mask = self._mask()
        self.legal = self._legal()

    def _items(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Small whole numbers, on which everything but logcumsumexp is exact."""
        low = -1 if self._signed and dtype != torch.bool else 0
        high = 2 if self.call.recipe.op == "prod" or dtype == torch.bool else 3
        items = torch.randint(low, high, shape, generator=self._generator).to(dtype)
        if self._special and dtype.is_floating_point:
            odd = torch.tensor([math.nan, math.inf, -math.inf], dtype=dtype)[
                torch.randint(3, shape, generator=self._generator)
            ]
            items = torch.where(torch.rand(shape, generator=self._generator) < 0.1, odd, items)
        return items.to(self.device)

    def _mask(self) -> torch.Tensor | None:
        r = self.call.recipe
        if r.mask == "none":
            return None
        dtype = torch.bool if r.mask == "bool" else r.mask_dtype
        shape = r.shape
        if r.spread == "broadcast" and shape:
            shape = (1, *shape[1:])
        elif r.spread == "of lower rank":
            shape = shape[1:]
        elif r.spread == "0-d":
            shape = ()
        elif r.spread == "expanded" and shape:
            return self._items((*shape[:-1], 1), dtype).expand(r.shape)
        return self._items(shape, dtype)

    @property
    def indexed(self) -> bool:
        return bool(BUILT_IN[self.call.recipe.op].indices)

    def _promoted(self) -> torch.dtype:
        """Of what is scanned, by default."""
        if self.call.recipe.mask != "number" or self.mask is None:
            return self.x.dtype
        return torch.result_type(self.x, self.mask)

    def result_dtype(self) -> torch.dtype:
        row = BUILT_IN[self.call.recipe.op]
        asked = None if self.indexed else self.call.recipe.dtype
        term = dtype_named(str(self._promoted()))
        return asked or getattr(torch, row.result(term).name)

    def _legal(self) -> bool:
        return dtype_named(str(self.result_dtype())).kind in BUILT_IN[self.call.recipe.op].kinds

    def expected(self) -> tuple[torch.Tensor, ...]:
        """By the sequential oracle, on a CPU."""
        r, dtype = self.call.recipe, self.result_dtype()
        x = self.x.cpu()
        mask = None if self.mask is None else self.mask.cpu()
        outputs = (dtype, torch.int64) if self.indexed else (dtype,)
        if not x.numel():
            return tuple(torch.empty(x.shape, dtype=each) for each in outputs)
        if r.mask == "number":
            x, mask = x * mask, None
        logical = BUILT_IN[r.op].gives == "bool"  # any dtype is asked whether it is 0
        x = (x != 0) if logical and dtype == torch.bool else x.to(dtype)
        if x.ndim == 0:
            mask = None if mask is None else mask.reshape(1)
            found = oracle.outputs(
                x.reshape(1), r.op, 0, mask=mask, reverse=r.reverse, exclusive=r.exclusive, dtype=dtype
            )
            return tuple(part.reshape(()) for part in found)
        return oracle.outputs(x, r.op, r.dim, mask=mask, reverse=r.reverse, exclusive=r.exclusive, dtype=dtype)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        r = self.call.recipe
        options: dict[str, Any] = {"mask": self.mask, "reverse": r.reverse, "exclusive": r.exclusive}
        if not self.indexed:
            options["dtype"] = r.dtype
        options["out"] = self._out()
        op: Any = r.op
        x: Any = self.x
        dim: Any = r.dim
        rank = max(1, len(r.shape))
        memory = torch.zeros(self.x.numel() + 8, dtype=self.result_dtype(), device=self.device)
        match self.call.wrong:
            case "dim too large":
                dim = rank
            case "dim too small":
                dim = -rank - 1
            case "dim a float":
                dim = 0.0
            case "dim a bool":
                dim = True
            case "op unknown":
                op = "median"
            case "op no string":
                op = 3
            case "mask of another shape":
                options["mask"] = torch.ones((*r.shape, 3), dtype=torch.bool, device=self.device)
            case "mask a list":
                options["mask"] = [True]
            case "dtype a string":
                options["dtype"] = "float32"
            case "dtype complex":
                options["dtype"] = torch.complex64
            case "x complex":
                x = self.x.to(torch.complex64)
            case "x sparse":
                x = self.x.contiguous().to_sparse() if r.shape else None
            case "x a list":
                x = [1.0]
            case "out of another shape":
                options["out"] = torch.empty((*r.shape, 2), dtype=self.result_dtype(), device=self.device)
            case "out of another dtype":
                other = torch.float64 if self.result_dtype() == torch.int16 else torch.int16
                options["out"] = torch.empty(r.shape, dtype=other, device=self.device)
                options["dtype"] = self.result_dtype()
            case "out overlaps":
                x = memory[: self.x.numel()].view(r.shape)
                options |= {"out": memory[1 : self.x.numel() + 1].view(r.shape), "dtype": None}
            case "out is the mask":
                options["mask"] = options["out"] = torch.ones(r.shape, dtype=self.result_dtype(), device=self.device)
            case "out expanded":
                options["out"] = memory[:1].expand(r.shape) if r.shape else memory
            case "out needs a gradient":
                options["out"] = torch.empty(r.shape, device=self.device, requires_grad=True)
            case "reverse a number":
                options["reverse"] = 1
        if self.indexed and op == r.op:
            options.pop("dtype", None)
            if isinstance(options["out"], torch.Tensor):
                options["out"] = (options["out"], torch.empty(r.shape, dtype=torch.int64, device=self.device))
            return (x, dim), options
        return (x, op, dim), options

    def _out(self) -> Any:
        kind, dtype, shape = self.call.out, self.result_dtype(), self.call.recipe.shape
        if kind == "none":
            return None
        if kind == "alias" and self.x.dtype == dtype and self.call.recipe.view != "expanded":
            return self.x
        view = "stepped" if kind == "stepped" else "dense"
        return laid(view, shape, lambda inner: torch.zeros(inner, dtype=dtype, device=self.device))


def holds(call: Call, device: str) -> None:
    """Run the call: the oracle's values, in its shape and dtype, or a typed error with four parts."""
    built = Built(call, device)
    positional, options = built.arguments()
    expected = built.expected() if call.wrong is None and built.legal else None
    outs = options["out"] if isinstance(options["out"], tuple) else (options["out"],)
    kept = None if any(out is built.x for out in outs) else built.x.clone()
    function = getattr(scanops, call.recipe.op) if len(positional) == 2 else scanops.scan
    note(f"{getattr(function, '__name__', function)} of x={built.x.shape} {built.x.dtype} {built.x.stride()}")
    try:
        found = function(*positional, **options)
    except ScanopsError as error:
        assert call.wrong is not None or not built.legal, f"refused: {error}"
        assert all(str(part).strip() for part in (error.asked, error.allowed, error.value, error.hint))
        return
    assert kept is None or torch.equal(kept.nan_to_num(7), built.x.nan_to_num(7)), "the input has changed"
    if call.wrong is not None:
        return  # it did not apply: an empty out overlaps nothing
    assert expected is not None, "a dtype that is not legal was scanned"
    results = tuple(found) if built.indexed else (found,)
    for y, wanted, out in itertools.zip_longest(results, expected, outs):
        assert y.dtype == wanted.dtype and y.shape == wanted.shape
        assert y is out if out is not None else y.is_contiguous()
        close = call.recipe.op == "logcumsumexp"
        loose = {} if close else {"rtol": 0.0, "atol": 0.0}
        torch.testing.assert_close(y.cpu(), wanted, equal_nan=True, **loose)


def examples(kind: str) -> settings:
    return settings(
        max_examples=COUNTS[kind],
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@examples("composed")
@given(call=calls(any_recipe()))
def test_composed(call: Call) -> None:
    holds(call, "cpu")


@examples("emulated")
@given(call=calls(any_recipe()))
def test_emulated(call: Call) -> None:
    with scanops.emulate(seed=5):
        holds(call, "cpu")


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
            request = make_request(
                built.x, each.op, each.dim, mask=built.mask, reverse=each.reverse, exclusive=each.exclusive,
                dtype=None if built.indexed else each.dtype, out=None,
            )  # fmt: skip
            specs.append(request.spec(torch.empty(each.shape, dtype=request.dtype, device="cuda"), size))
    assert not build_kernels(specs, default_target())
    return found


@pytest.mark.gpu
def test_on_a_gpu(built_pool: list[Recipe]) -> None:
    ran = [0]

    @examples("gpu")
    @given(call=calls(st.sampled_from(built_pool)))
    def each(call: Call) -> None:
        ran[0] += 1
        holds(call, "cuda")

    each()
    print(f"{ran[0]} requests")


def test_the_pool_has_everything() -> None:
    found = pool()
    assert {each.op for each in found} == set(OPS) and {each.x_dtype for each in found} == set(NUMBERS)
    assert {each.shape for each in found} == set(SHAPES) and {each.view for each in found} == set(VIEWS)
    assert replace(found[0]) == recipe(random.Random(0).choice)
