"""``python -m tests.torch_integration.page`` writes docs/pytorch.md: every cell of its table is what a check says.

With ``--gpu`` the cells that need a GPU are tried first, on the GPUs that there are, and kept in on_gpus.json: what was
once recorded is on the page wherever it is written again.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from scanops.processes import jobs_that_fit
from tests.torch_integration.columns import COLUMNS
from tests.torch_integration.on_gpus import GPU_COLUMNS, RECORD, recorded
from tests.torch_integration.rows import ROWS, Row

__all__ = ["HEAD", "PAGE", "line_of", "page"]

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"
HEAD = (*COLUMNS, *GPU_COLUMNS)
BEGIN = "<!-- table: written by python -m tests.torch_integration.page -->\n"
END = "<!-- table end -->\n"


def line_of(row: Row) -> str:
    """A row of the table, tried now; of what needs a GPU, what was recorded."""
    held = recorded()
    on_gpus = (held.get(name, {}).get(row.name, column.untried) for name, column in GPU_COLUMNS.items())
    return _line(row.name, *(check(row) for check in COLUMNS.values()), *on_gpus)


def page(text: str) -> str:
    """The page, its table tried again."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    head = [_line("", *HEAD), _line(*["---"] * (len(HEAD) + 1))]
    return before + BEGIN + "".join([*head, *map(line_of, ROWS.values())]) + END + after


def record() -> int:
    """Try the cells that need as many GPUs as are visible, and keep those that held; how many did not."""
    wrong, cells = 0, recorded()
    tried = [name for name, column in GPU_COLUMNS.items() if column.gpus <= torch.cuda.device_count()]
    cells |= {name: {} for name in tried}
    for name in GPU_COLUMNS.keys() - tried:
        print(f"{name}: {GPU_COLUMNS[name].gpus} GPUs are needed", file=sys.stderr)
    pairs = [(name, row) for row in ROWS for name in tried]
    # In processes: kernels are built on all cores, and a graph is captured alone. A fork would inherit a CUDA context.
    with ProcessPoolExecutor(jobs_that_fit(), mp_context=multiprocessing.get_context("spawn")) as pool:
        for (name, row), (cell, problem) in zip(pairs, pool.map(_tried, *zip(*pairs, strict=True)), strict=True):
            if problem:
                wrong += 1
                print(f"{name}, {row}:\n{problem}", file=sys.stderr)
            else:
                cells[name][row] = cell
    told: dict[str, Any] = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "cells": cells}
    RECORD.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return wrong


def _tried(name: str, row: str) -> tuple[str, str]:
    """A cell, and why there is none."""
    try:
        return GPU_COLUMNS[name].check(ROWS[row]), ""
    except Exception:  # the others are tried all the same
        return "", traceback.format_exc()


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    failed = record() if "--gpu" in sys.argv[1:] else 0
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    dist.destroy_process_group()
    sys.exit(1 if failed else 0)
