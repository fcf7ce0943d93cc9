"""How many blocks a multiprocessor holds: the arithmetic of the toolkit's cuda_occupancy.h, for a described target.

A block is resident as a whole or not at all. Threads, registers and shared memory of a multiprocessor each allow so
many blocks; the least of these counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from scanops.codegen.targets import Target

__all__ = ["Occupancy", "most_registers", "occupancy"]

WARP = 32  # lanes
PARTITIONS = 4  # of a multiprocessor: a warp's registers come from one of them
REGISTER_UNIT = 256  # registers are given to a warp in pieces of so many
SHARED_UNITS = {7: 256}  # bytes, by the capability's major number
SHARED_UNIT = 128  # bytes, from 8.0 on


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """What one multiprocessor holds of a kernel at a time."""

    blocks: int  # 0: a block does not fit, and a launch fails
    threads: int
    fraction: float  # of the threads that the multiprocessor can hold
    limits: tuple[str, ...]  # what keeps another block out: "threads", "blocks", "registers", "shared memory"


def occupancy(target: Target, *, threads: int, registers: int, shared_bytes: int = 0) -> Occupancy:
    """The occupancy of a kernel on ``target``.

    Args:
        target: the architecture.
        threads: of a block.
        registers: of a thread, as the compiler reports them.
        shared_bytes: of a block, static and dynamic together.

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
    """The most registers that each of a block's threads may have: its partition with the most warps decides.

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
    # A launch is checked as if every partition held equally many of the block's warps.
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
    """The least multiple of ``unit`` that is not below ``number``."""
    return -(-number // unit) * unit
