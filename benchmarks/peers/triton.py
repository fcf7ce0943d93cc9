"""Triton kernels of ``triton_kernels``, tuned over tiles and numbers of warps; the fastest counts."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass

import torch

from benchmarks.cells import Case, Cell
from benchmarks.peers.base import Candidate, Peer

__all__ = ["Call", "Triton", "configurations"]

WIDEST_TILE = 65536  # items of a row that one program holds in registers
LONGEST_PARTS = 1024  # parts of a line, whose totals each program adds up
PROGRAMS = 1024  # enough to fill a GPU several times


Constants = tuple[tuple[str, "int | str"], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One launch: kernel, grid, arguments and compile-time constants."""

    kernel: str  # in triton_kernels
    tensors: tuple[str, ...]  # names among x, mask, y and totals, in the order of its parameters
    grid: tuple[int, ...]
    numbers: tuple[int, ...]
    constants: Constants  # SUM is the name of a dtype in triton.language
    warps: int


Way = tuple[str, tuple[Call, ...]]  # a label, the launches


class Triton(Peer):
    """Triton kernels as a user writes and tunes them for rows, columns and long lines."""

    name = "Triton"

    def reason(self, cell: Cell) -> str:
        if not importlib.util.find_spec("triton"):
            return "no Triton here"
        if cell.inner > 1 and not (cell.what.plain and cell.what.op == "sum"):
            return "its kernels for columns compute plain sums"
        return super().reason(cell)

    def candidates(self, case: Case) -> list[Candidate]:
        return [Candidate(label, _Chain(case, calls)) for label, calls in configurations(case.cell)]


class _Chain:
    """The launches of one configuration on a case."""

    def __init__(self, case: Case, calls: tuple[Call, ...]) -> None:
        kernels = importlib.import_module("benchmarks.peers.triton_kernels")
        language = importlib.import_module("triton.language")
        tensors = {"x": case.x, "y": case.y, "mask": case.x if case.mask is None else case.mask}
        if any("totals" in call.tensors for call in calls):
            sums = getattr(torch, _sum_type(case.cell))
            parts = max(call.numbers[-1] for call in calls)
            lines = case.cell.outer * case.cell.inner
            tensors["totals"] = torch.empty(lines * parts, dtype=sums, device=case.x.device)
        self._y = case.y
        self._launches = [
            (
                getattr(kernels, call.kernel)[call.grid],
                (*(tensors[name] for name in call.tensors), *call.numbers),
                {**_constants(call, language), "num_warps": call.warps},
            )
            for call in calls
        ]

    def __call__(self) -> torch.Tensor:
        for launch, arguments, constants in self._launches:
            launch(*arguments, **constants)
        return self._y


def _constants(call: Call, language: object) -> dict[str, object]:
    return {name: getattr(language, value) if isinstance(value, str) else value for name, value in call.constants}


def _sum_type(cell: Cell) -> str:
    return "float32" if cell.what.output.name in ("bfloat16", "float16") else cell.what.output.name


# ---- what is tried ----


def configurations(cell: Cell) -> list[Way]:
    """Return the (label, launches) of every configuration to try on a cell."""
    if cell.inner > 1:
        return _columns(cell)
    lines, found = cell.outer, list[Way]()
    if cell.length <= WIDEST_TILE and lines * cell.length > 2**20:
        found += _whole_rows(cell)
    if cell.length >= 4096:
        found += _loop_over_rows(cell, parts=1) if lines >= 64 else []
        found += (
            _loop_over_rows(cell, parts=0) if lines < PROGRAMS and cell.what.plain and cell.what.op == "sum" else []
        )
    return found or _whole_rows(cell)


def _flags(cell: Cell) -> Constants:
    what = cell.what
    return (
        ("SUM", _sum_type(cell)),
        ("PRODUCT", int(what.op == "prod")),
        ("REVERSE", int(what.reverse)),
        ("EXCLUSIVE", int(what.exclusive)),
        ("MASKED", int(what.masked)),
    )


