"""Sharded scans on the GPUs of one host over NCCL: right values, then times against one GPU and against plain PyTorch.

One process per GPU; no launcher is needed. Figures are relative to the ranks times one GPU: the time of one GPU for one
rank's share of the work, in whole lines, divided by that of the sharded scan. Results are written after each figure.

    python -m benchmarks distributed_checks --gpus 4 -o benchmarks/results/distributed_checks_4.json
    python -m benchmarks distributed_checks --check     values, gradients, faults and CUDA graphs alone
    python -m benchmarks distributed_checks --cpu       a small run of the same code on gloo
"""

from __future__ import annotations

import gc
import os
import queue
import random
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing

import scanops
from benchmarks.common import Row, parser, write
from benchmarks.sharded_calls import answer, difference, random_request, sd
from scanops.distributed.groups import group_of
from scanops.errors import PeerMismatch, UnsupportedRequest

# NVLink multicast stays off, in every process.
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
LIMIT, TIMEOUT = 230.0, 60.0  # seconds of the whole run, and of a collective
CHECK_SECONDS = 50.0  # of random requests
Tensors = tuple[torch.Tensor, ...]
Say = Callable[[str, Any], None]


class Cell(NamedTuple):
    """One scan: the shape of the whole tensor and the dimension that is sharded."""

    op: str  # "sum" or "linear"
    shape: tuple[int, ...]
    dim: int
    dtype: torch.dtype
    gradients: bool

    @property
    def name(self) -> str:
        """The cell in one word."""
        size = "x".join(map(str, self.shape))
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.op} {size} dim {self.dim} {kind}{' with gradients' if self.gradients else ''}"


def cells(ranks: int) -> list[Cell]:
    """Return what is measured, the most important first."""
    f32, bf16 = torch.float32, torch.bfloat16
    found = []
    for gradients in (False, True):
        for op in ("sum", "linear"):
            found += [Cell(op, (4096, 1 << 20), 1, f32, gradients), Cell(op, (32768, 32768), 1, f32, gradients)]
            found += [Cell(op, (8, 65536, 4096), 1, f32, gradients), Cell(op, (8, 32768, 2560), 1, f32, gradients)]
            found += [Cell(op, (64, 65536), 1, f32, gradients), Cell(op, (8, 8192 * ranks), 1, f32, gradients)]
        found.append(Cell("sum", (1 << 31,), 0, f32, gradients))
    return found + [Cell(op, shape, 1, bf16, False) for op in ("sum", "linear")
                    for shape in ((4096, 1 << 20), (32768, 32768))]  # fmt: skip


SMALL = [Cell(op, shape, dim, torch.float32, gradients) for gradients in (False, True) for op in ("sum", "linear")
         for shape, dim in (((16, 256), 1), ((2, 64, 1024), 1), ((512,), 0))]  # fmt: skip


