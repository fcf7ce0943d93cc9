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
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from scanops import sources
from scanops.emulator import HEADER_DIRECTORY
from scanops.errors import UnsupportedRequest

__all__ = [
    "ABI",
    "CPU",
    "EMULATOR",
    "HOST",
    "LINK_FLAGS",
    "SCHEMA",
    "BuildReport",
    "BuildRequest",
    "Resources",
    "platform",
]

# What scanops_abi() of a library answers: raise it when an exported function changes, or ScanArguments before its end.
ABI = 3
SCHEMA = 1  # of manifest.json; part of the identity, so that two versions of scanops can share a store
CPU = "cpu"  # the target that g++ builds against the emulator
HOST = "host"  # that of no kernel but of what calls them: g++ builds it against torch and Python (scanops/native)
EMULATOR = HEADER_DIRECTORY

# As the emulator's cuda_runtime.h asks for. The sanitizers are for compiling only: host.cpp brings their handlers, so
# that nothing links libubsan. -fno-gnu-unique keeps the state of each library its own.
_CPU_FLAGS = (
    "-std=c++20",
    "-O1",
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
# -s, --build-id: the table of symbols that nobody links with names files of the folder the build ran in, and so does
# the digest that is taken before it goes. Without both, two builds of one text are the same bytes.
LINK_FLAGS = ("-Wl,--as-needed", "-Wl,-Bsymbolic", "-Wl,-z,defs", "-Wl,-s", "-Wl,--build-id=none")

# Compiled here, where it counts towards the import: it takes as long as dlopen.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,150}")
_TARGET = re.compile(r"sm_(\d+[af]?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """One kernel library to build. Raises UnsupportedRequest for a name or target that is not well formed."""

    name: str  # slug for people, a file name: letters, digits, "_.+-", at most 151; not part of the identity
    source: str  # the whole text
    target: str  # "sm_90", "sm_90a", ..., "cpu" or "host"
    options: tuple[str, ...] = ()  # further compiler flags, part of the identity; no paths
    written: str = ""  # what of the source the caller wrote, for the message of a failure; not part of the identity

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
        """Compiler flags that change the code: normalised, no paths, no verbosity."""
        if self.target == CPU:
            return (*_CPU_FLAGS, *self.options)
        if self.target == HOST:
            return (*_HOST_FLAGS, *self.options)
        number = self.target.removeprefix("sm_")
        # The long form holds the word "arch", which keeps load_inline from adding targets of its own.
        return (*_CUDA_FLAGS, f"-gencode=arch=compute_{number},code=sm_{number}", *self.options)

    @property
    def identity(self) -> str:
        """64 hex digits: SHA-256 over everything that decides what the library does."""
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
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one thread or block costs, as ptxas reports it; the largest over the kernels of a library."""

    registers: int | None = None  # per thread
    shared_bytes: int | None = None  # static, per block
    stack_bytes: int | None = None  # per thread
    spill_store_bytes: int | None = None  # per thread
    spill_load_bytes: int | None = None  # per thread


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """The outcome of a build that worked."""

    library: Path  # in the folder the build ran in
    command: str  # what was run, one command a line
    seconds: float  # wall time
    resources: Resources | None  # None for the CPU
    toolchain: dict[str, str]  # "route", "nvcc", "cxx", "torch", "ninja": versions, no paths


def emulator_digest() -> str:
    """Return the SHA-256 over the emulator's sources, which an emulated kernel includes and is linked with.

    They are read once in a process.
    """
    return _digest(EMULATOR)


_digest = lru_cache(maxsize=4)(sources.digest)


@lru_cache(maxsize=1)
def platform() -> str:
    """What a library runs on: linux-x86_64."""
    return f"{sys.platform}-{os.uname().machine}"
