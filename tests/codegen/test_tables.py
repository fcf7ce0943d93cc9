"""The tables of dtypes and operators: a row is well formed and agrees with torch; rows of users."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from scanops.codegen.dtypes import DTYPES, DType, default_result, dtype_named, promote
from scanops.codegen.operators import BUILT_IN, OPERATORS, Operator, operator_named, register_operator
from scanops.codegen.source import generate
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest
from scanops.operator_checks import check_operator
from tests.requests.checks import refused


def of_torch(row: DType) -> torch.dtype:
    """The torch dtype of a row."""
    dtype = getattr(torch, row.name)
    assert isinstance(dtype, torch.dtype)
    return dtype


@pytest.mark.parametrize("first", DTYPES.values(), ids=lambda row: row.tag)
def test_promotion_is_torchs(first: DType) -> None:
    """For tensors of at least one dimension: scans never promote 0-d tensors or numbers."""
    for second in DTYPES.values():
        operands = [torch.ones(2).to(of_torch(row)) for row in (first, second)]
        try:
            expected = torch.result_type(*operands)
        except RuntimeError:
            with pytest.raises(UnsupportedRequest) as caught:
                promote(first, second)
            assert first.name in caught.value.value and second.name in caught.value.value
        else:
            assert of_torch(promote(first, second)) == expected, second.name


@pytest.mark.parametrize("row", DTYPES.values(), ids=lambda row: row.tag)
def test_a_row_is_torchs(row: DType) -> None:
    """Its size, the default output dtype of sums and products, and what finds it: torch's object, its name, the tag."""
    dtype = of_torch(row)
    x = torch.ones(3).to(dtype if row.stored else torch.float32)  # torch has no scan of 8-bit floating types
    assert {torch.cumsum(x, 0).dtype, torch.cumprod(x, 0).dtype} == {of_torch(default_result("widened", row))}
    assert row.bytes == dtype.itemsize
    assert all(dtype_named(name) is row for name in (dtype, str(dtype), row.name, row.tag))


ROWS = pytest.mark.parametrize("row", BUILT_IN.values(), ids=lambda row: row.name)
FINITE = (0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 1j, 0.5 - 1j)


def lawful(row: Operator) -> Iterator[Operator]:
    """``row`` as check_operator takes it: of two outputs either, and in each form."""
    if not row.indices:
        yield dataclasses.replace(row, torch_name=None)
        return
    yield dataclasses.replace(row, indices="", output=lambda h: h[0])
    other = {"indices": "", "resume": (), "resumed": None, "project": row.indices, "gives": "index"}
    yield dataclasses.replace(row, **other, output=lambda h: h[1])  # type: ignore[arg-type]


CHECKED = [each for row in BUILT_IN.values() for form in (row, *row.variants.values()) for each in lawful(form)]


@pytest.mark.parametrize("row", CHECKED, ids=lambda row: f"{row.name}-{'-'.join(row.kinds)}-{row.gives}")
def test_laws(row: Operator) -> None:
    """identity is neutral on both sides, combine is associative, and commutative where the row says so."""
    bounded = row.name in ("sum", "prod", "linear")  # NaN and infinities of both signs break no law of theirs
    kinds = tuple(kind for kind in row.kinds if kind != "complex") if row.name == "logcumsumexp" else row.kinds
    row = dataclasses.replace(row, kinds=kinds or row.kinds)
    report = check_operator(row, lengths=(), samples=FINITE if bounded else None)
    assert report.ok and report.laws > 100, str(report)


ROW: dict[str, Any] = {
    "name": "affine_of_tests",
    "formula": "y[i] = x[i] * y[i-1] + 1",
    "fields": ("gate", "value"),
    "lift": ("x", "1"),
    "combine": ("older.gate * newer.gate", "newer.gate * older.value + newer.value"),
    "identity": ("1", "0"),
    "project": "state.value",
    "commutative": False,
    "start": 0,
}


def step(h: Any, x: Any) -> Any:
    """A named function, which can be pickled."""
    return x * h + 1


def made(**fields: Any) -> Operator:
    """ROW with these fields changed."""
    return Operator(**{**ROW, "step": step, **fields})


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    """Restore the registered operators after each test."""
    known = dict(OPERATORS)
    yield
    OPERATORS.clear()
    OPERATORS.update(known)


