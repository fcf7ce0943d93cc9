"""Registers per thread of a row kernel, estimated closely enough that ptxas need not spill."""

from __future__ import annotations

from scanops.codegen.fragments import fragments
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.rows import begins_anywhere, boundary_of, gathers

__all__ = ["LENGTH_BYTES", "STRIDED_BYTES", "fills_registers", "registers_of", "vectors_in_registers"]

REGISTER_BYTES = 384  # of the 512 a thread has with 512 threads and one block; the rest is addresses and temporaries
REGISTERS = 65536  # of a multiprocessor, on every target
SPARE_REGISTERS = 24  # a thread's addresses, guards and temporaries
MASK_REGISTERS = 8  # the address and guards of a mask, a gate or flags
GATHERED_REGISTERS = 20  # addresses and guards of items that are read one by one
SHIFTED_MASK_REGISTERS = 16  # guards of items at the ends of a row
STRIDED_BYTES = 64  # of them for pointers and strides of operands that are not dense
LENGTH_BYTES, NARROW_LENGTH_BYTES = 32, 96  # for a length that is an argument, and values derived from it


def fills_registers(spec: ScanSpec, items: int, vectors: int, threads: int) -> bool:
    """Whether a block takes more than half of a multiprocessor's registers.

    ptxas must be told by launch bounds of one block, or it spills to make room for a second. For lighter blocks the
    bound does harm: ptxas then takes the registers of a third block, and 4097 fp32 falls from 0.91 to 0.75 of a copy
    (H200).
    """
    return 2 * threads * registers_of(spec, items, vectors) > REGISTERS


def registers_of(spec: ScanSpec, items: int, vectors: int) -> int:
    """Estimated registers of a thread for its part of a tile: states take the place of loaded items."""
    each = max(_loaded_bytes(spec, items), (items + 1) * fragments(spec).held_bytes)
    spare = SPARE_REGISTERS + (GATHERED_REGISTERS if gathers(spec) else 0)
    for source in spec.streams[1:]:
        if not begins_anywhere(spec, source.layout):  # otherwise it is read with the items of the input's access
            spare += MASK_REGISTERS + (SHIFTED_MASK_REGISTERS if boundary_of(spec, items) else 0)
    return vectors * each // 4 + spare


def vectors_in_registers(spec: ScanSpec, items: int) -> int:
    """Number of accesses whose items fit in registers as states, with one prefix each and a temporary one."""
    each = max(_loaded_bytes(spec, items), (items + 2) * fragments(spec).held_bytes)
    taken = STRIDED_BYTES if gathers(spec) else 0
    if spec.takes_length:
        taken += NARROW_LENGTH_BYTES if min(spec.input.bytes, spec.out.bytes) < 4 else LENGTH_BYTES
    return max(1, (REGISTER_BYTES - taken) // each)


def _loaded_bytes(spec: ScanSpec, items: int) -> int:
    """Register bytes that one access of every operand takes, in 4-byte registers."""
    return sum(max(4, items * source.dtype.bytes) for source in spec.streams)
