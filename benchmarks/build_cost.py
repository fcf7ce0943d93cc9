"""What kernels cost before they run: registers, spills, text, machine code and compile time, over many specs.

    python benchmarks/build_cost.py [--quick] [--json] [--targets sm_80,sm_90] [--match REGEX] [--jobs N]

Each row is one spec for one target, compiled by nvcc alone; no GPU is needed. A kernel with spills or a stack frame is
listed again at the end and makes the exit status 1: the planner's register budget is too generous for it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scanops.builders.request import BuildRequest
from scanops.builders.resources import parse_ptxas
from scanops.codegen import ScanSpec, generate, make_plan
from scanops.toolchain import find_nvcc

TARGETS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
MAX = 2**31

# Lines of every strategy. Odd lengths have one item an access, others as many as fit in 16 bytes.
SHAPES: tuple[dict[str, Any], ...] = (
    {"length": 1},
    {"length": 33},
    {"length": 1000},
    {"length": 1024},
    {"length": 4099},
    {"length": 8192},
    {"length": 16384},
    {"length": 32768},
    {"length": 65537},
    {"length": 2**20},
    {"length": MAX},
    {"length": 2**20 + 1, "lines": "few"},
    {"length": 2**28, "lines": "few"},
    {"length": MAX, "lines": "few"},
    {"length": 3, "inner": 4096},
    {"length": 1024, "inner": 100},
    {"length": 32768, "inner": 32768},
    {"length": 32768, "inner": 6, "lines": "few"},
    {"length": MAX, "inner": 2, "lines": "few"},
)
LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"input_layout": "strided"},
    {"mask_layout": "strided"},
    {"input_layout": "strided", "mask_layout": "strided"},
    {"aligned": False},
)
COMMON = 2  # layouts at the head of the list that every dtype is tried with
# Turns that change the text and hardly the cost: dealt out over the specs, not multiplied with them.
TURNS: tuple[dict[str, Any], ...] = (
    {"op": "sum"},
    {"op": "prod", "exclusive": True},
    {"op": "sum", "reverse": True},
    {"op": "prod", "reverse": True, "exclusive": True},
)
DTYPES = ("bool", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
QUICK_DTYPES = ("float16", "float32", "float64", "int64")  # one of each size
QUICK_LENGTHS = (33, 1000, 4099, 32768, MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One kernel, compiled for one target."""

    spec: str
    target: str
    plan: str  # strategy and numbers
    registers: int  # a thread
    stack_bytes: int  # a thread
    spill_bytes: int  # a thread, stores and loads together
    shared_bytes: int  # a block
    text_bytes: int
    cubin_bytes: int
    seconds: float  # of nvcc, wall time

    @property
    def spills(self) -> bool:
        """Whether the kernel keeps values outside its registers."""
        return bool(self.stack_bytes or self.spill_bytes)


def specs(*, quick: bool) -> list[ScanSpec]:
    """The sweep, without repeats."""
    dtypes = QUICK_DTYPES if quick else DTYPES
    shapes = [shape for shape in SHAPES if not quick or shape["length"] in QUICK_LENGTHS]
    layouts = LAYOUTS[:COMMON] if quick else LAYOUTS
    turns = itertools.cycle(TURNS)
    found: dict[str, ScanSpec] = {}
    for shape, (rank, layout), dtype in itertools.product(shapes, enumerate(layouts), dtypes):
        if rank >= COMMON and dtype not in QUICK_DTYPES:
            continue
        for mask in (None, "bool", dtype, "float64"):
            if mask is None and "mask_layout" in layout:
                continue
            spec = ScanSpec(dtype=dtype, mask=mask, **shape, **layout, **next(turns))
            found[spec.slug] = spec
    return list(found.values())


def measure(spec: ScanSpec, target: str, nvcc: Path, folder: Path) -> Cost:
    """Compile one spec for one target. Raises CalledProcessError, with nvcc's words on stderr, when it refuses."""
    text = generate(spec, target)
    source = folder / f"{spec.slug}.{target}.cu"
    cubin = source.with_suffix(".cubin")
    source.write_text(text)
    flags = BuildRequest(name=spec.slug, source=text, target=target).flags
    command = [str(nvcc), "-cubin", *flags, "-Xptxas=-v", str(source), "-o", str(cubin)]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    used = parse_ptxas(done.stdout + done.stderr)
    if done.returncode != 0 or used is None:
        print(done.stderr, file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, command)
    cost = Cost(
        spec=spec.slug,
        target=target,
        plan=make_plan(spec, target).describe(),
        registers=used.registers or 0,
        stack_bytes=used.stack_bytes or 0,
        spill_bytes=(used.spill_store_bytes or 0) + (used.spill_load_bytes or 0),
        shared_bytes=used.shared_bytes or 0,
        text_bytes=len(text),
        cubin_bytes=cubin.stat().st_size,
        seconds=round(seconds, 3),
    )
    source.unlink()
    cubin.unlink()
    return cost


def sweep(wanted: Iterable[ScanSpec], targets: Iterable[str], jobs: int) -> Iterator[Cost]:
    """The costs, in the order of the specs."""
    nvcc = find_nvcc().nvcc
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(jobs) as pool:
        pairs = list(itertools.product(wanted, targets))
        yield from pool.map(lambda pair: measure(pair[0], pair[1], nvcc, Path(name)), pairs)


def line(cost: Cost) -> str:
    """A row of the table."""
    return (
        f"{cost.spec:<58} {cost.target:<7}{cost.registers:>5}{cost.stack_bytes:>7}{cost.spill_bytes:>7}"
        f"{cost.shared_bytes:>7}{cost.text_bytes:>8}{cost.cubin_bytes:>8}{cost.seconds:>7.2f}"
    )


HEADER = (
    f"{'spec':<58} {'target':<7}{'regs':>5}{'stack':>7}{'spill':>7}{'shared':>7}{'text':>8}{'cubin':>8}{'nvcc s':>7}"
)


def main() -> int:
    """Run the sweep; 1 when something spills."""
    parser = argparse.ArgumentParser(description="Registers, spills, sizes and compile time of many kernels.")
    parser.add_argument("--quick", action="store_true", help="a few dozen specs, a minute or two")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated; default %(default)s")
    parser.add_argument("--match", default="", help="only the specs whose slug holds this regular expression")
    parser.add_argument("--jobs", type=int, default=2, help="compiles at a time, default %(default)s")
    options = parser.parse_args()

    wanted = [spec for spec in specs(quick=options.quick) if re.search(options.match, spec.slug)]
    costs = []
    if not options.json:
        print(HEADER)
    for cost in sweep(wanted, options.targets.split(","), options.jobs):
        costs.append(cost)
        if not options.json:
            print(line(cost), flush=True)
    spilling = [cost for cost in costs if cost.spills]
    if options.json:
        print(json.dumps({"ok": not spilling, "costs": [asdict(cost) for cost in costs]}, indent=1))
    elif spilling:
        print(f"\n{len(spilling)} of {len(costs)} kernels spill or have a stack frame:\n{HEADER}")
        for cost in spilling:
            print(line(cost))
            print(f"    {cost.plan}")
    else:
        print(f"\nnone of {len(costs)} kernels spills")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
