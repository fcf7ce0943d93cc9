"""The same training with scanops and without: two curves of the loss, and what a step costs.

Weights, batches and optimizer are the same, so curves differ by rounding alone: a kernel adds in another order than
torch does. A training carries such differences on and may let them grow, each model in its own way, so how far apart
two curves may be is measured and not guessed: torch's scans are trained with once more, off by one rounding here and
there (``scans.rounded_otherwise``). The curve with scanops may be ``ALLOWED`` times as far from torch's as that one,
and never farther than ``LOOSEST``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import scanops
from beside import Beside, told
from scanops.errors import ScanopsError
from scans import SCANOPS, Scans, rounded_otherwise

__all__ = ["ALLOWED", "Curve", "Example", "Outcome", "Size", "compare", "difference", "main", "train"]

# Where two curves are farthest apart is chance: of 48 trainings (each example on the CPU, 300 steps, 16 seeds) none
# with scanops went farther than 3.6 times what its yardstick did, half not 0.6 times. The rest is room.
ALLOWED = 10
LOOSEST = 1e-3  # a curve that is drawn over another would not show it
SEED = 20260101
EVERY = 10  # steps between the losses that are written down

Batch = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What every training is told; an example's own size adds what its model and its data need."""

    learning_rate: float  # of the first step, from where it falls to 0 in a straight line
    dtype: str = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A model, its data and the scans of torch's that it is compared with."""

    name: str
    sizes: Mapping[str, Size]  # small, for a CPU that emulates the kernels, and large, for a GPU
    model: Callable[[Any, Scans], nn.Module]  # of a size
    batch: Callable[[Any, torch.Generator], Batch]
    loss: Callable[..., Tensor]  # of the model and a batch
    ways: Mapping[str, Scans]  # without scanops; the first one's curve is the one to be equal to


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What one training gave."""

    losses: tuple[float, ...]
    ms: float  # a step; median
    peak_bytes: int | None  # beside the data; of a CPU it is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """An example's curves, and whether they are the same."""

    size: Size
    kernels: tuple[str, ...]  # that served the model
    curves: Mapping[str, Curve]  # scanops, then the others
    difference: float  # between scanops and the first of the others
    rounding: float  # between the first of the others and the same, rounded otherwise

    @property
    def allowed(self) -> float:
        """How far apart scanops and torch may be."""
        return min(ALLOWED * self.rounding, LOOSEST)

    @property
    def same(self) -> bool:
        """Whether the loss curves of scanops and torch match to rounding; False if one is NaN."""
        return self.difference <= self.allowed


def difference(one: Curve, other: Curve) -> float:
    """The greatest of ``|a - b| / |b|`` over the steps; NaN where a loss is."""
    pairs = zip(one.losses, other.losses, strict=True)
    return torch.tensor([abs(a - b) / abs(b) for a, b in pairs], dtype=torch.float64).max().item()


