"""What a kernel is built from and known by: build requests and reports, its identity, its key in an index.

A kernel has two forms: a shared library with a launcher in C, and a cubin, which the driver loads and launches by a
record of data (codegen/launch.py). Each has an identity: the SHA-256 of its text, flags, target and launch, and of
the ABI and platform of a library, while a cubin is of no host; never a path, a time, or parameters. Toolchain
versions are in the manifest instead, so that a machine without compilers can look kernels up.

A new process would have to render a kernel to know its identity. Instead it looks the kernel up by a key in the index
of the store or of a pack: a digest of everything that the text follows from besides the spec. An installed wheel
carries it, ``scanops/built.py``, written by setup.py; a checkout reads its sources, in some 5 ms. After an edit, a
running process may hold old modules and read new templates: then nothing is recorded, or found, by sources.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import scanops.codegen
import scanops.templates
from scanops import files
from scanops.codegen.abi import ABI, SCHEMA
from scanops.codegen.headers import list_headers
from scanops.codegen.kernel_key import KernelKey
from scanops.emulator import CPU as CPU
from scanops.emulator import HEADER_DIRECTORY
from scanops.errors import BadStoreEntry, UnsupportedRequest
from scanops.forks import FORK_LOCK, import_late
from scanops.tuning import Choice, plan_of

if TYPE_CHECKING:
    from scanops.codegen.planner import Plan

try:
    from scanops.built import DIGESTS as DIGESTS
except ImportError:  # a checkout has no such file
    DIGESTS: Mapping[str, str] = {}  # type: ignore[no-redef]

_IMPORTED = time.time_ns()  # sources that are newer may differ from what this process has read

LIBRARY, CUBIN = "library", "cubin"  # the forms of a kernel; where there are both, the library serves
FORMS = {"load_inline": LIBRARY, "nvcc": LIBRARY, "nvrtc": CUBIN}  # builder -> what it makes of a kernel for a GPU
HOST = "host"  # the native call path, which g++ builds against torch and Python (scanops/runtime/native)
PLATFORM = f"{sys.platform}-{os.uname().machine}"  # where libraries of this process run, such as linux-x86_64
# The trees of sources that a text follows from
FOLDERS: dict[str, Path] = {
    "codegen": Path(scanops.codegen.__path__[0]),
    "templates": Path(scanops.templates.__path__[0]),
    "emulator": HEADER_DIRECTORY,
}

# What the emulator's cuda_runtime.h needs. -Og: a kernel compiles in half the time of -O1 and runs as fast, most of
# which is switches between threads; each function that is not inlined takes the compiler a millisecond. The sanitizers
# are for compiling only: host.cpp has their handlers, so that nothing links libubsan. -fno-gnu-unique keeps the state
# of each library its own.
_CPU_FLAGS = (
    "-std=c++20",
    "-Og",
    "-finline-functions-called-once",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fsanitize=bounds-strict,alignment,float-cast-overflow",
    "-fno-sanitize-recover=bounds-strict,alignment",  # with the next, a seventh less time to compile
    "-fno-guess-branch-probability",
    "-fno-gnu-unique",
)
_CUDA_FLAGS = ("-std=c++17", "-O3")
_CUBIN_FLAGS = ("-std=c++17", "-default-device")  # NVRTC takes lambdas without the name of a side for the host's
_HOST_FLAGS = ("-std=c++20", "-O2", "-fvisibility=hidden")
# Debian's gcc does not pass --as-needed by itself; without it every kernel would need libtorch.
# -Bsymbolic: a library calls its own kernel even when another one with the same names is loaded globally.
# -s, --build-id=none: the table of local symbols names files of the build folder, and the build id is a digest of it.
# Without both, two builds of one text are the same bytes.
LINK_FLAGS = ("-Wl,--as-needed", "-Wl,-Bsymbolic", "-Wl,-z,defs", "-Wl,-s", "-Wl,--build-id=none")

# Compiled at import and not at a lookup: it takes as long as dlopen.
KERNEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,150}")
KERNEL_TARGET = re.compile(rf"sm_\d{{1,6}}[af]?|{CPU}|{HOST}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """A kernel to build. Raises UnsupportedRequest for a malformed name or target."""

    name: str  # slug for people, a file name: letters, digits, "_.+-", at most 151; not part of the identity
    source: str  # the whole text
    target: str  # "sm_90", "sm_90a", ..., "cpu" or "host"
    options: tuple[str, ...] = ()  # more compiler flags, part of the identity; no paths
    launch: Mapping[str, Any] | None = None  # Launch._asdict(); None: a library that has no kernel
    builders: tuple[str, ...] = tuple(FORMS)  # who may build it for a GPU, in the order to ask them
    flags: tuple[str, ...] = field(init=False, repr=False)  # of a library: those that change the code, without paths
    # Form -> SHA-256, 64 hex digits, of all that decides what it does; of the forms that its builders make
    identities: Mapping[str, str] = field(init=False, repr=False)
    identity: str = field(init=False, repr=False)  # of the library, even where the builders make none

    def __post_init__(self) -> None:
        known = KERNEL_TARGET.fullmatch(self.target)
        for what, given, sound, allowed in (
            (
                "name",
                self.name,
                KERNEL_NAME.fullmatch(self.name),
                "a file name of letters, digits and _.+-, at most 151",
            ),
            ("target", self.target, known, "sm_ and a compute capability (sm_90), or cpu"),
        ):
            if not sound:
                asked, hint = f"build a kernel: {what} {given!r}", "pass the slug and the target of a spec"
                raise UnsupportedRequest(asked, allowed=allowed, value=repr(given), hint=hint)
        common: dict[str, object] = {
            "schema": SCHEMA,
            "source": self.source,
            "target": self.target,
            "launch": self.launch,
        }
        if headers := list_headers(self.source):
            common["headers"] = headers
        emulator = digest_of("emulator") if self.target == CPU else None
        own: dict[str, dict[str, object]] = {
            LIBRARY: {"abi": ABI, "emulator": emulator, "link": LINK_FLAGS, "platform": PLATFORM}
        }
        if self.launch is not None and self.target != CPU:
            own[CUBIN] = {"form": CUBIN}
        found = {}
        for form, parts in own.items():
            text = json.dumps(
                {**common, **parts, "flags": (*flags_of(self.target, form), *self.options)}, sort_keys=True
            )
            found[form] = hashlib.sha256(text.encode()).hexdigest()
        made = {FORMS[name] for name in self.builders}
        identities = {form: identity for form, identity in found.items() if form in made}
        flags = (*flags_of(self.target), *self.options)
        for name, value in (("flags", flags), ("identities", identities), ("identity", found[LIBRARY])):
            object.__setattr__(self, name, value)


def flags_of(target: str, form: str = LIBRARY) -> tuple[str, ...]:
    """Return the compiler flags of a target that change the code: normalised, without paths and verbosity."""
    if target in (CPU, HOST):
        return _CPU_FLAGS if target == CPU else _HOST_FLAGS
    if form == CUBIN:
        return (*_CUBIN_FLAGS, f"-arch={target}")
    number = target.removeprefix("sm_")
    # The long form holds the word "arch", which keeps load_inline from adding targets of its own.
    return (*_CUDA_FLAGS, f"-gencode=arch=compute_{number},code=sm_{number}")


def digest_of(tree: str) -> str:
    """Return the SHA-256 over one of ``files.TREES``, read once in a process."""
    return _digest(FOLDERS[tree])


_digest = functools.cache(files.digest)


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

    file: Path  # the library or the cubin, in the build folder
    seconds: float  # wall time
    resources: Resources | None  # None for the CPU
    toolchain: dict[str, str]  # "route", "nvcc", "nvrtc", "cxx", "torch", "ninja": versions, no paths
    form: str = LIBRARY


# ---- from a spec to a build request, and the key under which an index finds its kernel without one


def request_of(
    key: KernelKey, measured: Choice | None = None, builders: tuple[str, ...] = tuple(FORMS)
) -> BuildRequest:
    """Return what the store is asked for: the rendered text, and what it is compiled for."""
    with FORK_LOCK:  # jinja2 imports while it renders
        plan = plan_for(key, measured)
        source, launch = import_late("scanops.codegen.source").render(plan), plan.launch._asdict()
    return BuildRequest(name=key.spec.slug, source=source, target=key.target, launch=launch, builders=builders)


def render_again(key: KernelKey, measured: Choice | None, digest: str) -> str:
    """Return the text that a kernel was built from. Raises BadStoreEntry unless its SHA-256 is ``digest``."""
    text = request_of(key, measured).source
    if (found := hashlib.sha256(text.encode()).hexdigest()) != digest:
        raise BadStoreEntry(
            f"the source of {key.spec} for {key.target}, which its pack lacks",
            allowed=f"a text with the SHA-256 {digest}",
            value=f"{found}: this version of scanops renders another text",
            hint="render it with the version that built the pack, which its pack.json names",
        )
    return text


def plan_for(key: KernelKey, measured: Choice | None = None) -> Plan:
    """Return the plan of a kernel: the measured one, else the planner's own."""
    if measured is not None:
        return plan_of(measured, key)
    # A kernel in the store needs no plan and no template.
    plan: Plan = import_late("scanops.codegen.planner").plan_kernel(key)
    return plan


