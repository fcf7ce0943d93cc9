"""Measure first calls of lengths that no store has, and look-up and load from disk, by both forms of kernels.

First calls are timed until the GPU has done what they queued: in a process that runs, and in new ones from after the
import of torch. Without a GPU a driver that does nothing takes the cubins, so that all but the kernel is measured.

Look-ups and loads are those of new processes in which torch and the device are initialised, until nothing is left to a
first launch: with the kernel in the user's store, and in a pack below an empty store.
A process that renders (imports jinja2) is an error where scanops is an installed wheel, which carries the digest of its
sources.
"""

from __future__ import annotations

import functools
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import scanops
from benchmarks.common import ROOT, aligned, child, kernel_of, parser, write
from benchmarks.forms import BUILDERS, PRETENDED, forms, no_driver
from benchmarks.timing import milliseconds, percentile
from scanops import ScanSpec, build_request
from scanops.builders import unavailable
from scanops.codegen.kernel_key import KernelKey
from scanops.runtime import kernels
from scanops.store.packs import finish

SPECS = ("sum-f32-n1000", "prod-bf16-n4096-reverse", "sum-f32-n32768-mask_b8", "sum-f32-any-le1024-by4")
LENGTHS = range(200, 60000)  # of first calls
INSTALL = "wheel" if build_request.DIGESTS else "checkout"
GPU = torch.cuda.is_available()
GOALS = {"running": 0.25, "cold": 0.8}  # seconds, the median by NVRTC

LOOK_UP = """
import sys, time
import torch
began = time.perf_counter()
import scanops
imported = time.perf_counter() - began
from scanops.codegen.kernel_key import KernelKey
from scanops.runtime import kernels
torch.zeros(1, device="cuda")
spec = scanops.ScanSpec.parse(sys.argv[1])
target = kernels.default_target()
started = time.perf_counter()
kernel = kernels.find(KernelKey(spec, target))
found = time.perf_counter()
assert kernel is not None, "no kernel"
kernel.load_on_device(0)
loaded = time.perf_counter()
assert "jinja2" not in sys.modules, "rendered"
print(imported, found - started, loaded - found)
"""
FIRST_CALL = """
import sys, time
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(64, int(sys.argv[1]), device=device)
torch.cumsum(x, 1).cpu()
began = time.perf_counter()
import scanops
if device == "cuda":
    scanops.cumsum(x, 1)
    torch.cuda.synchronize()
else:
    from scanops.runtime import call_cache, launcher
    from scanops.runtime import driver
    driver.PATH = sys.argv[2]
    call_cache.device_of = lambda tensor: launcher.Device(target=sys.argv[3], multiprocessors=132)
    with scanops.emulate():
        scanops.cumsum(x, 1)
print(time.perf_counter() - began)
"""


def times(program: str, variables: dict[str, str], *words: object) -> list[float]:
    """Run a program in a new process and return the numbers that it prints."""
    return [float(word) for word in child("-c", program, *words, variables=variables).split()]


def first_calls(form: str, running: int, cold: int) -> dict[str, list[float]]:
    """Return the seconds of first calls in this process, after one more, and in new ones, after one more as well."""
    lengths = random.Random(form).sample(LENGTHS, running + cold + 2)
    found: dict[str, list[float]] = {"running": [], "cold": []}
    pretended = () if GPU else (no_driver(), PRETENDED.target)
    around = nullcontext() if GPU else scanops.emulate()
    with tempfile.TemporaryDirectory() as store, forms(form, store) as variables, around:
        for length in lengths[: running + 1]:
            x = torch.randn(64, length, device="cuda" if GPU else "cpu")
            found["running"].append(milliseconds(functools.partial(scanops.cumsum, x, 1)) / 1e3)
        # An environment that writes no bytecode would compile all modules in each process.
        variables |= {"PYTHONPYCACHEPREFIX": f"{store}/bytecode", "PYTHONDONTWRITEBYTECODE": ""}
        for length in lengths[running + 1 :]:
            found["cold"] += times(FIRST_CALL, variables, length, *pretended)
    return {way: seconds[1:] for way, seconds in found.items()}


