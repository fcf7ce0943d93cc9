"""Time forward scans of real workloads that are short of a copy's speed, against a copy of the bytes that must move.

The classes are those in which launch time, segments, half types or arithmetic count: returns and advantages with
resets, packed sequences, gated recurrences down columns, ``logcumsumexp``, token positions, few long rows, and the
decays of a state-space model. A fraction is the time of a copy of as many bytes over that of the scan; where a scan
takes a few microseconds, the microseconds beyond the copy say more. Values are compared with those of PyTorch's
operators first. Each cell is one line of JSON in the file of ``--output``, appended as soon as it is measured.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

import scanops
from benchmarks.common import append_line, build_kernels_of, parser, require_gpu
from benchmarks.fusion import decay_and_step
from benchmarks.timing import Timer
from scanops.runtime.kernels import default_target

BUDGET = 0.1  # seconds of runs for each figure
NEAR = {torch.float32: 1e-3, torch.bfloat16: 3e-2}  # relative to the greatest value
FULL = "for each item"
Shape = tuple[int, ...]
Function = Callable[..., Any]


class Cell(NamedTuple):
    """A forward scan of some tensors."""

    name: str
    inputs: tuple[torch.Tensor, ...]
    scan: Function  # of the inputs
    today: Function | None = None  # the same by PyTorch's operators alone, where one call does it


def cells(device: str, small: bool = False) -> Iterator[Callable[[], Cell]]:
    """Yield a maker of each cell, so that one cell's tensors are in memory at a time; ``small`` cuts dimensions."""
    for make, shape, *rest in _rows():
        cut = tuple(n if n <= 64 else 256 for n in shape) if small else shape
        cut = (1, *cut[1:]) if small and math.prod(cut) > 2**20 else cut
        yield partial(make, cut, *rest, device)


