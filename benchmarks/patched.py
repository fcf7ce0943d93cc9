"""Run unmodified programs with and without ``scanops.patch_torch``: the same results, and the time of each.

Each program runs with small tensors, where the host is what takes time, and with large ones. The C++ call path is built
first. Prints a JSON line for each measurement, and writes the same lines to the file of ``--output``. Host times are
microseconds per call, times of programs milliseconds per step until the GPU has done its work, all as medians of
rounds that alternate between the two. ``--small`` compares small tensors on any device and times nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

import scanops
from benchmarks.common import Row, parser, require_gpu, surroundings
from benchmarks.timing import host_microseconds, milliseconds
from scanops.runtime import native

ROUNDS, FEWEST_ROUNDS = 11, 3
STEPS = 8  # of a program in a round, fewer where they take more than ROUND_MS
ROUND_MS, PROGRAM_MS = 50.0, 4000.0  # of a round, and of all rounds of a program
CALLS = 500  # of a function in a round
Step = Callable[[], tuple[torch.Tensor, ...]]  # returns what is compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A step of an unmodified program."""

    name: str
    step: Step
    tolerance: float = 1e-3  # float32 sums of other orders


def top_p_step(logits: torch.Tensor, top_p: float) -> tuple[torch.Tensor]:
    """Return the probabilities that nucleus sampling draws from, as generation loops write it."""
    ordered, indices = torch.sort(logits, descending=False)
    cumulative = ordered.softmax(dim=-1).cumsum(dim=-1)
    removed = cumulative <= (1 - top_p)
    removed[..., -1:] = False
    mask = removed.scatter(1, indices, removed)
    return (logits.masked_fill(mask, -float("inf")).softmax(dim=-1),)


def segment_sums(x: torch.Tensor) -> torch.Tensor:
    """Return the sums over all sub-ranges of the last dimension, -inf above the diagonal."""
    length = x.shape[-1]
    x = x[..., None].expand(*x.shape, length)
    below = torch.ones(length, length, device=x.device, dtype=torch.bool).tril(-1)
    sums = x.masked_fill(~below, 0).cumsum(-2)
    return sums.masked_fill(~below.new_ones(length, length).tril(), -torch.inf)


