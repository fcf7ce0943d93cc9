"""benchmarks/stress.py, a small one: by itself it has 64 processes and 500 kills."""

from __future__ import annotations

from benchmarks import stress as script
from scanops.requests.geometry import ScanArguments
from tests.store.sources import needs_cxx

pytestmark = needs_cxx

SEED = 20


def test_a_small_one() -> None:
    found = script.measure(processes=4, times=6, seed=SEED)
    print(found)  # with its seed
    assert script.is_as_promised(found), found
    assert found["same"]["builds"] == 1 and found["same"]["right"] == 4
    assert found["keys"]["builds"] == found["keys"]["sound"] == 4
    assert sum(found["kills"]["killed"].values()) == found["kills"]["right"] == 6


def test_its_arguments_are_those_of_a_kernel() -> None:
    assert ScanArguments._fields_[: len(script.Arguments._fields_)] == script.Arguments._fields_
