"""One cell: run, checked, timed beside a copy of as many bytes and beside its peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

import scanops
from scanops.bench.cells import Cell
from scanops.bench.check import is_right, same_bits
from scanops.bench.generic import generic_run, generic_spec
from scanops.bench.peers import Candidate, Peer
from scanops.bench.spread import Sample
from scanops.bench.tensors import Case, allocate, poison, spec_of
from scanops.bench.timing import SLOW_MS, Stopwatch
from scanops.errors import ScanopsError
from scanops.runtime.kernels import compile as compile_kernel

__all__ = ["Copies", "Row", "measure"]

Row = dict[str, Any]  # a cell of the JSON
TRIALS = 2  # timed runs of each of a peer's candidates, before the best one is measured


class Copies:
    """Device-to-device copies of any number of bytes up to ``most``, read and written together."""

    def __init__(self, most: int) -> None:
        # Random bits: memory is slower with them than with zeros.
        self._source = torch.randn(most // 8 + 1, device="cuda").view(torch.uint8)
        self._target = torch.empty_like(self._source)

    def run(self, moved: int) -> Callable[[], object]:
        """A copy that reads half of ``moved`` bytes and writes half."""
        source, target = self._source[: moved // 2], self._target[: moved // 2]
        return lambda: target.copy_(source)


def measure(
    cell: Cell, watch: Stopwatch, copies: Copies, peers: Sequence[Peer], *, target: str, multiprocessors: int
) -> Row:
    """A cell as a JSON object. Raises ScanopsError where our own scan does, and torch's error when memory runs out."""
    case = allocate(cell)
    spec = spec_of(case, multiprocessors)
    plan = compile_kernel(spec, target).plan
    row: Row = {
        **_described(cell),
        "spec": spec.slug,
        "strategy": plan.strategy,
        "plan": plan.describe(),
        **_checked(case),
    }
    runs: dict[str, Callable[[], object]] = {"scanops": _ours(case, case.y), "copy": copies.run(cell.bytes)}
    generic = _checked_generic(case, spec, target, row)
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
    """Two runs on different poisons: what is left unwritten, or differs from run to run, differs in them."""
    _ours(case, poison(case.y))()
    again = poison(torch.empty_like(case.y), 1)
    _ours(case, again)()
    repeats = same_bits(case.y, again)
    return {"ok": is_right(case, case.y) and repeats, "repeats": repeats}


def _checked_generic(case: Case, spec: scanops.ScanSpec, target: str, row: Row) -> Callable[[], object] | None:
    poison(case.y)
    run = generic_run(case, spec, target)
    row |= {"generic_ms": None, "generic_fraction": None, "generic_of_specialised": None}
    if isinstance(run, str):
        row["generic_reason"] = run
        return None
    row["generic_spec"] = str(generic_spec(spec))
    row["generic_ok"] = is_right(case, case.y)
    row["ok"] = row["ok"] and row["generic_ok"]
    return run


def _measured_peer(peer: Peer, case: Case, watch: Stopwatch, copy_ms: float) -> Row | str:
    """A peer's figures, or why there are none."""
    if reason := peer.reason(case.cell):
        return reason
    moved = case.cell.bytes
    try:
        candidate, problems = _fastest(peer.candidates(case), watch, moved)
        if candidate is None:
            return f"no way of {peer.name} ran: {'; '.join(problems)[:500]}"
        poison(case.y)
        ok = is_right(case, candidate.run())
        sample: Sample = watch.samples({"peer": candidate.run}, moved)["peer"]
    except ScanopsError:
        raise
    except Exception as problem:  # a peer's compiler or launch: its words stand in its place
        return f"{type(problem).__name__}: {str(problem).strip()[:500]}"
    return {**asdict(sample), "fraction": copy_ms / sample.ms, "ok": ok, "how": candidate.label}


def _fastest(candidates: list[Candidate], watch: Stopwatch, moved: int) -> tuple[Candidate | None, list[str]]:
    """The candidate with the shortest of a few runs, and the words of those that failed."""
    best: tuple[float, Candidate] | None = None
    problems: list[str] = []
    for candidate in candidates:
        try:
            if len(candidates) == 1:
                return candidate, problems
            first = watch.once(candidate.run, moved)  # compiles it, where it compiles at its first run
            trials = TRIALS if first < SLOW_MS or best is None else 1
            ms = min(watch.once(candidate.run, moved) for _ in range(trials))
        except Exception as problem:
            problems.append(f"{candidate.label}: {type(problem).__name__}: {str(problem).strip()[:200]}")
            continue
        if best is None or ms < best[0]:
            best = ms, candidate
    return (best[1] if best else None), problems
