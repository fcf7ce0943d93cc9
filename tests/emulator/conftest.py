"""Compile kernel texts with g++ against the emulator and launch them through ctypes."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from scanops.build_request import CPU, BuildRequest
from scanops.builders.direct import build

LAUNCHER = """
extern "C" const char* scanops_error_string(int code) {{ return cudaGetErrorString((cudaError_t)code); }}
extern "C" int scanops_last_error() {{ return cudaGetLastError(); }}
extern "C" int scanops_launch(int kernel, unsigned blocks, const unsigned* threads, const void* x, void* out, int n) {{
    void (*const kernels[])(const void*, void*, int) = {{ {kernels} }};
    void* parameters[] = {{&x, &out, &n}};
    return cudaLaunchKernel(kernels[kernel], blocks, dim3(threads[0], threads[1], threads[2]), parameters);
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one launch came to."""

    code: int  # cudaError_t
    report: str  # text of that code
    out: bytes  # the output buffer afterwards


@dataclass(slots=True, kw_only=True)
class Library:
    """A compiled text whose kernels all take (const void* x, void* out, int n)."""

    handle: ctypes.CDLL
    text: str
    names: list[str] = field(default_factory=list)

    def line(self, mark: str) -> int:
        """Line of the only place in the text that has this mark."""
        (number,) = [n for n, line in enumerate(self.text.splitlines(), 1) if mark in line]
        return number

    def launch(
        self,
        kernel: str,
        *,
        blocks: int = 1,
        threads: int | tuple[int, int, int] = 32,
        x: bytes = b"",
        out: int | bytes = 0,
        n: int = 0,
        seed: int = 0,
        resident: int = 3,
        shift: int = 0,
    ) -> Outcome:
        """Run a kernel. ``out`` is the size of a zeroed buffer or its bytes; ``shift`` misaligns ``x`` by so much."""
        shape = (threads, 1, 1) if isinstance(threads, int) else threads
        source, source_at = _aligned(x, shift)
        target, target_at = _aligned(bytes(out) if isinstance(out, int) else out, 0)
        size = out if isinstance(out, int) else len(out)
        self.handle.scanops_emulator_configure(ctypes.c_ulonglong(seed), resident)
        code = self.handle.scanops_launch(
            self.names.index(kernel),
            blocks,
            (ctypes.c_uint * 3)(*shape),
            ctypes.c_void_p(source_at),
            ctypes.c_void_p(target_at),
            n,
        )
        del source
        report = self.handle.scanops_error_string(code).decode()
        offset = target_at - ctypes.addressof(target)
        return Outcome(code=code, report=report, out=target.raw[offset : offset + size])


def _aligned(data: bytes, shift: int) -> tuple[ctypes.Array[ctypes.c_char], int]:
    buffer = ctypes.create_string_buffer(len(data) + 128)
    address = -(-ctypes.addressof(buffer) // 64) * 64 + shift
    ctypes.memmove(address, data, len(data))
    return buffer, address


@pytest.fixture(scope="session")
def compile_text(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Library]:
    """``compile_text(kernels)`` builds a fresh Library as kernels are built."""

    def compile_it(kernels: str) -> Library:
        names = re.findall(r"__global__ void(?: __launch_bounds__\(\d+\))? (\w+)\(", kernels)
        text = "#include <cuda_runtime.h>\n" + kernels + LAUNCHER.format(kernels=", ".join(names))
        folder = tmp_path_factory.mktemp("kernel")
        (folder / "kernel.cu").write_text(text, encoding="utf-8")
        built = build(BuildRequest(name="emulated", source=text, target=CPU), folder)
        handle = ctypes.CDLL(str(built.file))
        handle.scanops_error_string.restype = ctypes.c_char_p
        return Library(handle=handle, text=text, names=names)

    return compile_it
