"""Time scans against torch and a copy of the same bytes, and check them: python benchmarks/cells.py [-o FILE].

Each cell: a checked, poisoned output first, then medians of event-timed runs. Tensors are far larger than L2, so every
run is cold. ``fraction`` is the time of a device-to-device copy of as many bytes over the time of the scan: 1.00 is
the speed of memory.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import scanops
from scanops.accuracy import limit, max_error

Scan = Callable[[torch.Tensor, int, "torch.Tensor | None", "torch.Tensor | None"], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A scan and what a torch user writes for it."""

    ours: Scan
    torch: Scan
    dtype: torch.dtype = torch.float32
    out: torch.dtype = torch.float32
    masked: bool = False


def plain(op: str, dtype: torch.dtype, out: torch.dtype | None = None) -> Variant:
    """An inclusive forward scan."""
    ours, theirs = getattr(scanops, op), getattr(torch, op)
    return Variant(
        ours=lambda x, dim, mask, y: ours(x, dim, dtype=out, out=y),
        torch=lambda x, dim, mask, y: theirs(x, dim, dtype=out, out=y),
        dtype=dtype,
        out=out or (dtype if dtype.is_floating_point else torch.int64),
    )


def torch_exclusive(x: torch.Tensor, dim: int) -> torch.Tensor:
    y = torch.cumsum(x.narrow(dim, 0, x.shape[dim] - 1), dim)
    return torch.cat([torch.zeros_like(x.narrow(dim, 0, 1)), y], dim)


VARIANTS = {
    "sum": plain("cumsum", torch.float32),
    "prod": plain("cumprod", torch.float32),
    "reverse": Variant(
        ours=lambda x, dim, mask, y: scanops.cumsum(x, dim, reverse=True, out=y),
        torch=lambda x, dim, mask, y: torch.cumsum(x.flip(dim), dim).flip(dim),
    ),
    "masked": Variant(
        ours=lambda x, dim, mask, y: scanops.cumsum(x, dim, mask=mask, out=y),
        torch=lambda x, dim, mask, y: torch.cumsum(x * mask, dim),
        masked=True,
    ),
    "exclusive": Variant(
        ours=lambda x, dim, mask, y: scanops.cumsum(x, dim, exclusive=True, out=y),
        torch=lambda x, dim, mask, y: torch_exclusive(x, dim),
    ),
    "sum_f64": plain("cumsum", torch.float64),
    "sum_f16": plain("cumsum", torch.float16),
    "sum_bf16": plain("cumsum", torch.bfloat16),
    "sum_i32": plain("cumsum", torch.int32, torch.int32),
    "sum_i64": plain("cumsum", torch.int64),
    "sum_i32_i64": plain("cumsum", torch.int32),
}

ITEMS = 2**28
ROWS = (4, 64, 1024, 4097, 32768)
OTHER_ROWS = (1, 2, 3, 7, 31, 100, 127, 255, 257, 500, 1000, 1001, 2048, 8191, 8192, 32767, 65535, 65536)
FP32 = ("sum", "prod", "reverse", "masked", "exclusive")


