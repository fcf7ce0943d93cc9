"""The table of GPU architectures, limits and features that the planner uses, and how many blocks those limits allow.

Limits of a multiprocessor are those of the CUDA programming guide, "technical specifications per compute capability",
and of the toolkit's cuda_occupancy.h. Multiprocessors, bandwidth and L2 are those of the part named in the row, the
largest common one. They serve estimates only: a launch asks the device.

Occupancy is the arithmetic of cuda_occupancy.h: a block is resident as a whole or not at all. Threads, registers and
shared memory each limit the number of blocks; the smallest limit counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from scanops.errors import UnsupportedRequest

__all__ = [
    "DEFAULT_TARGET",
    "TARGETS",
    "WARP",
    "Occupancy",
    "Target",
    "most_registers",
    "nearest_targets",
    "occupancy",
    "target_named",
    "target_of_capability",
]

WARP = 32  # lanes
PARTITIONS = 4  # of a multiprocessor: a warp's registers lie in one partition
REGISTER_UNIT = 256  # allocation granularity of registers, per warp
SHARED_UNITS = {7: 256}  # bytes, by the capability's major number
SHARED_UNIT = 128  # bytes, from 8.0 on


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A GPU architecture as the planner sees it."""

    name: str  # nvcc's name of it: "sm_90"
    part: str  # the GPU whose data sheet multiprocessors, bandwidth and L2 are from
    multiprocessors: int
    threads: int  # resident threads per multiprocessor
    blocks: int  # resident blocks per multiprocessor
    shared_bytes: int  # shared memory per multiprocessor
    block_shared_bytes: int  # shared memory per block, with opt-in
    bandwidth: int  # of device memory, GB/s
    l2_bytes: int
    bfloat_convert: bool  # has an instruction that converts float to bfloat16
    copies_async: bool  # has cp.async
    registers: int = 65536  # 32-bit registers per multiprocessor
    thread_registers: int = 255  # limit per thread
    block_threads: int = 1024  # limit per block

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability (major, minor), as of torch.cuda.get_device_capability."""
        digits = self.name.removeprefix("sm_")
        return int(digits[:-1]), int(digits[-1])

    @property
    def float8_convert(self) -> bool:
        """Whether an instruction converts 8-bit floats to float16."""
        return self.capability >= (8, 9)

    @property
    def reserved_bytes(self) -> int:
        """Shared memory per block that CUDA reserves."""
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
    """Return the row of an architecture by nvcc's name, ``"sm_90"``. Raises UnsupportedRequest if there is none."""
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
    """Return the target for a GPU: the same major compute capability, and the greatest minor up to its own."""
    runs = [row for row in TARGETS.values() if row.capability[0] == capability[0] and row.capability <= capability]
    if not runs:
        raise UnsupportedRequest(
            f"a GPU of compute capability {capability[0]}.{capability[1]} is not supported",
            allowed=", ".join(TARGETS),
            value=f"compute capability {capability[0]}.{capability[1]}",
            hint="pass a CPU tensor, or add the architecture to codegen/targets.py",
        )
    return max(runs, key=lambda row: row.capability).name


class Occupancy(NamedTuple):
    """Resident blocks and threads of a kernel on one multiprocessor."""

    blocks: int  # per multiprocessor; 0: a block does not fit, and a launch fails
    threads: int
    fraction: float  # of the maximum number of resident threads
    limits: tuple[str, ...]  # limiting resources: "threads", "blocks", "registers", "shared memory"


def occupancy(target: Target, *, threads: int, registers: int, shared_bytes: int = 0) -> Occupancy:
    """The occupancy of a kernel on ``target``.

    Args:
        target: the architecture.
        threads: threads per block.
        registers: registers per thread, as the compiler reports them.
        shared_bytes: shared memory per block in bytes, static and dynamic together.

    Example:
        >>> occupancy(target_named("sm_90"), threads=512, registers=64).blocks
        2
    """
    warps = -(-threads // WARP)
    allowed = {
        "threads": target.threads // (warps * WARP) if threads <= target.block_threads else 0,
        "blocks": target.blocks,
        "registers": _by_registers(target, warps, registers),
        "shared memory": _by_shared(target, shared_bytes),
    }
    blocks = min(allowed.values())
    return Occupancy(
        blocks=blocks,
        threads=blocks * warps * WARP,
        fraction=blocks * warps * WARP / target.threads,
        limits=tuple(name for name, count in allowed.items() if count == blocks),
    )


def most_registers(target: Target, threads: int) -> int:
    """Maximum registers per thread for a block of so many threads: the partition with the most warps decides.

    Example:
        >>> most_registers(target_named("sm_90"), 640), most_registers(target_named("sm_90"), 672)
        (96, 80)
    """
    warps = -(-threads // WARP)
    each = target.registers // _up(warps, PARTITIONS) // REGISTER_UNIT * REGISTER_UNIT
    return min(target.thread_registers, each // WARP)


def _by_registers(target: Target, warps: int, registers: int) -> int:
    each = _up(max(registers, 1) * WARP, REGISTER_UNIT)  # of a warp
    # The launch check assumes that the block's warps are spread evenly over the partitions.
    if registers > target.thread_registers or each * _up(warps, PARTITIONS) > target.registers:
        return 0
    resident = target.registers // PARTITIONS // each * PARTITIONS
    return resident // warps


def _by_shared(target: Target, shared_bytes: int) -> int:
    if shared_bytes > target.block_shared_bytes:
        return 0
    unit = SHARED_UNITS.get(target.capability[0], SHARED_UNIT)
    each = _up(shared_bytes + target.reserved_bytes, unit)
    return target.shared_bytes // each if each else target.blocks


def _up(number: int, unit: int) -> int:
    """The smallest multiple of ``unit`` that is at least ``number``."""
    return -(-number // unit) * unit
