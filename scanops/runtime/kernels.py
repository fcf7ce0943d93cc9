"""Kernels: ``obtain`` finds or builds the kernel of a spec, and is the only way to one."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from scanops import build_request, environment
from scanops.build_request import (
    CPU,
    BuildRequest,
    Resources,
    are_sources_edited,
    forms_by,
    plan_for,
    request_of,
    sources_key,
    store_keys,
)
from scanops.codegen.headers import inline_headers
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.lines import any_length
from scanops.codegen.targets import target_of_capability
from scanops.emulator import ACTIVE
from scanops.errors import BadStoreEntry, BuildFailure, MissingCompiler, MissingKernel, UnsupportedRequest
from scanops.forks import FORK_LOCK, import_late, reset_in_child
from scanops.processes import WORKER
from scanops.runtime import policies
from scanops.runtime.binaries import Binary, load_binary, load_on_device
from scanops.runtime.policies import Policy
from scanops.store import Store
from scanops.store.entry import Entry
from scanops.tuning import Choice, entry_for, usable

if TYPE_CHECKING:
    import torch

    from scanops.codegen.planner import Plan

_LOG = logging.getLogger("scanops")
Content = TypeVar("Content")


def obtain(key: KernelKey, policy: Policy, store: Store | None = None) -> Kernel | None:
    """Return the kernel that serves ``key``: from memory, from the store, or as ``policy`` decides on a miss.

    Args:
        key: what to compute, for which target, and for how many lines.
        policy: what to do on a miss: build, use another kernel, return None for PyTorch's operators, or raise.
        store: where to look. By default the kernels that this process holds, then the user's store; what is returned
            is then held for later calls, a stand-in only for calls under the same policy.

    Raises what the policy raises, and BadStoreEntry for a store that cannot be used.
    """
    if store is None and (known := recall(key, policy)) is not UNKNOWN:
        return known  # type: ignore[return-value]
    kernel = _obtain(key, policy, store or Store())
    return hold(kernel, key, policy) if store is None else kernel


def _obtain(key: KernelKey, policy: Policy, store: Store) -> Kernel | None:
    slug, target = key.spec.slug, key.target
    choice = None if target == CPU else entry_for(key)  # the emulator runs the planner's plan
    builders = policy.builders if target == CPU else policy.list_builders()
    forms = forms_by(builders, target)
    entry = store.lookup(slug, target, *store_keys(key, choice, forms))
    if entry is None and choice is not None and not usable(choice, key):
        choice = None  # an indexed plan was usable once; to ask of any other loads the planner
        entry = store.lookup(slug, target, *store_keys(key, None, forms))
    if entry is not None:
        return Kernel(key, entry, choice)
    request = request_of(key, choice, builders)
    miss, entry = Miss(key, choice, request, store), store.find(*request.identities.values())
    return miss.serve(policy) if entry is None else miss.kernel(entry)


class Miss(NamedTuple):
    """A kernel that the store does not have, with the request to build it."""

    key: KernelKey
    choice: Choice | None
    request: BuildRequest
    store: Store

    def serve(self, policy: Policy) -> Kernel | None:
        """Return the kernel that serves under ``policy``; None: PyTorch computes. Raises what a build raises."""
        if policy.name == policies.FIND.name:
            return None
        spec, target = self.key.spec, self.key.target
        if not (policy.may_build or policy.falls_back):
            hint = f"build it: {policies.command_for(spec, target)}"
            if environment.pack_roots():
                hint = f"add it to the pack, on a machine with a compiler: {policies.command_for(spec, target)}"
            raise policies.missing(spec, target, "under the policy never", "", hint)
        if not policy.may_build:
            policies.warn(spec, target, "", f"Build it: {policies.command_for(spec, target)}")
            return None
        if policy.generic and (kernel := self._generic()) is not None:
            policies.say(f"miss: {spec.slug} for {target}; {kernel.spec.slug} serves")
            if policy.later and kernel.spec != spec:
                WORKER.run_later(self.key, f"the kernel {spec.slug} for {target}", self._build_now)
            return kernel
        try:
            return self.build()
        except MissingCompiler as problem:
            if not policy.falls_back or target == CPU:  # PyTorch is no substitute for the emulator
                raise
            hint = f"Precompile it elsewhere: {policies.command_for(spec, target)}. ({problem.asked}: {problem.value})"
            policies.warn(spec, target, " and no compiler to build it", hint)
            return None

    def kernel(self, entry: Entry) -> Kernel:
        """Return the kernel of a store entry, which the index then knows."""
        if not are_sources_edited() and (record := sources_key(self.key, self.choice, entry.form)):
            self.store.remember(record, entry)
        return Kernel(self.key, entry, self.choice)

    def build(self) -> Kernel:
        """Build the kernel, or wait for another process that builds it."""
        if capturing():
            ahead = f'call scanops.prepare(["{self.key.spec.slug}"]) before the capture, or run the same call once'
            why, rule = "while a CUDA graph is captured", ": nothing is built during a capture"
            raise policies.missing(self.key.spec, self.key.target, why, rule, ahead)
        kernel = self.kernel(self.store.build(self.request))
        kernel.fresh = True
        return kernel

    def _generic(self) -> Kernel | None:
        """Return the kernel that takes the length as an argument; None where there is none."""
        strict = policies.STRICT._replace(builders=self.request.builders)
        try:
            return obtain(any_length(self.key), strict)
        except (UnsupportedRequest, BuildFailure, MissingKernel) as problem:
            _LOG.debug("no kernel that takes the length of %s: %s", self.key.spec, problem)
            return None

    def _build_now(self) -> None:
        """Build as the worker's job, and hold the kernel, loaded."""
        kernel = self.build()
        _ = kernel.code
        hold(kernel, self.key, policies.STRICT)


