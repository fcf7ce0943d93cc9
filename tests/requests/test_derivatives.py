"""Derivatives of any order and in any mode, of scans dealt out of a table, against those of the scans item by item."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
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
from scanops.codegen.operators import GRADIENTS, OPERATORS
from scanops.fallback import scans
from tests.numbers.covering import Target, cover
from tests.numbers.oracle import STEPS, call, starts_of, walked
from tests.torch_integration.columns import TRANSFORMS, TWICE, autocasting
from tools.pages import EXAMPLES, docs_files

Tensors = tuple[torch.Tensor, ...]

# The shape of a leaf, and the view of it that is scanned: two lines of some length.
LAYOUTS: dict[str, tuple[Callable[[int], tuple[int, ...]], Callable[[torch.Tensor], torch.Tensor]]] = {
    "dense": (lambda length: (2, length), lambda x: x),
    "transposed": (lambda length: (length, 2), lambda x: x.t()),
    "stepped": (lambda length: (2, 2 * length), lambda x: x[:, 1::2]),
    "expanded": (lambda length: (1, length), lambda x: x.expand(2, -1)),
    "off a boundary": (lambda length: (2 * length + 1,), lambda x: x[1:].view(2, len(x) // 2)),
}
# Head flags, or offsets: those of empty segments at both ends leave the carries alone, or take them.
SEGMENTS = {
    "flags": torch.tensor([[0, 0, 1, 0, 0], [0, 1, 0, 0, 1]]) > 0,
    "offsets": torch.tensor([0, 2, 2, 5]),
    "offsets of empty ends": torch.tensor([0, 0, 3, 5, 5]),
}
AXES: dict[str, tuple[str, ...]] = {
    "op": tuple(STEPS),
    "dtype": ("float64", "complex128"),
    "layout": tuple(LAYOUTS),
    "direction": ("forward", "reverse"),
    "place": ("inclusive", "exclusive", "complete"),
    "mask": ("none", "bool", "weights of items", "weights of lines"),
    "carry": ("none", "initial", "one initial", "final", "initial and final"),
    "segments": ("none", *SEGMENTS),
}
COMPLEX = ("sum", "prod", "logcumsumexp", "linear")


def legal(row: dict[str, str]) -> dict[str, str] | None:
    refused = row["segments"] != "none" or "final" in row["carry"] or row["op"].startswith("cum")
    if row["place"] == "complete" and refused:
        return None
    return row if row["dtype"] == "float64" or row["op"] in COMPLEX else None


def _targets() -> Iterator[Target]:
    """Every two values of any two axes; each operator in both directions, inclusive and exclusive."""
    for axes in (*itertools.combinations(sorted(AXES), 2), ("direction", "op", "place")):
        for values in itertools.product(*(AXES[axis] for axis in axes)):
            target = dict(zip(axes, values, strict=True))
            if legal(
                {"dtype": "float64", "op": "sum", "segments": "none", "carry": "none", "place": "inclusive", **target}
            ):
                yield tuple(target.items())


COVERING = cover(AXES, _targets(), legal).rows
# Of each operator one more, whose lines have one item or none by turns.
SHORT = sorted({cell["op"]: cell for cell in COVERING}.items())
CELLS = [cell | {"length": "5"} for cell in COVERING]
CELLS += [cell | {"length": str(number % 2)} for number, (_, cell) in enumerate(SHORT)]


def leaf(*shape: int, device: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Random values away from 0, and from one another."""
    x = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5
    if dtype.is_complex:
        x = torch.complex(x, leaf(*shape, device="cpu", seed=seed + 50).detach() - 1)
    return x.to(dtype).to(device).requires_grad_()


