"""Time to look a kernel up and load it in a new process, and what a repeated call adds to a launch:
python benchmarks/store_speed.py.

Look-ups are timed from the moment torch, scanops and the device are up, one in each process: with the kernel in the
user's store, in a pack that is a folder below an empty store, and in a pack where no store exists or can be made.
Nothing is rendered: a process in which jinja2 turns up is an error. Whether scanops is a checkout or an installed wheel
matters, and is said: a wheel carries the digest of its sources; a checkout's are looked at and, without a store to keep
their digest, read.

A repeated call is compared with calling its launcher, which fills in pointers and launches: host time, the GPU
being waited for in between. Without a GPU kernels are emulated, whose launch
takes longer than all else: there the time to recognise a call is given alone, on CPU tensors.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

SPECS = ("sum-f32-n1000", "prod-bf16-n4096-reverse", "sum-f32-n32768-mask_b8", "sum-f32-any-le1024-by4")

LOOK_UP = """
import sys, time
import torch
began = time.perf_counter()
import scanops
from scanops import codegen
from scanops.runtime import kernels
from scanops.store import fingerprint
imported = time.perf_counter() - began
if torch.cuda.is_available():
    torch.zeros(1, device="cuda")
spec = scanops.ScanSpec.parse(sys.argv[1])
target = kernels.default_target()
started = time.perf_counter()
kernel = kernels.find(spec, target)
found = time.perf_counter()
assert kernel is not None, "no kernel"
kernel.library
loaded = time.perf_counter()
assert "jinja2" not in sys.modules, "rendered"
print(imported, found - started, loaded - found)
"""


def look_ups(specs: tuple[str, ...], processes: int, variables: dict[str, str]) -> dict[str, object]:
    """Times of so many new processes, specs in turn, in milliseconds."""
    rows = []
    for number in range(processes):
        done = subprocess.run(
            [sys.executable, "-c", LOOK_UP, specs[number % len(specs)]],
            cwd=variables["SCANOPS_PACKS"] or variables["SCANOPS_STORE"],  # not a checkout's root
            env={**os.environ, "SCANOPS_POLICY": "never", "SCANOPS_TUNING": os.devnull, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        rows.append([1e3 * float(word) for word in done.stdout.split()])
    imports, finds, loads = zip(*rows, strict=True)
    totals = [find + load for find, load in zip(finds, loads, strict=True)]
    return {
        "processes": processes,
        "find_ms": statistics.median(finds),
        "load_ms": statistics.median(loads),
        "total_ms": statistics.median(totals),
        "total_min_ms": min(totals),
        "total_max_ms": max(totals),
        "import_ms": statistics.median(imports),
    }


def build(folder: Path) -> None:
    """A store with the kernels, completed as a pack."""
    from scanops import ScanSpec
    from scanops.packs.manifest import finish
    from scanops.runtime import kernels
    from scanops.store.store import Store

    for slug in SPECS:
        kernels.built(ScanSpec.parse(slug), kernels.default_target(), Store(folder))
    finish(folder)


def repeated() -> dict[str, object]:
    """Microseconds of host time of a call that was made before, and of its parts."""
    import torch

    import scanops
    from scanops import emulation
    from scanops.requests.call import Call
    from scanops.requests.request import Inputs
    from scanops.runtime import calls

    gpu = torch.cuda.is_available()
    x = torch.randn(4, 1000, device="cuda" if gpu else "cpu")
    inputs = Inputs(x, None, None, None, None)
    call_of = Call("sum", -1)
    if not gpu:
        with emulation.emulate():
            scanops.cumsum(x, -1)
            assert calls.recalled(call_of, inputs)[1], "the call was not remembered"
            row = {"device": "cpu", "recognise_us": microseconds(lambda: calls.recalled(call_of, inputs), lambda: None)}
            return {**row, "environment_reads": environment_reads(lambda: scanops.cumsum(x, -1))}
    scanops.cumsum(x, -1)
    known = calls.recalled(call_of, inputs)[1]
    assert known is not None, "the call was not remembered"
    launcher = known.launcher
    y = torch.empty_like(x)
    wait = torch.cuda.synchronize
    call = microseconds(lambda: scanops.cumsum(x, -1), wait)
    launch = microseconds(lambda: launcher(inputs, (y,)), wait)
    with_result = microseconds(lambda: launcher(inputs, (torch.empty_like(x),)), wait)
    return {
        "device": torch.cuda.get_device_name(),
        "call_us": call,
        "launcher_us": launch,
        "launcher_and_result_us": with_result,
        "overhead_us": call - with_result,
        "recognise_us": microseconds(lambda: calls.recalled(call_of, inputs), wait),
        "torch_us": microseconds(lambda: torch.cumsum(x, -1), wait),
        "environment_reads": environment_reads(lambda: scanops.cumsum(x, -1)),
    }


def environment_reads(call: Callable[[], object]) -> int:
    """How often Python code reads a variable during a call."""
    reads = 0

    def traced(frame: object, event: str, _: object) -> None:
        nonlocal reads
        code = frame.f_code  # type: ignore[attr-defined]
        reads += event == "call" and code.co_filename == os.__file__ and code.co_name == "__getitem__"

    sys.setprofile(traced)
    try:
        call()
    finally:
        sys.setprofile(None)
    return reads


def microseconds(call: Callable[[], object], wait: Callable[[], object], rounds: int = 50, calls: int = 100) -> float:
    """Median over rounds of the host time of a call: few enough at a time that no queue fills."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - began) / calls)
        wait()
    return 1e6 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="write the figures here as JSON")
    parser.add_argument("--processes", type=int, default=20, help="new processes for each figure")
    arguments = parser.parse_args()
    from scanops.bench.run import surroundings
    from scanops.runtime import kernels
    from scanops.store import fingerprint

    install = "wheel" if fingerprint.DIGESTS else "checkout"
    print(f"scanops is a {install}; kernels for {kernels.default_target()}")
    figures: dict[str, object] = {"install": install, "target": kernels.default_target(), "specs": SPECS}
    with tempfile.TemporaryDirectory() as folder:
        place, empty, absent = (Path(folder, name) for name in ("kernels", "empty", "absent"))
        empty.mkdir(mode=0o700)
        build(place)
        time.sleep(2.1)  # a digest of files younger than that is not kept
        cases = {
            "store": {"SCANOPS_STORE": str(place), "SCANOPS_PACKS": ""},
            "pack": {"SCANOPS_STORE": str(empty), "SCANOPS_PACKS": str(place)},
            "pack, no store": {"SCANOPS_STORE": str(absent), "SCANOPS_PACKS": str(place)},
        }
        for name, variables in cases.items():
            look_ups(SPECS, 2, variables)  # the first of all finds cold files
            figures[name] = row = look_ups(SPECS, arguments.processes, variables)
            print(
                f"{name:14}: look-up {row['find_ms']:.2f} + load {row['load_ms']:.2f} = {row['total_ms']:.2f} ms "
                f"(median of {row['processes']} processes, {row['total_min_ms']:.2f} to {row['total_max_ms']:.2f}), "
                f"import {row['import_ms']:.0f} ms"
            )
        figures["repeated"] = again = repeated()
        print("repeated call: " + ", ".join(f"{key} {value}" for key, value in again.items()))
    if arguments.output:
        document = {**asdict(surroundings()), **figures}
        arguments.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
