"""A launch as data: from a kernel's ``Launch`` and a shape follow grid, block, parameters and workspace.

``Plan.launch`` gives it. A library has the same formulas in C (templates/stages/launch.cuh.j2); what launches a cubin
reads a ``Launch`` from its manifest. This module needs no plan and no template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["FIELDS", "MOST_BLOCKS", "Launch", "Numbers"]

WARP = 32
MOST_BLOCKS = 2**31 - 1  # of a grid; a launch of more tiles is refused, even if fewer blocks are resident
MOST_LANE_BITS = 5  # log2 of the lanes of a warp
TICKET_BYTES, WORD_BYTES = 16, 8  # of a workspace: its head, and a status word
MOST_THREADS = 1024  # of a block
TUPLES = ("parameters", "statuses", "chosen")  # fields of a Launch
MOST = 2**40  # of any number in a Launch: a product of two and a shape is an int in any case

# The fields of ScanArguments whose bytes can be a kernel's parameter. Numbers are little-endian, so that a parameter of
# 32 bits is the low half of a field of 64; the number of segments follows the offsets, and both are one parameter.
FIELDS = (
    *("input", "mask", "gate", "starts", "saved", "output", "indices", "geometry", "neighbours", "lines"),
    *("carry_in", "carry_in_step", "carry_out", "offsets", "length", "rows", "lane_bits", "piece", "stripes"),
    "workspace",
)


class Numbers(NamedTuple):
    """The numbers of one launch."""

    blocks: int  # more than MOST_BLOCKS: no GPU launches them
    threads: int  # per block
    shared_bytes: int  # dynamic shared memory of a block
    chosen: tuple[int, ...]  # values of the fields that ``Launch.chosen`` names
    workspace_bytes: int  # 0: the kernel has none


class Launch(NamedTuple):
    """What the launches of a kernel follow from: whole numbers, names of fields, and tuples of these."""

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
    chosen: tuple[str, ...] = ()  # the parameters that are chosen by the length: a key of RULES
    room: int = 0  # items that a lane (lane_bits) or a warp (stripes, piece) holds
    stripe: int = 0  # items of one access of a warp

    def numbers(self, lines: int, length: int, multiprocessors: int, neighbours: int = 0) -> Numbers:
        """Return the numbers of a launch for so many lines of ``length`` items, at least one each.

        ``neighbours`` of the lines are adjacent in some operand, by default all of them.
        """
        threads, width, chosen = RULES[self.chosen](self, length)
        adjacent = self.adjacent or neighbours or max(1, lines)
        groups = lines // adjacent * _ceil_div(adjacent, width)
        tiles = _ceil_div(length + self.lead, self.tile) if self.tile else 1
        blocks = groups * tiles
        if self.resident and blocks <= MOST_BLOCKS:
            blocks = min(blocks, multiprocessors * self.resident)
        statuses = groups * self.width * sum(_ceil_div(tiles, span) for span in self.statuses)
        workspace_bytes = TICKET_BYTES + statuses * self.words * WORD_BYTES if self.words else 0
        return Numbers(blocks, threads, self.shared_bytes, chosen, workspace_bytes)

    @classmethod
    def read(cls, mapping: Mapping[str, Any]) -> Launch:
        """Return the launch whose ``_asdict``, or that from JSON, is ``mapping``.

        Raises TypeError for a value of another type, and ValueError for other fields, names or numbers.
        """
        if set(mapping) != set(cls._fields):
            raise ValueError(f"launch: fields {sorted(mapping)}; expected {', '.join(cls._fields)}")
        launch = cls(**{name: _read(name, value) for name, value in mapping.items()})
        known = launch.chosen in RULES and set(launch.chosen) <= set(launch.parameters) <= set(FIELDS)
        whole = launch.threads % WARP == 0 and WARP <= launch.threads <= MOST_THREADS and launch.width > 0
        holds = launch.room >= bool(launch.chosen) and launch.stripe >= ("stripes" in launch.chosen)
        words = ("workspace" in launch.parameters) is (launch.words > 0) and all(launch.statuses)
        if not (known and whole and holds and words):
            raise ValueError(f"launch: no kernel has {launch}")
        return launch


def _read(name: str, value: Any) -> Any:
    """Return the value of a field, with tuples for the lists of JSON."""
    items = tuple(value) if isinstance(value, list | tuple) else (value,)
    kind = str if name in ("parameters", "chosen") else int
    if any(type(item) is not kind for item in items) or isinstance(value, list | tuple) is not (name in TUPLES):
        raise TypeError(f"launch: {name} {value!r}; expected {'a list of ' * (name in TUPLES)}{kind.__name__}")
    if len(items) > len(FIELDS) or (kind is int and not all(0 <= item <= MOST for item in items)):
        raise ValueError(f"launch: {name} {value!r}; expected at most {len(FIELDS)} of 0 to {MOST}")
    return items if name in TUPLES else value


# ---- numbers chosen by the length: (threads of a block, lines of a block, values of the chosen fields)


def _as_planned(launch: Launch, length: int) -> tuple[int, int, tuple[int, ...]]:
    """Choose nothing: all numbers of a block are constants."""
    return launch.threads, launch.width, ()


def _lanes(launch: Launch, length: int) -> tuple[int, int, tuple[int, ...]]:
    """Choose the fewest lanes that hold a line."""
    lane_bits = (_ceil_div(length, launch.room) - 1).bit_length()
    return launch.threads, launch.threads >> lane_bits, (lane_bits,)


def _stripes(launch: Launch, length: int) -> tuple[int, int, tuple[int, ...]]:
    """Choose the fewest warps that hold a line, then the fewest stripes per warp."""
    warps = _ceil_div(length + launch.lead, launch.room)
    return WARP * warps, launch.width, (_ceil_div(length + launch.lead, warps * launch.stripe),)


def _pieces(launch: Launch, length: int) -> tuple[int, int, tuple[int, ...]]:
    """Choose the most rows that a warp has room for, and as many lanes per row as have no bank conflicts."""
    rows, lane_bits = 1, 0
    while 2 * rows * length <= launch.room:
        rows *= 2
    while lane_bits < MOST_LANE_BITS and (WARP >> lane_bits > rows or 2 << lane_bits < length & -length):
        lane_bits += 1
    piece = _ceil_div(length, 1 << lane_bits) | 1  # odd, so that neighbouring lanes start in different banks
    return launch.threads, launch.threads // WARP * rows, (rows, lane_bits, piece)


RULES: dict[tuple[str, ...], Callable[[Launch, int], tuple[int, int, tuple[int, ...]]]] = {
    (): _as_planned,
    ("lane_bits",): _lanes,
    ("stripes",): _stripes,
    ("rows", "lane_bits", "piece"): _pieces,
}


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
