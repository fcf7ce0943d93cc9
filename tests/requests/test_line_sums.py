"""Gradients of operands that are broadcast along columns: kernels store their sums over lines, and no items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import grad
from torch.testing import assert_close

import scanops
from scanops.codegen.spec import ScanSpec
from scanops.requests.call import Call
from scanops.requests.request import Inputs, Request
from scanops.runtime.call_cache import run

NEAR = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}  # of the greatest value
Tensors = tuple[torch.Tensor, ...]


def item_by_item(gate: torch.Tensor, x: torch.Tensor, dim: int, flags: torch.Tensor | None = None) -> torch.Tensor:
    """The recurrence of ``linear_scan`` along ``dim``, begun again where there are flags."""
    gate, h, found = gate.expand(x.shape), torch.zeros_like(x.select(dim, 0)), []
    for n in range(x.shape[dim]):
        a = gate.select(dim, n)
        h = (a if flags is None else torch.where(flags.select(dim, n), 0, a)) * h + x.select(dim, n)
        found.append(h)
    return torch.stack(found, dim)


def check(scan: Callable[..., Any], reference: Callable[..., Any], *given: torch.Tensor) -> list[str]:
    """Compare gradients, and a second pass with equal bits; return the kernels' names of a pass."""
    source, dtype = torch.Generator().manual_seed(1), given[0].dtype
    leaves = [each.detach().requires_grad_() for each in given]
    wide = [each.detach().cpu().double().requires_grad_() for each in given]

    def differentiate(scan: Callable[..., Any], leaves: list[torch.Tensor]) -> Tensors:
        found = scan(*leaves)
        results = found if isinstance(found, tuple) else (found,)
        source.manual_seed(1)
        gradients = [torch.randn(each.shape, generator=source).to(dtype).to(each) for each in results]
        return grad(results, leaves, gradients)

    with scanops.calls() as made:
        found = differentiate(scan, leaves)
    for one, other, leaf in zip(found, differentiate(reference, wide), leaves, strict=True):
        assert (one.shape, one.dtype) == (leaf.shape, leaf.dtype)
        far = NEAR[dtype] * other.abs().max().item()
        assert_close(one.cpu().double(), other, rtol=0, atol=far)
    for _ in range(2):  # from the call cache, and as C++ has learnt it
        for one, again in zip(found, differentiate(scan, leaves), strict=True):
            assert torch.equal(one, again)
    return [call.kernel for call in made if call.kernel]


# One tile, a partial one, a loop, and few columns that are split over blocks.
SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((2, 2, 5), 1),
    ((33, 8), 0),
    ((3, 64, 70), 1),
    ((2, 301, 3, 7), 1),
    ((1031, 24), 0),
    ((42, 300, 64), 1),
    ((1, 2500, 3), 1),
)


def broadcast(shape: tuple[int, ...], dim: int, form: str) -> tuple[int, ...]:
    """The shape of an operand that is broadcast along ``dim``."""
    return {
        "for each channel": tuple(size if d > dim else 1 for d, size in enumerate(shape)),
        "of channels alone": shape[dim + 1 :],
        "for each line": tuple(1 if d == dim else size for d, size in enumerate(shape)),
        "for each batch": tuple(size if d < dim else 1 for d, size in enumerate(shape)),
        "one": (),
    }[form]


@pytest.mark.parametrize("form", ["for each channel", "of channels alone", "for each line", "for each batch", "one"])
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
def test_gates(shape: tuple[int, ...], dim: int, form: str, kernels: str) -> None:
    """Against the recurrence item by item."""
    number = sum(shape)
    dtype = (torch.float32, torch.float64, torch.bfloat16)[number % 3]
    torch.manual_seed(number)
    x, gate = torch.randn(shape).to(kernels, dtype), torch.rand(broadcast(shape, dim, form)).to(kernels, dtype)
    made = check(lambda gate, x: scanops.linear_scan(gate, x, dim), lambda gate, x: item_by_item(gate, x, dim), gate, x)
    assert any("-sums1-" in each for each in made)


