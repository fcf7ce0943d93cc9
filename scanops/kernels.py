"""A kernel: spec, plan, source and library together. ``compile`` finds it in the store or builds it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from scanops import codegen, recording, templates
from scanops.builders.request import ABI, CPU, BuildRequest, Resources, emulator_digest
from scanops.codegen.operators import BUILT_IN, Operator, operator_named
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import TARGETS
from scanops.errors import UnsupportedRequest
from scanops.library import load
from scanops.policies import check_may_build
from scanops.store import Entry, Store
from scanops.tuning.choice import Choice, plan_of, planned, usable_entry

if TYPE_CHECKING:
    import torch

    from scanops.codegen.plan import Plan

__all__ = ["CPU", "Kernel", "built", "compile", "default_target", "find", "is_built", "known", "target_of_capability"]


class Kernel:
    """A compiled scan. Call it on tensors that match its spec: ``kernel(x, dim, mask=None, out=None)``.

    >>> kernel = scanops.compile(ScanSpec(op="sum", dtype="float32", length=1024))  # doctest: +SKIP
    >>> y = kernel(x)  # doctest: +SKIP
    """

    def __init__(self, spec: ScanSpec, target: str, entry: Entry, measured: Choice | None = None) -> None:
        self.spec = spec
        self.target = target  # an architecture such as "sm_90", or "cpu"
        self.measured = measured  # where its plan comes from; None: the planner's own
        self._entry = entry

    def __repr__(self) -> str:
        return f"<scanops kernel {self.spec} for {self.target}>"

    @functools.cached_property
    def plan(self) -> Plan:
        """How the spec is computed."""
        return _plan(self.spec, self.target, self.measured)  # a call needs none

    @functools.cached_property
    def source(self) -> str:
        """The text the library was built from, as it was kept beside it."""
        return self._entry.source_path.read_text(encoding="utf-8")

    @functools.cached_property
    def library(self) -> ctypes.CDLL:
        """The loaded library, checked against its manifest."""
        return load(self._entry)

    @property
    def path(self) -> Path:
        """The shared library."""
        return self._entry.library_path

    @property
    def source_path(self) -> Path:
        """The source beside it."""
        return self._entry.source_path

    @property
    def resources(self) -> Resources | None:
        """Registers, shared memory and spills as the compiler reported them; None for an emulated kernel."""
        return self._entry.resources

    @property
    def build_seconds(self) -> float:
        """What the build took, whenever it was."""
        return self._entry.build_seconds

    def __call__(
        self,
        x: torch.Tensor,
        dim: int = -1,
        *,
        mask: torch.Tensor | None = None,
        gate: torch.Tensor | None = None,
        segment_starts: torch.Tensor | None = None,
        offsets: torch.Tensor | None = None,
        initial: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        indices: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Scan ``x`` along ``dim``: the result. Where the operator gives indices, they are put in ``indices``.

        A kernel whose spec is ``final`` gives the result and what goes on from each line.

        Raises UnsupportedRequest when the tensors ask for another spec than this one.
        """
        from scanops.runtime import run_kernel  # the runtime needs torch, a kernel that is only built does not

        results = run_kernel(
            self,
            x,
            dim,
            mask=mask,
            gate=gate,
            starts=segment_starts,
            offsets=offsets,
            initial=initial,
            out=out,
            indices=indices,
        )
        return (results[0], results[-1]) if self.spec.final else results[0]


def compile(spec: ScanSpec, target: str | None = None) -> Kernel:
    """The kernel for ``spec``: loaded from the store, or built and kept there.

    Args:
        spec: what to compute.
        target: an architecture such as ``"sm_90"``; ``"cpu"`` for the emulator. By default that of the current GPU,
            inside ``emulate()`` and without a GPU the emulator. Building for a GPU needs nvcc and no GPU.

    Raises:
        UnsupportedRequest: a target that is not known.
        BuildFailure: no compiler, or one that refused the source; the message holds its words.
        BadStoreEntry: the store cannot be used.
        MissingKernel: it would have to be built under the policy ``never``, or while a CUDA graph is captured. Under
            every other policy it is built: nothing else is the kernel for ``spec``.

    Example:
        >>> kernel = compile(ScanSpec(op="sum", dtype="float32", length=32768), "sm_90")  # doctest: +SKIP
        >>> kernel.resources.registers  # doctest: +SKIP
        100
    """
    target = default_target() if target is None else target
    recording.note(spec, target)
    kernel = find(spec, target)
    if kernel is None:
        check_may_build(spec, target)
        kernel = built(spec, target)
    return kernel