def look_ups(processes: int, variables: dict[str, str]) -> dict[str, float]:
    """Return medians over new processes, one look-up each, of the specs in turn, in milliseconds."""
    variables = {"SCANOPS_POLICY": "never", **variables}
    rows = [times(LOOK_UP, variables, SPECS[number % len(SPECS)]) for number in range(processes + 2)]
    imports, finds, loads = zip(*([1e3 * each for each in row] for row in rows[2:]), strict=True)  # of warm files
    totals = [find + load for find, load in zip(finds, loads, strict=True)]
    medians = {"find_ms": finds, "load_ms": loads, "total_ms": totals, "import_ms": imports}
    found = {name: statistics.median(each) for name, each in medians.items()}
    return {"processes": processes, **found, "total_min_ms": min(totals), "total_max_ms": max(totals)}


def from_disk(form: str, processes: int) -> dict[str, dict[str, float]]:
    """Return the look-ups of one form of kernel in each of the places where it may be."""
    target = kernels.default_target()
    with tempfile.TemporaryDirectory() as folder:
        place, empty = (str(Path(folder, name)) for name in ("kernels", "empty"))
        Path(empty).mkdir(mode=0o700)
        with forms(form, place) as variables:
            for slug in SPECS:
                kernel_of(KernelKey(ScanSpec.parse(slug), target))
        finish(Path(place))
        cases = {
            "store": {"SCANOPS_STORE": place, "SCANOPS_PACKS": ""},
            "pack": {"SCANOPS_STORE": empty, "SCANOPS_PACKS": place},
        }
        return {name: look_ups(processes, {**variables, **case}) for name, case in cases.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure first calls, then look-ups, of each form; with -o the figures are written as they are found."""
    options = parser(__doc__)
    options.add_argument("--processes", type=int, default=12, help="new processes for each figure of look-ups")
    options.add_argument("--calls", type=int, default=30, help="first calls in a running process; a third in new ones")
    given = options.parse_args(arguments)
    print(f"scanops is a {INSTALL} in {ROOT}; {torch.cuda.get_device_name() if GPU else 'a driver that does nothing'}")
    figures: dict[str, Any] = {"install": INSTALL, "specs": SPECS, "first_calls": {}, "from_disk": {}}
    kinds: dict[str, Callable[[list[float]], float]] = {
        "median": statistics.median,
        "95 %": lambda seconds: percentile(seconds, 95),
        "most": max,
    }
    rows = [["seconds of a first call", *kinds, "goal"]]
    for form in reversed(BUILDERS) if GPU else ["cubin"]:
        count = given.calls if form == "cubin" else 4  # by nvcc and g++, a second each
        if unavailable(BUILDERS[form], PRETENDED.target):
            continue
        for way, seconds in first_calls(form, count, max(2, count // 3)).items():
            found = {kind: of(seconds) for kind, of in kinds.items()}
            figures["first_calls"].setdefault(form, {})[way] = {**found, "seconds": seconds}
            goal = str(GOALS[way]) if form == "cubin" else ""
            rows.append([f"{form}, {way}", *(f"{each:.3f}" for each in found.values()), goal])
        write(given.output, figures)
    print(aligned(rows), flush=True)
    for form in BUILDERS if GPU else ():
        figures["from_disk"][form] = places = from_disk(form, given.processes)
        write(given.output, figures)
        for name, row in places.items():
            print(
                f"{form}, {name}: look-up {row['find_ms']:.2f} + load {row['load_ms']:.2f} = {row['total_ms']:.2f} ms "
                f"({row['total_min_ms']:.2f} to {row['total_max_ms']:.2f}; goal 1.2), import {row['import_ms']:.0f} ms",
                flush=True,
            )