@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize(
    "option", ["reverse", "exclusive", "segment_starts", "offsets", "mask", "weights", "initial", "complete"]
)
def test_options(option: str, dtype: torch.dtype, kernels: str) -> None:
    """What a line sums is what its items give, whatever restarts, is left out or is carried in."""
    torch.manual_seed(3)
    shape = (2, 100, 24)
    x, gate = torch.randn(shape).to(kernels, dtype), torch.rand(24).to(kernels, dtype)
    flags, keep = torch.rand(shape) < 0.1, torch.rand(shape) < 0.7
    weights, initial = torch.rand(shape).to(dtype), torch.randn(2, 24).to(torch.promote_types(dtype, torch.float32))
    offsets = torch.tensor([0, 1, 20, 21, 100])
    at = torch.zeros(shape, dtype=torch.bool)
    at[:, offsets[:-1]] = True

    def begun(gate: torch.Tensor, x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        return item_by_item(gate, torch.cat([first[:, None], x], 1), 1)

    def masked(gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return item_by_item(torch.where(keep, gate, 1), torch.where(keep, x, 0), 1)

    scans: dict[str, tuple[dict[str, Any], Callable[..., torch.Tensor]]] = {
        "reverse": ({"reverse": True}, lambda gate, x: item_by_item(gate, x.flip(1), 1).flip(1)),
        "exclusive": ({"exclusive": True}, lambda gate, x: begun(gate, x, torch.zeros(2, 24))[:, :-1]),
        "segment_starts": ({"segment_starts": flags}, lambda gate, x: item_by_item(gate, x, 1, flags)),
        "offsets": ({"offsets": offsets}, lambda gate, x: item_by_item(gate, x, 1, at)),
        "mask": ({"mask": keep}, masked),
        "weights": ({"mask": weights}, lambda gate, x: item_by_item(gate, weights * x, 1)),
        "initial": ({"initial": initial}, lambda gate, x: begun(gate, x, initial.to(x.dtype))[:, 1:]),
        "complete": ({"complete": True}, lambda gate, x: begun(gate, x, torch.zeros(2, 24))),
    }
    options, reference = scans[option]
    given = {name: each.to(kernels) if isinstance(each, torch.Tensor) else each for name, each in options.items()}
    made = check(lambda gate, x: scanops.linear_scan(gate, x, 1, **given), reference, gate, x)
    assert any("-sums1-" in each for each in made)


def decay(x: torch.Tensor, bias: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softplus(x + bias) * rate


def decay_and_step(y: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, rate: torch.Tensor) -> Tensors:
    return y, x * bias


@pytest.mark.parametrize("then", [None, decay_and_step], ids=["map", "map and then"])
@pytest.mark.parametrize("forms", [("of channels alone",) * 2, ("for each line", "one")], ids=str)
@pytest.mark.parametrize(("shape", "dim"), SHAPES[1:], ids=str)
def test_expressions(shape: tuple[int, ...], dim: int, forms: tuple[str, str], then: Any, kernels: str) -> None:
    """Two operands of an expression, of one shape or of two, beside one that is read item by item."""
    number = sum(shape)
    dtype = (torch.bfloat16, torch.float32, torch.float64)[number % 3]
    torch.manual_seed(number)
    x = torch.randn(shape).to(kernels, dtype)
    others = (torch.randn(broadcast(shape, dim, form)).to(kernels, dtype) for form in forms)

    def reference(x: torch.Tensor, bias: torch.Tensor, rate: torch.Tensor) -> Any:
        y = item_by_item(torch.ones(()), decay(x, bias, rate).expand(x.shape), dim)
        return y if then is None else then(y, x, bias, rate)

    options: dict[str, Any] = {"map": decay, "then": then}
    made = check(lambda *given: scanops.scan(given, "sum", dim, **options), reference, x, *others)
    assert any("-sums2-" in each for each in made)


def test_gates_before_items(kernels: str) -> None:
    """An expression whose first operand is broadcast: the outputs of items come first all the same."""
    torch.manual_seed(0)
    rate, x = torch.randn(16, device=kernels), torch.randn(3, 90, 16, device=kernels)

    def gated(rate: torch.Tensor, x: torch.Tensor) -> Tensors:
        return torch.sigmoid(rate), x

    made = check(
        lambda rate, x: scanops.scan((rate, x), "linear", 1, map=gated),
        lambda rate, x: item_by_item(torch.sigmoid(rate), x, 1),
        rate,
        x,
    )
    assert any("-sums1-" in each for each in made)


def test_what_is_not_summed(kernels: str) -> None:
    """Rows, an operand of each item, one alone, and what is differentiated twice have gradients of items."""
    x, row = torch.ones(2, 8, 6, device=kernels), torch.ones(2, 6, 8, device=kernels)
    gates = torch.rand(8, 1, device=kernels), torch.rand(6, 1, device=kernels)
    for gate, items, dim in ((gates[0], x, 1), (gates[1], row, 2)):
        made = check(
            lambda gate, items, dim=dim: scanops.linear_scan(gate, items, dim),
            lambda gate, items, dim=dim: item_by_item(gate, items, dim),
            gate,
            items,
        )
        assert not any("-sums" in each for each in made)
    alone = torch.rand(6, device=kernels, requires_grad=True)
    with scanops.calls() as calls:
        scanops.scan((x, alone), "sum", 1, map=torch.mul).sum().backward()
    assert not any("-sums" in str(call.kernel) for call in calls)
    assert_close(alone.grad, torch.full((6,), 72.0, device=kernels))
    leaf = torch.rand(6, device=kernels, dtype=torch.float64, requires_grad=True)
    wide = x.double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda a, b: scanops.linear_scan(a, b, 1), (leaf, wide), atol=1e-4)


def test_a_fallback_sums_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel of a backward pass is not to be had, PyTorch's operators compute the same."""
    torch.manual_seed(0)
    given = torch.randn(2, 20, 6), torch.randn(6), torch.randn(6)
    leaves = [each.requires_grad_() for each in given]
    with scanops.emulate():
        y = scanops.scan(tuple(leaves), "sum", 1, map=decay)
        with scanops.policy("fallback"):
            found = grad(y, leaves, torch.ones_like(y), retain_graph=True)
        expected = grad(y, leaves, torch.ones_like(y))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("length", [7, 2500])
def test_sums_of_a_kernel(length: int, kernels: str) -> None:
    """A kernel returns one sum for each tile of a line, which add up to that of the items."""
    torch.manual_seed(0)
    x, gate, saved = (torch.randn(2, length, 3, device=kernels) for _ in range(3))
    call = Call("linear_gradient", 1, reverse=True, exclusive=True, dtype=torch.float32)
    every = Request(call=call, inputs=Inputs(x, gate=gate, saved=saved), carry_dtype=torch.float32, saved_results=True)
    summed = Request(
        call=Call("linear_gradient", 1, reverse=True, exclusive=True, dtype=torch.float32, line_sums=1),
        inputs=every.inputs,
        carry_dtype=torch.float32,
        saved_results=True,
    )
    one, other = run(every), run(summed)
    assert one is not None
    assert other is not None
    (items, of_gates), _ = one
    (again, sums), launcher = other
    assert launcher is not None
    tiles = launcher.kernel.code.launch.count_tiles(length)
    assert sums.shape == (1, tiles, 2, 3)
    assert torch.equal(items, again)
    assert_close(sums[0].double().sum(0), of_gates.double().sum(1), rtol=1e-4, atol=1e-4)


def test_a_short_name() -> None:
    """The name of a spec says how many outputs are summed."""
    name = "linear_gradient-f32-n100-inner16-sums1-gate_f32-saved_f32-reverse-exclusive-results_saved"
    spec = ScanSpec.parse(name)
    assert (spec.line_sums, str(spec), spec.result_bytes) == (1, name, (4,))


def test_the_operator_returns_separate_gradients() -> None:
    """Of sums that one operator adds, compiled code takes each for a tensor of its own, contiguous as any other."""
    torch.manual_seed(0)
    given = [torch.randn(6, 20, 2).transpose(0, 2), torch.randn(6), torch.randn(6)]
    leaves = [each.requires_grad_() for each in given]

    def scan(*given: torch.Tensor) -> torch.Tensor:
        return scanops.scan(given, "sum", 1, map=decay)

    with scanops.emulate():
        expected = grad(scan(*leaves).square().sum(), leaves)
        compiled = torch.compile(scan, backend="aot_eager", fullgraph=True)
        found = grad(compiled(*leaves).square().sum(), leaves)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)
    assert len({each.untyped_storage().data_ptr() for each in found}) == len(found)
