"""What a kernel is known by: the text it is built from, and the key under which an index finds it without that text.

A new process would have to render a kernel to know its identity, which is the SHA-256 of the text, flags and target
(scanops/artifact.py). An installed wheel carries the digest of everything that the text follows from besides the spec,
``scanops/built.py``, written by setup.py. With it the process looks the kernel up by a key in the index of the store or
of a pack. A checkout has no such digest, and renders. Modification times, sizes and inodes decide nothing.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import scanops.codegen
import scanops.templates
from scanops.artifact import ABI, CPU, EMULATOR, LINK_FLAGS, SCHEMA, BuildRequest, platform
from scanops.codegen.operators import Operator, is_built_in, operator_named
from scanops.codegen.spec import ScanSpec
from scanops.files import TREES, digest
from scanops.processes import NO_FORK
from scanops.tuning import Choice, plan_of, planned

if TYPE_CHECKING:
    from scanops.codegen.plan import Plan

try:
    from scanops.built import DIGESTS as DIGESTS
except ImportError:  # a checkout has no such file
    DIGESTS: Mapping[str, str] = {}  # type: ignore[no-redef]


def store_key(spec: ScanSpec, target: str, measured: Choice | None = None, few: bool = False) -> str | None:
    """Return the key of a lookup in the indexes of store and packs.

    None in a checkout, and for an operator that is not in the table: then the identity is found by rendering.
    """
    return _key(spec, target, measured, few, DIGESTS) if DIGESTS else None


def sources_key(spec: ScanSpec, target: str, measured: Choice | None = None, few: bool = False) -> str | None:
    """Return the key under which an index records a kernel, from the sources as they are.

    It is the ``store_key`` of a wheel with these sources: in a wheel whose files were edited it is another one, and so
    no edited kernel is recorded under the wheel's key. None for an operator that is not in the table.
    """
    return _key(spec, target, measured, few, source_digests())


@functools.cache
def source_digests() -> Mapping[str, str]:
    """Return the SHA-256 of each tree of sources, read once in a process."""
    folders = (scanops.codegen.__path__[0], scanops.templates.__path__[0], str(EMULATOR))
    return dict(zip(TREES, map(digest, folders), strict=True))


def _key(spec: ScanSpec, target: str, measured: Choice | None, few: bool, digests: Mapping[str, str]) -> str | None:
    if not is_built_in(operator_named(spec.op)):
        return None
    key = f"{spec.slug}{' few' * few} {target} {_fingerprint(target, tuple(digests[name] for name in TREES))}"
    return f"{key} {measured.entry.digest}" if measured else key  # another measured plan leads to another kernel


@functools.cache
def _fingerprint(target: str, digests: tuple[str, ...]) -> str:
    """The SHA-256 of all that a kernel's binary follows from besides its spec; the emulator only for the CPU."""
    flags = BuildRequest(name="any", source="", target=target).flags
    rest = f"{SCHEMA} {ABI} {platform()} {target} {flags} {LINK_FLAGS}"
    used = digests if target == CPU else digests[: TREES.index("emulator")]
    return hashlib.sha256(" ".join((rest, *used)).encode()).hexdigest()


def request_of(spec: ScanSpec, target: str, measured: Choice | None = None, few: bool = False) -> BuildRequest:
    """Return what the store is asked for: the rendered text, and what it is compiled for."""
    row = operator_named(spec.op)
    written = "" if is_built_in(row) else expressions(row)
    with NO_FORK:
        from scanops.codegen.source import render

        source = render(plan_for(spec, target, measured, few))
    return BuildRequest(name=spec.slug, source=source, target=target, written=written)


def expressions(operator: Operator) -> str:
    """Return the C++ expressions of an operator, one a line: for messages about it."""
    parts = {name: getattr(operator, name) for name in ("lift", "combine", "identity", "project")}
    return f"operator {operator.name}:\n" + "".join(f"    {name}={text!r}\n" for name, text in parts.items())


def plan_for(spec: ScanSpec, target: str, measured: Choice | None, few: bool = False) -> Plan:
    """Return the plan of a kernel: the planner's own, or the measured one."""
    from scanops.codegen.plan import make_plan  # a kernel in the store needs no plan and no template

    return make_plan(spec, planned(target), few) if measured is None else plan_of(measured, spec)
