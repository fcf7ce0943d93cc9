"""Time the scans of real programs against the code that their users run today, eager and compiled.

For each workload: microseconds of scanops, of today's code, and of today's code under torch.compile; and, where the
bytes that must move are many, the fraction of a copy of those bytes. Workloads of training are also timed forward plus
backward. Results are compared first; ``--small`` compares small tensors on any device and times nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch._higher_order_ops import associative_scan
from torch.utils._pytree import tree_map

import scanops
from benchmarks.common import Row, build_kernels_of, parser, require_gpu, write
from benchmarks.timing import Timer
from scanops.runtime.kernels import default_target

BUDGET = 0.1  # seconds of runs for each figure
SLOW_STEPS = 8192  # loops of more steps are not timed: seconds each
Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Any]  # of the inputs: a tensor, or a tuple of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A scan of a real program: its tensors, the function by scanops, and today's."""

    name: str
    inputs: Tensors
    ours: Function
    today: Function
    compiled: Function | None = None  # what is compiled, where that is not today's code
    moved: int  # bytes that must move, forward
    trains: bool = False


def recurrence(a: torch.Tensor, b: torch.Tensor, dim: int) -> torch.Tensor:
    """h[t] = a[t] h[t-1] + b[t] as a loop over time."""
    h, results = torch.zeros_like(b.select(dim, 0)), []
    for step_a, step_b in zip(a.unbind(dim), b.unbind(dim), strict=True):
        h = step_a * h + step_b
        results.append(h)
    return torch.stack(results, dim)


def associative(a: torch.Tensor, b: torch.Tensor, dim: int) -> torch.Tensor:
    """h[t] = a[t] h[t-1] + b[t] by torch's associative scan, which has to be compiled."""

    def combine(older: Tensors, newer: Tensors) -> Tensors:
        return newer[0] * older[0], newer[0] * older[1] + newer[1]

    return associative_scan(combine, (a, b), dim)[1]


def flipped(scan: Function, x: torch.Tensor, dim: int) -> Any:
    """A reverse scan by a forward one, between two flips."""
    return scan(x.flip(dim), dim).flip(dim)


