"""Sharded scans on the GPUs of one host: every method beside one GPU and beside the code that users write.

``python -m benchmarks distributed --out FILE`` starts a process for each GPU, or for ``--ranks`` of them. For each
shape, dtype and operator it compares results with float64, then times forward passes, and forward and backward passes
together. The baseline is one GPU that scans one shard, in the same process: a time of 1.0 baselines is as fast as the
GPUs together can be. Ranks meet after every call. Times are medians of the slowest rank. Each line of FILE is the JSON
of one cell, written when it has been measured.

``torchrun --nproc-per-node 2 -m benchmarks distributed --out FILE`` measures the same in the processes of torchrun.

Where there are fewer GPUs than ranks, small shapes are measured by the same code: on one GPU by ranks that share it,
over gloo and in two passes, and without a GPU by emulated kernels. Such times say nothing about several GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing

import scanops
import scanops.distributed as sd
from scanops.distributed.sharded_scan import ServedCall
from scanops.runtime import call_cache

__all__ = ["Cell", "Rank", "main", "run_ranks"]

ROUNDS, QUICK = 3, 0.04  # measurements of a cell; seconds of one
HIDING = 30_000_000  # cycles that a GPU sleeps while the host queues calls
TIMEOUT = 60  # seconds of a collective
SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "rows 32768 x 32768": ((32768, 32768), 1),
    "rows 4096 x 2^20": ((4096, 2**20), 1),
    "columns 8 x 65536 x 4096": ((8, 65536, 4096), 1),
    "columns 8 x 32768 x 2560": ((8, 32768, 2560), 1),
    "rows 64 x 65536": ((64, 65536), 1),
    "rows 8 x 8192 on each rank": ((8, 32768), 1),
    "one row of 2^31": ((2**31,), 0),
}
SMALL_SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "rows 16 x 256": ((16, 256), 1),
    "columns 2 x 64 x 1024": ((2, 64, 1024), 1),
    "one row of 512": ((512,), 0),
}
# The latter's name until torch 2.13.
gather_single: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
LARGE = 2**31  # bytes of a shard of operands beyond which only forward passes of one operand fit
FEW_ITEMS = 2**24  # of a shard up to which the host decides
# NVLink multicast stays off, in every process.
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
UNDER_TORCHRUN = "TORCHELASTIC_RUN_ID" in os.environ
Row = dict[str, Any]


class Cell(NamedTuple):
    """A shape, an operator and a dtype to measure."""

    name: str
    op: str
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[tuple[int, ...], int]:
        """The whole shape and the scanned dimension."""
        return (SHAPES | SMALL_SHAPES)[self.name]


def list_cells(ranks: int) -> list[Cell]:
    """Return every cell, the most important first."""
    if torch.cuda.device_count() < ranks:
        return [Cell(name, op, torch.float32) for name in SMALL_SHAPES for op in ("sum", "linear")]
    *names, long = SHAPES
    halves = [Cell(name, op, torch.bfloat16) for name in names[:4] for op in ("linear", "sum")]
    return [
        *(Cell(name, op, torch.float32) for name in names for op in ("sum", "linear")),
        *halves,
        *(Cell(long, op, torch.float32) for op in ("sum", "linear")),
    ]


class Rank:
    """One process: its shard of a cell, and the calls that are timed."""

    def __init__(self, rank: int, ranks: int, out: Path | None, end: float) -> None:
        self.rank, self.size, self.out, self.end = rank, ranks, out, end
        gpus = torch.cuda.device_count()
        self.device = torch.device("cuda", rank % gpus) if gpus else torch.device("cpu")
        self.backend = "nccl" if gpus >= ranks else "gloo"
        # Kernels of several processes on one GPU run one after the other: one would wait for another in vain.
        self.methods = ("onepass", "twopass") if self.backend == "nccl" or not gpus else ("twopass",)

    def join(self, folder: str, timeout: int = TIMEOUT) -> None:
        """Make this process a rank of the world."""
        torch.set_num_threads(1)
        own: dict[str, Any] = {"device_id": self.device} if self.backend == "nccl" else {}
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        meet = f"file://{folder}/meet" if folder else "env://"
        dist.init_process_group(self.backend, init_method=meet, rank=self.rank,
                                world_size=self.size, timeout=timedelta(seconds=timeout), **own)  # fmt: skip

    def write(self, **row: Any) -> None:
        """Append a line to the file and print it, on the first rank."""
        if self.rank == 0:
            write_row(self.out, row)

    def is_over(self, seconds_left: float = 0.0) -> bool:
        """Return whether less than so much time is left, on all ranks alike."""
        over = torch.tensor(float(time.time() + seconds_left > self.end), device=self.device)
        dist.broadcast(over, src=0)
        return bool(over)

    def synchronize(self) -> None:
        """Wait until the GPU has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def find_slowest(self, value: float) -> float:
        """Return the greatest value of all ranks."""
        found = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return float(found)

    def time(self, call: Callable[[], object], *, meets: bool = True) -> float:
        """Return the milliseconds of a call that all ranks make, host time hidden where the GPU takes longer.

        After each call the ranks meet in an all_reduce of one number, whose own time is subtracted if ``meets``:
        otherwise a rank would begin its next scan while others end their last one, and the wait for the ranks before
        it would not count.
        """
        if not meets:
            return self._time(call)
        one = torch.zeros(1, device=self.device)

        def call_and_meet() -> None:
            call()
            dist.all_reduce(one)

        return self._time(call_and_meet) - self._time(lambda: dist.all_reduce(one))

    def _time(self, call: Callable[[], object]) -> float:
        call(), call()
        if self.device.type != "cuda":
            times = []
            for _ in range(ROUNDS):
                dist.barrier()
                began = time.perf_counter()
                call()
                times.append((time.perf_counter() - began) * 1e3)
            return self.find_slowest(statistics.median(times))
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        repeats = max(3, min(200, int(self.find_slowest(QUICK * 1e3 / max(begin.elapsed_time(end), 1e-3)))))
        times = []
        for _ in range(ROUNDS):
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda._sleep(HIDING)  # type: ignore[no-untyped-call]
            begin.record()
            for _ in range(repeats):
                call()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / repeats)
        return self.find_slowest(statistics.median(times))

    def time_host(self, call: Callable[[], object]) -> tuple[float, float]:
        """Return the microseconds of a call of the host alone, and of host and GPU as a program sees them."""
        calls = 100 if self.device.type == "cuda" else 2
        for _ in range(3):
            call()
        least = [float("inf"), float("inf")]
        for _ in range(ROUNDS):
            self.synchronize()
            dist.barrier()
            began = time.perf_counter()
            for _ in range(calls):
                call()
            host = time.perf_counter() - began
            self.synchronize()
            least = [min(least[0], host), min(least[1], time.perf_counter() - began)]
        return self.find_slowest(least[0] / calls * 1e6), self.find_slowest(least[1] / calls * 1e6)

    # ---- a cell

    def make_operands(self, cell: Cell) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return this rank's items, and gates of a recurrence."""
        shape, dim = cell.shape
        shard = [size // self.size if d == dim else size for d, size in enumerate(shape)]
        make = torch.Generator(device=self.device).manual_seed(self.rank)
        x = torch.rand(shard, device=self.device, generator=make).to(cell.dtype)
        if cell.op == "sum":
            return x, None
        return x, (torch.rand(shard, device=self.device, generator=make) * 0.2 + 0.8).to(cell.dtype)

    def find_error(self, cell: Cell, y: torch.Tensor, x: torch.Tensor, gate: torch.Tensor | None) -> float:
        """Return the greatest relative error of some lines, against float64."""
        dim, parts = cell.shape[1], []
        for each in (x, y) if gate is None else (x, y, gate):
            lines = each[:2] if dim == each.ndim - 1 and each.ndim > 1 else each[:1, :, -3:] if each.ndim > 1 else each
            if each.ndim == 1:
                lines = each[: 2**16]  # of a long line the beginning of each shard, which holds its carry-in
            lines = lines.contiguous()
            found = [torch.empty_like(lines) for _ in range(self.size)]
            dist.all_gather(found, lines)
            parts.append([each.double().cpu() for each in found])
        if x.ndim == 1:
            totals = [torch.empty((), dtype=torch.float64, device=self.device) for _ in range(self.size)]
            dist.all_gather(totals, x.double().sum() if gate is None else y[-1].double())
            wanted, carry = [], torch.zeros((), dtype=torch.float64)
            for rank, items in enumerate(parts[0]):
                if gate is None:
                    wanted.append(items.cumsum(0) + carry)
                    carry = carry + totals[rank].cpu()
                else:
                    wanted.append(scanops.linear_scan(parts[2][rank], items, 0, initial=carry))
                    carry = totals[rank].cpu()
            expected, got = torch.cat(wanted), torch.cat(parts[1])
        else:
            whole, got = torch.cat(parts[0], dim), torch.cat(parts[1], dim)
            gates = None if gate is None else torch.cat(parts[2], dim)
            expected = whole.cumsum(dim) if gates is None else scanops.linear_scan(gates, whole, dim)
        return float(((got - expected).abs() / expected.abs().clamp(min=1)).max())

    def measure(self, cell: Cell, *, backward: bool) -> None:
        """Check and time one cell by every method."""
        dim, (x, gate) = cell.shape[1], self.make_operands(cell)
        row: Row = {"cell": cell.name, "op": cell.op, "dtype": str(cell.dtype), "ranks": self.size}

        def scan(module: Any, *tensors: torch.Tensor, **how: str) -> torch.Tensor:
            found: torch.Tensor = (
                module.cumsum(tensors[0], dim, **how) if gate is None else module.linear_scan(*tensors, dim, **how)
            )
            return found

        given = (x,) if gate is None else (gate, x)
        row["error"] = self.find_error(cell, scan(sd, *given), x, gate)
        row |= self.describe_auto()
        row["copy_ms"] = self.time(partial(torch.empty_like(x).copy_, x), meets=False)
        row["one_gpu_ms"] = self.time(lambda: scan(scanops, *given), meets=False)
        calls: dict[str, Callable[[], object]] = {
            method: partial(scan, sd, *given, method=method) for method in self.methods
        }
        if gate is None and x.numel() * x.element_size() <= 2 * LARGE:
            calls["torch"] = partial(self.scan_obviously, x, dim)
        for name, call in calls.items():
            row[f"{name}_ms"] = self.time(call)
        if x.numel() <= FEW_ITEMS:
            calls |= {"one_gpu": partial(scan, scanops, *given), "torch_one_gpu": partial(torch.cumsum, x, dim)}
            frame = torch.zeros(2048, dtype=torch.uint8, device=self.device)
            every = frame.new_empty(2048 * self.size)
            calls["all_gather"] = partial(gather_single, every, frame)  # what two passes cannot avoid
            for name, call in calls.items():
                row[f"{name}_host_us"], row[f"{name}_wall_us"] = self.time_host(call)
        self.write(**row)
        if not backward:
            return
        leaves = [each.requires_grad_() for each in given]
        grad = torch.rand_like(x)

        def run_both(module: Any, **how: str) -> object:
            return torch.autograd.grad(scan(module, *leaves, **how), leaves, grad)

        row = {name: row[name] for name in ("cell", "op", "dtype", "ranks") if name in row}
        row["backward"] = True
        row["one_gpu_ms"] = self.time(lambda: run_both(scanops), meets=False)
        calls = {method: partial(run_both, sd, method=method) for method in self.methods}
        for name, call in calls.items():
            row[f"{name}_ms"] = self.time(call)
        if x.numel() <= FEW_ITEMS:
            for name, call in (calls | {"one_gpu": partial(run_both, scanops)}).items():
                row[f"{name}_host_us"], row[f"{name}_wall_us"] = self.time_host(call)
        self.write(**row)

    def describe_auto(self) -> Row:
        """Return which method the last call took, which asked for none."""
        served = [each for each in call_cache.PREPARED.values() if isinstance(each, ServedCall)]
        return {"auto": served[-1].scan.method}

    def scan_obviously(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """The sum as users write it: torch.cumsum, an all_gather of the totals, and an addition."""
        y = x.cumsum(dim)
        total = y.select(dim, -1).contiguous()
        every = total.new_empty((self.size, *total.shape))
        gather_single(every.view(-1), total.view(-1))
        return y + every[: self.rank].sum(0).unsqueeze(dim) if self.rank else y


# ---- processes


def write_row(out: Path | None, row: Row) -> None:
    """Print a line of JSON, and append it to a file."""
    line = json.dumps(row)
    print(line, flush=True)
    if out is not None:
        with out.open("a") as file:
            file.write(line + "\n")


def measure_cells(rank: int, options: argparse.Namespace, folder: str) -> None:
    """Measure every cell on one rank."""
    own = Rank(rank, options.ranks, options.out, options.end)
    own.join(folder)
    emulated = scanops.emulate() if own.device.type == "cpu" else contextlib.nullcontext()
    with emulated:
        for cell in list_cells(options.ranks):
            if options.only not in f"{cell.name} {cell.op} {cell.dtype}":
                continue
            if own.is_over(options.reserve):
                own.write(skipped=cell.name, op=cell.op, dtype=str(cell.dtype))
                continue
            size = torch.Size(cell.shape[0]).numel() * cell.dtype.itemsize // options.ranks
            own.measure(cell, backward=size <= 2 * LARGE and "2^31" not in cell.name)
            if own.device.type == "cuda":
                torch.cuda.empty_cache()
    os._exit(0)


def run_ranks(job: Callable[..., None], options: argparse.Namespace) -> int:
    """Run ``job(rank, options, folder)`` in a process for each rank; return 1 if something went wrong, and write what.

    A process of torchrun is one of the ranks.
    """
    if UNDER_TORCHRUN:
        job(int(os.environ["RANK"]), options, "")
        return 0
    wrong = _run_ranks(job, options, options.end - time.time() + 30)
    if wrong:
        write_row(options.out, {"wrong": wrong, "job": job.__name__})
    return int(bool(wrong))


def _run_ranks(job: Callable[..., None], options: argparse.Namespace, seconds: float) -> str:
    start: Any = torch.multiprocessing.start_processes  # type: ignore[attr-defined]
    end = time.time() + seconds
    method = "spawn" if torch.cuda.is_available() else "fork"  # a fork imports nothing again, and cannot use CUDA
    with tempfile.TemporaryDirectory() as folder:
        context = start(job, (options, folder), options.ranks, join=False, start_method=method)
        try:
            while not context.join(timeout=0.5):
                if time.time() > end:
                    return f"ranks did not end within {seconds:.0f} s"
        except Exception as problem:  # of a rank, with its traceback
            return str(problem)[-3000:]
        finally:
            for process in context.processes:
                if process.is_alive():
                    process.kill()
                process.join()
    return ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every run on several ranks."""
    ranks = int(os.environ["WORLD_SIZE"]) if UNDER_TORCHRUN else torch.cuda.device_count() or 2
    parser.add_argument("--ranks", type=int, default=ranks, help="processes, one for each GPU")
    parser.add_argument("--out", type=Path, help="append a JSON line for each cell or trial to this file")
    parser.add_argument("--only", default="", help="cells whose name, operator and dtype hold this text")
    parser.add_argument("--seconds", type=float, default=240, help="how long the run takes, at most")


def begin_run(options: argparse.Namespace) -> None:
    """Set what all ranks inherit, and write on what the run is."""
    os.environ |= ENVIRONMENT
    options.end = time.time() + options.seconds
    options.reserve = 15.0 if torch.cuda.device_count() else 0.0  # seconds that the last cell may take
    if UNDER_TORCHRUN and os.environ["RANK"] != "0":
        return
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none: emulated kernels"
    write_row(options.out, {"gpu": gpu, "gpus": torch.cuda.device_count(), "ranks": options.ranks,
                            "torch": torch.__version__, "cuda": torch.version.cuda,
                            "date": datetime.date.today().isoformat()})  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measurement and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks distributed", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    begin_run(options)
    return run_ranks(measure_cells, options)