def _whole_rows(cell: Cell) -> list[Way]:
    """Return configurations whose programs scan whole rows."""
    block = _power(cell.length)
    shapes = {
        (max(tile, block), each) for tile in (1024, 4096) for each in ((4, 8, 16) if block < 32768 else (16, 32, 64))
    }
    found: list[Way] = []
    for tile, each in sorted(shapes):
        rows, warps = tile // block, tile // (32 * each)
        if not 1 <= warps <= 32:
            continue
        call = Call(
            kernel="whole_rows",
            tensors=("x", "mask", "y"),
            grid=(-(-cell.outer // rows),),
            numbers=(cell.outer,),
            constants=(("LENGTH", cell.length), ("ROWS", rows), ("BLOCK", block), *_flags(cell)),
            warps=warps,
        )
        found.append((f"{rows} rows of {block}, {warps} warps", (call,)))
    return found


def _loop_over_rows(cell: Cell, parts: int) -> list[Way]:
    """Return configurations that loop over the tiles of a row, or of parts of it after a pass that sums the parts.

    ``parts`` 0 chooses as many parts as fill a GPU.
    """
    found: list[Way] = []
    for block, warps in ((2048, 4), (4096, 8), (8192, 8), (8192, 16)):
        if block > _power(cell.length):
            continue
        number, chunk = 1, cell.length
        if parts != 1:
            number, chunk = _split(cell.length, block, min(LONGEST_PARTS, PROGRAMS // cell.outer))
        grid = (cell.outer, number)  # the second and the third may be 65535 at most
        calls = _passes("row", cell, grid, (cell.length, chunk, number), (("BLOCK", block),), warps)
        found.append((f"{number} parts, tiles of {block}, {warps} warps", calls))
    return found


def _columns(cell: Cell) -> list[Way]:
    """Return configurations of tiles of adjacent columns; few lines are split into parts."""
    found: dict[Way, None] = {}
    for items, columns, warps in ((64, 32, 4), (128, 32, 8), (32, 64, 4), (64, 64, 8), (32, 128, 8), (16, 128, 4)):
        width = min(columns, _power(cell.inner))
        block = items * columns // width  # the same tile where columns are few
        across = -(-cell.inner // width)
        programs = across * cell.outer
        most = min(LONGEST_PARTS // 4, PROGRAMS // programs) if programs < PROGRAMS // 4 else 1
        number, chunk = _split(cell.length, block, most)
        grid, numbers = (across, number, cell.outer), (cell.length, cell.inner, chunk, number)
        calls = _passes("column", cell, grid, numbers, (("BLOCK", block), ("COLUMNS", width)), warps)
        found[f"{number} parts, tiles of {block} x {width}, {warps} warps", calls] = None
    return list(found)


def _split(length: int, block: int, most: int) -> tuple[int, int]:
    """Return the number of parts of a line, ``most`` at most, and the items of each, which are whole tiles."""
    wanted = max(1, min(most, -(-length // block)))
    chunk = -(-length // (wanted * block)) * block
    return -(-length // chunk), chunk


def _passes(
    kind: str, cell: Cell, grid: tuple[int, ...], numbers: tuple[int, ...], tile: Constants, warps: int
) -> tuple[Call, ...]:
    """Return the launch that scans the parts of each line, after one that sums them where lines have several."""
    flags, several = _flags(cell), numbers[-1] > 1
    tensors = ("x", "mask", "y") if kind == "row" else ("x", "y")
    constants = (*tile, ("CHUNKS", _power(numbers[-1])), *(flags if kind == "row" else flags[:1]))
    common = {"grid": grid, "numbers": numbers, "warps": warps}
    totals = Call(kernel=f"{kind}_totals", tensors=("x", "totals"), constants=(*tile, flags[0]), **common)  # type: ignore[arg-type]
    tensors = (*tensors, "totals" if several else "x")
    scan = Call(kernel=f"{kind}_chunks", tensors=tensors, constants=constants, **common)  # type: ignore[arg-type]
    return (totals, scan) if several else (scan,)


def _power(number: int) -> int:
    """Return the smallest power of two that is at least ``number``."""
    return 1 << (number - 1).bit_length()
