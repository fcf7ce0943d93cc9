"""Sharded scans on the GPUs of one host: every method beside one GPU and beside the code that users write.

``python -m benchmarks distributed --out FILE`` starts a process for each GPU, or for ``--ranks`` of them. For each
shape, dtype and operator it compares results with float64, then times forward passes, and forward and backward passes
together. The baseline is one GPU that scans one shard, in the same process: a time of 1.0 baselines is as fast as the
GPUs together can be. Ranks meet after every call. Times are medians of the slowest rank. Each line of FILE is the JSON
of one cell. ``--faults`` kills ranks and lets them be absent, and ``--soak`` repeats scans beside collectives on
another stream.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing

import scanops
import scanops.distributed as sd
from scanops.distributed import links
from scanops.errors import PeerLost

__all__ = ["main"]

ROUNDS, QUICK = 3, 0.04  # measurements of a cell; seconds of one
COMPARED = 50  # repeats, of which one result is compared
TOGETHER = 6  # groups of ranks of which one fails, at a time
HIDING = 30_000_000  # cycles that a GPU sleeps while the host queues calls
SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "rows 32768 x 32768": ((32768, 32768), 1),
    "rows 4096 x 2^20": ((4096, 2**20), 1),
    "columns 8 x 65536 x 4096": ((8, 65536, 4096), 1),
    "columns 8 x 32768 x 2560": ((8, 32768, 2560), 1),
    "one row of 2^31": ((2**31,), 0),
    "rows 64 x 65536": ((64, 65536), 1),
    "rows 8 x 8192 on each rank": ((8, 32768), 1),
}
LARGE = 2**31  # bytes of a shard of operands beyond which only forward passes of one operand fit


class Cell(NamedTuple):
    """A shape, an operator and a dtype to measure."""

    name: str
    op: str
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[tuple[int, ...], int]:
        """The whole shape and the scanned dimension."""
        return SHAPES[self.name]


def cells() -> list[Cell]:
    """Every cell, the most important first."""
    found = [Cell(name, op, torch.float32) for name in SHAPES for op in ("sum", "linear")]
    return found + [Cell(name, op, torch.bfloat16) for name in list(SHAPES)[:4] for op in ("sum", "linear")]


class Rank:
    """One process: its shard of a cell, and the calls that are timed."""

    def __init__(self, rank: int, size: int, out: Path | None) -> None:
        self.rank, self.size, self.out = rank, size, out
        self.device = torch.device("cuda", rank)

    def write(self, **row: Any) -> None:
        """Append a line to the file and print it, on the first rank."""
        if self.rank:
            return
        print(row, flush=True)
        if self.out is not None:
            with self.out.open("a") as file:
                file.write(json.dumps(row) + "\n")

    def slowest(self, value: float) -> float:
        """Return the greatest value of all ranks."""
        found = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return float(found)

    def timed(self, call: Callable[[], object], *, meets: bool = True) -> float:
        """Return the milliseconds of a call that all ranks make, host time hidden where the GPU takes longer.

        After each call the ranks meet in an all_reduce of one number, whose own time is subtracted if ``meets``:
        otherwise a rank would begin its next scan while others end their last one, and the wait for the ranks before
        it would not count.
        """
        if not meets:
            return self._timed(call)
        one = torch.zeros(1, device=self.device)

        def with_meeting() -> None:
            call()
            dist.all_reduce(one)

        return self._timed(with_meeting) - self._timed(lambda: dist.all_reduce(one))

    def _timed(self, call: Callable[[], object]) -> float:
        call(), call()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        repeats = max(3, min(200, int(self.slowest(QUICK * 1e3 / max(begin.elapsed_time(end), 1e-3)))))
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
        return self.slowest(statistics.median(times))

    def host_time(self, call: Callable[[], object], calls: int = 100) -> float:
        """Return the microseconds of host time of a call."""
        call()
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        found = (time.perf_counter() - began) / calls * 1e6
        torch.cuda.synchronize()
        return self.slowest(found)

    # ---- a cell

    def operands(self, cell: Cell) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return this rank's items, and gates of a recurrence."""
        shape, dim = cell.shape
        shard = [size // self.size if d == dim else size for d, size in enumerate(shape)]
        make = torch.Generator(device=self.device).manual_seed(self.rank)
        x = torch.rand(shard, device=self.device, generator=make).to(cell.dtype)
        if cell.op == "sum":
            return x, None
        return x, (torch.rand(shard, device=self.device, generator=make) * 0.2 + 0.8).to(cell.dtype)

    def error(self, cell: Cell, y: torch.Tensor, x: torch.Tensor, gate: torch.Tensor | None) -> float:
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
        dim, (x, gate) = cell.shape[1], self.operands(cell)
        row: dict[str, Any] = {"cell": cell.name, "op": cell.op, "dtype": str(cell.dtype), "ranks": self.size}

        def scan(module: Any, *tensors: torch.Tensor, **how: str) -> torch.Tensor:
            found: torch.Tensor = (
                module.cumsum(tensors[0], dim, **how) if gate is None else module.linear_scan(*tensors, dim, **how)
            )
            return found

        given = (x,) if gate is None else (gate, x)
        row["error"] = self.error(cell, scan(sd, *given), x, gate)
        row["copy_ms"] = self.copy_time(x)
        row["one_gpu_ms"] = self.timed(lambda: scan(scanops, *given), meets=False)
        for method in ("onepass", "twopass"):
            row[f"{method}_ms"] = self.timed(lambda method=method: scan(sd, *given, method=method))  # type: ignore[misc]
        if x.numel() <= 2**24:
            row["onepass_host_us"] = self.host_time(lambda: scan(sd, *given, method="onepass"))
            row["twopass_host_us"] = self.host_time(lambda: scan(sd, *given, method="twopass"))
            row["torch_host_us"] = self.host_time(lambda: x.cumsum(dim))
        if gate is None and x.numel() * x.element_size() <= 2 * LARGE:
            row["torch_ms"] = self.timed(lambda: self.obvious(x, dim))
        self.write(**row)
        if not backward:
            return
        leaves = [each.requires_grad_() for each in given]
        grad = torch.rand_like(x)

        def both(module: Any, **how: str) -> object:
            return torch.autograd.grad(scan(module, *leaves, **how), leaves, grad)

        row = {**{name: row[name] for name in ("cell", "op", "dtype", "ranks")}, "backward": True}
        row["one_gpu_ms"] = self.timed(lambda: both(scanops), meets=False)
        for method in ("onepass", "twopass"):
            row[f"{method}_ms"] = self.timed(lambda method=method: both(sd, method=method))  # type: ignore[misc]
        self.write(**row)

    def copy_time(self, x: torch.Tensor) -> float:
        """Return the milliseconds of a copy of a shard."""
        to = torch.empty_like(x)
        return self.timed(lambda: to.copy_(x), meets=False)

    def obvious(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """The sum as users write it: torch.cumsum, an all_gather of the totals, and an addition."""
        y = x.cumsum(dim)
        total = y.select(dim, -1).contiguous()
        every = total.new_empty((self.size, *total.shape))
        dist.all_gather_into_tensor(every, total)
        return y + every[: self.rank].sum(0).unsqueeze(dim) if self.rank else y

    # ---- repeats

    def soak(self, repeats: int) -> None:
        """Repeat scans beside all_reduce on another stream, and in a CUDA graph: the same bits each time."""
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        busy = torch.ones(2**22, device=self.device)
        other = dist.new_group(list(range(self.size)))
        for shape, dim in (((64, 65536), 1), ((512, 4096), 1), ((2, 2048, 4096), 1)):
            x = torch.rand(
                [size // self.size if d == dim else size for d, size in enumerate(shape)], device=self.device
            )
            first: Any = sd.cumsum(x, dim, method="onepass")
            differ = 0
            for k in range(repeats):
                if k % 10 == 0:
                    with torch.cuda.stream(side):
                        dist.all_reduce(busy, group=other)
                y: Any = sd.cumsum(x, dim, method="onepass")
                if k % COMPARED == 0:
                    differ += int(not torch.equal(y, first))
            graph = torch.cuda.CUDAGraph()
            dist.barrier()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                y = sd.cumsum(x, dim, method="onepass")
            for _ in range(100):
                graph.replay()
            torch.cuda.synchronize()
            in_graph = bool(torch.equal(y, first))
            self.write(
                soak=list(shape),
                repeats=repeats,
                compared=-(-repeats // COMPARED),
                differ=int(self.slowest(differ)),
                last_replay_is_equal=in_graph,
            )


def run_rank(rank: int, options: argparse.Namespace, folder: str) -> None:
    """Measure every cell, or repeat scans, on one rank."""
    torch.cuda.set_device(rank)
    init = f"file://{folder}/meet"
    dist.init_process_group("nccl", init_method=init, rank=rank, world_size=options.ranks,
                            device_id=torch.device("cuda", rank))  # fmt: skip
    own, began = Rank(rank, options.ranks, options.out), time.monotonic()
    if options.soak:
        own.soak(options.soak)
    for cell in cells() if options.soak == 0 else ():
        over = torch.tensor(float(time.monotonic() - began > options.seconds), device=own.device)
        dist.all_reduce(over)
        if over or options.only not in f"{cell.name} {cell.op} {cell.dtype}":
            continue
        size = torch.Size(cell.shape[0]).numel() * cell.dtype.itemsize // options.ranks
        own.measure(cell, backward=size <= 2 * LARGE and "2^31" not in cell.name)
        torch.cuda.empty_cache()
    os._exit(0)


# ---- faults


def run_fault(rank: int, ranks: int, folder: str, victim: int, moment: float, kind: str) -> None:
    """Scan until the victim is gone; a rank that waits for it ends with a typed error, and says so in a file."""
    links.LIMIT_SECONDS = 5
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks,
                            device_id=torch.device("cuda", rank))  # fmt: skip
    x = torch.ones(64, 4096, device="cuda")
    for _ in range(3):
        sd.cumsum(x, 1, method="onepass")
    torch.cuda.synchronize()
    dist.barrier()
    began = time.monotonic()
    said = "hang"
    try:
        while time.monotonic() - began < 20:
            if rank == victim and time.monotonic() - began > moment:
                if kind == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if kind == "absent":
                    time.sleep(12)
                    os._exit(0)
                sd.cumsum(x, 1, method="onepass", reverse="no")  # type: ignore[arg-type]  # refused on this rank alone
            for _ in range(50):
                y = sd.cumsum(x, 1, method="onepass")
            torch.cuda.synchronize()
            del y
    except PeerLost:
        said = "typed"
    except scanops.errors.UnsupportedRequest:
        said = "typed"
    except Exception as problem:
        said = f"raw {type(problem).__name__}"
    Path(folder, f"rank{rank}").write_text(f"{said} {time.monotonic() - began:.1f}")
    os._exit(0)


def count_faults(ranks: int, trials: int, own: Rank) -> None:
    """Let a rank be killed, absent or wrong at random moments, a few groups at a time, and count how the others end."""
    make = torch.Generator().manual_seed(0)
    drawn = [
        (
            ("killed", "absent", "refuses")[trial % 3],
            int(torch.randint(ranks, (), generator=make)),
            float(torch.rand((), generator=make)),
        )
        for trial in range(trials)
    ]
    with ThreadPoolExecutor(TOGETHER) as pool:
        for row in pool.map(lambda each: fault(ranks, *each), drawn):
            own.write(**row)


def fault(ranks: int, kind: str, victim: int, moment: float) -> dict[str, Any]:
    """Start a group of ranks of which one fails, and return how the others ended."""
    with tempfile.TemporaryDirectory() as folder:
        context: Any = torch.multiprocessing.get_context("spawn")
        given = (ranks, folder, victim, moment, kind)
        processes = [context.Process(target=run_fault, args=(rank, *given)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(90)
        hung = [process for process in processes if process.is_alive()]
        for process in hung:
            process.kill()
        said = {path.name: path.read_text() for path in sorted(Path(folder).glob("rank*"))}
    return {"fault": kind, "victim": victim, "moment": round(moment, 2), "hung": len(hung), "ended": said}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measurement and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks distributed", description=__doc__)
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count(), help="processes, one for each GPU")
    parser.add_argument("--out", type=Path, help="append a JSON line for each cell to this file")
    parser.add_argument("--only", default="", help="cells whose name, operator and dtype hold this text")
    parser.add_argument("--seconds", type=float, default=240, help="begin no cell after so many seconds")
    parser.add_argument("--soak", type=int, default=0, metavar="N", help="repeat scans N times instead")
    parser.add_argument("--faults", type=int, default=0, metavar="N", help="let ranks fail N times instead")
    options = parser.parse_args(arguments)
    for name in ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS"):
        os.environ[name] = "1" if "DISABLE" in name else "0"
    first = Rank(0, options.ranks, options.out)
    first.write(gpu=torch.cuda.get_device_name(), ranks=options.ranks, torch=torch.__version__,
                cuda=torch.version.cuda, date=datetime.date.today().isoformat())  # fmt: skip
    if options.faults:
        count_faults(options.ranks, options.faults, first)
        return 0
    start: Any = torch.multiprocessing.start_processes  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        start(run_rank, (options, folder), options.ranks)
    return 0
