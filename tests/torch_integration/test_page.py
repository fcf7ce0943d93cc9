"""docs/pytorch.md says what is so: each cell of its table is tried again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from tests.torch_integration.columns import need
from tests.torch_integration.page import HEAD, PAGE, cells
from tests.torch_integration.rows import ROWS

PAGES = cells(PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def group_of_one() -> Iterator[None]:
    """Start the process group that DTensor needs."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "column"),
    [
        pytest.param(name, title, marks=[pytest.mark.gpu] * bool(column.gpus))
        for name in ROWS
        for title, column in HEAD.items()
    ],
)
def test_a_cell(name: str, column: str) -> None:
    need(HEAD[column].gpus)
    assert HEAD[column].cell(ROWS[name]) == PAGES[name, column], (
        "python -m tests.torch_integration.page writes the page"
    )


def test_the_table_is_of_these_rows_and_columns() -> None:
    assert list(PAGES) == [(name, column) for name in ROWS for column in HEAD]
