"""Rows of one's own: refused with a word when they are made, registered once, sent to other processes."""

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

from scanops.codegen.operators import BUILT_IN, OPERATORS, Operator, operator_named, register_operator
from scanops.codegen.source import generate
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest
from tests.requests.checks import refused

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
    return x * h + 1


def made(**fields: Any) -> Operator:
    return Operator(**{**ROW, "step": step, **fields})


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    known = dict(OPERATORS)
    yield
    OPERATORS.clear()
    OPERATORS.update(known)


ONE = {"fields": ("value",), "lift": ("x",), "combine": ("older + newer",), "identity": ("0",), "project": "state"}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "name with a dash": ({"name": "my-op"}, "my-op"),
    "name in capitals": ({"name": "MyOp"}, "MyOp"),
    "name that is long": ({"name": "a" * 49}, "aaaa"),
    "name that is a number": ({"name": 3}, "name=3"),
    "formula of two lines": ({"formula": "a\nb"}, r"a\nb"),
    "formula that goes on": ({"formula": "a \\"}, "formula"),
    "no formula": ({"formula": ""}, "formula=''"),
    "no fields": ({"fields": ()}, "fields=()"),
    "a field twice": ({"fields": ("a", "a")}, "('a', 'a')"),
    "a word of C++": ({"fields": ("value", "struct")}, "struct"),
    "another word of C++": ({"fields": ("value", "xor")}, "xor"),
    "a name of the expressions": ({"fields": ("older", "value")}, "older"),
    "a reserved name": ({"fields": ("__value", "b")}, "__value"),
    "a type's name": ({"fields": ("Value", "b")}, "Value"),
    "fields in a list": ({"fields": ["gate", "value"]}, "['gate', 'value']"),
    "lift that is a string": ({"lift": "x"}, "lift='x'"),
    "lift of one": ({"lift": ("x",)}, "('x',)"),
    "lift of three": ({"lift": ("x", "1", "2")}, "'2'"),
    "combine of three": ({"combine": ("a", "b", "c")}, "'c'"),
    "combine of none": ({"combine": ()}, "combine=()"),
    "identity of one": ({"identity": ("1",)}, "('1',)"),
    "identity of numbers": ({"identity": (1, 0)}, "(1, 0)"),
    "an empty expression": ({"lift": ("x", " ")}, "' '"),
    "a statement": ({"lift": ("x;", "1")}, "x;"),
    "a comment": ({"lift": ("x // the element", "1")}, "//"),
    "a directive": ({"project": "state.value\n#undef x"}, "#undef"),
    "an open bracket": ({"project": "(state.value"}, "(state.value"),
    "a bracket too many": ({"project": "state.value)"}, "state.value)"),
    "lowest outside of identity": ({"lift": ("x", "lowest")}, "lowest"),
    "a type too few": ({"types": ("index",)}, "types=('index',)"),
    "an unknown type": ({"types": ("value", "int128")}, "int128"),
    "types and places": ({"types": ("value", "index"), "places": ("gate",)}, "gate"),
    "an index and a carry-in": ({"gives": "index", "resume": ("x", "1"), "resumed": step}, "('x', '1')"),
    "a place that is no field": ({"places": ("index",)}, "index"),
    "a state that is no value": ({"project": "state"}, "project='state'"),
    "a member of a state of one field": (ONE | {"combine": ("older + newer.value",)}, "newer.value"),
    "the only field of a state": (ONE | {"project": "state.value"}, "project='state.value'"),
    "no project": ({"project": ""}, "project=''"),
    "an unknown kind": ({"kinds": ("floating",)}, "floating"),
    "no kind": ({"kinds": ()}, "kinds=()"),
    "unknown gives": ({"gives": "wide"}, "gives='wide'"),
    "a scan that torch has not": ({"torch_name": "cummedian"}, "cummedian"),
    "ordered that is no bool": ({"ordered": 1}, "ordered=1"),
    "commutative that is no bool": ({"commutative": None}, "commutative=None"),
    "an unknown start": ({"start": "greatest"}, "greatest"),
    "an empty start": ({"start": ()}, "start=()"),
    "several parts and no output": ({"start": (0, 1)}, "output=None"),
    "step that is no function": ({"step": "h + x"}, "h + x"),
    "output that is no function": ({"output": 0}, "output=0"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_row_that_is_refused(name: str) -> None:
    fields, value = BAD[name]
    refused(UnsupportedRequest, lambda: made(**fields), value)


def test_what_is_allowed() -> None:
    assert made(combine=("State{older.gate * newer.gate, newer.gate}",)).combine
    assert made(lift=("[&] { return x; }()", "'a' == 'b'"))
    assert made(start=(0, 1), output=lambda h: h[0]).start == (0, 1)


def test_registered_by_name() -> None:
    row = register_operator(made())
    assert operator_named("affine_of_tests") is row is register_operator(row)
    again = made(step=lambda h, x: 1 + h * x)  # whose content is the same: functions cannot be compared
    assert register_operator(again) is again is operator_named("affine_of_tests")
    assert "older.gate * newer.gate" in generate(ScanSpec(op="affine_of_tests", dtype="f32", length=100))


def test_a_name_that_is_taken() -> None:
    register_operator(made())
    refused(UnsupportedRequest, lambda: register_operator(made(identity=("1", "1"))), "affine_of_tests")
    refused(UnsupportedRequest, lambda: register_operator(made(name="sum")), "name='sum'")
    refused(UnsupportedRequest, lambda: register_operator(dataclasses.replace(BUILT_IN["sum"])), "name='sum'")
    refused(UnsupportedRequest, lambda: register_operator("sum"), "sum")  # type: ignore[arg-type]
    refused(
        UnsupportedRequest, lambda: register_operator(dataclasses.replace(BUILT_IN["cummax"], name="mine")), "index"
    )
    assert register_operator(BUILT_IN["cummax"]) is BUILT_IN["cummax"]


def test_two_rows_of_one_name_are_two_kernels() -> None:
    texts = []
    for identity in ("0", "1"):
        register_operator(made(identity=("1", identity)))
        texts.append(generate(ScanSpec(op="affine_of_tests", dtype="f32", length=100)))
        del OPERATORS["affine_of_tests"]
    assert texts[0] != texts[1]


def test_fields_are_converted() -> None:
    """A struct's braces refuse an int for a float; a bool, a conditional and a helper are as good as a constant."""
    register_operator(made(lift=("x", "!is_nan(x)"), identity=("1", "-1")))
    text = generate(ScanSpec(op="affine_of_tests", dtype="f32", length=100))
    assert "{x, (Value)(!is_nan(x))}" in text and "bool is_nan(Value x)" in text and "{1, -1}" in text
    assert "{1, (Value)(-1)}" in generate(ScanSpec(op="affine_of_tests", dtype="i32", length=100))


def test_pickle_and_copies() -> None:
    row = made()
    again = pickle.loads(pickle.dumps(row))
    assert again == row and again.step is step
    assert copy.deepcopy(row) == row
    assert all(pickle.loads(pickle.dumps(known)) is known for known in BUILT_IN.values())


def test_another_process() -> None:
    """A row made of functions with names travels; there it is registered by use."""
    row = dataclasses.replace(BUILT_IN["max"], name="greatest", torch_name=None, step=max)
    code = (
        "import pickle, sys, scanops; row = scanops.register_operator(pickle.load(sys.stdin.buffer));"
        "print(scanops.generate(scanops.ScanSpec(op=row.name, dtype='f32', length=9)), end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(row), capture_output=True, check=True)
    register_operator(row)
    assert done.stdout.decode() == generate(ScanSpec(op="greatest", dtype="f32", length=9))


def test_threads() -> None:
    """Of rows that contradict one another one wins, whichever; equal ones all do; readers see a whole table."""
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
