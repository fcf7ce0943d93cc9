"""What every measurement shares: its command line, its JSON document, and kernels built before anything is timed."""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import subprocess
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

import scanops
from scanops.builders.toolchain import find_cxx, find_nvcc
from scanops.codegen.spec import ScanSpec
from scanops.errors import BuildFailure, MissingRequirement
from scanops.precompile import record
from scanops.processes import at_once, jobs_that_fit
from scanops.runtime.kernels import Kernel, obtain
from scanops.runtime.policies import STRICT, policy

__all__ = [
    "ROOT",
    "Wanted",
    "build_kernels",
    "build_kernels_of",
    "kernel_of",
    "parser",
    "require_gpu",
    "surroundings",
    "write",
]

ROOT = Path(__file__).resolve().parent.parent


def parser(document: str | None, *, filtered: str = "") -> argparse.ArgumentParser:
    """Return a command line with ``-o`` and, where ``filtered`` names what is measured, ``--filter``."""
    made = argparse.ArgumentParser(description=(document or "").splitlines()[0])
    made.add_argument("-o", "--output", type=Path, help="write the figures to this file as JSON")
    if filtered:
        made.add_argument("--filter", default="", help=f"measure only {filtered} whose name contains this text")
    return made


def write(path: Path | None, figures: Mapping[str, object]) -> None:
    """Write the figures, headed by GPU, versions and date, as JSON to ``path``; do nothing without a path."""
    if path is not None:
        path.write_text(json.dumps({**surroundings(), **figures}, indent=1) + "\n", encoding="utf-8")


def surroundings() -> dict[str, Any]:
    """Return GPU, versions and date, on which figures depend."""
    versions = {
        "scanops": scanops.__version__,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "driver": _driver(),
        "triton": _version("triton"),
        "nvcc": _compiler(find_nvcc),
        "cxx": _compiler(find_cxx),
    }
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return {"device": device, "versions": versions, "date": date.today().isoformat()}


def require_gpu() -> None:
    """Raise MissingRequirement where torch sees no GPU."""
    if not torch.cuda.is_available():
        raise MissingRequirement(
            "to measure scans",
            allowed="an NVIDIA GPU that torch can use",
            value=f"torch {torch.__version__}, no GPU",
            hint="run it on a machine with a GPU; `scanops doctor` says what is missing here",
        )


Wanted = tuple[ScanSpec, bool]  # a spec, and whether lines are few


def build_kernels(
    kernels: Iterable[Wanted], target: str, said: Callable[[int, int], object] = lambda done, of: None
) -> dict[Wanted, str]:
    """Build the kernels that the store lacks, on all cores; return the error of each that could not be built.

    ``said(done, total)`` is called after each kernel.
    """
    wanted, done = list(dict.fromkeys(kernels)), itertools.count(1)
    problems = at_once(partial(_build, target=target), wanted, jobs_that_fit(), lambda _: said(next(done), len(wanted)))
    return {each: problem for each, problem in zip(wanted, problems, strict=True) if problem}


def build_kernels_of(runs: Iterable[Callable[[], object]], target: str) -> dict[Wanted, str]:
    """Build the kernels that these calls ask for. Each is called once, computed by PyTorch's own operators."""
    with policy("fallback"), record() as used, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # every call warns of a missing kernel
        for run in runs:
            run()
    return build_kernels([(spec, few) for spec, _, few in used.counts], target)


def kernel_of(wanted: Wanted, target: str) -> Kernel:
    """Return the kernel of a spec for few or for many lines, built if the store lacks it."""
    kernel = obtain(wanted[0], target, STRICT, few=wanted[1])
    assert kernel is not None
    return kernel


def _build(wanted: Wanted, target: str) -> str:
    try:
        kernel_of(wanted, target)
    except Exception as problem:  # one failed kernel is a result, not the end of the run
        return f"{type(problem).__name__}: {problem}"
    return ""


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


def _compiler(find: Callable[[], Any]) -> str:
    try:
        return str(find().version)
    except BuildFailure:
        return "none"
