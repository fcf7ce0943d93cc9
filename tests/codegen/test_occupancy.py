"""Occupancy: known values, and those of the toolkit's cuda_occupancy.h."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest

from scanops.builders.toolchain import find_cxx, find_nvcc
from scanops.codegen.occupancy import occupancy
from scanops.codegen.targets import TARGETS, Target, target_named
from scanops.errors import BuildFailure

# (target, threads, registers, shared bytes, blocks, what keeps another out)
KNOWN = (
    ("sm_90", 256, 32, 0, 8, ("threads", "registers")),
    ("sm_90", 512, 64, 0, 2, ("registers",)),
    ("sm_90", 512, 128, 0, 1, ("registers",)),
    ("sm_90", 512, 65, 0, 1, ("registers",)),  # 65 registers cost as much as 72
    ("sm_90", 64, 16, 0, 32, ("threads", "blocks")),
    ("sm_90", 32, 16, 0, 32, ("blocks",)),
    ("sm_90", 1024, 64, 0, 1, ("registers",)),
    ("sm_90", 1024, 65, 0, 0, ("registers",)),
    ("sm_90", 128, 32, 227 * 1024, 1, ("shared memory",)),
    ("sm_90", 128, 32, 113 * 1024, 2, ("shared memory",)),
    ("sm_90", 128, 32, 114 * 1024, 1, ("shared memory",)),  # each block costs 1 KiB more
    ("sm_90", 128, 32, 228 * 1024, 0, ("shared memory",)),
    ("sm_90", 96, 40, 0, 16, ("registers",)),
    ("sm_75", 512, 64, 0, 2, ("threads", "registers")),
    ("sm_75", 32, 16, 4096, 16, ("blocks", "shared memory")),
    ("sm_75", 64, 32, 32 * 1024, 2, ("shared memory",)),  # nothing is reserved before 8.0
    ("sm_86", 256, 40, 0, 6, ("threads", "registers")),
    ("sm_120", 1024, 32, 0, 1, ("threads",)),
)


@pytest.mark.parametrize("name, threads, registers, shared, blocks, limits", KNOWN)
def test_known(name: str, threads: int, registers: int, shared: int, blocks: int, limits: tuple[str, ...]) -> None:
    """Resident blocks, and the resources that limit them."""
    target = target_named(name)
    found = occupancy(target, threads=threads, registers=registers, shared_bytes=shared)
    assert (found.blocks, found.limits) == (blocks, limits)
    assert found.threads == blocks * threads
    assert found.fraction == pytest.approx(blocks * threads / target.threads)


def test_a_block_that_is_too_large() -> None:
    """No block fits with too many threads or registers."""
    assert occupancy(target_named("sm_90"), threads=1056, registers=16).blocks == 0
    assert occupancy(target_named("sm_90"), threads=32, registers=256).blocks == 0


PROGRAM = """
#include <cstdio>
#include "cuda_occupancy.h"
int main() {{
    int major, minor, threads, registers, shared;
    cudaOccDeviceProp device = {{}};
    device.maxThreadsPerBlock = 1024;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.numSms = 100;
    device.sharedMemPerBlock = 49152;
    const struct {{ int major, minor, threads, shared, reserved; }} rows[] = {{ {rows} }};
    while (std::scanf("%d %d %d %d %d", &major, &minor, &threads, &registers, &shared) == 5) {{
        for (const auto& row : rows) {{
            if (row.major != major || row.minor != minor) continue;
            device.computeMajor = major;
            device.computeMinor = minor;
            device.maxThreadsPerMultiprocessor = row.threads;
            device.sharedMemPerMultiprocessor = row.shared;
            device.reservedSharedMemPerBlock = row.reserved;
            device.sharedMemPerBlockOptin = row.shared - row.reserved;
        }}
        cudaOccFuncAttributes kernel = {{}};
        kernel.maxThreadsPerBlock = 1024;
        kernel.numRegs = registers;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = shared;
        cudaOccDeviceState state = {{}};
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult result = {{}};
        const int failed = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared);
        std::printf("%d\\n", failed ? -1 : result.activeBlocksPerMultiprocessor);
    }}
}}
"""


def test_as_the_toolkit_computes_it(tmp_path: Path) -> None:
    """All targets and many kernels, compared with cuda_occupancy.h."""
    try:
        include, compiler = find_nvcc().include, find_cxx().path
    except BuildFailure as problem:
        pytest.skip(f"no toolkit: {problem.asked}")
    if include is None or not (include / "cuda_occupancy.h").is_file():
        pytest.skip("a toolkit without cuda_occupancy.h")
    rows = ", ".join(
        f"{{{row.capability[0]}, {row.capability[1]}, {row.threads}, {row.shared_bytes}, {row.reserved_bytes}}}"
        for row in TARGETS.values()
    )
    source, program = tmp_path / "ask.cpp", tmp_path / "ask"
    source.write_text(PROGRAM.format(rows=rows))
    subprocess.run([compiler, "-w", f"-I{include}", source, "-o", program], check=True)
    cases: list[tuple[Target, int, int, int]] = list(
        itertools.product(
            TARGETS.values(), (32, 64, 96, 128, 192, 256, 416, 512, 832, 1024), (16, 31, 40, 57, 64, 72, 96, 128, 255),
            (0, 100, 4096, 10000, 33000, 65536, 99 * 1024, 163 * 1024, 227 * 1024),
        )
    )  # fmt: skip
    asked = "\n".join(
        f"{t.capability[0]} {t.capability[1]} {threads} {registers} {shared}" for t, threads, registers, shared in cases
    )
    answers = subprocess.run([program], input=asked, capture_output=True, text=True, check=True).stdout.split()
    assert len(answers) == len(cases)
    for (target, threads, registers, shared), answer in zip(cases, map(int, answers), strict=True):
        found = occupancy(target, threads=threads, registers=registers, shared_bytes=shared).blocks
        assert found == max(answer, 0), (target.name, threads, registers, shared)
