"""A spline flow whose bins are broken from a stick: python examples/spline_flow.py.

A point of the unit square goes through layers; each bends one coordinate by a monotone spline whose knots follow from
the other coordinate, and the density of the data is the product of the slopes. Bin k takes the fraction s[k] of what
the bins before it have left, and lies where they end:

    width[k] = s[k] * (1 - s[0]) * ... * (1 - s[k-1])       an exclusive cumulative product
    left[k]  = width[0] + ... + width[k-1]                  an exclusive cumulative sum

Source: Durkan, Bekasov, Murray and Papamakarios, "Neural Spline Flows" (2019), with their rational quadratics, and
Sethuraman, "A Constructive Definition of Dirichlet Priors" (1994), for the stick, in place of a softmax.

The data are two half moons in a square of 8 by 8. A flow that does nothing gives each point log(64) = 4.16 nats.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

import training
from scans import SCANOPS, TORCH, Scans

SIDE = 8.0  # of the square
LEAST = 0.1  # of the width of a bin, and of a slope: in the mean they are 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(training.Size):
    """Of the model and of its data."""

    batch: int
    bins: int
    layers: int
    channels: int
    dtype: str = "float64"  # a point that rounding puts into the next bin has another gradient: in float32 some do


class Spline(nn.Module):
    """Bends x by a spline that follows from another coordinate; gives it and the logarithm of its slope, [batch]."""

    def __init__(self, bins: int, channels: int, scans: Scans = SCANOPS) -> None:
        super().__init__()
        self.scans, self.bins = scans, bins
        self.net = nn.Sequential(
            nn.Linear(1, channels),
            nn.SiLU(),
            nn.Linear(channels, channels),
            nn.SiLU(),
            nn.Linear(channels, 3 * bins - 1),
        )
        nn.init.zeros_(self.net[-1].weight)  # with its bias: the flow begins as the identity
        nn.init.zeros_(self.net[-1].bias)
        # Of 0 the sigmoid of this takes an equal share: 1/bins of the stick, then 1/(bins-1) of the rest, all at last.
        self.register_buffer("share", -torch.arange(bins - 1, 0, -1).log())

    def forward(self, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        raw, slopes = self.net(2 * other.unsqueeze(-1) - 1).split((2 * self.bins - 2, self.bins + 1), dim=-1)
        sizes = self._broken(raw.unflatten(-1, (2, self.bins - 1)))  # [batch, 2, bins]: widths and heights
        begins = self.scans.cumsum(sizes, -1, exclusive=True)
        slopes = LEAST + (1 - LEAST) * functional.softplus(slopes + math.log(math.e - 1))

        bin_ = (x.unsqueeze(-1) >= begins[:, 0]).sum(-1, keepdim=True) - 1
        bin_ = bin_.clamp(0, self.bins - 1)
        (width, height), (left, low) = (
            each.gather(-1, bin_.unsqueeze(1).expand(-1, 2, -1)).squeeze(-1).unbind(1) for each in (sizes, begins)
        )
        first, last = slopes.gather(-1, torch.cat((bin_, bin_ + 1), -1)).unbind(-1)
        return _rational_quadratic((x - left) / width, low, height, height / width, first, last)

    def _broken(self, raw: Tensor) -> Tensor:
        """[batch, 2, bins] that add up to 1 in each line: the last bin takes all that is left."""
        raw = raw + self.share
        takes = functional.pad(torch.sigmoid(raw), (0, 1), value=1.0)
        leaves = functional.pad(torch.sigmoid(-raw), (0, 1), value=0.0)
        sizes = takes * self.scans.cumprod(leaves, -1, exclusive=True)
        return LEAST / self.bins + (1 - LEAST) * sizes


def _rational_quadratic(
    t: Tensor, low: Tensor, height: Tensor, mean: Tensor, first: Tensor, last: Tensor
) -> tuple[Tensor, Tensor]:
    """The bend and the logarithm of its slope at t in [0, 1] of a bin: ``mean`` slope, and slopes at both ends."""
    rest = 1 - t
    below = mean + (first + last - 2 * mean) * t * rest
    y = low + height * (mean * t * t + first * t * rest) / below
    slope = (last * t * t + 2 * mean * t * rest + first * rest * rest).log() + 2 * (mean.log() - below.log())
    return y, slope


class Flow(nn.Module):
    """Points [batch, 2] of the square to their log density, [batch]."""

    def __init__(self, size: Size, scans: Scans) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Spline(size.bins, size.channels, scans) for _ in range(size.layers))

    def forward(self, points: Tensor) -> Tensor:
        bent, other = (points / SIDE + 0.5).unbind(-1)
        density = torch.full_like(bent, -2 * math.log(SIDE))
        for layer in self.layers:
            bent, slope = layer(bent, other)
            bent, other, density = other, bent, density + slope
        return density


def batch(size: Size, generator: torch.Generator) -> tuple[Tensor]:
    """Points of two half moons."""
    angle = math.pi * torch.rand(size.batch, generator=generator)
    side = torch.randint(2, (size.batch,), generator=generator) * 2.0 - 1
    moons = torch.stack((2 * side * angle.cos() + side, side * (2 * angle.sin() - 0.5)), -1)
    return ((moons + 0.2 * torch.randn(moons.shape, generator=generator)).clamp(-SIDE / 2, SIDE / 2),)


def loss(model: nn.Module, points: Tensor) -> Tensor:
    """Nats for each point."""
    return -model(points).mean()


EXAMPLE = training.Example(
    name="spline flow",
    sizes={
        "small": Size(batch=64, bins=8, layers=2, channels=16, learning_rate=2e-3),
        # At three times this rate what rounding began, 1e-16 of the loss, is 1e-3 of it within 60 steps.
        "large": Size(batch=65536, bins=64, layers=4, channels=128, learning_rate=1e-4),
    },
    model=Flow,
    batch=batch,
    loss=loss,
    ways={"torch": TORCH},
)

if __name__ == "__main__":
    sys.exit(training.main([EXAMPLE]))