class Rank(NamedTuple):
    """One process of the run."""

    rank: int
    ranks: int
    device: torch.device
    say: Say
    end: float  # when the run has to be over

    @property
    def left(self) -> float:
        """Seconds until the end: of rank 0, for all ranks to decide alike."""
        seconds = torch.tensor(self.end - time.time(), dtype=torch.float64, device=self.device)
        dist.broadcast(seconds, src=0)
        return seconds.item()

    def synchronize(self) -> None:
        """Wait until the GPU has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


# ---- times


def time_cell(own: Rank, cell: Cell) -> Row:
    """Check the first lines of a cell, and time it, plain PyTorch, and one GPU."""
    shape = list(cell.shape)
    shape[cell.dim] //= own.ranks
    share = [shape[0], *shape[1:]]
    shard = make(own, cell, tuple(share), seed=own.rank)
    wrong = check_cell(own, cell, shard)
    row: Row = {"cell": cell.name, "wrong": wrong}
    runs: dict[str, Callable[[], Any]] = {"twopass": partial(run, sd, cell, shard)}
    if cell.op == "sum" and not cell.gradients:
        runs["torch"] = partial(plain_torch, own, cell, shard[0])
    for name, call in runs.items():
        row[f"{name}_us"], row[f"{name}_host_us"] = measure(own, call)
    del shard
    gc.collect()
    # One GPU: as many items as a shard has, in whole lines; where there are too few lines, all of them, and divided.
    whole = list(cell.shape)
    divided = whole[0] % own.ranks != 0 or cell.dim == 0 or whole[0] < 2 * own.ranks
    whole[0] = whole[0] if divided else whole[0] // own.ranks
    small = 1 << 24
    if cell.shape[0] * cell.shape[-1] <= small:  # launches, not bytes: the whole problem is what one GPU is for
        whole, divided = list(cell.shape), False
    tensors = make(own, cell, tuple(whole), seed=0)
    us, host = measure(own, partial(run, scanops, cell, tensors))
    row |= {"one_gpu_us": us / own.ranks if divided else us, "one_gpu_host_us": host}
    row["relative"] = round(row["one_gpu_us"] / row["twopass_us"], 3)
    if "torch_us" in row:
        row["torch_relative"] = round(row["one_gpu_us"] / row["torch_us"], 3)
    return {key: round(value, 1) if key.endswith("_us") else value for key, value in row.items()}


def make(own: Rank, cell: Cell, shape: tuple[int, ...], seed: int) -> Tensors:
    """Return the inputs: small integers, whose sums are exact, and gates of 1 and -1."""
    source = torch.Generator(own.device).manual_seed(seed)
    draw = partial(torch.randint, -1, 2, shape, generator=source, device=own.device, dtype=torch.int8)
    tensors = [draw().to(cell.dtype)]
    if cell.op == "linear":
        tensors.append((draw() * 2 + 1).sign().to(cell.dtype))
    return tuple(each.requires_grad_(cell.gradients) for each in tensors)


def run(module: Any, cell: Cell, tensors: Tensors) -> Any:
    """Scan, and run the backward pass where the cell has one."""
    x, *gates = tensors
    y = module.linear_scan(gates[0], x, cell.dim) if gates else module.cumsum(x, cell.dim)
    return torch.autograd.grad(y, tensors, y.detach()) if cell.gradients else y


def plain_torch(own: Rank, cell: Cell, x: torch.Tensor) -> torch.Tensor:
    """A local scan, an all_gather of totals, and an addition."""
    y = torch.cumsum(x, cell.dim)
    total = y.select(cell.dim, -1).contiguous()
    totals = gather(own, total)
    return y.add_(totals[: own.rank].sum(0).unsqueeze(cell.dim)) if own.rank else y


def gather(own: Rank, each: torch.Tensor) -> torch.Tensor:
    """Return a tensor of every rank, stacked."""
    found = each.new_empty(own.ranks * each.numel())
    dist.all_gather_into_tensor(found, each.reshape(-1))
    return found.reshape(own.ranks, *each.shape)


def check_cell(own: Rank, cell: Cell, shard: Tensors) -> bool:
    """Whether results of some lines differ from those of one process, which sums of small integers do not."""
    few = [each.detach().narrow(0, 0, min(len(each), 4)) if cell.dim else each.detach()[: 1 << 16] for each in shard]
    few = [each.narrow(cell.dim, 0, min(each.shape[cell.dim], 1 << 16)).contiguous() for each in few]
    whole = [gather(own, each) for each in few]
    x, *gates = (torch.cat(list(each), cell.dim).double() for each in whole)
    size = few[0].shape[cell.dim]
    expected = scanops.linear_scan(gates[0], x, cell.dim) if gates else torch.cumsum(x, cell.dim)
    found = sd.linear_scan(few[1], few[0], cell.dim) if gates else sd.cumsum(few[0], cell.dim)
    part = expected.narrow(cell.dim, own.rank * size, size).to(found.dtype)
    bad = torch.tensor(float(not torch.equal(found, part)), device=own.device)
    dist.all_reduce(bad)
    return bool(bad.item())


def measure(own: Rank, call: Callable[[], Any]) -> tuple[float, float]:
    """Return microseconds of a call, the slowest rank's, and of the host alone."""
    for _ in range(3):
        call()
    own.synchronize()
    began = time.perf_counter()
    call()
    own.synchronize()
    once = torch.tensor(time.perf_counter() - began, dtype=torch.float64, device=own.device)
    dist.all_reduce(once, dist.ReduceOp.MAX)
    count = max(3, min(200, int(0.15 / max(once.item(), 1e-6))))
    best = host = float("inf")
    for _ in range(3):
        dist.barrier()
        own.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            call()
        enqueued = time.perf_counter() - began
        own.synchronize()
        took = torch.tensor(time.perf_counter() - began, dtype=torch.float64, device=own.device)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        best, host = min(best, took.item() / count), min(host, enqueued / count)
    return best * 1e6, host * 1e6


