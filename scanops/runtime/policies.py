"""``with scanops.policy("never"):`` what happens when a kernel is asked for that nobody has built yet.

    build       it is built, and the call waits (the default)
    generic     the kernel that takes the length as an argument serves, and is built if it is not there either
    background  the same, while a worker builds the kernel that was asked for, which takes over when it is ready
    fallback    torch's own operations serve; a warning says so once for each kernel
    never       MissingKernel is raised, which names the command that builds it

The innermost ``with`` block counts, else ``SCANOPS_POLICY``. There is no argument of that name: what a call computes
does not depend on it, and a block around one call says the same.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from scanops import environment
from scanops.codegen.operators import is_built_in, operator_named
from scanops.codegen.spec import ScanSpec
from scanops.errors import MissingKernel

__all__ = [
    "check_may_build",
    "command_for",
    "current",
    "may_build",
    "missing",
    "policy",
    "resumed",
    "scoped",
    "variable",
]

_SCOPED: ContextVar[str | None] = ContextVar("scanops_policy", default=None)


@contextmanager
def policy(name: str) -> Iterator[str]:
    """Inside the block, a kernel that is not in the store is dealt with as ``name`` says.

    ``"build"`` builds it, ``"generic"`` uses the kernel that takes the length as an argument, ``"background"`` does so
    while a worker builds the one that was asked for, ``"fallback"`` leaves the scan to torch's operations and warns
    once, ``"never"`` raises. A kernel that this process already holds serves under each of them. The block counts for
    the thread it is in, and for the backward passes of scans that were called there; ``SCANOPS_POLICY`` counts for the
    process, wherever there is no block.

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
    """The policy of the innermost block, None outside of all. Reads no environment."""
    return _SCOPED.get()


def variable() -> ContextVar[str | None]:
    """Where that is kept, for code that asks in C."""
    return _SCOPED


@contextmanager
def resumed(name: str | None) -> Iterator[None]:
    """Inside the block, what ``scoped`` has said elsewhere, in another thread."""
    token = _SCOPED.set(name)
    try:
        yield
    finally:
        _SCOPED.reset(token)


def current() -> str:
    """The policy that counts here."""
    return _SCOPED.get() or environment.policy()


def may_build() -> bool:
    """Whether anything may be built here, by this thread."""
    return current() != "never" and not _capturing()


def check_may_build(spec: ScanSpec, target: str) -> None:
    """Raises MissingKernel where nothing may be built: under ``never``, and while a CUDA graph is captured."""
    if current() == "never":
        raise missing(spec, target)
    if _capturing():
        raise MissingKernel(
            f"the kernel {spec.slug} for {target} while a CUDA graph is captured",
            allowed="kernels that are in the store: nothing is built during a capture",
            value=f"no kernel {spec.slug} for {target}",
            hint=f'call scanops.prepare(["{spec.slug}"]) before the capture, or run the same call once',
        )


def missing(spec: ScanSpec, target: str) -> MissingKernel:
    """What ``never`` raises."""
    return MissingKernel(
        f"the kernel {spec.slug} for {target} under the policy never",
        allowed="kernels that are in the store",
        value=f"no kernel {spec.slug} for {target}",
        hint=f"build it: {command_for(spec, target)}",
    )


def command_for(spec: ScanSpec, target: str) -> str:
    """What builds a kernel: a command, or a line of Python where only the program knows the operator."""
    if is_built_in(operator_named(spec.op)):
        return f"scanops build {spec.slug} --target {target}"
    return f'register_operator({spec.op}), then scanops.prepare(["{spec.slug}"], ["{target}"])'


def _capturing() -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    with contextlib.suppress(RuntimeError):  # what a torch without CUDA answers
        return bool(torch.cuda.is_current_stream_capturing())
    return False
