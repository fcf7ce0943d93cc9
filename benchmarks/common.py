"""What measurements share: a command line, a JSON document, tables, and kernels built before anything is timed."""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import torch

import scanops
from scanops.builders.toolchain import find_cxx, find_nvcc
from scanops.codegen.kernel_key import KernelKey
from scanops.errors import BuildFailure, MissingRequirement
from scanops.precompile import record
from scanops.processes import at_once, jobs_that_fit
from scanops.runtime.kernels import Kernel, obtain
from scanops.runtime.policies import STRICT, policy

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
Row = dict[str, Any]  # a part of a JSON document


def parser(document: str | None, *, filtered: str = "") -> argparse.ArgumentParser:
    """Return a command line with ``-o`` and, where ``filtered`` names what is measured, ``--filter``."""
    made = argparse.ArgumentParser(description=(document or "").splitlines()[0])
    made.add_argument("-o", "--output", type=result_file, help="write the figures to this file as JSON")
    if filtered:
        made.add_argument("--filter", default="", help=f"measure only {filtered} whose name contains this text")
    return made


def result_file(word: str) -> Path:
    """Return the path of a file to write, refused before an hour of measurements if its folder does not exist."""
    path = Path(word)
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"no folder {path.absolute().parent}")
    return path


def write(path: Path | None, figures: Mapping[str, object]) -> None:
    """Write the figures, headed by GPU, versions and date, as JSON to ``path``; do nothing without a path."""
    if path is not None:
        path.write_text(format_document({**surroundings(), **figures}), encoding="utf-8")


def format_document(document: Mapping[str, object]) -> str:
    """Return JSON text with a line for each field, and for each cell of a field that holds several."""

    def field(name: str, value: object) -> str:
        if isinstance(value, list) and any(isinstance(each, (list, dict)) for each in value):
            text = "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
        elif isinstance(value, Mapping) and any(isinstance(each, (list, Mapping)) for each in value.values()):
            text = "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(each)}" for key, each in value.items()) + "\n}"
        else:
            text = json.dumps(value)
        return f"{json.dumps(name)}: {text}"

    return "{\n" + ",\n".join(field(name, value) for name, value in document.items()) + "\n}\n"


def append_line(path: Path | None, figures: Mapping[str, object]) -> None:
    """Append a line of JSON, the figures of a cell with GPU, versions and date, to ``path``; do nothing without one."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**surroundings(), **figures}) + "\n")


@cache
def surroundings() -> Row:
    """Return GPU, versions and date, on which figures depend."""
    versions = {"scanops": scanops.__version__, "torch": torch.__version__, "cuda": str(torch.version.cuda)}
    versions |= {"driver": "unknown", "triton": "none", "nvcc": "none", "cxx": "none"}
    with suppress(OSError):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        versions["driver"] = subprocess.run(query, check=False, capture_output=True, text=True).stdout.strip()
    with suppress(importlib.metadata.PackageNotFoundError):
        versions["triton"] = importlib.metadata.version("triton")
    with suppress(BuildFailure):
        versions["nvcc"] = str(find_nvcc().version)
    with suppress(BuildFailure):
        versions["cxx"] = str(find_cxx().version)
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


def child(
    *words: object,
    variables: Mapping[str, object] | None = None,
    folder: str | Path | None = None,
    before: Sequence[str] = (),
) -> str:
    """Run Python with these words in a new process and return what it prints; end this one if that fails.

    ``variables`` are added to the environment. ``folder`` is where it runs: not the root of a checkout by default, from
    which ``codegen`` would be importable. ``before`` is a command that runs Python in turn.
    """
    own = {"SCANOPS_TUNING": os.devnull, **{name: str(value) for name, value in (variables or {}).items()}}
    done = subprocess.run(
        [*before, sys.executable, *map(str, words)],
        cwd=folder or tempfile.gettempdir(),
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))[:200]} failed: {done.returncode}\n{done.stderr}{done.stdout}")
    return done.stdout


def markdown(headings: Sequence[str], rows: Iterable[Sequence[object]], *, texts: int | None = None) -> list[str]:
    """Return the lines of a Markdown table; columns behind the first ``texts`` are aligned to the right."""
    rules = ["---:" if texts is not None and at >= texts else "---" for at in range(len(headings))]
    body = [f"| {' | '.join(map(str, row))} |" for row in rows]
    head = "|".join(f" {each} " if each else " " for each in headings)
    return [f"|{head}|", f"|{'|'.join(rules)}|", *body]


def aligned(rows: Sequence[Sequence[object]]) -> str:
    """Return a table as text: columns as wide as their widest cell, the first to the left and the others to the right.

    Rows may have fewer cells than others; a cell behind the last column of the first row is a note.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    columns = range(max(map(len, cells), default=0))
    widths = [max((len(row[at]) for row in cells if at < len(row) > 1), default=0) for at in columns]
    lines = [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=False))
        )
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in lines)


def build_kernels(
    kernels: Iterable[KernelKey], said: Callable[[int, int], object] = lambda done, of: None
) -> dict[KernelKey, str]:
    """Build the kernels that the store lacks, on all cores; return the error of each that could not be built.

    ``said(done, total)`` is called after each kernel.
    """
    wanted, done = list(dict.fromkeys(kernels)), itertools.count(1)
    problems = at_once(_try_to_build, wanted, jobs_that_fit(), lambda _: said(next(done), len(wanted)))
    return {each: problem for each, problem in zip(wanted, problems, strict=True) if problem}


def build_kernels_of(runs: Iterable[Callable[[], object]], target: str) -> dict[KernelKey, str]:
    """Build for a target what these calls ask for. Each is called once, computed by PyTorch's own operators."""
    with policy("fallback"), record() as used, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # every call warns of a missing kernel
        for run in runs:
            run()
    return build_kernels(key._replace(target=target) for key in used.counts)


def kernel_of(key: KernelKey) -> Kernel:
    """Return a kernel, built if the store lacks it."""
    kernel = obtain(key, STRICT)
    assert kernel is not None
    return kernel


def _try_to_build(key: KernelKey) -> str:
    try:
        kernel_of(key)
    except Exception as problem:  # one failed kernel is a result, not the end of the run
        return f"{type(problem).__name__}: {problem}"
    return ""