def workloads(device: str, small: bool = False) -> Iterator[Workload]:
    """Yield the workloads; ``small`` cuts every dimension above 300 to 300 or less."""

    def size(*shape: int) -> tuple[int, ...]:
        return tuple(n if n <= 300 else 256 + n % 8 for n in shape) if small else shape

    def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.rand(size(*shape), device=device).to(dtype)

    def row(name: str, inputs: Tensors, ours: Function, today: Function, out_bytes: int = 4, **rest: Any) -> Workload:
        moved = sum(each.nbytes for each in inputs) + max(each.numel() for each in inputs) * out_bytes
        return Workload(name=name, inputs=inputs, ours=ours, today=today, moved=moved, **rest)

    def summed(
        name: str, x: torch.Tensor, dim: int, today: Function | None = None, out_bytes: int = 4, **options: Any
    ) -> Workload:
        theirs = today or (lambda x: torch.cumsum(x, dim, dtype=options.get("dtype")))
        return row(name, (x,), lambda x: scanops.cumsum(x, dim, **options), theirs, out_bytes)

    def padded(
        name: str, x: torch.Tensor, out_bytes: int, dtype: torch.dtype | None = None, trains: bool = False
    ) -> Workload:
        return row(
            name,
            (x,),
            lambda x: scanops.cumsum(x, -1, dtype=dtype, complete=True),
            lambda x: F.pad(torch.cumsum(x, -1, dtype=dtype), (1, 0)),
            out_bytes,
            trains=trains,
        )

    def gated(name: str, a: torch.Tensor, b: torch.Tensor, dim: int, reverse: bool = False) -> Workload:
        def by(scan: Function) -> Function:
            return (lambda a, b: scan(a.flip(dim), b.flip(dim), dim).flip(dim)) if reverse else partial(scan, dim=dim)

        return row(
            name,
            (a, b),
            lambda a, b: scanops.linear_scan(a, b, dim, reverse=reverse),
            by(recurrence),
            b.itemsize,
            compiled=by(associative),
            trains=not reverse,
        )

    def product(name: str, x: torch.Tensor) -> Workload:
        return row(
            f"{name}, exclusive product",
            (x,),
            lambda x: scanops.scan(x, "prod", -1, map=lambda x: 1 - x, exclusive=True),
            lambda x: torch.cumprod(F.pad(1 - x, (1, 0), value=1.0), -1)[..., :-1],
            trains=True,
        )

    int32, bf16 = torch.int32, torch.bfloat16
    for batch in (1, 32, 256):
        yield summed(f"top-p cut, {batch} x 128256", random(batch, 128256), -1)
    name, chosen = "positions in a mixture of experts, 65536 x 64 int64, dim 0", (random(65536, 64) < 0.03).long()
    yield summed(name, chosen, 0, lambda x: torch.cumsum(x, 0) - 1, 8, initial=-1)
    name, counts = "offsets of experts, 64 x 4096 int32, exclusive", (random(64, 4096) * 9).int()
    yield summed(name, counts, -1, lambda x: torch.cumsum(x, -1, dtype=int32) - x, exclusive=True, dtype=int32)
    yield padded("cu_seqlens, 1024 int32", (random(1024) * 99).int(), 4, int32)
    name, kept = "position ids, 32 x 32768 bool", random(32, 32768) < 0.9
    yield summed(name, kept, -1, lambda x: torch.cumsum(x, -1) - 1, 8, initial=-1)
    yield summed("stream compaction, 10862592 bool", random(10862592) < 0.3, 0, out_bytes=8)
    yield padded("jagged offsets, 1000000 int64", (random(1000000) * 30).long(), 8)
    yield summed("tiles of splats, 4000000 int32 to int64", (random(4000000) * 9).int(), 0, out_bytes=8)
    yield row(
        "decays of a state-space model, 8 x 2048 x 64, chunks of 256, bias and softplus",
        (random(8, 8, 256, 64), random(64)),
        lambda x, bias: scanops.cumsum(F.softplus(x + bias) * -0.5, 2),
        lambda x, bias: torch.cumsum(F.softplus(x + bias) * -0.5, 2),
        trains=True,
    )
    name = "gates of linear attention, 2 x 16384 x 16 x 128 bf16 to f32, chunks of 64"
    yield summed(name, random(2, 256, 64, 16, 128, dtype=bf16), 2, dtype=torch.float32)
    name = "scalar gates, 4 x 8192 x 32, chunks of 64, reverse"
    yield summed(name, random(4, 128, 64, 32), 2, lambda x: flipped(torch.cumsum, x, 2), reverse=True)
    for dtype, shape in ((bf16, (16, 4096, 2560)), (torch.float32, (16, 2048, 128))):
        name = f"gated recurrence, {' x '.join(map(str, shape))} {str(dtype).removeprefix('torch.')}, dim 1"
        yield gated(name, random(*shape, dtype=dtype), random(*shape, dtype=dtype), 1)
    shape = (8, 1536, 16384)
    yield gated("recurrence along rows, 8 x 1536 x 16384", random(*shape), random(*shape), 2)
    yield row(
        "minimal GRU in log space, 64 x 1000 x 100, dim 1",
        (-random(64, 1000, 100), random(64, 1000, 100)),
        lambda c, v: (s := scanops.cumsum(c, 1)) + scanops.logcumsumexp(v - s, 1),
        lambda c, v: (s := torch.cumsum(c, 1)) + torch.logcumsumexp(v - s, 1),
        trains=True,
    )
    for steps, lanes in ((4096, 32), (64, 4096)):
        gates, rewards = 0.95 * (random(steps, lanes) < 0.99), random(steps, lanes)
        yield gated(f"advantages with resets, {steps} x {lanes}, dim 0, reverse", gates, rewards, 0, reverse=True)
    yield product("transmittance of rays, 65536 x 128", 0.1 * random(65536, 128))
    yield product("monotonic attention, 256 x 100 x 600", 0.1 * random(256, 100, 600))
    yield padded("knots of a spline flow, 1000000 x 8", random(1000000, 8), 4, trains=True)
    yield row(
        "partial likelihood of Cox, 1000000, reverse logcumsumexp",
        (random(1000000),),
        lambda x: scanops.logcumsumexp(x, 0, reverse=True),
        lambda x: flipped(torch.logcumsumexp, x, 0),
        trains=True,
    )
    yield summed("phase of an oscillator, 1 x 72192 x 9, dim 1", random(1, 72192, 9), 1)


