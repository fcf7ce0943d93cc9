"""Sizes at which a 32-bit index, or a 32-bit product, would wrap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import scanops

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

GIB = 1 << 30
NEEDED = 16 * GIB
CHUNK = 1 << 26  # items torch checks at a time


@pytest.fixture(autouse=True)
def room() -> Iterator[None]:
    """Skip where a test would not fit, and leave nothing behind: tests beside this one need memory, too."""
    free, _ = torch.cuda.mem_get_info()
    if free < NEEDED:
        pytest.skip(f"{free / GIB:.0f} GiB of GPU memory are free, {NEEDED // GIB} are needed")
    yield
    torch.cuda.empty_cache()


def steps(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Draw -1, 0 and 1: every partial sum is small enough to be exact in float32, or wraps in whole numbers."""
    generator = torch.Generator(device="cuda").manual_seed(1)
    return torch.randint(-1, 2, shape, dtype=torch.int8, device="cuda", generator=generator).to(dtype)


def hold(y: torch.Tensor, terms: torch.Tensor, dim: int, *, reverse: bool = False, exclusive: bool = False) -> None:
    """Compare sums with torch's, of some lines at a time, and of lines that are long piece by piece."""
    wide = torch.float32 if y.is_floating_point() else y.dtype
    lines = [torch.atleast_2d(each.movedim(dim, -1)) for each in (terms, y)]
    for some in zip(*(each.split(max(1, CHUNK // y.shape[dim])) for each in lines), strict=True):
        carry = torch.zeros((), dtype=wide, device="cuda")
        pieces = list(zip(*(each.split(CHUNK, 1) for each in some), strict=True))
        for part, found in reversed(pieces) if reverse else pieces:
            items = part.to(wide).flip(1) if reverse else part.to(wide)
            inside = torch.cumsum(items, 1, dtype=wide) + carry
            carry = inside[:, -1:].clone()
            right = inside - items if exclusive else inside
            assert torch.equal(found, (right.flip(1) if reverse else right).to(y.dtype))


# name -> (shape, dtype, dim, options)
PROBLEMS: dict[str, tuple[tuple[int, ...], torch.dtype, int, dict[str, Any]]] = {
    "more than 2^31 items, rows": ((65540, 32768), torch.float16, 1, {}),
    "more than 2^31 items, columns": ((65540, 32768), torch.float16, 0, {}),
    "more than 2^31 items, short rows": (
        ((1 << 31) // 60 + 1000, 60),
        torch.float16,
        1,
        {"reverse": True, "exclusive": True},
    ),
    "one row of the greatest length": ((2**31,), torch.int8, 0, {"dtype": torch.int32}),
    "one row of the greatest length, reverse": ((2**31,), torch.int8, 0, {"dtype": torch.int32, "reverse": True}),
    "a row that starts at item 2^31": ((2, 2**31), torch.int8, 1, {"dtype": torch.int16}),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_large_problems(name: str) -> None:
    shape, dtype, dim, options = PROBLEMS[name]
    x = steps(*shape, dtype=dtype)
    y = scanops.cumsum(x, dim, **options)
    hold(y, x, dim, **{key: value for key, value in options.items() if key != "dtype"})


# (rows, columns, dim) of views of a tensor
VIEWS = {
    "short rows": (slice(None), slice(0, 64), 1),
    "rows": (slice(None, None, 97), slice(None, None, 3), 1),
    "columns": (slice(None), slice(65500, 65540), 0),
    "few columns": (slice(None), slice(65599, 65600), 0),
}


def test_strides_that_reach_beyond_two_to_the_32() -> None:
    """Views of 4 GiB of int8, as they lie and transposed, and a mask that is one."""
    wide = steps(65540, 65600, dtype=torch.int8)
    assert wide.stride(0) * (len(wide) - 1) > 2**32
    for rows, columns, dim in VIEWS.values():
        x = wide[rows, columns]
        hold(scanops.cumsum(x, dim, dtype=torch.int32), x, dim)
        hold(scanops.cumsum(x.t(), 1 - dim, dtype=torch.int32), x.t(), 1 - dim)
    mask = wide[:, 100:164]
    x = torch.ones(1, 1, dtype=torch.int8, device="cuda").expand(mask.shape)
    for dim in (0, 1):
        hold(scanops.cumsum(x, dim, mask=mask, dtype=torch.int32, reverse=True), mask, dim, reverse=True)
