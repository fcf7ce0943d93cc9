"""CPU time of a call that is like one before it: python benchmarks/calls.py -o calls.json.

Of scanops natively, of scanops from Python and of torch.cumsum, forwards and with the gradient, in one process and by
turns. Calls are queued; the GPU is waited for between batches of them, outside of what is timed. Without a GPU a
function that does nothing stands for the kernels, and torch computes 8 items: what is left is the host's part.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

import scanops
from scanops import native, runtime
from scanops.bench.run import surroundings

BATCH = 200  # calls; a GPU's queue holds about a thousand launches
NOTHING = """
int scanops_launch(const void* arguments, void* stream) { return 0; }
void scanops_emulator_configure(unsigned long long seed, int multiprocessors) {}
"""


def microseconds(call: Callable[[], object], batches: int) -> list[float]:
    """The CPU time of a call, for each batch: of this thread and, backwards, of autograd's."""
    found = []
    for number in range(batches + 2):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(BATCH):
            call()
        if number >= 2:  # the first two warm up
            found.append((time.perf_counter() - began) / BATCH * 1e6)
    return found


@contextmanager
def from_python() -> Iterator[None]:
    """As on a machine without the native part: what Python remembers serves, emulated calls as well."""
    native.served = lambda *_: None
    try:
        yield
    finally:
        native.get(build=False)


@contextmanager
def kernels(device: str) -> Iterator[None]:
    """On a GPU its own; else emulated ones that do nothing."""
    if device == "cuda":
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "nothing.so"
        command = ["g++", "-x", "c", "-shared", "-fPIC", "-O2", "-", "-o", str(library)]
        subprocess.run(command, input=NOTHING, text=True, check=True)
        nothing = ctypes.CDLL(str(library))
        nothing.scanops_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        made = runtime.Launcher.__init__

        def hollow(launcher: runtime.Launcher, *given: object) -> None:
            made(launcher, *given)  # type: ignore[arg-type]
            launcher._launch = nothing.scanops_launch
            launcher._configure = nothing.scanops_emulator_configure

        runtime.Launcher.__init__ = hollow  # type: ignore[method-assign, assignment]
        with scanops.emulate():
            yield
        runtime.Launcher.__init__ = made  # type: ignore[method-assign]


def compared(device: str, batches: int, rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Route -> pass -> microseconds."""
    x = torch.randn(8, 1024, device=device)
    leaf, gradient = x.clone().requires_grad_(), torch.ones_like(x)
    few = x if device == "cuda" else x[:2, :4].clone()
    few_leaf, few_gradient = few.clone().requires_grad_(), torch.ones_like(few)
    calls: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "scanops": (
            lambda: scanops.cumsum(x, 1),
            lambda: torch.autograd.grad(scanops.cumsum(leaf, 1), leaf, gradient),
        ),
        "torch": (
            lambda: torch.cumsum(few, 1),
            lambda: torch.autograd.grad(torch.cumsum(few_leaf, 1), few_leaf, few_gradient),
        ),
    }
    ways = {"scanops native": "scanops", "torch.cumsum": "torch", "scanops Python": "scanops"}
    times: dict[str, dict[str, list[float]]] = {way: {"forward": [], "forward_backward": []} for way in ways}
    for _ in range(rounds):
        for way, name in ways.items():
            for direction, call in zip(times[way], calls[name], strict=True):
                if way == "scanops Python":
                    with from_python():
                        times[way][direction] += microseconds(call, batches // 4)
                else:
                    times[way][direction] += microseconds(call, batches)
    return {
        way: {
            direction: {"median_us": statistics.median(each), "least_us": min(each)}
            for direction, each in directions.items()
        }
        for way, directions in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="write the figures here as JSON")
    parser.add_argument("--batches", type=int, default=40, help=f"of {BATCH} calls, in each round")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    began = time.perf_counter()
    native.get(build=True)
    seconds = time.perf_counter() - began
    with kernels(device):
        for _ in range(4):  # build, remember, learn
            scanops.cumsum(torch.randn(8, 1024, device=device), 1)
            leaf = torch.randn(8, 1024, device=device, requires_grad=True)
            y = scanops.cumsum(leaf, 1)
            y.backward(torch.ones_like(y))
        found = compared(device, arguments.batches, arguments.rounds)
    ratios = {
        direction: found["scanops native"][direction]["median_us"] / found["torch.cumsum"][direction]["median_us"]
        for direction in ("forward", "forward_backward")
    }
    for way, directions in found.items():
        words = ", ".join(f"{name} {each['median_us']:.2f} us" for name, each in directions.items())
        print(f"{way:16} {words}")
    print("native / torch: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    if arguments.output:
        facts = {
            **asdict(surroundings()),
            "processor": platform.processor() or platform.machine(),
            "shape": [8, 1024],
            "batch": BATCH,
            "native_ready_s": seconds,  # found or built
            "routes": found,
            "native_over_torch": ratios,
        }
        arguments.output.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
