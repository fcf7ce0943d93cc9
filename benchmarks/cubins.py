"""Measure cubins, which NVRTC builds, beside libraries: host time, speed, bits, first calls, loads from disk.

Both forms of a kernel are from the same text and plan. Speeds are those of the variants' grid, the two forms
interleaved; host times are those of ``calls``, torch's in the same run. First calls are of lengths that no store has:
in a process that runs, and in new ones, from after the import of torch. Loads are in new processes, on a GPU that is
initialised, until nothing is left to a first launch.
"""

from __future__ import annotations

import functools
import math
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

import scanops
from benchmarks import variants
from benchmarks.calls import CASES, compared
from benchmarks.common import Row, aligned, kernel_of, parser, require_gpu, write
from benchmarks.scans import Outputs, Scan, same_bits
from benchmarks.store import FIRST_CALL, SPECS, look_ups, times
from benchmarks.timing import Timer, milliseconds
from scanops.runtime import calls, kernels, native
from scanops.runtime.launcher import Launcher, device_of, places_for

BUILDERS = {"library": "load_inline", "cubin": "nvrtc"}
KINDS: dict[str, Callable[[list[float]], float]] = {"median": statistics.median, "most": max}


@contextmanager
def forms(form: str, store: str | None = None) -> Iterator[dict[str, str]]:
    """Let calls in the block use one form of kernel, looked up and built again; yield the environment for it."""
    chosen = {"SCANOPS_BUILDER": BUILDERS[form], **({"SCANOPS_STORE": store} if store else {})}
    before = {name: os.environ.get(name) for name in chosen}

    def switch(values: dict[str, Any]) -> None:
        for name, value in values.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        kernels._KERNELS.clear()
        calls.forget()

    switch(chosen)
    try:
        yield chosen
    finally:
        switch(before)


def launch_of(scan: Scan) -> tuple[Callable[[], object], Outputs]:
    """Return a launch of a scan's kernel, without the checks of a call, and the results that it writes."""
    request, device = scan.request, device_of(scan.inputs.x)
    outs, wanted = places_for(request), scan.wanted(device.multiprocessors)
    launcher = Launcher(kernel_of(wanted, device.target), request, device, *wanted)
    return functools.partial(launcher, request.inputs, outs), outs


def speeds(text: str) -> dict[str, Row]:
    """Return, for each variant whose name contains ``text``, the times of both forms and whether their bits agree."""
    found, timer = {}, Timer(variants.BUDGET)
    for shape, dim in variants.SHAPES:
        for form in BUILDERS:
            with forms(form):
                scans = variants.built(shape, dim, text=text)
        for scan in scans:
            runs, results = {}, []
            for form in BUILDERS:
                with forms(form):
                    runs[form], outs = launch_of(scan)
                runs[form]()
                results.append([out.clone() for out in outs])
            taken = {form: each.ms for form, each in timer.samples(runs, scan.moved).items()}
            same = all(map(same_bits, *results))
            found[scan.name] = {**taken, "ratio": taken["library"] / taken["cubin"], "same_bits": same}
            print(f"{found[scan.name]['ratio']:6.3f}  {'' if same else 'OTHER BITS  '}{scan.name}", flush=True)
    return found


def first_calls(form: str, count: int) -> dict[str, list[float]]:
    """Return the seconds of first calls of lengths that nobody asked for, in this process and in new ones."""
    lengths = random.Random(form).sample(range(200, 60000), 2 * count)
    found: dict[str, list[float]] = {"running_s": [], "cold_s": []}
    with tempfile.TemporaryDirectory() as store, forms(form, store) as variables:
        for running, cold in zip(lengths[::2], lengths[1::2], strict=True):
            x = torch.randn(64, running, device="cuda")
            found["running_s"].append(milliseconds(functools.partial(scanops.cumsum, x, 1)) / 1e3)
            found["cold_s"].append(times(FIRST_CALL, variables, cold, "import")[0] / 1e3)
    return found


def loads(form: str, processes: int) -> dict[str, float]:
    """Return medians over new processes: milliseconds of a look-up, and of a load until a first launch may follow."""
    with tempfile.TemporaryDirectory() as store, forms(form, store) as variables:
        for slug in SPECS:
            kernel_of((scanops.ScanSpec.parse(slug), False), kernels.default_target())
        found = look_ups(processes, variables)
    return {name: found[name] for name in ("find_ms", "load_ms", "total_ms")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all of it, and print a table; 1 where bits differ."""
    options = parser(__doc__, filtered="variants")
    options.add_argument("--count", type=int, default=20, help="first calls and loads of each kind")
    given = options.parse_args(arguments)
    require_gpu()
    native.get(build=True)
    cells = speeds(given.filter)
    ratios = [row["ratio"] for row in cells.values()]
    geometric = math.exp(statistics.fmean(map(math.log, ratios)))
    same = sum(row["same_bits"] for row in cells.values())
    print(f"speed of cubins / libraries: geometric mean {geometric:.3f}, least {min(ratios):.3f}; ", end="")
    print(f"same bits in {same} of {len(cells)}\n")
    rows: dict[str, dict[str, float]] = {}
    for form in BUILDERS:
        with forms(form):
            host = {name: compared(CASES[name], "cuda", 10, 3)["forward"] for name in ("sum", "sum, masked", "linear")}
        firsts = first_calls(form, given.count if form == "cubin" else max(2, given.count // 5))
        rows[form] = {
            **{f"{what}, {kind}": of(taken) for what, taken in firsts.items() for kind, of in KINDS.items()},
            **loads(form, given.count),
            **{f"{name}, {way}, us": us for name, ways in host.items() for way, us in ways.items()},
        }
    print(aligned([["", *rows], *([what, *(f"{rows[form][what]:.3f}" for form in rows)] for what in rows["cubin"])]))
    figures = {"geometric_mean": geometric, "least": min(ratios), "same_bits": same, **rows, "cells": cells}
    write(given.output, figures)
    return int(same < len(cells))