def _rows() -> Iterator[tuple[Any, ...]]:
    """Yield the function that makes a cell, its shape, and what else it takes."""
    for gate in (FULL, "one constant", "for each column", "for each step"):
        yield from (
            (with_flags, shape, gate) for shape in ((2048, 8192), (4096, 32), (1024, 24), (8192, 16), (128, 512))
        )
    for shape, mean, op in (
        ((2**22, 64), 1024, "sum"),
        ((2**28,), 100, "sum"),
        ((2**20,), 64, "prod"),
        ((1, 32768, 32), 1024, "sum"),
        ((1, 32768, 16, 128), 1024, "sum"),
    ):
        yield (with_offsets, shape, mean, op)
    for shape in ((8, 4096, 2560), (4, 8192, 1024), (1, 8192, 5632)):
        yield (recurrence, shape, torch.bfloat16)
    for shape in ((16, 2048, 128), (64, 1000, 100), (2, 2048, 81920)):
        yield (recurrence, shape, torch.float32)
    for shape, dim in (((100_000,), 0), ((10_000_000,), 0), ((20_000_000,), 0), ((64, 1000, 100), 1)):
        yield (plain, shape, "logcumsumexp", dim, torch.float32)
    yield (plain, (64, 16, 512, 512), "logcumsumexp", -2, torch.float32)
    for shape, dim in (((16384, 8192), 1), ((1024, 128256), 1), ((8, 4096, 2560), 1)):
        yield (plain, shape, "logcumsumexp", dim, torch.bfloat16)
    for shape in ((65536, 64), (131072, 256), (16384, 64), (4096, 8)):
        yield (plain, shape, "cumsum", 0, torch.int32)
    yield (plain, (8192, 8192), "cummax", 0, torch.float32)
    yield (plain, (2**24,), "cumsum", 0, torch.int8)
    for shape in ((1, 128256), (8, 128256), (64, 128256), (1, 152064), (8, 152064), (64, 152064), (64, 32768)):
        yield (plain, shape, "cumsum", 1, torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        for shape in ((1, 4096, 48), (8, 2048, 64), (8, 4096, 80), (2, 32768, 80)):
            yield (decays, shape, dtype)


def _random(shape: Shape, dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.randn(shape, device=device, generator=torch.Generator(device).manual_seed(2026)).to(dtype)


def _title(what: str, shape: Shape, dim: int, dtype: torch.dtype) -> str:
    return f"{what}, {' x '.join(map(str, shape))}, dim {dim}, {str(dtype).removeprefix('torch.')}"


def with_flags(shape: Shape, kind: str, device: str) -> Cell:
    """Returns or advantages: a recurrence along dim 0 in reverse, one item in a hundred a reset."""
    forms = {FULL: shape, "one constant": (), "for each column": shape[1:], "for each step": (shape[0], 1)}
    gate, x = _random(forms[kind], torch.float32, device).sigmoid(), _random(shape, torch.float32, device)
    starts = torch.rand(shape, device=device, generator=torch.Generator(device).manual_seed(7)) < 0.01
    return Cell(
        _title(f"linear with flags, reverse{f', gate {kind}' * (kind != FULL)}", shape, 0, torch.float32),
        (gate, x, starts),
        lambda gate, x, starts: scanops.linear_scan(gate, x, 0, reverse=True, segment_starts=starts),
    )


def with_offsets(shape: Shape, mean: int, op: str, device: str) -> Cell:
    """Packed sequences of some ``mean`` items, scanned along their dimension."""
    dim = 1 if len(shape) > 2 else 0
    length = shape[dim]
    random = torch.Generator(device).manual_seed(7)
    cuts = torch.randint(1, length, (max(1, length // mean - 1),), device=device, generator=random).sort().values
    edges = torch.tensor([0, length], device=device)
    offsets = torch.cat([edges[:1], cuts, edges[1:]]).int()
    x = _random(shape, torch.float32, device)
    x = 1 + x / 100 if op == "prod" else x
    return Cell(
        _title(f"{op} with offsets, mean {mean}", shape, dim, torch.float32),
        (x, offsets),
        lambda x, offsets: scanops.scan(x, op, dim, offsets=offsets),
    )


def recurrence(shape: Shape, dtype: torch.dtype, device: str) -> Cell:
    """A gated recurrence down columns."""
    gate, x = _random(shape, torch.float32, device).sigmoid().to(dtype), _random(shape, dtype, device)
    return Cell(_title("linear", shape, 1, dtype), (gate, x), lambda g, x: scanops.linear_scan(g, x, 1))


def plain(shape: Shape, name: str, dim: int, dtype: torch.dtype, device: str) -> Cell:
    """A scan that torch has as well."""
    x = _random(shape, torch.float32, device)
    x = (3 * x).to(dtype) if dtype.is_floating_point else (x > 1.5).to(dtype)
    ours, theirs, options = getattr(scanops, name), getattr(torch, name), {}
    if dtype == torch.int32:
        options = {"dtype": torch.int32}
    return Cell(
        _title(name, shape, dim, dtype),
        (x,),
        lambda x: ours(x, dim, **options),
        lambda x: theirs(x, dim=dim, **options),
    )


def decays(shape: Shape, dtype: torch.dtype, device: str) -> Cell:
    """Decays and steps of a state-space model in chunks of 256, from logits: two results in float32."""
    batch, length, heads = shape
    x = _random((batch * length // 256, 256, heads), dtype, device)
    bias, a = _random((heads,), torch.float32, device), -_random((heads,), torch.float32, device).exp()

    def scan(x: torch.Tensor, bias: torch.Tensor, a: torch.Tensor) -> Any:
        steps = lambda x, bias, a: torch.nn.functional.softplus(x.float() + bias) * a  # noqa: E731
        return scanops.scan(
            (x, bias, a), "sum", 1, map=steps, then=lambda y, x, b, a: decay_and_step(y, x.float(), b, a)
        )

    return Cell(_title("decays and steps, chunks of 256", shape, 1, dtype), (x, bias, a), scan)


def calls() -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yield for each scan its name, the items of its greatest tensor, and a function that runs it."""
    for make in cells("cuda"):
        cell = make()
        yield cell.name, max(each.numel() for each in cell.inputs), partial(cell.scan, *cell.inputs)
        del cell


def worst_difference(cell: Cell) -> float:
    """The greatest difference of a result from that of PyTorch's operators, over the greatest result."""
    found = _results(cell.scan(*cell.inputs))
    with scanops.policy("fallback"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # each call says that no kernel serves it
        expected = _results(cell.scan(*cell.inputs))
    pairs = zip(found, expected, strict=True)
    return max(float((a - b).abs().max()) / max(float(b.abs().max()), 1e-30) for a, b in pairs)


def _results(found: Any) -> tuple[torch.Tensor, ...]:
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)


def measure(cell: Cell, timer: Timer) -> dict[str, Any]:
    """Return the figures of a cell. Raises AssertionError where a result is wrong."""
    off = worst_difference(cell)
    moved = sum(each.nbytes for each in (*cell.inputs, *_results(cell.scan(*cell.inputs))))
    near = max(NEAR.get(each.dtype, 0.0) for each in cell.inputs)
    assert off <= near, f"{cell.name}: a result is {off} off"
    with scanops.record() as used:
        cell.scan(*cell.inputs)
    runs: dict[str, Callable[[], object]] = {"scanops": partial(cell.scan, *cell.inputs)}
    if cell.today is not None:
        runs["torch"] = partial(cell.today, *cell.inputs)
    times = timer.samples({"copy": timer.copy(moved), **runs}, moved)
    us = {name: round(1e3 * each.ms, 2) for name, each in times.items()}
    beyond, fraction = us["scanops"] - us["copy"], us["copy"] / us["scanops"]
    return {
        "cell": cell.name,
        "bytes": moved,
        "kernels": [str(spec) for spec in used],
        "off": off,
        "us": us,
        "beyond_copy_us": round(beyond, 2),
        "fraction": round(fraction, 4),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the scans and print a line for each."""
    given = parser(__doc__, filtered="scans").parse_args(arguments)
    require_gpu()
    timer, wrong = Timer(BUDGET), 0
    for make in cells("cuda"):
        cell = make()
        if given.filter not in cell.name:
            continue
        try:
            build_kernels_of([partial(cell.scan, *cell.inputs)], default_target())
            found = measure(cell, timer)
        except Exception as problem:  # one failed cell is a result, not the end of the run
            wrong += 1
            print(f"{cell.name}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
            continue
        beside = f"torch {found['us']['torch']:.1f}" if "torch" in found["us"] else ""
        times = f"{found['us']['scanops']:9.1f} us  copy + {found['beyond_copy_us']:6.1f}"
        print(f"{found['fraction']:.3f}  {times}  {cell.name}  {beside}", flush=True)
        append_line(given.output, found)
        del cell
        torch.cuda.empty_cache()
    return min(wrong, 1)
