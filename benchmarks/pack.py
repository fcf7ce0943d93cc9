"""A pack of 200 kernels for each of three GPUs, built where there is none, and run where nothing can be built:

python -m benchmarks pack build FOLDER [--specs 200] [--targets sm_80,sm_90,sm_100] [--jobs 2] [-o FILE]
python -m benchmarks pack check PACK [-o FILE]

``build`` writes FOLDER/specs.toml, runs ``scanops precompile`` on it twice, into stores that know nothing of one
another, packs both and compares the archives byte by byte. ``check`` takes such an archive, or a folder, to a process
with no compiler on its PATH, no CUDA_HOME, a HOME that is not there and the policy ``never``. It loads each kernel of
this machine's target, runs it on random whole numbers, for which every order of additions gives the same bits, and
compares the result with that of torch's own operations. A process that is started in it counts as a build.

The specs are those of random calls, drawn from the tables below: operators, dtypes, lengths, layouts, masks, carries,
segments, directions, and the length as an argument. The same number gives the same specs.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import ROOT, surroundings
from scanops.codegen.lines import any_length, are_few, situations
from scanops.codegen.plan import make_plan
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import DEFAULT_TARGET
from scanops.errors import ScanopsError, UnsupportedRequest
from scanops.ops.dispatch import served
from scanops.requests.call import Call
from scanops.requests.request import Inputs, make_request

MULTIPROCESSORS = 132  # of the GPU that tensors have few or many lines for
DTYPES = {
    "float": ("float32", "float32", "bfloat16", "float16", "float64"),
    "int": ("int32", "int64", "int8", "uint8", "bool"),
}
KINDS = {  # operator: kinds of what it scans
    **dict.fromkeys(("sum", "sum", "sum", "prod", "max", "min", "cummax", "cummin", "linear"), ("float", "int")),
    **dict.fromkeys(("bitwise_or", "bitwise_xor", "logical_and"), ("int",)),
    "logcumsumexp": ("float",),
}
OPERATORS = ("sum", "sum", "sum", "prod", "prod", *KINDS)
SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (  # shape, dim
    *(((max(512, 2**18 // n), n), 1) for n in (1, 4, 7, 31, 32, 100, 128, 257, 500, 512, 1000, 1024, 2048, 4096)),
    *(((512, n), 1) for n in (4097, 5000, 8192, 10000, 16384)),
    *(((n_lines, n), 1) for n_lines, n in ((1, 100003), (2, 262144), (3, 65536))),
    *(((8, n, inner), 1) for n, inner in ((64, 128), (1000, 64), (4096, 33), (300, 256), (17, 1024))),
    *(((n, 512), 0) for n in (128, 1000, 4000)),
)
LAYOUTS = ("dense",) * 4 + ("rows", "strided", "shifted", "transposed")
MASKS = (None,) * 4 + ("bool", "bool", "float32")
SEGMENTS = (None,) * 6 + ("flags", "int32", "int64")
ACCUMULATE = (None,) * 8 + ("float64", "compensated")
RARELY = (False, False, False, True)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}  # logcumsumexp


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A call, and whether the kernel that takes its length is meant."""

    op: str
    dtype: str
    shape: tuple[int, ...]
    dim: int
    layout: str
    mask: str | None
    segments: str | None
    accumulate: str | None
    reverse: bool
    exclusive: bool
    initial: bool
    final: bool
    any_length: bool


def drawn(generator: random.Random) -> Recipe:
    op = generator.choice(OPERATORS)
    shape, dim = generator.choice(SHAPES)
    return Recipe(
        op=op,
        dtype=generator.choice(DTYPES[generator.choice(KINDS[op])]),
        shape=shape,
        dim=dim,
        layout=generator.choice(LAYOUTS),
        mask=generator.choice(MASKS),
        segments=generator.choice(SEGMENTS),
        accumulate=generator.choice(ACCUMULATE),
        **{name: generator.choice(RARELY) for name in ("reverse", "exclusive", "initial", "final", "any_length")},
    )


