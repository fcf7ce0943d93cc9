"""Measure what kernels cost to build: text, machine code, registers, spills and compile time, within bounds.

The specs are those of the grid, then its shapes, odd lengths and the longest rows, with dtypes and masks distributed
over them; --wide compiles every dtype and layout of each. nvcc or NVRTC compiles each spec for each target; no GPU is
needed. A figure out of bounds, or a text that is refused, makes the exit status 1. NVRTC may spill where nvcc does.
Times are wall time and CPU time, of which the latter depends less on what else the machine does.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cells import allocate
from benchmarks.common import Row, parser, write
from benchmarks.table import cells
from benchmarks.timing import percentile
from scanops import ScanSpec
from scanops.build_request import BuildRequest
from scanops.builders import nvrtc
from scanops.builders.programs import parse_ptxas
from scanops.builders.toolchain import find_nvcc
from scanops.codegen.headers import inline_headers
from scanops.codegen.kernel_key import KernelKey, variant_for
from scanops.codegen.planner import plan_kernel
from scanops.codegen.source import render
from scanops.codegen.targets import DEFAULT_TARGET

TARGETS = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")  # nvcc 13 knows no sm_70
BOUNDS: dict[str, float] = {"text_bytes": 64 * 1024, "cubin_bytes": 128 * 1024, "spill_bytes": 0, "cpu_seconds": 2.5}
NVRTC_BOUNDS = {"median": 0.2, "95 %": 0.5}  # CPU seconds of a kernel
COLUMNS = ("text_bytes", "cubin_bytes", "registers", "spill_bytes", "seconds", "cpu_seconds")  # of the report
SEED = 2026  # of the random lengths of the grid
RANDOM_STEP = 8  # every eighth of them is compiled
MULTIPROCESSORS = 132  # of the GPU that the specs are for
MAX = 2**31

SHAPES: tuple[dict[str, Any], ...] = (  # in addition to those of the grid
    {"length": 33},
    {"length": 4099},
    {"length": MAX},
    {"length": None},
    {"length": None, "few": True},
    {"length": None, "inner": 64},
    {"length": 2**20 + 1, "few": True},
    {"length": MAX, "few": True},
    {"length": 3, "inner": 4096},
    {"length": 1024, "inner": 100},
    {"length": 32768, "inner": 6, "few": True},
    {"length": MAX, "inner": 2, "few": True},
)
LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"input_layout": "strided"},
    {"mask_layout": "strided"},
    {"input_layout": "rows", "mask_layout": "rows"},
    {"input_layout": "transposed"},
    {"aligned": False},
)
# These change the text and hardly the cost, so they alternate over the specs instead of multiplying them.
TURNS: tuple[dict[str, Any], ...] = (
    {"op": "sum"},
    {"op": "prod", "exclusive": True},
    {"op": "sum", "reverse": True},
    {"op": "prod", "reverse": True, "exclusive": True},
)
DTYPES = ("bool", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
DEALT = 2  # dtypes of each shape
QUICK = re.compile(r"-n(4|257|1024|32768|1048576|4096-inner64)\b")


STARTED = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec")  # events of Python's audit


def keys(*, wide: bool) -> list[KernelKey]:
    """Return the kernels of the sweep, each once, for the default target."""
    grid = [cell for cell in cells(SEED) if cell.group != "random"]
    grid += [cell for cell in cells(SEED) if cell.group == "random"][::RANDOM_STEP]
    wanted = {cell: allocate(cell, "meta", filled=False).key(DEFAULT_TARGET, MULTIPROCESSORS) for cell in grid}
    found = dict.fromkeys(wanted.values())
    table = dict.fromkeys(
        (key.spec.length, key.spec.inner, key.is_few) for cell, key in wanted.items() if cell.group == "table"
    )
    shapes: list[Row] = [dict(zip(("length", "inner", "few"), shape, strict=True)) for shape in table]
    masks = itertools.cycle((None, "bool", "same", "float64"))
    dtypes = itertools.cycle(DTYPES)
    turns = itertools.cycle(TURNS)
    for shape in [*shapes, *map(dict, SHAPES)]:
        few = shape.pop("few", False)
        some = DTYPES if wide else tuple(itertools.islice(dtypes, DEALT))
        for dtype, layout in itertools.product(some, LAYOUTS if wide else LAYOUTS[:1]):
            mask = next(masks)
            mask = dtype if mask == "same" else mask
            if mask is None and "mask_layout" in layout:
                layout = {**layout, "mask_layout": "dense"}
            spec = ScanSpec(dtype=dtype, mask=mask, **shape, **layout, **next(turns))
            found[KernelKey(spec, DEFAULT_TARGET, variant_for(few))] = None
        next(turns)  # masks meet other turns at the next shape
    return list(found)


CHILDREN: Counter[int] = Counter()  # programs that were started, by thread


class Compiled(NamedTuple):
    """What a compiler made of a text."""

    words: str  # its output and that of ptxas
    cubin: bytes
    seconds: float  # wall time
    cpu_seconds: float
    children: int  # processes that it started


class Refusal(Exception):
    """A text that a compiler refuses, with the compiler's words."""


