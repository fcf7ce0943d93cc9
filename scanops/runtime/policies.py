"""Miss policies: what a call does when the store has no kernel for it. One object per policy, chosen by a block.

    build       build the kernel; the call waits (the default)
    generic     use the kernel that takes the length as an argument, and build that one if it is missing too
    background  the same, while a worker builds the kernel that was asked for, which takes over when it is ready
    fallback    let PyTorch's own operators compute the scan; a warning says so once per kernel
    never       raise MissingKernel, which names the command that builds the kernel

Under the first three, where this machine has no compiler for its GPU, PyTorch computes the scan as under ``fallback``.
``scanops.compile`` and ``scanops.prepare`` ask for kernels and accept nothing else: they raise where they cannot build.

The innermost ``with scanops.policy(...)`` block counts, else ``SCANOPS_POLICY``. Scans have no argument for it, because
the policy does not change what a call computes.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from scanops import environment
from scanops.codegen.operators import is_built_in, operator_named
from scanops.emulator import CPU
from scanops.errors import BuildFailure, MissingCompiler, MissingKernel, UnsupportedRequest

_LOG = logging.getLogger("scanops")


class Policy:
    """What becomes of a miss."""

    name: str
    may_build = True  # whether calls may start a build, of a kernel or of the C++ call path
    uses_torch = False  # whether PyTorch's operators serve on a miss
    specialises = False  # whether each length gets a kernel of its own

    def miss(self, miss: Any) -> Any:
        """Return the Kernel that serves in place of ``miss``, a ``kernels.Miss``; None: PyTorch computes.

        Raises what a build raises.
        """
        raise NotImplementedError


class Strict(Policy):
    """The policy of ``compile`` and ``prepare``: the kernel for the spec and no other."""

    name = "build"

    def miss(self, miss: Any) -> Any:
        if capturing():
            raise MissingKernel(
                f"the kernel {miss.spec.slug} for {miss.target} is needed while a CUDA graph is captured",
                allowed="kernels that are in the store: nothing is built during a capture",
                value=f"no kernel {miss.spec.slug} for {miss.target}",
                hint=f'call scanops.prepare(["{miss.spec.slug}"]) before the capture, or run the same call once',
            )
        return miss.build()


class _Build(Strict):
    specialises = True

    def miss(self, miss: Any) -> Any:
        try:
            return super().miss(miss)
        except MissingCompiler as problem:
            if miss.target == CPU:  # the caller asked for the emulator, which PyTorch is no substitute for
                raise
            _warn(
                f"scanops has no kernel {miss.spec.slug} for {miss.target} and no compiler to build it: PyTorch's own "
                "operators compute it, several times slower. Precompile it on a machine with nvcc: "
                f"{_command(miss)}. ({problem.asked}: {problem.value})"
            )
            return None


class _Generic(_Build):
    name = "generic"
    specialises = False

    def miss(self, miss: Any) -> Any:
        try:
            return miss.build_generic()
        except (UnsupportedRequest, BuildFailure, MissingKernel) as problem:
            _LOG.debug("no kernel that takes the length of %s: %s", miss.spec, problem)
            return super().miss(miss)


class _Background(_Generic):
    name = "background"

    def miss(self, miss: Any) -> Any:
        kernel = super().miss(miss)
        if kernel is not None and kernel.spec != miss.spec:
            miss.build_later()
        return kernel


class _Fallback(Policy):
    name = "fallback"
    may_build = False
    uses_torch = True

    def miss(self, miss: Any) -> None:
        _warn(
            f"scanops has no kernel {miss.spec.slug} for {miss.target}: PyTorch's own operators compute it, several "
            f"times slower. Build it: {_command(miss)}"
        )


class _Never(Policy):
    name = "never"
    may_build = False

    def miss(self, miss: Any) -> Any:
        raise MissingKernel(
            f"no kernel {miss.spec.slug} for {miss.target} under the policy never",
            allowed="kernels that are in the store",
            value=f"no kernel {miss.spec.slug} for {miss.target}",
            hint=f"build it: {_command(miss)}",
        )


STRICT = Strict()
_NEVER = _Never()
_POLICIES: dict[str, Policy] = {each.name: each for each in (_Build(), _Generic(), _Background(), _Fallback(), _NEVER)}
SCOPED: ContextVar[str | None] = ContextVar("scanops_policy", default=None)


@contextmanager
def policy(name: str) -> Iterator[str]:
    """Choose what scans inside the block do when their kernel is not in the store.

    ``"build"`` builds it, ``"generic"`` uses the kernel that takes the length as an argument, ``"background"`` does so
    while a worker builds the one that was asked for, ``"fallback"`` leaves the scan to PyTorch's operators and warns
    once, ``"never"`` raises. A kernel that this process already holds serves under each of them. Where the machine has
    no compiler for its GPU, the policies that build act as ``"fallback"``. The block counts for its thread, and for the
    backward passes of scans called in it; ``SCANOPS_POLICY`` counts for the process, wherever there is no block.

    Raises:
        UnsupportedRequest: another name.
        MissingKernel: from a scan, or from ``compile``, under ``"never"``; and under each policy that would have to
            build while a CUDA graph is captured.

    Example:
        >>> import torch, scanops
        >>> with scanops.policy("never"), scanops.emulate():
        ...     scanops.cumsum(torch.ones(12345), 0)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        scanops.errors.MissingKernel: ...
    """
    with resumed(environment.checked_policy(name, f"a policy({name!r})", "pass one of these words")):
        yield name


def scoped() -> str | None:
    """Return the policy name of the innermost block, None outside of all. Reads no environment variable."""
    return SCOPED.get()


@contextmanager
def resumed(name: str | None) -> Iterator[None]:
    """Restore inside the block what ``scoped`` returned elsewhere, for example in the thread of a forward pass."""
    token = SCOPED.set(name)
    try:
        yield
    finally:
        SCOPED.reset(token)


def current() -> Policy:
    """Return the policy of calls made here."""
    return _POLICIES[SCOPED.get() or environment.policy()]


def strict() -> Policy:
    """Return the policy of ``compile`` and ``prepare`` here: under ``never`` that one, else build or raise."""
    return _NEVER if current() is _NEVER else STRICT


def capturing() -> bool:
    """Return whether a CUDA graph is captured on this thread's current stream."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    with contextlib.suppress(RuntimeError):  # raised by a torch without CUDA
        return bool(torch.cuda.is_current_stream_capturing())
    return False


def _command(miss: Any) -> str:
    """Return what builds the kernel: a shell command, or Python where only the program knows the operator."""
    if is_built_in(operator_named(miss.spec.op)):
        return f"scanops build {miss.spec.slug} --target {miss.target}"
    return f'register_operator({miss.spec.op}), then scanops.prepare(["{miss.spec.slug}"], ["{miss.target}"])'


def _warn(text: str) -> None:
    """Warn at the innermost line outside scanops: the program's own."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "scanops":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=level)
