"""Time and memory of the function that each page of docs/uses opens with, beside the code that it replaces.

The code that is replaced is what the page shows, a loop or PyTorch's operators, and the latter under torch.compile; for
functions of ``scanops.compat`` the formula in PyTorch. Results and gradients are compared first. Prints a JSON line for
each use: microseconds, and the peak of memory that is allocated during a call, results included, in bytes. ``--small``
compares small tensors on any device and measures nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

import scanops
from benchmarks.common import Row, parser, require_gpu, surroundings
from benchmarks.drop_ins import NEAR, Function, Tensors, drop_ins, run_forward, run_with_gradients
from benchmarks.timing import Timer, peak_bytes
from scanops.compat import generalized_advantage_estimate
from scanops.runtime import native

BUDGET = 0.06  # seconds of runs for each figure
GAMMA, LAMBDA = 0.99, 0.95
# Functions of scanops.compat that have no page, or a page that opens with something else.
WITHOUT_PAGE = ("chunk_local_cumsum", "chunk_global_cumsum", "scan of gates")


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a page opens with, and the code that it replaces."""

    name: str
    page: str  # of docs/uses, without .md; empty for none
    inputs: Tensors
    ours: Function
    today: Function
    compiles: bool = True  # torch.compile takes seconds for it, not minutes as for loops
    trains: bool = False


def top_p_by(scan: Function, logits: torch.Tensor) -> torch.Tensor:
    """Return the logits that top-p sampling keeps; ``scan`` returns the sum of all more probable tokens."""
    ordered, indices = torch.sort(logits, descending=True)
    ordered = ordered.masked_fill(scan(ordered.softmax(-1)) > 0.8, float("-inf"))
    return torch.empty_like(logits).scatter(-1, indices, ordered)


def advantages_by_steps(
    reward: torch.Tensor, value: torch.Tensor, next_value: torch.Tensor, done: torch.Tensor
) -> Tensors:
    """Return advantages and value targets of tensors [time, environments], by a loop."""
    advantage, last = torch.zeros_like(reward), torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        going = 1.0 - done[t].float()
        delta = reward[t] + GAMMA * next_value[t] * going - value[t]
        advantage[t] = last = delta + GAMMA * LAMBDA * going * last
    return advantage, advantage + value


def returns_by_steps(reward: torch.Tensor, next_value: torch.Tensor, done: torch.Tensor) -> torch.Tensor:
    """Return TD(lambda) returns of tensors [time, environments], by a loop."""
    found, last = torch.zeros_like(reward), next_value[-1]
    for t in reversed(range(len(reward))):
        discount = GAMMA * (1.0 - done[t].float())
        found[t] = last = reward[t] + discount * ((1 - LAMBDA) * next_value[t] + LAMBDA * last)
    return found


def returns_by_scan(reward: torch.Tensor, next_value: torch.Tensor, done: torch.Tensor) -> torch.Tensor:
    """Return TD(lambda) returns by one recurrence that runs backwards from the last value."""
    discount = GAMMA * (1.0 - done.float())
    item = reward + discount * (1 - LAMBDA) * next_value
    return scanops.linear_scan(discount * LAMBDA, item, 0, reverse=True, initial=next_value[-1])


def v_trace_by_steps(
    reward: torch.Tensor, value: torch.Tensor, next_value: torch.Tensor, done: torch.Tensor, ratio: torch.Tensor
) -> torch.Tensor:
    """Return V-trace targets of tensors [time, environments], by a loop; ``ratio`` of the policies' probabilities."""
    found, last = torch.zeros_like(reward), torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        discount, clipped = GAMMA * (1.0 - done[t].float()), ratio[t].clamp(max=1.0)
        delta = clipped * (reward[t] + discount * next_value[t] - value[t])
        last = delta + discount * clipped * last
        found[t] = value[t] + last
    return found


def v_trace_by_scan(
    reward: torch.Tensor, value: torch.Tensor, next_value: torch.Tensor, done: torch.Tensor, ratio: torch.Tensor
) -> torch.Tensor:
    """Return V-trace targets by one recurrence that runs backwards."""
    discount, clipped = GAMMA * (1.0 - done.float()), ratio.clamp(max=1.0)
    delta = clipped * (reward + discount * next_value - value)
    return value + scanops.linear_scan(discount * clipped, delta, 0, reverse=True)


