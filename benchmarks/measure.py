"""Measure cells: run, check against float64 or int64, time beside a copy of as many bytes and beside the peers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import torch

import scanops
from benchmarks.cells import Case, Cell, allocate, poison, spec_of
from benchmarks.common import Wanted, build_kernels, kernel_of, require_gpu
from benchmarks.peers import Candidate, Peer, all_peers
from benchmarks.timing import SLOW_MS, Sample, Timer
from scanops.codegen.lines import any_length
from scanops.codegen.spec import ScanSpec
from scanops.errors import BuildFailure, ScanopsError, UnsupportedRequest
from scanops.fallback import scans
from scanops.fallback.scans import limit, max_error
from scanops.runtime.kernels import default_target

__all__ = ["generic_spec", "is_right", "measure_all", "same_bits"]

Row = dict[str, Any]  # a cell of the JSON document
CHECKED_ITEMS = 2**22  # of each checked slice: one at either end, one in the middle
TRIALS = 2  # timed runs of each candidate of a peer, before the best one is measured
FULL = 0.6  # of the GPU's memory; beyond it the allocator's cache is emptied
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def measure_all(
    cells: Sequence[Cell], *, peers: bool, budget: float, said: Callable[[str], object] = lambda words: None
) -> Iterator[Row]:
    """Yield the row of each cell, in order; ``said`` is called with what is under way.

    A cell whose scan cannot be built or does not fit in memory gives a row with an ``error``. An error of the GPU
    ends the run after such a row, since the CUDA context is lost.
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
    watch, copies = Timer(budget), Copies(max(cell.bytes for cell in cells))
    for cell in cells:
        said(cell.name)
        try:
            yield measure(cell, watch, copies, others, target=target, multiprocessors=multiprocessors)
        except (ScanopsError, torch.OutOfMemoryError) as problem:
            yield _failed(cell, problem)
        except RuntimeError as problem:  # the CUDA context is lost
            yield _failed(cell, problem)
            return
        if torch.cuda.memory_reserved() > FULL * torch.cuda.get_device_properties().total_memory:
            torch.cuda.empty_cache()


def _specs(cells: Iterable[Cell], multiprocessors: int) -> Iterator[Wanted]:
    """Yield the specs of the cells: specialised, and with the length as an argument where that kernel exists."""
    for cell in cells:
        try:
            spec, few = spec_of(allocate(cell, filled=False), multiprocessors)
        except (ScanopsError, torch.OutOfMemoryError):
            continue  # the row of the cell reports it
        yield spec, few
        generic = generic_spec(spec, few)
        if not isinstance(generic, str):
            yield generic, few


def _prepare(peer: Peer, cells: Sequence[Cell], target: str) -> None:
    peer.prepare([cell for cell in cells if not peer.reason(cell)], target)


def _failed(cell: Cell, problem: Exception) -> Row:
    words = f"{type(problem).__name__}: {str(problem).strip()[:2000]}"
    shape = list(cell.shape)
    return {"cell": cell.name, "group": cell.group, "family": cell.family, "shape": shape, "ok": False, "error": words}


