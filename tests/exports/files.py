"""Exported files, taken apart and run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from scanops.artifact import ABI, BuildRequest
from scanops.codegen.exports.formats import export
from scanops.codegen.spec import ScanSpec
from scanops.store.store import Store
from tests.scripts import ran

ALONE = Path(__file__).with_name("alone.py")

# The problems that the project began with, by the specs that they need.
PROBLEMS: dict[str, tuple[str, ...]] = {
    "cumprod": ("prod-f32-n32768",),
    "cumprod_any_dim": ("prod-f32-n1024", "prod-f32-n1024-inner1024"),
    "cumsum_reverse": ("sum-f32-n32768-reverse",),
    "masked_cumsum": ("sum-f32-n32768-mask_b8",),
    "cumsum_exclusive": ("sum-f32-n32768-exclusive",),
}


def parsed(slugs: Sequence[str], format: str = "modelnew", target: str = "sm_90", lines: int | None = None) -> str:
    """The export of these specs; for GPU MODE planned for one line."""
    lines = 1 if format == "gpumode" else lines
    return export([ScanSpec.parse(slug) for slug in slugs], format, target, lines=lines)


def texts(file: str) -> list[str]:
    """The CUDA in a Python file, kernel by kernel: what load_inline is given."""
    statements = (each for each in ast.parse(file).body if isinstance(each, ast.Assign))
    values = {ast.unparse(each.targets[0]): each.value for each in statements}
    return [ast.literal_eval(value) for name, value in values.items() if name.startswith("KERNEL_")]


def run(
    files: Sequence[tuple[str, Sequence[tuple[float, tuple[Any, ...]]]]], folder: Path
) -> list[tuple[list[Any], list[str]]]:
    """Run (exported file, calls) in one process without scanops, for a CPU; a call is (dim, arguments).

    Returns for each file the results of its calls and the Python functions that a repetition of the first call runs.
    """
    # What a store wants of a library, and exported texts lack.
    beside = f"""extern "C" {{ int scanops_abi() {{ return {ABI}; }} int scanops_launch(void*, void*) {{ return 0; }}
    long long scanops_workspace_bytes(long long, long long) {{ return 0; }}
    const char* scanops_error_string(int) {{ return ""; }} }}"""
    jobs = []
    for number, (text, calls) in enumerate(files):
        path = folder / f"exported_{number}.py"
        path.write_text(text)
        whole = "\n".join(["#include <cuda_runtime.h>", f"namespace file_{number} {{", *texts(text), "}", beside])
        entry = Store().get_or_build(BuildRequest(name="exported", source=whole, target="cpu"))
        jobs.append((str(path), str(entry.library_path), list(calls)))
    torch.save(jobs, folder / "jobs")
    ran(sys.executable, ALONE, folder / "jobs", folder=folder)
    results: list[tuple[list[Any], list[str]]] = torch.load(folder / "jobs.out", weights_only=False)
    return results
