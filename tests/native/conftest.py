"""The native part of calls, switched on for a test; and a CUDA driver, which runs kernels that g++ has compiled.

In place of machine code a cubin holds, behind its header, the path of an emulated library. A thread has no context
until one is set, as in a process that uses only the driver.
"""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import scanops
from scanops.build_request import CPU, CUBIN, BuildRequest
from scanops.runtime import call_cache, driver, native
from scanops.runtime.binaries import load_binary
from scanops.runtime.kernels import Kernel
from scanops.runtime.native import building
from scanops.store import Store
from scanops.store.entry import Entry, facts_of


class Counted:
    """The number of calls that were served natively since the fixture began."""

    calls = 0

    def during(self, call: Callable[[], object]) -> int:
        """Return how many a call serves."""
        before = self.calls
        call()
        return self.calls - before


def copy_library(folder: Path) -> Path:
    """Copy the entry of the C++ call path into a new folder, so that it is not compiled again: it takes 20 seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCANOPS_LOCK_SECONDS", "600")  # another worker may be building it
        entry = building.find_library() or building.build()
    folder.mkdir(mode=0o700)
    return Path(shutil.copytree(entry.directory, folder / entry.directory.name))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    """Serve emulated kernels natively, with nothing learnt yet, and count."""
    monkeypatch.setenv("SCANOPS_LOCK_SECONDS", "600")  # another worker may be building it
    assert native.get(build=True)
    native.forget()
    call_cache.forget()
    count, serve = Counted(), native.serve

    def counting(*given: Any, **named: Any) -> object:
        found = serve(*given, **named)
        count.calls += found is not None
        return found

    native.serve = counting  # type: ignore[assignment]
    with scanops.emulate(seed=3):
        yield count
    native.serve = None
    native.forget()


DRIVER = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int version = 12000, codes[8];  // codes: of the next launches; 0 is the end
char notes[1 << 20], fails[64];  // fails: the name of a function that returns 999
static __thread void* current;
static int noted(const char* name, long a, long b, long c, long d) {
    char* end = notes + strlen(notes);
    snprintf(end, notes + sizeof notes - end, "%s %ld %ld %ld %ld\n", name, a, b, c, d);
    return strcmp(name, fails) ? 0 : 999;
}
int cuDriverGetVersion(int* found) { return *found = version, 0; }
int cuGetErrorName(int code, const char** found) { return *found = code == 999 ? "CUDA_ERROR_UNKNOWN" : 0, !*found; }
int cuGetErrorString(int code, const char** found) { return *found = code == 999 ? "bad" : 0, !*found; }
int cuCtxPushCurrent_v2(void* context) { return current = context, 0; }
int cuCtxPopCurrent_v2(void** context) { return *context = current, current = 0, 0; }
int cuCtxSetCurrent(void* context) { return current = context, noted("cuCtxSetCurrent", 0, 0, 0, 0); }
int cuDevicePrimaryCtxRetain(void** context, int device) {
    *context = notes + device + 1;
    return noted("cuDevicePrimaryCtxRetain", device, 0, 0, 0);
}
int cuLibraryLoadData(void** library, const char* cubin, void* a, void* b, unsigned c, void* d, void* e, unsigned f) {
    *library = dlopen(cubin + 64, RTLD_NOW | RTLD_LOCAL);
    return *library ? noted("cuLibraryLoadData", 0, 0, 0, 0) : 200;
}
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
    char runner[160];
    snprintf(runner, sizeof runner, "run_%s", name);
    *kernel = dlsym(library, runner);
    return *kernel ? noted("cuLibraryGetKernel", 0, 0, 0, 0) : 500;
}
int cuKernelGetFunction(void** function, void* kernel) {
    *function = kernel;
    return current ? noted("cuKernelGetFunction", (char*)current - notes - 1, 0, 0, 0) : 201;
}
int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) {
    return noted("cuKernelSetAttribute", attribute, value, device, 0);
}
int cuLaunchKernel(int (*kernel)(unsigned, unsigned, unsigned, void**), unsigned x, unsigned y, unsigned z,
                   unsigned threads, unsigned b, unsigned c, unsigned shared, void* stream, void** parameters,
                   void** extra) {
    noted("cuLaunchKernel", x, threads, shared, (long)stream);
    const int code = current ? *codes : 201;
    if (code && current) memmove(codes, codes + 1, sizeof codes - sizeof *codes);
    if (code) return code;
    return x > 2147483647u || y * z * b * c != 1 || extra ? 1 : kernel(x, threads, shared, parameters);
}
struct config { unsigned blocks[3], threads[3], shared; void* stream; int* attributes; unsigned count; };
int cuLaunchKernelEx(const struct config* it, int (*kernel)(unsigned, unsigned, unsigned, void**), void** parameters,
                     void** extra) {
    noted("cuLaunchKernelEx", it->count, it->attributes[0], it->attributes[2], 0);
    return cuLaunchKernel(kernel, it->blocks[0], it->blocks[1], it->blocks[2], it->threads[0], it->threads[1],
                          it->threads[2], it->shared, it->stream, parameters, extra);
}
"""
RUN = """
extern "C" int run_NAME(unsigned blocks, unsigned threads, unsigned shared, void** parameters) {
    return cudaLaunchKernel(NAME, dim3(blocks), dim3(threads), parameters, shared, nullptr);
}
"""


