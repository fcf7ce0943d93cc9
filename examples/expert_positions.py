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

TOKENS, EXPERTS, CAPACITY = 4096, 16, 256


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


def main() -> int:
    """Route tokens, compare with a loop over them, and print the load of the experts; return 1 if they differ."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    choices = torch.randint(EXPERTS, (TOKENS,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    found = positions(choices.to(device), EXPERTS).cpu()
    seen, expected = [0] * EXPERTS, []
    for choice in choices.tolist():
        expected.append(seen[choice])
        seen[choice] += 1
    same = found.tolist() == expected
    print(f"{TOKENS} tokens to {EXPERTS} experts of {CAPACITY}: {min(seen)} to {max(seen)} each,", end=" ")
    print(f"{int((found >= CAPACITY).sum())} dropped; positions are {'right' if same else 'WRONG'}")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
