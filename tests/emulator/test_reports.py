"""Every misuse the emulator knows is reported with block, thread and line, and the library stays usable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

TEXT = """
struct __align__(16) Vector { float item[4]; };
struct Pack { float item[4]; };

__global__ void fine(const void*, void* out, int) {
    __shared__ float values[32];
    values[threadIdx.x] = 1.0f;
    __syncthreads();
    ((float*)out)[threadIdx.x] = values[31 - threadIdx.x];
}
__global__ void shared_bounds(const void*, void*, int n) {
    __shared__ float values[32];
    if (blockIdx.x == 3 && threadIdx.x == 17) values[n] = 1.0f;  // <bounds>
}
__global__ void register_bounds(const void*, void* out, int n) {
    Pack pack = {};
    ((float*)out)[0] = pack.item[n];  // <pack>
}
__global__ void barrier_skipped(const void*, void*, int) {
    if (threadIdx.x != 40) __syncthreads();  // <skipped>
}
__global__ void barrier_after_exit(const void*, void*, int) {
    if (threadIdx.x == 0) return;
    __syncthreads();  // <late>
}
__global__ void barriers_differ(const void*, void*, int) {
    if (threadIdx.x < 40)
        __syncthreads();  // <first barrier>
    else
        __syncthreads();  // <second barrier>
}
__global__ void lane_left(const void*, void*, int) {
    if (threadIdx.x == 5) return;
    __shfl_up_sync(0xffffffffu, 1.0f, 1u, 32);  // <left>
}
__global__ void own_lane(const void*, void*, int) {
    __shfl_up_sync(0x0000ffffu, 1, 1u, 32);  // <own>
}
__global__ void masks_differ(const void*, void*, int) {
    __ballot_sync(threadIdx.x == 9 ? 0x00000300u : 0xffffffffu, 1);  // <masks>
}
__global__ void lines_differ(const void*, void*, int) {
    if (threadIdx.x == 9)
        __any_sync(0xffffffffu, 1);  // <ninth>
    else
        __any_sync(0xffffffffu, 1);  // <others>
}
__global__ void reads_unnamed(const void*, void*, int) {
    if (threadIdx.x < 16) __shfl_down_sync(0x0000ffffu, 1, 1u, 32);  // <unnamed>
}
__global__ void partial_warp(const void*, void*, int) {
    __syncwarp(0xffffffffu);  // <partial>
}
__global__ void bad_width(const void*, void*, int n) {
    __shfl_sync(0xffffffffu, 1, 0, n);  // <width>
}
__global__ void deadlock(const void*, void*, int) {
    if (threadIdx.x != 7) __shfl_xor_sync(0xffffffffu, 1.0, 1, 32);  // <short shuffle>
    __syncthreads();  // <early barrier>
}
__global__ void spin(const void*, void* out, int) {
    if (threadIdx.x == 0) while (load_relaxed((unsigned*)out) == 0) {}  // <spin>
    __syncthreads();  // <behind>
}
__global__ void spin_by_warp(const void*, void* out, int) {
    while (__all_sync(0xffffffffu, load_relaxed((unsigned*)out) == 0)) {}  // <warp spin>
}
__global__ void misaligned(const void* x, void* out, int) {
    const Vector vector = reinterpret_cast<const Vector*>(x)[threadIdx.x];  // <vector>
    ((float*)out)[threadIdx.x] = vector.item[0];
}
__global__ void misaligned_copy(const void* x, void*, int n) {
    __shared__ __align__(16) float values[8];
    copy_async_16(values + n, x);  // <copy>
}
"""


@pytest.fixture(scope="module")
def library(compile_text: Callable[..., Any]) -> Any:
    return compile_text(TEXT)


CASES = [
    # kernel, arguments, mark of the reported line, pieces of the report
    ("shared_bounds", {"blocks": 5, "n": 32}, "<bounds>",
     ["block (3,0,0) thread (17,0,0)", "index 32 is out of bounds", "float [32]", "kernel.cu:"]),
    ("shared_bounds", {"blocks": 5, "n": -1}, "<bounds>", ["block (3,0,0) thread (17,0,0)", "index -1 is out of"]),
    ("register_bounds", {"n": 4, "out": 4}, "<pack>",
     ["block (0,0,0) thread (0,0,0)", "index 4 is out of", "float [4]"]),
    ("barrier_skipped", {"threads": 64}, "<skipped>", ["thread (40,0,0)", "left the kernel while", "__syncthreads"]),
    ("barrier_after_exit", {"threads": 64}, "<late>", ["1 thread of the block that left the kernel"]),
    ("barriers_differ", {"threads": 64}, "<second barrier>",
     ["thread (40,0,0)", "different barriers", "thread (0,0,0) and 39 more at line {first barrier}"]),
    ("lane_left", {}, "<left>", ["thread (5,0,0)", "lane 5, left the kernel", "__shfl_up_sync", "0xffffffff"]),
    ("own_lane", {}, "<own>", ["thread (16,0,0)", "mask 0x0000ffff does not name the calling lane"]),
    ("masks_differ", {}, "<masks>", ["thread (9,0,0)", "different calls", "0x00000300", "0xffffffff"]),
    ("lines_differ", {}, "<ninth>", ["thread (9,0,0)", "different calls", "__any_sync at line {others}"]),
    ("reads_unnamed", {}, "<unnamed>", ["thread (15,0,0)", "lane 15 reads lane 16", "mask 0x0000ffff"]),
    ("partial_warp", {"threads": 40}, "<partial>", ["thread (32,0,0)", "absent", "lowest is lane 8"]),
    ("bad_width", {"n": 12}, "<width>", ["width 12 is not a power of two"]),
    ("deadlock", {"threads": 64}, "<short shuffle>",
     ["block (0,0,0) thread (0,0,0)", "deadlock in __shfl_xor_sync",
      "31 threads, first (0,0,0), in __shfl_xor_sync at line {short shuffle}, mask 0xffffffff, absent lanes 7",
      "33 threads, first (7,0,0), in __syncthreads at line {early barrier}"]),
    ("spin", {"threads": 64, "out": 4, "blocks": 4}, "<spin>",
     ["thread (0,0,0)", "waits for a flag nobody sets",
      "63 threads, first (1,0,0), in __syncthreads at line {behind}"]),
    ("misaligned", {"x": bytes(600), "shift": 4, "out": 128}, "<vector>", ["misaligned", "Vector", "multiple of 16"]),
    ("misaligned_copy", {"x": bytes(64), "n": 1}, "<copy>", ["misaligned"]),
    ("misaligned_copy", {"x": bytes(64), "n": 4096}, "<copy>", ["not in shared memory"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "arguments", "mark", "pieces"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)]
)
def test_misuse_is_reported_with_its_place(
    library: Any, kernel: str, arguments: dict[str, Any], mark: str, pieces: list[str]
) -> None:
    outcome = library.launch(kernel, **arguments)
    assert outcome.code == 710, outcome.report
    assert outcome.report.startswith("block (")
    assert f"kernel line {library.line(mark)}: " in outcome.report
    for piece in pieces:
        if "{" in piece:
            before, rest = piece.split("{")
            name, after = rest.split("}")
            piece = f"{before}{library.line(f'<{name}>')}{after}"
        assert piece in outcome.report, outcome.report
    assert library.handle.scanops_last_error() == 710
    assert library.handle.scanops_last_error() == 0
    again = library.launch("fine", out=128)
    assert (again.code, again.report) == (0, "no error")


@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [case[:2] for case in CASES if case[0] not in {"shared_bounds", "register_bounds", "misaligned_copy"}],
)
def test_misuse_is_reported_under_every_schedule(library: Any, kernel: str, arguments: dict[str, Any]) -> None:
    for seed in range(1, 6):
        first = library.launch(kernel, seed=seed, **arguments)
        assert first.code == 710
        if "shift" not in arguments:  # the report holds an address
            assert library.launch(kernel, seed=seed, **arguments).report == first.report


def test_spin_of_whole_warps_ends(library: Any) -> None:
    outcome = library.launch("spin_by_warp", out=4)
    assert outcome.code == 710
    assert "waits for a flag nobody sets (last value 0)" in outcome.report


@pytest.mark.parametrize("threads", [0, 1025, (32, 32, 2)])
def test_impossible_block_is_refused(library: Any, threads: Any) -> None:
    outcome = library.launch("fine", threads=threads)
    assert (outcome.code, outcome.report[:21]) == (9, "invalid configuration")
