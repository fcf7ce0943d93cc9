"""Expressions of ``map`` and ``then``: divisions, 8-bit floats, transforms, pickling, and texts that nobody traced."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import json
import math
import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.functional import hessian, jacobian

import scanops
from scanops.codegen.fusion.fusion import Fusion, fusion_of
from scanops.codegen.operators import find_operator
from scanops.codegen.source import generate
from scanops.codegen.spec import ScanSpec
from scanops.errors import ScanopsError, UnsupportedRequest
from scanops.fusion.functions import trace_fusion
from tests.requests.checks import refused
from tests.scripts import loaded

PLACES: tuple[Callable[[], Any], ...] = (contextlib.nullcontext, lambda: scanops.emulate(seed=5))


# ---- divisions

DIVISIONS: dict[str, Callable[..., Any]] = {
    "div": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "fmod": torch.fmod,
    "remainder": lambda x, y: x.remainder(y),
    "floor_divide": torch.floor_divide,
    "trunc": lambda x, y: (x * 0.5).trunc() + y.fix() * 0,
}
SPECIAL = (0.0, -0.0, 0.1, -0.1, 0.3, 1.0, -1.0, 2.3, -2.3, 3.0, 10.0, 1e-5, 65504.0, 1e30, -1e30, math.inf, -math.inf)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", DIVISIONS)
def test_divisions_are_torchs(name: str, dtype: torch.dtype) -> None:
    """Values to the bit, zeros with their signs, of all pairs of special values and of random ones; gradients too."""
    pairs = torch.tensor([*itertools.product((*SPECIAL, math.nan), repeat=2)], dtype=torch.float64)
    drawn = torch.randn(500, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64).exp()
    x, y = torch.cat([pairs, drawn * 50 - 25]).to(dtype).unbind(1)
    function = DIVISIONS[name]
    wanted = function(x, y)
    if dtype.itemsize == 2 and name != "trunc":  # computed in float32 and rounded once
        wanted = function(x.float(), y.float()).to(dtype)
    for place in PLACES:
        with place():
            found = scanops.scan((x, y), "max", 0, then=lambda s, x, y: function(x, y))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        known = wanted == 0
        assert torch.equal(found[known].signbit(), wanted[known].signbit())
    if dtype == torch.float64:
        x, y = (each[len(pairs) :].clone().requires_grad_() for each in (x, y))
        of = DIVISIONS["div"] if name in ("//", "floor_divide") else function  # torch differentiates div alone
        of_torch = torch.autograd.grad(of(x, y).cumsum(0).sin().sum(), (x, y), allow_unused=True)
        for place in PLACES:
            with place():
                total = scanops.scan((x, y), "sum", 0, map=function).sin().sum()
                found_gradients = torch.autograd.grad(total, (x, y), allow_unused=True)
            for one, other in zip(found_gradients, of_torch, strict=True):
                other = torch.zeros_like(x) if other is None else other
                torch.testing.assert_close(torch.zeros_like(x) if one is None else one, other)


def test_divisions_of_integers_are_refused() -> None:
    """A division by 0 ends a program on a CPU, and gives any number on a GPU."""
    x = torch.tensor([7, -7, 0])
    for name in ("div", "//", "%", "fmod", "remainder", "floor_divide", "div trunc"):
        for place in PLACES:
            with place():
                refused(UnsupportedRequest, lambda n=name: scanops.scan((x, x), "sum", 0, map=DIVISIONS[n]))
    assert scanops.scan(x, "sum", 0, map=lambda x: x.trunc() + x.floor()).tolist() == [14, 0, 0]


# ---- 8-bit floats


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_results_of_8_bit_floats_are_float32(dtype: str) -> None:
    """On both paths alike; a conversion to them is refused."""
    x = torch.tensor([1.0, 2.0, 0.5]).to(getattr(torch, dtype))
    largest = scanops.operator(
        fields=("v",), combine=lambda a, b: (torch.maximum(a.v, b.v),), identity=float("-inf"), lift=lambda x: x
    )
    both = scanops.operator(fields=("v", "w"), combine=lambda a, b: (a.v + b.v, b.w), identity=0)
    for place in PLACES:
        with place():
            for found, wanted in (
                (scanops.scan((x,), largest, 0), [1.0, 2.0, 2.0]),
                (scanops.scan((x, x), both, 0)[1], [1.0, 2.0, 0.5]),
                (scanops.scan((x,), "sum", 0, then=lambda y, x: x), [1.0, 2.0, 0.5]),
                (scanops.scan((x,), "sum", 0, map=lambda x: x), [1.0, 3.0, 3.5]),
            ):
                assert found.dtype == torch.float32 and found.tolist() == wanted
            for call in (
                lambda: scanops.scan((x,), "sum", 0, map=lambda x: x.float().to(getattr(torch, dtype))),
                lambda: scanops.scan((x,), "sum", 0, map=lambda x: x, dtype=getattr(torch, dtype)),
            ):
                refused(UnsupportedRequest, call)


# ---- transforms

EXAMPLES = loaded("docs/examples/fields.py")
MEAN = scanops.operator(
    fields=("weight", "total"),
    lift=lambda x: (x * x + 1, x),
    project=lambda state: state.total / state.weight,
    combine=lambda older, newer: (older.weight + newer.weight, older.total + newer.total),
)
FILTER = scanops.operator(fields=("h", "g"), step=lambda s, x: (0.5 * s.h + 0.25 * s.g + x, s.h * x))
SCANS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "map": lambda v: scanops.scan((v,), "sum", 0, map=lambda x: x * x),
    "then": lambda v: scanops.scan((v,), "prod", 0, map=lambda x: x.sin() + 1, then=lambda y, x: (y * x).tanh()),
    "linear": lambda v: scanops.scan((v, v), "linear", 0, map=lambda x, y: (x.sigmoid(), x * y)),
    "fields": lambda v: scanops.scan((v,), MEAN, 0),
    "step": lambda v: scanops.scan((v,), FILTER, 0)[0],
    "phase": lambda v: scanops.scan(v, EXAMPLES.phase, 0) * v,
    "carry": lambda v: scanops.scan((v, v[:1]), "sum", 0, map=lambda x, y: x * y, initial=v[0] * 2),
}


@pytest.mark.parametrize("name", SCANS)
def test_transforms(name: str) -> None:
    """Batched gradients, Jacobians and Hessians, vectorised or not, and torch.func on both paths."""
    f, x = SCANS[name], torch.tensor([0.5, 1.0, 1.5, 0.3], dtype=torch.float64)
    total = lambda v: f(v).sin().sum()  # noqa: E731
    of_first, of_second = jacobian(f, x), hessian(total, x)
    v, rows = x.clone().requires_grad_(), torch.eye(4, dtype=x.dtype)
    batch = torch.stack([x, x * 0.7, x + 0.1])
    for place in PLACES:
        with place():
            for found in (
                jacobian(f, x),
                jacobian(f, x, vectorize=True),
                torch.func.jacrev(f)(x),
                torch.func.jacfwd(f)(x),
                torch.func.vmap(torch.func.jacrev(f))(batch)[0],
                torch.autograd.grad(f(v), v, rows, is_grads_batched=True)[0],
            ):
                torch.testing.assert_close(found, of_first)
            for found in (hessian(total, x), hessian(total, x, vectorize=True), torch.func.hessian(total)(x)):
                torch.testing.assert_close(found, of_second)
            torch.testing.assert_close(torch.func.vmap(f)(batch), torch.stack([f(row) for row in batch]))


# ---- copies


def lift(x: Any, w: Any) -> Any:
    """The state of an item."""
    return w, w * x


def combine(older: Any, newer: Any) -> Any:
    """The state of two ranges."""
    return older.weight + newer.weight, older.total + newer.total


def project(state: Any) -> Any:
    """The result."""
    return state.total / state.weight


class Mean(torch.nn.Module):
    """A module that holds an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.op = scanops.operator(
            fields={"weight": None, "total": torch.float64}, lift=lift, combine=combine, project=project, identity=0
        )

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """The weighted mean of the items so far."""
        return scanops.scan((x, w), self.op, 1)  # type: ignore[no-any-return]


