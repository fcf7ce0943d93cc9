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
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

import scanops
from benchmarks import variants
from benchmarks.calls import CASES, compared
from benchmarks.common import kernel_of, parser, require_gpu, write
from benchmarks.store import SPECS, look_ups, milliseconds
from benchmarks.timing import Timer
from scanops import artifact
from scanops.codegen.lines import are_few
from scanops.requests.request import make_request
from scanops.runtime import calls, kernels, native
from scanops.runtime.kernels import default_target
from scanops.runtime.launcher import Launcher, device_of, places_for

BUILDERS = {"library": "load_inline", "cubin": "nvrtc"}
KINDS: dict[str, Callable[[list[float]], float]] = {"median": statistics.median, "most": max}
COLD_CALL = """
import sys, time
import torch
x = torch.randn(64, int(sys.argv[1]), device="cuda")
torch.cuda.synchronize()
began = time.perf_counter()
import scanops
scanops.cumsum(x, 1)
torch.cuda.synchronize()
print(time.perf_counter() - began)
"""


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


def launch_of(scan: variants.Scan, dim: int) -> tuple[Callable[[], object], tuple[torch.Tensor, ...]]:
    """Return a launch of a scan's kernel, without the checks of a call, and the results that it writes."""
    request, device = make_request(scan.x, scan.op, dim, **scan.options), device_of(scan.x)
    outs = places_for(request)
    spec = request.spec(outs[0], device.multiprocessors)
    few = are_few(spec, request.line_shape.numel(), device.multiprocessors)
    launcher = Launcher(kernel_of((spec, few), device.target), request, device, spec, few)
    return functools.partial(launcher, request.inputs, outs), outs


def speeds(text: str) -> dict[str, dict[str, Any]]:
    """Return, for each variant whose name contains ``text``, the times of both forms and whether their bits agree."""
    found, stopwatch = {}, Timer(variants.BUDGET)
    for shape, dim in variants.SHAPES:
        scans = [scan for scan in variants.scans(shape, dim) if text in scan.name]
        for form in BUILDERS:
            with forms(form):
                variants.built(scans, dim)
        for scan in scans:
            runs, results = {}, []
            for form in BUILDERS:
                with forms(form):
                    runs[form], outs = launch_of(scan, dim)
                runs[form]()
                results.append([out.clone() for out in outs])
            times = {form: each.ms for form, each in stopwatch.samples(runs, scan.moved).items()}
            same = all(a.view(torch.uint8).equal(b.view(torch.uint8)) for a, b in zip(*results, strict=True))
            row = {**times, "ratio": times["library"] / times["cubin"], "same_bits": same}
            found[variants.cell_name(shape, dim, scan)] = row
            print(f"{row['ratio']:6.3f}  {'' if same else 'OTHER BITS  '}{list(found)[-1]}", flush=True)
    return found


def first_calls(form: str, count: int) -> dict[str, list[float]]:
    """Return the seconds of first calls of lengths that nobody asked for, in this process and in new ones."""
    lengths = random.Random(form).sample(range(200, 60000), 2 * count)
    found: dict[str, list[float]] = {"running_s": [], "cold_s": []}
    with tempfile.TemporaryDirectory() as store, forms(form, store) as variables:
        for number, length in enumerate(lengths):
            if number % 2:
                found["cold_s"].append(milliseconds(COLD_CALL, variables, str(length))[0] / 1e3)
                continue
            x = torch.randn(64, length, device="cuda")
            torch.cuda.synchronize()
            began = time.perf_counter()
            scanops.cumsum(x, 1)
            torch.cuda.synchronize()
            found["running_s"].append(time.perf_counter() - began)
    return found


def loads(form: str, processes: int) -> dict[str, float]:
    """Return medians over new processes: milliseconds of a look-up, and of a load until a first launch may follow."""
    with tempfile.TemporaryDirectory() as store, forms(form, store) as variables:
        for slug in SPECS:
            kernel_of((scanops.ScanSpec.parse(slug), False), default_target())
        return look_ups(processes, variables, "wheel" if artifact.DIGESTS else "checkout")


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
    print(f"same bits in {same} of {len(cells)}\n\n{'':28}" + "".join(f"{form:>10}" for form in BUILDERS))
    rows: dict[str, dict[str, float]] = {}
    for form in BUILDERS:
        with forms(form):
            host = {name: compared(CASES[name], "cuda", 10, 3)["forward"] for name in ("sum", "sum, masked", "linear")}
        firsts = first_calls(form, given.count if form == "cubin" else max(2, given.count // 5))
        rows[form] = {
            **{f"{what}, {kind}": of(times) for what, times in firsts.items() for kind, of in KINDS.items()},
            **{name: ms for name, ms in loads(form, given.count).items() if name in ("find_ms", "load_ms")},
            **{f"{name}, {way}, us": us for name, ways in host.items() for way, us in ways.items()},
        }
    print(
        "\n".join(f"{what:<28}" + "".join(f"{rows[form][what]:10.3f}" for form in BUILDERS) for what in rows["cubin"])
    )
    figures = {"geometric_mean": geometric, "least": min(ratios), "same_bits": same, **rows, "cells": cells}
    write(given.output, figures)
    return int(same < len(cells))
