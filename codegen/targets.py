"""One row per GPU architecture: what a plan may rely on there, so that one can be made without measuring.

Limits of a multiprocessor are the CUDA programming guide's "technical specifications per compute capability"; the same
figures are in the toolkit's cuda_occupancy.h. Multiprocessors, bandwidth and L2 are those of the part named in the
row, the largest common one: plans use them only to tell few rows from many and to state a floor; a launch asks the
device.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from scanops.errors import UnsupportedRequest

__all__ = ["DEFAULT_TARGET", "TARGETS", "Target", "nearest_targets", "target_named", "target_of_capability"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A GPU architecture as the planner sees it."""

    name: str  # as nvcc spells it
    part: str  # whose data sheet says how many multiprocessors, what bandwidth and how much L2
    multiprocessors: int
    threads: int  # resident threads a multiprocessor
    blocks: int  # resident blocks a multiprocessor
    shared_bytes: int  # shared memory of a multiprocessor
    block_shared_bytes: int  # the most of it that a block gets, when it opts in
    bandwidth: int  # of memory, GB/s
    l2_bytes: int
    bfloat_convert: bool  # has an instruction from float to bfloat16
    copies_async: bool  # has copies from global to shared memory that pass no register
    registers: int = 65536  # of a multiprocessor, 32 bits each
    thread_registers: int = 255  # the most that a thread gets
    block_threads: int = 1024  # the most that a block has

    @property
    def capability(self) -> tuple[int, int]:
        """(major, minor) as torch.cuda.get_device_capability gives it."""
        digits = self.name.removeprefix("sm_")
        return int(digits[:-1]), int(digits[-1])

    @property
    def reserved_bytes(self) -> int:
        """Shared memory that each block takes for the system's own use."""
        return self.shared_bytes - self.block_shared_bytes


KIB, MIB = 1024, 1024**2

_ROWS = (
    Target(name="sm_70", part="V100", multiprocessors=80, threads=2048, blocks=32, shared_bytes=96 * KIB,
           block_shared_bytes=96 * KIB, bandwidth=900, l2_bytes=6 * MIB, bfloat_convert=False, copies_async=False),
    Target(name="sm_75", part="Quadro RTX 8000", multiprocessors=72, threads=1024, blocks=16, shared_bytes=64 * KIB,
           block_shared_bytes=64 * KIB, bandwidth=672, l2_bytes=6 * MIB, bfloat_convert=False, copies_async=False),
    Target(name="sm_80", part="A100 80GB", multiprocessors=108, threads=2048, blocks=32, shared_bytes=164 * KIB,
           block_shared_bytes=163 * KIB, bandwidth=2039, l2_bytes=40 * MIB, bfloat_convert=True, copies_async=True),
    Target(name="sm_86", part="RTX A6000", multiprocessors=84, threads=1536, blocks=16, shared_bytes=100 * KIB,
           block_shared_bytes=99 * KIB, bandwidth=768, l2_bytes=6 * MIB, bfloat_convert=True, copies_async=True),
    Target(name="sm_89", part="RTX 4090", multiprocessors=128, threads=1536, blocks=24, shared_bytes=100 * KIB,
           block_shared_bytes=99 * KIB, bandwidth=1008, l2_bytes=72 * MIB, bfloat_convert=True, copies_async=True),
    Target(name="sm_90", part="H200", multiprocessors=132, threads=2048, blocks=32, shared_bytes=228 * KIB,
           block_shared_bytes=227 * KIB, bandwidth=4800, l2_bytes=50 * MIB, bfloat_convert=True, copies_async=True),
    Target(name="sm_100", part="B200", multiprocessors=148, threads=2048, blocks=32, shared_bytes=228 * KIB,
           block_shared_bytes=227 * KIB, bandwidth=8000, l2_bytes=126 * MIB, bfloat_convert=True, copies_async=True),
    Target(name="sm_103", part="B300", multiprocessors=148, threads=2048, blocks=32, shared_bytes=228 * KIB,
           block_shared_bytes=227 * KIB, bandwidth=8000, l2_bytes=126 * MIB, bfloat_convert=True, copies_async=True),
    Target(name="sm_120", part="RTX PRO 6000", multiprocessors=188, threads=1536, blocks=24, shared_bytes=100 * KIB,
           block_shared_bytes=99 * KIB, bandwidth=1792, l2_bytes=128 * MIB, bfloat_convert=True, copies_async=True),
)  # fmt: skip

TARGETS: dict[str, Target] = {row.name: row for row in _ROWS}
DEFAULT_TARGET = "sm_90"


def target_named(name: object) -> Target:
    """The row of an architecture, spelled as nvcc spells it: ``"sm_90"``."""
    row = TARGETS.get(name) if isinstance(name, str) else None
    if row is None:
        raise UnsupportedRequest(
            f"a kernel for the target {name!r}",
            allowed=", ".join(TARGETS),
            value=repr(name),
            hint=f"use {nearest_targets(name)}; `scanops doctor` shows the target of this machine's GPU",
        )
    return row


def nearest_targets(name: object, known: Collection[str] = tuple(TARGETS)) -> str:
    """Return the targets of ``known`` next to ``name``, for an error message: ``"sm_86 or sm_89"`` for ``sm_87``.

    They are the closest ones below and above by compute capability; any target that is not written sm_NN gets the
    default one.
    """
    digits = re.search(r"\d{2,4}", str(name))
    if not digits:
        return DEFAULT_TARGET if DEFAULT_TARGET in known else next(iter(known))
    number = int(digits[0])
    numbers = sorted(int(each.removeprefix("sm_")) for each in known)
    near = [*[each for each in numbers if each <= number][-1:], *[each for each in numbers if each > number][:1]]
    return " or ".join(f"sm_{each}" for each in near)


def target_of_capability(capability: tuple[int, int]) -> str:
    """The target whose machine code a GPU of this compute capability runs best: same major, greatest minor below."""
    runs = [row for row in TARGETS.values() if row.capability[0] == capability[0] and row.capability <= capability]
    if not runs:
        raise UnsupportedRequest(
            "a scan on a GPU of an architecture that is not known",
            allowed=", ".join(TARGETS),
            value=f"compute capability {capability[0]}.{capability[1]}",
            hint="pass a CPU tensor, or add the architecture to codegen/targets.py",
        )
    return max(runs, key=lambda row: row.capability).name
