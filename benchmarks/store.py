"""Measure a first call: import, build on a cold store, and look-up and load from disk in new processes.

Each figure is from a process of its own, in which torch and the device are initialised before the clock starts. Look-
ups are timed with the kernel in the user's store, in a pack below an empty store, and in a pack where no store
exists; a process that renders (imports jinja2) is an error where scanops is an installed wheel, which carries the
digest of its sources. Kernels are emulated without a GPU.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, child, parser, write
from scanops import ScanSpec, artifact
from scanops.packs.manifest import finish
from scanops.runtime import kernels
from scanops.runtime.policies import STRICT
from scanops.store.store import Store

SPECS = ("sum-f32-n1000", "prod-bf16-n4096-reverse", "sum-f32-n32768-mask_b8", "sum-f32-any-le1024-by4")
LENGTHS = (64, 1000, 4097, 32768, 100000)
INSTALL = "wheel" if artifact.DIGESTS else "checkout"

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
# Begins before the import of scanops where asked to.
FIRST_CALL = """
import sys, time
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(64, int(sys.argv[1]), device=device)
torch.cumsum(x, 1).cpu()
began = time.perf_counter()
import scanops
began = began if sys.argv[2] == "import" else time.perf_counter()
if device == "cuda":
    scanops.cumsum(x, 1)
    torch.cuda.synchronize()
else:
    with scanops.emulate():
        scanops.cumsum(x, 1)
print(time.perf_counter() - began)
"""


def times(program: str, variables: dict[str, str], *words: object) -> list[float]:
    """Run a program in a new process and return the milliseconds that it prints as seconds."""
    return [1e3 * float(word) for word in child("-c", program, *words, variables=variables).split()]


def look_ups(processes: int, variables: dict[str, str]) -> dict[str, float]:
    """Return medians over new processes, one look-up each, of the specs in turn."""
    variables = {"SCANOPS_POLICY": "never", **variables}
    rows = [times(LOOK_UP, variables, SPECS[number % len(SPECS)], INSTALL) for number in range(processes)]
    imports, finds, loads = zip(*rows, strict=True)
    totals = [find + load for find, load in zip(finds, loads, strict=True)]
    medians = {"find_ms": finds, "load_ms": loads, "total_ms": totals, "import_ms": imports}
    found = {name: statistics.median(each) for name, each in medians.items()}
    return {"processes": processes, **found, "total_min_ms": min(totals), "total_max_ms": max(totals)}


def first_uses(repeats: int) -> list[dict[str, float]]:
    """Return, for each length, the first call on an empty store and the same call in new processes after it."""
    rows = []
    for length in LENGTHS:
        with tempfile.TemporaryDirectory() as store:
            built, *later = [times(FIRST_CALL, {"SCANOPS_STORE": store}, length, "call")[0] for _ in range(1 + repeats)]
        row = {"length": length, "first_use_s": built / 1e3, "from_disk_ms": statistics.median(later)}
        rows.append(row | {"from_disk_max_ms": max(later)})
        print(f"n = {length}: built {built / 1e3:.2f} s, from disk {row['from_disk_ms']:.1f} ms", flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure look-ups, then first uses."""
    options = parser(__doc__)
    options.add_argument("--processes", type=int, default=20, help="new processes for each figure")
    given = options.parse_args(arguments)
    target = kernels.default_target()
    print(f"scanops is a {INSTALL} in {ROOT}; kernels for {target}")
    figures: dict[str, Any] = {"install": INSTALL, "target": target, "specs": SPECS}
    with tempfile.TemporaryDirectory() as folder:
        place, empty, absent = (Path(folder, name) for name in ("kernels", "empty", "absent"))
        empty.mkdir(mode=0o700)
        for slug in SPECS:
            kernels.obtain(ScanSpec.parse(slug), target, STRICT, Store(place))
        finish(place)
        cases = {
            "store": {"SCANOPS_STORE": str(place), "SCANOPS_PACKS": ""},
            "pack": {"SCANOPS_STORE": str(empty), "SCANOPS_PACKS": str(place)},
            "pack, no store": {"SCANOPS_STORE": str(absent), "SCANOPS_PACKS": str(place)},
        }
        for name, variables in cases.items():
            look_ups(2, variables)  # reads cold files
            figures[name] = row = look_ups(given.processes, variables)
            print(
                f"{name:14}: look-up {row['find_ms']:.2f} + load {row['load_ms']:.2f} = {row['total_ms']:.2f} ms "
                f"(median of {row['processes']} processes, {row['total_min_ms']:.2f} to {row['total_max_ms']:.2f}), "
                f"import {row['import_ms']:.0f} ms"
            )
    figures["first_use"] = first_uses(max(1, given.processes // 4))
    write(given.output, figures)
