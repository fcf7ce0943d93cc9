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
from contextlib import nullcontext

import torch

import scanops
from benchmarks.common import Row, parser, write
from benchmarks.timing import milliseconds
from scanops.codegen.lines import any_length
from scanops.codegen.spec import ScanSpec
from scanops.runtime import kernels
from scanops.runtime.kernels import default_target

ALLOWED_MS = 1.0  # the allowed excess of a first call over a later one of the kernel that takes the length
GIVEN_UP = 120.0  # seconds for a build
DEVICE, LINES = ("cuda", 512) if torch.cuda.is_available() else ("cpu", 4)
OLD = {4: 1000, 1: 999}  # multiple of the length -> a length that was called before
LENGTHS = (520, 1020, 900, 777, 640)  # served by two kernels: lengths divisible by a vector access, and the others


def rows(length: int) -> torch.Tensor:
    """Return rows of small integers, whose float sums are exact."""
    return torch.randint(-3, 4, (LINES, length), device=DEVICE).float()


def call_ms(x: torch.Tensor) -> float:
    """Return the milliseconds until the result of a call is computed; the result is compared with torch's."""
    found: list[torch.Tensor] = []
    taken = milliseconds(lambda: found.append(scanops.cumsum(x, -1)))
    if not torch.equal(found[0], torch.cumsum(x, -1)):
        raise SystemExit(f"a wrong result of {tuple(x.shape)}")
    return taken


def measured(length: int, target: str) -> Row:
    """Return the figures of one new length."""
    spec = ScanSpec(op="sum", dtype="float32", length=length)
    old = rows(OLD[any_length(spec).multiple])
    with scanops.policy("generic"):
        generic = statistics.median(call_ms(old) for _ in range(20))
    x = rows(length)
    torch.cumsum(x, -1)  # the caching allocator now holds a block of this size
    with scanops.policy("background"):
        began = time.perf_counter()
        first, waiting = call_ms(x), [call_ms(x)]
        while not kernels.held(spec, target) and time.perf_counter() - began < GIVEN_UP:
            waiting.append(call_ms(x))
            time.sleep(0.002)
        seconds, served = time.perf_counter() - began, kernels.held(spec, target) is not None
        handover = call_ms(x)  # the first call that the new kernel serves
        after = statistics.median(call_ms(x) for _ in range(20))
    return {
        **{"length": length, "meanwhile": any_length(spec).slug},
        **{"generic_ms": generic, "first_call_ms": first, "longer_ms": first - generic},
        **{"waiting_ms": statistics.median(waiting), "waiting_max_ms": max(waiting)},
        "seconds_until_it_serves": seconds if served else None,
        **{"handover_ms": handover, "after_ms": after},
        "ok": served and first - generic <= ALLOWED_MS,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure in an empty store; return 1 where a first call is too slow."""
    given = parser(__doc__).parse_args(arguments)
    emulated = nullcontext() if DEVICE == "cuda" else scanops.emulate()
    with tempfile.TemporaryDirectory() as folder, emulated:
        os.environ.update(SCANOPS_STORE=folder, SCANOPS_PACKS="", SCANOPS_TUNING=os.devnull)
        target, found = default_target(), []
        with scanops.policy("generic"):
            for length in OLD.values():
                call_ms(rows(length))
        for length in LENGTHS:
            found.append(measured(length, target))
            pairs = found[-1].items()
            print(
                ", ".join(
                    f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}" for key, value in pairs
                )
            )
    ok = all(row["ok"] for row in found)
    print(f"{target}: {'every' if ok else 'NOT every'} new length within {ALLOWED_MS} ms of a later call")
    write(given.output, {"target": target, "rows": found, "ok": ok})
    return 0 if ok else 1
