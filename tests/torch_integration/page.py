"""``python -m tests.torch_integration.page`` writes docs/pytorch.md: every cell of its table is what a check says."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from tests.torch_integration.columns import COLUMNS
from tests.torch_integration.comparing import GPU
from tests.torch_integration.rows import ROWS, Row

__all__ = ["PAGE", "line_of", "page"]

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"
GRAPH = "CUDA graph"  # a GPU's: test_on_a_gpu.py captures and replays each row
BEGIN = "<!-- table: written by python -m tests.torch_integration.page -->\n"
END = "<!-- table end -->\n"


def line_of(row: Row) -> str:
    """A row of the table, tried now."""
    return _line(row.name, *(check(row) for check in COLUMNS.values()), GPU)


def page(text: str) -> str:
    """The page, its table tried again."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    head = [_line("", *COLUMNS, GRAPH), _line(*["---"] * (len(COLUMNS) + 2))]
    return before + BEGIN + "".join([*head, *map(line_of, ROWS.values())]) + END + after


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    dist.destroy_process_group()
