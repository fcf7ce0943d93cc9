"""Time of the first call with a new spec, and of the same call in a new process: python benchmarks/first_use.py.

Each figure is from a process of its own, in which torch, scanops and the device are already up. The first process
finds an empty store and builds; the others find the kernel on disk. The import of scanops, torch being loaded, is a
figure of its own. Runs on a GPU, else emulated.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CALL = """
import sys, time
import torch
began = time.perf_counter()
import scanops
imported = time.perf_counter() - began
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
print(time.perf_counter() - began, imported)
"""


def first_call(store: str, length: int) -> tuple[float, float]:
    """Seconds of the first call in a new process on that store, and of the import before it."""
    done = subprocess.run(
        [sys.executable, "-c", CALL, str(length)],
        env={**os.environ, "SCANOPS_STORE": store},
        check=True,
        capture_output=True,
        text=True,
    )
    call, imported = map(float, done.stdout.split())
    return call, imported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="write the figures here as JSON")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    rows: list[dict[str, float]] = []
    for length in (64, 1000, 4097, 32768, 100000):
        with tempfile.TemporaryDirectory() as store:
            built, _ = first_call(store, length)
            later = [first_call(store, length) for _ in range(arguments.repeats)]
        calls, imports = zip(*later, strict=True)
        row = {
            "length": length,
            "first_use_s": built,
            "from_disk_ms": statistics.median(calls) * 1e3,
            "from_disk_max_ms": max(calls) * 1e3,
            "import_ms": statistics.median(imports) * 1e3,
        }
        rows.append(row)
        print(
            f"{length:8d}: built {built:.2f} s, from disk {row['from_disk_ms']:.1f} ms "
            f"(max {row['from_disk_max_ms']:.1f}), import {row['import_ms']:.1f} ms"
        )
    if arguments.output:
        arguments.output.write_text(json.dumps({"first_use": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
