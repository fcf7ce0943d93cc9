"""Linked lines, which span several GPUs: the grids of several ranks, interleaved, which share plain memory."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scanops.codegen.fragments import fragments
from scanops.codegen.headers import inline_headers
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.launch import Numbers
from scanops.codegen.planner import Plan, by_rule
from scanops.codegen.source import HOST_SIDE, render
from scanops.codegen.spec import ScanSpec

LAUNCHES, MULTIPROCESSORS, OUTER = 3, 2, 3
MINUTE = 60 * 10**9  # nanoseconds: no wait in these tests is that long
PARAMETERS = {
    "input": "x + gates",
    "gate": "x",
    "output": "y",
    "lines": "kLines",
    "offsets": "{memory, kHalf, rank > 0, rank + 1 < kRanks ? memory + kMemory : nullptr}",
    "carry_in": "kCarries && rank == 0 ? carry_in : nullptr",
    "carry_in_step": "1",
    "carry_out": "kCarries && rank + 1 == kRanks ? carry_out + launch * kLines : nullptr",
    "length": "kLengths[rank]",
    "stripes": "kStripes[rank]",
    "workspace": "memory + kLinkWords",
}
# Block k is of rank k % kRanks. Each rank makes kLaunches launches, one after the other as in a stream; others may be
# launches ahead. x: of each launch, then rank, gates and values of kLines lines, padded to 16 bytes, then the carry-in
# of each line. out: the results in this order, then of each rank the memory of its link and a workspace, then the
# carry-out of each launch, then a counter of the blocks of each rank.
RANKS = """
__global__ void ranks(const void* given, void* out, int) {
    const int rank = blockIdx.x % kRanks;
    long long before = 0, items = 0;
    for (int r = 0; r < kRanks; ++r) {
        if (r == rank) before = items;
        items += kSizes[r];
    }
    unsigned long long* const first = (unsigned long long*)((float*)out + kLaunches * items);
    unsigned long long* const memory = first + rank * kMemory;
    const float* const carry_in = (const float*)given + 2 * kLaunches * items;
    float* const carry_out = (float*)(first + kRanks * kMemory);
    unsigned* const done = (unsigned*)(carry_out + kLaunches * kLines) + rank;
    if (blockIdx.x / kRanks == 0 && threadIdx.x == 0) store_relaxed(memory + 2, (unsigned long long)kLimit);
    for (int launch = 0; launch < (rank == kAbsent ? 0 : kLaunches); ++launch) {
        const float* const x = (const float*)given + 2 * (launch * items + before);
        float* const y = (float*)out + launch * items + before;
        const long long gates = kSizes[rank];
        if (blockIdx.x / kRanks < kGrid[rank]) CALL;
        __syncthreads();
        if (threadIdx.x == 0) {
            atomicAdd(done, 1u);
            while (load_relaxed(done) < (unsigned)((launch + 1) * kBlocksOf[rank])) {}
        }
        __syncthreads();
    }
}
"""


def size_of(length: int, inner: int) -> int:
    """Items of a tensor, which the next one begins 16 bytes apart from."""
    return -(-OUTER * length * inner // 4) * 4


class Ranks:
    """The kernel of all ranks, and the launches of each."""

    def __init__(
        self,
        strategy: str,
        op: str,
        lengths: tuple[int, ...],
        inner: int,
        fields: dict[str, Any],
        launches: int = LAUNCHES,
    ) -> None:
        self.lengths, self.inner, self.count, self.launches = lengths, inner, len(lengths), launches
        self.lines = OUTER * inner
        self.plan = self._plan(strategy, op, fields)
        self.numbers: list[Numbers] = [
            self.plan.launch.numbers(self.lines, length, MULTIPROCESSORS) for length in lengths
        ]
        self.half = self.lines * fragments(self.plan.spec).state_bytes // 4  # words
        self.link = 4 + 2 * self.half
        self.memory = self.link + max(each.workspace_bytes for each in self.numbers) // 8
        self.blocks = max(each.blocks for each in self.numbers)

    def _plan(self, strategy: str, op: str, fields: dict[str, Any]) -> Plan:
        gate = "float32" if op == "linear" else None
        spec = ScanSpec(
            op=op,
            dtype="float32",
            gate=gate,
            length=None,
            at_most=4100,
            inner=self.inner,
            **fields,
            linked=True,
        )
        plan = by_rule(strategy, KernelKey(spec, "sm_90"))
        small: dict[str, dict[str, int]] = {
            "block": {},
            "split": {"threads": 64, "vectors": 4},  # so that all blocks are resident in the emulator
            "persistent": {"threads": 64, "vectors": 2},
            "columns_lookback": {"threads": 64},
            "columns": {"threads": 64, "stages": 0, "blocks": 1},
        }
        return replace(plan, **small[strategy])

    def text(self, limit: int, absent: int, carries: bool = False) -> str:
        """The text of the kernel and of one that runs it on all ranks."""
        body = inline_headers(render(self.plan)).partition(HOST_SIDE)[0].partition("#endif\n")[2]
        kernel, bounds = 'extern "C" __global__ void ', body.index("__launch_bounds__(kBlockThreads")
        body = body[: bounds - len(kernel)] + "__device__ void" + body[body.index(")", bounds) + 1 :]
        body = body.replace("blockIdx.x", "(blockIdx.x / kRanks)").replace("gridDim.x", "kGrid[blockIdx.x % kRanks]")
        arguments = ", ".join(PARAMETERS[name] for name in self.plan.launch.parameters)
        values = {"kRanks": self.count, "kLaunches": self.launches, "kLines": self.lines, "kHalf": self.half}
        values |= {"kLinkWords": self.link, "kMemory": self.memory, "kLimit": limit, "kAbsent": absent}
        values |= {"kCarries": carries}
        lists = {
            "kLengths": self.lengths,
            "kSizes": [size_of(length, self.inner) for length in self.lengths],
            "kStripes": [(*each.chosen, 0)[0] for each in self.numbers],
            "kBlocksOf": [self.blocks] * self.count,
            "kGrid": [each.blocks for each in self.numbers],
        }
        constants = "".join(f"constexpr long long {name} = {int(value)};\n" for name, value in values.items())
        for name, each in lists.items():
            constants += f"constexpr unsigned {name}[] = {{{', '.join(map(str, each))}}};\n"
        call = f"of_ranks::{self.plan.launch.kernel}({arguments})"
        return constants + f"namespace of_ranks {{\n{body}\n}}\n" + RANKS.replace("CALL", call)

    @property
    def threads(self) -> int:
        """Threads of a block: the ranks' kernels have the same."""
        (found,) = {each.threads for each in self.numbers}
        return found


