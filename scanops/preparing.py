"""``scanops.prepare``: kernels before they are needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest, shown
from scanops.jobs import at_once, jobs_that_fit
from scanops.runtime import misses
from scanops.runtime.kernels import Kernel, default_target, noted, obtained
from scanops.runtime.native.later import prepared
from scanops.runtime.policies import current, may_build, policy
from scanops.workload.recording import record

__all__ = ["prepare"]

_LOG = logging.getLogger("scanops")
_Wanted = tuple[ScanSpec, str]  # and for which target


def prepare(
    what: Iterable[ScanSpec | str | Callable[[], object]], targets: Iterable[str] | None = None
) -> list[Kernel]:
    """Have kernels before they are needed: before a CUDA graph is captured, before a server takes requests.

    Args:
        what: specs, their short names such as ``"sum-f32-n4096"``, or functions of no argument that call scans as the
            program will. A function is called once, and its scans are computed.
        targets: architectures; by default that of the current GPU, or the emulator, as ``compile`` chooses.

    Returns:
        The kernels in the order asked for, each once; those of specs are built at the same time, as many as there are
        cores and memory for. Those for this machine are loaded and serve calls from now on. With a GPU so does what
        calls them without Python, which takes half a minute to build once for a torch.

    Raises:
        UnsupportedRequest: a spec or target that makes no sense, or a function that asks for no kernel.
        BuildFailure: no compiler, or one that refused the source.
        MissingKernel: one that is not in the store under the policy ``never``. Under any other, kernels are built.

        Of several failures the first in the order asked for is raised, and the log has all. What did not fail serves.

    Example:
        >>> import torch, scanops
        >>> x = torch.ones(3, 100)
        >>> with scanops.emulate():
        ...     [kernel.spec.slug for kernel in scanops.prepare(["sum-f32-n64", lambda: scanops.cumsum(x, 1)])]
        ['sum-f32-n64', 'sum-f32-n100']
    """
    if isinstance(what, str | ScanSpec):
        what = [what]
    if not isinstance(what, Iterable):
        raise UnsupportedRequest(
            "prepare: what must be specs or functions",
            allowed="an iterable of ScanSpecs, their short names, or functions of no argument that call scans",
            value=f"what={shown(what)}",
            hint="pass a list: scanops.prepare([lambda: scanops.cumsum(x, 1)])",
        )
    chosen = None if targets is None else [targets] if isinstance(targets, str) else list(targets)
    here = default_target()
    wanted: dict[_Wanted, None] = {}
    with policy("never" if current() == "never" else "build"):
        for item in what:
            pairs = _asked(item, here)
            wanted.update(dict.fromkeys((spec, target) for spec, own in pairs for target in chosen or [own]))
        for spec, target in wanted:  # a target that is none shows before anything is built
            noted(spec, target)
        # A capture is its thread's own: what may not build because of one is refused in this thread.
        found = at_once(_obtained, list(wanted), jobs_that_fit() if may_build() else 1)
        outcomes = dict(zip(wanted, found, strict=True))
        kernels = [outcome for outcome in found if isinstance(outcome, Kernel)]
        for kernel in kernels:
            if kernel.target == here:
                _ = kernel.library  # the first call would load it
                misses.keep(kernel)
        _raise_first({key: outcome for key, outcome in outcomes.items() if isinstance(outcome, Exception)})
        prepared(here)
    return kernels


def _obtained(wanted: _Wanted) -> Kernel | Exception:
    try:
        return obtained(*wanted)
    except Exception as problem:  # no failure keeps the others from being built
        return problem


def _raise_first(problems: dict[_Wanted, Exception]) -> None:
    """Raise the first one; where there are several, the log has them all, each reason once."""
    reasons: dict[str, tuple[Exception, list[str]]] = {}
    for (spec, target), problem in problems.items():
        alike = str(problem).replace(spec.slug, "").replace(target, "")  # under never each names its kernel
        reasons.setdefault(alike, (problem, []))[1].append(f"{spec.slug} for {target}")
    if len(problems) > 1:
        for problem, names in reasons.values():
            _LOG.error("not prepared: %s: %s", ", ".join(names), problem)
    for problem in problems.values():
        raise problem


def _asked(item: ScanSpec | str | Callable[[], object], here: str) -> list[tuple[ScanSpec, str]]:
    if isinstance(item, ScanSpec):
        return [(item, here)]
    if isinstance(item, str):
        return [(ScanSpec.parse(item), here)]
    if not callable(item):
        raise UnsupportedRequest(
            "to prepare what is neither a spec nor a call",
            allowed="a ScanSpec, its short name, or a function of no argument that calls scans",
            value=repr(item),
            hint="pass a function: scanops.prepare([lambda: scanops.cumsum(x, 1)])",
        )
    with record() as used:
        item()
    if not used.counts:
        raise UnsupportedRequest(
            "to prepare a call that asks for no kernel",
            allowed="a call that scans CUDA tensors, or CPU tensors inside `with scanops.emulate():`",
            value=repr(item),
            hint="move its tensors to the GPU; for empty tensors and for CPU tensors there is nothing to build",
        )
    return list(used.counts)
