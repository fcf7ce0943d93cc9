"""Operators of several tensors and fields, by emulated kernels and by PyTorch, against float64 loops over the items."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import scanops
from scanops.errors import UnsupportedRequest
from scanops.fusion.operators import FieldOperator
from tests.requests.checks import refused
from tests.scripts import loaded

EXAMPLES = loaded("docs/examples/fields.py")
SHAPES = ((3, 1), (33, 2), (2, 31), (2, 129), (2, 33, 5), (1, 301, 40))
NAMES = ("matrices", "quaternions", "log_product", "farthest", "filter", "filtered", "phase")
LONG = (("matrices", (2, 4097)), ("filter", (1, 9001)), ("filtered", (1, 2100, 8)), ("farthest", (1, 9001)))


def expected(op: FieldOperator, tensors: Any, dim: int, mask: Any, reverse: bool, exclusive: bool) -> Any:
    """The results item by item: the functions of the operator are called with tensors of one item of each line."""
    state, project = op._state, op.project or (lambda state: tuple(state))
    shape = torch.broadcast_shapes(*(each.shape for each in tensors))
    lines = list(zip(*(each.expand(shape).unbind(dim) for each in tensors), strict=True))
    keep = [torch.tensor(True)] * len(lines) if mask is None else mask.unbind(dim)
    s = state(*(torch.full_like(lines[0][0], number) for number in op.start))
    found = []
    for at in reversed(range(len(lines))) if reverse else range(len(lines)):
        if op.step is not None:
            after = op.step(s, *lines[at])
        else:
            lifted = op.lift(*lines[at]) if op.lift else lines[at]
            lifted = (lifted,) if isinstance(lifted, torch.Tensor) else lifted
            after = op.combine(s, state(**lifted) if isinstance(lifted, dict) else state(*lifted))
        after = after if isinstance(after, tuple | list) else (after,)
        after = state(*(torch.where(keep[at], one, other) for one, other in zip(after, s, strict=True)))
        made = project(s if exclusive else after)
        found.append(made if isinstance(made, tuple) else (made,))
        s = after
    return tuple(torch.stack(each[:: -1 if reverse else 1], dim) for each in zip(*found, strict=True))


def drawn(name: str, shape: tuple[int, ...], generator: torch.Generator) -> list[torch.Tensor]:
    """Tensors of which long scans stay in range: of rotations, of stable filters, of factors near 1."""
    items = [torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(4)]
    if name == "matrices":
        return [items[0].cos(), -items[0].sin(), items[0].sin(), items[0].cos()]
    if name == "quaternions":
        size = sum(each * each for each in items).sqrt()
        return [each / size for each in items]
    if name == "phase":
        return [items[0] * 5 - 2.5]
    if name == "log_product":
        return [(items[0] - 0.3) * 1.8]
    if name == "filtered":
        return [items[0] - 0.5, -1.2 + 0.3 * items[1][..., :1], 0.5 + 0.3 * items[2]]
    return [items[0] - 0.5, items[1] * 9][: 1 + (name != "filter")]


# Each operator with every other shape.
@pytest.mark.parametrize(
    ("name", "shape"),
    [*((name, SHAPES[at]) for number, name in enumerate(NAMES) for at in range(number % 2, len(SHAPES), 2)), *LONG],
    ids=str,
)
def test_values_and_gradients(name: str, shape: tuple[int, ...]) -> None:
    """Masks, directions and dtypes alternate; gradients are those of the loop, second ones those of PyTorch."""
    turn = len(name) + sum(shape)
    generator = torch.Generator().manual_seed(turn)
    op, dtype = getattr(EXAMPLES, name), (torch.float64, torch.float32)[turn % 2]
    mask = torch.rand(shape, generator=generator) < 0.8 if turn % 3 == 0 else None
    options: Any = {"mask": mask, "reverse": turn % 4 > 1, "exclusive": turn % 5 > 2}
    tensors = [each.to(dtype).requires_grad_() for each in drawn(name, shape, generator)]
    wide = [each.detach().double().requires_grad_() for each in tensors]
    wanted, found = expected(op, wide, 1, **options), []
    weights = [torch.rand(each.shape, generator=generator, dtype=torch.float64) for each in wanted]
    small = max(shape) < 200
    for emulated in (True, False):
        with scanops.emulate(seed=turn) if emulated else torch.enable_grad():
            y = scanops.scan(tensors, op, 1, **options)
            y = y if isinstance(y, tuple) else (y,)
            assert all(each.dtype == (torch.float64 if name == "phase" else dtype) for each in y)
            loss = sum((each * w).sum() for each, w in zip(y, weights, strict=True))
            first = torch.autograd.grad(loss, tensors, create_graph=small, materialize_grads=True)
            total = sum(each.square().sum() for each in first) + sum(each.sum() for each in tensors)
            again = torch.autograd.grad(total, tensors, materialize_grads=True) if small else ()
            found.append((*y, *first, *again))
    loss = sum((each * w).sum() for each, w in zip((*wanted, *wide), (*weights, *[0] * len(wide)), strict=True))
    exact = torch.autograd.grad(loss, wide, materialize_grads=True)
    for one, other in [*zip(found[0], (*wanted, *exact), strict=False), *zip(*found, strict=True)]:
        scale = max(1.0, float(other.detach().abs().max())) * (1 if dtype == torch.float64 else 1e5)
        torch.testing.assert_close(one.double() / scale, other.double() / scale, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_lawful(name: str) -> None:
    """check_operator finds nothing in the examples."""
    report = scanops.check_operator(getattr(EXAMPLES, name), lengths=(6, 127, 601))
    assert report.ok and report.laws == 7200 and report.items > 1000, str(report)


def made(**options: Any) -> FieldOperator:
    """An operator of two fields that differs in some arguments."""
    first: dict[str, Any] = {"fields": ("a", "b"), "combine": lambda older, newer: (older.a + newer.a, newer.b)}
    return scanops.operator(**{**first, "identity": 0, **options})


SUMS = lambda older, newer: (older.a + newer.a, older.b + newer.b)  # noqa: E731
NOT_NEUTRAL = {
    "maximum": ({"a": None, "b": None}, lambda o, n: (torch.maximum(o.a, n.a), o.b + n.b), None),
    "product": (("a", "b"), lambda o, n: (o.a * n.a, o.b + n.b), None),
    "newest": (("a", "b"), lambda o, n: {"a": o.a + n.a, "b": n.b}, None),
    "of what lift makes": (("a", "b"), lambda o, n: (torch.minimum(o.a, n.a), o.b + n.b), lambda x, y: (x.abs(), y)),
    "integers": ({"a": torch.int64, "b": torch.int64}, lambda o, n: (o.a & n.a, o.b | n.b), None),
}


@pytest.mark.parametrize("name", NOT_NEUTRAL)
def test_an_identity_that_is_needed(name: str) -> None:
    """Kernels start from it: of a maximum of negative numbers they would give 0."""
    fields, combine, lift = NOT_NEUTRAL[name]
    with pytest.raises(UnsupportedRequest, match="no identity, and 0 is not neutral: combine"):
        scanops.operator(fields=fields, combine=combine, lift=lift)  # type: ignore[arg-type]
    assert scanops.operator(fields=fields, combine=combine, lift=lift, identity=0).start == (0, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [("a", "b"), {"a": torch.int64, "b": torch.bool}, {"a": torch.int32, "b": None}])
def test_an_identity_that_is_left_out(fields: Any) -> None:
    combine = SUMS if isinstance(fields, tuple) else lambda older, newer: (older.a + newer.a, older.b | newer.b)
    assert scanops.operator(fields=fields, combine=combine).start == (0, 0)


def test_wrong_laws_are_found() -> None:
    for options, law in (
        ({"combine": lambda older, newer: (older.a - newer.a, newer.b)}, "identity on the left"),
        ({"combine": lambda older, newer: (older.a + newer.a, newer.b)}, "identity on the right"),
        (
            {
                "fields": ("a",),
                "combine": lambda older, newer: torch.maximum(older.a, newer.a) + older.a * newer.a * 0.5,
                "identity": 0,
                "lift": lambda x: x.abs(),
            },
            "associativity",
        ),
    ):
        findings = scanops.check_operator(made(**options), lengths=()).findings
        assert [each.law for each in findings] == [law], findings


X = torch.ones(2, 5)
WRONG: dict[str, Any] = {
    "operator: invalid fields": lambda: made(fields=("a", "a")),
    "operator: invalid fields: got fields=torch.int8": lambda: made(fields={"a": torch.int8, "b": None}),
    "operator: invalid functions": lambda: made(combine=None),
    "operator: invalid combine": lambda: made(combine=3),
    "operator: invalid identity": lambda: made(identity=(1, 2, 3)),
    "operator: invalid start": lambda: made(combine=None, step=lambda h, x: (x, x), start={"a": 1}),
    "lift must give 2 values, for the fields a, b: got 1 values": lambda: scanops.scan(X, made(), 1),
    "combine must give values for a, b: got a, c values": lambda: scanops.scan(
        (X, X), made(combine=lambda older, newer: {"a": newer.a, "c": newer.b}), 1
    ),
    "line": lambda: scanops.scan((X, X), made(combine=lambda older, newer: (torch.fft.fft(newer.a), newer.b)), 1),
    "a branch that depends on values": lambda: scanops.scan(
        (X, X), made(combine=lambda older, newer: newer if newer.a > 0 else older), 1
    ),
    "combine gives torch.float32 for the field 'a', which is torch.int64": lambda: scanops.scan(
        (X.int(), X), made(fields={"a": torch.int64, "b": None}, combine=lambda o, n: (o.b, n.b)), 1
    ),
    "step is not linear in the state: mul of it": lambda: scanops.scan(
        X, made(combine=None, step=lambda h, x: (h.a * h.b, x)), 1
    ),
    "project must give 1 to 4 values: got 5 values": lambda: scanops.scan(
        (X, X), made(project=lambda state: (state.a,) * 5), 1
    ),
    "invalid step": lambda: scanops.scan(X.int(), made(combine=None, step=lambda h, x: (h.b, x)), 1),
    "does not hold the identity of the field 'a': got -inf": lambda: scanops.scan(
        (X.int(), X.int()), made(identity=-math.inf), 1
    ),
    "initial does not go with": lambda: scanops.scan((X, X), made(), 1, initial=1.0),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_is_named(words: str) -> None:
    assert words in str(refused(UnsupportedRequest, WRONG[words]))


def test_dtypes_and_followed_calls() -> None:
    """Half types keep their dtype; integers and bool have fields of their own; compiled, batched and nested calls."""
    last = scanops.operator(
        fields={"at": torch.int64, "some": torch.bool, "value": None},
        identity=(-1, 0, 0),
        name="last",
        combine=lambda older, newer: {
            "at": torch.where(newer.some, newer.at, older.at),
            "some": older.some | newer.some,
            "value": torch.where(newer.some, newer.value, older.value),
        },
    )
    x = torch.tensor([[0.5, -1.0, 0.25, 0.0]], dtype=torch.bfloat16)
    for place in (scanops.emulate(), torch.enable_grad()):
        with place:
            at, some, value = scanops.scan((torch.arange(4, dtype=torch.int16), x > 0, x), last, 1)
            assert (at.dtype, some.dtype, value.dtype) == (torch.int64, torch.bool, torch.bfloat16)
            assert at.tolist() == [[0, 0, 2, 2]] and some.all() and value.tolist() == [[0.5, 0.5, 0.25, 0.25]]
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))
    one = lambda x: scanops.scan(x, EXAMPLES.filter, -1)  # noqa: E731
    wanted = one(x)
    assert torch.equal(torch.compile(one, fullgraph=True, backend="aot_eager")(x), wanted)
    assert torch.equal(torch.vmap(one)(x), wanted)
    torch.testing.assert_close(torch.func.jvp(one, (x,), (x,))[1], wanted)
    started = scanops.operator(fields=("h",), step=lambda h, x: (0.5 * h.h + x,), start=8)
    assert scanops.scan(torch.zeros(3), started, 0).tolist() == [4, 2, 1]
    assert scanops.scan(torch.zeros(3), started, 0, exclusive=True, then=lambda h, x: h + 1).tolist() == [9, 5, 3]


def test_a_phase_has_one_rounding() -> None:
    """10^6 items against integers: exact at any length; the gradient is that of the sum."""
    generator = torch.Generator().manual_seed(3)
    whole = torch.randint(-(2**24), 2**24, (10**6,), generator=generator)
    for place in (scanops.emulate(), torch.enable_grad()):
        with place:
            found = scanops.scan((whole * 2.0**-20).float(), EXAMPLES.phase, 0)
            assert found.dtype == torch.float64 and torch.equal(found, whole.cumsum(0).remainder(2**20) * 2.0**-20)
            x = (torch.randn(2, 700, generator=generator) * 5).requires_grad_()
            y = scanops.scan(x, EXAMPLES.phase, 1, exclusive=True)
            (gradient,) = torch.autograd.grad((y * y.detach()).sum(), x)
            (exact,) = torch.autograd.grad((scanops.cumsum(x.double(), 1, exclusive=True) * y.detach()).sum(), x)
            torch.testing.assert_close(gradient, exact)
