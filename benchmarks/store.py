"""Measure a first call: import, build on a cold store, and look-up and load from disk in new processes.

Each figure is from a process of its own, in which torch and the device are initialised before the clock starts. Look-
ups are timed with the kernel in the user's store, in a pack below an empty store, and in a pack where no store
exists; a process that renders (imports jinja2) is an error where scanops is an installed wheel, which carries the
digest of its sources. Kernels are emulated without a GPU.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, parser, write

SPECS = ("sum-f32-n1000", "prod-bf16-n4096-reverse", "sum-f32-n32768-mask_b8", "sum-f32-any-le1024-by4")
LENGTHS = (64, 1000, 4097, 32768, 100000)

LOOK_UP = """
import sys, time
import torch
began = time.perf_counter()
import scanops
imported = time.perf_counter() - began
from scanops.runtime import kernels
if torch.cuda.is_available():
    torch.zeros(1, device="cuda")
spec = scanops.ScanSpec.parse(sys.argv[1])
target = kernels.default_target()
started = time.perf_counter()
kernel = kernels.find(spec, target)
found = time.perf_counter()
assert kernel is not None, "no kernel"
kernel.code.ready(0 if torch.cuda.is_available() else -1)
loaded = time.perf_counter()
assert "jinja2" not in sys.modules or sys.argv[2] == "checkout", "rendered"
print(imported, found - started, loaded - found)
"""
FIRST_CALL = """
import sys, time
import torch
import scanops
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(64, int(sys.argv[1]), device=device)
torch.cumsum(x, 1).cpu()
def call():
    if device == "cuda":
        y = scanops.cumsum(x, 1)
        torch.cuda.synchronize()
        return y
    with scanops.emulate():
        return scanops.cumsum(x, 1)
began = time.perf_counter()
call()
print(time.perf_counter() - began)
"""


def milliseconds(program: str, variables: dict[str, str], *words: str) -> list[float]:
    """Run a program in a new process and return the times that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=tempfile.gettempdir(),  # not the root of a checkout, from which `codegen` would be importable
        env={**os.environ, "SCANOPS_TUNING": os.devnull, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return [1e3 * float(word) for word in done.stdout.split()]


def look_ups(processes: int, variables: dict[str, str], install: str) -> dict[str, float]:
    """Return medians over new processes, one look-up each, of the specs in turn."""
    variables = {"SCANOPS_POLICY": "never", **variables}
    rows = [milliseconds(LOOK_UP, variables, SPECS[number % len(SPECS)], install) for number in range(processes)]
    imports, finds, loads = zip(*rows, strict=True)
    totals = [find + load for find, load in zip(finds, loads, strict=True)]
    medians = {"find_ms": finds, "load_ms": loads, "total_ms": totals, "import_ms": imports}
    found = {name: statistics.median(times) for name, times in medians.items()}
    return {"processes": processes, **found, "total_min_ms": min(totals), "total_max_ms": max(totals)}


def first_uses(repeats: int) -> list[dict[str, float]]:
    """Return, for each length, the first call on an empty store and the same call in new processes after it."""
    rows = []
    for length in LENGTHS:
        with tempfile.TemporaryDirectory() as store:
            (built,) = milliseconds(FIRST_CALL, {"SCANOPS_STORE": store}, str(length))
            later = [milliseconds(FIRST_CALL, {"SCANOPS_STORE": store}, str(length))[0] for _ in range(repeats)]
        row = {"length": length, "first_use_s": built / 1e3, "from_disk_ms": statistics.median(later)}
        rows.append(row | {"from_disk_max_ms": max(later)})
        print(f"n = {length}: built {built / 1e3:.2f} s, from disk {row['from_disk_ms']:.1f} ms", flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure look-ups, then first uses."""
    from scanops import ScanSpec, artifact
    from scanops.packs.manifest import finish
    from scanops.runtime import kernels
    from scanops.runtime.kernels import obtain
    from scanops.runtime.policies import STRICT
    from scanops.store.store import Store

    options = parser(__doc__)
    options.add_argument("--processes", type=int, default=20, help="new processes for each figure")
    given = options.parse_args(arguments)
    install = "wheel" if artifact.DIGESTS else "checkout"
    target = kernels.default_target()
    print(f"scanops is a {install} in {ROOT}; kernels for {target}")
    figures: dict[str, Any] = {"install": install, "target": target, "specs": SPECS}
    with tempfile.TemporaryDirectory() as folder:
        place, empty, absent = (Path(folder, name) for name in ("kernels", "empty", "absent"))
        empty.mkdir(mode=0o700)
        for slug in SPECS:
            obtain(ScanSpec.parse(slug), target, STRICT, Store(place))
        finish(place)
        cases = {
            "store": {"SCANOPS_STORE": str(place), "SCANOPS_PACKS": ""},
            "pack": {"SCANOPS_STORE": str(empty), "SCANOPS_PACKS": str(place)},
            "pack, no store": {"SCANOPS_STORE": str(absent), "SCANOPS_PACKS": str(place)},
        }
        for name, variables in cases.items():
            look_ups(2, variables, install)  # reads cold files
            figures[name] = row = look_ups(given.processes, variables, install)
            print(
                f"{name:14}: look-up {row['find_ms']:.2f} + load {row['load_ms']:.2f} = {row['total_ms']:.2f} ms "
                f"(median of {row['processes']} processes, {row['total_min_ms']:.2f} to {row['total_max_ms']:.2f}), "
                f"import {row['import_ms']:.0f} ms"
            )
    figures["first_use"] = first_uses(max(1, given.processes // 4))
    write(given.output, figures)