def drawn(
    ranks: Ranks, op: str, *, exclusive: bool = False, carries: bool = False
) -> tuple[bytes, list[float], list[float]]:
    """Random gates and values as the kernels take them, with the carry-in of each line behind them.

    Also the results of sequential scans in the order of theirs, and the carry-outs of each launch.
    """
    make, inputs, results, ends = random.Random(0), [], [], []
    begins = [float(make.randrange(-3, 4)) if carries else 0.0 for _ in range(ranks.lines)]
    for _ in range(ranks.launches):
        parts: Any = [[[0.0] * size_of(n, ranks.inner) for _ in range(2)] for n in ranks.lengths]
        found: Any = [[0.0] * size_of(n, ranks.inner) for n in ranks.lengths]
        for outer, column in itertools.product(range(OUTER), range(ranks.inner)):
            state = begins[outer * ranks.inner + column]
            for part, y, length in zip(parts, found, ranks.lengths, strict=True):
                for k in range(length)[:: -1 if ranks.plan.spec.reverse else 1]:
                    at = (outer * length + k) * ranks.inner + column
                    gate, value = make.choice((-1.0, 1.0, 1.0, 0.0)), float(make.randrange(-3, 4))
                    part[0][at], part[1][at] = gate, value
                    before, state = state, (gate if op == "linear" else 1.0) * state + value
                    y[at] = before if exclusive else state
            ends.append(state if carries else 0.0)
        inputs += [each for part in parts for operand in part for each in operand]
        results += [each for y in found for each in y]
    inputs += begins
    return bytes((ctypes.c_float * len(inputs))(*inputs)), results, ends


CASES = (
    ("persistent", "linear", (1037, 1, 4099), 1, {}),
    ("persistent", "sum", (512, 2048, 511), 1, {"exclusive": True}),
    ("persistent", "linear", (5, 513, 1030, 1024), 1, {"reverse": True}),
    ("block", "linear", (1500, 1501, 1600), 1, {}),
    ("block", "sum", (700, 701), 1, {"reverse": True, "exclusive": True}),
    ("split", "linear", (1037, 1, 4099), 1, {}),
    ("split", "sum", (4100, 31, 600), 1, {"reverse": True}),
    ("columns_lookback", "linear", (130, 1, 515), 8, {}),
    ("columns_lookback", "sum", (64, 700), 7, {"reverse": True, "exclusive": True}),
    ("columns", "linear", (130, 1, 515), 8, {"exclusive": True}),
    ("columns", "sum", (64, 300), 7, {"reverse": True}),
)


