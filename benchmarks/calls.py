"""Measure the CPU time of a repeated call for each operator, with and without gradient, beside torch.

torch, the C++ call path with libraries and with cubins, and the Python call path are interleaved in one process on
tensors of 8 x 1024. Calls are queued; the GPU is synchronised between batches, outside of what is timed. Without a GPU
a driver that does nothing takes the cubins and torch computes 8 items, so that host time alone is measured. On a GPU
the calls of an exported file, a ``ModelNew``, are measured as well.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

import scanops
from benchmarks.common import aligned, parser, write
from benchmarks.forms import BUILDERS, forms
from benchmarks.timing import host_microseconds, milliseconds
from scanops.codegen.exports.formats import export
from scanops.runtime import native
from scanops.runtime.kernels import default_target

BATCH = 200  # calls
SHAPE = (8, 1024)
FORMS = tuple(BUILDERS) if torch.cuda.is_available() else ("cubin",)
WAYS = ("torch", *FORMS, "python")
Call = Callable[[], object]


class Given(NamedTuple):
    """The tensors that a case computes with."""

    x: Tensor
    gate: Tensor
    mask: Tensor
    state: Tensor  # the carry-in of each row
    offsets: Tensor  # of four segments


class Case(NamedTuple):
    """One row of the table: the same computation by scanops and by torch."""

    ours: Callable[[Given], Tensor]
    torchs: Callable[[Given], Tensor] | None = None  # None where torch has no such operation


def multiply(x: Tensor, y: Tensor) -> Tensor:
    """Return the products that a fused scan sums up."""
    return x * y


def open_gates(x: Tensor, gate: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return gates that a mask closes, with a constant discount, and items: what advantages are made of."""
    return torch.where(mask, 0.99 * gate, 0.0), x


