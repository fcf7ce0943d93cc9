"""Measure what the grid leaves out against a copy: other operators, gates, segments, carries, accumulators, dtypes.

Every figure is the time of a device-to-device copy of the bytes that must move, over the time of the scan.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import scanops
from benchmarks.common import Wanted, build_kernels, parser, require_gpu, write
from benchmarks.timing import Timer
from scanops.codegen.lines import are_few
from scanops.requests.request import make_request
from scanops.runtime.kernels import default_target

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A scan to time, with the bytes that it must move."""

    name: str
    op: str
    x: torch.Tensor
    options: dict[str, Any]  # of make_request
    read: int  # bytes in addition to those of x
    written: int  # bytes

    def run(self, dim: int) -> object:
        """Call the public function of the operator."""
        options = dict(self.options)
        renamed = {"starts": "segment_starts", "final": "return_final"}
        named = {renamed.get(name, name): value for name, value in options.items() if name != "gate"}
        if "gate" in options:
            return scanops.linear_scan(options["gate"], self.x, dim, **named)
        function = getattr(scanops, self.op, None)
        return function(self.x, dim, **named) if function else scanops.scan(self.x, self.op, dim, **named)

    @property
    def moved(self) -> int:
        """The bytes that the scan must move."""
        return self.x.nbytes + self.read + self.written


def scans(shape: tuple[int, ...], dim: int) -> Iterator[Scan]:
    """Yield every scan that is timed on one shape."""
    n, length = math.prod(shape), shape[dim]
    lines = [size for d, size in enumerate(shape) if d != dim]
    x, gate = torch.randn(shape, device="cuda"), torch.rand(shape, device="cuda")
    flags = torch.rand(shape, device="cuda") < 1 / SEGMENT
    state = torch.randn(lines, device="cuda")
    each = gate.select(dim, 0).unsqueeze(dim).contiguous()
    cuts = torch.randint(1, length, (max(1, length // SEGMENT),)).sort().values
    offsets = torch.cat([torch.tensor([0]), cuts, torch.tensor([length])]).int().cuda()

    def scan(name: str, op: str, *, of: torch.Tensor = x, read: int = 0, bytes_out: int = 4, **options: object) -> Scan:
        return Scan(name=name, op=op, x=of, options=options, read=read, written=n * bytes_out)

    yield scan("sum", "sum")
    yield scan("max", "max")
    yield scan("cummax", "cummax", bytes_out=12)
    yield scan("logcumsumexp", "logcumsumexp")
    yield scan("linear", "linear", gate=gate, read=gate.nbytes)
    yield scan("linear, reverse", "linear", gate=gate, read=gate.nbytes, reverse=True)
    yield scan("linear, flags", "linear", gate=gate, starts=flags, read=gate.nbytes + n)
    for dtype in (torch.bfloat16, torch.complex64):
        items, gates = x.to(dtype), gate.to(dtype)
        yield Scan(
            name=f"linear, {str(dtype).removeprefix('torch.')}",
            op="linear",
            x=items,
            options={"gate": gates},
            read=gates.nbytes,
            written=items.nbytes,
        )
    yield scan("logcumsumexp, bfloat16", "logcumsumexp", of=x.bfloat16(), bytes_out=2)
    yield scan("linear, a gate for each line", "linear", gate=each, read=each.nbytes)
    yield scan("sum, flags", "sum", starts=flags, read=n)
    yield scan("sum, offsets", "sum", offsets=offsets, read=offsets.nbytes)
    yield scan("sum, initial and final", "sum", initial=state, final=True, read=2 * state.nbytes)
    yield scan("sum, compensated", "sum", accumulate="compensated")
    yield scan("sum, in float64", "sum", accumulate=torch.float64)
    if shape[-1] % 2 == 0:
        pairs = torch.view_as_complex(x.reshape(*shape[:-1], shape[-1] // 2, 2))
        yield scan("sum, complex64", "sum", of=pairs)
    yield scan("sum, float8 to float16", "sum", of=x.to(torch.float8_e4m3fn), bytes_out=2, dtype=torch.float16)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every scan on every shape and print a line for each."""
    given = parser(__doc__, filtered="scans").parse_args(arguments)
    require_gpu()
    stopwatch, found = Timer(BUDGET), {}
    for shape, dim in SHAPES:
        for scan in built([scan for scan in scans(shape, dim) if given.filter in scan.name], dim):
            name = cell_name(shape, dim, scan)
            found[name] = _of_a_copy(stopwatch, functools.partial(scan.run, dim), scan.moved)
            print(f"{found[name]:6.3f}  {name}", flush=True)
    write(given.output, {"of_a_copy": found})
    return 0


def cell_name(shape: Sequence[int], dim: int, scan: Scan) -> str:
    """Return the name of a scan of one shape in the results."""
    return f"{' x '.join(map(str, shape))}, dim {dim}: {scan.name}"


def built(scans: list[Scan], dim: int) -> list[Scan]:
    """Return the scans, with their kernels built."""
    build_kernels((_spec(scan, dim) for scan in scans), default_target())
    return scans


def _spec(scan: Scan, dim: int) -> Wanted:
    request = make_request(scan.x, scan.op, dim, **scan.options)
    out = torch.empty(scan.x.shape, dtype=request.dtype, device="cuda")
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    spec = request.spec(out, multiprocessors)
    return spec, are_few(spec, request.line_shape.numel(), multiprocessors)


def _of_a_copy(stopwatch: Timer, run: Callable[[], object], moved: int) -> float:
    source = torch.empty(moved // 8, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    run()  # the first call looks the kernel up
    times = stopwatch.samples({"copy": lambda: target.copy_(source), "scan": run}, moved)
    return times["copy"].ms / times["scan"].ms
