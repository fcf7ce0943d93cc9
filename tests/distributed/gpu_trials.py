"""Trials of sharded scans on the GPUs of one host, or emulated: right values, calls that differ, faults and repeats.

    python -m tests.distributed.gpu_trials --checks          # values and gradients of random calls, errors, CUDA graphs
    python -m tests.distributed.gpu_trials --mismatches 50   # a rank makes another call than the others
    python -m tests.distributed.gpu_trials --faults 30       # a rank is killed, or stops calling
    python -m tests.distributed.gpu_trials --soak 10000      # equal calls beside collectives on another stream

Each trial is one line of JSON, written when it has ended. A rank whose result is wrong ends with a traceback, and the
command with status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

import scanops
from benchmarks.distributed import Rank, add_options, begin_run, run_ranks, write_row
from scanops.distributed import links
from scanops.errors import PeerLost, PeerMismatch, UnsupportedRequest
from tests.distributed.calls import answer, difference, random_request, sd

CHECK_SECONDS = 45.0  # of random requests
COMPARED = 50  # repeats, of which one result is compared
TOGETHER = 6  # groups of ranks of which one fails, at a time
FAULT_SECONDS = 5  # that kernels wait for another rank, in trials of faults

# ---- right values


def check_requests(own: Rank, count: int) -> str:
    """Random calls, with gradients, on all ranks against one process: up to a count, or a time."""
    draw, typed, done = random.Random(3), 0, 0
    end = time.time() + CHECK_SECONDS
    while done < count:
        request = random_request(draw)
        if len(request.table) != own.size:
            continue
        late = torch.tensor(int(time.time() > min(end, own.end)), device=own.device)
        dist.broadcast(late, src=0)
        if late.item():
            break
        there = request._replace(
            given={k: v.to(own.device) if isinstance(v, torch.Tensor) else v for k, v in request.given.items()}
        )
        length = there.given["x"].shape[there.dim]
        wanted = answer(scanops, there, there.given, torch.arange(length, device=own.device))
        for _ in range(2):  # the second call is made of what the first has found
            found = answer(sd, there, there.local(own.rank), there.places(own.rank), **there.how)
            wrong = difference(there, found, wanted, own.rank, sum_over_ranks)
            assert not wrong, f"{wrong}: {request.told()}"
        typed, done = typed + isinstance(found, str), done + 1
    return f"{done} calls, {typed} of them typed errors"


def sum_over_ranks(each: torch.Tensor) -> torch.Tensor:
    """Return the sum over the ranks."""
    dist.all_reduce(each)
    return each


def check_errors(own: Rank, _: int) -> str:
    """An argument error that all ranks raise, or one of them, leaves nothing behind: the next call is right."""
    group = dist.new_group(list(range(own.size)))
    for method, lines in itertools.product(own.methods, (4, 600)):  # states in the frame, and behind it
        x = torch.ones(lines, 64, device=own.device)
        with scanops.emulate() if own.device.type == "cpu" else contextlib.nullcontext():
            expected = sd.cumsum(x, 1, method=method, group=group)
            for bad in ({"reverse": 3}, {"method": "chain"}, {"mask": torch.ones(9, device=own.device)}, {"dim": 7}):
                for ranks in (range(own.size), (1,)):
                    if own.rank in ranks:
                        try:
                            sd.cumsum(x, **{"dim": 1, "method": method, "group": group, **bad})
                            raise AssertionError("an invalid argument was accepted")
                        except UnsupportedRequest as problem:
                            assert not isinstance(problem, PeerMismatch), repr(problem)
                    for _ in range(3):
                        assert torch.equal(sd.cumsum(x, 1, method=method, group=group), expected)
            own.synchronize()
    return "right after typed errors"


def check_order(own: Rank, _: int) -> str:
    """Backward passes in another order on one rank: typed on every rank."""
    x, raised, group = torch.ones(4, 64, device=own.device), 0, dist.new_group(list(range(own.size)))
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    for again in range(3):
        made = [sd.cumsum(leaf, 1, method="twopass", group=group).sum() for leaf in leaves]
        try:
            for k in (1, 0) if own.rank == 1 and again == 2 else (0, 1):
                made[k].backward()
            own.synchronize()
            sd.cumsum(x, 1, method="twopass", group=group)
        except PeerMismatch:
            raised += 1
        own.synchronize()
        dist.barrier()
    assert raised == 1, raised
    return "typed on every rank"


def check_graph(own: Rank, _: int) -> str:
    """A CUDA graph of a call with its backward pass, replayed with other values, by each method."""
    if own.backend != "nccl":
        return "no GPU for each rank"
    for method in own.methods:
        x = torch.ones(8, 256, device=own.device).requires_grad_()
        a = torch.full_like(x, 0.5).requires_grad_()

        def step(a: Any = a, x: Any = x, method: str = method) -> tuple[torch.Tensor, ...]:
            y = sd.linear_scan(a, x, 1, method=method)
            return (y, *torch.autograd.grad(y.sum(), (a, x)))

        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        own.synchronize()
        dist.barrier()
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


CHECKS: dict[str, Callable[[Rank, int], str]] = {
    "graph": check_graph,
    "errors": check_errors,
    "backward order": check_order,
    "requests": check_requests,
}


def run_checks(rank: int, options: argparse.Namespace, folder: str) -> None:
    """Run every check on one rank."""
    own = Rank(rank, options.ranks, options.out, options.end)
    own.join(folder)
    for name, check in CHECKS.items():
        if options.only in name and not own.is_over():
            began = time.time()
            said = check(own, options.requests)
            own.write(check=name, said=said, seconds=round(time.time() - began, 1))
    os._exit(0)


# ---- calls that differ

DIFFERENCES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # keywords of the call, and what one rank changes
    "operator": ({"op": "sum"}, {"op": "max"}),
    "direction": ({"op": "sum"}, {"reverse": True}),
    "exclusive": ({"op": "sum"}, {"exclusive": True}),
    "lines": ({"op": "sum"}, {"lines": 6}),
    "dtype": ({"op": "sum"}, {"x": torch.bfloat16}),
}


def make_mismatches(rank: int, options: argparse.Namespace, folder: str) -> None:
    """Let one rank make another call than the others, both made before by all, and count how ranks learn of it.

    Each trial has a group of its own. A rank that has raised makes no further call of the group; the others make up
    to three. "typed" are ranks that raised a typed error, "silent" those that raised none, "other" the rest.
    """
    links.LIMIT_SECONDS = FAULT_SECONDS
    own = Rank(rank, options.ranks, options.out, options.end)
    own.join(folder)
    emulated = scanops.emulate() if own.device.type == "cpu" else contextlib.nullcontext()
    draw, names, missed = random.Random(0), list(DIFFERENCES), 0
    with emulated:
        for number in range(options.mismatches):
            method, name, odd = own.methods[number % len(own.methods)], draw.choice(names), draw.randrange(own.size)
            if own.is_over(2.0 * FAULT_SECONDS):
                break
            began = time.time()
            said = _make_mismatch(own, method, name, odd)
            counts = torch.tensor([float(said == kind) for kind in ("typed", "silent", "other")], device=own.device)
            dist.all_reduce(counts)
            typed, silent, other = (int(each) for each in counts)
            missed += silent + other
            own.write(mismatch=name, method=method, odd_rank=odd, typed=typed, silent=silent, other=other,
                      seconds=round(time.time() - began, 1))  # fmt: skip
    assert not missed, f"{missed} ranks did not raise a typed error"
    os._exit(0)


def _make_mismatch(own: Rank, method: str, name: str, odd: int) -> str:
    group = dist.new_group(list(range(own.size)))
    usual, changes = DIFFERENCES[name]

    def call(given: dict[str, Any]) -> None:
        given = dict(given)
        x = torch.ones(given.pop("lines", 4), 300, device=own.device, dtype=given.pop("x", torch.float32))
        sd.scan(x, given.pop("op"), 1, group=group, method=method, **given)
        own.synchronize()

    for _ in range(2):
        call(usual)
        call({**usual, **changes})
    dist.barrier()
    try:
        call({**usual, **changes} if own.rank == odd else usual)
        for _ in range(3):
            call(usual)
    except (PeerMismatch, PeerLost, UnsupportedRequest):
        return "typed"
    except Exception:
        return "other"
    return "silent"


# ---- repeats


def soak(rank: int, options: argparse.Namespace, folder: str) -> None:
    """Repeat scans beside all_reduce on another stream, and in a CUDA graph: the same bits each time."""
    own = Rank(rank, options.ranks, options.out, options.end)
    own.join(folder)
    if own.backend != "nccl":
        own.write(soak="needs a GPU for each rank")
        os._exit(0)
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    busy = torch.ones(2**22, device=own.device)
    other = dist.new_group(list(range(own.size)))
    for method in own.methods:
        for shape, dim in (((64, 65536), 1), ((512, 4096), 1), ((2, 2048, 4096), 1)):
            x = torch.rand([size // own.size if d == dim else size for d, size in enumerate(shape)], device=own.device)
            first: Any = sd.cumsum(x, dim, method=method)
            differ = done = 0
            for done in range(1, options.soak + 1):
                if done % 10 == 0:
                    with torch.cuda.stream(side):
                        dist.all_reduce(busy, group=other)
                y: Any = sd.cumsum(x, dim, method=method)
                if done % COMPARED == 0:
                    differ += int(not torch.equal(y, first))
                if done % 1000 == 0 and own.is_over():
                    break
            graph = torch.cuda.CUDAGraph()
            dist.barrier()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                y = sd.cumsum(x, dim, method=method)
            for _ in range(100):
                graph.replay()
            torch.cuda.synchronize()
            in_graph = bool(torch.equal(y, first))
            own.write(soak=list(shape), method=method, repeats=done, compared=done // COMPARED,
                      differ=int(own.find_slowest(differ)), last_replay_is_equal=in_graph)  # fmt: skip
    os._exit(0)


# ---- faults


def run_until_fault(rank: int, ranks: int, folder: str, victim: int, moment: float, kind: str) -> None:
    """Scan until the victim is gone; a rank that waits for it ends with a typed error, and says so in a file."""
    links.LIMIT_SECONDS = FAULT_SECONDS
    own = Rank(rank, ranks, None, 0.0)
    own.join(folder)
    emulated = scanops.emulate() if own.device.type == "cpu" else contextlib.nullcontext()
    x = torch.ones(64, 4096 if own.device.type == "cuda" else 64, device=own.device)
    said = "hang"
    with emulated:
        for _ in range(3):
            sd.cumsum(x, 1, method="onepass")
        own.synchronize()
        dist.barrier()
        began = time.monotonic()
        try:
            while time.monotonic() - began < 20:
                if rank == victim and time.monotonic() - began > moment:
                    if kind == "killed":
                        os.kill(os.getpid(), signal.SIGKILL)
                    if kind == "absent":
                        time.sleep(12)
                        os._exit(0)
                    sd.cumsum(x, 1, method="onepass", reverse="no")  # refused on this rank alone
                for _ in range(50):
                    y = sd.cumsum(x, 1, method="onepass")
                own.synchronize()
                del y
        except (PeerLost, UnsupportedRequest):
            said = "typed"
        except Exception as problem:
            said = f"raw {type(problem).__name__}"
    Path(folder, f"rank{rank}").write_text(f"{said} {time.monotonic() - began:.1f}")
    os._exit(0)


def count_faults(options: argparse.Namespace) -> int:
    """Let a rank be killed, absent or wrong at random moments, a few groups at a time; return 1 if another hung."""
    ranks, draw = options.ranks, random.Random(0)
    drawn = [(("killed", "absent", "refuses")[trial % 3], draw.randrange(ranks), draw.random())
             for trial in range(options.faults)]  # fmt: skip
    wrong = False

    def run(each: tuple[str, int, float]) -> dict[str, Any] | None:
        return _run_fault(ranks, *each) if time.time() < options.end else None

    with ThreadPoolExecutor(TOGETHER if torch.cuda.device_count() else 1) as pool:
        for row in pool.map(run, drawn):
            if row is not None:
                write_row(options.out, row)
                others = [said for name, said in row["ended"].items() if name != f"rank{row['victim']}"]
                wrong |= row["hung"] > 0 or not all(said.startswith("typed") for said in others)
    return int(wrong)


def _run_fault(ranks: int, kind: str, victim: int, moment: float) -> dict[str, Any]:
    """Start a group of ranks of which one fails, and return how the others ended."""
    with tempfile.TemporaryDirectory() as folder:
        context: Any = torch.multiprocessing.get_context("spawn")
        given = (ranks, folder, victim, moment, kind)
        processes = [context.Process(target=run_until_fault, args=(rank, *given)) for rank in range(ranks)]
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
    """Run the trials that the options name, and return 1 where something is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.distributed.gpu_trials",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add_options(parser)
    parser.add_argument("--checks", action="store_true", help="compare values and gradients")
    parser.add_argument("--requests", type=int, default=10**6, metavar="N", help="random calls of --checks, at most")
    parser.add_argument("--mismatches", type=int, default=0, metavar="N", help="let a rank make another call N times")
    parser.add_argument("--faults", type=int, default=0, metavar="N", help="let ranks fail N times")
    parser.add_argument("--soak", type=int, default=0, metavar="N", help="repeat scans N times")
    options = parser.parse_args(arguments)
    begin_run(options)
    if options.faults:
        return count_faults(options)
    jobs = ((options.checks, run_checks), (options.mismatches, make_mismatches), (options.soak, soak))
    return max([run_ranks(job, options) for wanted, job in jobs if wanted], default=0)


if __name__ == "__main__":
    raise SystemExit(main())