def store_keys(
    key: KernelKey,
    measured: Choice | None = None,
    forms: Iterable[str] = (LIBRARY,),
    digests: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the keys of a kernel in the indexes of store and packs, one for each of ``forms``.

    They follow from the digests of the sources. There are none in a checkout that was edited since this process began:
    then the identity is found by rendering.
    """
    digests = known_digests() if digests is None else digests
    if not digests:
        return []
    asked, made_from = (
        f"{key.spec.slug}{' few' * key.is_few} {key.target}",
        tuple(digests[name] for name in files.TREES),
    )
    plan = f" {measured.entry.digest}" if measured else ""  # another measured plan leads to another kernel
    return [f"{asked} {_fingerprint(key.target, form, made_from)}{plan}" for form in forms]


def forms_by(builders: Iterable[str], target: str) -> list[str]:
    """Return the forms that ``builders`` make of a kernel, in the order of lookups: a library serves first."""
    made = {FORMS[name] for name in builders}
    return [form for form in (LIBRARY, CUBIN) if form in made] if target != CPU else [LIBRARY]


def sources_key(key: KernelKey, measured: Choice | None = None, form: str = LIBRARY) -> str | None:
    """Return the key under which an index records a kernel, from the sources as they are; None where there is none.

    It is one of the ``store_keys`` of a wheel with these sources: in a wheel whose files were edited it is another one,
    and so no edited kernel is recorded under the wheel's key.
    """
    return next(iter(store_keys(key, measured, (form,), source_digests())), None)


def known_digests() -> Mapping[str, str]:
    """Return the digests that lookups go by: those of the wheel, or of a checkout's sources, unless they changed."""
    return DIGESTS or _digests_of_checkout()


@functools.cache
def _digests_of_checkout() -> Mapping[str, str]:
    return {} if are_sources_edited() else source_digests()


def are_sources_edited() -> bool:
    """Return whether a source was written since this process imported the package."""
    return any(files.last_change(folder) > _IMPORTED for folder in FOLDERS.values())


def source_digests() -> Mapping[str, str]:
    """Return the SHA-256 of each tree of sources."""
    return {tree: digest_of(tree) for tree in files.TREES}


@functools.cache
def _fingerprint(target: str, form: str, digests: tuple[str, ...]) -> str:
    """The SHA-256 of all that a kernel's binary follows from besides its spec; the emulator only for the CPU."""
    host = CUBIN if form == CUBIN else f"{PLATFORM} {LINK_FLAGS}"
    rest = f"{SCHEMA} {ABI} {host} {target} {flags_of(target, form)}"
    used = digests if target == CPU else digests[: files.TREES.index("emulator")]
    return hashlib.sha256(" ".join((rest, *used)).encode()).hexdigest()
