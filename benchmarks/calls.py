"""Measure the CPU time of a repeated call for each operator, with and without gradient, beside torch.

torch, the C++ call path and the Python call path are interleaved in one process on tensors of 8 x 1024. Calls are
queued; the GPU is synchronised between batches, outside of what is timed. Without a GPU a function that does nothing
stands for the kernels and torch computes 8 items, so that host time alone is measured. On a GPU the calls of an
exported file, a ``ModelNew``, are measured as well.
"""

from __future__ import annotations

import ctypes
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

import scanops
from benchmarks.common import build_kernels_of, parser, write
from scanops.codegen.exports.formats import export
from scanops.runtime import launcher, native
from scanops.runtime.kernels import default_target

BATCH = 200  # calls; a GPU's queue holds about a thousand launches
SHAPE = (8, 1024)
NOTHING = """
int scanops_launch(const void* arguments, void* stream) { return 0; }
void scanops_emulator_configure(unsigned long long seed, int multiprocessors) {}
"""
WAYS = ("torch", "native", "python")
Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The tensors that a case computes with."""

    x: Tensor
    gate: Tensor
    mask: Tensor
    state: Tensor  # the carry-in of each row


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the table: the same computation by scanops and by torch."""

    ours: Callable[[Given], Tensor]
    torchs: Callable[[Given], Tensor] | None  # None where torch has no such operation


CASES = {
    "sum": Case(ours=lambda g: scanops.cumsum(g.x, 1), torchs=lambda g: torch.cumsum(g.x, 1)),
    "sum, masked": Case(
        ours=lambda g: scanops.cumsum(g.x, 1, mask=g.mask), torchs=lambda g: torch.cumsum(g.x.where(g.mask, 0), 1)
    ),
    "sum, reverse": Case(
        ours=lambda g: scanops.cumsum(g.x, 1, reverse=True), torchs=lambda g: g.x.flip(1).cumsum(1).flip(1)
    ),
    "prod": Case(ours=lambda g: scanops.cumprod(g.x, 1), torchs=lambda g: torch.cumprod(g.x, 1)),
    "prod, masked": Case(
        ours=lambda g: scanops.cumprod(g.x, 1, mask=g.mask), torchs=lambda g: torch.cumprod(g.x.where(g.mask, 1), 1)
    ),
    "cummax": Case(ours=lambda g: scanops.cummax(g.x, 1)[0], torchs=lambda g: torch.cummax(g.x, 1)[0]),
    "cummin": Case(ours=lambda g: scanops.cummin(g.x, 1)[0], torchs=lambda g: torch.cummin(g.x, 1)[0]),
    "max": Case(ours=lambda g: scanops.scan(g.x, "max", 1), torchs=lambda g: torch.cummax(g.x, 1)[0]),
    "min": Case(ours=lambda g: scanops.scan(g.x, "min", 1), torchs=lambda g: torch.cummin(g.x, 1)[0]),
    "logcumsumexp": Case(ours=lambda g: scanops.logcumsumexp(g.x, 1), torchs=lambda g: torch.logcumsumexp(g.x, 1)),
    "linear": Case(ours=lambda g: scanops.linear_scan(g.gate, g.x, 1), torchs=None),
    "linear, a chunk": Case(
        ours=lambda g: scanops.linear_scan(g.gate, g.x, 1, initial=g.state, return_final=True)[0], torchs=None
    ),
}


def microseconds(call: Call, batches: int) -> list[float]:
    """Return microseconds per call of each batch, backward passes on autograd's thread included."""
    found = []
    for number in range(batches + 2):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(BATCH):
            call()
        if number >= 2:  # the first two warm up
            found.append((time.perf_counter() - began) / BATCH * 1e6)
    return found


@contextmanager
def from_python() -> Iterator[None]:
    """Switch the C++ call path off."""
    native.served = None
    try:
        yield
    finally:
        native.get(build=False)


@contextmanager
def kernels(device: str) -> Iterator[None]:
    """Use the GPU's kernels; without a GPU, stand-ins that return at once."""
    if device == "cuda":
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "nothing.so"
        command = ["g++", "-x", "c", "-shared", "-fPIC", "-O2", "-", "-o", str(library)]
        subprocess.run(command, input=NOTHING, text=True, check=True)
        nothing = ctypes.CDLL(str(library))
        nothing.scanops_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        made = launcher.Launcher.__init__

        def hollow(self: launcher.Launcher, *given: object) -> None:
            made(self, *given)  # type: ignore[arg-type]
            launch, configure = nothing.scanops_launch, nothing.scanops_emulator_configure
            self._bound = self._bound._replace(launch=launch, function=launch, configure=configure)

        launcher.Launcher.__init__ = hollow  # type: ignore[method-assign, assignment]
        try:
            with scanops.emulate():
                yield
        finally:
            launcher.Launcher.__init__ = made  # type: ignore[method-assign]


