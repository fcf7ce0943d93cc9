"""Time each function of ``scanops.compat`` beside the formula that it replaces, and beside the original if installed.

The formula is what its authors give as reference, in plain PyTorch: for most a loop over time. The original is the
function of the other package (mamba_ssm, fla, accelerated_scan, torchrl), and torch's own ``associative_scan`` under
``torch.compile``. Results and gradients are compared with the formula's first. Prints a JSON line for each function:
microseconds of a forward pass, and of one with its backward pass. ``--small`` compares small tensors on any device and
times nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._higher_order_ops import associative_scan
from torch.nn import functional

import scanops
from benchmarks.common import Row, parser, require_gpu, surroundings
from benchmarks.timing import Timer
from scanops import compat
from scanops.runtime import native

BUDGET = 0.1  # seconds of runs for each figure
NEAR = 2e-3  # relative to the greatest value, in float32
Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Any]  # of the inputs: a tensor, or a tuple of them


@dataclass(frozen=True, slots=True, kw_only=True)
class DropIn:
    """A function of ``scanops.compat``, with the inputs of a real model."""

    name: str
    inputs: Tensors
    ours: Function
    formula: Function
    original: tuple[str, str]  # its module and its name
    call: Function  # (original, *inputs)
    trains: bool = True

    def find_original(self) -> Function | None:
        """Return the original as a function of the inputs, None where its package is not installed."""
        try:
            return partial(self.call, getattr(importlib.import_module(self.original[0]), self.original[1]))
        except (ImportError, AttributeError):
            return None


def selective_scan_by_steps(u: torch.Tensor, delta: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """Return the output of a selective state-space layer, step by step."""
    a, b, c, d, z = others
    steps = functional.softplus(delta)
    gates = torch.exp(steps.unsqueeze(-1) * a.unsqueeze(1))  # batch, channel, time, state
    items = torch.einsum("bdl,bnl,bdl->bdln", steps, b, u)
    h, found = torch.zeros_like(gates[:, :, 0]), []
    for gate, item, weights in zip(gates.unbind(2), items.unbind(2), c.unbind(2), strict=True):
        h = gate * h + item
        found.append(torch.einsum("bdn,bn->bd", h, weights))
    return (torch.stack(found, -1) + u * d.unsqueeze(-1)) * functional.silu(z)


def sum_by_chunks(g: torch.Tensor, chunk: int) -> torch.Tensor:
    """Return cumulative sums along dimension 1 that start again in each chunk."""
    return g.reshape(len(g), -1, chunk, *g.shape[2:]).cumsum(2).reshape(g.shape)


def sum_by_sequences(s: torch.Tensor, bounds: Sequence[int]) -> torch.Tensor:
    """Return cumulative sums along dimension 1 of packed sequences."""
    sizes = [stop - start for start, stop in itertools.pairwise(bounds)]
    return torch.cat([each.cumsum(1) for each in torch.split(s, sizes, 1)], 1)


def scan_by_steps(gates: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return ``h[t] = gates[t] * h[t-1] + tokens[t]`` along the last dimension, step by step."""
    h, found = torch.zeros_like(tokens[..., 0]), []
    for gate, token in zip(gates.unbind(-1), tokens.unbind(-1), strict=True):
        h = gate * h + token
        found.append(h)
    return torch.stack(found, -1)


def advantages_by_steps(*given: torch.Tensor) -> Tensors:
    """Return advantages and value targets, step by step; time is dimension -2."""
    value, following, reward, done, terminated = given
    delta = reward + 0.99 * (1 - terminated) * following - value
    gates = 0.99 * 0.95 * (1 - done)
    last, found = torch.zeros_like(reward[:, 0]), []
    for t in reversed(range(reward.shape[1])):
        last = delta[:, t] + gates[:, t] * last
        found.append(last)
    advantage = torch.stack(found[::-1], 1)
    return advantage, advantage + value


def recur(older: Tensors, newer: Tensors) -> Tensors:
    """Combine ``h -> a h + b``."""
    return newer[0] * older[0], newer[0] * older[1] + newer[1]


