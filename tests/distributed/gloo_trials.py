"""Sharded scans on gloo: every operator, variant and layout, random calls, and faults, counted.

    cases        every operator, variant and layout on 1, 2, 3, 4 and 8 ranks, with gradients and some second ones
    fuzz         random calls, some of which no rank may answer: the results of one process, or a typed error on all
    mismatches   one of four ranks makes another call: a typed error on every rank, and the next call is right
    runs         equal calls: the same bits every time
    late         a rank sleeps for longer than the timeout: PeerLost on every rank
    kills        one of four ranks gets SIGKILL at a random moment of a loop of scans with gradients: PeerLost on the
                 others within the timeout and 5 s

Ranks are processes on the CPU. Whatever is wrong, or hangs, is printed and makes the exit status 1.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import queue
import random
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import scanops
from benchmarks.common import Row, parser, write
from scanops.errors import PeerLost, UnsupportedRequest
from tests.distributed.calls import WORLDS, answer, difference, every_request, random_request, sd

TIMEOUT, RANKS = 2.0, 4
LONG = 60.0  # seconds that a rank waits for others where none is late
SILENT = 2 * LONG  # seconds without a word from any rank, after which it is a hang
SPOKEN = 10.0  # seconds between two lines of progress
SEED, SECONDS = [1], [float("inf")]  # of the random calls: set by the command's options
COUNTS = {"cases": 10**6, "fuzz": 10_000, "mismatches": 100, "runs": 10_000, "late": 20, "kills": 100}
FORK = multiprocessing.get_context("fork")
Say = Callable[[str, object], None]  # a word to the first process: what it is of, and a value


def joined(rank: int, ranks: int, folder: str, timeout: float) -> None:
    """Join the group of all processes."""
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1)
    warnings.simplefilter("ignore")
    limit = timedelta(seconds=timeout)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks, timeout=limit)


def compare(rank: int, say: Say, count: int, seed: int | None, seconds: float = float("inf")) -> None:
    """Answer requests with the ranks of a group, and compare; rank 0 counts them. Without a seed: every case.

    After ``seconds`` rank 0 lets all ranks end.
    """
    end = time.monotonic() + seconds
    groups: Any = {world: dist.new_group(range(world), timeout=timedelta(seconds=LONG)) for world in WORLDS}
    draw = random.Random(seed)
    requests = every_request() if seed is None else (random_request(draw) for _ in range(count))
    typed = done = 0
    for number, request in zip(range(count), requests, strict=False):
        if number % 50 == 0 and seconds < float("inf"):
            late = torch.tensor(int(time.monotonic() > end))
            dist.broadcast(late, src=0)
            if late:
                break
        world, done = len(request.table), number + 1
        if rank == 0:
            say("progress", number)
        if rank >= world:
            continue
        group, teller = groups[world], number % world  # who computes the whole line in one process
        whole = torch.arange(request.given["x"].shape[request.dim])
        said = [answer(scanops, request, request.given, whole) if rank == teller else None]
        dist.broadcast_object_list(said, src=teller, group=group)
        for _ in range(2):  # the second call is made of what the first has found
            found = answer(sd, request, request.local(rank), request.places(rank), group=group, **request.how)
            wrong = difference(request, found, said[0], rank, partial(summed, group))
            if wrong:
                say("wrong", f"rank {rank} of call {number}: {wrong}; {request.told()}")
        typed += isinstance(found, str)
    if rank == 0:
        say("count", Counter(calls=done, typed=typed))


def summed(group: Any, each: torch.Tensor) -> torch.Tensor:
    """Return the sum over the ranks of a group."""
    dist.all_reduce(each, group=group)
    return each


def mismatch(rank: int, say: Say, count: int) -> None:
    """Make calls that differ in a random argument on a random rank, and an equal one after each."""
    draw = random.Random(0)
    x = torch.rand(16, 50, generator=torch.Generator().manual_seed(rank))
    errors: list[dict[str, Any]] = [{"dim": 9}, {"method": "guess"}, {"spans": [[(0, 1)]]}]  # that all ranks raise
    changes: list[dict[str, Any]] = [
        {"op": "prod"}, {"x": x[:3]}, {"x": x.double()}, {"reverse": True}, {"initial": 1.0}, {"mask": x > 0},
        {"offsets": torch.tensor([0, 200])}, *errors,
    ]  # fmt: skip
    for k in range(count):
        odd, changed = draw.randrange(RANKS), draw.choice(changes)
        given: Any = {"x": x, "op": "sum", "dim": 1}
        say("progress", k)
        try:
            sd.scan(**given | (changed if rank == odd or changed in errors else {}))
            say("wrong", f"rank {rank} got results where rank {odd} called with {changed}")
        except UnsupportedRequest:
            say("count", Counter(typed=1))
        if not torch.allclose(sd.scan(**given), sd.scan(x, "sum", 1)):
            say("wrong", f"rank {rank}: the call after {changed}")


def repeat(rank: int, say: Say, count: int) -> None:
    """Repeat a call and compare the bits with the first results."""
    x = torch.rand(16, 50, generator=torch.Generator().manual_seed(rank))
    bits = sd.cumsum(x, 1)
    for k in range(count):
        say("progress", k)
        if not torch.equal(sd.cumsum(x, 1), bits):
            say("wrong", f"rank {rank}: other bits in call {k}")
    say("count", Counter(calls=count if rank == 0 else 0))


def scan_until_lost(rank: int, say: Say, late: bool) -> None:
    """Scan with gradients until another rank is lost; with ``late`` rank 1 sleeps once."""
    say("ready", rank)
    kind, begun = "answered for ever", 0.0
    try:
        for k in range(10**6):
            if late and rank == 1 and k == 5:
                time.sleep(2 * TIMEOUT)
            begun = time.monotonic()
            x = torch.ones(16, 50, requires_grad=True)
            sd.cumsum(x, 1).sum().backward()
    except PeerLost:
        in_time = time.monotonic() - begun < TIMEOUT + 5 or (late and rank == 1)
        kind = "typed" if in_time else "typed, too late"
    except Exception as problem:
        kind = repr(problem)
    say("count" if kind == "typed" else "wrong", Counter(typed=1) if kind == "typed" else f"rank {rank}: {kind}")
    say("ended", rank)
    time.sleep(TIMEOUT if late else 0.0)  # the late rank must find the others there


def process(work: Callable[..., None], job: tuple[Any, ...], rank: int, ranks: int, folder: str, timeout: float,
            said: Any) -> None:  # fmt: skip
    """What one process does. Nothing is torn down: it ends."""
    kept: Counter[str] = Counter()
    spoken = time.monotonic()

    def say(kind: str, value: Any) -> None:
        nonlocal spoken
        if kind == "count":
            kept.update(value)
        elif kind != "progress" or time.monotonic() - spoken > SPOKEN:
            spoken = time.monotonic()
            said.put((kind, rank, value))

    try:
        joined(rank, ranks, folder, timeout)
        work(rank, say, *job)
    except Exception as problem:
        say("wrong", f"rank {rank} ended: {problem!r:.2000}")
    said.put(("done", rank, kept))
    said.close()
    said.join_thread()
    os._exit(0)


def run(name: str, work: Callable[..., None], *job: Any, ranks: int = RANKS, timeout: float = 60.0,
        victim: int | None = None) -> Row:  # fmt: skip
    """Run ``work`` on new processes and return what they counted; a victim is killed once all are ready."""
    said: Any = FORK.Queue()
    found: dict[str, Any] = {"wrong": [], "hung": 0}
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        made = [FORK.Process(target=process, args=(work, job, r, ranks, folder, timeout, said)) for r in range(ranks)]
        for each in made:
            each.start()
        left, ready = set(range(ranks)) - {victim}, 0
        while left:
            try:
                kind, rank, value = said.get(timeout=SILENT if timeout > TIMEOUT else 3 * TIMEOUT + 10)
            except queue.Empty:
                found["hung"] = len(left)
                for rank in left:
                    os.kill(made[rank].pid or 0, signal.SIGUSR1)  # prints where it waits
                time.sleep(1.0)
                break
            if kind == "progress" and rank == 0:
                print(f"{name}: {value}, {len(found['wrong'])} wrong", flush=True)
            elif kind == "wrong":
                found["wrong"].append(value)
                print(f"{name}: WRONG {value}", flush=True)
            elif kind == "ready":
                ready += 1
                if ready == ranks and victim is not None:
                    time.sleep(random.random() * 0.5)
                    made[victim].kill()  # SIGKILL
            elif kind == "done":
                left -= {rank}
                counts.update(value)
        for each in made:
            each.kill()
            each.join()
    return {**counts, **found}


def faults(name: str, count: int) -> Row:
    """Let a rank be late, or kill one, so many times, each in new processes."""
    total: Row = {"faults": count, "typed": 0, "wrong": [], "hung": 0}
    for k in range(count):
        victim = random.randrange(RANKS) if name == "kills" else None
        one = run(name, scan_until_lost, name == "late", timeout=TIMEOUT, victim=victim)
        for kind, value in one.items():
            total[kind] += value
        print(f"{name}: {k + 1} of {count}, {total['typed']} typed errors, {total['hung']} hung", flush=True)
    total["survivors"] = count * (RANKS - (name == "kills"))
    return total


PARTS: dict[str, Callable[[int], Row]] = {
    "cases": lambda count: run("cases", compare, count, None, ranks=max(WORLDS)),
    "fuzz": lambda count: run("fuzz", compare, count, SEED[0], SECONDS[0], ranks=max(WORLDS)),
    "mismatches": lambda count: run("mismatches", mismatch, count) | {"calls": count},
    "runs": lambda count: run("runs", repeat, count),
    "late": partial(faults, "late"),
    "kills": partial(faults, "kills"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts, write their counts after each, and return 1 where something is wrong or hangs."""
    options = parser(__doc__, filtered="parts")
    for name, count in COUNTS.items():
        options.add_argument(f"--{name}", type=int, default=count, help=f"how many, at most; {count} by default")
    options.add_argument("--seconds", type=float, default=float("inf"), help="how long random calls take, at most")
    options.add_argument("--seed", type=int, default=1, help="of the random calls")
    given = options.parse_args(arguments)
    SEED[0], SECONDS[0] = given.seed, given.seconds
    random.seed(0)
    found: dict[str, Row] = {}
    for name, part in PARTS.items():
        count = getattr(given, name)
        if given.filter not in name or not count:
            continue
        began = time.monotonic()
        found[name] = part(count)
        found[name]["seconds"] = round(time.monotonic() - began)
        print(f"{name}: {found[name]}", flush=True)
        write(given.output, {"timeout_s": TIMEOUT, "cores": len(os.sched_getaffinity(0)), **found})
    bad = [name for name, row in found.items() if row["wrong"] or row["hung"]]
    bad += [name for name, row in found.items() if row.get("typed", 0) < row.get("survivors", 0)]
    print(f"{len(found)} parts, wrong: {', '.join(bad) or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
