"""Kernels ahead of time: ``compile`` one, ``record`` what a program uses, ``prepare`` it, ``precompile`` a folder."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scanops import recording
from scanops.build_request import CPU, planned
from scanops.codegen.lines import few_for, situations
from scanops.codegen.spec import ScanSpec, spec_of
from scanops.codegen.targets import target_named
from scanops.environment import AUTO, BUILDERS, no_such
from scanops.errors import ScanopsError, UnsupportedRequest, by_reason, shown
from scanops.forks import import_late
from scanops.processes import at_once, jobs_that_fit
from scanops.runtime import policies
from scanops.runtime.kernels import Kernel, capturing, default_target, obtain
from scanops.runtime.native import prepared
from scanops.store import Store
from scanops.store.packs import finish
from scanops.store.root import create_root

_LOG = logging.getLogger("scanops")
FEW = ", few lines"  # behind the name of such a kernel
_Wanted = tuple[ScanSpec, str, bool]  # a spec, its target, and whether the kernel is for few lines


def compile(
    spec: ScanSpec | str, target: str | None = None, *, lines: int | None = None, builder: str = AUTO
) -> Kernel:
    """Return the kernel for ``spec``: found in the store, or built and kept there.

    Args:
        spec: what to compute, a ScanSpec or its short name.
        target: an architecture such as ``"sm_90"``; ``"cpu"`` for the emulator. By default that of the current GPU;
            inside ``emulate()`` and without a GPU the emulator. Building for a GPU needs nvcc or NVRTC, and no GPU.
        lines: the number of lines that the kernel is planned for, by default as many as fill the GPU. It serves any.
        builder: ``"load_inline"``, ``"nvcc"`` or ``"nvrtc"``, which makes a cubin and no library: that one and no other
            builds for a GPU. ``"auto"``: that of ``SCANOPS_BUILDER``, else the first of these that works here.

    Raises:
        UnsupportedRequest: a target or a builder that is not known, or an impossible number of lines.
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
    spec = spec_of(spec)
    check_wanted(target, builder)
    few = few_for(spec, planned(target), lines)
    recording.note(spec, target, few)
    kernel = obtain(spec, target, policies.strict().by(builder), Store(), few)
    assert kernel is not None
    return kernel


def check_wanted(target: str, builder: str = AUTO) -> None:
    """Raise UnsupportedRequest unless ``target`` and the builder for it are known."""
    if target != CPU:
        target_named(target)
    if builder not in (known := BUILDERS if target != CPU else (AUTO,)):
        hint = "pass one of these words: the host compiler builds emulated kernels"
        raise no_such(builder, known, f"build for {target} by {builder!r}", hint)


@contextmanager
def record() -> Iterator[recording.Recording]:
    """Inside the block, write down the spec of each kernel that this process asks for, in whatever thread.

    A request is recorded whatever serves it: under the policy ``fallback`` a program records what to build on a
    machine without a compiler. Scans of CPU tensors outside ``scanops.emulate()`` ask for no kernel and are not
    recorded; when nothing else ran, a RuntimeWarning says so. Specs do not depend on the GPU that they are recorded on.

    Yields:
        A Recording: its ``specs``, its ``counts``, and ``write(path)``, which makes the file that ``scanops
        precompile`` reads.

    Example:
        >>> import torch, scanops
        >>> with scanops.record() as used, scanops.emulate():
        ...     y = scanops.cumsum(torch.ones(3, 100), 1)
        >>> [spec.slug for spec in used]
        ['sum-f32-n100']
    """
    with _recorded() as used:
        yield used
    if used.remark:
        warnings.warn(f"scanops.record: {used.remark}", RuntimeWarning, stacklevel=3)


@contextmanager
def _recorded() -> Iterator[recording.Recording]:
    with recording.open_recording() as used:
        call_cache = import_late("scanops.runtime.call_cache")  # imports torch, which building does without
        call_cache.forget()  # every call is to be counted where kernels are looked up
        yield used


