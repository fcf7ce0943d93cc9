"""Measure cells: run, check against float64 or int64, time beside a copy of as many bytes and beside the peers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial

import torch

from benchmarks.cells import Case, Cell, allocate
from benchmarks.common import Row, build_kernels, kernel_of
from benchmarks.peers import Candidate, Peer, all_peers
from benchmarks.scans import poison, same_bits
from benchmarks.timing import SLOW_MS, Timer
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.lines import any_length
from scanops.errors import BuildFailure, ScanopsError, UnsupportedRequest
from scanops.measure import require_gpu

__all__ = ["measure_all"]

TRIALS = 2  # timed runs of each candidate of a peer, before the best one is measured
FULL = 0.6  # of the GPU's memory; beyond it the allocator's cache is emptied


def measure_all(
    cells: Sequence[Cell], *, peers: bool, budget: float, said: Callable[[str, int, int], object]
) -> Iterator[Row]:
    """Yield the row of each cell, in order; ``said`` is called with what is under way, how many are done, of how many.

    A cell whose scan cannot be built or does not fit in memory gives a row with an ``error``. An error of the GPU
    ends the run after such a row, since the CUDA context is lost.
    """
    target, _, multiprocessors = require_gpu()
    others = all_peers() if peers else []
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        preparing = [
            pool.submit(peer.prepare, [cell for cell in cells if not peer.reason(cell)], target) for peer in others
        ]
        build_kernels(_keys_of(cells, target, multiprocessors), partial(said, "building kernels"))
        for waiting in preparing:
            waiting.result()
    timer = Timer(budget)
    timer.copy(max(cell.bytes for cell in cells))  # of whose memory the first cells leave enough
    for done, cell in enumerate(cells):
        said(cell.name, done, len(cells))
        try:
            yield measure(cell, timer, others, target, multiprocessors)
        except (ScanopsError, torch.OutOfMemoryError) as problem:
            yield _failed(cell, problem)
        except RuntimeError as problem:  # the CUDA context is lost
            yield _failed(cell, problem)
            return
        if torch.cuda.memory_reserved() > FULL * torch.cuda.get_device_properties().total_memory:
            torch.cuda.empty_cache()


def _keys_of(cells: Iterable[Cell], target: str, multiprocessors: int) -> Iterator[KernelKey]:
    """Yield the kernels of the cells: specialised, and with the length as an argument where that kernel exists."""
    for cell in cells:
        try:
            key = allocate(cell, filled=False).key(target, multiprocessors)
            yield key
            yield any_length(key)
        except (ScanopsError, torch.OutOfMemoryError):
            continue  # the row of the cell reports it


def _failed(cell: Cell, problem: Exception) -> Row:
    words = f"{type(problem).__name__}: {str(problem).strip()[:2000]}"
    shape = list(cell.shape)
    return {"cell": cell.name, "group": cell.group, "family": cell.family, "shape": shape, "ok": False, "error": words}


def measure(cell: Cell, timer: Timer, peers: Sequence[Peer], target: str, multiprocessors: int) -> Row:
    """Return a cell as a JSON object. Raises the ScanopsError of its scan, and torch's error when memory runs out."""
    case = allocate(cell)
    key = case.key(target, multiprocessors)
    plan = kernel_of(key).plan
    row: Row = {
        **{name: getattr(cell, name) for name in ("group", "family", "variant", "dim", "offset", "view", "bytes")},
        **{"cell": cell.name, "shape": list(cell.shape)},
        **{"spec": key.spec.slug, "strategy": plan.strategy, "plan": plan.describe()},
        **_checked(case),
        **dict.fromkeys(("generic_ms", "generic_fraction", "generic_of_specialised")),
    }
    runs: dict[str, Callable[[], object]] = {"scanops": case.run, "copy": timer.copy(cell.bytes)}
    try:
        generic = any_length(key)
        run = partial(kernel_of(generic), case.x, cell.dim, mask=case.mask, out=poison(case.y))
        run()
        runs["generic"] = run
        row |= {"generic_spec": str(generic.spec), "generic_ok": case.is_right((case.y,))}
        row["ok"] = row["ok"] and row["generic_ok"]
    except (UnsupportedRequest, BuildFailure, TypeError) as problem:
        row["generic_reason"] = f"{type(problem).__name__}: {str(problem).splitlines()[0]}"
    samples = timer.samples(runs, cell.bytes)
    copy_ms = samples["copy"].ms
    row |= asdict(samples["scanops"]) | {"copy_ms": copy_ms, "fraction": copy_ms / samples["scanops"].ms}
    row["floor"], row["goal"] = cell.bars(copy_ms)
    if "generic" in samples:
        ms = samples["generic"].ms
        row |= {"generic_ms": ms, "generic_fraction": copy_ms / ms}
        row["generic_of_specialised"] = samples["scanops"].ms / ms
    found = {peer.name: _measured_peer(peer, case, timer, copy_ms) for peer in peers}
    row["peers"] = {name: None if isinstance(each, str) else each for name, each in found.items()}
    row["reasons"] = {name: each for name, each in found.items() if isinstance(each, str)}
    return row


def _checked(case: Case) -> Row:
    """Run twice on different poisons, so that unwritten or irreproducible items show as differing bits."""
    (first,) = case.run(poison(case.y))
    (again,) = case.run(poison(torch.empty_like(case.y), 1))
    repeats = same_bits(first, again)
    return {"ok": case.is_right((first,)) and repeats, "repeats": repeats}


def _measured_peer(peer: Peer, case: Case, timer: Timer, copy_ms: float) -> Row | str:
    """Return the figures of a peer, or the reason why there are none."""
    if reason := peer.reason(case.cell):
        return reason
    moved = case.cell.bytes
    try:
        candidate, problems = _fastest(peer.candidates(case), timer, moved)
        if candidate is None:
            return f"no candidate of {peer.name} ran: {'; '.join(problems)[:500]}"
        poison(case.y)
        ok = case.is_right((candidate.run(),))
        sample = timer.samples({"peer": candidate.run}, moved)["peer"]
    except ScanopsError:
        raise
    except Exception as problem:  # of the compiler or launch of a peer: the message is its result
        return f"{type(problem).__name__}: {str(problem).strip()[:500]}"
    return {**asdict(sample), "fraction": copy_ms / sample.ms, "ok": ok, "how": candidate.label}


def _fastest(candidates: list[Candidate], timer: Timer, moved: int) -> tuple[Candidate | None, list[str]]:
    """Return the fastest candidate of a few runs, and the messages of those that failed."""
    best: tuple[float, Candidate] | None = None
    problems: list[str] = []
    for candidate in candidates:
        try:
            if len(candidates) == 1:
                return candidate, problems
            first = timer.once(candidate.run, moved)  # includes compilation where the first run compiles
            trials = TRIALS if first < SLOW_MS or best is None else 1
            ms = min(timer.once(candidate.run, moved) for _ in range(trials))
        except Exception as problem:
            problems.append(f"{candidate.label}: {type(problem).__name__}: {str(problem).strip()[:200]}")
            continue
        if best is None or ms < best[0]:
            best = ms, candidate
    return (best[1] if best else None), problems
