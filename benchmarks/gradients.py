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
from dataclasses import dataclass
from functools import partial

import torch

import scanops
from benchmarks.common import ROOT, build_kernels_of, parser, require_gpu, write
from benchmarks.timing import Timer
from scanops.runtime.kernels import default_target

SHAPE = (32768, 4096)
FEW_LINES = 1024  # enough blocks to fill a GPU, so that the kernels are those of SHAPE
BUDGET = 0.3  # seconds of runs for each figure
COPY_BYTES = 8  # of an item, read and written
PROBE_SECONDS = 60
PROBE_SHAPE = (64, SHAPE[1])
Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One differentiable function of some tensors by scanops, and the same function by torch."""

    name: str
    least: float | None  # copies of x that must move; None where not counted
    leaves: Tensors
    ours: Function
    theirs: Function | None  # None where torch has no such operation
    again: bool = False  # differentiate the gradient as well

    def run(self, function: Function, given: torch.Tensor) -> Tensors:
        """Run forward, then backward from ``given``, the gradient of the result."""
        found = torch.autograd.grad(function(*self.leaves), self.leaves, given, create_graph=self.again)
        return torch.autograd.grad(found, self.leaves, [given] * len(found)) if self.again else found


def passes(lines: int, length: int) -> Iterator[Pass]:
    """Yield everything that is timed, on tensors of this shape."""
    x = torch.randn(lines, length, device="cuda")
    near_one = 1 + x / 1000  # products neither underflow nor overflow
    zeros = near_one.masked_fill(torch.rand_like(x) < 0.001, 0)  # four in a row of 4096, on average
    mask, gate = x > -1, torch.rand_like(x)

    def one(name: str, least: float, leaf: torch.Tensor, ours: Function, theirs: Function) -> Pass:
        return Pass(name=name, least=least, leaves=(leaf.requires_grad_(),), ours=ours, theirs=theirs)

    yield one("sum", 2, x.clone(), lambda x: scanops.cumsum(x, 1), lambda x: torch.cumsum(x, 1))
    yield one(
        "masked sum",
        2.25,
        x.clone(),
        lambda x: scanops.cumsum(x, 1, mask=mask),
        lambda x: torch.cumsum(x.masked_fill(~mask, 0), 1),
    )
    for name, leaf in (("product", near_one), ("product with zeros", zeros)):
        yield one(name, 2.5, leaf.clone(), lambda x: scanops.cumprod(x, 1), lambda x: torch.cumprod(x, 1))
    yield one("cummax", 4, x.clone(), lambda x: scanops.cummax(x, 1).values, lambda x: torch.cummax(x, 1).values)
    yield one("logcumsumexp", 3, x.clone(), lambda x: scanops.logcumsumexp(x, 1), lambda x: torch.logcumsumexp(x, 1))
    yield Pass(
        name="linear",
        least=4,
        leaves=(gate.requires_grad_(), x.clone().requires_grad_()),
        ours=lambda a, b: scanops.linear_scan(a, b, 1),
        theirs=None,
    )
    for name, leaf, ours, theirs in (
        ("product", near_one, scanops.cumprod, torch.cumprod),
        ("logcumsumexp", x, scanops.logcumsumexp, torch.logcumsumexp),
    ):
        yield Pass(
            name=f"{name}, again",
            least=None,
            leaves=(leaf.clone().requires_grad_(),),
            ours=lambda x, scan=ours: scan(x, 1),
            theirs=lambda x, scan=theirs: scan(x, 1),
            again=True,
        )
    yield Pass(
        name="linear, again",
        least=None,
        leaves=(gate.detach().clone().requires_grad_(), x.clone().requires_grad_()),
        ours=lambda a, b: scanops.linear_scan(a, b, 1),
        theirs=None,
        again=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the passes and print a line for each."""
    options = parser(__doc__, filtered="passes")
    options.add_argument("--probe", help=argparse.SUPPRESS)  # the pass to compile, and nothing else
    given = options.parse_args(arguments)
    if given.probe:
        _probe(given.probe)
        return 0
    require_gpu()
    compiles = _compiles(given.filter)
    wanted = (each for each in passes(FEW_LINES, SHAPE[1]) if given.filter in each.name)
    build_kernels_of(
        (partial(each.run, each.ours, torch.ones_like(each.leaves[0])) for each in wanted), default_target()
    )
    stopwatch, found = Timer(BUDGET), {}
    for each in passes(*SHAPE):
        if given.filter in each.name:
            figures = _measured(stopwatch, each, each.name in compiles)
            found[each.name] = {"least": each.least, **figures}
            print(_line(each, figures), flush=True)
    write(given.output, {"shape": SHAPE, "passes": found})
    return 0


def _measured(stopwatch: Timer, each: Pass, compiles: bool) -> dict[str, dict[str, float]]:
    functions = {"scanops": each.ours}
    if each.theirs is not None:
        functions["torch"] = each.theirs
        if compiles:
            functions["compile"] = torch.compile(each.theirs)
    given = torch.randn_like(each.leaves[0])
    source = each.leaves[0].detach()
    target = torch.empty_like(source)
    runs: dict[str, Callable[[], object]] = {"copy": lambda: target.copy_(source)}
    for name, function in functions.items():
        runs[name] = lambda function=function: each.run(function, given)  # type: ignore[misc]
        runs[name]()  # the first call looks up or compiles
    memory = {name: _peak(runs[name]) / source.numel() for name in functions}
    times = stopwatch.samples(runs, COPY_BYTES * source.numel())
    return {
        name: {"copies": times[name].ms / times["copy"].ms, "peak_bytes_an_item": memory[name]} for name in functions
    }


def _probe(name: str) -> None:
    each = next(each for each in passes(*PROBE_SHAPE) if each.name == name)
    assert each.theirs is not None
    each.run(torch.compile(each.theirs), torch.ones_like(each.leaves[0]))
    torch.cuda.synchronize()


def _compiles(word: str) -> set[str]:
    """Return the names of the passes that torch.compile compiles within PROBE_SECONDS."""
    names = [
        each.name for each in passes(*PROBE_SHAPE) if word in each.name and each.theirs is not None and not each.again
    ]
    with ThreadPoolExecutor(max(len(names), 1)) as pool:
        return {name for name, done in zip(names, pool.map(_probed, names), strict=True) if done}


def _probed(name: str) -> bool:
    command = [sys.executable, "-m", "benchmarks", "gradients", "--probe", name]
    try:
        done = subprocess.run(command, cwd=ROOT, timeout=PROBE_SECONDS, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        print(f"{name}: torch.compile did not end within {PROBE_SECONDS} s", flush=True)
        return False
    if done.returncode:
        print(f"{name}: torch.compile failed: {done.stderr.strip().splitlines()[-1:]}", flush=True)
    return done.returncode == 0


def _peak(run: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _line(each: Pass, figures: dict[str, dict[str, float]]) -> str:
    parts = [
        f"{name} {figures[name]['copies']:6.2f} ({figures[name]['peak_bytes_an_item']:5.1f} B)"
        for name in ("scanops", "torch", "compile")
        if name in figures
    ]
    least = "" if each.least is None else f"[{each.least:4.2f}]"
    return f"{each.name:20} {least:6}  " + "  ".join(parts)
