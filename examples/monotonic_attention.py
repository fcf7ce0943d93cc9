"""Hard monotonic attention with an exact likelihood: python examples/monotonic_attention.py.

Frames are read from left to right. Output u looks at frame t and stops there with probability p[u, t], or goes on to
the next; where it stops the symbol is told, and there the search for the following one begins. The probability of the
symbols up to u with output u at frame t is, in logarithms,

    passed[u, t] = log(1 - p[u, 0]) + ... + log(1 - p[u, t-1])
    alpha[u, t]  = log q[t, symbol u] + log p[u, t] + passed[u, t] + logcumsumexp(alpha[u-1] - passed[u])[t]

and the loss is -logsumexp(alpha[last]): all alignments are summed up, as in CTC. Source: Raffel, Luong, Liu, Weiss and
Eck, "Online and Linear-Time Attention by Enforcing Monotonic Alignments" (2017), whose cumulative product and quotient
are here a sum and a difference, which neither vanish nor divide; with the likelihood of Wu and Cotterell, "Exact Hard
Monotonic Attention for Character-Level Transduction" (2019).

The task is that of a recogniser: each symbol lasts some frames, which are its code and noise; no two neighbours are the
same.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

import training
from scans import SCANOPS, TORCH, Scans

SYMBOLS = 8
FEATURES = 8  # of a frame
NOISE = 1.0  # beside codes of deviation 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(training.Size):
    """Of the model and of its data."""

    batch: int
    frames: int
    outputs: int
    channels: int


class MonotonicAttention(nn.Module):
    """Frames [batch, frames, FEATURES] and symbols [batch, outputs] to the log likelihood of the symbols [batch]."""

    def __init__(self, size: Size, scans: Scans = SCANOPS) -> None:
        super().__init__()
        self.scans, self.scale = scans, size.channels**-0.5
        self.encoder = nn.Linear(3 * FEATURES, size.channels)  # of a frame and its neighbours
        self.keys = nn.Linear(size.channels, size.channels)
        self.queries = nn.Embedding(SYMBOLS + 1, size.channels)  # of the symbol before; the last one: of none
        self.stops = nn.Parameter(torch.tensor(size.outputs / size.frames).logit())  # as often as symbols begin
        self.tells = nn.Linear(size.channels, SYMBOLS)

    def forward(self, frames: Tensor, symbols: Tensor) -> Tensor:
        edged = functional.pad(frames, (0, 0, 1, 1))
        states = functional.silu(self.encoder(torch.cat((edged[:, :-2], frames, edged[:, 2:]), dim=-1)))
        before = functional.pad(symbols[:, :-1], (1, 0), value=SYMBOLS)
        energy = self.scale * self.queries(before) @ self.keys(states).mT + self.stops  # [batch, outputs, frames]
        told = functional.log_softmax(self.tells(states), dim=-1).mT
        told = told.gather(1, symbols.unsqueeze(-1).expand_as(energy))

        passed = self.scans.cumsum(functional.logsigmoid(-energy), -1, exclusive=True)
        here = told + functional.logsigmoid(energy) + passed
        alpha = here[:, 0]
        for u in range(1, symbols.shape[1]):
            alpha = here[:, u] + self.scans.logcumsumexp(alpha - passed[:, u], -1)
        return alpha.logsumexp(-1)


def batch(size: Size, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Frames and symbols."""
    steps = torch.randint(1, SYMBOLS, (size.batch, size.outputs), generator=generator)
    symbols = steps.cumsum(1) % SYMBOLS
    # Where symbols begin: some frames of all but the first, drawn without repetition.
    drawn = torch.rand((size.batch, size.frames - 1), generator=generator).argsort(1)[:, : size.outputs - 1]
    begins = torch.zeros((size.batch, size.frames), dtype=torch.int64).scatter_(1, drawn + 1, 1)
    codes = torch.randn((SYMBOLS, FEATURES), generator=torch.Generator().manual_seed(SYMBOLS))  # always the same
    noise = torch.randn((size.batch, size.frames, FEATURES), generator=generator)
    return codes[symbols.gather(1, begins.cumsum(1))] + NOISE * noise, symbols


def loss(model: nn.Module, frames: Tensor, symbols: Tensor) -> Tensor:
    """Nats for each symbol."""
    return -model(frames, symbols).mean() / symbols.shape[1]


EXAMPLE = training.Example(
    name="monotonic attention",
    sizes={
        "small": Size(batch=4, frames=32, outputs=6, channels=16, learning_rate=4e-3),
        # In float64, as passed falls to thousands below 0 and what matters of it are differences of tenths.
        "large": Size(batch=32, frames=2048, outputs=64, channels=256, learning_rate=1e-3, dtype="float64"),
    },
    model=MonotonicAttention,
    batch=batch,
    loss=loss,
    ways={"torch": TORCH},
)

if __name__ == "__main__":
    sys.exit(training.main([EXAMPLE]))