class Kernel:
    """A compiled scan. Call it on tensors that match its spec: ``kernel(x, dim, mask=None, out=None)``.

    >>> kernel = scanops.compile(ScanSpec(op="sum", dtype="float32", length=1024))  # doctest: +SKIP
    >>> y = kernel(x)  # doctest: +SKIP
    """

    def __init__(self, key: KernelKey, entry: Entry, measured: Choice | None = None) -> None:
        self.key = key
        self.spec = key.spec
        self.target = key.target  # an architecture such as "sm_90", or "cpu"
        self.measured = measured  # the tuning file's entry behind the plan; None: the planner's own plan
        self.fresh = False  # built by the call that asked for it, not found
        self._entry = entry
        # No functools.cached_property: until Python 3.12 it has a lock that a forked child may find held.
        self._plan: Plan | None = None
        self._code: Binary | None = None

    def __repr__(self) -> str:
        return f"<scanops kernel {self.spec} for {self.target}>"

    @property
    def plan(self) -> Plan:
        """The plan that the source was rendered from."""
        if self._plan is None:
            self._plan = plan_for(self.key, self.measured)  # a call needs none
        return self._plan

    @property
    def source(self) -> str:
        """The CUDA source, headers included, of what is in the store; rendered again where a pack lacks it, or else
        BadStoreEntry.
        """
        text, digest = self._read(Entry.read_source)
        text = text or build_request.render_again(self.key, self.measured, digest)
        with FORK_LOCK:  # importlib.resources imports while it reads the first header
            return inline_headers(text)

    @property
    def code(self) -> Binary:
        """The machine code, verified against its manifest. Obtained again if it was evicted before it was loaded."""
        if self._code is None:
            self._code = self._read(load_binary)
        return self._code

    def load_on_device(self, device: int) -> None:
        """Load the kernel on a GPU, so that nothing is left to its first launch; an emulated kernel is loaded alone."""
        load_on_device(self.code, device)

    def _read(self, read: Callable[[Entry], Content]) -> Content:
        """Return what ``read`` finds in the entry, which is obtained again if its files were evicted."""
        try:
            return read(self._entry)
        except (FileNotFoundError, BadStoreEntry) as problem:
            if not isinstance(problem.__cause__ or problem, FileNotFoundError):
                raise
        again = obtain(self.key, policies.strict(), Store())
        assert again is not None
        self._entry, self.measured, self._plan = again._entry, again.measured, None
        return read(self._entry)

    @property
    def path(self) -> Path:
        """Path of the shared library in the store."""
        return self._entry.library_path

    @property
    def source_path(self) -> Path:
        """Path of the CUDA source, beside the library. There is none in a pack that was unpacked: see ``source``."""
        return self._entry.source_path

    @property
    def builder(self) -> str:
        """Who built it: "load_inline", "nvcc" or "nvrtc", which makes cubins; for the CPU its target."""
        return self._entry.builder

    @property
    def resources(self) -> Resources | None:
        """Registers, shared memory and spills as the compiler reported them; None for an emulated kernel."""
        return self._entry.resources

    @property
    def build_seconds(self) -> float:
        """Seconds that the build took, in whatever process."""
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
        chunk: int | None = None,
        initial: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        indices: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Scan ``x`` along ``dim`` and return the result; a pair with the carry-out if the spec is ``final``.

        Operators that return indices write them to ``indices``. ``chunk`` is for kernels of chunks: the scan begins
        again after so many items of each segment of ``offsets``. Raises UnsupportedRequest when the tensors ask for
        another spec than this one.
        """
        run_kernel = import_late("scanops.runtime.kernel_call").run_kernel  # imports torch, which a build does not need
        tensors = {"mask": mask, "gate": gate, "starts": segment_starts, "offsets": offsets, "initial": initial}
        results = run_kernel(self, x, dim, chunk, **tensors, out=out, indices=indices)
        return (results[0], results[-1]) if self.spec.final else results[0]


# ---- the kernel cache: see the table in runtime/__init__.py

_MAX_HELD = 4096
UNKNOWN = object()
# (None, key): the kernel itself; (policy, key): its stand-in under a policy, None: PyTorch
_KERNELS: dict[tuple[str | None, KernelKey], object] = {}


def hold(kernel: Kernel | None, key: KernelKey, policy: Policy) -> Kernel | None:
    """Let ``kernel`` serve later calls of ``key``: all of them if it is its own, else those under ``policy``."""
    if len(_KERNELS) >= _MAX_HELD:
        _KERNELS.clear()
    own = kernel is not None and kernel.key == key
    _KERNELS[None if own else policy.name, key] = kernel
    return kernel


def recall(key: KernelKey, policy: Policy) -> object:
    """Return the kernel that serves ``key``, None where PyTorch does, UNKNOWN before the first such call."""
    return _KERNELS.get((None, key), _KERNELS.get((policy.name, key), UNKNOWN))


def recall_own(key: KernelKey) -> Kernel | None:
    """Return the kernel of ``key`` itself, no stand-in, if this process holds it."""
    return _KERNELS.get((None, key))  # type: ignore[return-value]


@reset_in_child
def _forget_stand_ins() -> None:
    """Forget the stand-ins in a child: the worker that was to replace them is the parent's."""
    for held in [held for held in _KERNELS if held[0] is not None]:
        del _KERNELS[held]


def find(key: KernelKey, store: Store | None = None) -> Kernel | None:
    """Return the kernel of ``key`` if a store has it, by default the user's; None on a miss. Builds nothing."""
    return obtain(key, policies.FIND, store or Store())


def capturing() -> bool:
    """Return whether a CUDA graph is captured on this thread's current stream."""
    torch = sys.modules.get("torch")
    with contextlib.suppress(RuntimeError):  # raised by a torch without CUDA
        return torch is not None and bool(torch.cuda.is_current_stream_capturing())
    return False


def default_target() -> str:
    """Return the current GPU's architecture; the emulator inside ``emulate()`` and where there is no GPU."""
    torch = import_late("torch")  # a kernel for a GPU that is named can be built without torch
    if ACTIVE.get() or not torch.cuda.is_available():
        return CPU
    return target_of_capability(torch.cuda.get_device_capability())
