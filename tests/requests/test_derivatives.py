"""Derivatives of any order and in any mode against torch's own of the same scan item by item; kernels compute them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import grad
from torch.testing import assert_close

import scanops
from scanops import emulator
from scanops.codegen.derivatives import Gradient
from scanops.codegen.operators import BUILT_IN
from scanops.fallback import scans
from tests.numbers.oracle import COMPOUND, STEPS
from tests.requests.derivatives import AXES, CELLS, Case, Tensors, leaf
from tests.torch_integration.columns import TRANSFORMS, TWICE, autocasting
from tools.pages import EXAMPLES, docs_files

func = torch.func
Total = Callable[..., torch.Tensor]


def named(cell: dict[str, str]) -> str:
    return "-".join(cell[axis] for axis in (*AXES, "length") if cell[axis] != "none")


def kernels_alone(monkeypatch: pytest.MonkeyPatch, case: Case) -> bool:
    """Whether kernels run here and differentiate this case; from then on PyTorch's operators are a failure.

    So is scatter_add, which has no order on a GPU: gradients of equal items are added by a scan.
    """
    runs = emulator.ACTIVE.get() is not None or case.tensors[0].is_cuda
    # The carry-out of a scan that returns indices has none: nobody kept whose item it is.
    known = not (case.op.startswith("cum") and case.cell["carry"] != "none")
    known &= case.op != "logcumsumexp" or case.cell["dtype"] == "float64"
    known &= (case.cell["place"], case.cell["length"]) != ("complete", "0")  # there is nothing to launch for
    if runs and known:
        monkeypatch.setattr(scans, "outputs", lambda *_: pytest.fail("composed"))
        monkeypatch.setattr(torch.Tensor, "scatter_add", lambda *_: pytest.fail("scattered"))
    return runs and known


def derivatives(total: Total, tensors: Tensors, orders: int) -> list[torch.Tensor]:
    """Return the first derivatives, the second and so on, each of one number made of those before."""
    leaves = tuple(each.clone().requires_grad_() for each in tensors)
    nothing = sum(0 * each.sum().real for each in leaves)  # exclusive results of one item read none
    number, found = total(*leaves) + nothing, []
    for _ in range(orders):
        gradients = grad(number, leaves, create_graph=True, materialize_grads=True)
        found += [each.detach() for each in gradients]
        number = torch.stack([(each * each.conj()).real.sum() for each in gradients]).sum() + nothing
    return found


@pytest.mark.parametrize("cell", CELLS, ids=named)
def test_results_and_three_derivatives(cell: dict[str, str], device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(cell, device)
    # The third of torch.logcumsumexp is NaN; it does not depend on how a tensor lies.
    orders = 3 if kernels_alone(monkeypatch, case) and cell["layout"] in ("dense", "transposed") else 2
    with torch.no_grad():
        assert_close(case.scanned(*case.tensors), case.walked(*case.tensors))
    found, expected = (derivatives(each, case.tensors, orders) for each in (case.total, case.expected))
    assert len(found) == len(expected)
    assert_close(found, expected)


KINDS = TRANSFORMS | TWICE
# torch's functions know no derivative of these: such calls are composed.
COMPOSED = ("functionalized", "linearized", "tangents of tangents")


@pytest.mark.parametrize("transform", KINDS)
@pytest.mark.parametrize("op", STEPS)
def test_transformed(op: str, transform: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [cell for cell in CELLS if (cell["op"], cell["dtype"], cell["length"]) == (op, "float64", "5")]
    case = Case(cells[list(KINDS).index(transform) % len(cells)], kernels)
    expected = KINDS[transform](case.expected, case.tensors)
    if transform not in COMPOSED:
        kernels_alone(monkeypatch, case)
    assert_close(KINDS[transform](case.total, case.tensors), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", ["sum", "prod", "linear"])
def test_halves(op: str, dtype: torch.dtype, device: str) -> None:
    """Second derivatives, too, are computed in float32."""
    case = Case({axis: values[0] for axis, values in AXES.items()} | {"op": op, "length": "5"}, device)
    tensors = tuple(each.to(dtype) for each in case.tensors)
    found = derivatives(case.total, tensors, 2)
    expected = derivatives(case.expected, tuple(each.double() for each in tensors), 2)
    precise = {torch.float16: 0.02, torch.bfloat16: 0.15}[dtype]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        assert_close(ours.double(), theirs, rtol=precise, atol=precise * float(theirs.abs().max()))


@pytest.mark.parametrize("name", ["cumsum", "cummax"])
def test_what_no_gradient_reads_may_change(name: str) -> None:
    """Under transforms too: torch keeps no results of either, and of a sum no items."""

    def changed(module: Any) -> Total:
        def total(x: torch.Tensor) -> torch.Tensor:
            x = x * 1
            found = getattr(module, name)(x, 1)
            y = found if isinstance(found, torch.Tensor) else found[0]
            y.mul_(3)
            if name == "cumsum":
                x.mul_(0)
            return y.sin().sum()

        return total

    x = leaf(2, 5, device="cpu").detach()
    with scanops.emulate():
        found = func.grad(changed(scanops))(x), func.jvp(changed(scanops), (x,), (x.cos(),))[1]
    assert_close(found, (func.grad(changed(torch))(x), func.jvp(changed(torch), (x,), (x.cos(),))[1]))


def test_a_pullback_goes_by_the_policy_of_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is called: under "never" it raises where nobody has built its kernel."""
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    x = torch.rand(2, 43, dtype=torch.float64)  # a length of its own
    with scanops.emulate():
        scanops.cumprod(x, 1)
        with scanops.policy("never"):
            y, pullback = func.vjp(lambda x: scanops.cumprod(x, 1), x)
        with pytest.raises(scanops.errors.MissingKernel):
            pullback(torch.ones_like(y))


def test_derivatives_of_a_compensated_sum_are_compensated() -> None:
    """Whether or not the gradient is to be differentiated itself."""
    generator = torch.Generator().manual_seed(0)
    great = torch.randn(2, 3000, generator=generator) * torch.logspace(0, 7, 3000)
    given = torch.cat([great, -great.flip(1)], 1) + torch.rand(2, 6000, generator=generator)
    x = torch.ones(2, 6000, requires_grad=True)
    with scanops.emulate():
        y = scanops.cumsum(x, 1, accumulate="compensated")
        plain, again = (grad(y, x, given, retain_graph=True, create_graph=create)[0] for create in (False, True))
        (transformed,) = func.vjp(lambda x: scanops.cumsum(x, 1, accumulate="compensated"), x.detach())[1](given)
    assert torch.equal(again.detach(), plain) and torch.equal(transformed, plain)


def test_the_fallback_differentiates_a_product_as_torch_does() -> None:
    """By torch's own gradient, and no recurrence: that would take it many passes."""
    x = torch.rand(3, 50, dtype=torch.float64, requires_grad=True)
    with scanops.emulate(), scanops.policy("fallback"), scanops.record() as used, pytest.warns(match="no kernel"):
        (found,) = grad(scanops.cumprod(x, 1).sin().sum(), x)
    assert_close(found, grad(torch.cumprod(x, 1).sin().sum(), x)[0])
    assert {spec.op for spec in used.specs} == {"prod"}


def test_a_row_is_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels are differentiated by linear scans, or by a gradient kernel that a row names.

    Public functions are those that rows name.
    """
    row = dataclasses.replace(COMPOUND, name="compound_again", autocast=True)
    assert scanops.check_operator(row, lengths=(), samples=(0.0, 1.0, 0.5)).ok
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
