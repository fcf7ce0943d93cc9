"""PyTorch's operators on a CPU and emulated kernels give one answer: results, dtypes, memory, gradients and errors.

Requests are drawn at random. Each is computed by both and compared; where a value is special, both have it. Draw more
with ``pytest tests/numbers/test_paths_agree.py --requests 50``.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import scanops
from scanops.errors import ScanopsError

OPERATORS: dict[str, Callable[..., Any]] = {
    "cumsum": scanops.cumsum,
    "cumprod": scanops.cumprod,
    "logcumsumexp": scanops.logcumsumexp,
    "cummax": scanops.cummax,
    "cummin": scanops.cummin,
    "linear_scan": lambda x, dim, gate, **options: scanops.linear_scan(gate, x, dim, **options),
    **{
        name: lambda x, dim, name=name, **options: scanops.scan(x, name, dim, **options)
        for name in ("max", "min", "bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or")
    },
}
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool)
DTYPES += (torch.complex64,)
LENGTHS = (0, 1, 2, 33)
MULTIPLY = ("cumprod", "linear_scan")
DIFFERENTIABLE = ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "linear_scan", "max", "min")
# Items of which derivatives are defined: one zero factor, or terms of minus infinity.
EXACT_AT = {"cumprod": 0.0, "logcumsumexp": -math.inf}
FLOATS = (math.inf, -math.inf, math.nan, -0.0, 0.0, 1e-40, 1.0, -1.0)


def flat(found: Any) -> list[torch.Tensor]:
    """Return the tensors of a call's answer, in order."""
    return [found] if isinstance(found, torch.Tensor) else [each for part in found for each in flat(part)]


def by_both(call: Callable[[], Any]) -> tuple[Any, Any]:
    """Return what a call gives without kernels and with emulated ones: an answer, or the error that it raises."""
    answers = []
    for kernels in (contextlib.nullcontext(), scanops.emulate(seed=5)):
        with kernels:
            try:
                answers.append(flat(call()))
            except ScanopsError as error:
                answers.append(error)
    return answers[0], answers[1]


def hold(label: object, plain: Any, kernel: Any, rtol: float = 2e-5) -> None:
    """Compare answers: errors in type and first line; tensors in dtype, shape and values, NaN equal to NaN."""
    if isinstance(plain, ScanopsError) or isinstance(kernel, ScanopsError):
        assert type(plain) is type(kernel) and str(plain) == str(kernel), (label, plain, kernel)
        return
    assert len(plain) == len(kernel), label
    for mine, theirs in zip(plain, kernel, strict=True):
        assert mine.is_contiguous() and theirs.is_contiguous(), label
        half = mine.dtype in (torch.float16, torch.bfloat16)
        rtol = 2 * torch.finfo(mine.dtype).eps if half else rtol
        torch.testing.assert_close(
            mine, theirs, rtol=rtol, atol=rtol, equal_nan=True, msg=lambda text: f"{label}: {text}"
        )


def disjoint(tensors: list[torch.Tensor]) -> bool:
    """Whether no two of these tensors share memory."""
    spans = sorted((each.data_ptr(), each.numel() * each.itemsize) for each in tensors if each.numel())
    return all(begin + size <= after for (begin, size), (after, _) in itertools.pairwise(spans))


