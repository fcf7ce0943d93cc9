"""Which method serves a call, and how long each takes, in times of one GPU: what ``method="auto"`` compares.

Where the memory is the bound, one pass takes the time of one GPU and, on the last rank, that of waiting for the ranks
before it: each falls behind by a *front*, the lines that a GPU scans at the same time. Two passes of sums take the time
of the bytes that they move, and of recurrences what was measured. What ranks exchange, and the host, are left out: both
are the same for lines of any length, and the choice must not depend on lengths, which differ between ranks.

docs/distributed.md says which measured cells this fits, and which not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from scanops.codegen.derivatives import Gradient
from scanops.codegen.strategies.base import HALF_BYTES
from scanops.codegen.strategies.columns_lookback import LINKED_ABREAST
from scanops.distributed.shards import Shard
from scanops.errors import UnsupportedRequest
from scanops.requests.torch_state import has_kernels

__all__ = ["Costs", "choose_method", "compare_methods", "count_fronts"]


OPERATORS = ("sum", "prod", "max", "min", "linear", "logcumsumexp")
TILE_COLUMNS = 64  # neighbouring columns of a tile, of which LINKED_ABREAST end together
SUM_PASSES = 3 / 2  # reads and writes of items in two passes, over those in one
# Of a recurrence they are 5 / 3, but the kernel that reduces its lines to pairs in float64 is not bound by memory: 1.79
# to 2.25 times one GPU, of half types 2.45 to 2.92 (2 and 4 H200s, rows and columns).
RECURRENCE_PASSES, HALF_RECURRENCE_PASSES = 1.9, 2.7


class Costs(NamedTuple):
    """The time of each method, in times of one GPU for its shard; of no lines 0."""

    onepass: float
    twopass: float


def count_fronts(shape: Sequence[int], dim: int) -> int:
    """Return how often a GPU begins lines of a tensor together: each of them a row, or tiles of columns."""
    lines, columns = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
    return lines if columns == 1 else lines * -(-columns // TILE_COLUMNS) // LINKED_ABREAST


def compare_methods(fronts: int, ranks: int, *, is_recurrence: bool, is_half: bool = False) -> Costs:
    """Return what each method costs for so many fronts on each of the ranks; ``is_half``: of items of 2 bytes."""
    both = (HALF_RECURRENCE_PASSES if is_half else RECURRENCE_PASSES) if is_recurrence else SUM_PASSES
    return Costs((fronts + ranks - 1) / fronts if fronts else math.inf, both)


def choose_method(
    method: str, shard: Shard, ranks: int, spans: int, *, recorded: bool, of_initial: bool = False
) -> str:
    """Return ``"onepass"`` or ``"twopass"``. Raises UnsupportedRequest for a method that does not serve the call.

    ``recorded``: whether autograd records the call; ``of_initial``: whether for the gradient of the initial value, too.
    """
    if method == "twopass" or ranks == 1:
        return "twopass"
    problem = _problem_of(shard, spans, recorded=recorded, of_initial=of_initial)
    if method == "onepass":
        if problem is None:
            return "onepass"
        raise UnsupportedRequest(
            f"{shard.call.name}: method 'onepass' does not serve this call: {problem}",
            allowed=f"one shard on each rank, of the operators {', '.join(OPERATORS)}, without offsets",
            value=f"op={shard.call.op!r}, {problem}",
            hint="leave method out: 'twopass' serves every call",
        )
    fronts = count_fronts(shard.tensors.x.shape, shard.call.dim)
    is_half = shard.result.itemsize == HALF_BYTES
    costs = compare_methods(fronts, ranks, is_recurrence=shard.row.gated, is_half=is_half)
    is_faster = shard.tensors.x.is_cuda and costs.onepass <= costs.twopass
    return "onepass" if problem is None and is_faster else "twopass"


def _problem_of(shard: Shard, spans: int, *, recorded: bool, of_initial: bool) -> str | None:
    """Return what keeps a call from one pass, in words; None if nothing does."""
    call, tensors, gradient = shard.call, shard.tensors, shard.row.gradient or Gradient()
    for holds, words in (
        (call.op not in OPERATORS, f"op={call.op!r}"),
        (tensors.offsets is not None, "offsets given"),
        (spans > 1, "several spans on a rank"),
        (call.compensated, "accumulate='compensated'"),
        (shard.carry.is_complex, f"carries of {shard.carry}"),
        (recorded and shard.final and not gradient.begins, f"gradients of return_final of op={call.op!r}"),
        (recorded and of_initial and not gradient.ends, f"gradients of initial of op={call.op!r}"),
        (not has_kernels(tensors.x), f"x on {tensors.x.device}"),
    ):
        if holds:
            return words
    return None
