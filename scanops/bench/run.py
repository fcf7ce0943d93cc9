"""A whole run: build everything, measure every cell, sum it up."""

from __future__ import annotations

import importlib.metadata
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date

import torch

import scanops
from scanops.bench.builds import build_kernels
from scanops.bench.cells import Cell
from scanops.bench.generic import generic_spec
from scanops.bench.measure import Copies, Row, measure
from scanops.bench.peers import Peer, all_peers
from scanops.bench.tensors import allocate, spec_of
from scanops.bench.timing import Stopwatch
from scanops.builders.toolchain import find_nvcc
from scanops.codegen.spec import ScanSpec
from scanops.errors import BuildFailure, MissingRequirement, ScanopsError
from scanops.runtime.kernels import default_target

__all__ = ["Surroundings", "host_microseconds", "measure_all", "require_gpu", "surroundings"]

FULL = 0.6  # of the GPU's memory; beyond it what the allocator keeps for later is given back
Said = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where and with what a run was made."""

    device: str
    versions: dict[str, str]
    date: str


def require_gpu() -> None:
    """Raise MissingRequirement where there is no GPU to measure on."""
    if not torch.cuda.is_available():
        raise MissingRequirement(
            "to measure scans",
            allowed="an NVIDIA GPU that torch can use",
            value=f"torch {torch.__version__}, no GPU",
            hint="run it on a machine with a GPU; `scanops doctor` says what is missing here",
        )


def surroundings() -> Surroundings:
    """The GPU, if there is one, and the versions that figures depend on."""
    versions = {
        "scanops": scanops.__version__,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "driver": _driver(),
        "triton": _version("triton"),
        "nvcc": _nvcc(),
    }
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return Surroundings(device=device, versions=versions, date=date.today().isoformat())


def measure_all(cells: Sequence[Cell], *, peers: bool, budget: float, said: Said = lambda words: None) -> Iterator[Row]:
    """Each cell's row, in order. ``said`` hears what is under way.

    A cell whose scan cannot be built or does not fit in memory gives a row with an ``error``. An error of the GPU
    itself ends the run after such a row: nothing can be measured behind it.
    """
    require_gpu()
    target = default_target()
    multiprocessors = torch.cuda.get_device_properties().multi_processor_count
    others = all_peers() if peers else []
    specs = list(_specs(cells, multiprocessors))
    said(f"building {len(set(specs))} kernels")
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        preparing = [pool.submit(_prepare, peer, cells, target) for peer in others]
        build_kernels(specs, target, lambda done, of: said(f"building kernels: {done} of {of}"))
        said("building peers")
        for waiting in preparing:
            waiting.result()
    watch, copies = Stopwatch(budget), Copies(max(cell.bytes for cell in cells))
    for cell in cells:
        said(cell.name)
        try:
            yield measure(cell, watch, copies, others, target=target, multiprocessors=multiprocessors)
        except (ScanopsError, torch.OutOfMemoryError) as problem:
            yield _failed(cell, problem)
        except RuntimeError as problem:  # the GPU's state is lost
            yield _failed(cell, problem)
            return
        if torch.cuda.memory_reserved() > FULL * torch.cuda.get_device_properties().total_memory:
            torch.cuda.empty_cache()


def _specs(cells: Iterable[Cell], multiprocessors: int) -> Iterator[ScanSpec]:
    """The kernels of the cells: specialised, and with the length as an argument where there are such."""
    for cell in cells:
        try:
            spec = spec_of(allocate(cell, filled=False), multiprocessors)
        except (ScanopsError, torch.OutOfMemoryError):
            continue  # said again, for good, where the cell is measured
        yield spec
        generic = generic_spec(spec)
        if not isinstance(generic, str):
            yield generic


def _prepare(peer: Peer, cells: Sequence[Cell], target: str) -> None:
    peer.prepare([cell for cell in cells if not peer.reason(cell)], target)


def _failed(cell: Cell, problem: Exception) -> Row:
    words = f"{type(problem).__name__}: {str(problem).strip()[:2000]}"
    shape = list(cell.shape)
    return {"cell": cell.name, "group": cell.group, "family": cell.family, "shape": shape, "ok": False, "error": words}


def host_microseconds() -> dict[str, float]:
    """Host time of a call on a small tensor; medians of batches."""
    x = torch.randn(8, 1024, device="cuda")
    calls: dict[str, Callable[[], object]] = {
        "scanops.cumsum": lambda: scanops.cumsum(x, 1),
        "torch.cumsum": lambda: torch.cumsum(x, 1),
    }
    return {name: _host_microseconds(call) for name, call in calls.items()}


def _host_microseconds(call: Callable[[], object], calls: int = 50, batches: int = 7) -> float:
    times = []
    for _ in range(batches + 1):  # the first one to warm up
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - began) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(times[1:])


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(query, check=False, capture_output=True, text=True).stdout.strip()
    except OSError:
        return "unknown"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _nvcc() -> str:
    try:
        return find_nvcc().version
    except BuildFailure:
        return "none"
