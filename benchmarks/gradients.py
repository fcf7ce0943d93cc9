"""Measure forward plus backward passes in copies of x, and their peak memory in bytes per item.

A copy is a device-to-device copy of as many float32 items (8 bytes per item); the bytes that must move are given in the
same unit, in brackets. Lines that end with "again" include the second derivative. torch.compile is measured where torch
has the operation; each function is compiled in a process of its own first, and left out where that takes longer than
PROBE_SECONDS.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import torch

import scanops
from benchmarks.common import ROOT, Row, build_kernels_of, parser, require_gpu, write
from benchmarks.timing import Timer, peak_bytes
from scanops.runtime.kernels import default_target

SHAPE = (32768, 4096)
FEW_LINES = 1024  # enough blocks to fill a GPU, so that the kernels are those of SHAPE
BUDGET = 0.3  # seconds of runs for each figure
COPY_BYTES = 8  # of an item, read and written
PROBE_SECONDS = 60
PROBE_SHAPE = (64, SHAPE[1])
AGAIN = ", again"  # ends the name of a pass that differentiates the gradient as well
Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., torch.Tensor]  # of tensors and a dimension


class Pass(NamedTuple):
    """One differentiable function of some tensors by scanops, and the same function by torch."""

    name: str
    least: float | None  # copies of x that must move; None where not counted
    leaves: Tensors
    ours: Function
    theirs: Function | None  # None where torch has no such operation

    def run(self, function: Function, given: torch.Tensor) -> Tensors:
        """Run forward, then backward from ``given``, the gradient of the result."""
        again = self.name.endswith(AGAIN)
        found = torch.autograd.grad(function(*self.leaves, 1), self.leaves, given, create_graph=again)
        return torch.autograd.grad(found, self.leaves, [given] * len(found)) if again else found


def passes(lines: int, length: int, text: str = "") -> Iterator[Pass]:
    """Yield everything that is timed and has this text in its name, on tensors of this shape."""
    x = torch.randn(lines, length, device="cuda")
    near_one = 1 + x / 1000  # products neither underflow nor overflow
    zeros = near_one.masked_fill(torch.rand_like(x) < 0.001, 0)  # four in a row of 4096, on average
    mask, gate = x > -1, torch.rand_like(x)
    masked = lambda x, dim: scanops.cumsum(x, dim, mask=mask), lambda x, dim: x.masked_fill(~mask, 0).cumsum(dim)
    highest = lambda x, dim: scanops.cummax(x, dim).values, lambda x, dim: torch.cummax(x, dim).values
    product, logarithm = (scanops.cumprod, torch.cumprod), (scanops.logcumsumexp, torch.logcumsumexp)
    linear = scanops.linear_scan, None
    functions: tuple[tuple[str, float | None, Tensors, Function, Function | None], ...] = (
        ("sum", 2, (x,), scanops.cumsum, torch.cumsum),
        ("masked sum", 2.25, (x,), *masked),
        ("product", 2.5, (near_one,), *product),
        ("product with zeros", 2.5, (zeros,), *product),
        ("cummax", 4, (x,), *highest),
        ("logcumsumexp", 3, (x,), *logarithm),
        ("linear", 4, (gate, x), *linear),
        (f"product{AGAIN}", None, (near_one,), *product),
        (f"logcumsumexp{AGAIN}", None, (x,), *logarithm),
        (f"linear{AGAIN}", None, (gate, x), *linear),
    )
    for name, least, leaves, ours, theirs in functions:
        if text in name:
            yield Pass(name, least, tuple(leaf.clone().requires_grad_() for leaf in leaves), ours, theirs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the passes and print a line for each."""
    options = parser(__doc__, filtered="passes")
    options.add_argument("--probe", help=argparse.SUPPRESS)  # the pass to compile, and nothing else
    given = options.parse_args(arguments)
    require_gpu()
    if given.probe:
        each = next(each for each in passes(*PROBE_SHAPE) if each.name == given.probe)
        assert each.theirs is not None
        each.run(torch.compile(each.theirs), torch.ones_like(each.leaves[0]))
        torch.cuda.synchronize()
        return 0
    probes = [each for each in passes(*PROBE_SHAPE, given.filter) if each.theirs and not each.name.endswith(AGAIN)]
    with ThreadPoolExecutor(max(len(probes), 1)) as pool:
        compiles = dict(zip([each.name for each in probes], pool.map(_compiles, probes), strict=True))
    wanted = passes(FEW_LINES, SHAPE[1], given.filter)
    build_kernels_of(
        (partial(each.run, each.ours, torch.ones_like(each.leaves[0])) for each in wanted), default_target()
    )
    timer, found = Timer(BUDGET), {}
    for each in passes(*SHAPE, given.filter):
        figures = _measure(timer, each, compiles.get(each.name, False))
        found[each.name] = {"least": each.least, **figures}
        least = "" if each.least is None else f"[{each.least:4.2f}]"
        parts = [f"{way} {row['copies']:6.2f} ({row['peak_bytes_an_item']:5.1f} B)" for way, row in figures.items()]
        print(f"{each.name:20} {least:6}  " + "  ".join(parts), flush=True)
    write(given.output, {"shape": SHAPE, "passes": found})
    return 0


def _measure(timer: Timer, each: Pass, compiles: bool) -> dict[str, Row]:
    functions = {"scanops": each.ours}
    if each.theirs is not None:
        functions |= {"torch": each.theirs, **({"compile": torch.compile(each.theirs)} if compiles else {})}
    given, items = torch.randn_like(each.leaves[0]), each.leaves[0].numel()
    runs: dict[str, Callable[[], object]] = {
        name: partial(each.run, function, given) for name, function in functions.items()
    }
    for run in runs.values():
        run()  # the first call looks up or compiles
    memory = {name: peak_bytes(run) / items for name, run in runs.items()}
    times = timer.samples({"copy": timer.copy(COPY_BYTES * items), **runs}, COPY_BYTES * items)
    return {name: {"copies": times[name].ms / times["copy"].ms, "peak_bytes_an_item": memory[name]} for name in runs}


def _compiles(each: Pass) -> bool:
    """Whether torch.compile compiles a pass within PROBE_SECONDS, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks", "gradients", "--probe", each.name]
    try:
        done = subprocess.run(command, cwd=ROOT, timeout=PROBE_SECONDS, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        print(f"{each.name}: torch.compile did not end within {PROBE_SECONDS} s", flush=True)
        return False
    if done.returncode:
        print(f"{each.name}: torch.compile failed: {done.stderr.strip().splitlines()[-1:]}", flush=True)
    return done.returncode == 0