# ---- right values, gradients and faults


def check_requests(own: Rank, count: int) -> str:
    """Random calls, with gradients, on all ranks against one process."""
    draw, typed, done = random.Random(3), 0, 0
    end = time.time() + CHECK_SECONDS
    for _ in range(count):
        request = random_request(draw)
        if len(request.table) != own.ranks:
            continue
        late = torch.tensor(int(time.time() > end), device=own.device)
        dist.broadcast(late, src=0)
        if late.item():
            break
        there = request._replace(
            given={k: v.to(own.device) if isinstance(v, torch.Tensor) else v for k, v in request.given.items()}
        )
        length = there.given["x"].shape[there.dim]
        wanted = answer(scanops, there, there.given, torch.arange(length, device=own.device))
        found = answer(sd, there, there.local(own.rank), there.places(own.rank).to(own.device), **there.how)
        wrong = difference(there, found, wanted, own.rank, summed)
        assert not wrong, f"{wrong}: {request.told()}"
        typed, done = typed + isinstance(found, str), done + 1
    return f"{done} calls, {typed} of them typed errors"


def summed(each: torch.Tensor) -> torch.Tensor:
    """Return the sum over the ranks."""
    dist.all_reduce(each)
    return each


def check_refused(own: Rank) -> str:
    """A rank that refuses a call after equal ones raises at once, the others at the latest at their next exchange."""
    for lines in (4, 4096):  # in the frame, and behind it
        x = torch.ones(lines, 64, device=own.device)
        expected = sd.cumsum(x, 1)
        sd.cumsum(x, 1)
        try:
            sd.cumsum(x, 1, **({"reverse": 3} if own.rank == 1 else {}))
            assert own.rank != 1, "an invalid argument was accepted"
            own.synchronize()
            sd.cumsum(x, 1)
            raise AssertionError("nothing was raised")
        except UnsupportedRequest as problem:
            assert isinstance(problem, PeerMismatch) == (own.rank != 1), repr(problem)
        dist.barrier()
        own.synchronize()
        assert torch.equal(sd.cumsum(x, 1, check="always"), expected)
    return "typed on every rank"


def check_differs(own: Rank) -> str:
    """Calls that differ after equal ones, and backward passes in another order: typed on every rank."""
    x = torch.ones(4, 64, device=own.device)
    for op in ("sum", "max") * 2:
        sd.scan(x, op, 1)
    raised = []
    for check in ("always", "first"):
        try:
            sd.scan(x, "max" if own.rank == 1 else "sum", 1, check=check)
            own.synchronize()
            sd.scan(x, "sum", 1)
        except PeerMismatch:
            raised.append(check)
        own.synchronize()
        dist.barrier()
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    for again in range(3):
        made = [sd.cumsum(leaf, 1).sum() for leaf in leaves]
        try:
            for k in (1, 0) if own.rank == 1 and again == 2 else (0, 1):
                made[k].backward()
            own.synchronize()
            sd.cumsum(x, 1)
        except PeerMismatch:
            raised.append("backward")
        own.synchronize()
        dist.barrier()
    assert raised == ["always", "first", "backward"], raised
    return "typed on every rank"


def check_graph(own: Rank) -> str:
    """A CUDA graph of a call with its backward pass, replayed with other values."""
    if own.device.type != "cuda":
        return "no GPU"
    x = torch.ones(8, 256, device=own.device).requires_grad_()
    a = torch.full_like(x, 0.5).requires_grad_()

    def step() -> tuple[torch.Tensor, ...]:
        y = sd.linear_scan(a, x, 1)
        return (y, *torch.autograd.grad(y.sum(), (a, x)))

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.fill_(2.0 + own.rank)
    graph.replay()
    own.synchronize()
    for mine, expected in zip(captured, step(), strict=True):
        torch.testing.assert_close(mine, expected)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            sd.cumprod(x.detach(), 1)
        raise AssertionError("a first call was captured")
    except UnsupportedRequest:
        own.synchronize()
    return "right"