def inputs_of(recipe: Recipe) -> Inputs:
    """The tensors of a call: whole numbers, the same ones each time."""
    random_bits = torch.Generator().manual_seed(2026)

    def whole(shape: tuple[int, ...], dtype: str, low: int, high: int) -> torch.Tensor:
        signed = getattr(torch, dtype).is_signed
        steps = torch.randint(low if signed else 0, high + 1, shape, generator=random_bits)
        return steps.ne(0) if dtype == "bool" else steps.to(getattr(torch, dtype))

    def factors(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        ones = whole(shape, "bool", 0, 1)
        return torch.where(ones, 1, -1).to(getattr(torch, dtype))

    shape, dim = recipe.shape, recipe.dim
    line = tuple(size for place, size in enumerate(shape) if place != dim)
    x = factors(shape, recipe.dtype) if recipe.op == "prod" else whole(shape, recipe.dtype, -3, 3)
    offsets = None
    if recipe.segments in ("int32", "int64"):
        n = shape[dim]
        offsets = torch.tensor([0, n // 7, n // 3, n // 3, n], dtype=getattr(torch, recipe.segments))  # one is empty
    return Inputs(
        x=laid_out(x, recipe.layout),
        mask=whole(shape, recipe.mask, 0, 1) if recipe.mask else None,
        gate=whole(shape, recipe.dtype, -1, 1) if recipe.op == "linear" else None,
        starts=whole(shape, "uint8", 0, 9).eq(0) if recipe.segments == "flags" else None,
        offsets=offsets,
        initial=factors(line, recipe.dtype) if recipe.initial else None,
    )


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values elsewhere in memory."""
    *outer, last = x.shape
    if layout == "rows":
        return x.new_empty(*outer, last + 32)[..., :last].copy_(x)
    if layout == "strided":
        return x.new_empty(*outer, 2 * last)[..., ::2].copy_(x)
    if layout == "transposed":
        return x.new_empty(*outer[:-1], last, outer[-1]).mT.copy_(x)
    if layout == "shifted":
        return x.new_empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    return x


def options_of(recipe: Recipe) -> dict[str, Any]:
    names = ("reverse", "exclusive", "final", "accumulate")
    return {name: getattr(recipe, name) for name in names}


def spec_of(recipe: Recipe, inputs: Inputs) -> ScanSpec:
    """What the kernel of a call is specialised for. Raises UnsupportedRequest for a call that makes no sense."""
    request = make_request(op=recipe.op, dim=recipe.dim, **inputs._asdict(), **options_of(recipe))
    spec = request.spec(torch.empty(recipe.shape, dtype=request.dtype), MULTIPROCESSORS)
    few = are_few(spec, request.line_shape.numel(), MULTIPROCESSORS)
    spec = any_length(spec, few) if recipe.any_length else spec
    make_plan(spec, few=few)
    return spec


def recipes(count: int) -> dict[ScanSpec, Recipe]:
    """So many calls, each with a kernel of its own."""
    generator = random.Random(2026)
    found: dict[ScanSpec, Recipe] = {}
    while len(found) < count:
        recipe = drawn(generator)
        try:
            found.setdefault(spec_of(recipe, inputs_of(recipe)), recipe)
        except UnsupportedRequest:
            continue  # no meaning, or no kernel
    return found


def build(arguments: argparse.Namespace) -> dict[str, Any]:
    """Two packs from one spec file, and what they took."""
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    found = recipes(arguments.specs)
    specs = folder / "specs.toml"
    names = "".join(f'    "{spec.slug}",\n' for spec in found)
    specs.write_text(f"# python -m benchmarks pack: the kernels of {len(found)} random calls\nspecs = [\n{names}]\n")
    figures: dict[str, Any] = {"specs": len(found), "operators": Counter(spec.op for spec in found), "builds": []}
    for name in ("first", "second"):
        place = folder / name
        shutil.rmtree(place, ignore_errors=True)
        command = ("precompile", specs, "--targets", arguments.targets, "-o", place, "--jobs", arguments.jobs)
        row = scanops_says(*command, store=folder / f"{name}.store")
        row |= {"archive_bytes": scanops_says("pack", place, "-o", f"{place}.tar.xz")["bytes"]}
        row["kernels_per_minute"] = round(60 * row["built"] / row["seconds"], 1)
        row["bytes_per_kernel"] = sum(kernel["bytes"] for kernel in row["kernels"]) // max(1, len(row["kernels"]))
        figures["builds"].append({key: value for key, value in row.items() if key not in ("kernels", "folder", "ok")})
        failed = [kernel["slug"] for kernel in row["kernels"] if not kernel["ok"]]
        print(
            f"{name}: {row['built']} kernels in {row['seconds']:.0f} s by {row['jobs']} at a time, "
            f"{row['kernels_per_minute']} a minute, {row['bytes_per_kernel']} bytes each, "
            f"{row['archive_bytes'] // max(1, row['built'])} in the archive; failed: {failed or 'none'}"
        )
    same = filecmp.cmp(folder / "first.tar.xz", folder / "second.tar.xz", shallow=False)
    print(f"the archives are {'identical' if same else 'DIFFERENT'}")
    return figures | {"identical": same, "ok": same and not any(row["failed"] for row in figures["builds"])}


def scanops_says(*words: object, store: Path | None = None) -> dict[str, Any]:
    """The answer of a command, in JSON."""
    own = {"SCANOPS_STORE": str(store)} if store else {}
    done = subprocess.run(
        [sys.executable, "-m", "scanops", *map(str, words), "--json"],
        env={**os.environ, **own, "SCANOPS_TUNING": os.devnull},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if not done.stdout:
        raise SystemExit(f"scanops {words[0]} failed: {done.returncode}")
    return dict(json.loads(done.stdout))


HIDDEN = ("CUDA_HOME", "CUDA_PATH", "SCANOPS_NVCC", "SCANOPS_CXX", "SCANOPS_STORE", "XDG_CACHE_HOME")


def check(arguments: argparse.Namespace) -> dict[str, Any]:
    """The same program again, where nothing can be built."""
    with tempfile.TemporaryDirectory() as folder:
        pack, answer = arguments.pack, Path(folder, "answer.json")
        if pack.is_file():
            pack = Path(folder, "pack")
            scanops_says("unpack", arguments.pack, pack)
        kept = {name: value for name, value in os.environ.items() if name not in HIDDEN}
        nothing = {"PATH": folder, "HOME": "/nonexistent", "SCANOPS_TUNING": os.devnull}
        ours = {"SCANOPS_PACKS": str(pack.absolute()), "SCANOPS_POLICY": "never"}
        subprocess.run(
            [sys.executable, "-m", "benchmarks", "pack", "run", str(answer)],
            cwd=ROOT,
            env=kept | nothing | ours,
            check=True,
        )
        return dict(json.loads(answer.read_text(encoding="utf-8")))


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every kernel of the pack for this machine: loaded, run, compared."""
    from scanops import emulator, environment
    from scanops.runtime import kernels, policies
    from scanops.store.packs import read

    visible = [tool for tool in ("nvcc", "ninja", "g++", "gcc", "c++", "cc") if shutil.which(tool)]
    started: list[str] = []
    sys.addaudithook(
        lambda event, _: started.append(event) if event in ("subprocess.Popen", "os.posix_spawn") else None
    )
    device, target = ("cuda" if torch.cuda.is_available() else "cpu"), kernels.default_target()
    torch.zeros(1, device=device)
    (pack,) = environment.pack_roots()
    slugs = dict.fromkeys(entry["slug"] for entry in read(pack)["entries"] if entry["target"] == target)
    # The list is as long as the one the pack was built from, or a longer one that begins with it.
    known = {spec.slug: (spec, recipe) for spec, recipe in recipes(arguments.specs).items()}
    rows: list[dict[str, Any]] = []
    wanted = [(slug, few) for slug in slugs for few in situations(ScanSpec.parse(slug), DEFAULT_TARGET)]
    for slug, few in wanted:
        row: dict[str, Any] = {"slug": slug, "few": few, "loaded": False, "right": False}
        rows.append(row)
        try:
            spec, recipe = known[slug]
            began = time.perf_counter()
            kernel = kernels.obtain(spec, target, policies.strict(), few=few)
            assert kernel is not None
            _ = kernel.code
            row |= {"loaded": kernel.path.is_relative_to(pack), "load_ms": 1e3 * (time.perf_counter() - began)}
            inputs = inputs_of(recipe)
            expected = served(Call(recipe.op, recipe.dim, **options_of(recipe)), inputs, eager=False)
            with emulator.emulate(multiprocessors=MULTIPROCESSORS):
                found = run_on(device, kernel, recipe, inputs)
            row["right"] = all(agree(recipe, y.cpu(), z) for y, z in zip(found, expected, strict=True))
        except (ScanopsError, KeyError) as problem:
            row["error"] = repr(problem)
        if not row["right"]:
            print(f"{slug}: {row}", flush=True)
    times = [row["load_ms"] for row in rows if row["loaded"]] or [0.0]
    counts = {"kernels": len(rows), **{name: sum(row[name] for row in rows) for name in ("loaded", "right")}}
    figures = {"target": target, **counts, "built": len(started), "compilers_on_path": visible}
    figures |= {"load_ms_median": statistics.median(times), "load_ms_max": max(times)}
    print(", ".join(f"{key} {value}" for key, value in figures.items()))
    ok = counts["right"] == counts["loaded"] == counts["kernels"] > 0 and not started and not visible
    return figures | {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "ok": ok, "rows": rows}


def run_on(device: str, kernel: Any, recipe: Recipe, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """The outputs of a kernel on tensors that lie there as they lie here."""
    from scanops.runtime.results import run_kernel

    moved = inputs._asdict() | {name: each.to(device) for name, each in inputs._asdict().items() if each is not None}
    moved["x"] = laid_out(moved["x"].contiguous(), recipe.layout)
    return run_kernel(kernel, dim=recipe.dim, **moved)


def agree(recipe: Recipe, y: torch.Tensor, z: torch.Tensor) -> bool:
    """Equal; for logarithms of sums, which no whole numbers make exact, close."""
    if recipe.op != "logcumsumexp":
        return torch.equal(y, z)
    tolerance = TOLERANCE[y.dtype]
    return torch.allclose(y, z, rtol=tolerance, atol=tolerance)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    modes = parser.add_subparsers(required=True)
    mode = modes.add_parser("build", help="write the spec file, build two packs, compare them")
    mode.add_argument("folder", type=Path)
    mode.add_argument("--targets", default="sm_80,sm_90,sm_100")
    mode.add_argument("--jobs", type=int, default=2, help="builds at a time")
    mode.set_defaults(action=build)
    mode = modes.add_parser("check", help="run a pack where nothing can be built")
    mode.add_argument("pack", type=Path, help="an archive or a folder")
    mode.set_defaults(action=check)
    mode = modes.add_parser("run", help="what check starts")
    mode.add_argument("output", type=Path)
    mode.set_defaults(action=run)
    for name, each in modes.choices.items():
        each.add_argument("--specs", type=int, default=200, help="how many calls are drawn")
        if name != "run":
            each.add_argument("-o", "--output", type=Path, help="write the figures here as JSON")
    given = parser.parse_args(arguments)
    figures = given.action(given)
    if given.output:
        document = {**surroundings(), **figures}
        given.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if figures["ok"] or given.action is run else 1