def state_space_duality(chunk: int, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Return a selective state-space layer by blocks: x[b, t, h, p], gates of a[b, t, h], b and c[b, t, h, n]."""
    tensors = (x, -F.softplus(a), b, c)
    x, a, b, c = (each.reshape(len(each), -1, chunk, *each.shape[2:]) for each in tensors)
    a = a.permute(0, 3, 1, 2)
    sums = a.cumsum(-1)
    within = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", c, b, segment_sums(a).exp(), x)
    decays = (sums[..., -1:] - sums).exp()
    states = torch.einsum("bclhn,bhcl,bclhp->bchpn", b, decays, x)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
    across = segment_sums(F.pad(sums[..., -1], (1, 0))).exp()
    states = torch.einsum("bhzc,bchpn->bzhpn", across, states)[:, :-1]
    between = torch.einsum("bclhn,bchpn,bhcl->bclhp", c, states, sums.exp())
    return (within + between).flatten(1, 2)


def advantages(rewards: torch.Tensor, values: torch.Tensor, dones: torch.Tensor) -> torch.Tensor:
    """Return generalised advantages by a loop over time, which has no scan to patch."""
    found, last = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        going = 1.0 - dones[t + 1]
        delta = rewards[t] + 0.99 * values[t + 1] * going - values[t]
        found[t] = last = delta + 0.99 * 0.95 * going * last
    return found


def composite(density: torch.Tensor, color: torch.Tensor) -> torch.Tensor:
    """Return the colours of rays from samples along them: transmittance is an exclusive product."""
    alpha = 1 - torch.exp(-F.relu(density) * 0.01)
    passed = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
    return (alpha * passed).unsqueeze(-1).mul(color).sum(-2)


def with_gradients(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> Step:
    """Return a step that computes a function and the gradients of the sum of its squares."""
    leaves = tuple(each.detach().requires_grad_() for each in tensors)

    def step() -> tuple[torch.Tensor, ...]:
        y = function(*leaves)
        return (y.detach(), *torch.autograd.grad(y.square().sum(), leaves))

    return step


def programs(device: str, small: bool) -> Iterator[Program]:
    """Yield the programs; ``small`` makes their tensors small."""

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, device=device)

    for rows in (1, 32):
        logits = torch.randn(rows, 500 if small else 128256, device=device) * 3
        yield Program(name=f"top-p sampling, rows: {rows}", step=partial(top_p_step, logits, 0.9))
    length, heads, width = (32, 2, 4) if small else (2048, 24, 64)
    shapes = ((2, length, heads, width), (2, length, heads), *((2, length, heads, width),) * 2)
    chunk = 16 if small else 64
    layer = with_gradients(partial(state_space_duality, chunk), *(random(*shape) - 0.5 for shape in shapes))
    yield Program(name="state-space layer in blocks, forward and backward", step=layer)
    steps, lanes = (16, 3) if small else (128, 64)
    given = random(steps, lanes), random(steps + 1, lanes), (random(steps + 1, lanes) < 0.02).float()
    yield Program(name="advantages by a loop", step=lambda: (advantages(*given),))
    rays = 50 if small else 8192
    yield Program(
        name="compositing of rays, forward and backward",
        step=with_gradients(composite, random(rays, 192) * 20, random(rays, 192, 3)),
    )
    yield from _of_transformers(device, small)


def _of_transformers(device: str, small: bool) -> Iterator[Program]:
    """Models of transformers, without their own kernels, where that package is installed."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM, Mamba2Config, Mamba2ForCausalLM
    except ImportError:
        return
    width = 32 if small else 256
    torch.manual_seed(0)
    config = Mamba2Config(
        num_heads=width // 16,
        head_dim=32,
        hidden_size=width,
        state_size=16,
        n_groups=1,
        num_hidden_layers=2,
        vocab_size=1000,
        chunk_size=16 if small else 64,
    )
    model = Mamba2ForCausalLM(config).to(device)
    ids = torch.randint(1000, (2, 32 if small else 512), device=device)

    def train() -> tuple[torch.Tensor, ...]:
        model.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return (loss.detach(), model.backbone.layers[0].mixer.in_proj.weight.grad.clone())

    yield Program(name="transformers: Mamba2ForCausalLM, training step", step=train, tolerance=1e-2)
    llama = LlamaConfig(
        hidden_size=width, intermediate_size=width, num_hidden_layers=2, num_attention_heads=4, vocab_size=32000
    )
    writer = LlamaForCausalLM(llama).to(device).eval()

    def generate() -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        tokens = 8 if small else 64
        return (writer.generate(ids[:, :16], do_sample=True, top_p=0.9, max_new_tokens=tokens, pad_token_id=0),)

    yield Program(name="transformers: generate with top_p", step=generate, tolerance=0)


def check(program: Program) -> None:
    """Raise AssertionError where a program has other results inside of the block."""
    expected = program.step()
    with scanops.patch_torch():
        for _ in range(3):  # by a kernel that is built, found, and served again
            found = program.step()
    torch.testing.assert_close(found, expected, rtol=program.tolerance, atol=program.tolerance)


def alternate(measure: Callable[[], float], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the medians of rounds without and with the patch, after one of each."""
    times: dict[str, list[float]] = {"plain": [], "patched": []}
    for number in range(rounds + 1):
        for name, found in times.items():
            with scanops.patch_torch() if name == "patched" else contextlib.nullcontext():
                took = measure()
            found += [took] if number else []
    plain, patched = (statistics.median(found) for found in times.values())
    return {"plain": round(plain, 4), "patched": round(patched, 4), "ratio": round(patched / plain, 4)}


def step_time(step: Step, steps: int) -> float:
    """Return milliseconds per step of a program, after one, in which the dispatcher finds the kernels of the block."""
    step()
    return milliseconds(lambda: [step() for _ in range(steps)]) / steps


def program_times(step: Step) -> dict[str, float]:
    """Return the medians of a program, in as many rounds as its budget allows."""
    one = step_time(step, 1)  # milliseconds
    steps = max(1, min(STEPS, int(ROUND_MS / one)))
    rounds = max(FEWEST_ROUNDS, min(ROUNDS, int(PROGRAM_MS / (2 * steps * one))))
    return alternate(partial(step_time, step, steps), rounds)


def host_time(function: Callable[..., Any], *arguments: Any) -> float:
    """Return microseconds of host time per call."""
    return statistics.median(host_microseconds(partial(function, *arguments), CALLS, 3))


def host_times() -> Iterator[Row]:
    """Yield host microseconds of a function that is not patched, and of scans with and without the patch.

    Scans of 4 x 1000 stay with torch, those of 64 x 8192 do not; nor does one of a length that no call had before.
    """
    small, large = torch.rand(4, 1000, device="cuda"), torch.rand(64, 8192, device="cuda")
    yield {"name": "torch.flip, host us", **alternate(partial(host_time, torch.flip, small, (1,)))}
    for name, x, gradient in itertools.product(("cumsum", "cummax"), (small, large), (False, True)):
        argument = x.clone().requires_grad_(gradient)
        found = alternate(partial(host_time, getattr(torch, name), argument, 1))
        found["scanops"] = round(host_time(getattr(scanops, name), argument, 1), 4)
        found["over scanops"] = round(found["patched"] - found["scanops"], 4)
        shape = "x".join(map(str, x.shape))
        yield {"name": f"torch.{name} of {shape}, host us" + ", with gradient" * gradient, **found}
    mask, lengths = torch.ones(8, 2048, dtype=torch.int64, device="cuda"), itertools.cycle(range(1, 2048))
    growing = alternate(partial(host_time, lambda: torch.cumsum(mask[:, : next(lengths)], 1)))
    yield {"name": "torch.cumsum of 8 x another length each, host us", **growing}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check and measure every program and print a JSON line for each."""
    options = parser(__doc__, filtered="programs")
    options.add_argument("--small", action="store_true", help="compare results on small tensors, and time nothing")
    given = options.parse_args(arguments)
    if not given.small:
        require_gpu()
        native.get(build=True)  # half a minute, and then in the store
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lines: list[Row] = [surroundings()]

    def say(line: Row) -> None:
        lines.append(line)
        print(json.dumps(line), flush=True)

    with scanops.emulate() if device == "cpu" else contextlib.nullcontext():
        for small in (True,) if given.small else (True, False):
            for program in programs(device, small):
                if given.filter not in program.name:
                    continue
                check(program)
                name = f"{program.name}, {'small' if small else 'large'}"
                if given.small:
                    say({"name": name, "equal": True})
                else:
                    say({"name": f"{name}, ms", **program_times(program.step)})
    if not given.small and not given.filter:
        for line in host_times():
            say(line)
    if given.output is not None:
        given.output.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return 0
