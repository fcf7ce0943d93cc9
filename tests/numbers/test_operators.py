"""Operators on strided and on special values, in kernels and in the fallback, against the recurrence and torch."""

from __future__ import annotations

import contextlib
import itertools
import math

import pytest
import torch

import scanops
from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import BUILT_IN
from tests.numbers.oracle import CASES, Case, call, gates, hold, selection

KINDS = {
    "float": (torch.float32, torch.float16, torch.float64, torch.bfloat16),
    "int": (torch.int32, torch.int8, torch.int64, torch.uint8),
    "bool": (torch.bool,),
    "complex": (torch.complex64, torch.complex128),
}
# sum and prod are compared with torch in many other tests; test_matrix has every operator in every strategy.
OPERATORS = [name for name in BUILT_IN if name not in ("sum", "prod")]


def dtypes_of(op: str) -> list[torch.dtype]:
    """Legal input dtypes of an operator, alternating between kinds."""
    row = BUILT_IN[op]
    legal = [dtypes for dtypes in KINDS.values() if row.result(dtype_named(dtypes[0])).kind in row.kinds]
    columns = itertools.zip_longest(*legal)
    return [dtype for column in columns for dtype in column if dtype is not None]


def drawn(op: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Draw an input with many ties; with all bits for bitwise operators."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_complex:
        parts = torch.randint(-4, 5, (2, *shape), generator=generator).double()
        return torch.complex(*parts).to(dtype)
    low, high = (-100, 100) if op.startswith("bitwise") else (-4, 5)
    return torch.randint(max(low, 0) if dtype == torch.uint8 else low, high, shape, generator=generator).to(dtype)


def mask_of(kind: int, shape: tuple[int, ...], dtype: torch.dtype, dim: int) -> torch.Tensor | None:
    """A mask by its kind: 0 none, 1 a bool mask that is False at both ends, 2 a numeric one."""
    if kind == 0:
        return None
    if kind == 1 or dtype == torch.bool:
        mask = selection(shape)
        mask.select(dim, 0).fill_(False)
        mask.select(dim, -1).fill_(False)
        return mask
    return drawn("", shape, torch.float32 if dtype.is_complex else dtype, 5) % 3


SPECIAL = (math.nan, math.inf, -math.inf, 1.0, 1.0, -2.0, 0.0)


def special(case: Case, seed: int, choices: tuple[float, ...] = SPECIAL, scarce: int = 1) -> torch.Tensor:
    """Lines of these values; those that are not finite are replaced by 0 but once in ``scarce`` draws."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.tensor(choices)[torch.randint(len(choices), case.shape, generator=generator)]
    kept = torch.rand(case.shape, generator=generator) < 1 / scarce
    return torch.where(kept | x.isfinite(), x, torch.zeros(()))


@pytest.mark.parametrize("op", ["max", "min", "cummax", "cummin", "logcumsumexp"])
@pytest.mark.parametrize("name", ["lanes", "staged", "one_tile_odd", "split_odd", "short_columns", "panels_odd"])
def test_special_values_are_torchs(op: str, name: str, device: str) -> None:
    """NaN, infinities and ties, where they come often and where they are rare; -inf alone; NaN alone."""
    case = CASES[name]
    for seed, (choices, scarce) in enumerate(((SPECIAL, 1), (SPECIAL, 400), ((-math.inf,), 1), (SPECIAL[2:], 1))):
        x = special(case, seed, choices, scarce)
        function = getattr(torch, BUILT_IN[op].torch_name or "")
        wanted = function(x, case.dim)
        wanted = (wanted,) if isinstance(wanted, torch.Tensor) else tuple(wanted)
        for y, expected in zip(call(x.to(device), op, case.dim), wanted, strict=False):
            torch.testing.assert_close(y.cpu(), expected, equal_nan=True)


SPREADS = {
    "randn": lambda n, g: torch.randn(n, generator=g),
    "a huge spread": lambda n, g: 1e3 * torch.randn(n, generator=g),
    "near overflow": lambda n, g: 88 + torch.rand(n, generator=g),
    "equal": lambda n, g: torch.zeros(n),
    "small beside great": lambda n, g: torch.where(torch.arange(n) == 0, 0.0, -12 + torch.rand(n, generator=g)),
    "falling": lambda n, g: -torch.arange(n) / 8.0,
}


def torchs_on_a_gpu(x: torch.Tensor) -> torch.Tensor:
    """logcumsumexp as torch computes it on a GPU, by pairs in float32; on a CPU torch accumulates in double."""
    y, distance = x.float(), 1
    while distance < x.shape[1] and not x.is_cuda:
        y = torch.cat([y[:, :distance], torch.logaddexp(y[:, :-distance], y[:, distance:])], 1)
        distance *= 2
    return torch.logcumsumexp(x, 1) if x.is_cuda else y.to(x.dtype)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("length", [1000, 40000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_logcumsumexp_is_as_exact_as_torchs(spread: str, length: int, dtype: torch.dtype, device: str) -> None:
    """The error against float64 is at most that of torch on a GPU, in the maximum and on average."""
    x = SPREADS[spread](length, torch.Generator().manual_seed(7)).to(dtype).expand(2, length)
    exact = torch.logcumsumexp(x.double(), 1)
    ours = (scanops.logcumsumexp(x.to(device), 1).cpu().double() - exact).abs()
    theirs = (torchs_on_a_gpu(x.to(device)).cpu().double() - exact).abs()
    tie = 1.001  # halves that lie between two are rounded by the last bit of a float
    assert ours.max() <= tie * theirs.max() + 1e-12
    assert ours.mean() <= tie * theirs.mean() + 1e-12


@pytest.mark.parametrize("name", ["lanes", "one_tile", "wave"])
def test_terms_that_are_far_from_the_first_of_their_thread(name: str, device: str) -> None:
    """logcumsumexp where a thread's first term is no good reference: after -inf, masked items, jumps, infinities."""
    case = CASES[name]
    length, shape = case.shape[case.dim], [-1 if d == case.dim else 1 for d in range(len(case.shape))]
    place = torch.arange(length)
    jumps = torch.where(place % 7 == 3, 300.0, -200.0) + place
    late = torch.where(place < 5, -math.inf, torch.linspace(0, 1, length))
    ends = torch.where(place == length // 2, math.inf, torch.where(place == length - 3, math.nan, -1.0 * place))
    steep, last = 1000.0 - 90 * (place % 11), torch.where(place >= length - 2, math.inf, 0.0)
    for number, line in enumerate((jumps, steep, late, last, ends)):
        x = line.reshape(shape).expand(case.shape).contiguous()
        mask = (place % 4 > 1).reshape(shape).expand(case.shape).contiguous() if number % 2 else None
        counted = x if mask is None else x.masked_fill(~mask, -math.inf)
        found = scanops.scan(x.to(device), "logcumsumexp", case.dim, mask=None if mask is None else mask.to(device))
        wanted = torch.logcumsumexp(counted.double(), case.dim).float()
        torch.testing.assert_close(found.cpu(), wanted, equal_nan=True, rtol=2e-7, atol=1e-6)


@pytest.mark.parametrize(("reverse", "exclusive"), list(itertools.product((False, True), (False, True))))
@pytest.mark.parametrize("op", OPERATORS)
def test_the_fallback_agrees(op: str, reverse: bool, exclusive: bool) -> None:
    """PyTorch's own operators give the recurrence's results for all dtypes and masks, and for empty and 0-d inputs."""
    flags = {"reverse": reverse, "exclusive": exclusive}
    for number, (dtype, kind) in enumerate(itertools.product(dtypes_of(op), range(3))):
        x = drawn(op, (3, 9, 2), dtype, number)
        gated = {"gate": gates(tuple(x.shape), dtype)} if BUILT_IN[op].gated else {}
        hold(x, op, 1, mask=mask_of(kind, x.shape, dtype, 1), **gated, **flags)
    for shape in ((3, 0), ()):
        x = drawn(op, shape, dtypes_of(op)[0], 0)
        assert all(y.shape == shape for y in call(x, op, -1, gate=x if BUILT_IN[op].gated else None, **flags))


@pytest.mark.parametrize("op", ["cummax", "cummin"])
def test_masked_infinities_have_no_index(op: str) -> None:
    """Where all elements so far equal the start value, the index is that of the last unmasked one."""
    x = torch.full((7,), -math.inf if op == "cummax" else math.inf)
    mask = torch.tensor([False, True, False, False, True, False, False])
    for around in (contextlib.nullcontext, scanops.emulate):
        with around():
            assert call(x, op, 0, mask=mask)[1].tolist() == [-1, 1, 1, 1, 4, 4, 4]
            assert call(x, op, 0, mask=mask, reverse=True)[1].tolist() == [1, 1, 4, 4, 4, -1, -1]