def find(spec: ScanSpec, target: str, store: Store | None = None) -> Kernel | None:
    """The kernel for ``spec`` if the store has it. Builds nothing."""
    return _kernel(spec, target, store or Store(), lambda _: None)


def built(spec: ScanSpec, target: str, store: Store | None = None) -> Kernel:
    """The kernel for ``spec``, from the store or built, whatever the policy is."""
    store = store or Store()
    kernel = _kernel(spec, target, store, store.get_or_build)
    assert kernel is not None
    return kernel


def known(spec: ScanSpec, target: str, store: Store | None = None) -> Kernel | None:
    """The same if its index has it, too: nothing is rendered. A kernel that was stored once is in the index."""
    store, measured = store or Store(), usable_entry(spec, target)
    key = store_key(spec, target, measured)
    identity = store.alias(key) if key else None
    entry = store.find(identity) if identity else None
    return Kernel(spec, target, entry, measured) if entry else None


def _kernel(
    spec: ScanSpec, target: str, store: Store, otherwise: Callable[[BuildRequest], Entry | None]
) -> Kernel | None:
    kernel = known(spec, target, store)
    if kernel is not None:
        return kernel
    measured = usable_entry(spec, target)
    request = request_of(spec, target, measured)
    entry = store.find(request.identity) or otherwise(request)
    if entry is None:
        return None
    if key := store_key(spec, target, measured):
        store.remember(key, entry.identity)
    return Kernel(spec, target, entry, measured)


def is_built(spec: ScanSpec, target: str) -> bool:
    """Whether the store has the kernel ``compile`` would give."""
    return find(spec, target) is not None


def store_key(spec: ScanSpec, target: str, measured: Choice | None = None) -> str | None:
    """What the indexes of store and packs know a kernel by; None for an operator that is not in the table."""
    if BUILT_IN.get(spec.op) is not operator_named(spec.op):
        return None
    key = f"{spec.slug} {target} {_fingerprint(target)}"
    return f"{key} {measured.entry.digest}" if measured else key  # a file that changed leads to another kernel


def request_of(spec: ScanSpec, target: str, measured: Choice | None = None) -> BuildRequest:
    """What the store is asked for: the rendered text, and what it is compiled for."""
    from scanops.codegen.source import render

    row = operator_named(spec.op)
    written = "" if BUILT_IN.get(spec.op) is row else expressions(row)
    return BuildRequest(name=spec.slug, source=render(_plan(spec, target, measured)), target=target, written=written)


def expressions(operator: Operator) -> str:
    """The C++ of an operator, a field a line: for a message about it."""
    parts = {name: getattr(operator, name) for name in ("lift", "combine", "identity", "project")}
    return f"operator {operator.name}:\n" + "".join(f"    {name}={text!r}\n" for name, text in parts.items())


def _plan(spec: ScanSpec, target: str, measured: Choice | None) -> Plan:
    from scanops.codegen.plan import make_plan  # a kernel in the store needs no plan and no template

    return make_plan(spec, planned(target)) if measured is None else plan_of(measured, spec)


def default_target() -> str:
    """The current GPU's architecture; the emulator inside ``emulate()`` and where there is no GPU."""
    import torch

    from scanops.emulation import active

    if active() or not torch.cuda.is_available():
        return CPU
    return target_of_capability(torch.cuda.get_device_capability())


def target_of_capability(capability: tuple[int, int]) -> str:
    """The target whose machine code a GPU of this compute capability runs best: same major, greatest minor below."""
    runs = [row for row in TARGETS.values() if row.capability[0] == capability[0] and row.capability <= capability]
    if not runs:
        raise UnsupportedRequest(
            "a scan on a GPU of an architecture that is not known",
            allowed=", ".join(TARGETS),
            value=f"compute capability {capability[0]}.{capability[1]}",
            hint="pass a CPU tensor, or add the architecture to codegen/targets.py",
        )
    return max(runs, key=lambda row: row.capability).name


@functools.cache
def _fingerprint(target: str) -> str:
    """A digest of everything besides the spec that a kernel's text and binary follow from.

    With it a new process finds its kernel without rendering anything; the entry it finds is still identified by its
    text.
    """
    digest = hashlib.sha256(f"{ABI} {emulator_digest() if target == CPU else ''}".encode())
    for package in (codegen, templates):
        digest.update(_digest_of_tree(resources.files(package)))
    return digest.hexdigest()


def _digest_of_tree(folder: resources.abc.Traversable) -> bytes:
    digest = hashlib.sha256()
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir() and item.name != "__pycache__":
            digest.update(item.name.encode() + _digest_of_tree(item))
        elif item.name.endswith((".py", ".j2")):
            digest.update(item.name.encode() + b"\0" + item.read_bytes())
    return digest.digest()
