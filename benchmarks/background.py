"""Measure first calls under the policy ``background``: latency, and seconds until the new kernel serves.

The first call of each new row length is served by a loaded kernel that takes the length as an argument, and may take a
millisecond longer than a later call of that kernel. A worker builds the kernel of the length meanwhile; seconds are
counted from the first call. Results are compared with torch's. Kernels are emulated without a GPU.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch

import scanops
from benchmarks.common import parser, write
from scanops import emulator
from scanops.codegen.lines import any_length
from scanops.codegen.spec import ScanSpec
from scanops.runtime import kernels
from scanops.runtime.kernels import default_target

ALLOWED_MS = 1.0  # the allowed excess of a first call over a later one of the kernel that takes the length
GIVEN_UP = 120.0  # seconds for a build
LINES = 512 if torch.cuda.is_available() else 4
OLD = {4: 1000, 1: 999}  # multiple of the length -> a length that was called before
LENGTHS = (520, 1020, 900, 777, 640)  # served by two kernels: lengths divisible by a vector access, and the others


def scanned(x: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Return the milliseconds until the result of a call is computed, and the result."""
    _wait(x)
    began = time.perf_counter()
    y = scanops.cumsum(x, -1)
    _wait(x)
    return 1e3 * (time.perf_counter() - began), y


def _wait(x: torch.Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def rows(length: int, device: str) -> torch.Tensor:
    """Return rows of small integers, whose float sums are exact."""
    return torch.randint(-3, 4, (LINES, length), device=device).float()


def spec_of(length: int) -> ScanSpec:
    return ScanSpec(op="sum", dtype="float32", length=length)


def measured(length: int, target: str, device: str) -> dict[str, Any]:
    """Return the figures of one new length."""
    spec = spec_of(length)
    old = rows(OLD[any_length(spec).multiple], device)
    with scanops.policy("generic"):
        generic = statistics.median(scanned(old)[0] for _ in range(20))
    x = rows(length, device)
    y = torch.empty_like(x)  # the caching allocator now holds a block of this size
    del y
    with scanops.policy("background"):
        began = time.perf_counter()
        first, y = scanned(x)
        right = torch.equal(y, torch.cumsum(x, -1))
        waiting = [scanned(x)[0]]
        while not kernels.held(spec, target) and time.perf_counter() - began < GIVEN_UP:
            waiting.append(scanned(x)[0])
            time.sleep(0.002)
        seconds, served = time.perf_counter() - began, kernels.held(spec, target)
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
    """Measure each new length, with the kernels that serve meanwhile loaded."""
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure in an empty store; return 1 where a first call is too slow or a result is wrong."""
    given = parser(__doc__).parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(SCANOPS_STORE=folder, SCANOPS_PACKS="", SCANOPS_TUNING=os.devnull)
        if torch.cuda.is_available():
            figures = everything("cuda")
        else:
            with emulator.emulate():
                figures = everything("cpu")
    words = "every" if figures["ok"] else "NOT every"
    print(f"{figures['target']}: {words} new length within {ALLOWED_MS} ms of a later call")
    write(given.output, figures)
    return 0 if figures["ok"] else 1
