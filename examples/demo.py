"""Five scans, generated, built, run and checked against float64: ``python -m examples.demo``, or ``make demo``.

On a GPU they run at 32768 x 32768 in float32 and are timed against a device-to-device copy. Without one the same
templates run in the emulator, at small and odd sizes; with nvcc the full-size kernels are built as well, for their
registers and spills. ``--json`` prints JSON. The exit status is 1 when a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch

import scanops
from scanops.build_request import Resources
from scanops.builders.toolchain import find_cxx, find_nvcc
from scanops.cli.output import resources_text
from scanops.errors import BuildFailure, ScanopsError
from scanops.fallback import scans

__all__ = ["SCANS", "TARGETS", "Scan", "check", "main"]

Shape = tuple[int, ...]

FULL: Shape = (32768, 32768)  # 4 GiB, far more than any L2
CHECKED_ITEMS = 2**25  # compared at a time: in float64, with intermediates, about 2 GB
TARGETS = ("sm_80", "sm_90")  # whose registers are shown where there is no GPU


@dataclass(frozen=True, slots=True)
class Scan:
    """One of the five scans: a call of ``scanops.cumsum`` or ``scanops.cumprod`` and the shapes it is emulated at."""

    title: str
    op: str  # sum or prod
    dim: int
    small: tuple[Shape, ...]  # one that fills its tile badly, one that takes several steps
    masked: bool = False
    reverse: bool = False
    exclusive: bool = False

    @property
    def call(self) -> str:
        """The call as one writes it."""
        given = [("mask=keep", self.masked), ("reverse=True", self.reverse), ("exclusive=True", self.exclusive)]
        return f"scanops.cum{self.op}({', '.join(['x', str(self.dim), *(word for word, used in given if used)])})"

    @property
    def spec(self) -> scanops.ScanSpec:
        """The spec of the full-size scan."""
        inner, mask = math.prod(FULL[self.dim + 1 :]), "bool" if self.masked else None
        return scanops.ScanSpec(
            op=self.op,
            dtype="float32",
            length=FULL[self.dim],
            inner=inner,
            mask=mask,
            reverse=self.reverse,
            exclusive=self.exclusive,
        )


SCANS = (
    Scan("cumulative product along the last dimension", "prod", 1, ((8, 1000), (3, 4097))),
    Scan("cumulative product along the first dimension", "prod", 0, ((100, 8, 64), (1025, 2, 37))),
    Scan("reverse cumulative sum", "sum", 1, ((67, 31), (2, 40000)), reverse=True),
    Scan("masked cumulative sum, NaN under the mask", "sum", 1, ((8, 1000), (3, 12347)), masked=True),
    Scan("exclusive sum, NaN in the last item", "sum", 1, ((8, 1023), (1, 70001)), exclusive=True),
)


def main(words: Sequence[str] | None = None) -> int:
    """Run the five scans and print what was found. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    as_json = parser.parse_args(words).json
    gpu = torch.cuda.is_available()
    checks: list[dict[str, Any]] = []

    def show(text: str) -> None:
        if not as_json:
            print(text, flush=True)

    try:
        device = torch.cuda.get_device_name() if gpu else f"no GPU: emulated on the CPU, built by {find_cxx().version}"
        show(device)
        for scan in SCANS:
            show(f"\n{scan.title}: {scan.call}")
            resources = {} if gpu else _full_size_resources(scan)
            for target, used in resources.items():
                show(f"  {target:<7} {scan.spec}: {resources_text(used)}")
            for shape in [_that_fits(scan)] if gpu else scan.small:
                row = check(scan, shape)
                row["resources"] |= {target: asdict(used) for target, used in resources.items()}
                checks.append(row)
                show(_text_of(row))
    except ScanopsError as problem:
        print(problem, file=sys.stderr)
        return 1
    ok = all(row["ok"] for row in checks)
    if as_json:
        print(json.dumps({"ok": ok, "device": device, "checks": checks}, indent=2, allow_nan=False))
    show("\n" + _verdict(checks))
    return 0 if ok else 1