class Copies:
    """Device-to-device copies of up to ``most`` bytes, counting bytes read and bytes written."""

    def __init__(self, most: int) -> None:
        # Random bits: copies of zeros are faster.
        self._source = torch.randn(most // 8 + 1, device="cuda").view(torch.uint8)
        self._target = torch.empty_like(self._source)

    def run(self, moved: int) -> Callable[[], object]:
        """Return a copy that reads half of ``moved`` bytes and writes half."""
        source, target = self._source[: moved // 2], self._target[: moved // 2]
        return lambda: target.copy_(source)


def measure(
    cell: Cell, watch: Timer, copies: Copies, peers: Sequence[Peer], *, target: str, multiprocessors: int
) -> Row:
    """Return a cell as a JSON object. Raises the ScanopsError of its scan, and torch's error when memory runs out."""
    case = allocate(cell)
    spec, few = spec_of(case, multiprocessors)
    plan = kernel_of((spec, few), target).plan
    row: Row = {
        **_described(cell),
        "spec": spec.slug,
        "strategy": plan.strategy,
        "plan": plan.describe(),
        **_checked(case),
    }
    runs: dict[str, Callable[[], object]] = {"scanops": _ours(case, case.y), "copy": copies.run(cell.bytes)}
    generic = _checked_generic(case, spec, few, target, row)
    if generic is not None:
        runs["generic"] = generic
    samples = watch.samples(runs, cell.bytes)
    copy_ms = samples["copy"].ms
    row |= asdict(samples["scanops"]) | {"copy_ms": copy_ms, "fraction": copy_ms / samples["scanops"].ms}
    row["floor"], row["goal"] = cell.bars(copy_ms)
    if "generic" in samples:
        row["generic_ms"] = samples["generic"].ms
        row["generic_fraction"] = copy_ms / samples["generic"].ms
        row["generic_of_specialised"] = samples["scanops"].ms / samples["generic"].ms
    row["peers"], row["reasons"] = {}, {}
    for peer in peers:
        found = _measured_peer(peer, case, watch, copy_ms)
        row["peers"][peer.name] = None if isinstance(found, str) else found
        if isinstance(found, str):
            row["reasons"][peer.name] = found
    return row


def _described(cell: Cell) -> Row:
    names = ("group", "family", "variant", "dim", "offset", "view", "bytes")
    return {"cell": cell.name, **{name: getattr(cell, name) for name in names}, "shape": list(cell.shape)}


def _ours(case: Case, out: torch.Tensor) -> Callable[[], object]:
    what, dim = case.cell.what, case.cell.dim
    options: dict[str, Any] = {"mask": case.mask, "reverse": what.reverse, "exclusive": what.exclusive, "out": out}
    return lambda: scanops.scan(case.x, what.op, dim, **options)


def _checked(case: Case) -> Row:
    """Run twice on different poisons, so that unwritten or irreproducible items show as differing bits."""
    _ours(case, poison(case.y))()
    again = poison(torch.empty_like(case.y), 1)
    _ours(case, again)()
    repeats = same_bits(case.y, again)
    return {"ok": is_right(case, case.y) and repeats, "repeats": repeats}


def _checked_generic(
    case: Case, spec: scanops.ScanSpec, few: bool, target: str, row: Row
) -> Callable[[], object] | None:
    poison(case.y)
    run = _generic_run(case, spec, few, target)
    row |= {"generic_ms": None, "generic_fraction": None, "generic_of_specialised": None}
    if isinstance(run, str):
        row["generic_reason"] = run
        return None
    row["generic_spec"] = str(generic_spec(spec, few))
    row["generic_ok"] = is_right(case, case.y)
    row["ok"] = row["ok"] and row["generic_ok"]
    return run


def _measured_peer(peer: Peer, case: Case, watch: Timer, copy_ms: float) -> Row | str:
    """Return the figures of a peer, or the reason why there are none."""
    if reason := peer.reason(case.cell):
        return reason
    moved = case.cell.bytes
    try:
        candidate, problems = _fastest(peer.candidates(case), watch, moved)
        if candidate is None:
            return f"no candidate of {peer.name} ran: {'; '.join(problems)[:500]}"
        poison(case.y)
        ok = is_right(case, candidate.run())
        sample: Sample = watch.samples({"peer": candidate.run}, moved)["peer"]
    except ScanopsError:
        raise
    except Exception as problem:  # of the compiler or launch of a peer: the message is its result
        return f"{type(problem).__name__}: {str(problem).strip()[:500]}"
    return {**asdict(sample), "fraction": copy_ms / sample.ms, "ok": ok, "how": candidate.label}


def _fastest(candidates: list[Candidate], watch: Timer, moved: int) -> tuple[Candidate | None, list[str]]:
    """Return the fastest candidate of a few runs, and the messages of those that failed."""
    best: tuple[float, Candidate] | None = None
    problems: list[str] = []
    for candidate in candidates:
        try:
            if len(candidates) == 1:
                return candidate, problems
            first = watch.once(candidate.run, moved)  # includes compilation where the first run compiles
            trials = TRIALS if first < SLOW_MS or best is None else 1
            ms = min(watch.once(candidate.run, moved) for _ in range(trials))
        except Exception as problem:
            problems.append(f"{candidate.label}: {type(problem).__name__}: {str(problem).strip()[:200]}")
            continue
        if best is None or ms < best[0]:
            best = ms, candidate
    return (best[1] if best else None), problems


def generic_spec(spec: ScanSpec, few: bool) -> ScanSpec | str:
    """Return the spec of the kernel that takes this length as an argument, or the reason why there is none."""
    try:
        return any_length(spec, few)
    except UnsupportedRequest as problem:
        return _first_line(problem)


def _generic_run(case: Case, spec: ScanSpec, few: bool, target: str) -> Callable[[], object] | str:
    """Return a run of the kernel with the length as an argument, or the reason why there is none."""
    wanted = generic_spec(spec, few)
    if isinstance(wanted, str):
        return wanted
    try:
        kernel = kernel_of((wanted, few), target)
        kernel(case.x, case.cell.dim, mask=case.mask, out=case.y)
    except (UnsupportedRequest, BuildFailure, TypeError) as problem:
        return _first_line(problem)
    return lambda: kernel(case.x, case.cell.dim, mask=case.mask, out=case.y)


def _first_line(problem: Exception) -> str:
    return f"{type(problem).__name__}: {str(problem).splitlines()[0]}"


def is_right(case: Case, y: torch.Tensor) -> bool:
    """Whether slices of ``y`` equal the scan of the case to within rounding: against float64, integers exactly."""
    what, dim = case.cell.what, case.cell.dim
    flags: dict[str, Any] = {"reverse": what.reverse, "exclusive": what.exclusive}
    for other, start, width in _slices(case.cell.shape, dim):
        x, got = case.x.narrow(other, start, width), y.narrow(other, start, width)
        mask = None if case.mask is None else case.mask.narrow(other, start, width)
        if not x.is_floating_point():
            if not torch.equal(got, scans.scan(x, what.op, dim, mask=mask, dtype=got.dtype, **flags)):
                return False
            continue
        length = case.cell.length
        bound = max(limit(what.op, length), 2 * math.sqrt(length / 64) * 2.0**-24) + torch.finfo(got.dtype).eps
        if not max_error(got, x, what.op, dim, mask=mask, **flags) <= bound:
            return False
    return True


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two results have the same bits, NaN payloads included."""
    bits = _BITS[first.element_size()]
    return torch.equal(first.view(bits), second.view(bits))


def _slices(shape: tuple[int, ...], dim: int) -> Iterator[tuple[int, int, int]]:
    """Yield (other dimension, start, width) of slices of whole lines; the whole tensor where there is one line."""
    others = [d for d in range(len(shape)) if d != dim]
    other = max(others, key=lambda d: shape[d], default=dim)
    if other == dim:
        yield dim, 0, shape[dim]
        return
    size = shape[other]
    width = max(1, min(size, CHECKED_ITEMS * size // math.prod(shape)))
    for start in sorted({0, (size - width) // 2, size - width}):
        yield other, start, width
