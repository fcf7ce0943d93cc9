"""The table of GPU architectures, limits and features that the planner uses, and how many blocks those limits allow.

Limits of a multiprocessor are those of the CUDA programming guide, "technical specifications per compute capability",
and of the toolkit's cuda_occupancy.h. Multiprocessors and bandwidth are those of the part named in the row, the largest
common one. They serve estimates only: a launch asks the device.

Occupancy is the arithmetic of cuda_occupancy.h: a block is resident as a whole or not at all. Threads, registers and
shared memory each limit the number of blocks; the smallest limit counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from scanops.codegen.dtypes import late_field, set_derived
from scanops.errors import UnsupportedRequest

WARP = 32  # lanes
KIB = 1024  # bytes
PARTITIONS = 4  # of a multiprocessor: a warp's registers lie in one partition
REGISTER_UNIT = 256  # allocation granularity of registers, per warp
SHARED_UNITS = {7: 256}  # bytes, by the capability's major number
SHARED_UNIT = 128  # bytes, from 8.0 on


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU architecture as the planner sees it."""

    name: str  # nvcc's name of it: "sm_90"
    part: str  # the GPU whose data sheet multiprocessors and bandwidth are from
    multiprocessors: int
    threads: int  # resident threads per multiprocessor
    blocks: int  # resident blocks per multiprocessor
    shared_kib: int  # shared memory per multiprocessor
    bandwidth: int  # of device memory, GB/s
    registers: int = 65536  # 32-bit registers per multiprocessor
    thread_registers: int = 255  # limit per thread
    block_threads: int = 1024  # limit per block

    # ---- what follows from the fields above

    capability: tuple[int, int] = late_field()  # (major, minor), as of torch.cuda.get_device_capability
    shared_bytes: int = late_field()  # shared memory per multiprocessor
    reserved_bytes: int = late_field()  # of it, what CUDA reserves per block
    block_shared_bytes: int = late_field()  # shared memory per block, with opt-in
    copies_async: bool = late_field()  # has cp.async
    launches_early: bool = late_field()  # has programmatic dependent launch
    bfloat_convert: bool = late_field()  # has an instruction that converts float to bfloat16
    float8_convert: bool = late_field()  # has an instruction that converts 8-bit floats to float16

    def __post_init__(self) -> None:
        digits = self.name.removeprefix("sm_")
        capability, shared_bytes = (int(digits[:-1]), int(digits[-1])), KIB * self.shared_kib
        ampere = capability >= (8, 0)
        set_derived(
            self,
            capability=capability,
            shared_bytes=shared_bytes,
            reserved_bytes=KIB * ampere,
            block_shared_bytes=shared_bytes - KIB * ampere,
            copies_async=ampere,
            launches_early=capability >= (9, 0),
            bfloat_convert=ampere,
            float8_convert=capability >= (8, 9),
        )


# name, part, multiprocessors, and of each: resident threads, resident blocks, KiB of shared memory; bandwidth in GB/s
_ROWS = (
    Target("sm_70", "V100", 80, 2048, 32, 96, 900),
    Target("sm_75", "Quadro RTX 8000", 72, 1024, 16, 64, 672),
    Target("sm_80", "A100 80GB", 108, 2048, 32, 164, 2039),
    Target("sm_86", "RTX A6000", 84, 1536, 16, 100, 768),
    Target("sm_89", "RTX 4090", 128, 1536, 24, 100, 1008),
    Target("sm_90", "H200", 132, 2048, 32, 228, 4800),
    Target("sm_100", "B200", 148, 2048, 32, 228, 8000),
    Target("sm_103", "B300", 148, 2048, 32, 228, 8000),
    Target("sm_120", "RTX PRO 6000", 188, 1536, 24, 100, 1792),
)

TARGETS: dict[str, Target] = {row.name: row for row in _ROWS}
DEFAULT_TARGET = "sm_90"
CPU = "cpu"  # the target of the emulator, which runs the plans of the default target


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
    each = _up(max(registers, 1) * WARP, REGISTER_UNIT)  # registers of a warp
    # The launch check assumes that the block's warps are spread evenly over the partitions.
    spread = registers <= target.thread_registers and each * _up(warps, PARTITIONS) <= target.registers
    shared = _up(shared_bytes + target.reserved_bytes, SHARED_UNITS.get(target.capability[0], SHARED_UNIT))
    by_shared = target.shared_bytes // shared if shared else target.blocks
    allowed = {
        "threads": target.threads // (warps * WARP) if threads <= target.block_threads else 0,
        "blocks": target.blocks,
        "registers": target.registers // PARTITIONS // each * PARTITIONS // warps if spread else 0,
        "shared memory": by_shared if shared_bytes <= target.block_shared_bytes else 0,
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


def _up(number: int, unit: int) -> int:
    """The smallest multiple of ``unit`` that is at least ``number``."""
    return -(-number // unit) * unit
