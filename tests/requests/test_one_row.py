"""One row is a whole operator: its scan, derivatives to any order, autocast and its page of the docs follow from it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

import scanops
from scanops.codegen.derivatives import Derivative
from scanops.codegen.operators import BUILT_IN
from scanops.fallback import reference
from scanops.laws import check_operator
from scanops.requests.request import has_kernels
from tests.requests.derivatives import leaf
from tests.torch_integration.columns import autocasting
from tools.pages import EXAMPLES, docs_files

NOISY_OR = scanops.Operator(
    name="noisy_or",
    formula="y[i] = 1 - (1 - x[0]) * (1 - x[1]) * ... * (1 - x[i])",
    lift=("x",),
    combine=("1 - (1 - older) * (1 - newer)",),
    identity=("0",),
    kinds=("float", "complex"),
    gives="kept",
    commutative=True,
    start=0,
    step=lambda h, x: h + x - h * x,
    autocast=True,
    derivative=Derivative(before=lambda line: 1 - line.term, term=lambda line: 1 - line.before),
)


@pytest.mark.filterwarnings("ignore:scanops.record:RuntimeWarning")
@pytest.mark.parametrize("exclusive", [False, True])
def test_results_and_derivatives(exclusive: bool, device: str) -> None:
    """Those of the reference; to the second order by kernels where there are any, which the record names."""
    x, h = leaf(3, 7, device=device), leaf(3, device=device, seed=1)
    options = {"mask": torch.arange(7, device=device) != 2, "reverse": True, "exclusive": exclusive}
    y, expected = scanops.scan(x, NOISY_OR, 1, **options), reference.scan(x, "noisy_or", 1, **options)
    assert_close(y, expected)
    assert_close(*(torch.autograd.grad(each.sin().sum(), x)[0] for each in (y, expected)))
    with scanops.record() as used:
        for check in (gradcheck, gradgradcheck):
            check(lambda x, h: scanops.scan(x, "noisy_or", 1, initial=h, return_final=True, **options), (x, h))
    assert {spec.op for spec in used} >= ({"noisy_or", "linear"} if has_kernels(x) else set())


def test_the_rest_of_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its laws, autocast, its page; a gradient kernel of its own. Public functions are those that rows name."""
    assert check_operator(NOISY_OR, lengths=(), samples=(0.0, 1.0, 0.5)).ok
    with FakeTensorMode(), autocasting():
        assert scanops.scan(torch.empty(5, dtype=torch.float16, device="cuda"), NOISY_OR, 0).dtype == torch.float32
    monkeypatch.setitem(BUILT_IN, NOISY_OR.name, NOISY_OR)
    pages = docs_files(dict.fromkeys(EXAMPLES, ""))
    assert "`noisy_or`" in pages["operators/README.md"] and NOISY_OR.formula in pages["operators/noisy_or.md"]
    greatest = dataclasses.replace(BUILT_IN["max"], name="greatest")
    with scanops.emulate(), scanops.record() as used:
        scanops.scan(leaf(5, device="cpu"), greatest, 0).sum().backward()
    assert [spec.op for spec in used] == ["greatest", "max_gradient"]
    assert {row.function for row in BUILT_IN.values()} - {""} < set(scanops.__all__)