def check(scan: Scan, shape: Shape) -> dict[str, Any]:
    """Run one scan at one shape, on the GPU or emulated, and compare it with float64. Return what --json prints."""
    gpu = torch.cuda.is_available()
    x, mask = _inputs(scan, shape, "cuda" if gpu else "cpu")
    out = torch.full_like(x, math.nan)  # what the kernel does not write stays NaN
    options: dict[str, Any] = {"reverse": scan.reverse, "exclusive": scan.exclusive}

    def run() -> None:
        (scanops.cumsum if scan.op == "sum" else scanops.cumprod)(x, scan.dim, mask=mask, out=out, **options)

    with nullcontext() if gpu else scanops.emulate():
        (kernel,) = scanops.prepare([run])
    error = max(
        scans.max_error(part[0], part[1], scan.op, scan.dim, mask=part[2], **options)
        for part in _parts(out, x, mask, 0 if scan.dim else 1)
    )
    limit = scans.limit(scan.op, shape[scan.dim])
    milliseconds = _milliseconds(run) if gpu else None
    # A copy moves 8 bytes an item, a masked scan 9.
    copy = _milliseconds(lambda: out.copy_(x)) * (9 / 8 if scan.masked else 1) if gpu else None
    return {
        "scan": scan.title,
        "call": scan.call,
        "shape": list(shape),
        "spec": kernel.spec.slug,
        "target": kernel.target,
        "plan": kernel.plan.describe(),
        "why": kernel.plan.why,
        "source": str(kernel.source_path),
        "build_seconds": kernel.build_seconds,
        "ok": error <= limit,
        "max_error": error if math.isfinite(error) else None,
        "limit": limit,
        "resources": {kernel.target: asdict(kernel.resources)} if kernel.resources else {},
        "milliseconds": milliseconds,
        "copy_milliseconds": copy,
        "copy_fraction": copy / milliseconds if copy and milliseconds else None,
    }


def _text_of(row: dict[str, Any]) -> str:
    error = "NaN" if row["max_error"] is None else f"{row['max_error']:.1e} of the running magnitude"
    lines = [
        f"  {_text(row['shape'])}",
        f"    spec    {row['spec']}",
        f"    plan    {row['plan']}",
        f"            {row['why']}",
        f"    source  {row['source']}",
        f"    build   {row['build_seconds']:.2f} s",
    ]
    if row["milliseconds"]:
        lines.append(f"    time    {row['milliseconds']:.3f} ms, {row['copy_fraction']:.3f} of the speed of a copy")
    lines.append(f"    check   {'ok' if row['ok'] else 'WRONG'}: error {error}, limit {row['limit']:.1e}")
    return "\n".join(lines)


def _verdict(checks: list[dict[str, Any]]) -> str:
    wrong = {row["scan"] for row in checks if not row["ok"]}
    total = len({row["scan"] for row in checks})
    slowest = min((row["copy_fraction"] for row in checks if row["copy_fraction"]), default=None)
    speed = f", each at {slowest:.2f} of the speed of a copy or more" if slowest else ""
    return f"{total - len(wrong)} of {total} scans right, {len(checks)} checks against float64{speed}."


def _text(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _full_size_resources(scan: Scan) -> dict[str, Resources]:
    """Registers and spills of the full-size kernels by target, as far as there is an nvcc for them."""
    try:
        targets = [target for target in TARGETS if target in find_nvcc().targets]
    except BuildFailure:
        return {}
    kernels = {target: scanops.compile(scan.spec, target) for target in targets}
    return {target: kernel.resources for target, kernel in kernels.items() if kernel.resources}


def _that_fits(scan: Scan) -> Shape:
    """The full shape, with fewer lines where the GPU has less memory."""
    shape, cut = list(FULL), 0 if scan.dim else 1
    free = torch.cuda.mem_get_info()[0] * 0.8 - 64 * CHECKED_ITEMS
    while shape[cut] > 1 and math.prod(shape) * 9 > free:
        shape[cut] //= 2
    return tuple(shape)


def _inputs(scan: Scan, shape: Shape, device: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """x and the mask, with NaN at every item that must not take part in a result."""
    random = torch.Generator(device).manual_seed(2026)
    x = torch.randn(shape, generator=random, device=device)
    if scan.op == "prod":
        x.mul_(0.01).add_(1.0)  # around 1: a product of 32768 factors stays within 1e-13 to 1e9
    if scan.exclusive:
        x.select(scan.dim, 0 if scan.reverse else -1).fill_(math.nan)
    if not scan.masked:
        return x, None
    mask = torch.empty(shape, dtype=torch.bool, device=device).bernoulli_(0.7, generator=random)
    return x.masked_fill_(~mask, math.nan), mask


def _parts(
    out: torch.Tensor, x: torch.Tensor, mask: torch.Tensor | None, dim: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """Slices of whole lines, so that float64 fits in memory."""
    step = max(1, CHECKED_ITEMS * x.shape[dim] // x.numel())
    for first in range(0, x.shape[dim], step):
        part = (dim, first, min(step, x.shape[dim] - first))
        yield out.narrow(*part), x.narrow(*part), None if mask is None else mask.narrow(*part)


def _milliseconds(run: Callable[[], object]) -> float:
    """The median of 20 runs by CUDA events, after 3 that are not timed."""
    for _ in range(3):
        run()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(20)]  # type: ignore[no-untyped-call]
    for started, ended in events:
        started.record()
        run()
        ended.record()
    torch.cuda.synchronize()
    return float(statistics.median(started.elapsed_time(ended) for started, ended in events))


if __name__ == "__main__":
    sys.exit(main())
