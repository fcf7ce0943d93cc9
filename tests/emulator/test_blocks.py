"""Schedules, barriers, shared memory and flags between blocks."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest

from scanops.emulator import HEADER_DIRECTORY

TEXT = """
// Block-wide inclusive sum over 256 threads, four tiles through one buffer. n = 1 leaves out the barrier that keeps a
// fast warp from overwriting totals that a slow one still reads.
__global__ void tiles(const void* x, void* out, int n) {
    __shared__ int total[8];
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    int before = 0;
    for (unsigned tile = 0; tile < 4; ++tile) {
        int value = ((const int*)x)[tile * 256 + threadIdx.x];
        for (unsigned step = 1; step < 32; step *= 2) {
            const int older = __shfl_up_sync(0xffffffffu, value, step);
            if (lane >= step) value += older;
        }
        if (lane == 31) total[warp] = value;
        __syncthreads();
        int all = 0;
        for (unsigned w = 0; w < 8; ++w) {
            if (w < warp) value += total[w];
            all += total[w];
        }
        ((int*)out)[tile * 256 + threadIdx.x] = before + value;
        before += all;
        if (n == 0) __syncthreads();
    }
}
// Each block keeps its number in shared memory while the others run.
__global__ void privacy(const void*, void* out, int) {
    __shared__ unsigned mine[1024];
    mine[threadIdx.x] = blockIdx.x * 1000 + threadIdx.x;
    for (int turn = 0; turn < 5; ++turn) {
        load_relaxed((unsigned*)out);
        __syncthreads();
    }
    ((unsigned*)out)[blockIdx.x * blockDim.x + threadIdx.x] = mine[blockDim.x - 1 - threadIdx.x];
}
__global__ void unwritten(const void*, void* out, int n) {
    __shared__ float values[32];
    if (n == 1) values[threadIdx.x] = 2.0f;
    ((float*)out)[threadIdx.x] = values[threadIdx.x];
}
// A chain through global memory: block b waits for block b - 1. out: counter, then a flag and a sum for each block.
__global__ void chain(const void*, void* out, int n) {
    __shared__ unsigned number, before;
    unsigned* word = (unsigned*)out;
    if (threadIdx.x == 0) number = n == 0 ? blockIdx.x : atomicAdd(word, 1u);
    __syncthreads();
    if (threadIdx.x == 5) {
        before = 0;
        if (number != 0) {
            while (load_relaxed(word + 2 * number) == 0) {}
            before = word[2 * number + 1];
        }
    }
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) {
        word[2 * number + 3] = before + number + 1;
        __threadfence();
        store_relaxed(word + 2 * number + 2, 1u);
    }
}
// The first block waits for the last: resident together they end, one at a time they can't.
__global__ void backwards(const void*, void* out, int) {
    unsigned* word = (unsigned*)out;
    if (blockIdx.x + 1 < gridDim.x) while (load_relaxed(word + blockIdx.x + 1) == 0) {}
    store_relaxed(word + blockIdx.x, 7u);
}
__global__ void flag_first(const void*, void* out, int) {
    unsigned* word = (unsigned*)out;
    if (blockIdx.x == 0) {
        store_relaxed(word, 1u);
        word[1] = 5;
    } else {
        while (load_relaxed(word) == 0) {}
        word[2] = word[1];
    }
}
__global__ void count(const void*, void* out, int) {
    atomicAdd((int*)out, -1);
    atomicAdd((unsigned*)out + 1, 2u);
    atomicAdd((unsigned long long*)out + 1, 0x100000000ull);
}
struct alignas(16) Access { float item[4]; };
__global__ void staged(const void* x, void* out, int n) {
    __shared__ __align__(16) float stage[2][128];
    copy_async((Access*)&stage[0][threadIdx.x * 4], (const float*)x + threadIdx.x * 4);
    copy_async_commit();
    copy_async((Access*)&stage[1][threadIdx.x * 4], (const float*)x + 128 + threadIdx.x * 4);
    copy_async_commit();
    if (n == 1) copy_async_wait<1>();
    if (n == 2) copy_async_wait<0>();
    __syncthreads();
    for (int k = 0; k < 4; ++k) {
        ((float*)out)[k * 32 + (int)threadIdx.x] = stage[0][k * 32 + (int)threadIdx.x];
        ((float*)out)[128 + k * 32 + (int)threadIdx.x] = stage[1][k * 32 + (int)threadIdx.x];
    }
}
__global__ void indices(const void*, void* out, int) {
    unsigned* row = (unsigned*)out + 4 * (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
    row[0] = threadIdx.x; row[1] = threadIdx.y; row[2] = threadIdx.z; row[3] = blockDim.z * 100 + gridDim.x;
    __syncthreads();
}
"""

SEEDS = range(8)
VALUES = [(k * 37) % 101 - 50 for k in range(1024)]
FLOATS = bytes((ctypes.c_float * 256)(*range(256)))


@pytest.fixture(scope="module")
def library(compile_text: Callable[..., Any]) -> Any:
    return compile_text(TEXT)


def integers(data: bytes) -> list[int]:
    return list((ctypes.c_int * (len(data) // 4)).from_buffer_copy(data))


def packed(*numbers: int) -> bytes:
    return bytes((ctypes.c_int * len(numbers))(*numbers))


def chained(blocks: int, counter: int) -> bytes:
    """What ``chain`` leaves: the counter, and a flag and a sum for each block, the first of which has none before."""
    sums = [(k + 1) * (k + 2) // 2 for k in range(blocks)]
    return packed(counter, 0, *(word for total in sums for word in (1, total)), *([0] * 8))


def kept(blocks: int, threads: int) -> bytes:
    """What ``privacy`` leaves: the numbers of each block, in reverse."""
    return packed(*(block * 1000 + thread for block in range(blocks) for thread in reversed(range(threads))))


RIGHT = {
    "tiles": ({"threads": 256, "x": packed(*VALUES)}, packed(*itertools.accumulate(VALUES))),
    "privacy": ({"blocks": 5, "threads": 1024}, kept(5, 1024)),
    "chain": ({"blocks": 20, "threads": 64}, chained(20, 0)),
    "chain by tickets": ({"blocks": 20, "threads": 64, "n": 1}, chained(20, 20)),
    "count": ({"blocks": 4, "threads": 64}, packed(-256, 512, 0, 256)),
    "staged": ({"x": FLOATS, "n": 2}, FLOATS),
    "indices": (
        {"blocks": 2, "threads": (3, 5, 2)},
        packed(*(word for z in range(2) for y in range(5) for x in range(3) for word in (x, y, z, 202))),
    ),
}


@pytest.mark.parametrize("resident", [1, 3, 64])
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_gives_the_same_under_every_schedule(library: Any, name: str, resident: int) -> None:
    """However many blocks are alive together, in any order of threads."""
    arguments, expected = RIGHT[name]
    for seed in SEEDS:
        outcome = library.launch(name.split()[0], **arguments, out=len(expected), resident=resident, seed=seed)
        assert (outcome.code, outcome.out) == (0, expected), outcome.report


def test_a_missing_barrier_shows_under_some_schedule(library: Any) -> None:
    """A seed fixes the schedule, so that a wrong result repeats."""
    arguments, right = RIGHT["tiles"]
    wrong = [{library.launch("tiles", **arguments, out=4096, n=1, seed=s).out for _ in range(3)} for s in SEEDS]
    assert all(len(results) == 1 for results in wrong) and any(results != {right} for results in wrong)


def test_unwritten_shared_memory_reads_as_nan(library: Any) -> None:
    assert library.launch("unwritten", out=128, n=1).out == bytes((ctypes.c_float * 32)(*[2.0] * 32))
    assert library.launch("unwritten", out=128, n=0).out == b"\xff" * 128


def test_a_wait_for_a_block_that_has_not_started_is_reported(library: Any) -> None:
    assert library.launch("backwards", blocks=3, threads=1, out=12).code == 0
    outcome = library.launch("backwards", blocks=4, threads=1, out=16)
    assert outcome.code == 710
    assert "waits for a flag nobody sets" in outcome.report


def test_data_written_after_its_flag_shows(library: Any) -> None:
    seen = {integers(library.launch("flag_first", blocks=2, threads=1, out=12, seed=s).out)[2] for s in range(40)}
    assert seen == {0, 5}


def test_asynchronous_copies_need_their_wait(library: Any) -> None:
    for seed in SEEDS:
        one, none = (library.launch("staged", x=FLOATS, out=1024, n=n, seed=seed).out for n in (1, 0))
        assert one[:512] == FLOATS[:512] and one[512:] != FLOATS[512:] and none[:512] != FLOATS[:512]
    early = library.launch("staged", x=FLOATS, out=1024, n=0, seed=1).out
    assert early != b"\xff" * 1024  # with a seed some copies land at once


# ---- misuse: every kind that the emulator knows is reported with block, thread and line, and the library stays usable

START = """
struct __align__(16) Vector { float item[4]; };
struct Pack { float item[4]; };
__global__ void fine(const void*, void* out, int) {
    __shared__ float values[32];
    values[threadIdx.x] = 1.0f;
    __syncthreads();
    ((float*)out)[threadIdx.x] = values[31 - threadIdx.x];
}
"""
# Bodies of kernels of x, out and n; a report names the line of the mark.
BODIES = {
    "shared_bounds": "__shared__ float values[32];\n"
    "if (blockIdx.x == 3 && threadIdx.x == 17) values[n] = 1;  // <bounds>",
    "register_bounds": "Pack pack = {}; ((float*)out)[0] = pack.item[n];  // <pack>",
    "barrier_skipped": "if (threadIdx.x != 40) __syncthreads();  // <skipped>",
    "barrier_after_exit": "if (threadIdx.x == 0) return;\n__syncthreads();  // <late>",
    "barriers_differ": "if (threadIdx.x < 40) __syncthreads();  // <first barrier>\n"
    "else __syncthreads();  // <second barrier>",
    "lane_left": "if (threadIdx.x == 5) return;\n__shfl_up_sync(0xffffffffu, 1.0f, 1u, 32);  // <left>",
    "own_lane": "__shfl_up_sync(0x0000ffffu, 1, 1u, 32);  // <own>",
    "masks_differ": "__ballot_sync(threadIdx.x == 9 ? 0x00000300u : 0xffffffffu, 1);  // <masks>",
    "lines_differ": "if (threadIdx.x == 9) __any_sync(0xffffffffu, 1);  // <ninth>\n"
    "else __any_sync(0xffffffffu, 1);  // <others>",
    "reads_unnamed": "if (threadIdx.x < 16) __shfl_down_sync(0x0000ffffu, 1, 1u, 32);  // <unnamed>",
    "partial_warp": "__syncwarp(0xffffffffu);  // <partial>",
    "bad_width": "__shfl_sync(0xffffffffu, 1, 0, n);  // <width>",
    "deadlock": "if (threadIdx.x != 7) __shfl_xor_sync(0xffffffffu, 1.0, 1, 32);  // <short shuffle>\n"
    "__syncthreads();  // <early barrier>",
    "spin": "if (threadIdx.x == 0) while (load_relaxed((unsigned*)out) == 0) {}  // <spin>\n"
    "__syncthreads();  // <behind>",
    "spin_by_warp": "while (__all_sync(0xffffffffu, load_relaxed((unsigned*)out) == 0)) {}  // <warp spin>",
    "misaligned": "((float*)out)[0] = reinterpret_cast<const Vector*>(x)[threadIdx.x].item[0];  // <vector>",
    "converted": "((unsigned*)out)[0] = (unsigned)(n * 1.5f);  // <cast>",
    "misaligned_copy": "__shared__ __align__(16) float values[8]; copy_async((Vector*)(values + n), x);  // <copy>",
}
CASES: list[tuple[str, dict[str, Any], str, list[str]]] = [
    # kernel, arguments, mark of the reported line, pieces of the report; {mark}: the line of another one
    (
        "shared_bounds",
        {"blocks": 5, "n": 32},
        "bounds",
        ["block (3,0,0) thread (17,0,0)", "index 32 is out of bounds", "float [32]", "kernel.cu:"],
    ),
    ("shared_bounds", {"blocks": 5, "n": -1}, "bounds", ["block (3,0,0) thread (17,0,0)", "index -1 is out of"]),
    ("register_bounds", {"n": 4, "out": 4}, "pack", ["block (0,0,0) thread (0,0,0)", "index 4 is out of", "float [4]"]),
    ("barrier_skipped", {"threads": 64}, "skipped", ["thread (40,0,0)", "left the kernel while", "__syncthreads"]),
    ("barrier_after_exit", {"threads": 64}, "late", ["1 thread of the block that left the kernel"]),
    (
        "barriers_differ",
        {"threads": 64},
        "second barrier",
        ["thread (40,0,0)", "different barriers", "thread (0,0,0) and 39 more at line {first barrier}"],
    ),
    ("lane_left", {}, "left", ["thread (5,0,0)", "lane 5, left the kernel", "__shfl_up_sync", "0xffffffff"]),
    ("own_lane", {}, "own", ["thread (16,0,0)", "mask 0x0000ffff does not name the calling lane"]),
    ("masks_differ", {}, "masks", ["thread (9,0,0)", "different calls", "0x00000300", "0xffffffff"]),
    ("lines_differ", {}, "ninth", ["thread (9,0,0)", "different calls", "__any_sync at line {others}"]),
    ("reads_unnamed", {}, "unnamed", ["thread (15,0,0)", "lane 15 reads lane 16", "mask 0x0000ffff"]),
    ("partial_warp", {"threads": 40}, "partial", ["thread (32,0,0)", "absent", "lowest is lane 8"]),
    ("bad_width", {"n": 12}, "width", ["width 12 is not a power of two"]),
    (
        "deadlock",
        {"threads": 64},
        "short shuffle",
        [
            "block (0,0,0) thread (0,0,0)",
            "deadlock in __shfl_xor_sync",
            "31 threads, first (0,0,0), in __shfl_xor_sync at line {short shuffle}, mask 0xffffffff, absent lanes 7",
            "33 threads, first (7,0,0), in __syncthreads at line {early barrier}",
        ],
    ),
    (
        "spin",
        {"threads": 64, "out": 4, "blocks": 4},
        "spin",
        [
            "thread (0,0,0)",
            "waits for a flag nobody sets",
            "63 threads, first (1,0,0), in __syncthreads at line {behind}",
        ],
    ),
    ("spin_by_warp", {"out": 4}, "warp spin", ["waits for a flag nobody sets (last value 0)"]),
    ("misaligned", {"x": bytes(600), "shift": 4, "out": 4}, "vector", ["misaligned", "Vector", "multiple of 16"]),
    ("converted", {"n": -2, "out": 4}, "cast", ["-3 is converted to 'unsigned int', where a GPU gives 0"]),
    ("misaligned_copy", {"x": bytes(64), "n": 1}, "copy", ["misaligned"]),
    ("misaligned_copy", {"x": bytes(64), "n": 4096}, "copy", ["not in shared memory"]),
]
IN_ORDER = {
    "shared_bounds",
    "register_bounds",
    "converted",
    "misaligned_copy",
    "spin_by_warp",
}  # the same whatever the schedule


@pytest.fixture(scope="module")
def misused(compile_text: Callable[..., Any]) -> Any:
    kernels = (
        f"__global__ void {name}(const void* x, void* out, int n) {{\n{body}\n}}" for name, body in BODIES.items()
    )
    return compile_text(START + "\n".join(kernels))


@pytest.mark.parametrize(("kernel", "arguments", "mark", "pieces"), CASES)
def test_misuse_is_reported(misused: Any, kernel: str, arguments: dict[str, Any], mark: str, pieces: list[str]) -> None:
    """With its place, under every schedule; the report of a schedule is the same each time."""
    outcome = misused.launch(kernel, **arguments)
    assert outcome.code == 710, outcome.report
    assert outcome.report.startswith("block (")
    assert f"kernel line {misused.line(f'<{mark}>')}: " in outcome.report
    for piece in pieces:
        assert re.sub("{(.*)}", lambda other: str(misused.line(f"<{other[1]}>")), piece) in outcome.report
    assert misused.handle.scanops_last_error() == 710
    assert misused.handle.scanops_last_error() == 0
    again = misused.launch("fine", out=128)
    assert (again.code, again.report) == (0, "no error")
    for seed in range(1, 6) if kernel not in IN_ORDER else ():
        first, second = (misused.launch(kernel, seed=seed, **arguments) for _ in range(2))
        assert first.code == 710
        assert first.report == second.report or "shift" in arguments  # that report holds an address


@pytest.mark.parametrize("threads", [0, 1025, (32, 32, 2)])
def test_impossible_block_is_refused(misused: Any, threads: Any) -> None:
    outcome = misused.launch("fine", threads=threads)
    assert (outcome.code, outcome.report[:21]) == (9, "invalid configuration")


# ---- shuffles and votes against a model of PTX's shfl.sync, lane by lane; functions of numbers

TYPES: dict[str, Any] = {
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "long long": ctypes.c_longlong,
    "unsigned long long": ctypes.c_ulonglong,
}

CALLS = {
    "shfl": "__shfl_sync(0xffffffffu, value, k - 7, n)",
    "up": "__shfl_up_sync(0xffffffffu, value, (unsigned)k, n)",
    "down": "__shfl_down_sync(0xffffffffu, value, (unsigned)k, n)",
    "xor": "__shfl_xor_sync(0xffffffffu, value, k, n)",
}

REST = """
__global__ void votes(const void* x, void* out, int n) {
    const int bit = ((const int*)x)[threadIdx.x];
    unsigned* row = (unsigned*)out + threadIdx.x * 4;
    if ((threadIdx.x & 1) == (unsigned)n) {
        const unsigned mask = n ? 0xaaaaaaaau : 0x55555555u;
        row[0] = __ballot_sync(mask, bit);
        row[1] = (unsigned)__any_sync(mask, bit);
        row[2] = (unsigned)__all_sync(mask, bit);
    } else {
        row[3] = __ballot_sync(n ? 0x55555555u : 0xaaaaaaaau, bit * 6);
    }
}
// Lanes reach the same two calls at different times, and halves of the warp make calls of their own in between.
__global__ void halves(const void*, void* out, int) {
    int value = (int)threadIdx.x;
    if (threadIdx.x < 16) {
        for (int step = 1; step < 16; step *= 2) value += __shfl_xor_sync(0x0000ffffu, value, step, 16);
    } else {
        value = __shfl_sync(0xffff0000u, value, 3, 16);
    }
    __syncwarp();
    ((int*)out)[threadIdx.x] = __shfl_xor_sync(0xffffffffu, value, 16);
}
"""


@pytest.fixture(scope="module")
def collectives(compile_text: Callable[..., Any]) -> Any:
    kernels = "".join(
        f"__global__ void {kind}_{type_.replace(' ', '_')}(const void* x, void* out, int n) {{\n"
        f"    const {type_} value = ((const {type_}*)x)[threadIdx.x];\n"
        f"    for (int k = 0; k < 32; ++k) (({type_}*)out)[k * 32 + (int)threadIdx.x] = {CALLS[kind]};\n}}\n"
        for kind in CALLS
        for type_ in TYPES
    )
    return compile_text(kernels + REST)


def source_lane(kind: str, lane: int, argument: int, width: int) -> int:
    """The lane whose value ``lane`` receives: PTX ISA, shfl.sync, with c as CUDA's headers build it from the width."""
    segment = ~(width - 1) & 31
    clamp = 0 if kind == "up" else 31
    bound = (lane & segment) | (clamp & ~segment)
    if kind == "shfl":
        return (lane & segment) | (argument & 31 & ~segment)
    source = {"up": lane - argument, "down": lane + argument, "xor": lane ^ argument}[kind]
    inside = source >= bound if kind == "up" else source <= bound
    return source if inside else lane


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("kind", CALLS)
def test_shuffles_match_the_model_at_every_width(collectives: Any, kind: str, type_: str) -> None:
    scale = -0x1_2345_6789 if type_ == "long long" else -3 if type_ in {"int", "float", "double"} else 7
    values = [(lane + 1) * scale for lane in range(32)]
    x = bytes((TYPES[type_] * 32)(*values))
    for width in (1, 2, 4, 8, 16, 32):
        for seed in (0, 11):
            name = f"{kind}_{type_.replace(' ', '_')}"
            outcome = collectives.launch(name, x=x, out=32 * len(x), n=width, seed=seed)
            assert outcome.code == 0, outcome.report
            got = list((TYPES[type_] * 1024).from_buffer_copy(outcome.out))
            first = -7 if kind == "shfl" else 0
            assert got == [
                values[source_lane(kind, lane, first + k, width)] for k in range(32) for lane in range(32)
            ], (width, seed)


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("pattern", [0, 0xFFFFFFFF, 0x55555555, 0x80000001, 0x12345678])
def test_votes_see_only_their_mask(collectives: Any, odd: int, pattern: int) -> None:
    x = bytes((ctypes.c_int * 32)(*[pattern >> lane & 1 for lane in range(32)]))
    for seed in range(4):
        outcome = collectives.launch("votes", x=x, out=512, n=odd, seed=seed)
        assert outcome.code == 0, outcome.report
        rows = (ctypes.c_uint * 4 * 32).from_buffer_copy(outcome.out)
        mine, other = (0xAAAAAAAA, 0x55555555) if odd else (0x55555555, 0xAAAAAAAA)
        for lane in range(32):
            expected = [pattern & mine, int(pattern & mine != 0), int(pattern & mine == mine), 0]
            assert list(rows[lane]) == (expected if lane & 1 == odd else [0, 0, 0, pattern & other])


@pytest.mark.parametrize("seed", range(6))
def test_parts_of_a_warp_call_on_their_own(collectives: Any, seed: int) -> None:
    outcome = collectives.launch("halves", out=128, seed=seed)
    assert outcome.code == 0, outcome.report
    assert list((ctypes.c_int * 32).from_buffer_copy(outcome.out)) == [19] * 16 + [120] * 16


# ---- casts, minima and mathematical functions, as CUDA overloads them


MATHEMATICS = HEADER_DIRECTORY / "mathematics.h"
WITHIN_ONE = {"acos", "asin", "atanh"}  # defined for arguments of at most 1


def test_mathematics_in_both_precisions(compile_text: Callable[..., Any]) -> None:
    """Each function by its plain name and with an f, for float, double and whole numbers, as CUDA overloads them."""
    declared = re.findall(r"^SCANOPS_(UNARY|BINARY)\((\w+)\)$", MATHEMATICS.read_text(), re.MULTILINE)
    assert len(declared) > 40
    calls = [
        (name, "2.5, 0.75" if kind == "BINARY" else "0.75" if name in WITHIN_ONE else "1.25") for kind, name in declared
    ]
    lines = []
    for name, values in calls:
        floats = ", ".join(f"{value}f" for value in values.split(", "))
        lines += [
            f"static_assert(sizeof({name}({floats})) == 4 && sizeof({name}({values})) == 8);",
            f"*y++ = {name}({floats}) == {name}f({floats}) && fabs({name}({values}) - {name}({floats})) < 1e-5;",
        ]
    lines += ["*y++ = sqrt(16) == 4.0 && sizeof(sqrt(16)) == 8;", "*y++ = fma(2.0f, 3.0f, 4.0f) == 10.0f;"]
    lines += ["*y++ = isnan(NAN) && isinf(-INFINITY) && !isfinite(INFINITY) && signbit(-0.0) && isfinite(1.0f);"]
    lines += ["*y++ = abs(-3) == 3 && abs(-3ll) == 3 && abs(-1.5f) == 1.5f && abs(-1.5) == 1.5;"]
    body = "\n    ".join(lines)
    collectives = compile_text(
        f"__global__ void all(const void*, void* out, int) {{\n    bool* y = (bool*)out;\n    {body}\n}}"
    )
    count = body.count("*y++")
    assert count == len(calls) + 4
    assert collectives.launch("all", threads=1, out=count).out == b"\1" * count