def drawn(draw: random.Random, shape: tuple[int, ...], dtype: torch.dtype, *, special: bool = False) -> torch.Tensor:
    """Draw small items on which floats are nearly exact; with ``special`` some are infinite, NaN, tiny or extreme."""
    draw, count = random.Random(draw.random()), math.prod(shape)
    if dtype == torch.bool:
        items: list[Any] = [draw.random() < 0.5 for _ in range(count)]
    elif dtype.is_floating_point or dtype.is_complex:
        items = [draw.choice((0.5, 0.75, 1.0, 1.25, -0.5, 1.5)) for _ in range(count)]
        if special:
            items = [draw.choice(FLOATS) if draw.random() < 0.15 else each for each in items]
    else:
        items = [draw.randint(-3, 3) for _ in range(count)]
        if special:
            ends = (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
            items = [draw.choice(ends) if draw.random() < 0.2 else each for each in items]
    return torch.tensor(items, dtype=dtype).reshape(shape)


def request(draw: random.Random, name: str, dtype: torch.dtype, length: int, *, special: bool) -> dict[str, Any]:
    """Draw the arguments of a call."""
    dim = draw.choice((0, 1))
    shape = (length, 3) if dim == 0 else (3, length)
    given: dict[str, Any] = {"x": drawn(draw, shape, dtype, special=special), "dim": dim}
    if name == "linear_scan":
        given["gate"] = drawn(draw, draw.choice((shape, (1, 1))), dtype)
    given |= {"reverse": draw.random() < 0.4, "exclusive": draw.random() < 0.3}
    masks = {"none": None, "bool": torch.bool, "own": dtype, "int": torch.int64}
    kind = draw.choice(("none", "none", "bool", "own", "int"))
    if masks[kind] is not None:
        given["mask"] = drawn(draw, shape, masks[kind])
    if draw.random() < 0.5:
        given["return_final"] = True
    if draw.random() < 0.25 and dtype not in (torch.bool,):
        given["initial"] = draw.choice((1, drawn(draw, (3,), dtype)))
    segments = draw.random()
    if segments < 0.2 and length:
        given["offsets"] = torch.tensor([0, length // 2, length // 2, length])
        given["return_final"] = draw.choice((False, True, "segments"))
    elif segments < 0.35:
        given["segment_starts"] = drawn(draw, shape, torch.bool)
    return given


@pytest.fixture
def count(request: pytest.FixtureRequest) -> int:
    """Requests of each test."""
    return int(request.config.getoption("--requests"))


@pytest.mark.parametrize("special", [False, True], ids=["plain", "special"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_results_dtypes_memory_and_errors(name: str, dtype: torch.dtype, special: bool, count: int) -> None:
    """An equal answer by both, in memory of its own."""
    draw = random.Random(f"{name} {dtype}")  # with special values the same requests, and so the same kernels
    for _ in range(count):
        # Sums and maxima are the same in every order; a product of extremes may leave the range in some.
        mild = not special or dtype.is_complex or (name in MULTIPLY and dtype.is_floating_point)
        given = request(draw, name, dtype, draw.choice(LENGTHS), special=not mild)
        x = given["x"].clone()
        plain, kernel = by_both(lambda given=given: OPERATORS[name](**given))  # type: ignore[misc]
        hold((name, given), plain, kernel)
        torch.testing.assert_close(given["x"], x, rtol=0, atol=0, equal_nan=True)
        for answer in (plain, kernel):
            if not isinstance(answer, ScanopsError):
                assert disjoint([given["x"], *answer]), (name, given)


@pytest.mark.parametrize("special", [False, True], ids=["plain", "special"])
@pytest.mark.parametrize("name", [*DIFFERENTIABLE])
def test_gradients(name: str, special: bool, count: int) -> None:
    """Equal gradients of items, gates, weights and carries, zeros where nothing was read."""
    draw = random.Random(f"gradients {name}")
    for _ in range(2 * count):
        given = request(draw, name, torch.float64, draw.choice(LENGTHS[1:]), special=False)
        if special and name in EXACT_AT:
            given["x"] = torch.where(drawn(draw, given["x"].shape, torch.bool), given["x"], EXACT_AT[name])
        if (mask := given.get("mask")) is not None and not (mask.dtype == torch.bool or mask.is_floating_point()):
            del given["mask"]
        leaves = [key for key, each in given.items() if isinstance(each, torch.Tensor) and each.is_floating_point()]
        seed = draw.random()

        def gradients(given: dict[str, Any] = given, leaves: list[str] = leaves, seed: float = seed) -> Any:
            read = {key: given[key].clone().requires_grad_() for key in leaves}
            found = [each for each in flat(OPERATORS[name](**given | read)) if each.is_floating_point()]
            pick = random.Random(seed)
            weights = [drawn(pick, tuple(each.shape), torch.float64) for each in found]
            total = sum((each * weight).nan_to_num(0, 0, 0).sum() for each, weight in zip(found, weights, strict=True))
            found = torch.autograd.grad(total, list(read.values()))  # type: ignore[arg-type, assignment]
            return [each.contiguous() for each in found]

        hold((name, given), *by_both(gradients))


# ---- results, indices and carries are tensors of their own


PATHS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "eager": lambda call: call,
    "compiled": lambda call: torch.compile(call, backend="aot_eager"),
    "vmap": lambda call: lambda *tensors: torch.vmap(call)(*(each[None] for each in tensors)),
}
PAIR = scanops.operator(
    fields=("a", "b"),
    combine=lambda older, newer: (older.a * newer.a, newer.b + newer.a * older.b),
    identity=(1, 0),
    project=lambda state: (state.b, state.a),
)
CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    **{
        f"{name}{' exclusive' * exclusive}": lambda x, a, name=name, exclusive=exclusive: OPERATORS[name](
            x, 0, return_final=True, exclusive=exclusive, **({"gate": a} if name == "linear_scan" else {})
        )
        for name in DIFFERENTIABLE
        for exclusive in (False, True)
    },
    "segments": lambda x, a: scanops.cumsum(
        x, 0, offsets=torch.tensor([0, len(x)]), initial=x[:1].detach(), return_final="segments"
    ),
    "complete": lambda x, a: scanops.linear_scan(a, x, 0, complete=True, initial=x[0].detach()),
    "fused": lambda x, a: scanops.scan((x, a), "sum", 0, map=lambda x, a: x * a, then=lambda y, x, a: (y, y, x)),
    "fused with carry": lambda x, a: scanops.scan(x, "sum", 0, map=lambda x: 2 * x, return_final=True),
    "operator of two tensors": lambda x, a: scanops.scan((a, x), PAIR, 0),
}


@pytest.mark.parametrize("kernels", [False, True], ids=["plain", "emulated"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", CALLS)
def test_each_result_has_memory_and_history_of_its_own(name: str, path: str, kernels: bool) -> None:
    """Nothing that happens to one, in place or by a hook, is seen by another one or by the input."""
    if path == "vmap" and name in ("segments", "fused with carry"):
        return  # carries of segments are batched one by one; a fused carry is for plain code
    # A kernel of either length; PyTorch's operators of both.
    lengths = (1, 33) if not kernels else (1,) if list(CALLS).index(name) % 2 else (33,)
    for length, wants in itertools.product(lengths, (False, True)):
        draw = random.Random(f"{name} {length}")
        x, a = (drawn(draw, (length, 2), torch.float32).abs() for _ in range(2))
        leaves = [each.clone().requires_grad_(wants and path != "vmap") for each in (x, a)]
        with scanops.emulate(seed=3) if kernels else contextlib.nullcontext():
            found = flat(PATHS[path](CALLS[name])(*leaves))
            assert disjoint([*leaves, *found])
            kept = [each.detach().clone() for each in found]
            for number, each in enumerate(found):
                each.detach().fill_(-7)
                others = [(one, other) for at, (one, other) in enumerate(zip(found, kept, strict=True)) if at > number]
                assert all(torch.equal(one, other) for one, other in others)
            assert torch.equal(leaves[0], x) and torch.equal(leaves[1], a)
            floats = [each for each in flat(PATHS[path](CALLS[name])(*leaves)) if each.requires_grad]
            seen: list[torch.Tensor] = []
            for each in floats:
                each.register_hook(seen.append)
            if floats:
                sum(each.sum() for each in floats).backward()  # type: ignore[union-attr]
                assert len(seen) == len(floats) and all(bool((each == 1).all()) for each in seen)


# ---- single cases


def test_products_of_large_items_keep_what_rounding_loses() -> None:
    """Splitting a factor of 2^128 / 4097 overflows."""
    for dtype, large in ((torch.float32, 1e36), (torch.float64, 1e305)):
        x = torch.tensor([large, 1e-3, 2.0], dtype=dtype)
        plain, kernel = by_both(lambda x=x: scanops.cumprod(x, 0, accumulate="compensated"))  # type: ignore[misc]
        assert torch.equal(plain[0], kernel[0])
        torch.testing.assert_close(plain[0], torch.cumprod(x.double(), 0).to(dtype))


@pytest.mark.parametrize("span", [1.0, 20.0, 60.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_of_logarithms_over_any_range(dtype: torch.dtype, span: float) -> None:
    """With items of -inf at the beginning of a line, all over another, and masked ones, in both directions."""
    x = torch.randn(4, 70, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * span
    x[0, :5], x[1], x[2, ::7] = -math.inf, -math.inf, -math.inf
    keep = torch.rand(4, 70, generator=torch.Generator().manual_seed(3)) < 0.8
    given = torch.randn(4, 70, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(dtype)
    for mask, reverse in itertools.product((None, keep), (False, True)):
        leaf = x.to(dtype).requires_grad_()
        y = scanops.logcumsumexp(leaf, 1, mask=mask, reverse=reverse)
        (found,) = torch.autograd.grad(y, leaf, given)
        terms = leaf.detach().double() if mask is None else leaf.detach().double().masked_fill(~mask, -math.inf)
        terms, weights = (each.flip(1) if reverse else each for each in (terms, given.double()))
        results = torch.logcumsumexp(terms, 1)
        shares = (terms[:, :, None] - results[:, None, :]).exp().nan_to_num(0)  # of item i in result j
        expected = (shares.triu() * weights[:, None, :]).sum(2)
        expected = expected.flip(1) if reverse else expected
        near = 1e-4 if dtype == torch.float32 else 1e-9
        torch.testing.assert_close(found.double(), expected, rtol=near, atol=near)
        torch.testing.assert_close(y.double(), results.flip(1) if reverse else results, rtol=near, atol=near)


def test_what_is_behind_minus_infinity_has_no_gradient() -> None:
    """The first and the second derivative of logcumsumexp are 0 there, also where the incoming gradient is 0."""

    def derivatives() -> list[torch.Tensor]:
        x = torch.tensor([-math.inf, -math.inf, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
        weights = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64, requires_grad=True)
        (first,) = torch.autograd.grad(scanops.logcumsumexp(x, 0), x, weights, create_graph=True)
        return [first.detach(), torch.autograd.grad(first.square().sum(), x)[0]]

    p = 1 / (1 + math.e)
    first = torch.tensor([0.0, 0.0, 1 + p, 1 - p], dtype=torch.float64)
    second = 2 * (first[2] - first[3]) * p * (1 - p) * torch.tensor([0.0, 0.0, 1, -1], dtype=torch.float64)
    for answer in by_both(derivatives):
        hold("logcumsumexp", answer, [first, second])


@pytest.mark.parametrize("op", ["max", "min", "prod", "logcumsumexp"])
def test_masks_of_integers_are_for_sums(op: str) -> None:
    x, mask = torch.tensor([[-3.0, -1.0, -2.0]]), torch.tensor([1, 0, 1])
    for answer in by_both(lambda: scanops.cumsum(x, 1, mask=mask)):
        assert answer[0].tolist() == [[-3, -3, -5]]
    for weights in (mask, mask.to(torch.uint8), mask[1]):
        for call in (
            lambda weights=weights: scanops.scan(x, op, 1, mask=weights),
            lambda weights=weights: scanops.scan(x, op, 1, mask=weights, chunk=2),
            lambda weights=weights: scanops.linear_scan(x, x, 1, mask=weights),
            lambda weights=weights: scanops.cummax(x, 1, mask=weights),
        ):
            for error in by_both(call):
                assert isinstance(error, scanops.errors.UnsupportedRequest) and "mask.bool()" in error.hint
                assert f"mask.dtype={weights.dtype}" in str(error).splitlines()[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64], ids=str)
def test_a_gate_may_be_a_number(dtype: torch.dtype) -> None:
    """It promotes as ``a * b`` does, and is not rounded to a half type."""
    x = torch.ones(2, 600, dtype=dtype)
    for number in (0.999, 1):
        wanted, expected = torch.zeros(2, dtype=torch.float64), []
        for item in x.double().unbind(1):
            wanted = number * wanted + item
            expected.append(wanted)
        expected_dtype = torch.result_type(x, number)
        for answer in by_both(lambda number=number: scanops.linear_scan(number, x, 1)):  # type: ignore[misc]
            hold(number, answer, [torch.stack(expected, 1).to(expected_dtype)], rtol=1e-5)
    torch.compiler.reset()  # code that all cases share may be compiled so many times
    compiled = torch.compile(lambda a, x: scanops.linear_scan(a, x, 1), backend="aot_eager", fullgraph=True)
    for number in (0.5, 0.25, 0.125):
        hold(number, flat(compiled(number, x)), flat(scanops.linear_scan(number, x, 1)))


DECAY, STEPS = 0.999, 600
DECAYED = sum(DECAY**n for n in range(STEPS))  # of ones; with a gate of 1, as 0.999 is in bfloat16, it is 600


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("given", [torch.float32, torch.float64], ids=str)
def test_tensors_of_no_dimension_act_in_the_accumulators_precision(dtype: torch.dtype, given: torch.dtype) -> None:
    """A result has the dtype of the tensors that have dimensions, and is rounded once."""
    x, decay = torch.ones(3, STEPS, dtype=dtype), torch.tensor(DECAY, dtype=given)
    wide = torch.float32 if dtype.itemsize < 4 else dtype
    precision = torch.finfo(torch.float32 if given == torch.float32 else wide).eps * 500
    compiled = torch.compile(lambda a, x: scanops.linear_scan(a, x, 1), backend="aot_eager", fullgraph=True)
    calls: dict[str, Callable[[], torch.Tensor]] = {
        "gate": lambda: scanops.linear_scan(decay, x, 1),
        "gate and values": lambda: scanops.linear_scan(x * 0 + 1, decay, 1) * 0 + scanops.linear_scan(decay, x, 1),
        "module": lambda: scanops.nn.LinearRecurrence(dim=1)(decay, x),
        "functions": lambda: scanops.scan((decay, x), "linear", 1, map=lambda a, x: (a, x)),
        "vmap over gates": lambda: torch.vmap(lambda a, x: scanops.linear_scan(a, x, 0))(decay.expand(3), x),
        "vmap over values": lambda: torch.vmap(lambda x: scanops.linear_scan(decay, x, 0))(x),
        "compiled": lambda: compiled(decay, x),
    }
    for name, call in calls.items():
        for (found,) in by_both(call):
            assert found.dtype == dtype, name
            error = (found.double() / DECAYED - 1).abs()[:, -1].max()
            assert error <= max(precision, torch.finfo(dtype).eps), name
    for (found,) in by_both(lambda: scanops.linear_scan(decay, x, 1, dtype=torch.float32)):
        assert (found[:, -1] / DECAYED - 1).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8], ids=str)
def test_weights_of_no_dimension_act_in_the_accumulators_precision(dtype: torch.dtype) -> None:
    weight = torch.tensor(1000 if dtype == torch.int8 else 1 / 3, dtype=torch.int64 if dtype == torch.int8 else None)
    weight = weight.double() if dtype == torch.float64 else weight
    x = torch.ones(2, 96, dtype=dtype)
    exact = torch.arange(1, 97).double() * weight.double()
    compiled = torch.compile(lambda x, m: scanops.cumsum(x, 1, mask=m, chunk=48), backend="aot_eager", fullgraph=True)
    result = torch.int64 if dtype == torch.int8 else dtype
    near = max(1e-6, torch.finfo(dtype).eps) if result == dtype else 0.0
    for call, expected in (
        (lambda: scanops.cumsum(x, 1, mask=weight), exact),
        (lambda: scanops.cumsum(x, 1, mask=weight, chunk=48), torch.cat([exact[:48], exact[:48]])),
        (lambda: compiled(x, weight), torch.cat([exact[:48], exact[:48]])),
        (lambda: torch.vmap(lambda x: scanops.cumsum(x, 0, mask=weight))(x), exact),
        (lambda: torch.vmap(lambda m: scanops.cumsum(x[0], 0, mask=m))(weight.expand(2)), exact),
    ):
        for answer in by_both(call):
            hold("sum", answer, [expected.to(result).repeat(2, 1)], rtol=near)


def test_values_of_no_dimension_are_not_rounded_to_the_half_type_of_gates() -> None:
    gates, value = torch.ones(64, dtype=torch.bfloat16), torch.tensor(1.001)
    for (found,) in by_both(lambda: scanops.linear_scan(gates, value, 0)):
        assert found.dtype == torch.bfloat16 and torch.equal(found, (torch.arange(1, 65) * 1.001).bfloat16())


def test_items_are_not_rounded_to_the_half_type_of_the_results() -> None:
    x, weight = torch.full((2, 64), 1.001), torch.full((2, 64), 1.002)
    for dtype in (torch.float16, torch.bfloat16):
        for (found,) in by_both(lambda dtype=dtype: scanops.cumsum(x, 1, dtype=dtype)):  # type: ignore[misc]
            assert torch.equal(found[0], (torch.arange(1, 65) * 1.001).to(dtype))
        for (found,) in by_both(lambda dtype=dtype: scanops.cumsum(x.to(dtype), 1, mask=weight, dtype=dtype)):  # type: ignore[misc]
            exact = torch.arange(1, 65) * x[0].to(dtype).double() * 1.002
            torch.testing.assert_close(found[0].double(), exact, rtol=torch.finfo(dtype).eps, atol=0)


def test_gradients_of_numbers_beside_half_types_are_not_rounded() -> None:
    """The gradients of a scale, of a gate and of weights in float32 beside bfloat16."""
    x = torch.ones(4, 300, dtype=torch.bfloat16, requires_grad=True)

    def gradients(dtype: torch.dtype) -> list[torch.Tensor]:
        scale, decay = (torch.tensor(each, dtype=dtype, requires_grad=True) for each in (1.001, DECAY))
        weights = torch.full((300,), 1.001, dtype=dtype, requires_grad=True)
        wide = x if dtype == torch.float32 else x.double()
        results = [
            *torch.autograd.grad(scanops.cumsum(wide, 1, mask=scale).sum(), (scale, x)),
            *torch.autograd.grad(scanops.linear_scan(decay, wide, 1).sum(), decay),
        ]
        y = scanops.cumsum(wide, 1, mask=weights, dtype=torch.bfloat16 if dtype == torch.float32 else None)
        return [*results, *torch.autograd.grad(y.sum(), weights)]

    expected = gradients(torch.float64)
    for found in by_both(lambda: tuple(gradients(torch.float32))):
        for one, other in zip(found, expected, strict=True):
            near = 1e-2 if one.dtype == torch.bfloat16 else 1e-4
            torch.testing.assert_close(one.double(), other.double(), rtol=near, atol=0)


def test_a_gate_that_is_no_number_of_the_dtype() -> None:
    for call, word in (
        (lambda: scanops.linear_scan(300, torch.ones(2, dtype=torch.int8), 0), "a=300"),
        (lambda: scanops.linear_scan("x", torch.ones(2), 0), "a='x'"),  # type: ignore[arg-type]
        (lambda: scanops.linear_scan(0.5, 2.0, 0), "b=2.0"),  # type: ignore[arg-type, call-overload]
    ):
        for error in by_both(call):
            assert isinstance(error, scanops.errors.UnsupportedRequest) and error.value == word