class Case:
    """A cell with its leaves on a device, scanned by kernels or PyTorch's operators, or item by item."""

    def __init__(self, cell: dict[str, str], device: str) -> None:
        self.cell, self.op = cell, cell["op"]
        self._final = "final" in cell["carry"]
        length, (shape, self._view) = int(cell["length"]), LAYOUTS[cell["layout"]]
        shapes = {"x": shape(length)}
        shapes |= {"a": shapes["x"]} if self.op == "linear" else {}
        if "initial" in cell["carry"]:
            offsets = SEGMENTS[cell["segments"]] if cell["segments"].startswith("offsets") else None
            carries = (2,) if offsets is None else (2, len(offsets) - 1)
            shapes["initial"] = () if cell["carry"] == "one initial" else carries
        if cell["mask"].startswith("weights"):
            shapes["mask"] = (length,) if cell["mask"] == "weights of items" else (2, 1)
        dtype = getattr(torch, cell["dtype"])
        self.leaves = {
            name: leaf(*shape, device=device, dtype=dtype, seed=seed)
            for seed, (name, shape) in enumerate(shapes.items())
        }
        self._fixed: dict[str, Any] = {
            "reverse": cell["direction"] == "reverse",
            **{place: True for place in ("exclusive", "complete") if cell["place"] == place},
        }
        if cell["mask"] == "bool":
            self._fixed["mask"] = torch.tensor([[True, True, False, True, False]], device=device)[:, :length]
        if cell["segments"] != "none":
            told = SEGMENTS[cell["segments"]].to(device)
            flags = {"segment_starts": told[..., :length]}
            self._fixed |= flags if cell["segments"] == "flags" else {"offsets": told.clamp(max=length)}
        # Not read in a transform: functionalize has no values of a captured tensor on a GPU.
        self._begins = starts_of(self._fixed["offsets"], length) if "offsets" in self._fixed else None
        self._cuts = self._fixed["offsets"].tolist() if "offsets" in self._fixed else []

    @property
    def tensors(self) -> Tensors:
        """The leaves without their history, in the order of the arguments of ``total`` and ``expected``."""
        return tuple(each.detach() for each in self.leaves.values())

    def scanned(self, *tensors: torch.Tensor) -> Tensors:
        """Every result of the public function that has a gradient."""
        given = self._given(tensors)
        found = call(given.pop("x"), self.op, 1, gate=given.pop("a", None), final=self._final, **given)
        if self.op.startswith("cum"):
            assert not found[1].requires_grad
            found = (found[0], *found[2:])
        return found

    def walked(self, *tensors: torch.Tensor) -> Tensors:
        """The same, item by item."""
        given = self._given(tensors)
        flags = {} if given.pop("offsets", None) is None else {"segment_starts": self._begins}
        if self._cuts and "initial" in given:
            return self._walk_segments(**given)[: 1 + self._final]
        return walked(self.op, **given, **flags)[: 1 + self._final]

    def _walk_segments(self, initial: torch.Tensor, **given: Any) -> Tensors:
        """Segments that start from a number, or each from its own; the carry-out of each, or of the one walked last."""
        found, (rows, length) = [], torch.broadcast_shapes(*[given[name].shape for name in ("x", "a") if name in given])
        for number, (begin, end) in enumerate(itertools.pairwise(self._cuts)):
            own = {
                name: each.expand(rows, length)[:, begin:end] if isinstance(each, torch.Tensor) else each
                for name, each in given.items()
            }
            found.append(walked(self.op, **own, initial=initial[:, number] if initial.ndim else initial))
        results, finals = zip(*found, strict=True)
        if initial.ndim:
            return torch.cat(results, 1), torch.stack(finals, 1)
        filled = [n for n, (begin, end) in enumerate(itertools.pairwise(self._cuts)) if begin < end or not n]
        return torch.cat(results, 1), finals[0 if self._fixed["reverse"] else filled[-1]]

    def total(self, *tensors: torch.Tensor) -> torch.Tensor:
        """One number made of all results."""
        return one_number(self.scanned(*tensors))

    def expected(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The same number, of the results item by item."""
        return one_number(self.walked(*tensors))

    def _given(self, tensors: Tensors) -> dict[str, Any]:
        given = dict(zip(self.leaves, tensors, strict=True))
        return self._fixed | given | {name: self._view(given[name]) for name in ("x", "a") if name in given}


def one_number(results: Tensors) -> torch.Tensor:
    """A real number of results; those of lines that have not begun are infinite, and left out."""
    finite = [torch.where(y.isfinite(), y, torch.zeros_like(y)) for y in results]
    total = torch.stack([(0.3 * y).sin().sum() for y in finite]).sum()
    return total.real if total.is_complex() else total


# ---- derivatives of any order and in any mode against torch's own of the same scan item by item; kernels compute them

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


def test_a_row_is_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels are differentiated by linear scans, or by a gradient kernel that a row names.

    Public functions are those that rows name.
    """
    back = dataclasses.replace(OPERATORS["sum"], name="total_gradient", gradient=None)
    total, x = dataclasses.replace(back, name="total", gradient=Gradient(row=back)), leaf(5, device="cpu")
    monkeypatch.setitem(OPERATORS, total.name, total)
    monkeypatch.setitem(GRADIENTS, back.name, back)
    with FakeTensorMode(), autocasting():
        assert scanops.scan(torch.empty(5, dtype=torch.float16, device="cuda"), "total", 0).dtype == torch.float32
    pages = docs_files(dict.fromkeys(EXAMPLES, ""))
    assert "`total`" in pages["operators/README.md"] and total.formula in pages["operators/total.md"]
    with scanops.emulate(), scanops.record() as used:
        (found,) = torch.autograd.grad(scanops.scan(x, "total", 0).sum(), x)
    assert [spec.op for spec in used] == ["total", "total_gradient"] and found.tolist() == [5, 4, 3, 2, 1]
    assert {row.function for row in OPERATORS.values()} - {""} < set(scanops.__all__)