def average_by_steps(x: torch.Tensor) -> torch.Tensor:
    """Return an exponential moving average along dimension 1, by a loop."""
    h, found = torch.zeros_like(x[:, 0]), []
    for item in x.unbind(1):
        h = 0.9 * h + 0.1 * item
        found.append(h)
    return torch.stack(found, 1)


def uses(device: str, small: bool = False) -> Iterator[Use]:
    """Yield the uses; ``small`` makes the tensors small."""
    random = torch.Generator(device).manual_seed(2026)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=random)

    for steps, lanes in ((20, 3),) if small else ((128, 8), (1024, 256)):
        reward, value, following = (normal(steps, lanes) for _ in range(3))
        done = normal(steps, lanes) > 2
        sizes = f"{steps} steps of {lanes} environments"

        def estimate(reward: torch.Tensor, value: torch.Tensor, following: torch.Tensor, done: torch.Tensor) -> Any:
            return generalized_advantage_estimate(GAMMA, LAMBDA, value, following, reward, done, time_dim=0)

        def use(name: str, ours: Function, today: Function, *inputs: torch.Tensor, sizes: str = sizes) -> Use:
            return Use(
                name=f"{name}, {sizes}", page="advantages", inputs=inputs, ours=ours, today=today, compiles=False
            )

        given = reward, value, following, done
        yield use("generalized_advantage_estimate", estimate, advantages_by_steps, *given)
        yield use("TD(lambda)", returns_by_scan, returns_by_steps, reward, following, done)
        yield use("V-trace", v_trace_by_scan, v_trace_by_steps, *given, normal(steps, lanes).exp())

    tokens = 300 if small else 128256
    for rows in (2,) if small else (1, 32, 256):
        yield Use(
            name=f"top-p, {rows} x {tokens}",
            page="top-p",
            inputs=(normal(rows, tokens),),
            ours=partial(top_p_by, lambda p: scanops.cumsum(p, -1, exclusive=True)),
            today=partial(top_p_by, lambda p: p.cumsum(-1) - p),
        )
    rays, samples = (7, 40) if small else (65536, 128)
    yield Use(
        name=f"weights of samples, {rays} rays of {samples}",
        page="transmittance",
        inputs=(torch.rand((rays, samples), device=device, generator=random) * 0.1,),
        ours=lambda alpha: alpha * scanops.cumprod(1 - alpha, -1, exclusive=True),
        today=lambda alpha: alpha * torch.cumprod(F.pad(1 - alpha, (1, 0), value=1.0), -1)[:, :-1],
        trains=True,
    )
    tokens, experts = (50, 5) if small else (65536, 64)
    expert = torch.randint(experts, (tokens,), device=device, generator=random)

    def positions_by(scan: Function, expert: torch.Tensor) -> torch.Tensor:
        return scan(F.one_hot(expert, experts)).gather(1, expert[:, None]).squeeze(1)  # type: ignore[no-any-return]

    yield Use(
        name=f"positions of {tokens} tokens among {experts} experts",
        page="expert-positions",
        inputs=(expert,),
        ours=partial(positions_by, lambda x: scanops.cumsum(x, 0, initial=-1)),
        today=partial(positions_by, lambda x: torch.cumsum(x, 0) - 1),
    )
    shape = (3, 40) if small else (1024, 4096)
    yield Use(
        name=f"moving average, {shape[0]} x {shape[1]}, dim 1",
        page="moving-average",
        inputs=(normal(*shape),),
        ours=lambda x: scanops.linear_scan(torch.full((), 0.9, device=x.device), 0.1 * x, 1),
        today=average_by_steps,
        compiles=False,
        trains=True,
    )
    shape = (2, 50) if small else (16, 48000)
    yield Use(
        name=f"low-pass filter, {shape[0]} signals of {shape[1]} samples",
        page="audio-filters",
        inputs=(normal(*shape),),
        ours=lambda x: scanops.linear_scan(torch.full((), 0.9, device=x.device), 0.1 * x, 1),
        today=average_by_steps,
        compiles=False,
    )
    length, features, count = (60, 3, 4) if small else (65536, 64, 64)
    bounds = [length * n // count for n in range(count + 1)]
    offsets = torch.tensor(bounds, device=device, dtype=torch.int32)
    yield Use(
        name=f"{count} packed sequences, {length} x {features}, dim 0",
        page="cu-seqlens",
        inputs=(normal(length, features),),
        ours=lambda x: scanops.cumsum(x, 0, offsets=offsets),
        today=lambda x: torch.cat([x[begin:end].cumsum(0) for begin, end in itertools.pairwise(bounds)]),
        trains=True,
    )
    height, width = (20, 30) if small else (2160, 3840)
    yield Use(
        name=f"integral image, {height} x {width}",
        page="integral-images",
        inputs=(torch.rand((height, width), device=device, generator=random),),
        ours=lambda x: scanops.cumsum(scanops.cumsum(x, 1, complete=True), 0, complete=True),
        today=lambda x: F.pad(x.cumsum(1).cumsum(0), (1, 0, 1, 0)),
    )
    shape = (3, 40) if small else (4096, 4096)
    yield Use(
        name=f"logcumsumexp, {shape[0]} x {shape[1]}, dim 1",
        page="log-space",
        inputs=(normal(*shape),),
        ours=lambda x: scanops.logcumsumexp(x, 1),
        today=lambda x: torch.logcumsumexp(x, 1),
        trains=True,
    )
    for each in drop_ins(device, small):
        if each.name.startswith(WITHOUT_PAGE):
            yield Use(
                name=each.name,
                page="",
                inputs=each.inputs,
                ours=each.ours,
                today=each.formula,
                compiles=False,
                trains=True,
            )


def worst_difference(each: Use) -> float:
    """Return the greatest difference of a result or a gradient, relative to the greatest finite value."""
    run = run_with_gradients if each.trains else run_forward
    found = 0.0
    for y, wanted in zip(run(each.ours, each.inputs), run(each.today, each.inputs), strict=True):
        finite = wanted.isfinite()
        if not torch.equal(finite, y.isfinite()):
            # Where a sum is next to the threshold of top-p, rounding decides whether one more token is kept.
            found = max(found, float((finite != y.isfinite()).double().mean()))
        both = finite & y.isfinite()
        scale = wanted[both].abs().max().clamp(min=1e-30)
        found = max(found, float((y[both] - wanted[both]).abs().max() / scale))
    return found


def measure(each: Use, timer: Timer) -> Row:
    """Return microseconds and peak bytes of scanops, of today's code, and of that under torch.compile."""
    functions = {"scanops": each.ours, "today": each.today}
    row: Row = {}
    moved = 2 * sum(tensor.nbytes for tensor in each.inputs)
    for name, run in (("forward", run_forward), ("training", run_with_gradients)):
        if name == "training" and not each.trains:
            continue
        torch.compiler.reset()
        compiled = {"compiled": torch.compile(each.today, dynamic=False)} if each.compiles else {}
        runs = {key: partial(run, function, each.inputs) for key, function in (functions | compiled).items()}
        for key in list(runs):
            try:
                runs[key]()
            except Exception as problem:  # a peer that fails is a figure less, not the end of the run
                if key == "scanops":
                    raise
                row[f"{key}: not measured"] = f"{type(problem).__name__}: {str(problem)[:120]}"
                del runs[key]
        peaks = {key: peak_bytes(call) for key, call in runs.items()}
        loop = {} if each.compiles or "today" not in runs else {"today": timer.once(runs.pop("today"), moved)}
        times = {key: sample.ms for key, sample in timer.samples(runs, moved).items()} | loop
        row[name] = {key: round(times[key] * 1e3, 1) for key in functions | compiled if key in times}
        row[f"{name}_bytes"] = peaks
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Check and measure every use and print a JSON line for each; return 1 where a result is wrong."""
    options = parser(__doc__, filtered="uses")
    options.add_argument("--small", action="store_true", help="compare results on small tensors, and measure nothing")
    given = options.parse_args(arguments)
    if not given.small:
        require_gpu()
        native.get(build=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lines: list[Row] = [surroundings()]
    wrong = False
    with scanops.emulate() if device == "cpu" else contextlib.nullcontext():
        for each in uses(device, given.small):
            if given.filter not in each.name:
                continue
            difference = worst_difference(each)
            line: Row = {"name": each.name, "page": each.page, "difference": float(f"{difference:.1e}")}
            wrong |= not difference < NEAR
            if not given.small:
                line |= measure(each, Timer(BUDGET))
                torch.cuda.empty_cache()
            lines.append(line)
            print(json.dumps(line), flush=True)
    if given.output is not None:
        given.output.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return int(wrong)
