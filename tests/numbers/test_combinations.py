"""Direction x inclusive x mask x strategy, and dtypes: equal to the sequential scan, bit for bit."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch

import scanops
from scanops.codegen.plan import make_plan
from scanops.request import make_request
from tests.numbers.oracle import CASES, Case, both_ends, exact_dtype, selection, sequential, values, weights

FLAGS = list(itertools.product((False, True), (False, True)))
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)


def mask_of(kind: str, op: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
    if kind == "none":
        return None
    return selection(shape) if kind == "bool" else weights(op, shape, dtype)


@functools.lru_cache(maxsize=16)
def expected_ends(name: str, op: str, reverse: bool, mask: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Inclusive and exclusive: the sequential walk takes longer than the kernel, so both are taken from one."""
    case = CASES[name]
    dtype = exact_dtype(op)
    x, m = values(op, case.shape, dtype), mask_of(mask, op, case.shape, dtype)
    return both_ends(x, op, case.dim, mask=m, reverse=reverse, dtype=dtype)


def check(case: Case, op: str, x: torch.Tensor, mask: torch.Tensor | None, device: str, **options: object) -> None:
    expected = sequential(x, op, case.dim, mask=mask, dtype=options.pop("dtype", torch.int64), **options)  # type: ignore[arg-type]
    y = scanops.scan(
        x.to(device),
        op,
        case.dim,
        mask=None if mask is None else mask.to(device),
        dtype=expected.dtype,
        **options,  # type: ignore[arg-type]
    )
    assert y.is_contiguous()
    assert torch.equal(y.cpu(), expected)


MASKS = ("none", "bool", "weights")
# A non-commutative operator in every strategy with every flag and mask; sums and products, and the masks of these, by
# turns, so that each strategy has them in both directions.
CELLS = [
    *itertools.product(CASES, ["affine"], FLAGS, MASKS),
    *(
        (name, ("sum", "prod")[number % 2], flags, MASKS[(number + number // len(FLAGS)) % len(MASKS)])
        for number, (name, flags) in enumerate(itertools.product(CASES, FLAGS))
    ),
]


@pytest.mark.parametrize(
    ("name", "op", "reverse", "exclusive", "mask"), [(name, op, *flags, mask) for name, op, flags, mask in CELLS]
)
def test_operators_directions_masks(name: str, op: str, reverse: bool, exclusive: bool, mask: str, device: str) -> None:
    case, dtype = CASES[name], exact_dtype(op)
    x = values(op, case.shape, dtype)
    m = mask_of(mask, op, case.shape, dtype)
    m = None if m is None else m.to(device)
    y = scanops.scan(x.to(device), op, case.dim, mask=m, reverse=reverse, exclusive=exclusive)
    assert y.is_contiguous()
    assert torch.equal(y.cpu(), expected_ends(name, op, reverse, mask)[exclusive])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_dtypes(name: str, dtype: torch.dtype, device: str) -> None:
    """By turns, so that the cases of a strategy, which stand together, have every dtype in both ways."""
    case = CASES[name]
    expected = dtype if dtype.is_floating_point else torch.int64
    if (list(CASES).index(name) + DTYPES.index(dtype)) % 2 == 0:
        x, mask = values("affine", case.shape, dtype), selection(case.shape)
        check(case, "affine", x, mask, device, dtype=expected, reverse=True, exclusive=True)
    else:
        check(case, "sum", values("sum", case.shape, dtype), None, device, dtype=expected)


@pytest.mark.parametrize("name", CASES)
def test_the_case_reaches_its_strategy(name: str) -> None:
    case = CASES[name]
    x = torch.empty(case.shape)
    request = make_request(x, "sum", case.dim, mask=None, reverse=False, exclusive=False, dtype=None, out=None)
    assert make_plan(request.spec(x, multiprocessors=3)).strategy == case.strategy


@pytest.mark.parametrize("source", [torch.bool, torch.uint8, torch.int8, torch.int16], ids=str)
def test_narrow_integers_widen(source: torch.dtype, device: str) -> None:
    case = CASES["lanes"]
    x = (values("sum", case.shape, torch.int64).abs()).to(source)
    check(case, "sum", x, None, device, dtype=torch.int64)


@pytest.mark.parametrize("out", [torch.int32, torch.float64, torch.float16], ids=str)
def test_dtype_converts_before_it_scans(out: torch.dtype, device: str) -> None:
    x = torch.tensor([1.9, 1.9, -1.9, 0.5])
    y = scanops.cumsum(x.to(device), 0, dtype=out)
    assert torch.equal(y.cpu(), torch.cumsum(x, 0, dtype=out))
