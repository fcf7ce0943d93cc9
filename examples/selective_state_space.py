"""A selective state-space model: python examples/selective_state_space.py.

What a channel remembers is ``h[t] = exp(step[t] * decay) * h[t-1] + step[t] * write[t] * x[t]``, one state for each
channel and each of its decays, where step, write and what reads h follow from the input: the layer selects what it
keeps. Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (2023), algorithm 2, here
without its convolution and with every h in memory, which a fused kernel need not keep.

The task asks for selection: of a sequence of symbols some are marked, and at each place the last marked symbol is asked
for. What forgets at the same rate whatever it reads cannot tell.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

import training
from scans import DOUBLING, SCANOPS, TORCH, Scans

SYMBOLS = 8
MARKED = 0.1  # of all places
WRONG = 0.1  # of all answers, drawn anew: a loss near 0 would be little but rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(training.Size):
    """Of the model and of its data."""

    batch: int
    length: int
    channels: int
    states: int  # decays of a channel


class SelectiveStateSpace(nn.Module):
    """[batch, length, channels] to the same, from left to right."""

    def __init__(self, channels: int, states: int, scans: Scans = SCANOPS) -> None:
        super().__init__()
        self.scans, self.parts = scans, (channels, states, states)
        self.into = nn.Linear(channels, 2 * channels)
        self.selects = nn.Linear(channels, sum(self.parts))
        # Steps before anything is learnt: channels remember a hundred items, or one, or what lies between.
        with torch.no_grad():
            self.selects.bias[:channels] = torch.logspace(-2, 0, channels).expm1().log()
        self.log_decay = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(channels, 1))
        self.past = nn.Parameter(torch.ones(channels, 1))
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.into(x).chunk(2, dim=-1)
        x = functional.silu(x)
        # Lines along the last dimension: a scan reads memory as it lies. The letters of the shapes: b n c s.
        step, write, read = (each.mT.contiguous() for each in self.selects(x).split(self.parts, dim=-1))
        x, step = x.mT.contiguous(), functional.softplus(step)  # b c n
        kept = torch.exp(step.unsqueeze(2) * -self.log_decay.exp().unsqueeze(-1))  # b c s n
        added = (step * x).unsqueeze(2) * write.unsqueeze(1)  # b c s n
        h = self.scans.linear_scan(kept, added, -1)
        y = (h * read.unsqueeze(1)).sum(2) + self.past * x
        return self.out(y.mT * functional.silu(gate))


class LastMarked(nn.Module):
    """Log probabilities of each symbol at each place, from symbols and marks."""

    def __init__(self, size: Size, scans: Scans) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2 * SYMBOLS, size.channels)
        self.norm = nn.LayerNorm(size.channels)
        self.layer = SelectiveStateSpace(size.channels, size.states, scans)
        self.head = nn.Linear(size.channels, SYMBOLS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return functional.log_softmax(self.head(x + self.layer(self.norm(x))), dim=-1)


def batch(size: Size, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens, of which the upper half of the alphabet is marked, and the last marked symbol; the first is marked."""
    shape = (size.batch, size.length)
    symbols = torch.randint(SYMBOLS, shape, generator=generator)
    marked = torch.rand(shape, generator=generator) < MARKED
    marked[:, 0] = True
    last = torch.where(marked, torch.arange(size.length), 0).cummax(1).values
    answers = symbols.gather(1, last)
    wrong = torch.rand(shape, generator=generator) < WRONG
    drawn = torch.randint(SYMBOLS, shape, generator=generator)
    return symbols + SYMBOLS * marked, torch.where(wrong, drawn, answers)


def loss(model: nn.Module, tokens: Tensor, last: Tensor) -> Tensor:
    """Nats for each place."""
    return functional.nll_loss(model(tokens).flatten(0, 1), last.flatten())


EXAMPLE = training.Example(
    name="selective state space",
    sizes={
        "small": Size(batch=8, length=32, channels=16, states=4, learning_rate=1e-2),
        "large": Size(batch=16, length=2048, channels=128, states=16, learning_rate=5e-3),
    },
    model=LastMarked,
    batch=batch,
    loss=loss,
    ways={"torch, item by item": TORCH, "torch, doubling": DOUBLING},
)

if __name__ == "__main__":
    sys.exit(training.main([EXAMPLE]))