def test_operators_are_pickled_by_their_functions() -> None:
    module, x, w = Mean(), torch.rand(2, 9, dtype=torch.float64), torch.rand(2, 9, dtype=torch.float64)
    wanted, file = (x * w).cumsum(1) / w.cumsum(1), io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for again in (
        module,
        pickle.loads(pickle.dumps(module)),
        copy.deepcopy(module),
        copy.copy(module),
        torch.load(file, weights_only=False),
    ):
        for place in PLACES:
            with place():
                torch.testing.assert_close(again(x, w), wanted)
        assert again.op.functions == module.op.functions and again.op.trace_signature == module.op.trace_signature
    copied = copy.deepcopy(scanops.operator(fields=("a",), combine=lambda older, newer: older.a + newer.a))
    torch.testing.assert_close(scanops.scan(x, copied, 1), x.cumsum(1))
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(copied)


def test_spawned_workers_load_operators() -> None:
    x, w = torch.ones(1, 3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    context = torch.multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply(Mean(), (x, w)).tolist() == [[1, 1, 1]]


# ---- texts

KINDS = ((torch.float32, False), (torch.bfloat16, False), (torch.int64, False))
TEXTS = [
    trace_fusion(
        lambda x, y, n: x * y + n,
        lambda s, x, y, n: (s.half(), torch.where(n > 3, x // 2, -1.5)),
        *(find_operator("sum"), KINDS, False, None),
    ).text,
    trace_fusion(lambda x, y, n: (x.sigmoid(), y.exp()), None, find_operator("linear"), KINDS, False, None).text,
    trace_fusion(None, lambda s, x: s, MEAN, KINDS[:1], False, None).text,
    trace_fusion(None, None, FILTER, KINDS[:1], False, None).text,
]
SUMMED = json.dumps(
    [
        [
            ["operand", "float32", 0],
            ["operand", "float32", 1],
            ["result", "float32", 0],
            ["mul", "float32", 2, 1],
            ["sum", "float32", 3],
            ["sigmoid", "float32", 0],
            ["mul", "float32", 4, 5],
        ],
        [["float32", "dense", None], ["bfloat16", "dense", None]],
        [1, 0],
        "float32",
        [[6, "float32"]],
        *([[]] * 3),
    ]
)
TEXTS.append(SUMMED)
HOSTILE: tuple[Any, ...] = (None, True, -1, 0, 1, 3, 7, 99, 2**70, 1.5, math.nan, -math.inf, "", "x", "float32", "bool")
HOSTILE += ("int8", "complex64", "float8_e5m2", "operand", "result", "older", "number", "cast", "round", "where", "exp")
HOSTILE += ("line", "a; }", [], [[]], {}, ["operand", "float32", 0], [0, "float32"], "value", "own0", "class")


def mutated(value: Any, draw: random.Random) -> Any:
    """A copy with one place changed: replaced, removed, repeated or exchanged with another."""
    whole = copy.deepcopy(value)
    at = whole
    while isinstance(at, list) and at:
        place = draw.randrange(len(at))
        if isinstance(at[place], list) and at[place] and draw.random() < 0.8:
            at = at[place]
            continue
        change = draw.randrange(5)
        if change == 0:
            del at[place]
        elif change == 1:
            at.insert(place, copy.deepcopy(at[place]))
        elif change == 2:
            other = draw.randrange(len(at))
            at[place], at[other] = at[other], at[place]
        else:
            at[place] = copy.deepcopy(draw.choice(HOSTILE))
        break
    return whole


@pytest.mark.parametrize("at", range(len(TEXTS)))
def test_hostile_texts(at: int) -> None:
    """Of 400 mutations each is refused with a typed error or is a text that C++ is made of; none raises another."""
    draw, refusals = random.Random(at), 0
    for _ in range(400):
        parts = json.loads(TEXTS[at])
        for _ in range(draw.randint(1, 3)):
            parts = mutated(parts, draw)
        text = json.dumps(parts)
        try:
            fusion = fusion_of(text)
            assert fusion_of(fusion.text).text == fusion.text
            for op in ("sum", "linear", "expressions"):
                spec = ScanSpec(
                    op=op, dtype=fusion.operands[0].dtype, length=64, map=text, out_dtype=fusion.outputs[0].dtype
                )
                assert "mapped(" in generate(spec)
        except ScanopsError:
            refusals += 1
    assert refusals > 200


def test_texts_that_are_no_lists() -> None:
    long = '["add",' * 3
    texts: list[Any] = [
        "",
        "[]",
        "{}",
        "null",
        "[" * 100_000,
        "9" * 5000,
        '"' * 3,
        "[NaN]",
        long,
        "[" + "0," * 7 + "0]",
    ]
    for text in (*texts, TEXTS[0] + " " * 2**21, TEXTS[0][:-1], TEXTS[0].replace("0", "9" * 400), 7, b"[]"):
        error = refused(UnsupportedRequest, lambda text=text: fusion_of(text))
        assert "map" in str(error).splitlines()[0]
    assert Fusion.of_text(TEXTS[0]).text == TEXTS[0]


def test_sums_over_lines() -> None:
    """They are in outputs alone, none within another, and no output beside one reads the result of one line."""
    fusion = fusion_of(SUMMED)
    assert [fusion.nodes[at] for at in fusion.sums] == [("sum", "float32", 3)]
    assert {fusion.nodes[at][0] for at in fusion.above} == {"sum", "sigmoid", "operand", "mul"}
    nodes, *others = json.loads(SUMMED)
    *_, last = nodes
    for changed, what in (
        ([*nodes[:4], ["sum", "float32", 3], ["sum", "float32", 4], last], "within another"),
        ([*nodes[:5], ["sigmoid", "float32", 2], last], "reads the result"),
        ([*nodes[:4], ["sum", "int32", 3], *nodes[5:]], "arguments"),
        ([nodes[0], ["sum", "float32", 0], *nodes[2:]], "scanned"),
    ):
        text = json.dumps([changed, *others])
        error = refused(UnsupportedRequest, lambda text=text: fusion_of(text))
        assert what in str(error).splitlines()[0]


def test_a_text_of_another_scan_is_refused() -> None:
    for text in TEXTS:
        fusion = fusion_of(text)
        wrong = {"op": "prod" if fusion.fields else "expressions", "dtype": "float64", "out_dtype": "bool"}
        given = {
            "op": "expressions" if fusion.fields else "linear" if len(fusion.elements) > 1 else "sum",
            "dtype": fusion.operands[0].dtype,
            "out_dtype": fusion.outputs[0].dtype,
            "length": 64,
        }
        if fusion.sums:
            continue
        assert "mapped(" in generate(ScanSpec(**given, map=text))
        for name, value in wrong.items():
            refused(UnsupportedRequest, lambda n=name, v=value, g=given, t=text: ScanSpec(**{**g, n: v}, map=t))
