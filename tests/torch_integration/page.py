"""Write the table of docs/pytorch.md: ``python -m tests.torch_integration.page``. A cell is what its check returns.

The cells of columns that need more GPUs than are visible stay as they are.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from tests.torch_integration.columns import COLUMNS, GPU_COLUMNS
from tests.torch_integration.rows import ROWS

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"
HEAD = {**COLUMNS, **GPU_COLUMNS}
BEGIN = "<!-- table: written by python -m tests.torch_integration.page -->\n"
END = "<!-- table end -->\n"


def cells(text: str) -> dict[tuple[str, str], str]:
    """Return the cells of the page's table by the names of row and column, in order."""
    head, _, *lines = text.split(BEGIN)[1].split(END)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in (head, *lines)]
    return {(row[0], column): cell for row in rows[1:] for column, cell in zip(rows[0][1:], row[1:], strict=True)}


def page(text: str) -> str:
    """Return the page with its table tried again."""
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    held, gpus = cells(text), torch.cuda.device_count()
    table = [["", *HEAD], ["---"] * (len(HEAD) + 1)]
    for name, row in ROWS.items():
        tried = (
            column.cell(row) if column.gpus <= gpus else held.get((name, title), "not tried")
            for title, column in HEAD.items()
        )
        table.append([name, *tried])
    return before + BEGIN + "".join(f"| {' | '.join(line)} |\n" for line in table) + END + after


if __name__ == "__main__":
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    dist.destroy_process_group()
