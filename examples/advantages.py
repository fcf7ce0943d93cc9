"""Generalized advantage estimation of episodes that end anywhere: python examples/advantages.py.

A[t] = delta[t] + gamma lambda (1 - done[t]) A[t+1] is a reverse linear recurrence whose gate closes where an episode
ends. Training code computes it by a loop over time steps; here it is one scan, whose kernel computes delta as well.

Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation" (2016).
"""

from __future__ import annotations

import sys
import time

import torch

import scanops

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


def main() -> int:
    """Compare both ways and print their times; return 1 if they differ."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    steps, environments = (2048, 4096) if device == "cuda" else (256, 64)
    reward, value, following = torch.randn(3, steps, environments, device=device).unbind()
    done = torch.rand(steps, environments, device=device) < 0.02
    times = []
    for way in (by_steps, by_scan):
        way(reward, value, following, done)  # builds the kernel
        began = time.perf_counter()
        advantages, returns = way(reward, value, following, done)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - began, advantages, returns))
    (loop, *expected), (scan, *found) = times
    same = all(torch.allclose(one, other, rtol=1e-4, atol=1e-4) for one, other in zip(expected, found, strict=True))
    print(f"{steps} steps of {environments} environments on {device}: {int(done.sum())} episodes end")
    print(f"step by step {1000 * loop:.2f} ms, one scan {1000 * scan:.2f} ms: {'the same' if same else 'DIFFERENT'}")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
