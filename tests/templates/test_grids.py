"""The number of blocks of a launch: what a launcher computes in C is ``grid`` of its plan."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from scanops.artifact import CPU, BuildRequest
from scanops.builders.direct import build
from scanops.codegen.source import render
from tools.golden import GOLDEN

HEADER = "#include <cuda_runtime.h>\n#endif\n"
# In place of a launch: what it was asked for.
RECORDED = """static unsigned launched;
#define cudaLaunchKernelEx(config, ...) (launched = (config)->gridDim.x, cudaSuccess)
"""
CALL = """extern "C" unsigned blocks_of(long long lines, long long length, int multiprocessors) {
    unsigned long long workspace[2] = {};
    ScanArguments arguments = {};
    arguments.workspace = workspace;
    arguments.lines = lines, arguments.length = length, arguments.multiprocessors = multiprocessors;
    NEIGHBOURS return scanops_launch(&arguments, nullptr) == cudaSuccess ? launched : 0;
}
"""
KERNELS = {each.plan.strategy: each for each in GOLDEN}


@pytest.mark.parametrize("strategy", KERNELS)
def test_a_launch_has_the_blocks_of_its_plan(strategy: str, tmp_path: Path) -> None:
    plan = KERNELS[strategy].plan
    neighbours = "arguments.neighbours.size = lines;" if plan.takes_neighbours else ""
    text = render(plan).replace(HEADER, HEADER + RECORDED, 1) + CALL.replace("NEIGHBOURS", neighbours)
    (tmp_path / "kernel.cu").write_text(text, encoding="utf-8")
    built = build(BuildRequest(name="grid", source=text, target=CPU), tmp_path)
    library = ctypes.CDLL(str(built.library))
    for lines, multiprocessors in ((plan.spec.inner, 1), (37 * plan.spec.inner, 132)):
        blocks = library.blocks_of(ctypes.c_longlong(lines), ctypes.c_longlong(plan.spec.capacity), multiprocessors)
        assert blocks == plan.grid(lines, multiprocessors)
