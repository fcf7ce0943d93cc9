"""Faults, repeated runs and fuzzed requests of sharded scans on gloo: counts, written as JSON.

    python -m benchmarks.distributed_gloo [--kills 100] [--mismatches 100] [--late 20] [--runs 10000] [--fuzz 10000]

Kills: one of four processes gets SIGKILL at a random moment of a loop of scans with gradients, by both methods; each of
the others has to raise PeerLost within the timeout and 5 s. Mismatches: a random rank makes another call; every rank
has to raise a typed error, and the next call to be right. Late: a rank sleeps longer than the timeout. Runs: equal
calls by both methods, bit by bit. Fuzz: random operators, variants and layouts on 1 to 8 ranks that are threads.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

import scanops
import scanops.distributed
from scanops.errors import PeerLost, UnsupportedRequest
from tests.distributed.ranks import FLOATS, HOWS, LENGTH, VARIANTS, WHOLE, by_threads, case_of, derived

RESULTS = Path(__file__).parent / "results" / "distributed_gloo.json"
sd: Any = scanops.distributed  # whose results are tensors here
TIMEOUT, RANKS, METHODS = 2.0, 4, ("twopass", "chain")
FORK = multiprocessing.get_context("fork")
TYPED, OTHER = 7, 8  # exit statuses of a process: PeerLost in time, or anything else


def start(rank: int, folder: str) -> None:
    """Join the group of all processes."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=TIMEOUT)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS, timeout=limit)


def scan_until_lost(rank: int, folder: str, late: bool) -> None:
    """Scan with gradients until another rank is lost; with ``late`` rank 1 sleeps once."""
    start(rank, folder)
    Path(folder, f"ready{rank}").touch()
    try:
        for k in range(10**6):
            if late and rank == 1 and k == 5:
                time.sleep(2 * TIMEOUT)
            begun = time.monotonic()
            x = torch.ones(16, 50, requires_grad=True)
            sd.cumsum(x, 1, method=METHODS[k % 2]).sum().backward()
    except PeerLost:
        os._exit(TYPED if time.monotonic() - begun < TIMEOUT + 5 or (late and rank == 1) else OTHER)


def with_a_fault(late: bool, draw: random.Random) -> dict[str, int]:
    """Kill one rank, or let one be late, and count how the others end."""
    found = {"typed": 0, "other": 0, "hung": 0}
    with tempfile.TemporaryDirectory() as folder:
        ranks = [FORK.Process(target=scan_until_lost, args=(rank, folder, late)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        while not all(Path(folder, f"ready{rank}").exists() for rank in range(RANKS)):
            time.sleep(0.01)
        killed = None if late else draw.choice(ranks)
        if killed is not None:
            time.sleep(draw.random() * 0.5)
            killed.kill()  # SIGKILL
        end = time.monotonic() + 3 * TIMEOUT + 10
        for process in ranks:
            process.join(max(0.0, end - time.monotonic()))
            if process is not killed:
                kind = "hung" if process.exitcode is None else "typed" if process.exitcode == TYPED else "other"
                found[kind] += 1
            process.kill()
    return found


def together(rank: int, folder: str, mismatches: int, runs: int, answers: Any) -> None:
    """Calls that differ, then equal ones; what is counted goes to ``answers``."""
    start(rank, folder)
    draw, wrong = random.Random(0), 0
    x = torch.rand(16, 50, generator=torch.Generator().manual_seed(rank))
    changes: list[dict[str, Any]] = [
        {"op": "prod"}, {"x": x[:3]}, {"x": x.double()}, {"reverse": True}, {"initial": 1.0}, {"dim": 9},
        {"mask": x > 0}, {"method": "guess"}, {"spans": [[(0, 1)]]}, {"offsets": torch.tensor([0, 200])},
    ]  # fmt: skip
    for k in range(mismatches):
        odd, changed = draw.randrange(RANKS), draw.choice(changes)
        given: Any = {"x": x, "op": "sum", "dim": 1, "method": METHODS[k % 2]}
        try:
            sd.scan(**given | (changed if rank == odd else {}))
            wrong += 1
        except UnsupportedRequest:
            pass
        wrong += not torch.allclose(sd.scan(**given), sd.scan(x, "sum", 1))
    differ, bits = 0, {method: sd.cumsum(x, 1, method=method) for method in METHODS}
    for k in range(runs):
        differ += not torch.equal(sd.cumsum(x, 1, method=METHODS[k % 2]), bits[METHODS[k % 2]])
    answers.put((wrong, differ))
    time.sleep(0.5)
    os._exit(0)


def fuzzed(count: int) -> dict[str, int]:
    """Random requests, with gradients and some second ones, against one process."""
    scanops.scan(torch.ones(1, dtype=torch.int64), WHOLE[0], 0)
    draw, wrong = random.Random(1), 0
    for done in range(count):
        op, ranks = draw.choice((*FLOATS, *WHOLE)), draw.choice((1, 2, 3, 4, 8))
        whole = op in WHOLE[:4] or op not in FLOATS
        case = case_of(op, ranks, draw.choice(HOWS), draw.choice(VARIANTS), draw.randrange(10**9), whole)
        try:
            by_threads(case, derived(scanops, case, case.given, torch.arange(LENGTH), done % 8 == 0))
        except AssertionError as problem:
            wrong += 1
            print(problem, flush=True)
    return {"requests": count, "wrong": wrong}


def main() -> None:
    """Run what is asked for and write the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, count in {"kills": 100, "mismatches": 100, "late": 20, "runs": 10_000, "fuzz": 10_000}.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    given, draw = parser.parse_args(), random.Random(0)
    found: dict[str, Any] = {"torch": torch.__version__, "timeout_s": TIMEOUT}
    torch.set_num_threads(1)
    answers: Any = FORK.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        job = (folder, given.mismatches, given.runs, answers)
        start_processes(together, job, RANKS, start_method="fork")  # type: ignore[no-untyped-call]
        counts = [
            answers.get() if not answers.empty() else (-1, -1) for _ in range(RANKS)
        ]  # -1: a process ended otherwise
    found["mismatches"] = {"calls": given.mismatches, "wrong": [wrong for wrong, _ in counts]}
    found["runs"] = {"calls": given.runs, "differ": [differ for _, differ in counts]}
    for name, count in (("late", given.late), ("kills", given.kills)):
        each = [with_a_fault(name == "late", draw) for _ in range(count)]
        found[name] = {"faults": count, **{kind: sum(one[kind] for one in each) for kind in ("typed", "other", "hung")}}
    found["fuzz"] = fuzzed(given.fuzz)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
