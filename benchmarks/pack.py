"""A pack of 200 kernels for each of three GPUs, built where there is none, and run where nothing can be built:

python -m benchmarks pack build FOLDER [--specs 200] [--targets sm_80,sm_90,sm_100] [--jobs 2] [-o FILE]
python -m benchmarks pack check PACK [-o FILE]
python -m benchmarks pack size [SLUG ...] [-o FILE]

``build`` runs ``scanops precompile`` twice, into stores that know nothing of one another, packs both and compares the
archives byte by byte. ``check`` takes such an archive, or a folder, to a process with no compiler on its PATH, no
CUDA_HOME, a HOME that is not there and the policy ``never``. It loads each kernel of this machine's target, runs it on
random whole numbers, for which every order of additions gives the same bits, and compares the result with that of
torch's own operations. A process that is started in it counts as a build. ``size`` packs the cubins of one kernel for
eight targets, for each of the committed kernels by default.

The specs are drawn from the tables below: operators, dtypes, lengths, layouts, masks, carries, segments, directions,
and the length as an argument. The same number gives the same specs.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.common import ROOT, Row, child, result_file, write
from scanops import emulator, environment
from scanops.codegen.figures import lines_for
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.lines import any_length, keys_for
from scanops.codegen.planner import plan_kernel
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import DEFAULT_TARGET
from scanops.errors import ScanopsError, UnsupportedRequest
from scanops.operands import Operands, same
from scanops.ops.dispatch import serve
from scanops.requests.call import Call
from scanops.requests.request import Inputs, check_request
from scanops.runtime import kernels, policies
from scanops.runtime.kernel_call import run_kernel
from scanops.store.packs import read

MULTIPROCESSORS = 132  # of the GPU that tensors have few or many lines for
ITEMS = 2**18  # of a tensor
LENGTH = 5000  # of a line, where the kernel takes its length
DTYPES = {
    "float": ("float32", "float32", "bfloat16", "float16", "float64"),
    "int": ("int32", "int64", "int8", "uint8", "bool"),
}
KINDS = {  # operator: kinds of what it scans
    **dict.fromkeys(("sum", "prod", "max", "min", "cummax", "cummin", "linear"), ("float", "int")),
    **dict.fromkeys(("bitwise_or", "bitwise_xor", "logical_and"), ("int",)),
    "logcumsumexp": ("float",),
}
OPERATORS = ("sum", "sum", "sum", "prod", "prod", *KINDS)
SHAPES = (  # length, inner
    *((n, 1) for n in (1, 4, 7, 31, 32, 100, 128, 257, 500, 512, 1000, 1024, 2048, 4096, 4097, 5000, 8192)),
    *((n, 1) for n in (10000, 16384, 65536, 100003, 262144)),
    *((64, 128), (1000, 64), (4096, 33), (300, 256), (17, 1024), (128, 512), (1000, 512), (4000, 512)),
)
LAYOUTS = ("dense",) * 5 + ("rows", "strided", "transposed")
MASKS = (None,) * 4 + ("bool", "bool", "float32")
SEGMENTS = (None,) * 6 + ("flags", "int32", "int64")
ACCUMULATE = (None,) * 8 + ("float64", "compensated")
OFTEN, RARELY = (True, True, True, False), (False, False, False, True)
EIGHT = "sm_75,sm_80,sm_86,sm_89,sm_90,sm_100,sm_103,sm_120"
MOST_BYTES = 25_000  # of an archive of one kernel for eight targets
HIDDEN = ("CUDA_HOME", "SCANOPS_NVCC", "SCANOPS_CXX", "SCANOPS_STORE", "XDG_CACHE_HOME")


def specs(count: int) -> list[ScanSpec]:
    """Return so many specs, drawn at random."""
    pick, found = random.Random(2026).choice, dict[ScanSpec, None]()
    while len(found) < count:
        op, (length, inner) = pick(OPERATORS), pick(SHAPES)
        dtype = pick(DTYPES[pick(KINDS[op])])
        options: Row = {name: pick(RARELY) for name in ("reverse", "exclusive", "initial", "final")}
        choices = {"input_layout": LAYOUTS, "mask": MASKS, "segments": SEGMENTS, "accumulate": ACCUMULATE}
        options |= {name: pick(values) for name, values in choices.items()}
        options |= {"aligned": pick(OFTEN), "gate": dtype if op == "linear" else None}
        try:
            spec = ScanSpec(op=op, dtype=dtype, length=length, inner=inner, **options)
            operands = operands_of(KernelKey(spec, DEFAULT_TARGET), "meta")
            spec = check_request(Call.of_spec(spec, 1), inputs_of(operands)).spec(operands.out)
            spec = any_length(KernelKey(spec, DEFAULT_TARGET)).spec if pick(RARELY) else spec
            for key in keys_for(spec, DEFAULT_TARGET):
                plan_kernel(key)
            found[spec] = None
        except UnsupportedRequest:
            continue  # no meaning, or no kernel
    return list(found)


def operands_of(key: KernelKey, device: str) -> Operands:
    """Return tensors for a kernel; for one that takes the length as an argument, of some length that it takes."""
    spec = key.spec
    if spec.takes_length:
        length = min(spec.capacity, LENGTH) // spec.multiple * spec.multiple
        spec = replace(spec, length=length, at_most=None, multiple=1)
    lines = max(
        2 * spec.inner, lines_for(key._replace(spec=spec), MULTIPROCESSORS, ITEMS)
    )  # one row is dense in any layout
    return Operands(spec, lines, device)


def inputs_of(operands: Operands) -> Inputs:
    """Return what a call on these operands reads."""
    return Inputs(**{name: each for name, each in operands.tensors.items() if name != "indices"})


def packed(
    specs: Iterable[str], targets: str, place: Path, jobs: int = 1, **variables: object
) -> tuple[Row, list[Row]]:
    """Precompile these specs into a folder and pack it; return figures of both, and of each kernel."""
    shutil.rmtree(place, ignore_errors=True)
    listed = place.with_name(f"{place.name}.toml")
    listed.write_text("specs = [\n" + "".join(f'    "{slug}",\n' for slug in specs) + "]\n")
    variables = {"SCANOPS_STORE": place.with_name(f"{place.name}.store"), **variables}
    row = scanops_says("precompile", listed, "--targets", targets, "-o", place, "--jobs", jobs, **variables)
    built = row.pop("kernels")
    row["archive_bytes"] = scanops_says("pack", place, "-o", f"{place}.tar.xz")["bytes"]
    return {name: value for name, value in row.items() if name not in ("folder", "ok")}, built


def scanops_says(*words: object, **variables: object) -> Row:
    """Return the answer of a command, in JSON."""
    return dict(json.loads(child("-m", "scanops", *words, "--json", variables=variables)))


def build(given: argparse.Namespace) -> Row:
    """Build two packs of the same specs, and return what they took."""
    folder: Path = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    found, rows = specs(given.specs), []
    for name in ("first", "second"):
        row, built = packed((spec.slug for spec in found), given.targets, folder / name, given.jobs)
        row["kernels_per_minute"] = round(60 * row["built"] / row["seconds"], 1)
        row["bytes_per_kernel"] = sum(kernel["bytes"] for kernel in built) // max(1, len(built))
        rows.append(row)
        print(name, *(f"{key} {value}" for key, value in row.items()), sep=", ")
        print(*(f"failed: {kernel['slug']}\n" for kernel in built if not kernel["ok"]), sep="", end="")
    identical = filecmp.cmp(folder / "first.tar.xz", folder / "second.tar.xz", shallow=False)
    print(f"the archives are {'identical' if identical else 'DIFFERENT'}")
    ok = identical and not any(row["failed"] for row in rows)
    operators = Counter(spec.op for spec in found)
    return {"specs": len(found), "operators": operators, "builds": rows, "identical": identical, "ok": ok}


def size(given: argparse.Namespace) -> Row:
    """Return the bytes of an archive of the cubins of each kernel for eight targets.

    Where few lines have a kernel of their own, the archive holds both kernels and half of it is counted.
    """
    found: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for slug in given.slugs or sorted(path.stem for path in (ROOT / "generated").glob("*.cu")):
            row, _ = packed([slug.removesuffix("-few")], EIGHT, Path(folder, slug), SCANOPS_BUILDER="nvrtc")
            found[slug] = 8 * row["archive_bytes"] // row["built"]
            print(f"{found[slug]:7,} bytes: {slug}, {row['built']} cubins", flush=True)
    median, most = statistics.median(found.values()), max(found.values())
    print(f"{len(found)} kernels for 8 targets each: median {median:,.0f} bytes, most {most:,}")
    return {"targets": EIGHT.split(","), "median_bytes": median, "bytes": found, "ok": most <= MOST_BYTES}


def check(given: argparse.Namespace) -> Row:
    """Run the pack where nothing can be built."""
    with tempfile.TemporaryDirectory() as folder:
        pack, answer = given.pack, Path(folder, "answer.json")
        if pack.is_file():
            pack = Path(folder, "pack")
            scanops_says("unpack", given.pack.absolute(), pack)
        kept = {name: value for name, value in os.environ.items() if name not in HIDDEN}
        nothing = {"PATH": folder, "HOME": "/nonexistent", "SCANOPS_TUNING": os.devnull}
        ours = {"SCANOPS_PACKS": str(pack.absolute()), "SCANOPS_POLICY": "never"}
        command = [sys.executable, "-m", "benchmarks", "pack", "run", str(answer)]
        subprocess.run(command, cwd=ROOT, env=kept | nothing | ours, check=True)
        return dict(json.loads(answer.read_text(encoding="utf-8")))


def run(given: argparse.Namespace) -> Row:
    """Load, run and compare every kernel of the pack for this machine; write the figures."""
    visible = [tool for tool in ("nvcc", "ninja", "g++", "gcc", "c++", "cc") if shutil.which(tool)]
    started: list[str] = []
    sys.addaudithook(
        lambda event, _: started.append(event) if event in ("subprocess.Popen", "os.posix_spawn") else None
    )
    device, target = ("cuda" if torch.cuda.is_available() else "cpu"), kernels.default_target()
    torch.zeros(1, device=device)
    (pack,) = environment.pack_roots()
    slugs = dict.fromkeys(each["name"] for each in read(pack)["entries"].values() if each["target"] == target)
    rows: list[Row] = []
    for spec in map(ScanSpec.parse, slugs):
        for key in keys_for(spec, target):
            rows.append({"slug": spec.slug, "few": key.is_few, "loaded": False, "right": False})
            try:
                began = time.perf_counter()
                kernel = kernels.obtain(key, policies.strict())
                assert kernel is not None
                kernel.load_on_device(0 if device == "cuda" else -1)
                load_ms = 1e3 * (time.perf_counter() - began)
                rows[-1] |= {"loaded": kernel.path.is_relative_to(pack), "load_ms": load_ms}
                with emulator.emulate(multiprocessors=MULTIPROCESSORS):
                    rows[-1]["right"] = is_right(kernel, device)
            except ScanopsError as problem:
                rows[-1]["error"] = repr(problem)
            if not rows[-1]["right"]:
                print(rows[-1], flush=True)
    times = [row["load_ms"] for row in rows if row["loaded"]] or [0.0]
    counts = {"kernels": len(rows), **{name: sum(row[name] for row in rows) for name in ("loaded", "right")}}
    figures = {"target": target, **counts, "built": len(started), "compilers_on_path": visible}
    figures |= {"load_ms_median": statistics.median(times), "load_ms_max": max(times)}
    print(", ".join(f"{key} {value}" for key, value in figures.items()))
    ok = counts["right"] == counts["loaded"] == counts["kernels"] > 0 and not started and not visible
    return figures | {"ok": ok, "rows": rows}


def is_right(kernel: kernels.Kernel, device: str) -> bool:
    """Whether a kernel gives the results of torch's operations, of the same bits unless it takes logarithms."""
    operands = operands_of(kernel.key, device)
    operands.fill_exactly()
    inputs = inputs_of(operands)
    found = run_kernel(kernel, dim=1, out=operands.out, **inputs._asdict())
    there = Inputs(*(None if each is None else each.cpu() for each in inputs))  # type: ignore[arg-type]
    expected = serve(Call.of_spec(kernel.spec, 1), there, eager=False)
    exactly = not kernel.spec.operator.costly
    return all(same(y.cpu(), z, exactly=exactly) for y, z in zip(found, expected, strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mode that is asked for; 1 where its figures are not as promised."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    modes = options.add_subparsers(required=True)
    mode = modes.add_parser("build", help="write the spec file, build two packs, compare them")
    mode.add_argument("folder", type=Path)
    mode.add_argument("--specs", type=int, default=200, help="how many are drawn")
    mode.add_argument("--targets", default="sm_80,sm_90,sm_100")
    mode.add_argument("--jobs", type=int, default=2, help="builds at a time")
    mode.set_defaults(action=build)
    mode = modes.add_parser("check", help="run a pack where nothing can be built")
    mode.add_argument("pack", type=Path, help="an archive or a folder")
    mode.set_defaults(action=check)
    mode = modes.add_parser("size", help="pack the cubins of one kernel for eight targets")
    mode.add_argument("slugs", nargs="*", help="the committed kernels by default")
    mode.set_defaults(action=size)
    mode = modes.add_parser("run", help="what check starts")
    mode.add_argument("output", type=Path)
    mode.set_defaults(action=run)
    for each in ("build", "check", "size"):
        modes.choices[each].add_argument("-o", "--output", type=result_file, help="write the figures here as JSON")
    given = options.parse_args(arguments)
    figures = given.action(given)
    write(given.output, figures)
    return 0 if figures["ok"] or given.action is run else 1
