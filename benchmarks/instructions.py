"""Count the instructions per item of compiled kernels, by pipe: ``instructions SLUG ... [--target sm_90] [--loop]``.

Needs no GPU: nvcc compiles the kernel and nvdisasm lists it. A kernel without a loop runs its listing once from the top
to the last exit; with --loop the largest loop is counted, which runs once per tile.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.builds import by_nvcc
from scanops import make_plan
from scanops.builders.programs import parse_ptxas
from scanops.codegen.headers import inline_headers
from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import DEFAULT_TARGET, occupancy, target_named

PIPES = (  # an instruction belongs to the first pipe that lists its prefix
    ("mufu", ("MUFU", "F2I", "I2F", "F2F", "FRND", "F2FP.E", "POPC", "FLO")),
    ("shfl", ("SHFL", "REDUX", "VOTE", "MATCH")),
    ("lsu", ("LDG", "STG", "LDS", "STS", "LDC", "ULDC", "LDL", "STL", "LDGSTS", "ATOM", "RED", "LD.", "ST.", "S2R")),
    ("branch", ("BRA", "BSSY", "BSYNC", "EXIT", "CALL", "RET", "BAR", "WARPSYNC", "YIELD", "NOP", "BREAK", "BMOV")),
    ("fp64", ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX")),
    ("fma", ("FFMA", "FMUL", "FADD", "IMAD", "HFMA2", "HADD2", "HMUL2")),
    ("alu", ("",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction of the listing."""

    address: int  # bytes from the function's first
    name: str  # "FFMA", "LDG.E.128"
    target: int | None  # where a branch goes


def listing(cubin: Path) -> list[Instruction]:
    """Return the instructions of a kernel, without the branches to themselves that pad its end."""
    nvdisasm = os.environ.get("NVDISASM") or shutil.which("nvdisasm")
    if nvdisasm is None:
        sys.exit("no nvdisasm: install a CUDA toolkit with it on PATH, or set NVDISASM to it")
    text = subprocess.run([nvdisasm, "-hex", "-c", str(cubin)], check=True, capture_output=True, text=True).stdout
    section = text.split(".section\t.text.")[1] if ".section\t.text." in text else text
    labels: dict[str, int] = {}
    rows: list[tuple[int, str, str]] = []
    waiting: list[str] = []
    for line in section.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+|\$[\w$]+):", line):
            waiting.append(label[1])
        elif found := re.search(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)(.*?);", line):
            address = int(found[1], 16)
            labels.update(dict.fromkeys(waiting, address))
            waiting = []
            rows.append((address, found[2], found[3]))
    found_all = []
    for address, name, rest in rows:
        label = re.search(r"\((\.L_x_\d+)\)", rest)
        target = labels.get(label[1]) if label and name.startswith("BRA") else None
        if target != address:
            found_all.append(Instruction(address=address, name=name, target=target))
    return found_all


def select_instructions(rows: list[Instruction], loop: bool) -> list[Instruction]:
    """Return the instructions that run once per tile."""
    if loop:
        spans = [(row.target, row.address) for row in rows if row.target is not None and row.target < row.address]
        first, last = max(spans, key=lambda span: span[1] - span[0])
        return [row for row in rows if first <= row.address <= last]
    ends = [row.address for row in rows if row.name == "EXIT"]
    return [row for row in rows if row.address <= max(ends)]


def pipe_of(name: str) -> str:
    """Return the pipe that executes an instruction."""
    return next(pipe for pipe, words in PIPES if any(name.startswith(word) for word in words))


def usual(text: str) -> str:
    """Return the text of a kernel without the rare paths that redo a step whose shorter form is invalid."""
    for condition in ("if (right) return", "if (right) {", "if (right && is_quick("):
        text = text.replace(condition, condition.replace("right", "true", 1).replace("&&", "||"))
    return text


def report(slug: str, target: str, loop: bool, folder: Path, listed: bool, short: bool = True) -> str:
    """Compile a kernel and return its line of the report."""
    plan = make_plan(ScanSpec.parse(slug), target)
    text, cubin = inline_headers(render(plan)), folder / "kernel.cubin"
    done = by_nvcc(usual(text) if short else text, target)
    cubin.write_bytes(done.cubin)
    used = parse_ptxas(done.words)
    assert used is not None
    rows = select_instructions(listing(cubin), loop)
    pipes = Counter(pipe_of(row.name) for row in rows)
    items = plan.items * getattr(plan, "vectors", 1) * getattr(plan, "vector", 1)
    shared = (used.shared_bytes or 0) + plan.shared_bytes
    fits = occupancy(target_named(target), threads=plan.threads, registers=used.registers or 0, shared_bytes=shared)
    if listed:
        print(Counter(row.name.split(".")[0] for row in rows).most_common())
    each = "  ".join(f"{pipe} {pipes[pipe] / items:5.1f}" for pipe, _ in PIPES if pipes[pipe])
    return (
        f"{slug:34} {plan.strategy:10} {len(rows) / items:6.1f} an item of {items:3}:  {each}  | "
        f"{used.registers} registers, spills {used.spill_store_bytes}, {fits.threads} threads"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each kernel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("slugs", nargs="+")
    parser.add_argument("--target", default=DEFAULT_TARGET)
    parser.add_argument("--loop", action="store_true", help="count the largest loop")
    parser.add_argument("--whole", action="store_true", help="count the rare paths, too")
    parser.add_argument("--names", action="store_true", help="also print how many there are of each instruction")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        for slug in given.slugs:
            print(report(slug, given.target, given.loop, Path(folder), given.names, not given.whole), flush=True)
    return 0
