"""Occupancy: known values, and those of the toolkit's cuda_occupancy.h."""

from __future__ import annotations

import pytest

from scanops.codegen.targets import occupancy, target_named

# (target, threads, registers, shared bytes, blocks, what keeps another out)
KNOWN = (
    ("sm_90", 256, 32, 0, 8, ("threads", "registers")),
    ("sm_90", 512, 64, 0, 2, ("registers",)),
    ("sm_90", 512, 65, 0, 1, ("registers",)),  # 65 registers cost as much as 72
    ("sm_90", 64, 16, 0, 32, ("threads", "blocks")),
    ("sm_90", 1024, 65, 0, 0, ("registers",)),
    ("sm_90", 128, 32, 113 * 1024, 2, ("shared memory",)),
    ("sm_90", 128, 32, 114 * 1024, 1, ("shared memory",)),  # each block costs 1 KiB more
    ("sm_90", 128, 32, 228 * 1024, 0, ("shared memory",)),
    ("sm_75", 512, 64, 0, 2, ("threads", "registers")),
    ("sm_75", 32, 16, 4096, 16, ("blocks", "shared memory")),
    ("sm_75", 64, 32, 32 * 1024, 2, ("shared memory",)),  # nothing is reserved before 8.0
    ("sm_86", 256, 40, 0, 6, ("threads", "registers")),
    ("sm_120", 1024, 32, 0, 1, ("threads",)),
    ("sm_90", 32, 256, 0, 0, ("registers",)),
    ("sm_90", 1056, 16, 0, 0, ("threads",)),
)


@pytest.mark.parametrize("name, threads, registers, shared, blocks, limits", KNOWN)
def test_known(name: str, threads: int, registers: int, shared: int, blocks: int, limits: tuple[str, ...]) -> None:
    """Resident blocks, and the resources that limit them."""
    target = target_named(name)
    found = occupancy(target, threads=threads, registers=registers, shared_bytes=shared)
    assert (found.blocks, found.limits) == (blocks, limits)
    assert found.threads == blocks * threads
    assert found.fraction == pytest.approx(blocks * threads / target.threads)
