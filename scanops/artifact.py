"""Build requests and build reports: plain values, cheap to import.

The identity of a kernel is the SHA-256 of its text, flags, target, ABI and platform; never a path, a time, or
parameters. Toolchain versions are in the manifest instead, so that a machine without compilers can look kernels up.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from scanops import files
from scanops.emulator import CPU as CPU
from scanops.emulator import HEADER_DIRECTORY
from scanops.errors import UnsupportedRequest

# Version of the C interface, which scanops_abi() of a library returns; templates and the native call path get it from
# here. Raise it when an exported function changes, or ScanArguments anywhere but at its end.
ABI = 3
SCHEMA = 1  # of manifest.json; part of the identity, so that two versions of scanops can share a store
HOST = "host"  # the native call path, which g++ builds against torch and Python (scanops/runtime/native)
EMULATOR = HEADER_DIRECTORY

# What the emulator's cuda_runtime.h needs. -Og: a kernel compiles in half the time of -O1 and runs as fast, most of
# which is switches between threads. The sanitizers are for compiling only: host.cpp has their handlers, so that
# nothing links libubsan. -fno-gnu-unique keeps the state of each library its own.
_CPU_FLAGS = (
    "-std=c++20",
    "-Og",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fsanitize=bounds-strict,alignment",
    "-fno-gnu-unique",
)
_CUDA_FLAGS = ("-std=c++17", "-O3")
_HOST_FLAGS = ("-std=c++20", "-O2", "-fvisibility=hidden")
# Debian's gcc does not pass --as-needed by itself; without it every kernel would need libtorch.
# -Bsymbolic: a library calls its own kernel even when another one with the same names is loaded globally.
# -s, --build-id=none: the table of local symbols names files of the build folder, and the build id is a digest of it.
# Without both, two builds of one text are the same bytes.
LINK_FLAGS = ("-Wl,--as-needed", "-Wl,-Bsymbolic", "-Wl,-z,defs", "-Wl,-s", "-Wl,--build-id=none")

# Compiled at import and not at a lookup: it takes as long as dlopen.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,150}")
_TARGET = re.compile(r"sm_(\d+[af]?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """A kernel library to build. Raises UnsupportedRequest for a malformed name or target."""

    name: str  # slug for people, a file name: letters, digits, "_.+-", at most 151; not part of the identity
    source: str  # the whole text
    target: str  # "sm_90", "sm_90a", ..., "cpu" or "host"
    options: tuple[str, ...] = ()  # more compiler flags, part of the identity; no paths
    written: str = ""  # the part of the source that the user wrote, for the message of a failure
    _identity: str = field(default="", init=False, repr=False, compare=False)  # computed once, at first use

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UnsupportedRequest(
                "name a kernel",
                allowed="a file name of letters, digits and _.+-, at most 151 characters",
                value=repr(self.name),
                hint="pass the slug of the spec",
            )
        if self.target not in (CPU, HOST) and not _TARGET.fullmatch(self.target):
            raise UnsupportedRequest(
                "choose a target",
                allowed="sm_ and a compute capability (sm_90), or cpu",
                value=repr(self.target),
                hint="scanops doctor lists the targets of the nvcc it finds",
            )

    @property
    def flags(self) -> tuple[str, ...]:
        """Compiler flags that change the code: normalised, without paths and verbosity."""
        if self.target == CPU:
            return (*_CPU_FLAGS, *self.options)
        if self.target == HOST:
            return (*_HOST_FLAGS, *self.options)
        number = self.target.removeprefix("sm_")
        # The long form holds the word "arch", which keeps load_inline from adding targets of its own.
        return (*_CUDA_FLAGS, f"-gencode=arch=compute_{number},code=sm_{number}", *self.options)

    @property
    def identity(self) -> str:
        """SHA-256, as 64 hex digits, over everything that decides what the library does."""
        if not self._identity:
            parts = {
                "abi": ABI,
                "emulator": emulator_digest() if self.target == CPU else None,
                "flags": self.flags,
                "link": LINK_FLAGS,
                "platform": platform(),
                "schema": SCHEMA,
                "source": self.source,
                "target": self.target,
            }
            digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
            object.__setattr__(self, "_identity", digest)
        return self._identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Registers, shared memory and spills as ptxas reports them: the largest over the kernels of a library."""

    registers: int | None = None  # per thread
    shared_bytes: int | None = None  # static, per block
    stack_bytes: int | None = None  # per thread
    spill_store_bytes: int | None = None  # per thread
    spill_load_bytes: int | None = None  # per thread


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """The outcome of a successful build."""

    library: Path  # in the build folder
    seconds: float  # wall time
    resources: Resources | None  # None for the CPU
    toolchain: dict[str, str]  # "route", "nvcc", "cxx", "torch", "ninja": versions, no paths


def emulator_digest() -> str:
    """Return the SHA-256 over the emulator's sources, which an emulated kernel includes and is linked with.

    They are read once in a process.
    """
    return _digest(EMULATOR)


_digest = lru_cache(maxsize=4)(files.digest)


@lru_cache(maxsize=1)
def platform() -> str:
    """Return operating system and processor that libraries of this process run on, such as linux-x86_64."""
    return f"{sys.platform}-{os.uname().machine}"
