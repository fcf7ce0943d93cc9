"""Hand-written kernels in the shape of the generated ones, and compilers that count or misbehave."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scanops.build_request import LIBRARY, BuildRequest
from scanops.builders import unavailable
from scanops.codegen.abi import ABI
from scanops.codegen.launch import Launch
from scanops.store.entry import FILES, MANIFEST, SOURCE, facts_of, manifest_bytes, read_entry

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away or to become another user")
needs_nvrtc = pytest.mark.skipif(unavailable("nvrtc", "sm_90") is not None, reason="needs NVRTC")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None or shutil.which("g++") is None, reason="needs nvcc")


ABI_SOURCE = f'extern "C" int scanops_abi() {{ return {ABI}; }}\n'

CPU_SOURCE = (
    ABI_SOURCE
    + """
extern "C" const char* scanops_error_string(int) { return "no error"; }
extern "C" int scanops_launch() { return 0; }
extern "C" void scanops_emulator_configure(unsigned long long, int) {}
"""
)

KERNEL = BuildRequest(name="sum-f32", source=CPU_SOURCE, target="cpu")

CUDA_SOURCE = """
#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif
struct Geometry { long long lines; };
extern "C" __global__ void __launch_bounds__(512)
scan_kernel(const float* x, float* out, const __grid_constant__ Geometry g) {
    __shared__ float warp_total[16];
    const float value = x[blockIdx.x * 512ll + threadIdx.x];
    if (threadIdx.x % 32 == 0) warp_total[threadIdx.x / 32] = value;
    __syncthreads();
    out[blockIdx.x * 512ll + threadIdx.x] = warp_total[0] + __shfl_up_sync(0xffffffffu, value, 1, 32) + g.lines;
}
#ifndef __CUDACC_RTC__
ABI_HERE
extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }
extern "C" int scanops_launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared_bytes, void* stream, void** parameters, void**) {
    return cudaLaunchKernel(scan_kernel, blocks, threads, parameters, shared_bytes, (cudaStream_t)stream);
}
#endif
""".replace("ABI_HERE", ABI_SOURCE)

LAUNCH = Launch(kernel="scan_kernel", parameters=("input", "output", "lines"), threads=512)
CUDA = BuildRequest(name="sum-f32", source=CUDA_SOURCE, target="sm_90", launch=LAUNCH._asdict())


def script(path: Path, body: str) -> Path:
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def counting_cxx(folder: Path) -> tuple[Path, Path]:
    """A g++ that adds a line to a file for every source it compiles: (compiler, file)."""
    count = folder / "compiled"
    count.touch()
    body = f'for word; do [ "$word" = -c ] && echo x >> "{count}"; done\nexec g++ "$@"'
    return script(folder / "counting-g++", body), count


def needed(library: Path) -> list[str]:
    """The sonames a library asks the loader for."""
    done = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True)
    return [line.split("[")[1].rstrip("]") for line in done.stdout.splitlines() if "(NEEDED)" in line]


# What every program below begins with: the compilers alone, no torch; a folder, and a kernel to ask for.
BEGIN = """
import os, signal, sys, threading, time
sys.modules["torch"] = None
from pathlib import Path
from scanops.build_request import BuildRequest
from scanops.codegen.abi import ABI
from scanops.store.library import load
from scanops.store import Store
from tests.store.sources import CPU_SOURCE, KERNEL as request
root = Path(sys.argv[1])
"""


def python(
    code: str, *arguments: object, begin: str = BEGIN, prefix: tuple[str, ...] = (), **environment: str
) -> subprocess.Popen[str]:
    """A new Python that runs ``code``, in a process group of its own; ``prefix``: the command that starts it."""
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", begin + code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def replaced(path: Path, data: bytes) -> None:
    """Replace a file, never in place: the old one may be mapped into this process."""
    path.with_name("draft").write_bytes(data)
    path.with_name("draft").replace(path)


def resealed(entry: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest as somebody does who can write one."""
    manifest = read_entry(entry).manifest
    change(manifest)
    replaced(entry / "manifest.json", manifest_bytes(manifest))


def relisted(entry: Path) -> None:
    """Let a manifest list the library as it is."""
    facts = facts_of((entry / "kernel.so").read_bytes())
    resealed(entry, lambda manifest: manifest["files"].update({"kernel.so": facts}))


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Let new files have no permission of ``mask`` for a ``with`` block."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def flipped(data: bytes, at: int | None = None, bit: int = 1) -> bytes:
    """Bytes with one bit changed, by default in the middle."""
    at = len(data) // 2 if at is None else at
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def linked(path: Path) -> None:
    """Put a symbolic link in place of a file or folder, which goes on under a hidden name."""
    path.symlink_to(path.rename(path.with_name(f".{path.name}.moved")))


Harm = Callable[[Path], object]

# What a file is -> how it is damaged
DAMAGES: dict[str, Harm] = {
    "flipped": lambda path: replaced(path, flipped(path.read_bytes())),
    "cut": lambda path: replaced(path, path.read_bytes()[:-1]),
    "empty": lambda path: replaced(path, b""),
    "longer": lambda path: replaced(path, path.read_bytes() + b"\0"),
    "gone": Path.unlink,
    "a link": linked,
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}
# What an index record is -> how it is damaged
RECORDS: dict[str, Harm] = {
    **DAMAGES,
    "nested too deeply": lambda record: replaced(record, b"[" * 4000),
    "huge": lambda record: replaced(record, bytes(2_000_000)),
    "for others to write": lambda record: record.chmod(0o666),
    "in a folder for others to write": lambda record: record.parent.chmod(0o777),
    "of a device": lambda record: (record.unlink(), record.symlink_to("/dev/zero")),
}
# What an entry is -> how its folder is damaged; the first word is the part that is at fault
ENTRIES: dict[str, Harm] = {
    "folder a link": linked,
    "manifest.json a list": lambda entry: replaced(entry / MANIFEST, b"[]"),
    "manifest.json nested too deeply": lambda entry: replaced(entry / MANIFEST, b"[" * 100_000),
    "manifest.json huge": lambda entry: replaced(entry / MANIFEST, bytes(2_000_000)),
    "manifest.json of another schema": lambda entry: resealed(entry, lambda manifest: manifest.update(schema=99)),
}
for name, how in itertools.product((*FILES[LIBRARY], MANIFEST), DAMAGES):
    ENTRIES[f"{name} {how}"] = lambda entry, name=name, how=how: DAMAGES[how](entry / name)
del ENTRIES[f"{SOURCE} gone"]  # which is no damage
for name in (".", *FILES[LIBRARY], MANIFEST):
    part = "folder" if name == "." else name
    ENTRIES[f"{part} for others to write"] = lambda entry, name=name: (entry / name).chmod(0o777)
    ENTRIES[f"{part} of another user"] = lambda entry, name=name: os.chown(entry / name, 12345, -1)
for name in ("abi", "target", "name", "resources", "files", "toolchain"):
    ENTRIES[f"manifest.json without {name}"] = lambda entry, name=name: resealed(
        entry, lambda manifest: manifest.pop(name)
    )


def each_case(table: Iterable[str]) -> pytest.MarkDecorator:
    """Run a test with each name of a table as ``what``; as root alone those that give a file to another user."""
    cases = [pytest.param(what, marks=needs_root if "another user" in what else ()) for what in table]
    return pytest.mark.parametrize("what", cases)
