"""Say what bounds each scan of ``variants`` that is slower than a copy: hardware counters, read by Nsight Compute.

For each scan: the part of its cycles in which memory is busy, in which instructions issue, in which the pipe of special
functions is busy and in which shared memory is; warps that are resident, of those that could be; registers of a
thread; and instructions per item. The resource that is busy in most cycles is named, "latency" where none is in half
of them: then a multiprocessor waits with too few bytes in flight.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import RESULTS, child, parser, require_gpu, write
from benchmarks.variants import SHAPES, built
from scanops.codegen.planner import STRATEGIES

METRICS = {
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue": "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "special functions": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "shared memory": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_active",
    "resident warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "instructions": "smsp__thread_inst_executed.sum",
}
RESOURCES = ("memory", "issue", "special functions", "shared memory")
KERNELS = f"regex:_({'|'.join(STRATEGIES)})$"  # names of functions end in the strategy
BUSY = 50.0  # percent
SLOW = 0.9  # of a copy: faster scans are not looked at


def run(names: Sequence[str]) -> dict[str, int]:
    """Run each of these scans once and return their items by name."""
    items = {}
    for shape, dim in SHAPES:
        for scan in built(shape, dim, names):
            scan.run()
            items[scan.name] = scan.inputs.x.numel()
    return items


def profiled(names: Sequence[str]) -> list[dict[str, float]]:
    """Return the metrics of each scan, in order, from a profile of this module in a process of its own."""
    command = ["ncu", "--clock-control", "none", "--kernel-name", KERNELS, "--csv", "--metrics"]
    command.append(",".join(METRICS.values()))
    said = child("-m", "benchmarks", "bounds", "--run", *names, folder=".", before=command)
    lines = said.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith('"ID"'))
    found: dict[str, dict[str, float]] = {}
    words = {metric: name for name, metric in METRICS.items()}
    for row in csv.DictReader(lines[first:]):
        value = float(row["Metric Value"].replace(",", ""))
        found.setdefault(row["ID"], {})[words[row["Metric Name"]]] = value
    return list(found.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each slow scan, and write the figures."""
    options = parser(__doc__, filtered="scans")
    options.add_argument("--of", type=Path, default=RESULTS / "variants_h200.json")
    options.add_argument("--run", nargs="*", help=argparse.SUPPRESS)
    given = options.parse_args(arguments)
    require_gpu()
    if given.run is not None:
        run(given.run)
        return 0
    fractions = json.loads(given.of.read_text(encoding="utf-8"))["of_a_copy"]
    items = run([name for name, part in fractions.items() if part < SLOW and given.filter in name])  # builds them, too
    found = {}
    for name, figures in zip(items, profiled(list(items)), strict=True):
        figures["instructions"] /= items[name]
        busiest = max(RESOURCES, key=figures.__getitem__)
        bound = busiest if figures[busiest] >= BUSY else "latency"
        found[name] = {"bound": bound} | {key: round(value, 1) for key, value in figures.items()}
        print(f"{bound:18}", *(f"{key} {value}" for key, value in found[name].items() if key != "bound"), name)
    write(given.output, {"counters": found})
    return 0
