"""User-defined operators, the examples of docs/ among them: values, indices, transforms and gradients."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import itertools
import math
from typing import Any

import pytest
import torch

import scanops
from scanops.codegen.operators import BUILT_IN
from scanops.errors import UnsupportedRequest
from tests.numbers.oracle import CASES
from tests.requests.checks import refused
from tests.scripts import loaded

FINITE = (0.0, 1.0, -1.0, 0.5, 2.0)
FLAGS = list(itertools.product((False, True), (False, True)))


def example(name: str) -> scanops.Operator:
    """The operator that docs/examples/<name>.py defines."""
    found = getattr(loaded(f"docs/examples/{name}.py"), name)
    assert isinstance(found, scanops.Operator)
    return found


CONTINUANT, LAST_VALID, ARGMAX = (example(name) for name in ("continuant", "last_valid", "argmax"))


def changed(operator: scanops.Operator, **fields: Any) -> scanops.Operator:
    """A copy of ``operator`` that differs in these fields and in its name."""
    return dataclasses.replace(operator, **{"name": f"{operator.name}_changed", **fields})


def test_a_start_that_float32_does_not_hold(device: str) -> None:
    """``start=0.1`` is exact in a float64 scan, in kernels and in the fallback."""
    floored = dataclasses.replace(
        BUILT_IN["max"], name="floored_max", lift=("x > 0.1 ? x : 0.1",), identity=("0.1",), kinds=("float",), start=0.1
    )
    x = torch.tensor([0.0, 0.3, 0.2], dtype=torch.float64, device=device)
    assert scanops.scan(x, floored, 0).tolist() == [0.1, 0.3, 0.3]
    assert torch.func.vmap(lambda x: scanops.scan(x, floored, 0, exclusive=True))(x[None]).tolist() == [[0.1, 0.1, 0.3]]


LAST_NONZERO = changed(
    LAST_VALID,
    name="last_nonzero",
    lift=("x", "x != 0 ? 1 : 0"),
    combine=("newer.valid != 0 ? newer.value : older.value", "newer.valid != 0 ? newer.valid : older.valid"),
    identity=("0", "0"),
    kinds=("complex",),
    start=0,
    step=lambda h, x: torch.where(x != 0, x, h),
)


AGREE = [
    *(
        (LAST_VALID, torch.float32, name)
        for name in ("lanes", "staged", "one_tile_odd", "wave_odd", "panels_odd", "split")
    ),
    *((ARGMAX, dtype, "staged_pieces") for dtype in (torch.float32, torch.bfloat16, torch.int16)),
    *((CONTINUANT, dtype, "short_columns") for dtype in (torch.float16, torch.float64, torch.int32, torch.uint8)),
    *((row, dtype, "lanes") for row in (CONTINUANT, LAST_NONZERO) for dtype in (torch.complex64, torch.complex128)),
]


@pytest.mark.parametrize(("operator", "dtype", "name"), AGREE, ids=lambda each: getattr(each, "name", str(each)))
def test_kernels_equal_the_reference(operator: scanops.Operator, dtype: torch.dtype, name: str, device: str) -> None:
    """Bit for bit what ``step`` gives item by item, which needs no kernel; masks and directions alternate."""
    case, turn = CASES[name], len(name) + dtype.itemsize.bit_length()
    choices = (1, -1, 1j, -1j, 0) if dtype.is_complex else (0, 1, 2, 0.5) if operator == ARGMAX else (0, 1, 0, 2)
    generator = torch.Generator().manual_seed(4)
    x = torch.tensor(choices).to(dtype)[torch.randint(len(choices), case.shape, generator=generator)]
    if operator == LAST_VALID:
        x[torch.rand(case.shape, generator=generator) < 0.7] = math.nan
    mask = (None, torch.rand(case.shape, generator=generator) < 0.6)[turn % 2]
    reverse, exclusive = FLAGS[turn % 4]
    scan = functools.partial(scanops.scan, op=operator, dim=case.dim, reverse=reverse, exclusive=exclusive)
    wanted = contextvars.Context().run(scan, x, mask=mask)  # outside scanops.emulate()
    found = scan(x.to(device), mask=mask if mask is None else mask.to(device)).cpu()
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    if dtype.is_complex:
        spec = scanops.ScanSpec(op=scanops.register_operator(operator).name, dtype=str(dtype), length=20)
        assert "(Value)(" not in scanops.generate(spec), "C++17 does not cast a number to a struct"


def test_vmap_compile_and_gradients() -> None:
    """torch.func, torch.compile and autograd trace the operator's step."""
    x = torch.tensor([[2.0, math.nan, 3.0, math.nan]] * 2, dtype=torch.float64)
    wanted = scanops.scan(x, LAST_VALID, 1)
    assert torch.equal(torch.func.vmap(lambda row: scanops.scan(row, LAST_VALID, 0))(x), wanted)
    compiled = torch.compile(lambda x: scanops.scan(x, LAST_VALID, 1), fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), wanted)
    y = torch.rand(3, 5, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([True, False, True, True, True])
    for reverse, exclusive in FLAGS:
        options = {"mask": mask, "reverse": reverse, "exclusive": exclusive}
        assert torch.autograd.gradcheck(lambda y, options=options: scanops.scan(y, CONTINUANT, 1, **options), y)


# ---- states that hold an index

GREAT = 2**25  # elements of a line in which float32 does not hold every index


def registered(row: scanops.Operator, **fields: Any) -> scanops.Operator:
    """A registered row that differs from ``row`` in these fields; its name is replaced, too."""
    name = f"{row.name}_{abs(hash(repr(sorted(fields.items())))) % 10**9}"
    return scanops.register_operator(changed(row, name=name, **fields))


def test_an_index_as_a_carry_out_and_in_int32(device: str) -> None:
    x = torch.tensor([[0.25, 0.5, 0.75, 0.5, 0.9, 0.1]], requires_grad=True)
    scan = functools.partial(scanops.scan, op=ARGMAX, dim=1, return_final=True, dtype=torch.int32)
    for y, final in (scan(x.to(device)), contextvars.Context().run(scan, x)):
        assert y.dtype == final.dtype == torch.int32 and not y.requires_grad
        assert (y.tolist(), final.tolist()) == ([[0, 1, 2, 2, 4, 4]], [4])


@pytest.mark.parametrize("kind", ["index", "int32", "int64", "float64"])
def test_fields_of_each_type(kind: str) -> None:
    """A field has the type it is declared with: an index beyond 2^24, added to each, survives every strategy's scan."""
    base = 2**24
    far = registered(
        ARGMAX,
        types=("value", kind),
        lift=("x", f"i + {base}"),
        project=f"state.index < 0 ? -1 : (int)(state.index) - {base}",
    )
    x = torch.tensor([[0.25, 0.5, 0.75, 0.5, 0.9, 0.1] * 17])
    wanted = [[max(range(i + 1), key=lambda j: (row[j], -j)) for i in range(len(row))] for row in x.tolist()]
    with scanops.emulate():
        assert scanops.scan(x, far, 1).tolist() == wanted
        assert scanops.scan(x.t().contiguous(), far, 0).t().tolist() == wanted


def test_a_single_field_with_a_type() -> None:
    """A state of one typed field is a struct, whose member is named: it is not of the elements' type."""
    last = scanops.Operator(
        name="last_positive",
        formula="y[i] = the last j <= i with x[j] > 0, else -1",
        fields=("index",),
        types=("index",),
        lift=("x > 0 ? i : -1",),
        combine=("newer.index >= 0 ? newer : older",),
        identity=("-1",),
        project="state.index",
        gives="index",
        kinds=("float",),
        commutative=False,
        start=-1,
        step=lambda h, x, i: torch.where(x > 0, i, h),
    )
    x = torch.tensor([[-1.0, 0.5, -1.0, -2.0, 0.25, 0.0]])
    with scanops.emulate():
        assert scanops.scan(x, last, 1).tolist() == [[-1, 1, 1, 1, 4, 4]] == scanops.scan(x, last, 1).tolist()
    refused(UnsupportedRequest, lambda: dataclasses.replace(last, project="state"), "project='state'")


def test_an_integer_output_does_not_truncate_elements() -> None:
    """Without gives="index" an integer output dtype would convert 0.25 and 0.5 to 0 before they are compared."""
    wrong = registered(ARGMAX, gives="kept", kinds=("int", "float"))
    message = refused(UnsupportedRequest, lambda: scanops.scan(torch.rand(2, 9), wrong, 1, dtype=torch.int64), "int64")
    assert "gives='index'" in str(message) and "float32" in str(message).splitlines()[0]
    integers = torch.randint(9, (2, 9), generator=torch.Generator().manual_seed(2))
    found = scanops.scan(integers, wrong, 1)
    assert torch.equal(found, scanops.scan(integers, ARGMAX, 1)), "integers are converted to int64 without loss"


Options = dict[str, Any]
LOOSE: Options = {"types": (), "gives": "kept", "kinds": ("float",)}
# A row -> its fields; legal specs; specs with a field, or a result, whose dtype does not hold every index; what to do
INDICES: dict[str, tuple[Options, list[Options], list[Options], str]] = {
    **{
        text: (
            {**LOOSE, "lift": ("x", text)},
            [{"length": 2**24}, {"dtype": "float64", "length": GREAT}],
            [{"length": GREAT}, {"length": None}],
            "types=('value', 'index')",
        )
        for text in ("i", "(Value)i", "x != 0 ? (float)i : -1", "x == 0 ? -1 : (i)", "static_cast<Value>(i)")
    },
    "results of floats": (
        {"gives": "kept", "kinds": ("float",)},
        [{"length": 2**24}],
        [{"length": GREAT}, {"dtype": "bfloat16", "length": 1000}],
        "gives='index'",
    ),
    "results of the elements": (
        {"gives": "kept", "kinds": ("int",)},
        [],
        [{"dtype": "int8", "length": 200}],
        "gives='index'",
    ),
    "results as asked for": ({}, [{"length": GREAT}], [{"length": 9, "out_dtype": "int8"}], "int8"),
}


@pytest.mark.parametrize("name", INDICES)
def test_a_dtype_holds_every_index_or_is_refused(name: str) -> None:
    fields, legal, lost, words = INDICES[name]
    given = {"op": registered(ARGMAX, **fields).name, "dtype": "float32"}
    assert all(scanops.generate(scanops.ScanSpec(**{**given, **options})) for options in legal)
    for options in lost:
        assert words in str(refused(UnsupportedRequest, lambda o=options: scanops.ScanSpec(**{**given, **o})))