def given(shape: tuple[int, ...], device: str) -> Given:
    x, gate = torch.rand(2, *shape, device=device).unbind()
    mask, state = torch.rand(shape, device=device) < 0.9, torch.zeros(shape[:1], device=device)
    return Given(x=x, gate=gate, mask=mask, state=state)


def passes(compute: Callable[[Given], Tensor], shape: tuple[int, ...], device: str) -> dict[str, Call]:
    """Return a forward call and a forward-and-backward call."""
    plain = given(shape, device)
    # Views have a history: leaves must be tensors of their own
    leaves = replace(plain, x=plain.x.clone().requires_grad_(), gate=plain.gate.clone().requires_grad_())
    gradient, wanted = torch.ones(shape, device=device), [leaves.x, leaves.gate]

    def both() -> object:
        return torch.autograd.grad(compute(leaves), wanted, gradient, allow_unused=True)

    return {"forward": lambda: compute(plain), "forward_backward": both}


def compared(case: Case, device: str, batches: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the median microseconds by direction, then by route (torch, native, python)."""
    ours = passes(case.ours, SHAPE, device)
    torchs = passes(case.torchs, SHAPE if device == "cuda" else (2, 4), device) if case.torchs else {}
    ways: dict[str, tuple[dict[str, Call], Callable[[], AbstractContextManager[object]]]] = {
        "torch": (torchs, nullcontext),
        "native": (ours, nullcontext),
        "python": (ours, from_python),
    }
    found = {}
    for direction in ours:
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(4):  # load, then fill the call caches
            ours[direction]()
        for _ in range(rounds):
            for way, (calls, around) in ways.items():
                if direction in calls:
                    with around():
                        times[way] += microseconds(calls[direction], batches)
        found[direction] = {way: statistics.median(each) for way, each in times.items() if each}
    return found


def exported(batches: int) -> float:
    """Return the median microseconds of a call of the ``ModelNew`` that is exported for a sum."""
    spec = scanops.ScanSpec(op="sum", dtype="float32", length=SHAPE[1])
    module = ModuleType("model_new")
    exec(export(spec, target=default_target(), lines=SHAPE[0]), module.__dict__)
    model, x = module.ModelNew(1), torch.rand(SHAPE, device="cuda")
    assert torch.allclose(model(x), torch.cumsum(x, 1))
    return statistics.median(microseconds(lambda: model(x), batches))


def heading() -> str:
    """Return the two lines above the rows."""
    directions = " ".join(f"{words:^44}" for words in ("forward", "forward + backward"))
    return f"{'microseconds':16} {directions}\n{'':16} " + " ".join(f"{way:>14}" for way in WAYS * 2)


def line(name: str, directions: dict[str, dict[str, float]]) -> str:
    """Return a row: microseconds, and in brackets the ratio to torch's."""
    cells = []
    for each in directions.values():
        for way in WAYS:
            if way not in each:
                cells.append("-")
            elif way == "torch" or "torch" not in each:
                cells.append(f"{each[way]:.2f}")
            else:
                cells.append(f"{each[way]:.2f} ({each[way] / each['torch']:.2f})")
    return f"{name:16} " + " ".join(f"{cell:>14}" for cell in cells)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every case and print a table."""
    options = parser(__doc__)
    options.add_argument("--batches", type=int, default=10, help=f"of {BATCH} calls, in each round")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--case", action="append", choices=CASES, help="one of the rows; all by default")
    chosen = options.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    began = time.perf_counter()
    native.get(build=True)
    seconds = time.perf_counter() - began
    cases = {name: CASES[name] for name in chosen.case or CASES}
    print(heading(), flush=True)
    found = {}
    with kernels(device):
        build_kernels_of(
            (run for case in cases.values() for run in passes(case.ours, SHAPE, device).values()), default_target()
        )
        for name, case in cases.items():
            found[name] = compared(case, device, chosen.batches, chosen.rounds)
            print(line(name, found[name]), flush=True)
    figures: dict[str, object] = {
        "processor": platform.processor() or platform.machine(),
        "shape": SHAPE,
        "batch": BATCH,
        "native_ready_s": seconds,  # found or built
        "microseconds": found,
    }
    if device == "cuda" and not chosen.case:
        figures["exported_microseconds"] = exported(chosen.batches * chosen.rounds)
        print(f"ModelNew of an exported file: {figures['exported_microseconds']:.2f}")
    write(chosen.output, figures)
