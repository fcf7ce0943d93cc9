"""Random calls with odd arguments, as ``python -m benchmarks soak --calls`` makes them."""

from __future__ import annotations

import pytest

from benchmarks.odd_calls import run


@pytest.mark.filterwarnings("ignore")
def test_odd_calls_give_right_answers_or_typed_errors() -> None:
    outcome = run(600, seed=11)
    assert not outcome.raw and not outcome.wrong
    assert outcome.right > 200 and outcome.refused > 60
