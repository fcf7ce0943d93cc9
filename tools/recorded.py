"""Print the recorded figures of kernels that NVRTC builds, beside their goals: ``python -m tools.recorded``.

Each line names the committed file, and where and when it was measured; benchmarks/README.md has the commands. Exits
with 1 where a goal is missed or a figure was not measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
MATRIX = "tests/numbers/test_matrix.py"
GOLDENS = "tests/gpu/test_cubins.py"


class Goal(NamedTuple):
    """A figure of a result file, and the bound that it is held to."""

    name: str
    file: str  # of the results, without its suffix
    value: Callable[[Any], float]  # of the document in it
    most: float | None = None
    least: float | None = None

    def met(self, value: float) -> bool:
        """Return whether a value is within the bound."""
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)


def _on_a_gpu(tests: str) -> Callable[[Any], float]:
    """Return what counts the failures of the runs with these tests on a GPU whose kernels NVRTC built."""

    def failures(rows: list[dict[str, Any]]) -> int:
        found = [row["failed"] for row in rows if row["builder"] == "nvrtc" and {tests, "tests"} & {*row["tests"]}]
        if not found:
            raise KeyError(tests)
        return sum(found)

    return failures


def _call(form: str) -> Callable[[Any], float]:
    """Return what divides the host time of a call of one form of kernel by torch's."""
    return lambda found: float(
        found["microseconds"]["sum"]["forward"][form] / found["microseconds"]["sum"]["forward"]["torch"]
    )


def _disk(form: str) -> Callable[[Any], float]:
    return lambda found: float(found["from_disk"][form]["store"]["total_ms"])


def _first(way: str) -> Callable[[Any], float]:
    return lambda found: float(found["first_calls"]["cubin"][way]["median"])


def _cpu(which: str) -> Callable[[Any], float]:
    return lambda found: float(found["times"]["all"]["cpu_seconds"][which])


GOALS = (
    Goal("build-cost grid: kernels that NVRTC refuses", "build_cost_nvrtc", lambda found: len(found["refused"]), 0),
    Goal(
        "build-cost grid: kernels that spill where nvcc's do not",
        "build_cost_nvrtc",
        lambda found: sum(not row["nvcc_spill_bytes"] for row in found["spilled"]),
        0,
    ),
    Goal("build-cost grid: CPU seconds, median", "build_cost_nvrtc", _cpu("median"), 0.2),
    Goal("build-cost grid: CPU seconds, 95 %", "build_cost_nvrtc", _cpu("95 %"), 0.5),
    Goal("build-cost grid: child processes", "build_cost_nvrtc", lambda found: found["children"], 0),
    Goal("test matrix by NVRTC on a GPU: failures", "versions", _on_a_gpu(MATRIX), 0),
    Goal("bits of the goldens by both builders: failures", "versions", _on_a_gpu(GOLDENS), 0),
    Goal("speed, cubin / library: geometric mean", "cubins_h200", lambda found: found["geometric_mean"], least=0.99),
    Goal("speed, cubin / library: least", "cubins_h200", lambda found: found["least"], least=0.97),
    Goal("first call, running process: seconds, median", "store_speed_h200", _first("running"), 0.25),
    Goal("first call, new process: seconds, median", "store_speed_h200", _first("cold"), 0.8),
    Goal("host time of a call, library / torch", "calls_h200", _call("library"), 1.0),
    Goal("host time of a call, cubin / torch", "calls_h200", _call("cubin"), 1.0),
    Goal("look-up and load of a library: ms", "store_speed_h200", _disk("library"), 1.2),
    Goal("look-up and load of a cubin: ms", "store_speed_h200", _disk("cubin"), 1.2),
    Goal("pack for eight targets: bytes, median", "pack_size", lambda found: found["median_bytes"], 25_000),
    Goal("pack for eight targets: bytes, most", "pack_size", lambda found: max(found["bytes"].values()), 25_000),
    Goal("64 processes, one key: builds", "store_stress", lambda found: found["gpu"]["builds"], 1, 1),
    Goal("wheel with an empty PATH: steps that fail", "wheel_h200", lambda found: not found["ok"], 0),
)


def main() -> int:
    """Print a line for each figure and return 1 where a goal is missed, or a figure not there."""
    bad = 0
    for goal in GOALS:
        path = RESULTS / f"{goal.file}.json"
        bound = f"<= {goal.most:,}" if goal.most is not None else f">= {goal.least:,}"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            value = goal.value(document)
        except (OSError, KeyError):
            bad += 1
            print(f"{goal.name:55}{'-':>10} {bound:12}NOT MEASURED  {path.name}")
            continue
        bad += not goal.met(value)
        when = f"{document['device']}, {document['date']}" if isinstance(document, dict) and "date" in document else ""
        verdict = "" if goal.met(value) else "MISSED"
        print(f"{goal.name:55}{round(value, 3):>10,} {bound:12}{verdict:14}{path.name} {when}".rstrip())
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
