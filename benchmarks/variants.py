"""Measure what the grid leaves out against a copy: other operators, gates, segments, carries, accumulators, dtypes.

Every figure is the time of a device-to-device copy of the bytes that must move, over the time of the scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.common import build_kernels, parser, write
from benchmarks.scans import Scan
from benchmarks.timing import Timer
from scanops.measure import require_gpu
from scanops.requests.call import Call
from scanops.requests.request import Inputs

SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((32768, 4096), 1),
    ((4096, 32768), 1),
    ((256, 2**19), 1),
    ((131072, 1000), 1),
    ((2**20, 127), 1),
    ((64, 4096, 512), 1),
    ((32768, 4096), 0),
    ((16, 4096, 2560), 1),
    ((8, 65536, 256), 1),
)
BUDGET = 0.15  # seconds of runs for each figure
SEGMENT = 100  # items of a segment, on average


def scans(shape: tuple[int, ...], dim: int, device: str = "cuda") -> Iterator[Scan]:
    """Yield every scan that is timed on one shape, named as in the results."""
    length, lines = shape[dim], [size for d, size in enumerate(shape) if d != dim]
    x, gate = torch.randn(shape, device=device), torch.rand(shape, device=device)
    flags = torch.rand(shape, device=device) < 1 / SEGMENT
    state = torch.randn(lines, device=device)
    each = gate.select(dim, 0).unsqueeze(dim).contiguous()
    cuts = torch.randint(1, length, (max(1, length // SEGMENT),)).sort().values
    offsets = torch.cat([torch.tensor([0]), cuts, torch.tensor([length])]).int().to(device)

    def scan(name: str, op: str, of: torch.Tensor = x, **options: Any) -> Scan:
        tensors = {name: options.pop(name) for name in Inputs._fields if name in options}
        title = f"{' x '.join(map(str, shape))}, dim {dim}: {name}"
        return Scan(name=title, call=Call(op, dim, **options), inputs=Inputs(of, **tensors))

    yield scan("sum", "sum")
    yield scan("max", "max")
    yield scan("cummax", "cummax")
    yield scan("logcumsumexp", "logcumsumexp")
    yield scan("linear", "linear", gate=gate)
    yield scan("linear, reverse", "linear", gate=gate, reverse=True)
    yield scan("linear, flags", "linear", gate=gate, starts=flags)
    for dtype in (torch.bfloat16, torch.complex64):
        yield scan(f"linear, {str(dtype).removeprefix('torch.')}", "linear", x.to(dtype), gate=gate.to(dtype))
    yield scan("logcumsumexp, bfloat16", "logcumsumexp", x.bfloat16())
    yield scan("linear, a gate for each line", "linear", gate=each)
    yield scan("sum, flags", "sum", starts=flags)
    yield scan("sum, offsets", "sum", offsets=offsets)
    yield scan("sum, initial and final", "sum", initial=state, final=True)
    yield scan("sum, compensated", "sum", accumulate="compensated")
    yield scan("sum, in float64", "sum", accumulate=torch.float64)
    if shape[-1] % 2 == 0:
        yield scan("sum, complex64", "sum", torch.view_as_complex(x.reshape(*shape[:-1], shape[-1] // 2, 2)))
    yield scan("sum, float8 to float16", "sum", x.to(torch.float8_e4m3fn), dtype=torch.float16)


def built(shape: tuple[int, ...], dim: int, names: Sequence[str] | None = None, text: str = "") -> list[Scan]:
    """Return the scans of a shape that have one of these names, or one with this text in it, with kernels built."""
    target, _, multiprocessors = require_gpu()
    chosen = [scan for scan in scans(shape, dim) if (text in scan.name if names is None else scan.name in names)]
    build_kernels(scan.key(target, multiprocessors) for scan in chosen)
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every scan on every shape and print a line for each."""
    given = parser(__doc__, filtered="scans").parse_args(arguments)
    require_gpu()
    timer, found = Timer(BUDGET), {}
    for shape, dim in SHAPES:
        for scan in built(shape, dim, text=given.filter):
            found[scan.name] = timer.of_a_copy(scan.run, scan.moved)
            print(f"{found[scan.name]:6.3f}  {scan.name}", flush=True)
    write(given.output, {"of_a_copy": found})
    return 0
