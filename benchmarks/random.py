"""Time random calls as users make them against a copy of the least bytes that they have to move.

Operator, dtype, layout, sizes and options are drawn (draws.py), forward alone or with gradients. Worker processes build
the kernels of all calls first. Then each call is compared with PyTorch's operators in float64 once, and timed beside a
copy in turns, until ``--seconds`` are over. The percentiles of each class are printed, and the slowest calls with what
planned their kernels; ``--output`` gets a line of JSON for each call. Without a GPU ``--small`` compares small calls in
the emulator and times nothing.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

import scanops
from benchmarks.common import Row, aligned, append_line, parser, require_gpu
from benchmarks.draws import KNOWN, Draw, draw, worst_difference
from benchmarks.forms import PRETENDED, forms
from benchmarks.timing import Timer, percentile
from scanops.processes import jobs_that_fit
from scanops.runtime import native
from scanops.runtime.launcher import Device

CALLS_A_SECOND = 3.5  # as many are built for; where the GPU is faster, the run ends earlier
BUDGET = 0.03  # seconds of runs for each figure
SIZES = ((2**20, "below 1 MiB"), (2**24, "1 to 16 MiB"), (2**27, "16 to 128 MiB"), (2**40, "above 128 MiB"))
WORST = 30  # calls that are listed
KEPT_MEMORY = 0.6  # of the GPU's, above which what torch holds is given back before the next call


class Goal(NamedTuple):
    """What the calls of one direction should reach: a fraction of a copy's speed, or microseconds beyond the copy."""

    median: float
    tenth: tuple[float, float]  # nine calls of ten
    worst: tuple[float, float]


GOALS = {"forward": Goal(0.93, (0.75, 2.0), (0.5, 3.0)), "with gradients": Goal(0.88, (0.65, 4.0), (0.45, 6.0))}


def reaches(row: Row, bar: tuple[float, float]) -> bool:
    """Whether a call reaches a fraction, or is within some microseconds of the copy."""
    return bool(row["fraction"] >= bar[0] or row["us"]["scanops"] - row["us"]["copy"] <= bar[1])


def size_class(least_bytes: int) -> str:
    """The class of a call by its least bytes, in words."""
    return next(words for bound, words in SIZES if least_bytes < bound)


# ---- kernels, built by worker processes


@contextmanager
def pretend(device: Device) -> Iterator[None]:
    """Let calls on CPU tensors build kernels for a GPU in the block, and launch nothing."""
    with scanops.emulate(), forms("cubin", device=device):
        yield


def build_part(calls: Iterable[Draw], device: Device) -> None:
    """Build the kernels of these calls, in a process that has not used a GPU."""
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "SCANOPS_NATIVE": "0"}
    torch.set_num_threads(1)
    with pretend(device):
        for each in calls:
            try:
                operands = each.operands("cpu", filled=False)
                for leaf in each.leaves(operands).values():
                    leaf.requires_grad_()
                each.run(operands, each.gradients("cpu", filled=False))
            except Exception as problem:  # which the call that is timed reports
                words = f"{type(problem).__name__}: {str(problem)[:200]}"
                print(f"{each.number}: {each}: not built: {words}", file=sys.stderr, flush=True)


