"""Derivatives of any order and in any mode are scans: which kernels compute, and torch's compositions do not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad, grad
from torch.testing import assert_close

import scanops
from scanops.fallback import scans
from tests.requests.test_gradients_of_variants import OPS, VARIANTS, Variant, fixed, named, scan
from tests.store.sources import needs_cxx

pytestmark = needs_cxx
func = torch.func
# What goes on from lines whose results say their index: whose item that is nobody kept.
CASES = [
    (op, name)
    for op in (*OPS, "linear")
    for name, variant in {"plain": Variant(), **VARIANTS}.items()
    if not (op.startswith("cum") and (variant.initial is not None or variant.options.get("return_final")))
]


@pytest.fixture
def kernels_alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call of it on, a scan that is composed of torch's operations is a failure."""

    def begin() -> None:
        monkeypatch.setattr(scans, "outputs", lambda *_: pytest.fail("composed"))

    return begin


Tensors = tuple[torch.Tensor, ...]
Total = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class Place:
    """Where kernels run."""

    device: str
    entered: Callable[[], AbstractContextManager[object]]


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "gpu":
        return Place("cuda", nullcontext)
    return Place("cpu", lambda: scanops.emulate(seed=7))


def case(op: str, name: str, device: str = "cpu", **further: Any) -> tuple[Total, Tensors]:
    """One number of all results, as a function of leaves in place of those that it is given."""
    variant = ({"plain": Variant()} | VARIANTS)[name]
    leaves = named(op, variant, device, torch.float64, "dense")
    options = fixed(variant, device) | further

    def total(*tensors: torch.Tensor) -> torch.Tensor:
        found = scan(op, dict(zip(leaves, tensors, strict=True)), options)
        finite = [torch.where(y.isfinite(), y, torch.zeros_like(y)) for y in found]
        return torch.stack([(0.3 * y).sin().sum() for y in finite]).sum()

    return total, tuple(each.detach() for each in leaves.values())


def third(total: Total, tensors: Tensors) -> list[torch.Tensor]:
    """The first three derivatives, each of one number made of the one before."""
    leaves = tuple(each.clone().requires_grad_() for each in tensors)
    number, found = total(*leaves), []
    for _ in range(3):
        gradients = grad(number, leaves, create_graph=True, materialize_grads=True)
        found += [each.detach().cpu() for each in gradients]
        number = torch.stack([(each * each).sum() for each in gradients]).sum()
        if not number.requires_grad:
            break
    return found


@pytest.mark.parametrize(("op", "name"), CASES)
def test_three_times(op: str, name: str, place: Place, kernels_alone: Callable[[], None]) -> None:
    # Plain code on CPU tensors: torch's operations, and their own derivatives. The third of torch.logcumsumexp is NaN,
    # that of one segment is not.
    whole = {"offsets": torch.tensor([0, 5])} if (op, name) == ("logcumsumexp", "plain") else {}
    expected = third(*case(op, name, **whole))
    with place.entered():
        kernels_alone()
        found = third(*case(op, name, place.device))
    assert len(found) >= 1
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs)


