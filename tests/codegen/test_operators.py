"""The operator table: a row is well formed, and its two descriptions agree."""

from __future__ import annotations

import itertools

import pytest
import torch

from scanops.codegen.operators import BUILT_IN, OPERATORS, Operator, operator_named
from scanops.errors import UnsupportedRequest

ROWS = pytest.mark.parametrize("row", BUILT_IN.values(), ids=lambda row: row.name)
NUMBERS = (3, -1, 2, 0, 5)


@ROWS
def test_one_expression_a_field(row: Operator) -> None:
    assert len(row.fields) == len(row.lift) == len(row.combine) == len(row.identity) > 0
    assert all("older" in text and "newer" in text for text in row.combine)
    assert row.name.isidentifier() and row.name == row.name.lower()
    assert set(row.kinds) <= {"bool", "int", "float"} and row.kinds
    assert operator_named(row.name) is row and OPERATORS[row.name] is row


@ROWS
def test_the_recurrence_is_torchs(row: Operator) -> None:
    if row.torch_name is None:
        pytest.skip("torch has no such scan")
    h, expected = row.start, []
    for x in NUMBERS:
        h = row.step(h, x)
        expected.append(h)
    assert getattr(torch, row.torch_name)(torch.tensor(NUMBERS), 0).tolist() == expected


@ROWS
def test_expressions_agree_with_the_recurrence(row: Operator) -> None:
    """Where a state is one value and C++ reads as Python: combine is associative, and is the recurrence."""
    if len(row.fields) != 1:
        pytest.skip("a state with several fields is checked through kernels")

    def combine(older: int, newer: int) -> int:
        return int(eval(row.combine[0], {}, {"older": older, "newer": newer}))

    identity = int(row.identity[0])
    for a, b, c in itertools.product(NUMBERS, repeat=3):
        assert combine(combine(a, b), c) == combine(a, combine(b, c))
        assert combine(identity, a) == combine(a, identity) == a
        assert row.step(row.step(row.start, a), b) == combine(a, b)
        assert not row.commutative or combine(a, b) == combine(b, a)


@pytest.mark.parametrize("name", ["median", "", None, 3, "SUM"])
def test_an_unknown_operator(name: object) -> None:
    with pytest.raises(UnsupportedRequest) as caught:
        operator_named(name)
    assert repr(name) in caught.value.asked and caught.value.hint
    assert all(repr(known) in caught.value.allowed for known in OPERATORS)
