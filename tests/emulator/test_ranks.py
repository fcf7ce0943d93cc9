"""Lines that span several GPUs: the grids of several ranks, interleaved, which share plain memory."""

from __future__ import annotations

import ctypes
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest

from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import wave
from scanops.codegen.targets import target_named

LAUNCHES, LINES, BLOCKS = 3, 3, 2  # of each rank
RANKS = """
// Block k is of rank k % kRanks. Each rank makes kLaunches launches, one after the other as in a stream; others may be
// launches ahead. x: of each launch, then rank, gates and values of kLines lines, padded to 16 bytes. out: the results
// in this order, then of each rank an inbox and a workspace, then a counter of its blocks.
__global__ void ranks(const void* x, void* out, int) {
    const int rank = blockIdx.x % kRanks;
    long long before = 0, items = 0, words = 0, at = 0;
    for (int r = 0; r < kRanks; ++r) {
        if (r == rank) before = items, at = words;
        items += kSizes[r];
        words += kLines * kWords * (2 + tiles_of(kLengths[r])) + 2;
    }
    unsigned long long* const memory = (unsigned long long*)((float*)out + kLaunches * items);
    unsigned long long* const inbox = memory + at;
    unsigned long long* const next = inbox + kLines * kWords * (2 + tiles_of(kLengths[rank])) + 2;
    unsigned* const done = (unsigned*)(memory + words) + rank;
    for (int launch = 0; launch < kLaunches; ++launch) {
        const float* const gates = (const float*)x + 2 * (launch * items + before);
        scan_kernel(gates + kSizes[rank], gates, (float*)out + launch * items + before, kLines, inbox,
                    rank > 0, rank + 1 < kRanks ? next : nullptr, kLengths[rank], inbox + 2 * kLines * kWords);
        __syncthreads();
        if (threadIdx.x == 0) {
            atomicAdd(done, 1u);
            while (load_relaxed(done) < (launch + 1) * (gridDim.x / kRanks)) {}
        }
        __syncthreads();
    }
}
"""


def size_of(length: int) -> int:
    """Items of a tensor, which the next one begins 16 bytes apart from."""
    return -(-LINES * length // 4) * 4


def linked(lengths: tuple[int, ...], **fields: Any) -> str:
    """The text of a kernel of linear recurrences, and of one that runs it for each rank."""
    spec = ScanSpec(op="linear", dtype="float32", gate="float32", length=None, initial=True, final=True, **fields)
    plan = dataclasses.replace(wave.plan(spec, target_named("sm_90")), linked=True, threads=64, vectors=2)
    text = render(plan).partition("#ifndef __CUDACC_RTC__  // host side")[0]
    text = text.replace("__global__ void __launch_bounds__(kThreads, kBlocks)", "void")  # which ``ranks`` calls
    numbers = {"kRanks": len(lengths), "kLaunches": LAUNCHES, "kLines": LINES}
    constants = "".join(f"constexpr int {name} = {value};\n" for name, value in numbers.items())
    for name, each in {"kLengths": lengths, "kSizes": map(size_of, lengths)}.items():
        constants += f"constexpr int {name}[] = {{{', '.join(map(str, each))}}};\n"
    return (
        text.replace("gridDim.x", f"(gridDim.x / {len(lengths)})")
        + constants
        + RANKS.replace("scan_kernel", plan.launch.kernel)
    )


def drawn(lengths: tuple[int, ...], *, reverse: bool, exclusive: bool) -> tuple[bytes, list[float]]:
    """Random gates and values as the kernel takes them, and the results of sequential scans in the order of its own."""
    make, inputs, results = random.Random(0), [], []
    for _ in range(LAUNCHES):
        parts: Any = [[[], []] for _ in lengths]
        found: Any = [[] for _ in lengths]
        for _ in range(LINES):
            state = 0.0
            for part, y, length in zip(parts, found, lengths, strict=True):
                gates, values = (make.choices(each, k=length) for each in ((-1.0, 1.0, 1.0, 0.0), range(-3, 4)))
                line = []
                for k in range(length)[:: -1 if reverse else 1]:
                    line.append(state)
                    state = gates[k] * state + values[k]
                    line[-1] = line[-1] if exclusive else state
                part[0] += gates
                part[1] += values
                y += line[:: -1 if reverse else 1]
        for part, y, length in zip(parts, found, lengths, strict=True):
            padding = [0.0] * (size_of(length) - LINES * length)
            inputs += part[0] + padding + part[1] + padding
            results += y + padding
    return bytes((ctypes.c_float * len(inputs))(*inputs)), results


@pytest.mark.parametrize(
    ("lengths", "fields"),
    [((1037, 1, 4099), {}), ((512, 2048, 511), {"exclusive": True}), ((5, 513, 1030, 1024), {"reverse": True})],
)
def test_a_line_over_ranks(
    compile_text: Callable[[str], Any], lengths: tuple[int, ...], fields: dict[str, bool]
) -> None:
    """Ranks run ahead of one another; every launch reads the states of its own. Reversed, rank 0 has the line's end."""
    library = compile_text(linked(lengths, at_most=4100, **fields))
    data, wanted = drawn(lengths, **{"reverse": False, "exclusive": False} | fields)
    words = sum(LINES * 2 * (2 + -(-(n + 32) // 512) + 1) + 2 for n in lengths) * 8 + 64
    for seed in range(4):
        outcome = library.launch("ranks", blocks=BLOCKS * len(lengths), threads=64, x=data, seed=seed,
                                 out=len(wanted) * 4 + words + 64, resident=BLOCKS * len(lengths))  # fmt: skip
        assert outcome.code == 0, outcome.report
        assert list((ctypes.c_float * len(wanted)).from_buffer_copy(outcome.out)) == wanted
