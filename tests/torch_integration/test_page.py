"""docs/pytorch.md says what is so: each line of its table is tried again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.torch_integration.columns import COLUMNS
from tests.torch_integration.page import HEAD, PAGE, line_of
from tests.torch_integration.rows import ROWS


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ROWS)
def test_a_line(name: str, record_property: Callable[[str, object], None]) -> None:
    line = line_of(ROWS[name])
    assert line in PAGE.read_text(encoding="utf-8"), "python -m tests.torch_integration.page writes the page"
    record_property("compositions with PyTorch", len(COLUMNS))


def test_the_table_is_of_these_rows_and_columns() -> None:
    lines = [line.strip("| \n").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if " | " in line]
    table = [line for line in lines if len(line) > len(COLUMNS)]
    assert table[0] == list(HEAD)
    assert [line[0] for line in table[2:]] == list(ROWS)
