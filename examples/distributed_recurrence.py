"""A gated recurrence trained with its sequence sharded over ranks, to the losses of one process.

    python -m torch.distributed.run --nproc-per-node 4 examples/distributed_recurrence.py

Each rank holds a part of the time steps, of lengths that differ, and all weights. The layers mix channels at each time
step, which needs no other rank; along time there are only scans. With gloo on CPUs, or NCCL where each rank has a GPU.
Afterwards the first rank trains alone on whole sequences and compares the losses; the exit status is 1 if they differ.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import scanops
import scanops.distributed as sd

BATCH, CHANNELS, SYMBOLS = 8, 16, 6
MOST_APART = 1e-9  # relative, of losses in float64


class Model(nn.Module):
    """Two gated recurrences forward and backward in time, each ``h[t] = a[t] * h[t-1] + (1 - a[t]) * v[t]``."""

    def __init__(self, scan: Callable[..., Tensor]) -> None:
        super().__init__()
        self.scan = scan
        self.embed = nn.Embedding(SYMBOLS, CHANNELS)
        self.gates = nn.ModuleList(nn.Linear(CHANNELS, CHANNELS) for _ in range(2))
        self.values = nn.ModuleList(nn.Linear(CHANNELS, CHANNELS) for _ in range(2))
        self.start = nn.Parameter(torch.zeros(CHANNELS))  # the state before the first step
        self.readout = nn.Linear(CHANNELS, SYMBOLS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [batch, time, symbols] of tokens [batch, time]."""
        x = self.embed(tokens)
        for layer, (gate, value) in enumerate(zip(self.gates, self.values, strict=True)):
            a = torch.sigmoid(gate(x) + 2)
            initial = self.start.expand(len(x), -1)
            x = x + torch.tanh(self.scan(a, (1 - a) * value(x), 1, initial=initial, reverse=layer == 1))
        return self.readout(x)


def sequences(step: int, length: int) -> tuple[Tensor, Tensor]:
    """Tokens, and at each time step the last token before it that was not 0, the answer."""
    make = torch.Generator().manual_seed(step)
    tokens = torch.randint(1, SYMBOLS, (BATCH, length), generator=make)
    tokens = tokens * (torch.rand(tokens.shape, generator=make) < 0.2)
    places = torch.arange(length) * (tokens != 0)
    return tokens, tokens.gather(1, scanops.scan(places, "max", 1))


def train(scan: Callable[..., Tensor], part: slice, steps: int, length: int, device: Any, summed: bool) -> list[float]:
    """Return the loss of each step; ``summed``: gradients and losses are sums over ranks with a part each."""
    torch.manual_seed(0)
    model = Model(scan).to(device, torch.float64)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.02), []
    for step in range(steps):
        tokens, answers = (each[:, part].to(device) for each in sequences(step, length))
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten(), reduction="sum") / (BATCH * length)
        optimizer.zero_grad()
        loss.backward()
        loss = loss.detach()
        for each in [loss, *(p.grad for p in model.parameters())] if summed else []:
            dist.all_reduce(each)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> int:
    """Train sharded, then alone on the first rank; return 1 if the losses differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--length", type=int, default=96, help="time steps of a whole sequence")
    given = parser.parse_args()
    local, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    on_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= ranks
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # Later ranks have longer parts: rank r has those between r (r + 1) and (r + 1) (r + 2) of ranks (ranks + 1).
    bounds = [given.length * r * (r + 1) // (ranks * (ranks + 1)) for r in range(ranks + 1)]
    losses = train(sd.linear_scan, slice(*bounds[rank : rank + 2]), given.steps, given.length, device, summed=True)
    status = 0
    if rank == 0:
        alone = train(scanops.linear_scan, slice(None), given.steps, given.length, device, summed=False)
        apart = max(abs(a - b) / b for a, b in zip(losses, alone, strict=True))
        print(f"{ranks} ranks with {[b - a for a, b in pairwise(bounds)]} of the time steps")
        print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}; alone {alone[0]:.4f} to {alone[-1]:.4f}")
        print(f"losses {'DIFFER' if apart > MOST_APART else 'agree'}: at most {apart:.1e} apart, relative")
        status = int(not apart <= MOST_APART)
    dist.barrier()
    dist.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
