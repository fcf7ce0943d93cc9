"""Generalized advantage estimation of episodes that end anywhere: python examples/advantages.py.

A[t] = delta[t] + gamma lambda (1 - done[t]) A[t+1] is a reverse linear recurrence whose gate closes where an episode
ends. Training code computes it by a loop over time steps; here it is one scan, whose kernel computes delta as well.

Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation" (2016).
"""

from __future__ import annotations

import sys

import torch

import scanops
from beside import DEVICE, Beside, beside, told

STEPS, ENVIRONMENTS = (2048, 4096) if DEVICE == "cuda" else (256, 64)
GAMMA, LAMBDA = 0.99, 0.95


def by_steps(
    reward: torch.Tensor, value: torch.Tensor, following: torch.Tensor, done: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns as training code computes them, backwards step by step."""
    advantages, last = torch.zeros_like(reward), torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        going = GAMMA * (~done[t]).to(reward.dtype)
        last = reward[t] + going * following[t] - value[t] + LAMBDA * going * last
        advantages[t] = last
    return advantages, advantages + value


def by_scan(
    reward: torch.Tensor, value: torch.Tensor, following: torch.Tensor, done: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as one scan along time."""

    def gate_and_item(reward, value, following, done):  # type: ignore[no-untyped-def]
        going = torch.where(done, 0.0, GAMMA)
        return LAMBDA * going, reward + going * following - value

    def results(advantage, reward, value, following, done):  # type: ignore[no-untyped-def]
        return advantage, advantage + value

    tensors = (reward, value, following, done)
    found: tuple[torch.Tensor, torch.Tensor] = scanops.scan(
        tensors, "linear", 0, reverse=True, map=gate_and_item, then=results
    )
    return found


def compare() -> list[Beside]:
    """Advantages and returns in both ways."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(STEPS, ENVIRONMENTS, generator=generator).to(DEVICE) for _ in range(3)]
    done = (torch.rand(STEPS, ENVIRONMENTS, generator=generator) < 0.02).to(DEVICE)
    name = f"advantages, {STEPS} steps of {ENVIRONMENTS} environments on {DEVICE}, {int(done.sum())} episodes end"
    return [beside(name, lambda: by_steps(*tensors, done), lambda: by_scan(*tensors, done))]


if __name__ == "__main__":
    sys.exit(told(compare()))
