"""``scanops.compile``: the kernel of a spec, asked for by name."""

from __future__ import annotations

from scanops import workload
from scanops.artifact import CPU, planned
from scanops.codegen.lines import few_for
from scanops.codegen.spec import ScanSpec, check_spec
from scanops.codegen.targets import target_named
from scanops.runtime import policies
from scanops.runtime.kernels import Kernel, default_target, obtain
from scanops.store.store import Store


def compile(spec: ScanSpec, target: str | None = None, *, lines: int | None = None) -> Kernel:
    """Return the kernel for ``spec``: found in the store, or built and kept there.

    Args:
        spec: what to compute.
        target: an architecture such as ``"sm_90"``; ``"cpu"`` for the emulator. By default that of the current GPU;
            inside ``emulate()`` and without a GPU the emulator. Building for a GPU needs nvcc and no GPU.
        lines: the number of lines that the kernel is planned for, by default as many as fill the GPU. It serves any.

    Raises:
        UnsupportedRequest: a target that is not known, or an impossible number of lines.
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
    few = few_for(spec, planned(target), lines)
    workload.note(spec, target, few)
    kernel = obtain(spec, target, policies.strict(), Store(), few)
    assert kernel is not None
    return kernel


def check_wanted(spec: ScanSpec, target: str) -> None:
    """Raise UnsupportedRequest unless ``spec`` is a ScanSpec and ``target`` is known."""
    check_spec(spec)
    if target != CPU:
        target_named(target)
