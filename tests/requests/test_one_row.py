"""One row is a whole operator: its laws, derivatives, autocast and page of the docs follow from it.

tests/requests/test_derivatives.py differentiates it with all others.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import scanops
from scanops.codegen.derivatives import Gradient
from scanops.codegen.operators import BUILT_IN
from scanops.laws import check_operator
from tests.requests.derivatives import leaf
from tests.torch_integration.columns import autocasting
from tests.torch_integration.rows import COMPOUND
from tools.pages import EXAMPLES, docs_files


def test_a_row_is_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels are differentiated by linear scans, or by a gradient kernel that a row names.

    Public functions are those that rows name.
    """
    row = dataclasses.replace(COMPOUND, name="compound_again", autocast=True)
    assert check_operator(row, lengths=(), samples=(0.0, 1.0, 0.5)).ok
    with FakeTensorMode(), autocasting():
        assert scanops.scan(torch.empty(5, dtype=torch.float16, device="cuda"), row, 0).dtype == torch.float32
    monkeypatch.setitem(BUILT_IN, row.name, row)
    pages = docs_files(dict.fromkeys(EXAMPLES, ""))
    assert "`compound_again`" in pages["operators/README.md"] and row.formula in pages["operators/compound_again.md"]
    back = dataclasses.replace(BUILT_IN["sum"], name="total_gradient", gradient=None)
    total, x = dataclasses.replace(back, name="total", gradient=Gradient(row=back)), leaf(5, device="cpu")
    with scanops.emulate(), scanops.record() as used:
        (found,) = torch.autograd.grad(scanops.scan(x, total, 0).sum(), x)
    assert [spec.op for spec in used] == ["total", "total_gradient"] and found.tolist() == [5, 4, 3, 2, 1]
    assert {row.function for row in BUILT_IN.values()} - {""} < set(scanops.__all__)
