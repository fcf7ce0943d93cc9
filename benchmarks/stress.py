"""Stress the kernel store with many processes and kills.

    same   N processes ask for one new kernel at once: one of them builds it, each gets the right result
    gpu    the same for a kernel for a GPU, half of them as a call does and half as a build ahead of time, which would
           build another form of it; the kernel is loaded, not run. Left out without NVRTC
    keys   N processes ask for a kernel each: N builds, and one build of the emulator they all link with
    kills  a process that asks for a new kernel is killed at a random moment, alone or with its compilers; then another
           process asks for the same kernel

Kernels are emulated, built by g++ without torch in a store of their own. Each process launches the library that it gets
and compares with a sequential scan. Any failure makes the exit status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 600.0  # a process that takes longer hangs
LINES = 3
FIRST_LENGTH = 33


class Arguments(ctypes.Structure):
    """Those of rows, from scanops.requests.geometry.ScanArguments; that module imports torch."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("input", "output")),
        *((name, ctypes.c_longlong) for name in ("lines", "length")),
        *((name, ctypes.c_int) for name in ("multiprocessors", "rows", "lane_bits", "piece", "stripes")),
    )


class Lines(logging.Handler):
    """Counts the messages that scanops logs in a process, by their first words."""

    WORDS = ("building", "waiting for", "waited", "no lock", "store entry", "cannot")

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.counts.update(word for word in self.WORDS if text.startswith(word))


def ask(length: int, start: float, target: str) -> dict[str, Any]:
    """Get the kernel of a length at the time ``start`` and run it; called in a process of its own."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # torch must not be needed
    from scanops.codegen.kernel_key import KernelKey
    from scanops.codegen.spec import ScanSpec
    from scanops.runtime.binaries import bind_binary
    from scanops.runtime.kernels import obtain
    from scanops.runtime.policies import POLICIES, STRICT
    from scanops.store import Store

    lines = Lines()
    logger = logging.getLogger("scanops")
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    time.sleep(max(0.0, start - time.time()))
    began = time.perf_counter()
    policy = POLICIES["build"] if os.getpid() % 2 else STRICT
    kernel = obtain(KernelKey(ScanSpec(op="sum", dtype="float32", length=length), target), policy, Store())
    assert kernel is not None
    code = kernel.code  # loaded
    seconds = time.perf_counter() - began
    if target != "cpu":
        return {"right": True, "seconds": seconds, **lines.counts}
    values = [float((7 * index) % 11 - 5) for index in range(LINES * length)]  # their sums are exact
    x, y = (ctypes.c_float * len(values))(*values), (ctypes.c_float * len(values))()
    arguments = Arguments(lines=LINES, length=length, multiprocessors=3)
    arguments.input, arguments.output = ctypes.addressof(x), ctypes.addressof(y)
    binding = bind_binary(code, arguments, -1)
    error = binding.launch(binding.refer(arguments), 0)
    rows = (values[row * length : (row + 1) * length] for row in range(LINES))
    right = error == 0 and list(y) == [value for row in rows for value in accumulate(row)]
    return {"right": right, "seconds": seconds, **lines.counts}


def asking(store: Path, length: int, start: float = 0.0, target: str = "cpu") -> subprocess.Popen[str]:
    """Start a process that calls ``ask``, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "stress", "--ask", str(length), repr(start), target],
        cwd=ROOT,
        env={**os.environ, "SCANOPS_STORE": str(store), "SCANOPS_TUNING": os.devnull},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what the process printed; a process that failed or hung counts as a wrong result."""
    try:
        out, error = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, error = process.communicate()
        error += "hung"
    if process.returncode == 0:
        return dict(json.loads(out))
    print(error, file=sys.stderr)
    return {"right": False, "seconds": LIMIT_SECONDS, "failed": 1}


def together(store: Path, lengths: list[int], target: str = "cpu") -> dict[str, Any]:
    """Start one process for each length, all asking at once, and return the counts."""
    start = time.time() + 0.2 * len(lengths)  # time for their imports
    processes = [asking(store, length, start, target) for length in lengths]
    answers = [answer(process) for process in processes]
    return {
        "processes": len(answers),
        "kernels": len(set(lengths)),
        "right": sum(each["right"] for each in answers),
        "builds": sum(each.get("building", 0) for each in answers),
        "waited": sum(bool(each.get("waiting for")) for each in answers),
        "private_builds": sum(each.get("waited", 0) + each.get("no lock", 0) for each in answers),
        "seconds": round(max(each["seconds"] for each in answers), 2),
        **condition(store),
    }


def kills(store: Path, times: int, seed: int) -> dict[str, Any]:
    """Kill the first process of each length at a random moment of its life, and ask again from another."""
    chosen = random.Random(seed)
    answer(asking(store, FIRST_LENGTH))  # builds the emulator that all kernels are linked with
    stages: Counter[str] = Counter()
    answers: list[dict[str, Any]] = []
    span = 0.0
    for length in range(FIRST_LENGTH + 1, FIRST_LENGTH + 1 + times):
        process = asking(store, length)
        time.sleep(chosen.uniform(0.0, span))
        stages[stage(store, length, process)] += 1
        end = chosen.choice((os.kill, os.killpg))
        with contextlib.suppress(ProcessLookupError):
            end(process.pid, signal.SIGKILL)
        process.communicate()
        began = time.perf_counter()
        answers.append(answer(asking(store, length)))
        span = time.perf_counter() - began if answers[-1].get("building") else span  # seconds of a process that builds
    return {
        "kills": times,
        "seed": seed,
        "killed": dict(sorted(stages.items())),
        "right": sum(each["right"] for each in answers),
        "corrupt": sum(each.get("store entry", 0) for each in answers),
        "private_builds": sum(each.get("waited", 0) + each.get("no lock", 0) for each in answers),
        "median_seconds": round(statistics.median(each["seconds"] for each in answers), 2),
        "max_seconds": round(max(each["seconds"] for each in answers), 2),
        **condition(store),
    }


def stage(store: Path, length: int, process: subprocess.Popen[str]) -> str:
    """Return how far a process has come."""
    if process.poll() is not None:
        return "at its end"
    if any(store.glob(f"sum-f32-n{length}-*")):
        return "once published"
    builds = list((store / ".staging").glob(f"*-{process.pid}-*"))
    if any(manifest for build in builds for manifest in build.glob("*/manifest.json")):
        return "while publishing"
    return "while building" if builds else "before building"


def condition(store: Path) -> dict[str, int]:
    """Return counts of the store: sound entries, unsound ones, and leftovers of killed processes."""
    from scanops.store.entry import verify_entry
    from scanops.store.layers import entries_of

    entries = list(entries_of(store))
    sound = sum(not isinstance(verify_entry(entry.directory, entry.identity), str) for entry in entries)
    staging = store / ".staging"
    left = len(list(staging.iterdir())) if staging.is_dir() else 0
    folders = sum(not path.name.startswith(".") and path.name != "index" for path in store.iterdir())
    return {"sound": sound, "unsound": folders - sound, "left": left}


def swept(store: Path) -> int:
    """Return the leftovers that remain after an hour and another build."""
    for path in (store / ".staging").iterdir():
        os.utime(path, (0, 0))
    answer(asking(store, FIRST_LENGTH - 1))
    return condition(store)["left"]


@contextlib.contextmanager
def empty_store() -> Iterator[Path]:
    """Yield a path for a store in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "store"