def check_blocks(own: Rank) -> str:
    """States that travel by blocks of lines."""
    from scanops.distributed import exchange

    before = exchange.TRADING_RANKS, exchange.TRADING_BYTES
    exchange.TRADING_RANKS, exchange.TRADING_BYTES = 2, 0
    group_of(None).ledger.calls.clear()
    try:
        for cell in (Cell("sum", (4096, 64 * own.ranks), 1, torch.float32, True),
                     Cell("linear", (4, 64 * own.ranks, 1024), 1, torch.float32, True)):  # fmt: skip
            shape = list(cell.shape)
            shape[cell.dim] //= own.ranks
            assert not check_cell(own, cell, make(own, cell, tuple(shape), seed=own.rank))
    finally:
        exchange.TRADING_RANKS, exchange.TRADING_BYTES = before
        group_of(None).ledger.calls.clear()
    return "right"


CHECKS: dict[str, Callable[[Rank], str]] = {
    "graph": check_graph,
    "blocks": check_blocks,
    "refused": check_refused,
    "differs": check_differs,
    "requests": lambda own: check_requests(own, 20_000),
}


# ---- processes


def work(rank: int, ranks: int, folder: str, on_cpu: bool, checks: bool, end: float, said: Any) -> None:
    """What one process does; it ends without tearing down."""
    os.environ |= ENVIRONMENT
    torch.set_num_threads(1)
    device = torch.device("cpu") if on_cpu else torch.device("cuda", rank)
    if not on_cpu:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if on_cpu else "nccl", init_method=f"file://{folder}/meet", rank=rank,
                            world_size=ranks, timeout=timedelta(seconds=TIMEOUT))  # fmt: skip
    own = Rank(rank, ranks, device, lambda kind, value: said.put((kind, rank, value)), end)
    for name, check in CHECKS.items() if checks else ():
        try:
            own.say("check", (name, check(own)))
        except Exception:
            own.say("wrong", f"rank {rank}, {name}: {traceback.format_exc()[-1500:]}")
            break
    for cell in () if checks else SMALL if on_cpu else cells(ranks):
        if own.left < 15:
            own.say("skipped", cell.name)
            continue
        try:
            row = time_cell(own, cell)
            if rank == 0:
                own.say("row", row)
        except Exception:  # the ranks are no longer at the same place
            own.say("wrong", f"rank {rank}, {cell.name}: {traceback.format_exc()[-1500:]}")
            break
    said.put(("done", rank, None))
    said.close()
    said.join_thread()
    os._exit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the processes, write what they say, and return 1 where something is wrong or does not end."""
    options = parser(__doc__)
    options.add_argument("--gpus", type=int, default=torch.cuda.device_count() or 2, help="processes, one for each GPU")
    options.add_argument("--check", action="store_true", help="values, gradients, faults and CUDA graphs; no times")
    options.add_argument("--cpu", action="store_true", help="on gloo: a small run of the same code")
    options.add_argument("--seconds", type=float, default=LIMIT, help="how long the run takes, at most")
    given = options.parse_args(arguments)
    os.environ |= ENVIRONMENT
    found: Row = {"ranks": given.gpus, "rows": [], "checks": {}, "skipped": [], "wrong": []}
    make_processes = torch.multiprocessing.get_context("spawn")
    said: Any = make_processes.Queue()
    end = time.time() + given.seconds
    with tempfile.TemporaryDirectory() as folder:
        jobs = [(rank, given.gpus, folder, given.cpu, given.check, end, said) for rank in range(given.gpus)]
        made = [make_processes.Process(target=work, args=job) for job in jobs]
        for each in made:
            each.start()
        left = set(range(given.gpus))
        while left:
            try:
                kind, rank, value = said.get(timeout=1.0)
            except queue.Empty:
                dead = [rank for rank in left if not made[rank].is_alive()]
                if dead or time.time() > end + 5:
                    found["wrong"].append(f"ranks {dead or sorted(left)} {'ended' if dead else 'did not end in time'}")
                    break
                continue
            if kind == "done":
                left -= {rank}
            elif kind == "row":
                found["rows"].append(value)
                print(value, flush=True)
            elif kind == "check":
                found["checks"].setdefault(value[0], {})[rank] = value[1]
                print(f"rank {rank}: {value[0]}: {value[1]}", flush=True)
            elif kind == "wrong" or rank == 0:
                found[kind].append(value)
                print(f"{kind}: {value}", flush=True)
            write(given.output, found)
        for each in made:
            each.kill()
            each.join()
    write(given.output, found)
    bad = [row["cell"] for row in found["rows"] if row["wrong"]]
    print(f"{len(found['rows'])} figures, wrong: {', '.join([*found['wrong'], *bad]) or 'none'}")
    return 1 if bad or found["wrong"] else 0
