"""A launch as data: grid, block, parameters and workspace follow from a kernel's ``Launch`` and the shape of a call.

``Plan.launch`` gives it, and the manifest of a library or a cubin keeps it for who launches the kernel. Exported files
have the same formulas in C (templates/exports/launcher.cuh.j2). This module needs no plan and no template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from scanops.errors import format_value

__all__ = ["FIELDS", "MOST_BLOCKS", "Launch", "Numbers"]

WARP, MOST_THREADS = 32, 1024  # threads of a warp, and of a block at most
MOST_BLOCKS = 2**31 - 1  # of a grid; a launch of more tiles is refused, even if fewer blocks are resident
TICKET_BYTES, WORD_BYTES = 16, 8  # of a workspace: its head, and a status word
NAME = re.compile(r"[a-z]\w{0,127}", re.ASCII)  # of a kernel's function
MOST = 2**40  # of any number in a Launch
MOST_STATUSES = 3  # numbers of statuses of a line

# The fields of ScanArguments whose bytes can be a kernel's parameter, in the order of parameters; operands come first,
# in the order of the spec. Numbers are little-endian: a parameter of 32 bits is the low half of a field of 64.
# `offsets` takes in the numbers that follow it, of chunks those of a line too.
FIELDS = (
    *("input", "mask", "gate", "saved", "starts", "output", "indices", "geometry", "neighbours", "lines", "carry_in"),
    *("carry_in_step", "carry_out", "offsets", "length", "rows", "lane_bits", "piece", "stripes", "workspace"),
    *(*(f"further{n}" for n in range(1, 8)), "third", "fourth"),  # operands and outputs of a fused scan
    # of a scan with states: tensors with their strides, and the sizes of a launch
    *(*(f"operand{n}" for n in range(12)), *(f"result{n}" for n in range(16)), "sizes"),
)
COUNTED = {"neighbours", "sizes"}  # parameters that hold the number of adjacent lines of a call
CHOSEN = ((), ("lane_bits",), ("stripes",), ("rows", "lane_bits", "piece"))  # those chosen by the length, together


class Numbers(NamedTuple):
    """The numbers of one launch."""

    blocks: int  # more than MOST_BLOCKS: no GPU launches them
    threads: int  # per block
    shared_bytes: int  # dynamic shared memory of a block
    chosen: tuple[int, ...]  # values of the fields that ``Launch.chosen`` names
    workspace_bytes: int  # 0: the kernel has none


class Launch(NamedTuple):
    """What the launches of a kernel follow from: a name, whole numbers, names of fields, and tuples of these."""

    kernel: str  # name of the kernel's function, which says the spec and the strategy in profilers
    parameters: tuple[str, ...]  # fields of ScanArguments, in the order of the kernel's parameters
    threads: int  # per block; where stripes are chosen: at most
    shared_bytes: int = 0  # dynamic shared memory of a block
    adjacent: int = 1  # lines side by side, of which a block takes `width`; 0: as many as the call has neighbours
    width: int = 1  # lines of a block
    lead: int = 0  # items by which the first tile may begin before its line
    tile: int = 0  # items of a line that a block takes; 0: all
    resident: int = 0  # blocks per multiprocessor, at most; 0: one for each tile
    words: int = 0  # status words of a tile; 0: the kernel has no workspace
    statuses: tuple[int, ...] = ()  # a line has a status for each so many tiles, for each of these numbers
    chosen: tuple[str, ...] = ()  # the parameters that are chosen by the length: one of CHOSEN
    room: int = 0  # items that a lane (lane_bits) or a warp (stripes, piece) holds
    stripe: int = 0  # items of one access of a warp
    early: int = 0  # 1: it may begin before the kernel ahead on its stream has ended, for which it waits itself

    def numbers(self, lines: int, length: int, multiprocessors: int, neighbours: int = 0) -> Numbers:
        """Return the numbers of a launch for so many lines of ``length`` items, at least one each.

        ``neighbours`` of the lines are adjacent in some operand, by default all of them.
        """
        threads, width, chosen = self._choose(length)
        adjacent = self.adjacent or (not COUNTED.isdisjoint(self.parameters) and neighbours) or max(1, lines)
        groups = lines // adjacent * _ceil_div(adjacent, width)
        tiles = self.count_tiles(length)
        blocks = groups * tiles
        if self.resident and blocks <= MOST_BLOCKS:
            blocks = min(blocks, multiprocessors * self.resident)
        statuses = groups * self.width * sum(_ceil_div(tiles, span) for span in self.statuses)
        workspace_bytes = TICKET_BYTES + statuses * self.words * WORD_BYTES if self.words else 0
        return Numbers(blocks, threads, self.shared_bytes, chosen, workspace_bytes)

    def count_tiles(self, length: int) -> int:
        """Return the number of blocks that take a part each of a line of so many items."""
        return _ceil_div(length + self.lead, self.tile) if self.tile else 1

    def _choose(self, length: int) -> tuple[int, int, tuple[int, ...]]:
        """Return threads and lines of a block, and the values of the chosen parameters."""
        if "piece" in self.chosen:  # the most rows that a warp has room for
            rows, lane_bits = 1, 0
            while 2 * rows * length <= self.room:
                rows *= 2
            # as many lanes per row as fit without bank conflicts between lanes that start a row
            while lane_bits < 5 and (WARP >> lane_bits > rows or 2 << lane_bits < length & -length):
                lane_bits += 1
            piece = _ceil_div(length, 1 << lane_bits) | 1  # odd, so that neighbouring lanes start in different banks
            return self.threads, self.threads // WARP * rows, (rows, lane_bits, piece)
        if "stripes" in self.chosen:  # the fewest warps that hold a row, then the fewest stripes per warp
            warps = _ceil_div(length + self.lead, self.room)
            return WARP * warps, self.width, (_ceil_div(length + self.lead, warps * self.stripe),)
        if self.chosen:  # the fewest lanes that hold a row
            lane_bits = (_ceil_div(length, self.room) - 1).bit_length()
            return self.threads, self.threads >> lane_bits, (lane_bits,)
        return self.threads, self.width, ()

    @classmethod
    def read(cls, mapping: Mapping[str, Any]) -> Launch:
        """Return the launch whose ``_asdict``, or that from JSON, is ``mapping``.

        Raises TypeError or ValueError for anything else: another type, other fields, types, names or numbers.
        """
        if not isinstance(mapping, Mapping):
            raise TypeError(f"no kernel has the launch {format_value(mapping)}")
        values: dict[str, Any] = {name: tuple(each) if type(each) is list else each for name, each in mapping.items()}
        launch = cls(**values)
        tuples = launch.parameters, launch.statuses, launch.chosen
        numbers = (*(each for each in launch[1:] if each not in tuples), *launch.statuses)
        sound = (
            len(mapping) == len(cls._fields) and NAME.fullmatch(launch.kernel) is not None,
            all(type(each) is tuple for each in tuples),
            all(type(each) is int and 0 <= each <= MOST for each in numbers) and all(launch.statuses),
            launch.chosen in CHOSEN and set(launch.chosen) <= set(launch.parameters) <= set(FIELDS),
            len(set(launch.parameters)) == len(launch.parameters) and len(launch.statuses) <= MOST_STATUSES,
            launch.threads in range(WARP, MOST_THREADS + 1, WARP) and launch.width > 0,
            launch.room >= bool(launch.chosen) and launch.stripe >= ("stripes" in launch.chosen),
            ("workspace" in launch.parameters) is (launch.words > 0) and launch.tile >= bool(launch.statuses),
            launch.early in (0, 1),
        )
        if not all(sound):
            raise ValueError(f"no kernel has {format_value(mapping)}")
        return launch


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