def by_nvcc(text: str, target: str) -> Compiled:
    """Compile a text by nvcc to a cubin. Raises Refusal."""
    with tempfile.TemporaryDirectory() as name:
        source, cubin, log = (Path(name) / f"kernel.{kind}" for kind in ("cu", "cubin", "log"))
        source.write_text(text)
        flags = BuildRequest(name="kernel", source=text, target=target).flags
        command = [str(find_nvcc().path), "-cubin", *flags, "-Xptxas=-v", str(source), "-o", str(cubin)]
        with log.open("w") as stream:
            started = time.perf_counter()
            process = subprocess.Popen(command, stdout=stream, stderr=stream)
            _, status, used = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - started
        if status:
            raise Refusal(log.read_text())
        return Compiled(log.read_text(), cubin.read_bytes(), seconds, used.ru_utime + used.ru_stime, 1)


def by_nvrtc(text: str, target: str) -> Compiled:
    """Compile a text by NVRTC, as the builder does. Raises Refusal."""
    request, here = BuildRequest(name="kernel", source=text, target=target), threading.get_ident()
    children, started, began = CHILDREN[here], time.perf_counter(), time.thread_time()
    found = nvrtc.require(target)
    status, words, cubin = nvrtc.compile_cubin(found, text, Path("kernel.cu"), nvrtc.options(found, request))
    seconds, cpu_seconds = time.perf_counter() - started, time.thread_time() - began
    if status:
        raise Refusal(words)
    return Compiled(words, cubin, seconds, cpu_seconds, CHILDREN[here] - children)