def prepare(
    what: Iterable[ScanSpec | str | Callable[[], object]], targets: Iterable[str] | None = None
) -> list[Kernel]:
    """Build and load kernels before they are needed: before a CUDA graph capture, before a server takes requests.

    Of several failures the first in the order asked for is raised, and the log has all. The other kernels serve.

    Args:
        what: specs, their short names such as ``"sum-f32-n4096"``, or functions of no argument that call scans as the
            program will. A function is called once, and its scans are computed.
        targets: architectures; by default that of the current GPU, or the emulator, as ``compile`` chooses.

    Returns:
        The kernels in the order asked for, each once; of a spec the kernel for many lines and, where its plan differs,
        that for few. Those of specs are built at the same time, as many as there are cores and memory for. Those for
        this machine are loaded and serve calls from now on. On a machine with a GPU the C++ call path is built too,
        which takes half a minute once per torch version.

    Raises:
        UnsupportedRequest: an invalid spec or target, or a function that asks for no kernel.
        BuildFailure: no compiler, or one that refused the source.
        MissingKernel: not in the store, under the policy ``never``. Under any other, kernels are built.

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
        raise _not_prepared(what, "is neither a spec nor a function")
    chosen = None if targets is None else [targets] if isinstance(targets, str) else list(targets)
    here = default_target()
    wanted: dict[_Wanted, None] = {}
    with policies.resumed(policies.strict().name):
        for item in what:
            for spec, own, few in _asked(item, here):  # an invalid target shows before anything is built
                wanted.update(dict.fromkeys(_situated(spec, chosen or [own], few)))
        for spec, target, few in wanted:
            recording.note(spec, target, few)
        # A capture belongs to its thread: what may not be built because of one is refused in this thread.
        found = at_once(_obtained, list(wanted), 1 if capturing() else jobs_that_fit())
        kernels = [outcome for outcome in found if isinstance(outcome, Kernel)]
        for kernel in kernels:
            if kernel.target == here:
                kernel.code.ready(-1 if here == CPU else import_late("torch").cuda.current_device())
        named = zip((f"{spec.slug} for {target}" for spec, target, _ in wanted), found, strict=True)
        problems = [(name, outcome) for name, outcome in named if isinstance(outcome, Exception)]
        if len(problems) > 1:
            for problem, stopped in by_reason(problems):
                _LOG.error("not prepared: %s: %s", ", ".join(stopped), problem)
        for _, problem in problems:
            raise problem
        prepared(here)
    return kernels


def _obtained(wanted: _Wanted) -> Kernel | Exception | None:
    try:
        spec, target, few = wanted
        return obtain(spec, target, policies.strict(), few=few)
    except Exception as problem:  # one failure does not keep the other kernels from being built
        return problem


def _asked(item: ScanSpec | str | Callable[[], object], here: str) -> list[tuple[ScanSpec, str, bool | None]]:
    """Return the kernels that one item of ``prepare`` stands for: of a spec (None) those for many and few lines."""
    if isinstance(item, ScanSpec):
        return [(item, here, None)]
    if isinstance(item, str):
        return [(ScanSpec.parse(item), here, None)]
    if not callable(item):
        raise _not_prepared(item, "is neither a spec nor a function")
    with _recorded() as used:
        item()
    if not used.counts:
        raise _not_prepared(item, "asks for no kernel")
    return list(used.counts)


def _situated(spec: ScanSpec, targets: Iterable[str], few: bool | None) -> Iterator[_Wanted]:
    """Yield a spec's kernels for these targets; where ``few`` is None, for many lines and for few."""
    for target in targets:
        check_wanted(target)
        for each in situations(spec, planned(target)) if few is None else (few,):
            yield spec, target, each


def _not_prepared(item: object, why: str) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"prepare: {shown(item)} {why}",
        allowed="specs, their short names, or functions of no argument that scan CUDA tensors, or CPU tensors inside "
        "`with scanops.emulate():`",
        value=shown(item),
        hint="pass a function: scanops.prepare([lambda: scanops.cumsum(x, 1)]); empty tensors need no kernel",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The outcome of building one kernel."""

    spec: ScanSpec
    target: str
    few: bool  # whether it is for few lines
    found: bool  # the store had it already
    seconds: float
    kernel: Kernel | None  # None when it could not be built
    error: ScanopsError | None

    @property
    def name(self) -> str:
        """Spec, target and situation, for messages."""
        return f"{self.spec.slug} for {self.target}{FEW * self.few}"


def precompile(
    wanted: Sequence[_Wanted],
    folder: Path,
    *,
    jobs: int,
    said: Callable[[Built], object],
    native: bool = False,
    builder: str = AUTO,
) -> list[Built]:
    """Build each (spec, target, few) into the store at ``folder``, and complete the folder as a pack.

    Kernels that the folder already has are skipped, so a run that was stopped can be continued. A kernel that cannot be
    built stops no other. Outcomes are returned in the order asked for; ``said`` is called with each as soon as it is
    known. With ``native`` the C++ call path is built too, for this torch and Python. ``builder`` as in ``compile``.
    Raises BadStoreEntry for a folder that cannot be made or used.
    """
    create_root(folder)
    if native:
        import_late("scanops.runtime.native.building").built(Store(folder))  # which needs torch
    outcomes = at_once(lambda each: built(each, Store(folder), builder), list(dict.fromkeys(wanted)), jobs, said)
    if any(outcome.error is None for outcome in outcomes):  # a pack holds at least one kernel
        finish(folder)
    return outcomes


def expected(wanted: Iterable[tuple[ScanSpec, str | None]], targets: Sequence[str], source: Path) -> list[_Wanted]:
    """Return each kernel once: for ``targets``, or else for the targets that the file names.

    Where the plans for many and for few lines differ, both kernels are wanted. Raises UnsupportedRequest when neither
    names a target, and for a file that names no kernel.
    """
    found: dict[_Wanted, None] = {}
    for spec, own in wanted:
        if not targets and own is None:
            raise UnsupportedRequest(
                f"precompile: {spec.slug} has no target",
                allowed="--targets, or targets in the spec file",
                value=f"neither names one ({source})",
                hint="add --targets sm_80,sm_90",
            )
        found.update(dict.fromkeys(_situated(spec, targets or [str(own)], None)))
    if not found:
        raise UnsupportedRequest(
            f"precompile: {source} names no kernel",
            allowed="a spec file with specs = [...] or [[scan]] tables",
            value=f"{source} names none",
            hint="name kernels in it, or let `scanops record` do so",
        )
    return list(found)


def built(wanted: _Wanted, store: Store, builder: str = AUTO) -> Built:
    """Find or build one kernel in ``store``, whatever the policy is, and return the outcome, errors included."""
    started = time.perf_counter()
    (spec, target, few), found, kernel, error = wanted, False, None, None
    try:
        kernel = obtain(spec, target, policies.FIND.by(builder), store, few)
        found = kernel is not None
        kernel = kernel or obtain(spec, target, policies.STRICT.by(builder), store, few)
    except ScanopsError as problem:
        error = problem
    took = time.perf_counter() - started
    return Built(spec=spec, target=target, few=few, found=found, seconds=took, kernel=kernel, error=error)
