"""``compile`` and what else asks for one kernel by its spec."""

from __future__ import annotations

from scanops import workload
from scanops.artifact import CPU
from scanops.codegen.spec import ScanSpec, check_spec
from scanops.codegen.targets import target_named, target_of_capability
from scanops.emulation import active
from scanops.runtime import policies
from scanops.runtime.obtain import Kernel, obtain
from scanops.store.store import Store

__all__ = ["CPU", "check_wanted", "compile", "default_target", "find", "is_built"]


def compile(spec: ScanSpec, target: str | None = None) -> Kernel:
    """Return the kernel for ``spec``: found in the store, or built and kept there.

    Args:
        spec: what to compute.
        target: an architecture such as ``"sm_90"``; ``"cpu"`` for the emulator. By default that of the current GPU;
            inside ``emulate()`` and without a GPU the emulator. Building for a GPU needs nvcc and no GPU.

    Raises:
        UnsupportedRequest: a target that is not known.
        BuildFailure: no compiler (MissingCompiler), or one that refused the source; the message holds its output.
        BadStoreEntry: the store cannot be used.
        MissingKernel: it would have to be built under the policy ``never``, or while a CUDA graph is captured. Under
            every other policy it is built: nothing else is the kernel for ``spec``.

    Example:
        >>> kernel = compile(ScanSpec(op="sum", dtype="float32", length=32768), "sm_90")  # doctest: +SKIP
        >>> kernel.resources.registers  # doctest: +SKIP
        100
    """
    target = default_target() if target is None else target
    check_wanted(spec, target)
    workload.note(spec, target)
    kernel = obtain(spec, target, policies.strict(), Store())
    assert kernel is not None
    return kernel


def check_wanted(spec: ScanSpec, target: str) -> None:
    """Raise UnsupportedRequest unless ``spec`` is a ScanSpec and ``target`` is known."""
    check_spec(spec)
    if target != CPU:
        target_named(target)


def find(spec: ScanSpec, target: str, store: Store | None = None) -> Kernel | None:
    """Return the kernel for ``spec`` if a store has it, by default the user's; None on a miss. Builds nothing."""
    return obtain(spec, target, _FIND, store or Store())


class _Find(policies.Policy):
    name = "find"

    def miss(self, miss: policies.Miss) -> None:
        return None


_FIND = _Find()


def is_built(spec: ScanSpec, target: str) -> bool:
    """Return whether the store has the kernel that ``compile`` would return."""
    return find(spec, target) is not None


def default_target() -> str:
    """Return the current GPU's architecture; the emulator inside ``emulate()`` and where there is no GPU."""
    import torch  # a kernel for a GPU that is named can be built without torch

    if active() or not torch.cuda.is_available():
        return CPU
    return target_of_capability(torch.cuda.get_device_capability())
