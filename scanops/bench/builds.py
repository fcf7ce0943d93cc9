"""Everything a run needs, built before anything is timed, on all cores."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable
from functools import partial

from scanops.codegen.spec import ScanSpec
from scanops.jobs import at_once, jobs_that_fit
from scanops.precompile import record
from scanops.runtime.kernels import compile as compile_kernel
from scanops.runtime.policies import policy

__all__ = ["build_kernels", "build_kernels_of"]


def build_kernels(
    specs: Iterable[ScanSpec], target: str, said: Callable[[int, int], object] = lambda done, of: None
) -> dict[ScanSpec, str]:
    """Have all of these in the store; for each that could not be built, why. ``said`` hears of progress."""
    wanted, done = list(dict.fromkeys(specs)), itertools.count(1)
    problems = at_once(partial(_build, target=target), wanted, jobs_that_fit(), lambda _: said(next(done), len(wanted)))
    return {spec: problem for spec, problem in zip(wanted, problems, strict=True) if problem}


def build_kernels_of(runs: Iterable[Callable[[], object]], target: str) -> dict[ScanSpec, str]:
    """The same for the kernels of these calls, each of which is called once: torch's operations compute it."""
    with policy("fallback"), record() as used, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that there is no kernel yet
        for run in runs:
            run()
    return build_kernels(used.specs, target)


def _build(spec: ScanSpec, target: str) -> str:
    try:
        compile_kernel(spec, target)
    except Exception as problem:  # whatever it is, it is this cell's result and not the end of the run
        return f"{type(problem).__name__}: {problem}"
    return ""
