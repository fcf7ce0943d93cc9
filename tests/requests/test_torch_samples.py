"""torch's own sample inputs of its scans: the same values, dtypes, shapes, strides and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import scanops
from scanops.codegen.dtypes import DTYPES
from tests.numbers.oracle import of_same_turn

invocations = pytest.importorskip("torch.testing._internal.common_methods_invocations")

NAMES = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
ROWS = {row.name: row for row in invocations.op_db if row.name in NAMES}
OURS = frozenset(getattr(torch, name) for name in DTYPES)


def dtypes_of(name: str) -> list[torch.dtype]:
    """What torch scans on a GPU, and on a CPU."""
    row = ROWS[name]
    return sorted(row.supported_dtypes("cuda") | row.supported_dtypes("cpu"), key=str)


CASES = [(name, dtype) for name in NAMES for dtype in dtypes_of(name)]
NOT_YET = pytest.mark.skip(reason="no kernel has this dtype yet")
PARAMS = [pytest.param(*case, marks=() if case[1] in OURS else NOT_YET) for case in CASES]


def parts(result: Any) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def agree(name: str, ours: Callable[..., Any], theirs: Callable[..., Any], sample: Any) -> None:
    found, wanted = (parts(scan(sample.input, *sample.args, **sample.kwargs)) for scan in (ours, theirs))
    assert len(found) == len(wanted)
    for y, expected in zip(found, wanted, strict=True):
        y = of_same_turn(y, expected) if name == "logcumsumexp" and y.is_complex() else y
        torch.testing.assert_close(y, expected, check_stride=True)


@pytest.mark.parametrize(("name", "dtype"), PARAMS)
def test_samples(name: str, dtype: torch.dtype, kernels: str, record_property: Callable[[str, object], None]) -> None:
    samples = list(ROWS[name].sample_inputs(kernels, dtype))
    assert samples
    for sample in samples:
        agree(name, getattr(scanops, name), getattr(torch, name), sample)
    record_property("samples", len(samples))
    print(f"{len(samples)} samples of {name}, {dtype}")


@pytest.mark.parametrize("name", [name for name in NAMES if ROWS[name].error_inputs_func])
def test_errors(name: str, kernels: str) -> None:
    for bad in ROWS[name].error_inputs(kernels):
        sample = bad.sample_input
        with pytest.raises(bad.error_type):
            getattr(torch, name)(sample.input, *sample.args, **sample.kwargs)
        with pytest.raises(bad.error_type):
            getattr(scanops, name)(sample.input, *sample.args, **sample.kwargs)


def test_every_scan_is_among_them() -> None:
    assert set(ROWS) == set(NAMES)
    assert {dtype for _, dtype in CASES} - OURS <= {torch.complex32}
