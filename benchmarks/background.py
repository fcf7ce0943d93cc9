"""The policy ``background``: python benchmarks/background.py [-o FILE].

Rows of lengths that no kernel was built for. The first call of each is served by the kernel that takes the length as an
argument, which is built and loaded before; it is compared with calls of that kernel at a length it has served before,
and may take a millisecond longer. A worker builds the kernel of the length meanwhile; how long until that serves is
counted from the first call. Results are compared with torch's.

Needs a GPU and nvcc; without one kernels are emulated, whose times say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import scanops
from scanops import emulation
from scanops.bench.run import surroundings
from scanops.codegen.lines import any_length
from scanops.codegen.spec import ScanSpec
from scanops.runtime import obtain
from scanops.runtime.kernels import default_target

ALLOWED_MS = 1.0  # that a first call may take beyond one of the kernel that takes the length
GIVEN_UP = 120.0  # seconds for a build
LINES = 512 if torch.cuda.is_available() else 4
OLD = {4: 1000, 1: 999}  # what a length is a multiple of: one that was called before
LENGTHS = (520, 1020, 900, 777, 640)  # of its bucket, in two kernels: those of whole accesses, and the others


def scanned(x: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Milliseconds of a call until its result is there, and the result."""
    _wait(x)
    began = time.perf_counter()
    y = scanops.cumsum(x, -1)
    _wait(x)
    return 1e3 * (time.perf_counter() - began), y


def _wait(x: torch.Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def rows(length: int, device: str) -> torch.Tensor:
    """Whole numbers, whose sums are exact."""
    return torch.randint(-3, 4, (LINES, length), device=device).float()


def spec_of(length: int) -> ScanSpec:
    return ScanSpec(op="sum", dtype="float32", length=length)


def measured(length: int, target: str, device: str) -> dict[str, Any]:
    """One new length."""
    spec = spec_of(length)
    old = rows(OLD[any_length(spec).multiple], device)
    with scanops.policy("generic"):
        generic = statistics.median(scanned(old)[0] for _ in range(20))
    x = rows(length, device)
    y = torch.empty_like(x)  # the allocator has met the size
    del y
    with scanops.policy("background"):
        began = time.perf_counter()
        first, y = scanned(x)
        right = torch.equal(y, torch.cumsum(x, -1))
        waiting = [scanned(x)[0]]
        while not obtain.held(spec, target) and time.perf_counter() - began < GIVEN_UP:
            waiting.append(scanned(x)[0])
            time.sleep(0.002)
        seconds, served = time.perf_counter() - began, obtain.held(spec, target)
        handover, y = scanned(x)  # the first call that the new kernel serves
        right = right and torch.equal(y, torch.cumsum(x, -1))
        after = statistics.median(scanned(x)[0] for _ in range(20))
    return {
        "length": length,
        "meanwhile": any_length(spec).slug,
        "generic_ms": generic,
        "first_call_ms": first,
        "longer_ms": first - generic,
        "waiting_ms": statistics.median(waiting),
        "waiting_max_ms": max(waiting),
        "seconds_until_it_serves": seconds if served else None,
        "handover_ms": handover,
        "after_ms": after,
        "right": right,
        "ok": right and served and first - generic <= ALLOWED_MS,
    }


def everything(device: str) -> dict[str, Any]:
    """Each new length, the kernels that serve meanwhile being there."""
    target = default_target()
    with scanops.policy("generic"):
        for length in OLD.values():
            scanned(rows(length, device))
    found = []
    for length in LENGTHS:
        found.append(measured(length, target, device))
        print(", ".join(f"{key} {_short(value)}" for key, value in found[-1].items()), flush=True)
    return {"target": target, "rows": found, "ok": all(row["ok"] for row in found)}


def _short(value: object) -> object:
    return f"{value:.3f}" if isinstance(value, float) else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="write the figures here as JSON")
    arguments = parser.parse_args()
    gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(SCANOPS_STORE=folder, SCANOPS_PACKS="", SCANOPS_TUNING=os.devnull)
        if gpu:
            figures = everything("cuda")
        else:
            with emulation.emulate():
                figures = everything("cpu")
    words = "every" if figures["ok"] else "NOT every"
    print(f"{figures['target']}: {words} new length within {ALLOWED_MS} ms of a call that is not the first")
    if arguments.output:
        document = {**asdict(surroundings()), **figures}
        arguments.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
