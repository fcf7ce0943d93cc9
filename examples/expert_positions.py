"""Positions of tokens in the batches of their experts (mixture of experts): python examples/expert_positions.py.

A router sends each token to an expert. Where a token lies in its expert's batch is the number of earlier tokens of that
expert: an exclusive sum down the one-hot matrix of tokens and experts. Tokens beyond an expert's capacity are dropped.
The matrix need not exist: the scan's kernel compares the choices with the expert's number.

Source: Lepikhin et al., "GShard" (2021); Fedus et al., "Switch Transformers" (2022).
"""

from __future__ import annotations

import sys

import torch

import scanops
from beside import DEVICE, Beside, beside, told

TOKENS, EXPERTS, CAPACITY = (131072, 64, 2100) if DEVICE == "cuda" else (4096, 16, 256)


def positions(choices: torch.Tensor, experts: int) -> torch.Tensor:
    """The place of each token among those of its expert, from 0."""
    numbers = torch.arange(experts, dtype=choices.dtype, device=choices.device)
    counts = scanops.scan(
        (choices[:, None], numbers[None, :]),
        "sum",
        0,
        exclusive=True,
        dtype=torch.int32,
        map=lambda choice, number: choice == number,
    )
    return counts.gather(1, choices[:, None].long())[:, 0]


def positions_today(choices: torch.Tensor, experts: int) -> torch.Tensor:
    """The same by a sum over the matrix, as GShard and its successors compute it."""
    matrix = torch.nn.functional.one_hot(choices.long(), experts)
    return (matrix.cumsum(0) - 1).gather(1, choices[:, None].long())[:, 0]


def compare() -> list[Beside]:
    """Route tokens in both ways."""
    choices = torch.randint(EXPERTS, (TOKENS,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    choices = choices.to(DEVICE)
    counts, dropped = choices.bincount(), int((positions(choices, EXPERTS) >= CAPACITY).sum())
    load = f"{int(counts.min())} to {int(counts.max())} each, {dropped} dropped"
    return [
        beside(
            f"positions of {TOKENS} tokens at {EXPERTS} experts of {CAPACITY} on {DEVICE}, {load}",
            lambda: (positions_today(choices, EXPERTS).float(),),
            lambda: (positions(choices, EXPERTS).float(),),
            allowed=0,
        )
    ]


if __name__ == "__main__":
    sys.exit(told(compare()))
