"""Blocks per multiprocessor: the arithmetic of the toolkit's cuda_occupancy.h, for a described target.

A block is resident as a whole or not at all. Threads, registers and shared memory each limit the number of blocks; the
smallest limit counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from scanops.codegen.targets import Target

__all__ = ["Occupancy", "most_registers", "occupancy"]

WARP = 32  # lanes
PARTITIONS = 4  # of a multiprocessor: a warp's registers lie in one partition
REGISTER_UNIT = 256  # allocation granularity of registers, per warp
SHARED_UNITS = {7: 256}  # bytes, by the capability's major number
SHARED_UNIT = 128  # bytes, from 8.0 on


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
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
        >>> from scanops.codegen.targets import target_named
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
        >>> from scanops.codegen.targets import target_named
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
