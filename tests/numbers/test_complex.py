"""Complex numbers: exact sums and products in every strategy, masks of any kind, torch's special values, conjugates."""

from __future__ import annotations

import contextlib
import itertools
import math

import pytest
import torch

import scanops
from scanops.errors import UnsupportedRequest
from tests.numbers.oracle import AFFINE, CASES, hold, of_same_turn, values, weights

COMPLEX = (torch.complex64, torch.complex128)
MASKS = (torch.complex64, torch.float64, torch.int8, torch.complex128)
SOME = ("lanes", "staged_pieces", "one_tile_odd", "short_columns")
CELLS = [
    (name, ("sum", "prod", AFFINE.name)[number % 3], COMPLEX[number // 3 % 2], dtype, number % 4 // 2, number % 2 > 0)
    for number, (name, dtype) in enumerate(itertools.product(SOME, MASKS))
]


@pytest.mark.parametrize(("name", "op", "dtype", "masked", "exclusive", "reverse"), CELLS)
def test_masks_of_other_dtypes(
    name: str, op: str, dtype: torch.dtype, masked: torch.dtype, exclusive: int, reverse: bool, device: str
) -> None:
    case = CASES[name]
    mask = weights("prod", case.shape, masked)
    hold(values(op, case.shape, dtype), op, case.dim, device, mask=mask, exclusive=bool(exclusive), reverse=reverse)


@pytest.mark.parametrize("given", [torch.float32, torch.int8, torch.bool, *COMPLEX], ids=str)
@pytest.mark.parametrize("dtype", [*COMPLEX, torch.float32, torch.int64], ids=str)
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_dtypes_are_converted_as_torch_does(given: torch.dtype, dtype: torch.dtype, device: str) -> None:
    x = values("sum", (3, 70), torch.float32 if given == torch.bool else given).to(given).to(device)
    assert torch.equal(scanops.cumsum(x, 1, dtype=dtype), torch.cumsum(x, 1, dtype=dtype))


def test_a_number_with_any_part_is_true(device: str) -> None:
    x = torch.tensor([0, 1j, 0, 1], dtype=torch.complex64, device=device)
    assert scanops.scan(x, "logical_and", 0, exclusive=True).tolist() == [True, False, False, False]
    assert scanops.scan(x, "logical_or", 0).tolist() == [False, True, True, True]


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_conjugated_tensors(dtype: torch.dtype, device: str) -> None:
    """A lazy conjugate is not what lies in its memory."""
    x = values("prod", (2, 40), dtype).to(device)
    x[:, 1] = 1j
    lazy = x.conj()
    assert lazy.is_conj()
    assert torch.equal(scanops.cumprod(lazy, 1), torch.cumprod(lazy.resolve_conj(), 1))
    assert torch.equal(scanops.cumsum(x, 1, mask=lazy), torch.cumsum(x * lazy, 1))
    out = torch.zeros_like(x).conj()
    assert scanops.cumprod(x, 1, out=out) is out
    assert torch.equal(out, torch.cumprod(x, 1))


def test_a_kernel_reads_no_conjugated_view() -> None:
    kernel = scanops.compile(scanops.ScanSpec(op="sum", dtype="complex64", length=4), "cpu")
    with pytest.raises(UnsupportedRequest, match="resolve_conj"):
        kernel(torch.ones(2, 4, dtype=torch.complex64).conj())


NAN, INF = math.nan, math.inf
LINES = {
    "angles of several turns": (1 + 9j, 2 - 9j, 5j, 1.99 + 40j),
    "-inf first": (complex(-INF, 0), complex(-INF, 2), 1 + 2j, complex(-INF, 3)),
    "+inf": (1 + 2j, complex(INF, 1), 3 + 1j),
    "NaN in the real part": (1 + 2j, complex(NAN, 1), 3 + 1j),
    "NaN in the imaginary part": (1 + 1j, complex(1, NAN), 3 + 1j),
    "NaN beside -inf": (complex(-INF, NAN), 1 + 1j),
    "NaN first": (complex(NAN, 0), 1 + 1j),
    "a great spread": (-1000 + 1j, 1000 + 2j, 1000 - 1j, 1e4 + 3j),
    "terms that nearly cancel": (1 + 0j, 1 + 3.14j, 1 + 1j),
}


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("length", [4, 300, 3000])
def test_logarithms_of_sums_are_torchs(line: str, length: int, device: str) -> None:
    """At the start of a line and within it, to whole turns of the angle."""
    x = torch.zeros(2, length, dtype=torch.complex128)
    x[0, : len(LINES[line])] = torch.tensor(LINES[line])
    x[1, length // 2 : length // 2 + len(LINES[line])] = torch.tensor(LINES[line])[: length - length // 2]
    wanted = torch.logcumsumexp(x, 1)
    found = scanops.logcumsumexp(x.to(device), 1).cpu()
    torch.testing.assert_close(of_same_turn(found, wanted), wanted, equal_nan=True)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_terms_that_are_next_to_nothing(dtype: torch.dtype) -> None:
    """Fractions of the greatest that are no normal numbers, with a kernel and without one."""
    for apart in (60, 87.5, 90, 95, 103, 700, 710, 740, 744, 800):
        x = torch.tensor([complex(-apart, 1), 1j, complex(-apart, 2)], dtype=dtype)
        for around in (contextlib.nullcontext, scanops.emulate):
            with around():
                y, final = scanops.logcumsumexp(x, 0, initial=complex(-2 * apart, 3), return_final=True)
            torch.testing.assert_close(torch.stack([*y, final]), x[[0, 1, 1, 1]])


@pytest.mark.parametrize("name", ["lanes", "one_tile_odd", "split", "column_loop", "panels_odd", "wave_odd"])
def test_the_angle_does_not_depend_on_the_strategy(name: str, device: str) -> None:
    """It is that of the term of the greatest real part, plus less than half a turn."""
    case = CASES[name]
    x = 3 * torch.randn(case.shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(8))
    y = scanops.logcumsumexp(x.to(device), case.dim).cpu()
    greatest = torch.cummax(x.real, case.dim).indices
    off = y.imag - x.imag.gather(case.dim, greatest)
    assert (off.abs() <= math.pi).all()
    torch.testing.assert_close(y.real, torch.logcumsumexp(x, case.dim).real)
