"""Seconds of the first call with a new spec, and of the same call in a new process: python benchmarks/first_use.py.

Each figure is from a process of its own, in which torch, scanops and the device are already up. The first process
finds an empty store and builds; the others find the kernel on disk. Runs on a GPU, else emulated.
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
import torch, scanops
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


def first_call(store: str, length: int) -> float:
    """Seconds of the first call in a new process on that store."""
    done = subprocess.run(
        [sys.executable, "-c", CALL, str(length)],
        env={**os.environ, "SCANOPS_STORE": store},
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="write the figures here as JSON")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    rows = []
    for length in (64, 1000, 4097, 32768, 100000):
        with tempfile.TemporaryDirectory() as store:
            built = first_call(store, length)
            found = [first_call(store, length) for _ in range(arguments.repeats)]
        rows.append(
            {
                "length": length,
                "first_use_s": built,
                "from_disk_ms": statistics.median(found) * 1e3,
                "from_disk_max_ms": max(found) * 1e3,
            }
        )
        median, worst = statistics.median(found) * 1e3, max(found) * 1e3
        print(f"{length:8d}: built {built:.2f} s, from disk {median:.1f} ms (max {worst:.1f})")
    if arguments.output:
        arguments.output.write_text(json.dumps({"first_use": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
