"""``scanops precompile``: many kernels into a folder, as many at a time as the memory holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scanops.codegen.spec import ScanSpec
from scanops.errors import ScanopsError, UnsupportedRequest
from scanops.jobs import at_once
from scanops.packs.manifest import finish
from scanops.runtime.kernels import built, find
from scanops.store.root import check_root, create_root
from scanops.store.store import Store

__all__ = ["Built", "expected", "precompile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """One kernel of a precompilation."""

    spec: ScanSpec
    target: str
    found: bool  # it was in the folder already
    seconds: float
    bytes: int  # of the library; 0 when there is none
    error: ScanopsError | None


def precompile(
    wanted: Sequence[tuple[ScanSpec, str]],
    folder: Path,
    *,
    jobs: int,
    said: Callable[[Built], object],
    native: bool = False,
) -> list[Built]:
    """Have each (spec, target) in the store at ``folder``, and complete it as a pack. ``said`` hears of each
    as soon as it is there; they are returned in the order asked for.

    With ``native`` also what calls them without Python, for the torch and the Python at hand.

    What is there is left alone, so that a run that was stopped goes on where it was. A kernel that cannot be built
    stops no other. Raises BadStoreEntry for a folder that cannot be made or used.
    """
    create_root(folder)
    check_root(folder)
    if native:
        from scanops.runtime.native import building  # which needs torch

        building.built(Store(folder))
    outcomes = at_once(partial(_built, folder=folder), list(dict.fromkeys(wanted)), jobs, said)
    if any(outcome.error is None for outcome in outcomes):  # a pack holds at least one kernel
        finish(folder)
    return outcomes


def expected(
    wanted: Iterable[tuple[ScanSpec, str | None]], targets: Sequence[str], source: Path
) -> list[tuple[ScanSpec, str]]:
    """Each kernel once: for ``targets``, or else for those the file names. Raises UnsupportedRequest without either,
    and for a file that names no kernel."""
    found: dict[tuple[ScanSpec, str], None] = {}
    for spec, own in wanted:
        if not targets and own is None:
            raise UnsupportedRequest(
                f"to precompile {spec.slug} for no target",
                allowed="--targets, or targets in the spec file",
                value=f"neither names one ({source})",
                hint="add --targets sm_80,sm_90",
            )
        found.update(dict.fromkeys((spec, target) for target in (targets or [str(own)])))
    if not found:
        raise UnsupportedRequest(
            "to precompile no kernel",
            allowed="a spec file with specs = [...] or [[scan]] tables",
            value=f"{source} names none",
            hint="name kernels in it, or let `scanops record` do so",
        )
    return list(found)


def _built(wanted: tuple[ScanSpec, str], *, folder: Path) -> Built:
    started = time.perf_counter()
    (spec, target), store, found, size, error = wanted, Store(folder), False, 0, None
    try:
        kernel = find(spec, target, store)
        found = kernel is not None
        kernel = kernel or built(spec, target, store)
        size = kernel.path.stat().st_size
    except ScanopsError as problem:
        error = problem
    seconds = time.perf_counter() - started
    return Built(spec=spec, target=target, found=found, seconds=seconds, bytes=size, error=error)