TRANSFORMS: dict[str, Callable[[Total, Tensors], Any]] = {
    "gradient": lambda f, at: func.grad(f, argnums=tuple(range(len(at))))(*at),
    "tangent": lambda f, at: func.jvp(f, at, tuple(each.cos() for each in at))[1],
    "tangents of gradients": lambda f, at: func.jacfwd(func.grad(f))(*at),
    "gradients of tangents": lambda f, at: func.jacrev(lambda *t: func.jvp(f, t, tuple(each.cos() for each in at))[1])(
        *at
    ),
    "gradients of gradients": lambda f, at: func.jacrev(func.grad(f))(*at),
    "a batch": lambda f, at: func.vmap(func.grad(f))(*(torch.stack([each, each.roll(1, -1)]) for each in at)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    ("op", "name"), [(op, name) for number, (op, name) in enumerate(CASES) if name == "plain" or number % 4 == 0]
)
def test_transformed(op: str, name: str, transform: str, place: Place, kernels_alone: Callable[[], None]) -> None:
    def computed(device: str) -> Any:
        total, tensors = case(op, name, device)
        if transform == "a batch":
            tensors = tuple(each if each.ndim else each.reshape(1) for each in tensors)
        return TRANSFORMS[transform](total, tensors)

    # By torch's operations: functions that know derivatives are for none.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scanops.ops.node._has_derivatives", lambda *_: False)
        expected = computed("cpu")
    with place.entered():
        kernels_alone()
        found = computed(place.device)
    assert_close(found, expected, check_device=False)


@pytest.mark.parametrize("op", [*OPS, "linear"])
def test_tangents_of_tangents_are_not_lost(op: str, place: Place) -> None:
    """torch's functions lose them: such calls are composed."""
    total, tensors = case(op, "plain", place.device)
    expected = func.jacrev(func.grad(total))(*tensors)
    with place.entered():
        assert_close(func.jacfwd(func.jacfwd(total))(*tensors), expected)


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

    (x,) = case("sum", "plain")[1]
    with scanops.emulate():
        found = func.grad(changed(scanops))(x), func.jvp(changed(scanops), (x,), (x.cos(),))[1]
    assert_close(found, (func.grad(changed(torch))(x), func.jvp(changed(torch), (x,), (x.cos(),))[1]))


def test_a_pullback_goes_by_the_policy_of_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is called: under "never" with a kernel that nobody has built it says so."""
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    x = torch.rand(2, 43, dtype=torch.float64)  # a length of its own
    with scanops.emulate():
        scanops.cumprod(x, 1)
        with scanops.policy("never"):
            y, pullback = func.vjp(lambda x: scanops.cumprod(x, 1), x)
        with pytest.raises(scanops.errors.MissingKernel):
            pullback(torch.ones_like(y))


def test_transforms_that_know_no_functions() -> None:
    """Operations they know."""
    total, tensors = case("prod", "plain")
    expected = func.grad(total)(*tensors)
    with scanops.emulate():
        assert_close(func.functionalize(func.grad(total))(*tensors), expected)
        assert_close(func.grad(func.functionalize(total))(*tensors), expected)
        assert_close(func.linearize(total, *tensors)[1](*tensors), (expected * tensors[0]).sum())


@pytest.mark.parametrize("op", [*OPS, "linear"])
def test_dual_numbers(op: str, place: Place, kernels_alone: Callable[[], None]) -> None:
    total, tensors = case(op, "plain", place.device)
    expected = func.jvp(total, tensors, tuple(torch.ones_like(each) for each in tensors))[1]
    with place.entered(), forward_ad.dual_level():
        kernels_alone()
        result = total(*(forward_ad.make_dual(each, torch.ones_like(each)) for each in tensors))
        assert_close(forward_ad.unpack_dual(result).tangent, expected)


@pytest.mark.parametrize("op", ["prod", "linear", "logcumsumexp", "sum"])
def test_a_batch_of_gradients(op: str, place: Place, kernels_alone: Callable[[], None]) -> None:
    """Gradients in a batch have no memory: each of their scans has one dimension more."""
    total, tensors = case(op, "plain", place.device)
    leaves = tuple(each.clone().requires_grad_() for each in tensors)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, device=place.device)
    expected = [torch.stack([w * each for w in weights]) for each in grad(total(*leaves), leaves)]
    with place.entered():
        kernels_alone()
        found = grad(total(*leaves), leaves, weights, is_grads_batched=True)
    assert_close(list(found), expected)


@pytest.mark.parametrize("dtype", [torch.complex128, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", ["sum", "prod", "linear"])
def test_dtypes(op: str, dtype: torch.dtype, kernels_alone: Callable[[], None]) -> None:
    """Gradients of complex numbers, by kernels too; second ones of halves, computed in float32."""
    tensors = tuple(named(op, Variant(), "cpu", dtype, "dense").values())
    wide = dtype if dtype.is_complex else torch.float64

    def twice(leaves: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        named_leaves = dict(zip(("x", "a"), leaves, strict=False))
        y = scan(op, named_leaves, {})[0]
        first = grad((0.05 * y * y.conj()).real.sum(), leaves, create_graph=True)
        second = grad(torch.stack([(g * g.conj()).real.sum() for g in first]).sum(), leaves)
        return [each.detach() for each in (*first, *second)]

    expected = twice(tuple(each.detach().to(wide).requires_grad_() for each in tensors))
    with scanops.emulate():
        kernels_alone()
        found = twice(tuple(each.detach().requires_grad_() for each in tensors))
    precise = {torch.complex128: 1e-9, torch.float16: 0.02, torch.bfloat16: 0.15}[dtype]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        assert_close(ours.to(wide), theirs, rtol=precise, atol=precise * float(theirs.abs().max()))


def test_what_a_sum_keeps_of_its_additions_its_derivatives_keep() -> None:
    """A gradient that is to be differentiated is as compensated as one that is not."""
    generator = torch.Generator().manual_seed(0)
    great = torch.randn(2, 3000, generator=generator) * torch.logspace(0, 7, 3000)
    given = torch.cat([great, -great.flip(1)], 1) + torch.rand(2, 6000, generator=generator)
    x = torch.ones(2, 6000, requires_grad=True)
    with scanops.emulate():
        y = scanops.cumsum(x, 1, accumulate="compensated")
        plain, again = (grad(y, x, given, retain_graph=True, create_graph=create)[0] for create in (False, True))
        (transformed,) = func.vjp(lambda x: scanops.cumsum(x, 1, accumulate="compensated"), x.detach())[1](given)
    assert torch.equal(again.detach(), plain) and torch.equal(transformed, plain)


@pytest.mark.parametrize("op", ["prod", "logcumsumexp", "max", "linear"])
def test_what_is_masked_out_reaches_nothing(op: str) -> None:
    """Not even by its second derivative, whatever it is."""
    keep = torch.tensor([[True, False, True, True, False]])
    for bad in (torch.nan, torch.inf, -torch.inf):
        leaves = [each.requires_grad_() for each in case(op, "plain")[1]]
        spoilt = [torch.where(keep, each, bad) for each in leaves]
        with scanops.emulate():
            y = scan(op, dict(zip(("x", "a"), spoilt, strict=False)), {"mask": keep})[0]
            y = torch.where(y.isfinite(), y, torch.zeros_like(y))
            first = grad(y.sin().sum(), spoilt, create_graph=True)
            second = grad(torch.stack([(each * each).sum() for each in first]).sum(), spoilt, allow_unused=True)
        for each in (*first, *second):
            assert each is None or bool(each.isfinite().all()), (bad, each)


def test_logarithms_of_nothing_and_of_all() -> None:
    """Items of -inf add nothing; the first of inf takes the rest."""
    x = torch.tensor([-torch.inf, 0.5, -torch.inf, 1.0, -2.0], dtype=torch.float64, requires_grad=True)
    with scanops.emulate():
        first = grad(scanops.logcumsumexp(x, 0)[1:].sin().sum(), x, create_graph=True)[0]
        second = grad((first * first).sum(), x)[0]
    at = [1, 3, 4]
    plain = x.detach()[at].requires_grad_()
    counts = torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64)  # of results that end with each of them
    expected = grad((counts * torch.logcumsumexp(plain, 0).sin()).sum(), plain, create_graph=True)[0]
    assert_close(first.detach()[at], expected.detach())
    assert_close(second[at], grad((expected * expected).sum(), plain)[0])
    assert torch.equal(first.detach()[[0, 2]], torch.zeros(2, dtype=torch.float64))
    assert torch.equal(second[[0, 2]], torch.zeros(2, dtype=torch.float64))


def test_who_has_no_scans_for_it_is_composed() -> None:
    """Operators of one's own, and what goes on from lines whose results say their index."""
    x = torch.rand(2, 5, dtype=torch.float64, requires_grad=True)
    with scanops.emulate():
        pair, final = scanops.cummax(x, 1, return_final=True)
        first = grad((pair.values.sum() + final.sin().sum()) ** 2, x, create_graph=True)[0]
        second = grad(first.square().sum(), x)[0]
    pair = torch.cummax(x, 1)
    expected = grad((pair.values.sum() + pair.values[:, -1].sin().sum()) ** 2, x, create_graph=True)[0]
    assert_close(first, expected)
    assert_close(second, grad(expected.square().sum(), x)[0])


def test_where_torch_stands_in_for_kernels_it_differentiates() -> None:
    """torch has the gradient of a product, and no recurrence: that would take it many passes."""
    x = torch.rand(3, 50, dtype=torch.float64, requires_grad=True)
    with scanops.emulate(), scanops.policy("fallback"), scanops.record() as used, pytest.warns(match="no kernel"):
        (found,) = grad(scanops.cumprod(x, 1).sin().sum(), x)
    assert_close(found, grad(torch.cumprod(x, 1).sin().sum(), x)[0])
    assert {spec.op for spec in used.specs} == {"prod"}


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_results_of_one_item_are_added_in_one_order(
    name: str, reverse: bool, exclusive: bool, segments: bool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a scan: scatter_add has none on a GPU."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(0, 9, (3, 40), generator=generator).double()  # with equal ones
    weights = torch.rand(3, 40, generator=generator, dtype=torch.float64)
    starts = torch.rand(3, 40, generator=generator) < 0.1 if segments else None
    mask = torch.rand(3, 40, generator=generator) < 0.8

    def total(x: torch.Tensor) -> torch.Tensor:
        told, kept, by = (None if each is None else each.to(x.device) for each in (starts, mask, weights))
        call = getattr(scanops, name)
        y = call(x, 1, mask=kept, segment_starts=told, reverse=reverse, exclusive=exclusive).values
        return (torch.where(y.isfinite(), y, torch.zeros_like(y)) ** 2 * by).sum()

    expected = func.grad(total)(x)
    with place.entered():
        monkeypatch.setattr(torch.Tensor, "scatter_add", lambda *_: pytest.fail("scattered"))
        assert_close(func.grad(total)(x.to(place.device)).cpu(), expected)
        leaf = x.to(place.device).requires_grad_()
        assert_close(grad(total(leaf), leaf, create_graph=True)[0].detach().cpu(), expected)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 4), (1,)])
@pytest.mark.parametrize("op", ["sum", "prod", "logcumsumexp", "max"])
def test_no_items_and_one(op: str, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, dtype=torch.float64, requires_grad=True)
    with scanops.emulate():
        first = grad(scanops.scan(x, op, -1).sin().sum(), x, create_graph=True)[0]
        second = grad(first.sum(), x, allow_unused=True)[0]
        assert_close(func.grad(lambda t: scanops.scan(t, op, -1).sin().sum())(x.detach()), x.detach().cos())
    assert_close(first.detach(), x.detach().cos())
    assert second is None or second.shape == x.shape