def train(
    example: Example, size: Size, scans: Scans, batches: Sequence[Batch], *, seed: int, compiled: bool = False
) -> Curve:
    """Train from the weights of ``seed``, on the device of the batches."""
    device = batches[0][0].device
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    model = _model(example, size, scans, device, seed)
    called = torch.compile(model) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=size.learning_rate)
    # Falling: the longer a step, the faster what rounding began grows.
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=len(batches))
    clock, losses = _Clock(device), []
    for batch in batches:
        loss = example.loss(called, *batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        falling.step()
        losses.append(loss.detach())
        clock.tick()
    return Curve(
        losses=tuple(torch.stack(losses).tolist()),
        ms=statistics.median(clock.milliseconds()),
        peak_bytes=torch.cuda.max_memory_allocated() - before if device.type == "cuda" else None,
    )


def compare(
    example: Example, size: Size, *, steps: int, device: str, seed: int = SEED, compiled: bool = False
) -> Outcome:
    """Train with scanops, without, and without but rounded otherwise; on a CPU the kernels are emulated."""
    batches = _batches(example, size, device, steps, seed)
    reference = next(iter(example.ways))
    with contextlib.ExitStack() as stack:
        if device == "cpu":
            stack.enter_context(scanops.emulate())
        # Nothing is built while steps are timed.
        kernels = _prepared(example, size, batches[0], seed)

        def curve(scans: Scans, compiled: bool = False) -> Curve:
            return train(example, size, scans, batches, seed=seed, compiled=compiled)

        curves = {"scanops": curve(SCANOPS)} | {name: curve(scans) for name, scans in example.ways.items()}
        if compiled:  # of torch's ways the last one, which is not the one with an operation for each item
            last, scans = list(example.ways.items())[-1]
            curves |= {"scanops, compiled": curve(SCANOPS, True), f"{last}, compiled": curve(scans, True)}
        yardstick = curve(rounded_otherwise(example.ways[reference], seed))
    return Outcome(
        size=size,
        kernels=tuple(kernel.spec.slug for kernel in kernels),
        curves=curves,
        difference=difference(curves["scanops"], curves[reference]),
        # A curve that rounding leaves as it was may still differ in the last bit of a loss.
        rounding=max(difference(yardstick, curves[reference]), torch.finfo(_dtype(size)).eps),
    )


def main(
    examples: Sequence[Example],
    arguments: Sequence[str] | None = None,
    scripts: Sequence[Callable[[], Sequence[Beside]]] = (),
) -> int:
    """Train, then compare what scripts compute.

    Returns the exit status: 0 when all curves and results are the same, 1 when one is not, 2 when nothing could be
    trained.
    """
    given = _parser().parse_args(arguments)
    outcomes: dict[str, Outcome] = {}
    try:
        if given.device == "cuda" and not torch.cuda.is_available():
            print("--device cuda: torch sees no GPU; leave the option out", file=sys.stderr)
            return 2
        for example in examples:
            size = example.sizes[given.size or ("large" if given.device == "cuda" else "small")]
            size = replace(size, dtype=given.dtype or size.dtype)
            outcomes[example.name] = compare(
                example, size, steps=given.steps, device=given.device, compiled=given.compile
            )
            print(_table(example, outcomes[example.name], given.device), flush=True)
    except ScanopsError as problem:
        print(problem, file=sys.stderr)
        return 2
    rows = [row for compare in scripts for row in compare()]
    wrong = told(rows)
    if given.output:
        record = _record(outcomes, given) | {"scripts": [row._asdict() for row in rows]}
        given.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return wrong if all(outcome.same for outcome in outcomes.values()) else 1


class _Clock:
    """Times of steps: between events of the GPU, which is not waited for."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.ticks: list[Any] = []
        self.tick()

    def tick(self) -> None:
        if self.cuda:
            self.ticks.append(torch.cuda.Event(enable_timing=True))
            self.ticks[-1].record()
        else:
            self.ticks.append(time.perf_counter())

    def milliseconds(self) -> list[float]:
        pairs = list(zip(self.ticks, self.ticks[1:], strict=False))
        if self.cuda:
            torch.cuda.synchronize()
            return [before.elapsed_time(after) for before, after in pairs]
        return [1e3 * (after - before) for before, after in pairs]


def _model(example: Example, size: Size, scans: Scans, device: torch.device, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=()):  # drawn on the CPU, so the same for every device
        torch.manual_seed(seed)
        return example.model(size, scans).to(device, _dtype(size))


def _prepared(example: Example, size: Size, batch: Batch, seed: int) -> list[scanops.Kernel]:
    model = _model(example, size, SCANOPS, batch[0].device, seed)
    return scanops.prepare([lambda: example.loss(model, *batch).backward()])


def _batches(example: Example, size: Size, device: str, count: int, seed: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    drawn = (example.batch(size, generator) for _ in range(count))
    return [
        tuple(each.to(device, _dtype(size) if each.is_floating_point() else each.dtype) for each in batch)
        for batch in drawn
    ]


def _dtype(size: Size) -> torch.dtype:
    found: torch.dtype = getattr(torch, size.dtype)
    return found


def _table(example: Example, outcome: Outcome, device: str) -> str:
    first = next(iter(example.ways))
    steps = len(outcome.curves[first].losses)
    place = torch.cuda.get_device_name() if device == "cuda" else "CPU, kernels emulated: times say nothing about speed"
    sizes = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in asdict(outcome.size).items())
    lines = [
        f"{example.name}: {steps} steps; {sizes}; {place}",
        f"  {'':24}{'first loss':>12}{'last loss':>12}{'ms a step':>12}{'peak MB':>10}",
    ]
    for name, curve in outcome.curves.items():
        peak = "-" if curve.peak_bytes is None else f"{curve.peak_bytes / 1e6:.0f}"
        lines.append(f"  {name:24}{curve.losses[0]:12.6f}{curve.losses[-1]:12.6f}{curve.ms:12.3f}{peak:>10}")
    verdict = "matching loss curves" if outcome.same else "loss curves DIFFER"
    lines += [
        f"  scanops and {first}: {verdict}; greatest relative difference {outcome.difference:.1e},"
        f" allowed {outcome.allowed:.1e}; torch rounded otherwise differs by {outcome.rounding:.1e}",
        f"  kernels: {', '.join(outcome.kernels)}",
    ]
    return "\n".join(lines)


def _record(outcomes: Mapping[str, Outcome], given: argparse.Namespace) -> dict[str, object]:
    return {
        "device": torch.cuda.get_device_name() if given.device == "cuda" else "cpu",
        "versions": {"scanops": scanops.__version__, "torch": torch.__version__},
        "date": date.today().isoformat(),
        "ran_on": given.device,
        "steps": given.steps,
        "allowed_times_yardstick": ALLOWED,
        "examples": {
            name: {
                "size": asdict(outcome.size),
                "kernels": outcome.kernels,
                "same_curve": outcome.same,
                "greatest_relative_difference": outcome.difference,
                "difference_by_rounding": outcome.rounding,
                "allowed": outcome.allowed,
                "ways": {
                    way: {
                        "ms_a_step": curve.ms,
                        "peak_bytes": curve.peak_bytes,
                        "last_loss": curve.losses[-1],
                        f"loss_of_every_{EVERY}th_step": curve.losses[::EVERY],
                    }
                    for way, curve in outcome.curves.items()
                },
            }
            for name, outcome in outcomes.items()
        },
    }


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on, and not {text!r}, for example 300")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=_count, default=300)
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="by default a GPU where there is one; on the CPU kernels are emulated",
    )
    parser.add_argument("--size", choices=("small", "large"), help="by default small on the CPU, large on a GPU")
    parser.add_argument("--dtype", choices=("float32", "float64"), help="by default that of the size")
    parser.add_argument("--compile", action="store_true", help="both under torch.compile as well")
    parser.add_argument("-o", "--output", type=Path, help="write figures and curves here as JSON")
    return parser