def decay(x: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gates and items of several states for each item."""
    return torch.exp(-x * rates), x * rates


def weigh(state: Tensor, x: Tensor, rates: Tensor) -> Tensor:
    """Return what is summed over states."""
    return state * rates


# Beside segments, complete scans, chunks and products stands a plain scan by torch: what a call should not exceed.
CASES = {
    "sum": Case(lambda g: scanops.cumsum(g.x, 1), lambda g: torch.cumsum(g.x, 1)),
    "sum, masked": Case(lambda g: scanops.cumsum(g.x, 1, mask=g.mask), lambda g: torch.cumsum(g.x.where(g.mask, 0), 1)),
    "sum, reverse": Case(lambda g: scanops.cumsum(g.x, 1, reverse=True), lambda g: g.x.flip(1).cumsum(1).flip(1)),
    "prod": Case(lambda g: scanops.cumprod(g.x, 1), lambda g: torch.cumprod(g.x, 1)),
    "prod, masked": Case(
        lambda g: scanops.cumprod(g.x, 1, mask=g.mask), lambda g: torch.cumprod(g.x.where(g.mask, 1), 1)
    ),
    "cummax": Case(lambda g: scanops.cummax(g.x, 1)[0], lambda g: torch.cummax(g.x, 1)[0]),
    "cummin": Case(lambda g: scanops.cummin(g.x, 1)[0], lambda g: torch.cummin(g.x, 1)[0]),
    "max": Case(lambda g: scanops.scan(g.x, "max", 1), lambda g: torch.cummax(g.x, 1)[0]),
    "min": Case(lambda g: scanops.scan(g.x, "min", 1), lambda g: torch.cummin(g.x, 1)[0]),
    "logcumsumexp": Case(lambda g: scanops.logcumsumexp(g.x, 1), lambda g: torch.logcumsumexp(g.x, 1)),
    "linear": Case(lambda g: scanops.linear_scan(g.gate, g.x, 1)),
    "sum of segments": Case(lambda g: scanops.cumsum(g.x, 1, offsets=g.offsets), lambda g: torch.cumsum(g.x, 1)),
    "sum, complete": Case(lambda g: scanops.cumsum(g.x, 1, complete=True), lambda g: torch.cumsum(g.x, 1)),
    "sum of chunks": Case(lambda g: scanops.cumsum(g.x, 1, chunk=64), lambda g: torch.cumsum(g.x, 1)),
    "sum of products": Case(
        lambda g: scanops.scan((g.x, g.gate), "sum", 1, map=multiply), lambda g: torch.cumsum(g.x, 1)
    ),
    "linear, a gate for each row": Case(lambda g: scanops.linear_scan(g.gate[:, :1], g.x, 1)),
    "linear, gates by a map": Case(
        lambda g: scanops.scan((g.x, g.gate, g.mask), "linear", 1, map=open_gates, reverse=True)
    ),
    "linear, sum over states": Case(
        lambda g: scanops.scan((g.x[..., None], g.gate[0, :4]), "linear", 1, map=decay, then=weigh, sum=2)
    ),
    "linear, a chunk": Case(lambda g: scanops.linear_scan(g.gate, g.x, 1, initial=g.state, return_final=True)[0]),
}


@contextmanager
def from_python() -> Iterator[None]:
    """Switch the C++ call path off, for cubins."""
    with forms("cubin"):
        native.serve = None
        try:
            yield
        finally:
            native.get(build=False)


def passes(compute: Callable[[Given], Tensor], shape: tuple[int, ...], device: str) -> dict[str, Call]:
    """Return a forward call and a forward-and-backward call."""
    x, gate = torch.rand(2, *shape, device=device).unbind()
    mask, state = torch.rand(shape, device=device) < 0.9, torch.zeros(shape[:1], device=device)
    offsets = torch.tensor([0, shape[1] // 3, shape[1] // 2, shape[1] // 2 + 1, shape[1]], device=device)
    plain = Given(x, gate, mask, state, offsets)
    # Views have a history: leaves must be tensors of their own
    leaves = Given(x.clone().requires_grad_(), gate.clone().requires_grad_(), mask, state, offsets)
    gradient = torch.ones_like(compute(plain))

    def both() -> object:
        return torch.autograd.grad(compute(leaves), leaves[:2], gradient, allow_unused=True)

    return {"forward": lambda: compute(plain), "forward_backward": both}


Times = dict[str, dict[str, list[float]]]  # microseconds by direction, then by one of ``WAYS``


def measure(case: Case, device: str, batches: int, times: Times) -> None:
    """Add a round of a case to its times."""
    ours = passes(case.ours, SHAPE, device)
    torchs = passes(case.torchs, SHAPE if device == "cuda" else (2, 4), device) if case.torchs else {}
    ways: dict[str, tuple[dict[str, Call], Callable[[], AbstractContextManager[object]]]] = {
        "torch": (torchs, nullcontext),
        **{form: (ours, partial(forms, form)) for form in FORMS},
        "python": (ours, from_python),
    }
    for direction in ours:
        for way, (calls, around) in ways.items():
            if direction in calls:
                with around():  # the calls before those that are timed load kernels and fill the call caches
                    found = host_microseconds(calls[direction], BATCH, batches)
                times.setdefault(direction, {}).setdefault(way, []).extend(found)


def exported(batches: int) -> float:
    """Return the median microseconds of a call of the ``ModelNew`` that is exported for a sum."""
    spec = scanops.ScanSpec(op="sum", dtype="float32", length=SHAPE[1])
    module = ModuleType("model_new")
    exec(export(spec, target=default_target(), lines=SHAPE[0]), module.__dict__)
    model, x = module.ModelNew(1), torch.rand(SHAPE, device="cuda")
    assert torch.allclose(model(x), torch.cumsum(x, 1))
    return statistics.median(host_microseconds(lambda: model(x), BATCH, batches))


def line(name: str, directions: dict[str, dict[str, float]]) -> list[str]:
    """Return a row: microseconds, and in brackets the ratio to torch's."""
    cells = [name]
    for each in directions.values():
        theirs = each.get("torch")
        for way in WAYS:
            ratio = f" ({each[way] / theirs:.2f})" if theirs and way != "torch" else ""
            cells.append(f"{each[way]:.2f}{ratio}" if way in each else "-")
    return cells


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every case and print a table."""
    options = parser(__doc__)
    options.add_argument("--batches", type=int, default=10, help=f"of {BATCH} calls, in each round")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--case", action="append", choices=CASES, help="one of the rows; all by default")
    chosen = options.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ready_ms = milliseconds(lambda: native.get(build=True))
    cases = {name: CASES[name] for name in chosen.case or CASES}
    times: dict[str, Times] = {name: {} for name in cases}
    with nullcontext() if device == "cuda" else scanops.emulate():
        for form in FORMS:
            with forms(form):  # built by calls: PyTorch's operators would read results that no driver has written
                for case in cases.values():
                    for run in passes(case.ours, SHAPE, device).values():
                        run()
        for _ in range(chosen.rounds):  # over all cases, since the host is faster at some times than at others
            for name, case in cases.items():
                measure(case, device, chosen.batches, times[name])
    found = {
        name: {
            direction: {way: statistics.median(each) for way, each in ways.items()} for direction, ways in of.items()
        }
        for name, of in times.items()
    }
    heading = ["microseconds", *(f"{way}, {what}" for what in ("forward", "and backward") for way in WAYS)]
    print(aligned([heading, *(line(name, each) for name, each in found.items())]))
    figures: dict[str, object] = {
        "processor": platform.processor() or platform.machine(),
        "shape": SHAPE,
        "batch": BATCH,
        "native_ready_s": ready_ms / 1e3,  # found or built
        "microseconds": found,
    }
    if device == "cuda" and not chosen.case:
        figures["exported_microseconds"] = exported(chosen.batches * chosen.rounds)
        print(f"ModelNew of an exported file: {figures['exported_microseconds']:.2f}")
    write(chosen.output, figures)