def measure(processes: int, times: int, seed: int) -> dict[str, dict[str, Any]]:
    """Run the parts, each in an empty store."""
    from scanops.builders import unavailable

    found = {}
    with empty_store() as store:
        found["same"] = together(store, [FIRST_LENGTH] * processes)
    with empty_store() as store:
        if not unavailable("nvrtc", "sm_90"):
            found["gpu"] = together(store, [FIRST_LENGTH] * processes, "sm_90")
    with empty_store() as store:
        found["keys"] = together(store, list(range(FIRST_LENGTH, FIRST_LENGTH + processes)))
    with empty_store() as store:
        found["kills"] = kills(store, times, seed)
        found["kills"]["left_after_an_hour"] = swept(store)
    return found


def is_as_promised(found: dict[str, dict[str, Any]]) -> bool:
    """Whether each kernel was built once, every result is right and no entry is damaged."""
    return (
        all(
            row["right"] == row["processes"] and row["builds"] == row["kernels"]
            for row in (found[name] for name in ("same", "gpu", "keys") if name in found)
        )
        and found["kills"]["right"] == found["kills"]["kills"]
        and found["kills"]["left_after_an_hour"] == 0
        and all(row.get("corrupt", 0) + row["unsound"] == 0 for row in found.values())
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts and return 1 where anything failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this file as JSON")
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ask", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.ask:
        length, start, target = given.ask
        print(json.dumps(ask(int(length), float(start), target)))
        return 0
    from benchmarks.common import write  # imports torch, which the processes above must not need

    found = measure(given.processes, given.kills, given.seed)
    for name, row in found.items():
        print(name, json.dumps(row))
    write(given.output, {"cores": len(os.sched_getaffinity(0)), **found})
    return int(not is_as_promised(found))