COMPILERS: dict[str, Callable[[str, str], Compiled]] = {"nvcc": by_nvcc, "nvrtc": by_nvrtc}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one kernel compiled for one target."""

    spec: str
    target: str
    strategy: str
    plan: str  # strategy and numbers
    registers: int  # a thread
    stack_bytes: int  # a thread
    spill_bytes: int  # a thread, stores and loads together, or a stack frame where there is one
    nvcc_spill_bytes: int  # the same by nvcc, where NVRTC spills; otherwise 0
    shared_bytes: int  # a block, declared and asked for at the launch
    text_bytes: int
    cubin_bytes: int
    seconds: float  # wall time of the compiler
    cpu_seconds: float
    children: int  # processes that the compiler started

    @property
    def excesses(self) -> str:
        """The bounds that this kernel exceeds, with its figures."""
        values = {name: getattr(self, name) for name in BOUNDS}
        values["spill_bytes"] *= not self.nvcc_spill_bytes
        return ", ".join(f"{name} {value}" for name, value in values.items() if value > BOUNDS[name])


def measure(key: KernelKey, compiler: str) -> Cost:
    """Compile one kernel. Raises Refusal."""
    target, plan = key.target, plan_kernel(key)
    text = inline_headers(render(plan))
    done = COMPILERS[compiler](text, target)
    used = parse_ptxas(done.words)
    assert used is not None, done.words
    spills = (used.spill_store_bytes or 0) + (used.spill_load_bytes or 0) or used.stack_bytes or 0
    return Cost(
        spec=key.spec.slug + ", few lines" * key.is_few,
        target=target,
        strategy=plan.strategy,
        plan=plan.describe(),
        registers=used.registers or 0,
        stack_bytes=used.stack_bytes or 0,
        spill_bytes=spills,
        nvcc_spill_bytes=measure(key, "nvcc").spill_bytes if spills and compiler != "nvcc" else 0,
        shared_bytes=(used.shared_bytes or 0) + plan.shared_bytes,
        text_bytes=len(text.encode()),
        cubin_bytes=len(done.cubin),
        seconds=round(done.seconds, 3),
        cpu_seconds=round(done.cpu_seconds, 3),
        children=done.children,
    )


def sweep(
    wanted: Iterable[KernelKey], targets: Iterable[str], jobs: int, compiler: str, refused: list[str]
) -> Iterator[Cost]:
    """Yield the costs in the order of the specs, and add what is refused to ``refused``."""

    def measured(key: KernelKey, target: str) -> Cost | None:
        key = key._replace(target=target)
        try:
            return measure(key, compiler)
        except Refusal as problem:
            refused.append(f"{key}: {problem}")
            return None

    with ThreadPoolExecutor(jobs) as pool:
        yield from filter(None, pool.map(lambda each: measured(*each), itertools.product(wanted, targets)))


def times(costs: Sequence[Cost]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the median, the 95th percentile and the most of both kinds of time, over all targets and by target."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for target in ("all", *dict.fromkeys(cost.target for cost in costs)):
        for kind in ("seconds", "cpu_seconds"):
            values = sorted(float(getattr(cost, kind)) for cost in costs if target in ("all", cost.target))
            spread = {"median": round(statistics.median(values), 3), "95 %": round(percentile(values, 95), 3)}
            found.setdefault(target, {})[kind] = {**spread, "most": values[-1]}
    return found


def worst(costs: Sequence[Cost]) -> list[Row]:
    """Return the worst of each figure by strategy and target, with the spec that has it."""
    groups: dict[tuple[str, str], list[Cost]] = {}
    for cost in costs:
        groups.setdefault((cost.strategy, cost.target), []).append(cost)
    rows = []
    for (strategy, target), members in sorted(groups.items(), key=lambda item: (item[0][0], int(item[0][1][3:]))):
        row: Row = {"strategy": strategy, "target": target, "kernels": len(members)}
        for name in COLUMNS:
            most = max(members, key=lambda cost: float(getattr(cost, name)))
            row[name] = {"most": getattr(most, name), "spec": most.spec}
        rows.append(row)
    return rows


def line(cost: Cost) -> str:
    """Return the line of one kernel."""
    said = (
        f"{cost.registers} registers, {cost.spill_bytes} bytes of spills, {cost.cubin_bytes} of code, {cost.seconds} s"
    )
    excesses = f", OUT OF BOUNDS: {cost.excesses}" if cost.excesses else ""
    return f"{cost.spec:<58} {cost.target:<7}{cost.strategy:<11}{said}{excesses}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep and return 1 when a figure is out of bounds."""
    options = parser(__doc__)
    options.add_argument("--quick", action="store_true", help="compile only a few dozen specs")
    options.add_argument("--wide", action="store_true", help="compile every dtype and layout of each shape")
    options.add_argument("--targets", default=",".join(TARGETS), help="comma-separated; default %(default)s")
    options.add_argument("--match", default="", help="only the specs whose slug holds this regular expression")
    options.add_argument("--jobs", type=int, default=2, help="compiles at a time, default %(default)s")
    options.add_argument("--builder", choices=COMPILERS, default="nvcc", help="which compiler; default %(default)s")
    given = options.parse_args(arguments)

    targets = given.targets.split(",")
    wanted = [key for key in keys(wide=given.wide) if re.search(given.match, key.spec.slug)]
    wanted = [each for each in wanted if not given.quick or QUICK.search(each[0].slug)]
    version = f"nvcc {find_nvcc().version}" if given.builder == "nvcc" else str(nvrtc.require(targets[0]))
    sys.addaudithook(lambda event, _: event in STARTED and CHILDREN.update([threading.get_ident()]))
    costs: list[Cost] = []
    refused: list[str] = []
    print(f"{len(wanted)} specs, {len(targets)} targets, {version}")
    for cost in sweep(wanted, targets, given.jobs, given.builder, refused):
        costs.append(cost)
        print(line(cost), flush=True)
    if not costs:
        print("nothing to build")
        return 2
    beyond, found = [cost for cost in costs if cost.excesses], times(costs)
    bounds = NVRTC_BOUNDS if given.builder == "nvrtc" else {}
    figures = {
        "ok": not beyond
        and not refused
        and all(found["all"]["cpu_seconds"][name] <= most for name, most in bounds.items()),
        given.builder: version.split()[1],
        "jobs": given.jobs,
        "bounds": BOUNDS | bounds,
        "specs": len(wanted),
        "kernels": len(costs),
        "children": sum(cost.children for cost in costs),
        "refused": refused,
        "times": found,
        "worst": worst(costs),
        "out_of_bounds": [asdict(cost) for cost in beyond],
        "spilled": [asdict(cost) for cost in costs if cost.spill_bytes],
    }
    print(*(f"{name:<8}{spread}" for name, spread in found.items()), *refused, sep="\n")
    print(f"{len(beyond)} of {len(costs)} kernels out of bounds, {len(refused)} refused")
    write(given.output, figures)
    return 0 if figures["ok"] else 1