def rotate(older: Tensors, newer: Tensors) -> Tensors:
    """Combine plane rotations with a scale, each a pair of numbers: a product of complex numbers."""
    return older[0] * newer[0] - older[1] * newer[1], older[0] * newer[1] + older[1] * newer[0]


def scan_compiled(combine: Function, function: Function, *given: torch.Tensor) -> Tensors:
    """Return torch's own scan of a tuple of tensors along dimension 1, which has to be compiled for a GPU."""
    if combine not in _COMPILED:
        _COMPILED[combine] = torch.compile(lambda *given: function(combine, given, 1))
    return _COMPILED[combine](*given)  # type: ignore[no-any-return]


_COMPILED: dict[Function, Function] = {}


def drop_ins(device: str, small: bool = False) -> Iterator[DropIn]:
    """Yield the functions with their inputs; ``small`` makes the tensors small."""
    random = torch.Generator(device).manual_seed(2026)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=random)

    batch, channels, states, length = (2, 3, 4, 33) if small else (4, 1536, 16, 1024)
    wide = normal(batch, channels, length), normal(batch, channels, length)
    narrow = normal(batch, states, length), normal(batch, states, length)
    inputs = (*wide, -normal(channels, states).exp(), *narrow, normal(channels), normal(batch, channels, length))

    def select(function: Function, *given: torch.Tensor) -> Any:
        return function(*given, delta_softplus=True)

    yield DropIn(
        name=f"selective_scan_fn, batch {batch}, {channels} channels, {states} states, {length} steps",
        inputs=inputs,
        ours=partial(select, compat.selective_scan_fn),
        formula=selective_scan_by_steps,
        original=("mamba_ssm.ops.selective_scan_interface", "selective_scan_fn"),
        call=select,
    )
    batch, length, heads, chunk = (2, 64, 3, 16) if small else (8, 8192, 32, 64)
    gates = -normal(batch, length, heads).exp()
    yield DropIn(
        name=f"chunk_local_cumsum, {batch} x {length} x {heads}, chunks of {chunk}",
        inputs=(gates,),
        ours=partial(compat.chunk_local_cumsum, chunk_size=chunk),
        formula=partial(sum_by_chunks, chunk=chunk),
        original=("fla.ops.utils", "chunk_local_cumsum"),
        call=lambda function, g: function(g, chunk_size=chunk),
    )
    bounds = [0, *range(length // 10, length, length // 7), length]
    offsets = torch.tensor(bounds, device=device)
    forms: tuple[tuple[str, dict[str, Any], Function], ...] = (
        ("whole sequences", {}, partial(torch.cumsum, dim=1)),
        (f"{len(bounds) - 1} packed sequences", {"cu_seqlens": offsets}, partial(sum_by_sequences, bounds=bounds)),
    )
    for name, options, formula in forms:
        s = gates[:1] if options else gates
        yield DropIn(
            name=f"chunk_global_cumsum, {' x '.join(map(str, s.shape))}, {name}",
            inputs=(s,),
            ours=partial(compat.chunk_global_cumsum, **options),
            formula=formula,
            original=("fla.ops.utils", "chunk_global_cumsum"),
            call=partial(lambda function, s, options: function(s, **options), options=options),
        )
    shape = (2, 3, 64) if small else (8, 1536, 2048)
    yield DropIn(
        name=f"scan of gates and tokens, {' x '.join(map(str, shape))}",
        inputs=(normal(*shape).sigmoid(), normal(*shape)),
        ours=compat.scan,
        formula=scan_by_steps,
        original=("accelerated_scan.warp", "scan"),
        call=lambda function, *given: function(*given),
    )
    shape = (3, 16, 1) if small else (256, 1024, 1)
    ends = tuple((torch.rand(shape, device=device, generator=random) < 0.01).float() for _ in range(2))
    done = torch.maximum(*ends)

    def estimate(function: Function, *given: torch.Tensor) -> Any:
        return function(0.99, 0.95, *given[:3], *(each.bool() for each in given[3:]))

    yield DropIn(
        name=f"generalized_advantage_estimate, {shape[0]} environments, {shape[1]} steps",
        inputs=(normal(*shape), normal(*shape), normal(*shape), done, ends[0]),
        ours=partial(estimate, compat.generalized_advantage_estimate),
        formula=advantages_by_steps,
        original=("torchrl.objectives.value.functional", "generalized_advantage_estimate"),
        call=estimate,
        trains=False,
    )
    shape = (2, 16, 3) if small else (8, 4096, 256)
    for name, combine, tensors in (
        ("a linear recurrence", recur, (normal(*shape).sigmoid(), normal(*shape))),
        ("a function of two pairs", rotate, tuple(functional.normalize(normal(2, *shape), dim=0) * 0.999)),
    ):
        yield DropIn(
            name=f"associative_scan of {name}, {' x '.join(map(str, shape))}",
            inputs=tensors,
            ours=partial(lambda *given, combine: compat.associative_scan(combine, given, 1), combine=combine),
            formula=partial(
                lambda *given, combine: associative_scan(combine, given, 1, combine_mode="generic"), combine=combine
            ),
            original=("torch._higher_order_ops", "associative_scan"),
            call=partial(scan_compiled, combine),
            trains=False,  # torch's own differentiates no tuples of several tensors in eager code
        )


def run_with_gradients(function: Function, inputs: Tensors) -> Tensors:
    """Return the results of a function and the gradients of the sum of their squares."""
    leaves = [each.detach().requires_grad_() for each in inputs]
    found = function(*leaves)
    found = found if isinstance(found, tuple) else (found,)
    total = torch.stack([each.square().sum() for each in found]).sum()
    return (*(each.detach() for each in found), *torch.autograd.grad(total, leaves))


def run_forward(function: Function, inputs: Tensors) -> Tensors:
    """Return the results of a function as a tuple."""
    with torch.no_grad():
        found = function(*inputs)
    return found if isinstance(found, tuple) else (found,)


def worst_difference(function: Function, each: DropIn) -> float:
    """Return the greatest difference of a result or a gradient from the formula's, relative to its greatest value."""
    run = run_with_gradients if each.trains else run_forward
    pairs = zip(run(function, each.inputs), run(each.formula, each.inputs), strict=True)
    return max(float((y - wanted).abs().max() / wanted.abs().max()) for y, wanted in pairs)


def measure(each: DropIn, timer: Timer) -> Row:
    """Return microseconds of scanops, of the formula and of the original, None for a missing original."""
    functions = {"scanops": each.ours, "formula": each.formula, "original": each.find_original()}
    moved = 2 * sum(tensor.nbytes for tensor in each.inputs)
    row: Row = {}
    for name, run in (("forward", run_forward), ("training", run_with_gradients)):
        if name == "training" and not each.trains:
            continue
        runs = {key: partial(run, function, each.inputs) for key, function in functions.items() if function}
        if "original" in runs:
            try:
                runs["original"]()
            except Exception as problem:  # it refuses this GPU, this torch or these tensors, which is a result
                del runs["original"]
                row["problem"] = f"{type(problem).__name__}: {str(problem)[:200]}"
        found = timer.samples(runs, moved)
        row[name] = {key: round(found[key].ms * 1e3, 1) if key in found else None for key in functions}
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Check and measure every function and print a JSON line for each; return 1 where a result is wrong."""
    options = parser(__doc__, filtered="functions")
    options.add_argument("--small", action="store_true", help="compare results on small tensors, and time nothing")
    given = options.parse_args(arguments)
    if not given.small:
        require_gpu()
        native.get(build=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lines, wrong = [surroundings()], False
    with scanops.emulate() if device == "cpu" else contextlib.nullcontext():
        for each in drop_ins(device, given.small):
            if given.filter not in each.name:
                continue
            difference = worst_difference(each.ours, each)
            line: Row = {"name": each.name, "difference": float(f"{difference:.1e}")}
            wrong |= not difference < NEAR
            if not given.small:
                line |= measure(each, Timer(BUDGET))
            lines.append(line)
            print(json.dumps(line), flush=True)
    if given.output is not None:
        given.output.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return int(wrong)
