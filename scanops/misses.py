"""Which kernel serves a call, and what becomes of a call whose kernel is in no store: the policies, one a function."""

from __future__ import annotations

import logging
import os
import queue
import threading
import warnings
from collections.abc import Callable

from scanops import policies, recording
from scanops.codegen.lines import any_length
from scanops.codegen.spec import ScanSpec
from scanops.errors import BuildFailure, ScanopsError, UnsupportedRequest
from scanops.kernels import Kernel, built, find

__all__ = ["has", "keep", "kernel_for", "when_ready"]

_LOG = logging.getLogger("scanops")
_MAX_KEPT = 4096  # kernels, and answers

_KERNELS: dict[tuple[ScanSpec, str], Kernel] = {}
# What serves in place of a kernel, None: torch. The store is asked once for each kernel, not at each call.
_ANSWERS: dict[tuple[str, ScanSpec, str], Kernel | None] = {}


def kernel_for(spec: ScanSpec, target: str) -> Kernel | None:
    """The kernel that serves ``spec``: its own, or one that takes the length; None: torch's operations are to serve.

    Raises MissingKernel where a kernel would have to be built and may not, and what ``compile`` raises.
    """
    recording.note(spec, target)
    kernel = _KERNELS.get((spec, target))
    return _missed(spec, target) if kernel is None else kernel


def has(spec: ScanSpec, target: str) -> bool:
    """Whether this process holds the kernel of ``spec`` itself."""
    return (spec, target) in _KERNELS


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
    kernel = find(spec, target) or _OUTCOMES[name](spec, target)
    if kernel is not None and kernel.spec == spec:
        return keep(kernel)
    if len(_ANSWERS) >= _MAX_KEPT:
        _ANSWERS.clear()
    _ANSWERS[key] = kernel
    return kernel


def _build(spec: ScanSpec, target: str) -> Kernel:
    policies.check_may_build(spec, target)
    return built(spec, target)


def _generic(spec: ScanSpec, target: str) -> Kernel:
    """One build serves all lengths of its range; a spec that has no such kernel gets its own."""
    try:
        asked = any_length(spec)
        kernel = _KERNELS.get((asked, target)) or find(asked, target)
        return keep(kernel or _build(asked, target))
    except (UnsupportedRequest, BuildFailure) as problem:
        _LOG.debug("no kernel that takes the length of %s: %s", spec, problem)
        return _build(spec, target)


def _background(spec: ScanSpec, target: str) -> Kernel:
    kernel = _generic(spec, target)
    if kernel.spec != spec:
        _enqueue((spec, target))
    return kernel


def _fallback(spec: ScanSpec, target: str) -> None:
    text = (
        f"scanops has no kernel {spec.slug} for {target}: torch's own operations compute it, several times slower. "
        f"Build it: {policies.command_for(spec, target)}"
    )
    warnings.warn(text, RuntimeWarning, stacklevel=2)


_OUTCOMES: dict[str, Callable[[ScanSpec, str], Kernel | None]] = {
    "build": _build,
    "generic": _generic,
    "background": _background,
    "fallback": _fallback,
    "never": _build,  # which refuses
}

_Job = tuple[ScanSpec, str]
_WHEN_READY: list[Callable[[], object]] = []


_JOBS: queue.SimpleQueue[_Job] = queue.SimpleQueue()
_STARTING = threading.Lock()
_WORKER: list[threading.Thread] = []  # none until it is needed, one then


def _enqueue(job: _Job) -> None:
    """Leave a build to the one worker of this process.

    It is a daemon: a process that ends does not wait for it, and what a dead builder leaves in a store harms nobody.
    """
    with _STARTING:
        if not _WORKER:
            _WORKER.append(threading.Thread(target=_work, name="scanops-background", daemon=True))
            _WORKER[0].start()
    _JOBS.put(job)


def _after_fork() -> None:
    """Threads do not survive a fork: what was left to the worker is asked for again, and gets a worker of its own."""
    global _JOBS, _STARTING
    _JOBS, _STARTING = queue.SimpleQueue(), threading.Lock()
    _WORKER.clear()
    _ANSWERS.clear()
    for action in _WHEN_READY:
        action()


os.register_at_fork(after_in_child=_after_fork)


def _work() -> None:
    while True:
        spec, target = _JOBS.get()
        if has(spec, target):
            continue
        try:
            kernel = built(spec, target)
            _ = kernel.library  # loaded here, so that the call it takes over does not wait
            keep(kernel)
            for action in _WHEN_READY:
                action()
        except ScanopsError as problem:
            _LOG.error("the kernel %s for %s could not be built in the background: %s", spec.slug, target, problem)
        except Exception:
            _LOG.exception("the kernel %s for %s could not be built in the background", spec.slug, target)
