"""Which kernel serves a call, and what becomes of a call whose kernel is in no store: the policies, one a function."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable

from scanops.artifact import CPU
from scanops.codegen.lines import any_length
from scanops.codegen.spec import ScanSpec
from scanops.errors import BuildFailure, MissingCompiler, UnsupportedRequest
from scanops.runtime import policies
from scanops.runtime.background import build_later
from scanops.runtime.kernels import Kernel, built, find, known

__all__ = ["has", "held", "keep", "kernel_for", "when_ready"]

_LOG = logging.getLogger("scanops")
_MAX_KEPT = 4096  # kernels, and answers

_KERNELS: dict[tuple[ScanSpec, str], Kernel] = {}
# What serves in place of a kernel, None: torch. The store is asked once for each kernel, not at each call.
_ANSWERS: dict[tuple[str, ScanSpec, str], Kernel | None] = {}


def kernel_for(spec: ScanSpec, target: str) -> Kernel | None:
    """The kernel that serves ``spec``: its own, or one that takes the length; None: torch's operations are to serve.

    Raises MissingKernel where a kernel would have to be built and may not, and what ``compile`` raises.
    """
    kernel = _KERNELS.get((spec, target))
    return _missed(spec, target) if kernel is None else kernel


def has(spec: ScanSpec, target: str) -> bool:
    """Whether this process holds the kernel of ``spec`` itself."""
    return (spec, target) in _KERNELS


def held(spec: ScanSpec, target: str) -> Kernel | None:
    """That kernel."""
    return _KERNELS.get((spec, target))


def keep(kernel: Kernel) -> Kernel:
    """Let ``kernel`` serve every later call of its spec."""
    if len(_KERNELS) >= _MAX_KEPT:
        _KERNELS.clear()
    _KERNELS[kernel.spec, kernel.target] = kernel
    return kernel


def when_ready(action: Callable[[], object]) -> None:
    """Call ``action`` each time a kernel built in the background has been kept."""
    _WHEN_READY.append(action)


def _missed(spec: ScanSpec, target: str) -> Kernel | None:
    name = policies.current()
    key = (name, spec, target)
    if key in _ANSWERS:
        return _ANSWERS[key]
    # To be sure that there is none, its text is rendered, for 20 ms: nothing for a call that is to wait for no kernel.
    look = known if name == "background" else find
    kernel = look(spec, target) or _OUTCOMES[name](spec, target)
    if kernel is not None and kernel.spec == spec:
        return keep(kernel)
    if len(_ANSWERS) >= _MAX_KEPT:
        _ANSWERS.clear()
    _ANSWERS[key] = kernel
    return kernel


def _build(spec: ScanSpec, target: str) -> Kernel | None:
    """Build the kernel; on a machine without a compiler for a GPU, leave the scan to PyTorch and warn."""
    policies.check_may_build(spec, target)
    try:
        return built(spec, target)
    except MissingCompiler as problem:
        if target == CPU:  # the caller asked for the emulator, and for nothing else
            raise
        _warn(
            f"scanops has no kernel {spec.slug} for {target} and no compiler to build it: PyTorch's own operators "
            f"compute it, several times slower. Precompile it on a machine with nvcc: "
            f"{policies.command_for(spec, target)}. ({problem.asked}: {problem.value})"
        )
        return None


def _generic(spec: ScanSpec, target: str) -> Kernel | None:
    """One build serves all lengths of its range; a spec that has no such kernel gets its own."""
    try:
        asked = any_length(spec)
        kernel = _KERNELS.get((asked, target)) or find(asked, target)
        if kernel is None:
            policies.check_may_build(spec, target)
            kernel = built(asked, target)
        return keep(kernel)
    except (UnsupportedRequest, BuildFailure) as problem:
        _LOG.debug("no kernel that takes the length of %s: %s", spec, problem)
        return _build(spec, target)


def _background(spec: ScanSpec, target: str) -> Kernel | None:
    kernel = _generic(spec, target)
    if kernel is not None and kernel.spec != spec:
        build_later(spec, target, _ready)
    return kernel


def _fallback(spec: ScanSpec, target: str) -> None:
    _warn(
        f"scanops has no kernel {spec.slug} for {target}: PyTorch's own operators compute it, several times slower. "
        f"Build it: {policies.command_for(spec, target)}"
    )


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=_callers_level())


def _callers_level() -> int:
    """How far above the function that asks the program's own line is: that is where a warning is of use."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "scanops":
        level, frame = level + 1, frame.f_back
    return level


_OUTCOMES: dict[str, Callable[[ScanSpec, str], Kernel | None]] = {
    "build": _build,
    "generic": _generic,
    "background": _background,
    "fallback": _fallback,
    "never": _build,  # which refuses
}

_WHEN_READY: list[Callable[[], object]] = []


def _ready(kernel: Kernel) -> None:
    keep(kernel)
    for action in _WHEN_READY:
        action()


def _after_fork() -> None:
    """What was left to the parent's worker is asked for again."""
    _ANSWERS.clear()
    for action in _WHEN_READY:
        action()


os.register_at_fork(after_in_child=_after_fork)
