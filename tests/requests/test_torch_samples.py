"""torch's own sample inputs of its scans: the same values, dtypes, shapes, strides and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import scanops
from scanops.errors import ScanopsError
from tests.numbers.oracle import of_same_turn
from tests.torch_integration.rows import flat

invocations = pytest.importorskip("torch.testing._internal.common_methods_invocations")

NAMES = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
ROWS = {row.name: row for row in invocations.op_db if row.name in NAMES}
HALVES = (torch.float16, torch.bfloat16)


def dtypes_of(name: str) -> list[torch.dtype]:
    """What torch scans on a GPU, and on a CPU."""
    row = ROWS[name]
    return sorted(row.supported_dtypes("cuda") | row.supported_dtypes("cpu"), key=str)


CASES = [(name, dtype) for name in NAMES for dtype in dtypes_of(name)]
WITH_ERRORS = [name for name in NAMES if ROWS[name].error_inputs_func]


def agree(name: str, ours: Callable[..., Any], theirs: Callable[..., Any], sample: Any) -> None:
    """Hold a call to torch's with a sample: types, dtypes, shapes, strides and values."""
    found, wanted = (flat(scan(sample.input, *sample.args, **sample.kwargs)) for scan in (ours, theirs))
    assert len(found) == len(wanted)
    right = wanted
    if wanted[0].dtype in HALVES:  # torch rounds each partial result on a GPU: what it has in 32 bits is rounded once
        options = {name: value for name, value in sample.kwargs.items() if name != "dtype"}
        right = flat(theirs(sample.input.to(wanted[0].dtype).float(), *sample.args, **options))
    for y, alike, value in zip(found, wanted, right, strict=True):
        y = of_same_turn(y, alike) if name == "logcumsumexp" and y.is_complex() else y
        assert (y.dtype, y.shape, y.stride()) == (alike.dtype, alike.shape, alike.stride())
        torch.testing.assert_close(y, value.to(y.dtype))


def samples_agree(name: str, dtype: torch.dtype, device: str) -> None:
    samples = list(ROWS[name].sample_inputs(device, dtype))
    assert samples
    for sample in samples:
        agree(name, getattr(scanops, name), getattr(torch, name), sample)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_samples_composed(name: str, dtype: torch.dtype) -> None:
    samples_agree(name, dtype, "cpu")


# Of the emulated kernels every fifth: tests/numbers/test_matrix.py has each operator with each dtype.
@pytest.mark.parametrize(("name", "dtype"), CASES if torch.cuda.is_available() else CASES[::5])
def test_samples(name: str, dtype: torch.dtype, kernels: str) -> None:
    samples_agree(name, dtype, kernels)


@pytest.mark.parametrize("name", WITH_ERRORS)
def test_errors(name: str, device: str) -> None:
    """torch's own wrong inputs: an error of ours that is also of torch's type."""
    wrong = list(ROWS[name].error_inputs(device))
    assert wrong
    for bad in wrong:
        sample = bad.sample_input
        with pytest.raises(bad.error_type):
            getattr(torch, name)(sample.input, *sample.args, **sample.kwargs)
        with pytest.raises(ScanopsError) as caught:
            getattr(scanops, name)(sample.input, *sample.args, **sample.kwargs)
        assert isinstance(caught.value, bad.error_type)
