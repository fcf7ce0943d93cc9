"""Miss policies: what a call does when the store has no kernel for it. One object per policy, chosen by a block.

    build       build the kernel; the call waits (the default)
    generic     use the kernel that takes the length as an argument, and build that one if it is missing too
    background  the same, while a worker builds the kernel that was asked for, which takes over when it is ready
    fallback    let PyTorch's own operators compute the scan; a warning says so once per kernel
    never       raise MissingKernel, which names the command that builds the kernel

Under the first three, where this machine has no compiler for its GPU, PyTorch computes the scan as under ``fallback``.
A miss of a call is built by NVRTC where it is there, which takes a tenth of a second.
``scanops.compile`` and ``scanops.prepare`` ask for kernels and accept nothing else: they raise where they cannot build.

The innermost ``with scanops.policy(...)`` block counts, else ``SCANOPS_POLICY``. Scans have no argument for it, because
the policy does not change what a call computes.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from scanops import environment
from scanops.errors import MissingKernel

if TYPE_CHECKING:
    from scanops.codegen.spec import ScanSpec

_LOG = logging.getLogger("scanops")
AHEAD = environment.BUILDERS[1:]  # who builds kernels for GPUs before they are needed, in this order
_ON_A_MISS = ("nvrtc", "load_inline", "nvcc")  # and while a call or its stand-in waits: the fastest first


class Policy(NamedTuple):
    """What becomes of a miss; ``kernels.Miss`` does it."""

    name: str
    builders: tuple[str, ...] = AHEAD  # who builds for a GPU, in this order; one: that one and no other
    may_build: bool = True  # whether calls may start a build, of a kernel or of the C++ call path
    falls_back: bool = False  # whether PyTorch's operators serve where nothing is built, for want of a compiler too
    generic: bool = False  # whether the kernel that takes the length serves
    later: bool = False  # whether a worker builds the kernel that was asked for

    def list_builders(self) -> tuple[str, ...]:
        """Return the builders to ask for a kernel for a GPU: the one that is named, else all in their order."""
        named = environment.AUTO if len(self.builders) == 1 else environment.builder()
        return self.builders if named == environment.AUTO else (named,)

    def by(self, builder: str) -> Policy:
        """Return this policy with the builder that a caller names, or the same for auto."""
        return self if builder == environment.AUTO else self._replace(builders=(builder,))


STRICT = Policy(name="build")  # the policy of ``compile`` and ``prepare``: the kernel for the spec and no other
FIND = Policy(name="find", may_build=False)  # the policy of ``kernels.find``: None on a miss
_NEVER = Policy(name="never", may_build=False)
POLICIES = {
    "build": Policy(name="build", builders=_ON_A_MISS, falls_back=True),
    "generic": Policy(name="generic", builders=_ON_A_MISS, falls_back=True, generic=True),
    "background": Policy(name="background", builders=_ON_A_MISS, falls_back=True, generic=True, later=True),
    "fallback": Policy(name="fallback", falls_back=True, may_build=False),
    "never": _NEVER,
}


@contextmanager
def policy(name: str) -> Iterator[str]:
    """Choose what scans inside the block do when their kernel is not in the store.

    A kernel that this process already holds serves under each of them. Where the machine has
    no compiler for its GPU, the policies that build act as ``"fallback"``. The block counts for its thread, and for the
    backward passes of scans called in it; ``SCANOPS_POLICY`` counts for the process, wherever there is no block.

    Args:
        name: ``"build"`` builds the kernel; ``"generic"`` uses the kernel that takes the length as an argument;
            ``"background"`` does so while a worker builds the one that was asked for; ``"fallback"`` leaves the scan
            to PyTorch's operators and warns once; ``"never"`` raises.

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
    if name not in POLICIES:
        raise environment.no_such(name, environment.POLICIES, "no such policy", "pass one of these words")
    with resumed(name):
        yield name


@contextmanager
def resumed(name: str | None) -> Iterator[None]:
    """Restore inside the block what ``environment.SCOPED`` held elsewhere, as in the thread of a forward pass."""
    token = environment.SCOPED.set(name)
    try:
        yield
    finally:
        environment.SCOPED.reset(token)


def strict() -> Policy:
    """Return the policy of ``compile`` and ``prepare`` here: under ``never`` that one, else build or raise."""
    return _NEVER if environment.policy() == "never" else STRICT


# ---- messages about a missing kernel


def command_for(spec: ScanSpec, target: str) -> str:
    """Return the shell command that builds a kernel."""
    if spec.map:
        return f"scanops build {spec.slug} --target {target} --import FILE, which is a recording of the program"
    return f"scanops build {spec.slug} --target {target}"


def missing(spec: ScanSpec, target: str, why: str, rule: str, hint: str) -> MissingKernel:
    """Return the error for a kernel that may not be built."""
    name = f"no kernel {spec.slug} for {target}"
    allowed = f"kernels that are in the store{rule}"
    return MissingKernel(f"{name} {why}", allowed=allowed, value=f"policy {environment.policy()!r}", hint=hint)


_MOST, _SECONDS = 20, 60.0  # lines that ``say`` logs in so many seconds
_said: deque[float] = deque(maxlen=_MOST)


def say(text: str) -> None:
    """Log a line at INFO, unless as many as ``_MOST`` were logged within the last minute."""
    now = time.monotonic()
    if len(_said) < _MOST or now - _said[0] > _SECONDS:
        _said.append(now)
        left_out = len(_said) == _MOST and now - _said[0] <= _SECONDS
        _LOG.info("%s%s", text, "; further lines of this minute are left out" * left_out)


def warn(spec: ScanSpec, target: str, without: str, hint: str) -> None:
    """Warn that PyTorch computes, at the innermost line outside scanops: the program's own."""
    say(f"fallback: PyTorch's operators compute {spec.slug} for {target}{without}")
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "scanops":
        level, frame = level + 1, frame.f_back
    text = f"scanops has no kernel {spec.slug} for {target}{without}: PyTorch's own operators compute it, "
    warnings.warn(f"{text}several times slower. {hint}", RuntimeWarning, stacklevel=level)