def cubin_with(content: bytes) -> bytes:
    """Return a cubin for sm_90: its header, ``content``, and headers of a segment and a section without bytes."""
    tables = 64 + len(content)  # of headers, of 56 and of 64 bytes
    identity = b"\x7fELF\x02\x01\x01", 65, 8
    header = struct.pack("<7sBB7xHHIQQQI6H", *identity, 2, 190, 1, 0, tables, tables + 56, 90 << 8, 64, 56, 1, 64, 1, 0)
    return header + content + bytes(56 + 64)


class Driver:
    """The loaded driver: what it was called for, and what it is to return."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "libcuda.so.1"
        command = ["g++", "-x", "c", "-shared", "-fPIC", "-o", str(self.path), "-", "-ldl"]
        subprocess.run(command, input=DRIVER, text=True, check=True)
        library = ctypes.CDLL(str(self.path))
        self.version, self.codes = ctypes.c_int.in_dll(library, "version"), (ctypes.c_int * 8).in_dll(library, "codes")
        self.fails = (ctypes.c_char * 64).in_dll(library, "fails")
        self._log = (ctypes.c_char * (1 << 20)).in_dll(library, "notes")
        self._seen: list[str] = []

    def calls(self, function: str = "") -> list[str]:
        """Return and forget the calls, or those of one function."""
        self._seen += self._log.value.decode().splitlines()
        self._log.value = b""
        found = [line for line in self._seen if line.startswith(function)]
        self._seen = [line for line in self._seen if not line.startswith(function)]
        return found


def entry_of(kernel: Kernel, folder: Path) -> Entry:
    """Return the entry of a cubin, for sm_90, of a kernel's text and plan."""
    source = kernel.source + RUN.replace("NAME", kernel.plan.launch.kernel)
    library = Store().get_or_build(BuildRequest(name=kernel.spec.slug, source=source, target=CPU))
    folder = folder / library.directory.name
    folder.mkdir(exist_ok=True)
    (folder / "kernel.cu").write_text(kernel.source, encoding="utf-8")
    (folder / "kernel.cubin").write_bytes(cubin_with(bytes(library.library_path) + b"\0"))
    files = {name: facts_of((folder / name).read_bytes()) for name in ("kernel.cu", "kernel.cubin")}
    launch = {"launch": kernel.plan.launch._asdict(), "form": CUBIN, "target": "sm_90"}
    return replace(library, directory=folder, manifest={**library.manifest, **launch, "files": files})


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """Let every emulated kernel be a cubin, which this driver loads and launches."""
    made, codes, lock = Driver(tmp_path), {}, threading.RLock()

    def code(kernel: Kernel) -> object:
        with lock:
            if id(kernel) not in codes:
                codes[id(kernel)] = kernel, load_binary(entry_of(kernel, tmp_path))
            return codes[id(kernel)][1]

    monkeypatch.setattr(driver, "PATH", str(made.path))
    monkeypatch.setattr(driver, "_CONTEXTS", {})
    monkeypatch.setattr(Kernel, "code", property(code))
    driver.driver.cache_clear()
    call_cache.forget()
    yield made
    call_cache.forget()
    driver.driver.cache_clear()
