"""compute-sanitizer over every strategy: memory, shared memory between barriers, initialisation, barriers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.sanitized import TOOLS, cells

FOUND_EXIT = 9

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not on PATH"),
]


def sanitized(*words: str, tool: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program from the root of the checkout, under a tool or plain."""
    command = [sys.executable, "-m", "tests.gpu.sanitized", *words]
    changes = {}
    if tool is not None:
        # A driver call that torch makes in order to see it fail is not a finding; a kernel's fault always is.
        options = ["--tool", tool, "--error-exitcode", str(FOUND_EXIT), "--report-api-errors", "no"]
        command = ["compute-sanitizer", *options, *command]
        # One cudaMalloc a tensor, so that its end is an end; and nothing is built here: it was, in a plain run.
        changes = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "SCANOPS_NVCC": "/nowhere/nvcc"}
    return subprocess.run(
        command,
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, **changes},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=900,
        check=False,
    )


def counted(output: str) -> int:
    """Return what the tool counted. One that did not get as far as its summary has found nothing out."""
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", output)
    assert len(found) == 1, output[-4000:]
    return int(found[0])


@pytest.fixture(scope="module")
def built() -> None:
    """Build all kernels into the store, and see that they are right without a tool."""
    done = sanitized()
    assert done.returncode == 0, done.stdout[-4000:]


# A tool's two runs follow one another, since one takes minutes and the other seconds.
@pytest.mark.parametrize(("tool", "fault"), [(tool, fault) for tool in TOOLS for fault in (False, True)])
def test_strategies_are_clean_and_faults_are_found(tool: str, fault: bool, built: None) -> None:
    done = sanitized(*[tool] * fault, tool=tool)
    found = counted(done.stdout)
    if fault:
        assert "planted" in done.stdout  # the kernel's name, in the report
        assert found > 0 and done.returncode == FOUND_EXIT, done.stdout[-4000:]
    else:
        assert f"{len(cells())} of {len(cells())} scans are equal" in done.stdout, done.stdout[-4000:]
        assert found == 0 and done.returncode == 0, done.stdout[-4000:]
