"""Sizes at which a 32-bit index, or a 32-bit product, would wrap."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import scanops

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

GIB = 1 << 30
CHUNK = 1 << 26  # items torch checks at a time


@pytest.fixture(scope="module")
def room() -> None:
    """Skip where a test would not fit."""
    free, _ = torch.cuda.mem_get_info()
    if free < 40 * GIB:
        pytest.skip(f"{free / GIB:.0f} GiB of GPU memory are free, 40 are needed")


@pytest.fixture(autouse=True)
def nothing_left_behind(room: None) -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


def steps(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """-1, 0 and 1: every partial sum is small enough to be exact in float32."""
    generator = torch.Generator(device="cuda").manual_seed(1)
    return torch.randint(-1, 2, shape, dtype=torch.int8, device="cuda", generator=generator).to(dtype)


@pytest.mark.parametrize("dim", [0, 1])
def test_more_than_two_to_the_31_items(dim: int) -> None:
    """4 GiB in and out, half: rows of 64 KiB by block, then columns."""
    rows, columns = 65540, 32768
    assert rows * columns > 2**31
    x = steps(rows, columns, dtype=torch.float16)
    y = scanops.cumsum(x, dim)
    width = CHUNK // x.shape[dim]
    for xs, ys in zip(x.split(width, 1 - dim), y.split(width, 1 - dim), strict=True):
        assert torch.equal(ys, torch.cumsum(xs.float(), dim).half())


def test_more_than_two_to_the_31_items_in_short_rows() -> None:
    x = steps((1 << 31) // 60 + 1000, 60, dtype=torch.float16)
    y = scanops.cumsum(x, 1, reverse=True, exclusive=True)
    for xs, ys in zip(x.split(CHUNK // 60), y.split(CHUNK // 60), strict=True):
        wide = xs.float()
        assert torch.equal(ys, (wide.flip(1).cumsum(1).flip(1) - wide).half())


@pytest.mark.parametrize("reverse", [False, True])
def test_one_row_of_the_greatest_length(reverse: bool) -> None:
    """int8 to int32: 2 GiB in, 8 GiB out."""
    x = steps(2**31, dtype=torch.int8)
    y = scanops.cumsum(x, 0, dtype=torch.int32, reverse=reverse)
    carry = torch.zeros((), dtype=torch.int32, device="cuda")
    pairs = list(zip(x.split(CHUNK), y.split(CHUNK), strict=True))
    for xs, ys in reversed(pairs) if reverse else pairs:
        inside = torch.cumsum(xs.flip(0) if reverse else xs, 0, dtype=torch.int32) + carry
        assert torch.equal(ys, inside.flip(0) if reverse else inside)
        carry = ys[0 if reverse else -1].clone()


def test_a_row_of_the_greatest_length_beside_another() -> None:
    """The second row starts at item 2^31."""
    x = steps(2, 2**31, dtype=torch.int8)
    y = scanops.cumsum(x, 1, dtype=torch.int16)
    for row_x, row_y in zip(x, y, strict=True):
        carry = torch.zeros((), dtype=torch.int16, device="cuda")
        for xs, ys in zip(row_x.split(CHUNK), row_y.split(CHUNK), strict=True):
            assert torch.equal(ys, torch.cumsum(xs, 0, dtype=torch.int16) + carry)
            carry = ys[-1].clone()


@pytest.fixture(scope="module")
def wide(room: None) -> torch.Tensor:
    """4 GiB of int8, of which the tests read views: their offsets reach beyond 2^32 items."""
    x = steps(65540, 65600, dtype=torch.int8)
    assert x.stride(0) * (len(x) - 1) > 2**32
    return x


VIEWS = {
    "short rows": (slice(None), slice(0, 64), 1),
    "rows": (slice(None, None, 97), slice(None, None, 3), 1),
    "columns": (slice(None), slice(65500, 65540), 0),
    "few columns": (slice(None), slice(65599, 65600), 0),
}


@pytest.mark.parametrize("turned", [False, True], ids=["as it lies", "transposed"])
@pytest.mark.parametrize("name", VIEWS)
def test_strides_that_reach_beyond_two_to_the_32(name: str, turned: bool, wide: torch.Tensor) -> None:
    rows, columns, dim = VIEWS[name]
    x = wide[rows, columns]
    x, dim = (x.t(), 1 - dim) if turned else (x, dim)
    y = scanops.cumsum(x, dim, dtype=torch.int32)
    assert torch.equal(y, torch.cumsum(x.contiguous(), dim, dtype=torch.int32))


@pytest.mark.parametrize("dim", [0, 1])
def test_a_mask_whose_strides_reach_beyond_two_to_the_32(dim: int, wide: torch.Tensor) -> None:
    mask = wide[:, 100:164]
    x = torch.ones(1, 1, dtype=torch.int8, device="cuda").expand(mask.shape)
    y = scanops.cumsum(x, dim, mask=mask, dtype=torch.int32, reverse=True)
    expected = torch.cumsum(mask.contiguous().flip(dim), dim, dtype=torch.int32).flip(dim)
    assert torch.equal(y, expected)