@pytest.mark.parametrize("carries", [False, True])
@pytest.mark.parametrize(("strategy", "op", "lengths", "inner", "fields"), CASES)
def test_a_line_over_ranks(
    compile_text: Callable[[str], Any],
    strategy: str,
    op: str,
    lengths: tuple[int, ...],
    inner: int,
    fields: dict[str, bool],
    carries: bool,
) -> None:
    """Ranks run ahead of one another; every launch reads the states of its own. Reversed, rank 0 has the line's end."""
    ranks = Ranks(strategy, op, lengths, inner, fields)
    library = compile_text(ranks.text(MINUTE, absent=-1, carries=carries))
    data, wanted, ends = drawn(ranks, op, exclusive=ranks.plan.spec.exclusive, carries=carries)
    for seed in range(3):
        outcome = launched(library, ranks, data, len(wanted), seed)
        assert outcome.code == 0, outcome.report
        assert list((ctypes.c_float * len(wanted)).from_buffer_copy(outcome.out)) == wanted
        found = (ctypes.c_float * len(ends)).from_buffer_copy(
            outcome.out, len(wanted) * 4 + 8 * ranks.count * ranks.memory
        )
        assert list(found) == ends


def launched(library: Any, ranks: Ranks, data: bytes, results: int, seed: int, finished: int = 0) -> Any:
    """Run all ranks, whose memories count ``finished`` launches before."""
    blocks = ranks.blocks * ranks.count
    memory = ((finished << 32).to_bytes(8, "little") + bytes(8 * (ranks.memory - 1))) * ranks.count
    return library.launch(
        "ranks",
        blocks=blocks,
        threads=ranks.threads,
        x=data,
        seed=seed,
        out=bytes(results * 4) + memory + bytes(4 * ranks.launches * ranks.lines + 4 * ranks.count + 64),
        resident=blocks,
    )


@pytest.mark.parametrize(
    ("strategy", "op", "lengths", "inner"),
    [
        ("persistent", "sum", (600, 30, 513), 1),
        ("block", "linear", (300, 1, 200), 1),
        ("split", "sum", (300, 31, 290), 1),
        ("columns_lookback", "sum", (130, 1, 70), 8),
        ("columns", "linear", (40, 1, 70), 7),
    ],
)
def test_epochs_begin_again(
    compile_text: Callable[[str], Any], strategy: str, op: str, lengths: tuple[int, ...], inner: int
) -> None:
    """After the last epoch comes 1: a rank that is ahead still waits until the next one has read its half of the inbox.

    Launches have the epochs from the last but one on, so ranks that are a launch apart have epochs of either end.
    """
    last = 2**32 - 2
    ranks = Ranks(strategy, op, lengths, inner, {}, launches=6)
    library = compile_text(ranks.text(MINUTE, absent=-1))
    data, wanted, _ = drawn(ranks, op)
    for seed in range(4):
        outcome = launched(library, ranks, data, len(wanted), seed, finished=last - 2)
        assert outcome.code == 0, outcome.report
        assert list((ctypes.c_float * len(wanted)).from_buffer_copy(outcome.out)) == wanted
        words = (ctypes.c_uint64 * (ranks.count * ranks.memory)).from_buffer_copy(outcome.out, len(wanted) * 4)
        assert [words[rank * ranks.memory] >> 32 for rank in range(ranks.count)] == [4] * ranks.count


@pytest.mark.parametrize("strategy", ["persistent", "split", "columns_lookback"])
def test_a_rank_that_is_absent_ends_the_others(compile_text: Callable[[str], Any], strategy: str) -> None:
    """Waits end at the limit, and a word of the link's memory says so; ranks before the absent one are right."""
    inner = 8 if strategy == "columns_lookback" else 1
    ranks = Ranks(strategy, "sum", (300, 200, 100), inner, {})
    library = compile_text(ranks.text(10**6, absent=1))
    data, wanted, _ = drawn(ranks, "sum")
    outcome = launched(library, ranks, data, len(wanted), seed=0)
    assert outcome.code == 0, outcome.report
    count = size_of(300, inner)
    assert list((ctypes.c_float * count).from_buffer_copy(outcome.out)) == wanted[:count]
    words = (ctypes.c_uint64 * (ranks.count * ranks.memory)).from_buffer_copy(outcome.out, len(wanted) * 4)
    failed = [words[rank * ranks.memory + 1] >> 32 for rank in range(ranks.count)]
    assert failed == [1, 0, 1]  # rank 0 waits for room in the third launch, rank 2 for states in each
