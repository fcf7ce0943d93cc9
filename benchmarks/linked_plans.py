"""Plans of linked column kernels, timed on all ranks: scans in one pass whose lines continue on other GPUs.

``python -m benchmarks linked_plans --out FILE`` starts a process for each GPU. For each shape, operator and dtype it
makes a call, builds the kernel that the call asks for by several plans (lines of a tile, items of a thread, stages,
tiles whose panels end together), all at once, and times the call with each. Results of every plan are compared with
those of the planner's. Each line of FILE is the JSON of one plan; the last lines are the fastest. With fewer GPUs than
ranks it tries all of this on small shapes with emulated kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import scanops
import scanops.distributed as sd
from benchmarks.distributed import ENVIRONMENT, Rank, run_ranks, write_row
from scanops.build_request import BuildRequest
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.planner import Plan, by_rule, plan_kernel, rebuilt
from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.distributed import links
from scanops.errors import ScanopsError
from scanops.processes import at_once
from scanops.runtime import call_cache
from scanops.runtime.kernels import Kernel
from scanops.store import Store

__all__ = ["main"]

Numbers = dict[str, Any]
WAIT_SECONDS = 20  # of a kernel for another rank
WIDE: Numbers = {"vector": 4, "columns": 64}  # 16 bytes of float32 a thread, 256 a row
# Changes to the numbers of the planner's plan of a forward scan down columns.
FORWARD: tuple[Numbers, ...] = (
    {},
    {"abreast": 4},
    {"abreast": 16},
    {"abreast": 32},
    {"group": 1, "stretch": 1},
    {"group": 8, "stretch": 1},
    {"group": 8, "stretch": 1, "abreast": 16},
    {"group": 16, "stretch": 1},
    {"group": 8, "stretch": 4},
    {"threads": 256, "items": 16, **WIDE},
    {"threads": 512, "items": 8, **WIDE},
    {"threads": 256, "items": 8, "vector": 4, "columns": 32},
    {"threads": 256, "items": 12, "stages": 1, "blocks": 2, **WIDE},
    {"threads": 256, "items": 24, "stages": 1, "blocks": 1, **WIDE},
    {"threads": 256, "items": 12, "stages": 1, "blocks": 2, "abreast": 4, **WIDE},
)
# The same of half types, where 16 bytes are 8 columns.
FORWARD_HALVES: tuple[Numbers, ...] = (
    {},
    {"abreast": 4},
    {"abreast": 16},
    {"group": 8, "stretch": 4},
    {"group": 1, "stretch": 1},
    {"threads": 256, "items": 16, "vector": 4, "columns": 64},
    {"threads": 256, "items": 8, "vector": 8, "columns": 128},
    {"threads": 256, "items": 12, "stages": 1, "blocks": 2, "vector": 8, "columns": 128},
    {"threads": 256, "items": 16, "stages": 1, "blocks": 2, "vector": 4, "columns": 64},
    {"threads": 256, "items": 24, "stages": 1, "blocks": 1, "vector": 8, "columns": 64},
    {"threads": 256, "items": 24, "stages": 1, "blocks": 1, "vector": 8, "columns": 64, "abreast": 16},
    {"threads": 256, "items": 24, "stages": 1, "blocks": 1, "vector": 8, "columns": 64, "group": 8, "stretch": 1},
)
# Of gradients of recurrences, which read three operands and write two results.
BACKWARD: tuple[Numbers, ...] = (
    {},
    {"group": 32, "stretch": 4},
    {"group": 1, "stretch": 1},
    {"abreast": 4},
    {"abreast": 16},
    {"threads": 256, "items": 8, "stages": 1, "blocks": 2, "group": 32, "stretch": 4, **WIDE},
    {"threads": 256, "items": 8, "stages": 1, "blocks": 2, "group": 8, "stretch": 1, **WIDE},
    {"threads": 256, "items": 16, "stages": 1, "blocks": 1, "group": 32, "stretch": 4, **WIDE},
    {"threads": 256, "items": 16, "vector": 2, "columns": 32},
    {"threads": 256, "items": 16, "vector": 2, "columns": 32, "abreast": 16},
    {"threads": 256, "items": 16, "vector": 2, "columns": 64},
    {"threads": 256, "items": 4, "vector": 4, "columns": 64},
    {"threads": 128, "items": 8, "vector": 2, "columns": 32},
)
BACKWARD_HALVES: tuple[Numbers, ...] = (
    *BACKWARD[:5],
    {"threads": 256, "items": 8, "vector": 4, "columns": 64},
    {"threads": 256, "items": 8, "stages": 1, "blocks": 2, "vector": 4, "columns": 64},
    {"threads": 256, "items": 16, "stages": 1, "blocks": 1, "vector": 4, "columns": 64},
    {"threads": 256, "items": 16, "stages": 1, "blocks": 1, "vector": 8, "columns": 64},
    {"threads": 256, "items": 16, "stages": 1, "blocks": 1, "vector": 8, "columns": 64, "abreast": 16},
    {"threads": 256, "items": 16, "stages": 1, "blocks": 1, "vector": 8, "columns": 128},
)
FLOATS, HALVES = torch.float32, torch.bfloat16


class Job(NamedTuple):
    """A call down columns, and the plans of one of its kernels."""

    shape: tuple[int, ...]  # whole; dimension 1 is sharded
    op: str
    dtype: torch.dtype
    with_gradients: bool  # whether the kernel is that of the backward pass
    plans: tuple[Numbers, ...]

    @property
    def name(self) -> str:
        """Return the shape, dims and dtype of the job, in words."""
        sizes, dtype = " x ".join(map(str, self.shape)), str(self.dtype).removeprefix("torch.")
        return f"{sizes} {self.op} {dtype} {'backward' if self.with_gradients else 'forward'}"


SMALL, LARGE = (8, 32768, 2560), (8, 65536, 4096)
JOBS = (
    Job(SMALL, "linear", FLOATS, True, BACKWARD),
    Job(SMALL, "linear", HALVES, True, BACKWARD_HALVES),
    Job(SMALL, "linear", FLOATS, False, FORWARD),
    Job(SMALL, "linear", HALVES, False, FORWARD_HALVES),
    Job(SMALL, "sum", FLOATS, False, FORWARD),
    Job(SMALL, "sum", HALVES, False, FORWARD_HALVES),
    Job(LARGE, "linear", FLOATS, True, BACKWARD[:11]),
    Job(LARGE, "linear", HALVES, True, BACKWARD_HALVES[8:]),
    Job(LARGE, "linear", FLOATS, False, FORWARD[:8]),
    Job(LARGE, "linear", HALVES, False, FORWARD_HALVES[9:]),
    Job(LARGE, "sum", FLOATS, False, FORWARD[:8]),
)
EMULATED_JOBS = (
    Job((2, 600, 128), "sum", FLOATS, False, FORWARD[:3]),
    Job((2, 600, 128), "linear", HALVES, True, BACKWARD_HALVES[:2]),
)


class KernelChoice:
    """Which kernels serve linked calls: the planner's, or one of another plan."""

    def __init__(self) -> None:
        self.keys: list[KernelKey] = []  # of linked kernels that calls have asked for
        self.kernel: Kernel | None = None

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Let calls inside the block ask here for their kernels."""
        find_kernel = call_cache.kernel_for

        def choose_kernel(spec: ScanSpec, lines: int, device: Any) -> tuple[Kernel | None, KernelKey]:
            kernel, key = find_kernel(spec, lines, device)
            if spec.linked:
                self.keys.append(key)
            return (self.kernel, key) if self.kernel is not None and self.kernel.key == key else (kernel, key)

        call_cache.kernel_for = choose_kernel
        try:
            yield
        finally:
            call_cache.kernel_for = find_kernel
            call_cache.forget()

    def use(self, kernel: Kernel | None) -> None:
        """Serve the next calls by this kernel where they ask for one with its key; None: by the planner's."""
        self.kernel = kernel
        call_cache.forget()


