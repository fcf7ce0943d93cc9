"""Kernels with the length as an argument, beside the one specialised for a cell: this is the only place they enter.

A reason, in words, stands where there is none.
"""

from __future__ import annotations

from collections.abc import Callable

from scanops.bench.tensors import Case
from scanops.codegen.lines import any_length
from scanops.codegen.spec import ScanSpec
from scanops.errors import BuildFailure, UnsupportedRequest
from scanops.runtime.kernels import compile as compile_kernel

__all__ = ["generic_run", "generic_spec"]


def generic_spec(spec: ScanSpec) -> ScanSpec | str:
    """The spec of the kernel that takes this length with others; else why there is none."""
    try:
        return any_length(spec)
    except UnsupportedRequest as problem:
        return _first_line(problem)


def generic_run(case: Case, spec: ScanSpec, target: str) -> Callable[[], object] | str:
    """What runs such a kernel on a case, once run already; else why there is none."""
    wanted = generic_spec(spec)
    if isinstance(wanted, str):
        return wanted
    try:
        kernel = compile_kernel(wanted, target)
        kernel(case.x, case.cell.dim, mask=case.mask, out=case.y)
    except (UnsupportedRequest, BuildFailure, TypeError) as problem:
        return _first_line(problem)
    return lambda: kernel(case.x, case.cell.dim, mask=case.mask, out=case.y)


def _first_line(problem: Exception) -> str:
    return f"{type(problem).__name__}: {str(problem).splitlines()[0]}"