def build(calls: Sequence[Draw], device: Device) -> None:
    """Build the kernels of all calls in as many processes as fit."""
    parts, context = jobs_that_fit(), multiprocessing.get_context("fork")  # children find modules as this process does
    workers = [
        context.Process(target=native.get, kwargs={"build": True})
    ]  # the C++ call path, which the others do without
    workers += [context.Process(target=build_part, args=(calls[part::parts], device)) for part in range(parts)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


# ---- one call


def measure(each: Draw, device: str, timer: Timer | None) -> Row:
    """Return the figures of a call. Raises AssertionError where a result is wrong."""
    operands, given = each.operands(device), each.gradients(device)
    with scanops.calls() as served:
        off, near = worst_difference(each, operands, given)
    kernels = [f"{call.function} ({call.origin})" for call in served if call.kernel is not None]
    assert off <= near, f"a result is {off:.2g} off"
    results = each.scan(operands)
    moved = each.least_bytes(operands, results, given)
    row: Row = {
        **{"number": each.number, "call": str(each), "direction": "with gradients" if each.trains else "forward"},
        **{"classes": [*each.classes, f"size: {size_class(moved)}"], "bytes": moved, "kernels": kernels, "off": off},
    }
    del results
    for leaf in each.leaves(operands).values():
        leaf.requires_grad_()
    run = partial(each.run, operands, given)
    run()
    if timer is not None:
        run()  # the second call of a kind is the one that C++ learns from
        times = timer.samples({"copy": timer.copy(moved), "scanops": run}, moved)
        row["us"] = {name: round(1e3 * sample.ms, 2) for name, sample in times.items()}
        row["fraction"] = round(times["copy"].ms / times["scanops"].ms, 4)
    return row


# ---- what is said of all calls


def percentiles(rows: Sequence[Row]) -> Row:
    """Return number, median, tenth percentile and worst of the fractions, and how many calls miss the bars of each."""
    goal, fractions = GOALS[rows[0]["direction"]], [row["fraction"] for row in rows]
    return {
        "calls": len(rows),
        "median": percentile(fractions, 50),
        "tenth": percentile(fractions, 10),
        "worst": min(fractions),
        "below_tenth": sum(not reaches(row, goal.tenth) for row in rows) / len(rows),
        "below_worst": sum(not reaches(row, goal.worst) for row in rows),
    }


def by_class(rows: Sequence[Row]) -> Iterator[tuple[str, str, Row]]:
    """Yield direction, class and percentiles: those of all calls of a direction, then those of each class."""
    for direction in GOALS:
        own = [row for row in rows if row["direction"] == direction]
        if own:
            yield direction, "all", percentiles(own)
        for name in sorted({name for row in own for name in row["classes"]}):
            yield direction, name, percentiles([row for row in own if name in row["classes"]])


def slowest(rows: Sequence[Row], count: int = WORST) -> list[Row]:
    """Return the slowest calls: first those that miss the bars of the worst, then by their fraction."""
    return sorted(rows, key=lambda row: (reaches(row, GOALS[row["direction"]].tenth), row["fraction"]))[:count]


def format_report(rows: Sequence[Row]) -> str:
    """Return the percentiles of each class and the slowest calls as text."""
    heading = ["", "calls", "median", "10 %", "worst", "below 10 % bar", "below worst bar"]
    table: list[Sequence[object]] = [heading]
    for direction, name, found in by_class(rows):
        figures = [f"{found[key]:.3f}" for key in ("median", "tenth", "worst")]
        share = f"{100 * found['below_tenth']:.0f} %"
        table.append([f"{direction}, {name}", found["calls"], *figures, share, found["below_worst"]])
    lines = [aligned(table), ""]
    for row in slowest(rows):
        times = f"{row['us']['scanops']:8.1f} us, copy {row['us']['copy']:8.1f}"
        lines.append(f"{row['fraction']:.3f}  {times}  #{row['number']} {row['call']}")
        lines += [f"       {kernel}" for kernel in row["kernels"]]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure random calls and return 1 where one is wrong or fails."""
    options = parser(__doc__)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--seconds", type=float, default=220, help="of the whole run, builds included")
    options.add_argument("--calls", type=int, default=0, help="that are drawn; by default as many as fit")
    options.add_argument("--only", type=int, nargs="*", help="measure the calls of these numbers")
    options.add_argument("--known", action="store_true", help="measure classes that were slow once, in place of draws")
    options.add_argument("--small", action="store_true", help="small calls in the emulator, which are not timed")
    options.add_argument("--target", default=PRETENDED.target, help="of the kernels that are built beforehand")
    options.add_argument("--multiprocessors", type=int, default=PRETENDED.multiprocessors, help="of that GPU")
    given = options.parse_args(arguments)
    began, count = time.perf_counter(), given.calls or int(CALLS_A_SECOND * given.seconds)
    with contextlib.ExitStack() as block:
        numbers = given.only or range(count)
        calls = KNOWN if given.known else [draw(given.seed, number, small=given.small) for number in numbers]
        if given.small:
            block.enter_context(scanops.emulate())
            device, timer = "cpu", None
        else:
            build(calls, Device(given.target, given.multiprocessors))
            print(f"{len(calls)} calls, kernels built in {time.perf_counter() - began:.0f} s", flush=True)
            require_gpu()
            device, timer = "cuda", Timer(BUDGET)
            block.enter_context(forms("cubin"))
        seed = None if given.known else given.seed
        rows, failed = measure_all(calls, device, timer, given.output, began + given.seconds, seed)
    timed = [row for row in rows if "us" in row]
    print(format_report(timed) if timed else f"{len(rows)} calls are right")
    seconds = time.perf_counter() - began
    print(f"seed {seed}: {len(rows)} calls in {seconds:.0f} s, {failed} wrong or failed")
    return min(1, failed)


def measure_all(
    calls: Iterable[Draw], device: str, timer: Timer | None, output: Path | None, until: float, seed: int | None
) -> tuple[list[Row], int]:
    """Measure calls until a time on the clock; return their figures, and the number of those that are wrong or fail."""
    rows, failed = list[Row](), 0
    for each in calls:
        if time.perf_counter() > until:
            break
        try:
            rows.append(measure(each, device, timer))
            append_line(output, {"seed": seed, **rows[-1]})
        except Exception as problem:  # one failed call is a result, not the end of the run
            failed += 1
            words = f"{type(problem).__name__}: {str(problem)[:300]}"
            print(f"#{each.number} {each}: {words}", flush=True)
            append_line(output, {"seed": seed, "number": each.number, "call": str(each), "error": words})
        if device == "cuda" and torch.cuda.memory_reserved() > KEPT_MEMORY * torch.cuda.mem_get_info()[1]:
            torch.cuda.empty_cache()
    return rows, failed