def check(each: Workload) -> None:
    """Raise AssertionError where scanops and today's code in float64 differ."""
    loose = 0.05 if each.inputs[0].dtype == torch.bfloat16 else 1e-3
    exact = each.today(*(one.double() if one.is_floating_point() else one for one in each.inputs))
    torch.testing.assert_close(each.ours(*each.inputs), exact, rtol=loose, atol=loose, check_dtype=False)


def runs_of(each: Workload, backward: bool, compiles: bool) -> dict[str, Callable[[], object]]:
    """Return the functions to time on a workload, by name: scanops, today's code and, if it ``compiles``, that."""
    leaves = tuple(leaf.detach().requires_grad_(backward and leaf.is_floating_point()) for leaf in each.inputs)
    torch.compiler.reset()
    functions = {"scanops": each.ours}
    if compiles:
        functions["compiled"] = torch.compile(each.compiled or each.today, dynamic=False)
    if each.compiled is None or max(each.inputs[0].shape) <= SLOW_STEPS:
        functions["today"] = each.today

    def run(function: Function) -> Callable[[], object]:
        if not backward:
            return lambda: function(*leaves)
        given = tree_map(torch.rand_like, each.ours(*each.inputs))
        return lambda: torch.autograd.grad(function(*leaves), leaves, given)

    return {name: run(function) for name, function in functions.items()}


def measure(each: Workload, timer: Timer, backward: bool, compiles: bool) -> Row:
    """Return the figures of one workload; what cannot run is left out, with its reason."""
    figures: Row = {"moved": each.moved}
    runs: dict[str, Callable[[], object]] = {}
    for name, run in runs_of(each, backward, compiles).items():
        try:
            run()
            runs[name] = run
        except Exception as problem:  # a peer that fails is a figure less, not the end of the run
            figures[f"{name}: not measured"] = f"{type(problem).__name__}: {str(problem).splitlines()[0]}"[:120]
    if not backward:
        runs["copy"] = timer.copy(each.moved)
    times = timer.samples(runs, each.moved)
    return {**{name: round(1e3 * sample.ms, 2) for name, sample in times.items()}, **figures}


def main(
    arguments: Sequence[str] | None = None,
    made: Callable[[str, bool], Iterator[Workload]] = workloads,
    document: str | None = __doc__,
) -> int:
    """Measure every workload and print a line for each."""
    options = parser(document, filtered="workloads")
    options.add_argument("--small", action="store_true", help="compare results on small tensors, and time nothing")
    options.add_argument("--forward", action="store_true", help="no backward passes")
    options.add_argument("--eager", action="store_true", help="nothing under torch.compile")
    given = options.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() or not given.small else "cpu"
    chosen = (each for each in made(device, given.small) if given.filter in each.name)
    if given.small:
        for each in chosen:
            check(each)
        return 0
    require_gpu()
    timer, found = Timer(BUDGET), {}
    if given.output is not None and given.output.is_file():  # of an earlier run, with another filter
        found = json.loads(given.output.read_text(encoding="utf-8"))["microseconds"]
    for each in chosen:
        build_kernels_of([partial(each.ours, *each.inputs)], default_target())
        check(each)
        for backward in (False, True)[: 1 + (each.trains and not given.forward)]:
            title = each.name + ", forward and backward" * backward
            figures = found[title] = measure(each, timer, backward, not given.eager)
            print("  ".join(f"{k} {v}" for k, v in figures.items()), title, sep="  ", flush=True)
        torch.cuda.empty_cache()
        write(given.output, {"microseconds": found})
    return 0
