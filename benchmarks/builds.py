"""Measure what kernels cost to build: text, machine code, registers, spills and compile time, within bounds.

The specs are those of the grid, then its shapes, odd lengths and the longest rows, with dtypes and masks distributed
over them; --wide compiles every dtype and layout of each. nvcc compiles each spec for each target; no GPU is needed.
The report holds the worst of each strategy on each target. A figure out of bounds makes the exit status 1.

With --builder nvrtc the report holds what NVRTC refuses, what it spills where nvcc spills nothing, and the median and
the 95th percentile of the times, in wall time and in CPU time, which hardly depends on what else the machine does.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cells import Cell, allocate
from benchmarks.cells import spec_of as spec_of_case
from benchmarks.common import parser, write
from benchmarks.table import cells
from scanops import ScanSpec, make_plan
from scanops.artifact import BuildRequest
from scanops.builders import nvrtc
from scanops.builders.programs import parse_ptxas
from scanops.builders.toolchain import find_nvcc
from scanops.codegen.source import render

TARGETS = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")  # nvcc 13 knows no sm_70
BOUNDS: dict[str, float] = {"text_bytes": 64 * 1024, "cubin_bytes": 128 * 1024, "spill_bytes": 0, "seconds": 2.5}
NVRTC_BOUNDS = {"median": 0.2, "95 %": 0.5}  # CPU seconds of a kernel
COLUMNS = ("text_bytes", "cubin_bytes", "registers", "spill_bytes", "seconds")  # of the report
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
    shared_bytes: int  # a block, declared and asked for at the launch
    text_bytes: int
    cubin_bytes: int
    seconds: float  # wall time of the compiler
    cpu_seconds: float

    @property
    def excesses(self) -> list[str]:
        """The names of the bounds that this kernel exceeds."""
        return [name for name, bound in BOUNDS.items() if getattr(self, name) > bound]


def specs(*, wide: bool) -> list[tuple[ScanSpec, bool]]:
    """Return the specs of the sweep with whether lines are few, each pair once."""
    grid = [cell for cell in cells(SEED) if cell.group != "random"]
    grid += [cell for cell in cells(SEED) if cell.group == "random"][::RANDOM_STEP]
    found = dict.fromkeys(map(spec_of, grid))
    table = {_shape(*spec_of(cell)): None for cell in grid if cell.group == "table"}
    shapes: list[dict[str, Any]] = [*map(dict, table), *map(dict, SHAPES)]
    masks = itertools.cycle((None, "bool", "same", "float64"))
    dtypes = itertools.cycle(DTYPES)
    turns = itertools.cycle(TURNS)
    for shape in shapes:
        few = shape.pop("few", False)
        some = DTYPES if wide else tuple(itertools.islice(dtypes, DEALT))
        for dtype, layout in itertools.product(some, LAYOUTS if wide else LAYOUTS[:1]):
            mask = next(masks)
            mask = dtype if mask == "same" else mask
            if mask is None and "mask_layout" in layout:
                layout = {**layout, "mask_layout": "dense"}
            spec = ScanSpec(dtype=dtype, mask=mask, **shape, **layout, **next(turns))
            found[spec, few] = None
        next(turns)  # masks meet other turns at the next shape
    return list(found)


def spec_of(cell: Cell) -> tuple[ScanSpec, bool]:
    """Return the spec of a call on the tensors of a cell, and whether its lines are few."""
    return spec_of_case(allocate(cell, "meta", filled=False), MULTIPROCESSORS)


def _shape(spec: ScanSpec, few: bool) -> tuple[tuple[str, Any], ...]:
    return (("length", spec.length), ("inner", spec.inner), ("few", few))


class Compiled(NamedTuple):
    """What a compiler made of a text."""

    words: str  # its output and that of ptxas
    cubin_bytes: int
    seconds: float  # wall time
    cpu_seconds: float


class Refusal(Exception):
    """A text that a compiler refuses, with the compiler's words."""