def cells() -> list[tuple[str, tuple[int, ...], int]]:
    """(variant, shape, dim) of every cell, the five origin problems first."""
    big = (32768, 32768)
    grid: list[tuple[str, tuple[int, ...], int]] = [
        ("prod", big, 1),
        ("prod", big, 0),
        ("prod", (1024, 1024, 1024), 1),
        ("reverse", big, 1),
        ("masked", big, 1),
        ("exclusive", big, 1),
        ("sum", big, 1),
    ]
    for n in ROWS:
        grid += [(variant, (ITEMS // n, n), 1) for variant in VARIANTS]
    for shape, dim in (
        ((16384, 16384), 0),
        ((512, 512, 1024), 0),
        ((512, 512, 1024), 1),
        ((512, 512, 1024), 2),
        ((1024, 1024), 0),
        ((1024, 1024), 1),
        ((1, 32768, 8192), 1),
        ((64, 4096, 1024), 1),
        ((1024, 4096, 64), 1),
        ((4096, 4096, 16), 1),
        ((16384, 4096, 4), 1),
        ((1, 4194304, 64), 1),
    ):
        grid += [(variant, shape, dim) for variant in FP32]
    grid += [(variant, (ITEMS,), 0) for variant in VARIANTS]
    grid += [("sum", (256, 1048576), 1), ("sum", (16, 16777216), 1), ("sum", (2**29,), 0), ("sum", (16384, 16384), 1)]
    grid += [
        ("sum", (ITEMS // n, n), 1) for n in (1, 2, 3, 7, 31, 100, 127, 255, 257, 500, 1000, 1001, 2048, 8191, 8192)
    ]
    grid += [("sum", (ITEMS // n, n), 1) for n in (32767, 65535, 65536)]
    return grid


def median_ms(run: Callable[[], object], budget: float, flush: torch.Tensor | None = None) -> float:
    """Median milliseconds of GPU time of a run, by CUDA events; at least 3 runs after one to warm up, at most 20.

    The GPU sleeps while the host queues the run, so that host time between launches does not count. ``flush`` is
    overwritten before each run when the tensors would fit in L2.
    """
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    run()
    torch.cuda.synchronize()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 3 or (len(times) < 20 and time.perf_counter() - began < budget):
        if flush is not None:
            flush.zero_()
        torch.cuda._sleep(400_000)  # about 0.2 ms
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def call_microseconds(run: Callable[[], object]) -> float:
    """Host time of a call, the GPU kept busy so that nothing waits for it; median of batches."""
    batches = []
    for _ in range(7):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(50):
            run()
        batches.append((time.perf_counter() - began) / 50 * 1e6)
    torch.cuda.synchronize()
    return statistics.median(batches)


def make_input(name: str, variant: Variant, shape: tuple[int, ...], dim: int) -> torch.Tensor:
    """Values whose scans neither overflow nor vanish."""
    if not variant.dtype.is_floating_point:
        return torch.randint(-100, 100, shape, device="cuda", dtype=variant.dtype)
    x = torch.randn(shape, device="cuda")
    if name == "prod":
        x = x.sign_() if shape[dim] > 2**16 else x.mul_(1e-3).add_(1)
    return x.to(variant.dtype)


def samples(x: torch.Tensor, dim: int) -> Iterator[tuple[int, int, int]]:
    """(other dimension, start, length) of slices at both ends and in the middle: some 2^22 items each."""
    other = max((d for d in range(x.ndim) if d != dim), key=lambda d: x.shape[d], default=dim)
    if other == dim:
        yield dim, 0, x.shape[dim]
        return
    size = x.shape[other]
    width = max(1, min(size, 2**22 * size // x.numel()))
    for start in sorted({0, (size - width) // 2, size - width}):
        yield other, start, width


def is_right(name: str, x: torch.Tensor, mask: torch.Tensor | None, y: torch.Tensor, dim: int) -> bool:
    """Slices of the result against the same scan in float64 or int64."""
    op = "prod" if name == "prod" else "sum"
    options = {"reverse": name == "reverse", "exclusive": name == "exclusive"}
    for other, start, width in samples(x, dim):
        part, got = x.narrow(other, start, width), y.narrow(other, start, width)
        kept = None if mask is None else mask.narrow(other, start, width)
        if not x.is_floating_point():
            if not torch.equal(got, torch.cumsum(part, dim, dtype=torch.int64).to(got.dtype)):
                return False
            continue
        bound = max(limit(op, x.shape[dim]), 2 * math.sqrt(x.shape[dim] / 64) * 2.0**-24) + torch.finfo(got.dtype).eps
        if not max_error(got, part, op, dim, mask=kept, **options) <= bound:
            return False
    return True


def measure(variant_name: str, shape: tuple[int, ...], dim: int, budget: float) -> dict[str, object]:
    """One cell as a JSON object."""
    variant = VARIANTS[variant_name]
    x = make_input(variant_name, variant, shape, dim)
    mask = torch.rand(shape, device="cuda") < 0.7 if variant.masked else None
    y = torch.empty(shape, device="cuda", dtype=variant.out)
    y.fill_(float("nan") if variant.out.is_floating_point else -12345)
    first = time.perf_counter()
    variant.ours(x, dim, mask, y)
    torch.cuda.synchronize()
    first = time.perf_counter() - first
    right = is_right(variant_name, x, mask, y, dim)
    flush = torch.empty(2**28, dtype=torch.uint8, device="cuda") if x.numel() < 2**26 else None
    ours = median_ms(lambda: variant.ours(x, dim, mask, y), budget, flush)
    theirs = median_ms(lambda: variant.torch(x, dim, mask, y), budget, flush)
    target = torch.empty_like(x)
    copy = median_ms(lambda: target.copy_(x), budget, flush)
    moved = x.numel() * (x.element_size() + variant.out.itemsize + (1 if variant.masked else 0))
    copy *= moved / (2 * x.numel() * x.element_size())
    return {
        "cell": f"{variant_name} {'x'.join(map(str, shape))} dim {dim}",
        "ok": right,
        "ms": ours,
        "torch_ms": theirs,
        "copy_ms": copy,
        "fraction": copy / ours,
        "torch_fraction": copy / theirs,
        "first_call_s": first,
        "terabytes_per_second": moved / ours / 1e9,
    }


def driver() -> str:
    """The driver's version as nvidia-smi gives it."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(query, check=False, capture_output=True, text=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="write the results here as JSON")
    parser.add_argument("--filter", default="", help="only cells whose name contains this")
    parser.add_argument("--budget", type=float, default=0.25, help="seconds of timed runs for each figure")
    arguments = parser.parse_args()
    rows = []
    table = Table("cell", "ok", "ms", "of copy", "torch ms", "torch of copy", "first s")
    for name, shape, dim in cells():
        if arguments.filter not in f"{name} {'x'.join(map(str, shape))} dim {dim}":
            continue
        row = measure(name, shape, dim, arguments.budget)
        rows.append(row)
        table.add_row(
            str(row["cell"]),
            "yes" if row["ok"] else "NO",
            f"{row['ms']:.4f}",
            f"{row['fraction']:.3f}" + (" SLOWER" if row["ms"] > row["torch_ms"] else ""),  # type: ignore[operator]
            f"{row['torch_ms']:.3f}",
            f"{row['torch_fraction']:.3f}",
            f"{row['first_call_s']:.2f}",
        )
        verdict = "ok" if row["ok"] else "WRONG"
        print(f"{row['cell']}: {verdict}, {row['fraction']:.3f}, torch {row['torch_fraction']:.3f}", file=sys.stderr)
        torch.cuda.empty_cache()
    Console(width=140).print(table)
    small = torch.randn(8, 1024, device="cuda")
    calls = {
        "scanops.cumsum": call_microseconds(lambda: scanops.cumsum(small, 1)),
        "torch.cumsum": call_microseconds(lambda: torch.cumsum(small, 1)),
    }
    print("host time of a call on 8 x 1024, us:", calls)
    result = {
        "device": torch.cuda.get_device_name(),
        "versions": {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "scanops": scanops.__version__,
            "driver": driver(),
        },
        "date": date.today().isoformat(),
        "call_us": calls,
        "cells": rows,
    }
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    slower = [row["cell"] for row in rows if row["ms"] > row["torch_ms"]]
    wrong = [row["cell"] for row in rows if not row["ok"]]
    print(f"{len(rows)} cells, {len(wrong)} wrong {wrong}, {len(slower)} slower than torch {slower}")
    return 1 if wrong or slower else 0


if __name__ == "__main__":
    raise SystemExit(main())
