"""Exported files on a GPU: built by load_inline, in a process that cannot import scanops, held to torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scanops.runtime.kernels import default_target
from tests.exports.files import PROBLEMS, parsed

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("exported.py")
NEEDED = 40 << 30  # bytes, of the masked problem: 5 tensors of 4 GiB, and what torch takes by parts


def ran(folder: Path, files: dict[str, str]) -> str:
    """What the program prints about these files; it has to find all of them right."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), *files],
        cwd=folder,
        env={**os.environ, "TORCH_EXTENSIONS_DIR": str(folder / "extensions")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("format", ["modelnew", "kernelbench"])
def test_the_five_problems(format: str, tmp_path: Path) -> None:
    """At their shapes, for every dim they are asked along, and under KernelBench's masks of either dtype."""
    free, _ = torch.cuda.mem_get_info()
    if free < NEEDED:
        pytest.skip(f"{free >> 30} GiB of GPU memory are free, {NEEDED >> 30} are needed")
    target = default_target()
    files = {f"{name}-{format}": parsed(slugs, format, target) for name, (slugs, _, _) in PROBLEMS.items()}
    said = ran(tmp_path, files)
    assert said.count("True") == (7 if format == "kernelbench" else 6), said


def test_streams_graphs_and_rows_of_every_length(tmp_path: Path) -> None:
    target = default_target()
    files = {
        "queued": parsed(["prod-f32-n1024"], "modelnew", target),
        "gpumode": parsed(["sum-f32-any-le1073741824-few"], "gpumode", target),
    }
    assert ran(tmp_path, files).count("True") == 2
