"""A kernel: spec, plan, source and library together. ``compile`` finds it in the store or builds it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from scanops import workload
from scanops.artifact import CPU, BuildRequest, Resources
from scanops.codegen.spec import ScanSpec, check_spec
from scanops.codegen.targets import target_named, target_of_capability
from scanops.errors import BadStoreEntry
from scanops.runtime.policies import check_may_build
from scanops.store.entry import Entry
from scanops.store.fingerprint import is_true
from scanops.store.identity import plan_for, request_of, store_key
from scanops.store.library import load
from scanops.store.store import Store
from scanops.tuning.choice import Choice, entry_for, usable

if TYPE_CHECKING:
    import torch

    from scanops.codegen.plan import Plan

__all__ = ["CPU", "Kernel", "built", "compile", "default_target", "find", "is_built", "known", "noted", "obtained"]


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
        # No functools.cached_property: until Python 3.12 it has a lock that a forked child may find held.
        self._plan: Plan | None = None
        self._source: str | None = None
        self._library: ctypes.CDLL | None = None

    def __repr__(self) -> str:
        return f"<scanops kernel {self.spec} for {self.target}>"

    @property
    def plan(self) -> Plan:
        """How the spec is computed."""
        if self._plan is None:
            self._plan = plan_for(self.spec, self.target, self.measured)  # a call needs none
        return self._plan

    @property
    def source(self) -> str:
        """The text the library was built from, as it was kept beside it."""
        if self._source is None:
            try:
                self._source = self._entry.source_path.read_text(encoding="utf-8")
            except FileNotFoundError:
                self._ask_again()
                self._source = self._entry.source_path.read_text(encoding="utf-8")
        return self._source

    @property
    def library(self) -> ctypes.CDLL:
        """The loaded library, checked against its manifest.

        A kernel that nobody has loaded for an hour may have been removed to make room: then it is asked for again.
        """
        if self._library is None:
            try:
                self._library = load(self._entry)
            except BadStoreEntry as problem:
                if not isinstance(problem.__cause__, FileNotFoundError):
                    raise
                self._ask_again()
                self._library = load(self._entry)
        return self._library

    def _ask_again(self) -> None:
        again = compile(self.spec, self.target)
        self._entry, self.measured, self._plan, self._source = again._entry, again.measured, None, None

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
        from scanops.runtime.matching import run_kernel  # which needs torch, a kernel that is only built does not

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
    noted(spec, target)
    return obtained(spec, target)


def noted(spec: ScanSpec, target: str) -> None:
    """What ``compile`` begins with: recordings hear of the request. Raises UnsupportedRequest for one that is none."""
    check_spec(spec)
    if target != CPU:
        target_named(target)
    workload.note(spec, target)


def obtained(spec: ScanSpec, target: str) -> Kernel:
    """And what it ends with: the kernel, from the store or built if the policy lets it be."""
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
    return _known(spec, target, store or Store())[0]


def _known(spec: ScanSpec, target: str, store: Store) -> tuple[Kernel | None, Choice | None]:
    """The kernel if the index has it, and the measured plan that counts."""
    measured = entry_for(spec, target)
    kernel = _indexed(spec, target, store, measured)
    if kernel is None and measured is not None and not usable(measured, spec):
        measured = None  # a plan that is in the index was usable; to ask of any other loads the planner
        kernel = _indexed(spec, target, store, None)
    return kernel, measured


def _indexed(spec: ScanSpec, target: str, store: Store, measured: Choice | None) -> Kernel | None:
    key = store_key(spec, target, measured)
    identity = store.alias(key) if key else None
    entry = store.find(identity) if identity else None
    return Kernel(spec, target, entry, measured) if entry else None


def _kernel(
    spec: ScanSpec, target: str, store: Store, otherwise: Callable[[BuildRequest], Entry | None]
) -> Kernel | None:
    kernel, measured = _known(spec, target, store)
    if kernel is not None:
        return kernel
    request = request_of(spec, target, measured)
    entry = store.find(request.identity) or otherwise(request)
    if entry is None:
        return None
    key = store_key(spec, target, measured)
    if key and is_true(target):
        store.remember(key, entry.identity)
    return Kernel(spec, target, entry, measured)


def is_built(spec: ScanSpec, target: str) -> bool:
    """Whether the store has the kernel ``compile`` would give."""
    return find(spec, target) is not None


def default_target() -> str:
    """The current GPU's architecture; the emulator inside ``emulate()`` and where there is no GPU."""
    import torch

    from scanops.emulation import active

    if active() or not torch.cuda.is_available():
        return CPU
    return target_of_capability(torch.cuda.get_device_capability())