def make_plan(key: KernelKey, numbers: Numbers) -> Plan | str:
    """Return the planner's plan with some numbers changed, or why there is none."""
    try:
        plan = plan_kernel(key)
        plan = plan if plan.strategy == "columns_lookback" else by_rule("columns_lookback", key)
        return rebuilt(plan, **numbers)
    except (ScanopsError, ValueError, ArithmeticError, StopIteration) as problem:
        return str(problem).partition("\n")[0] or type(problem).__name__


def build_kernel(given: tuple[KernelKey, Numbers]) -> Kernel | str:
    """Return a kernel by a changed plan, or why there is none."""
    key, numbers = given
    plan = make_plan(key, numbers)
    if isinstance(plan, str):
        return plan
    try:
        request = BuildRequest(name=key.spec.slug, source=render(plan), target=key.target, launch=plan.launch._asdict())
        kernel = Kernel(key, Store().get_or_build(request))
    except ScanopsError as problem:
        return str(problem).partition("\n")[0]
    kernel._plan = plan
    return kernel


def make_call(own: Rank, job: Job) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return the call of a job on this rank's shard, which makes its operands once."""
    shard = [size // own.size if d == 1 else size for d, size in enumerate(job.shape)]
    make = torch.Generator(device=own.device).manual_seed(own.rank)

    def draw(low: float) -> torch.Tensor:
        each = torch.rand(shard, device=own.device, generator=make) * (1 - low) + low
        return each.to(job.dtype).requires_grad_(job.with_gradients)

    leaves = [draw(0.0)] if job.op == "sum" else [draw(0.8), draw(0.0)]
    grad = torch.rand_like(leaves[0]) if job.with_gradients else None

    def scan(module: Any, **how: str) -> tuple[torch.Tensor, ...]:
        y = module.cumsum(leaves[0], 1, **how) if job.op == "sum" else module.linear_scan(*leaves, 1, **how)
        return (y,) if grad is None else (y.detach(), *torch.autograd.grad(y, leaves, grad))

    return scan


def time_plans(rank: int, options: argparse.Namespace, folder: str) -> None:
    """Time every plan of every job on one rank."""
    links.LIMIT_SECONDS = WAIT_SECONDS
    own = Rank(rank, options.ranks, options.out, options.end)
    own.join(folder)
    is_emulated = own.device.type == "cpu"
    jobs = [job for job in (EMULATED_JOBS if is_emulated else JOBS) if options.only in job.name]
    choice, best = KernelChoice(), dict[str, tuple[float, Numbers]]()
    emulated = scanops.emulate() if is_emulated else contextlib.nullcontext()
    with emulated, choice.open():
        wanted: list[list[tuple[KernelKey, Numbers]]] = []
        for job in jobs:  # what is built for one job is built while no other is timed
            choice.keys.clear()
            choice.use(None)  # of calls that are held no kernel is asked for
            make_call(own, job)(sd, method="onepass")
            wanted.append([(choice.keys[-1], numbers) for numbers in job.plans])
            own.synchronize()
        compilers = max(2, (os.cpu_count() or 2) // own.size)
        kernels = iter(at_once(build_kernel, [each for plans in wanted for each in plans], compilers))
        own.write(built_after=round(own.find_slowest(time.time() - options.end + options.seconds), 1))
        for job in jobs:
            found = [next(kernels) for _ in job.plans]
            choice.use(None)
            scan = make_call(own, job)
            expected = scan(sd, method="onepass")
            if options.baseline and not own.is_over(5):
                own.write(job=job.name, one_gpu_ms=own.time(partial(scan, scanops), meets=False))
            for numbers, kernel in zip(job.plans, found, strict=True):
                if own.is_over(5):
                    own.write(job=job.name, plan=numbers, skipped=True)
                    continue
                if own.find_slowest(float(isinstance(kernel, str))):  # on some rank there is none
                    own.write(job=job.name, plan=numbers, unusable=str(kernel)[:200])
                    continue
                assert isinstance(kernel, Kernel)
                choice.use(kernel)
                pairs = zip(scan(sd, method="onepass"), expected, strict=True)
                error = max(float((a[:1].float() - b[:1].float()).abs().max()) for a, b in pairs)
                error = own.find_slowest(error)
                ms = own.time(partial(scan, sd, method="onepass"))
                own.write(job=job.name, plan=numbers, ms=ms, differs=error, numbers=kernel.plan.numbers())
                if error <= options.tolerance and ms < best.get(job.name, (float("inf"), {}))[0]:
                    best[job.name] = ms, numbers
            del expected, scan
            if not is_emulated:
                torch.cuda.empty_cache()
    for name, (ms, numbers) in best.items():
        own.write(best=name, ms=ms, plan=numbers)
    dist.barrier()
    os._exit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measurement and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks linked_plans", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count() or 2, help="processes, one for each GPU")
    parser.add_argument("--out", type=Path, help="append a JSON line for each plan to this file")
    parser.add_argument("--only", default="", help="jobs whose shape, operator, dtype and direction hold this text")
    parser.add_argument("--seconds", type=float, default=150, help="how long the run takes, at most")
    parser.add_argument("--tolerance", type=float, default=0.5, help="difference of a plan that may be the best")
    parser.add_argument("--baseline", action="store_true", help="time one GPU that scans one shard, too")
    options = parser.parse_args(arguments)
    options.ranks = max(2, options.ranks)
    if torch.cuda.device_count() < options.ranks:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # of the ranks, whose kernels one GPU would not run at the same time
    os.environ |= ENVIRONMENT
    options.end = time.time() + options.seconds
    write_row(options.out, {"gpus": torch.cuda.device_count(), "ranks": options.ranks, "torch": torch.__version__,
                            "date": datetime.date.today().isoformat()})  # fmt: skip
    wrong = run_ranks(time_plans, options.ranks, options, options.seconds + 20)
    if wrong:
        write_row(options.out, {"wrong": wrong})
    return int(bool(wrong))