ONE = {"fields": ("value",), "lift": ("x",), "combine": ("older + newer",), "identity": ("0",), "project": "state"}
BAD: tuple[tuple[dict[str, Any], str], ...] = (
    *(({"name": name}, str(name)[:4]) for name in ("my-op", "MyOp", "a" * 49, 3)),
    *(({"formula": text}, "formula=") for text in ("a\nb", "a \\", "")),
    *(({"fields": fields}, repr(fields)) for fields in ((), ("a", "a"), ["gate", "value"])),
    *(({"fields": ("value", word)}, word) for word in ("struct", "xor", "older", "__value", "Value")),
    ({"lift": "x"}, "lift='x'"),
    ({"lift": ("x",)}, "('x',)"),
    ({"lift": ("x", "1", "2")}, "'2'"),
    ({"combine": ("a", "b", "c")}, "'c'"),
    ({"combine": ()}, "combine=()"),
    ({"identity": ("1",)}, "('1',)"),
    ({"identity": (1, 0)}, "(1, 0)"),
    ({"lift": ("x", " ")}, "' '"),
    ({"lift": ("x;", "1")}, "x;"),
    ({"lift": ("x // the element", "1")}, "//"),
    ({"project": "state.value\n#undef x"}, "#undef"),
    ({"project": "(state.value"}, "(state.value"),
    ({"project": "state.value)"}, "state.value)"),
    ({"lift": ("x", "lowest")}, "lowest"),
    ({"types": ("index",)}, "types=('index',)"),
    ({"types": ("value", "int128")}, "int128"),
    ({"gives": "index", "resume": ("x", "1"), "resumed": step}, "('x', '1')"),
    ({"project": "state"}, "project='state'"),
    (ONE | {"combine": ("older + newer.value",)}, "newer.value"),
    (ONE | {"project": "state.value"}, "project='state.value'"),
    ({"project": ""}, "project=''"),
    ({"kinds": ("floating",)}, "floating"),
    ({"kinds": ()}, "kinds=()"),
    ({"gives": "wide"}, "gives='wide'"),
    ({"torch_name": "cummedian"}, "cummedian"),
    ({"ordered": 1}, "ordered=1"),
    ({"commutative": None}, "commutative=None"),
    ({"start": "greatest"}, "greatest"),
    ({"start": ()}, "start=()"),
    ({"start": (0, 1)}, "output=None"),
    ({"step": "h + x"}, "h + x"),
    ({"output": 0}, "output=0"),
    ({"before": ("prod", "g", "x")}, "'x')"),
)


@pytest.mark.parametrize(("fields", "value"), BAD, ids=lambda part: str(part)[:40])
def test_an_invalid_row(fields: dict[str, Any], value: str) -> None:
    """The first line of the error has the argument and its value."""
    error = refused(UnsupportedRequest, lambda: made(**fields), value)
    assert str(error.value).splitlines()[0] in str(error).splitlines()[0]


def test_registered_by_name() -> None:
    """Registering an equal row again replaces it; functions cannot be compared."""
    row = register_operator(made())
    assert operator_named("affine_of_tests") is row is register_operator(row)
    again = made(step=lambda h, x: 1 + h * x)
    assert register_operator(again) is again is operator_named("affine_of_tests")
    assert "older.gate * newer.gate" in generate(ScanSpec(op="affine_of_tests", dtype="f32", length=100))


def test_a_name_that_is_taken() -> None:
    """Built-in names and names of different rows are refused; so are rows with two outputs."""
    register_operator(made())
    refused(UnsupportedRequest, lambda: register_operator(made(identity=("1", "1"))), "affine_of_tests")
    refused(UnsupportedRequest, lambda: register_operator(made(name="sum")), "name='sum'")
    refused(UnsupportedRequest, lambda: register_operator(dataclasses.replace(BUILT_IN["sum"])), "name='sum'")
    refused(UnsupportedRequest, lambda: register_operator("sum"), "sum")  # type: ignore[arg-type]
    refused(
        UnsupportedRequest, lambda: register_operator(dataclasses.replace(BUILT_IN["cummax"], name="mine")), "index"
    )
    assert register_operator(BUILT_IN["cummax"]) is BUILT_IN["cummax"]


def test_pickles_and_copies() -> None:
    """Built-in rows are pickled by name, others with their functions; both give the same text in another process."""
    assert copy.deepcopy(made()) == made() == pickle.loads(pickle.dumps(made()))
    assert all(pickle.loads(pickle.dumps(row)) is row is operator_named(name) for name, row in BUILT_IN.items())
    row = dataclasses.replace(BUILT_IN["max"], name="greatest", step=max, gradient=None, derivative=None)
    code = (
        "import pickle, sys, scanops; row = scanops.register_operator(pickle.load(sys.stdin.buffer));"
        "print(scanops.generate(scanops.ScanSpec(op=row.name, dtype='f32', length=9)), end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(row), capture_output=True, check=True)
    register_operator(row)
    assert done.stdout.decode() == generate(ScanSpec(op="greatest", dtype="f32", length=9))


def test_threads() -> None:
    """Of threads that register different rows under one name, those with one of the rows succeed."""
    gate, won, lost = threading.Barrier(8), [], []

    def register(number: int) -> None:
        gate.wait()
        for at in range(50):
            try:
                won.append(register_operator(made(name=f"threaded_{at}", identity=("1", str(number % 2)))).identity)
                assert operator_named(f"threaded_{at}").name
            except UnsupportedRequest:
                lost.append(at)

    threads = [threading.Thread(target=register, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == len(lost) == 200
