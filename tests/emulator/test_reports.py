"""Every misuse the emulator knows is reported with block, thread and line, and the library stays usable."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

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
    ("shared_bounds", {"blocks": 5, "n": 32}, "bounds",
     ["block (3,0,0) thread (17,0,0)", "index 32 is out of bounds", "float [32]", "kernel.cu:"]),
    ("shared_bounds", {"blocks": 5, "n": -1}, "bounds", ["block (3,0,0) thread (17,0,0)", "index -1 is out of"]),
    ("register_bounds", {"n": 4, "out": 4}, "pack", ["block (0,0,0) thread (0,0,0)", "index 4 is out of", "float [4]"]),
    ("barrier_skipped", {"threads": 64}, "skipped", ["thread (40,0,0)", "left the kernel while", "__syncthreads"]),
    ("barrier_after_exit", {"threads": 64}, "late", ["1 thread of the block that left the kernel"]),
    ("barriers_differ", {"threads": 64}, "second barrier",
     ["thread (40,0,0)", "different barriers", "thread (0,0,0) and 39 more at line {first barrier}"]),
    ("lane_left", {}, "left", ["thread (5,0,0)", "lane 5, left the kernel", "__shfl_up_sync", "0xffffffff"]),
    ("own_lane", {}, "own", ["thread (16,0,0)", "mask 0x0000ffff does not name the calling lane"]),
    ("masks_differ", {}, "masks", ["thread (9,0,0)", "different calls", "0x00000300", "0xffffffff"]),
    ("lines_differ", {}, "ninth", ["thread (9,0,0)", "different calls", "__any_sync at line {others}"]),
    ("reads_unnamed", {}, "unnamed", ["thread (15,0,0)", "lane 15 reads lane 16", "mask 0x0000ffff"]),
    ("partial_warp", {"threads": 40}, "partial", ["thread (32,0,0)", "absent", "lowest is lane 8"]),
    ("bad_width", {"n": 12}, "width", ["width 12 is not a power of two"]),
    ("deadlock", {"threads": 64}, "short shuffle",
     ["block (0,0,0) thread (0,0,0)", "deadlock in __shfl_xor_sync",
      "31 threads, first (0,0,0), in __shfl_xor_sync at line {short shuffle}, mask 0xffffffff, absent lanes 7",
      "33 threads, first (7,0,0), in __syncthreads at line {early barrier}"]),
    ("spin", {"threads": 64, "out": 4, "blocks": 4}, "spin",
     ["thread (0,0,0)", "waits for a flag nobody sets",
      "63 threads, first (1,0,0), in __syncthreads at line {behind}"]),
    ("spin_by_warp", {"out": 4}, "warp spin", ["waits for a flag nobody sets (last value 0)"]),
    ("misaligned", {"x": bytes(600), "shift": 4, "out": 4}, "vector", ["misaligned", "Vector", "multiple of 16"]),
    ("converted", {"n": -2, "out": 4}, "cast", ["-3 is converted to 'unsigned int', where a GPU gives 0"]),
    ("misaligned_copy", {"x": bytes(64), "n": 1}, "copy", ["misaligned"]),
    ("misaligned_copy", {"x": bytes(64), "n": 4096}, "copy", ["not in shared memory"]),
]  # fmt: skip
IN_ORDER = {
    "shared_bounds",
    "register_bounds",
    "converted",
    "misaligned_copy",
    "spin_by_warp",
}  # the same whatever the schedule


@pytest.fixture(scope="module")
def library(compile_text: Callable[..., Any]) -> Any:
    kernels = (
        f"__global__ void {name}(const void* x, void* out, int n) {{\n{body}\n}}" for name, body in BODIES.items()
    )
    return compile_text(START + "\n".join(kernels))


@pytest.mark.parametrize(("kernel", "arguments", "mark", "pieces"), CASES)
def test_misuse_is_reported(library: Any, kernel: str, arguments: dict[str, Any], mark: str, pieces: list[str]) -> None:
    """With its place, under every schedule; the report of a schedule is the same each time."""
    outcome = library.launch(kernel, **arguments)
    assert outcome.code == 710, outcome.report
    assert outcome.report.startswith("block (")
    assert f"kernel line {library.line(f'<{mark}>')}: " in outcome.report
    for piece in pieces:
        assert re.sub("{(.*)}", lambda other: str(library.line(f"<{other[1]}>")), piece) in outcome.report
    assert library.handle.scanops_last_error() == 710
    assert library.handle.scanops_last_error() == 0
    again = library.launch("fine", out=128)
    assert (again.code, again.report) == (0, "no error")
    for seed in range(1, 6) if kernel not in IN_ORDER else ():
        first, second = (library.launch(kernel, seed=seed, **arguments) for _ in range(2))
        assert first.code == 710
        assert first.report == second.report or "shift" in arguments  # that report holds an address


@pytest.mark.parametrize("threads", [0, 1025, (32, 32, 2)])
def test_impossible_block_is_refused(library: Any, threads: Any) -> None:
    outcome = library.launch("fine", threads=threads)
    assert (outcome.code, outcome.report[:21]) == (9, "invalid configuration")