def by_nvcc(text: str, target: str, folder: Path) -> Compiled:
    """Compile a text by nvcc to a cubin. Raises Refusal."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        source, cubin, log = (Path(name) / f"kernel.{kind}" for kind in ("cu", "cubin", "log"))
        source.write_text(text)
        flags = BuildRequest(name="kernel", source=text, target=target).flags
        command = [str(find_nvcc().nvcc), "-cubin", *flags, "-Xptxas=-v", str(source), "-o", str(cubin)]
        with log.open("w") as stream:
            started = time.perf_counter()
            process = subprocess.Popen(command, stdout=stream, stderr=stream)
            _, status, used = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - started
        if status:
            raise Refusal(log.read_text())
        return Compiled(log.read_text(), cubin.stat().st_size, seconds, used.ru_utime + used.ru_stime)


def by_nvrtc(text: str, target: str, folder: Path) -> Compiled:
    """Compile a text by NVRTC, as the builder does. Raises Refusal."""
    request = BuildRequest(name="kernel", source=text, target=target)
    started, began = time.perf_counter(), time.thread_time()
    options = nvrtc.options(nvrtc.require(target), request)
    status, words, cubin = nvrtc.compiled(nvrtc.require(target), text, Path("kernel.cu"), options)
    if status:
        raise Refusal(words)
    return Compiled(words, len(cubin), time.perf_counter() - started, time.thread_time() - began)


COMPILERS: dict[str, Callable[[str, str, Path], Compiled]] = {"nvcc": by_nvcc, "nvrtc": by_nvrtc}


def measure(spec: ScanSpec, few: bool, target: str, compiler: str, folder: Path) -> Cost:
    """Compile one spec for one target. Raises Refusal."""
    plan = make_plan(spec, target, few)
    text = render(plan)
    done = COMPILERS[compiler](text, target, folder)
    if done.seconds > BOUNDS["seconds"]:  # again, in case the machine was busy
        done = min(done, COMPILERS[compiler](text, target, folder), key=lambda each: each.seconds)
    used = parse_ptxas(done.words)
    assert used is not None, done.words
    spilled = (used.spill_store_bytes or 0) + (used.spill_load_bytes or 0)
    return Cost(
        spec=spec.slug + ", few lines" * few,
        target=target,
        strategy=plan.strategy,
        plan=plan.describe(),
        registers=used.registers or 0,
        stack_bytes=used.stack_bytes or 0,
        spill_bytes=spilled or used.stack_bytes or 0,
        shared_bytes=(used.shared_bytes or 0) + plan.shared_bytes,
        text_bytes=len(text.encode()),
        cubin_bytes=done.cubin_bytes,
        seconds=round(done.seconds, 3),
        cpu_seconds=round(done.cpu_seconds, 3),
    )


def sweep(
    wanted: Iterable[tuple[ScanSpec, bool]], targets: Iterable[str], jobs: int, compiler: str, refused: list[str]
) -> Iterator[Cost]:
    """Yield the costs in the order of the specs, and add what is refused to ``refused``."""

    def measured(spec: ScanSpec, few: bool, target: str) -> Cost | None:
        try:
            return measure(spec, few, target, compiler, Path(name))
        except Refusal as problem:
            refused.append(f"{spec.slug}{', few lines' * few} for {target}: {problem}")
            return None

    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(jobs) as pool:
        work = [(spec, few, target) for (spec, few), target in itertools.product(wanted, targets)]
        yield from filter(None, pool.map(lambda each: measured(*each), work))


def of_nvrtc(costs: Sequence[Cost], wanted: Sequence[tuple[ScanSpec, bool]]) -> dict[str, Any]:
    """Return times and spills of NVRTC, overall and by target. Asks nvcc about the kernels that spill."""
    known = {spec.slug + ", few lines" * few: (spec, few) for spec, few in wanted}
    spilled = []
    with tempfile.TemporaryDirectory() as name:
        for cost in (cost for cost in costs if cost.spill_bytes):
            theirs = measure(*known[cost.spec], cost.target, "nvcc", Path(name))
            spilled.append({**asdict(cost), "nvcc_spill_bytes": theirs.spill_bytes})
    targets = {"all": costs} | {name: [each for each in costs if each.target == name] for name in TARGETS}
    return {
        "times": {
            name: {kind: _spread(members, kind) for kind in ("seconds", "cpu_seconds")}
            for name, members in targets.items()
            if members
        },
        "spilled": spilled,
        "spilled_where_nvcc_does_not": sum(not each["nvcc_spill_bytes"] for each in spilled),
    }


def _spread(costs: Sequence[Cost], kind: str) -> dict[str, float]:
    values = sorted(float(getattr(cost, kind)) for cost in costs)
    late = values[min(len(values) - 1, int(0.95 * len(values)))]
    return {"median": round(statistics.median(values), 3), "95 %": late, "most": values[-1]}


def worst(costs: Sequence[Cost]) -> list[dict[str, Any]]:
    """Return the worst of each figure by strategy and target, with the spec that has it."""
    groups: dict[tuple[str, str], list[Cost]] = {}
    for cost in costs:
        groups.setdefault((cost.strategy, cost.target), []).append(cost)
    rows = []
    for (strategy, target), members in sorted(groups.items(), key=lambda item: (item[0][0], int(item[0][1][3:]))):
        row: dict[str, Any] = {"strategy": strategy, "target": target, "kernels": len(members)}
        for name in COLUMNS:
            most = max(members, key=lambda cost: float(getattr(cost, name)))
            row[name] = {"most": getattr(most, name), "spec": most.spec}
        rows.append(row)
    return rows


def markdown(costs: Sequence[Cost], version: str, jobs: int) -> str:
    """Return the report as a Markdown table."""
    lines = [
        "# What kernels cost to build",
        "",
        f"The worst of each strategy on each target, over {len({cost.spec for cost in costs})} specs and"
        f" {len(costs)} kernels; {version}, {jobs} compiles at a time. Printed by",
        "`python -m benchmarks builds`.",
        "",
        "| strategy | target | kernels | text, bytes | cubin, bytes | registers | spills, bytes | seconds |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in worst(costs):
        figures = " | ".join(
            f"{row[name]['most']:g}" if name == "seconds" else str(row[name]["most"]) for name in COLUMNS
        )
        lines.append(f"| {row['strategy']} | {row['target']} | {row['kernels']} | {figures} |")
    bounds = " | ".join(f"{BOUNDS[name]:g}" if name in BOUNDS else "255" for name in COLUMNS)
    lines.append(f"| **bound** | | | {bounds} |")
    beyond = [cost for cost in costs if cost.excesses]
    lines += ["", f"Out of bounds: {len(beyond) or 'none'}."]
    lines += [f"* {cost.spec} on {cost.target}: {_said(cost)} ({cost.plan})" for cost in beyond]
    return "\n".join(lines) + "\n"


def _said(cost: Cost) -> str:
    return ", ".join(f"{name} {getattr(cost, name)}" for name in cost.excesses)


def line(cost: Cost) -> str:
    """Return the line of one kernel."""
    return (
        f"{cost.spec:<58} {cost.target:<7}{cost.strategy:<9}{cost.registers:>5}{cost.spill_bytes:>7}"
        f"{cost.shared_bytes:>8}{cost.text_bytes:>8}{cost.cubin_bytes:>8}{cost.seconds:>7.2f}"
        f"{'  OUT OF BOUNDS: ' + _said(cost) if cost.excesses else ''}"
    )


HEADER = f"{'spec':<58} {'target':<7}{'strategy':<9}{'regs':>5}{'spill':>7}{'shared':>8}{'text':>8}{'cubin':>8}{'s':>7}"


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
    wanted = [each for each in specs(wide=given.wide) if re.search(given.match, each[0].slug)]
    wanted = [each for each in wanted if not given.quick or QUICK.search(each[0].slug)]
    version = f"nvcc {find_nvcc().version}" if given.builder == "nvcc" else str(nvrtc.require(targets[0]))
    costs: list[Cost] = []
    refused: list[str] = []
    print(f"{len(wanted)} specs, {len(targets)} targets, {version}\n{HEADER}")
    for cost in sweep(wanted, targets, given.jobs, given.builder, refused):
        costs.append(cost)
        print(line(cost), flush=True)
    if not costs:
        print("nothing to build")
        return 2
    print(f"\n{markdown(costs, version, given.jobs)}", end="")
    print("\n".join(["refused:", *refused]) if refused else "refused: none")
    beyond = [cost for cost in costs if cost.excesses]
    figures = {
        "ok": not beyond and not refused,
        given.builder: version.split()[1],
        "jobs": given.jobs,
        "bounds": BOUNDS,
        "specs": len(wanted),
        "kernels": len(costs),
        "refused": refused,
        "worst": worst(costs),
        "out_of_bounds": [asdict(cost) for cost in beyond],
    }
    if given.builder == "nvrtc":
        found = of_nvrtc(costs, wanted)
        late = any(found["times"]["all"]["cpu_seconds"][name] > most for name, most in NVRTC_BOUNDS.items())
        figures |= {
            "ok": not (refused or late or found["spilled_where_nvcc_does_not"]),
            "bounds": NVRTC_BOUNDS,
            **found,
        }
        for name, times in found["times"].items():
            print(f"{name:<8}" + ", ".join(f"{kind}: {spread}" for kind, spread in times.items()))
        print(
            f"spill where nvcc does not: {found['spilled_where_nvcc_does_not']} of {len(found['spilled'])} that spill"
        )
    write(given.output, figures)
    return 0 if figures["ok"] else 1
