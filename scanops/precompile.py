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
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.lines import key_for, keys_for
from scanops.codegen.spec import ScanSpec, spec_of
from scanops.codegen.targets import CPU, target_named
from scanops.environment import AUTO, BUILDERS, no_such
from scanops.errors import ScanopsError, UnsupportedRequest, by_reason, format_value
from scanops.forks import import_late
from scanops.processes import at_once, jobs_that_fit
from scanops.runtime import policies
from scanops.runtime.kernels import Kernel, capturing, default_target, obtain
from scanops.store import Store
from scanops.store.packs import finish
from scanops.store.root import create_root

_LOG = logging.getLogger("scanops")


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
    key = key_for(spec, target, lines)
    recording.note(key)
    kernel = obtain(key, policies.strict().by(builder), Store())
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
    what: str | Path | Iterable[ScanSpec | str | Path | Callable[[], object]], targets: Iterable[str] | None = None
) -> list[Kernel]:
    """Build and load kernels before they are needed: before a CUDA graph capture, before a server takes requests.

    Of several failures the first in the order asked for is raised, and the log has all. The other kernels serve.

    Args:
        what: specs, their short names such as ``"sum-f32-n4096"``, spec files by a path that ends in .toml, or
            functions of no argument that call scans as the program will. A function is called once, and its scans are
            computed. Of a spec file every spec is taken, whatever target the file names beside it.
        targets: architectures; by default that of the current GPU, or the emulator, as ``compile`` chooses.

    Returns:
        The kernels in the order asked for, each once; of a spec the kernel for many lines and, where its plan differs,
        that for few. Those of specs are built at the same time, as many as there are cores and memory for. Those for
        this machine are loaded and serve calls from now on. On a machine with a GPU the C++ call path is built too,
        which takes half a minute once per torch version.

    Raises:
        UnsupportedRequest: an invalid spec or target, a function that asks for no kernel, or a spec file with an
            operator that is not registered here.
        BadSpecFile: an invalid spec file; UnusableFile: one that cannot be read.
        BuildFailure: no compiler, or one that refused the source.
        MissingKernel: not in the store, under the policy ``never``. Under any other, kernels are built.

    Example:
        >>> import torch, scanops
        >>> x = torch.ones(3, 100)
        >>> with scanops.emulate():
        ...     [kernel.spec.slug for kernel in scanops.prepare(["sum-f32-n64", lambda: scanops.cumsum(x, 1)])]
        ['sum-f32-n64', 'sum-f32-n100']
    """
    if isinstance(what, str | Path | ScanSpec):
        what = [what]
    if not isinstance(what, Iterable):
        raise _not_prepared(what, "is neither a spec nor a function")
    chosen = None if targets is None else [targets] if isinstance(targets, str) else list(targets)
    here = default_target()
    wanted: dict[KernelKey, None] = {}
    with policies.resumed(policies.strict().name):
        for item in what:
            wanted.update(dict.fromkeys(_expand(item, chosen, here)))  # an invalid target shows before a build
        for key in wanted:
            recording.note(key)
        # A capture belongs to its thread: what may not be built because of one is refused in this thread.
        found = at_once(_try_to_obtain, list(wanted), 1 if capturing() else jobs_that_fit())
        kernels = [outcome for outcome in found if isinstance(outcome, Kernel)]
        for kernel in kernels:
            if kernel.target == here:
                kernel.load_on_device(-1 if here == CPU else import_late("torch").cuda.current_device())
        named = zip((f"{key.spec.slug} for {key.target}" for key in wanted), found, strict=True)
        problems = [(name, outcome) for name, outcome in named if isinstance(outcome, Exception)]
        if len(problems) > 1:
            for problem, stopped in by_reason(problems):
                _LOG.error("not prepared: %s: %s", ", ".join(stopped), problem)
        for _, problem in problems:
            raise problem
        import_late("scanops.runtime.native").prepare(here)  # which needs torch
    return kernels


def _try_to_obtain(key: KernelKey) -> Kernel | Exception | None:
    try:
        return obtain(key, policies.strict())
    except Exception as problem:  # one failure does not keep the other kernels from being built
        return problem


def _expand(
    item: ScanSpec | str | Path | Callable[[], object], targets: Sequence[str] | None, here: str
) -> Iterator[KernelKey]:
    """Yield the kernels that one item of ``prepare`` stands for: of a spec those for many and for few lines."""
    if isinstance(item, Path) or (isinstance(item, str) and item.endswith(".toml")):
        file = import_late("scanops.specfile").load(Path(item))  # a program that prepares no file needs no TOML
        for spec in dict.fromkeys(spec for spec, _ in file.wanted):
            yield from _keys_of(spec, targets or [here])
        return
    if isinstance(item, ScanSpec | str):
        yield from _keys_of(spec_of(item), targets or [here])
        return
    if not callable(item):
        raise _not_prepared(item, "is neither a spec nor a function")
    with _recorded() as used:
        item()
    if not used.counts:
        raise _not_prepared(item, "asks for no kernel")
    for key in used.counts:
        for target in targets or [key.target]:
            check_wanted(target)
            yield key._replace(target=target)


def _keys_of(spec: ScanSpec, targets: Iterable[str]) -> Iterator[KernelKey]:
    """Yield the kernels of a spec for these targets: for many lines, and for few where their plan differs."""
    for target in targets:
        check_wanted(target)
        yield from keys_for(spec, target)


def _not_prepared(item: object, why: str) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"prepare: {format_value(item)} {why}",
        allowed="specs, their short names, spec files, or functions of no argument that scan CUDA tensors, or CPU "
        "tensors inside `with scanops.emulate():`",
        value=format_value(item),
        hint="pass a function: scanops.prepare([lambda: scanops.cumsum(x, 1)]); empty tensors need no kernel",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The outcome of building one kernel."""

    key: KernelKey
    found: bool  # the store had it already
    seconds: float
    kernel: Kernel | None  # None when it could not be built
    error: ScanopsError | None


def precompile(
    wanted: Sequence[KernelKey],
    folder: Path,
    *,
    jobs: int,
    said: Callable[[Built], object],
    native: bool = False,
    builder: str = AUTO,
) -> list[Built]:
    """Build each kernel into the store at ``folder``, and complete the folder as a pack.

    Kernels that the folder already has are skipped, so a run that was stopped can be continued. A kernel that cannot be
    built stops no other. Outcomes are returned in the order asked for; ``said`` is called with each as soon as it is
    known. With ``native`` the C++ call path is built too, for this torch and Python. ``builder`` as in ``compile``.
    Raises BadStoreEntry for a folder that cannot be made or used.
    """
    create_root(folder)
    if native:
        import_late("scanops.runtime.native.building").build(Store(folder))  # which needs torch
    outcomes = at_once(
        lambda each: find_or_build(each, Store(folder), builder), list(dict.fromkeys(wanted)), jobs, said
    )
    if any(outcome.error is None for outcome in outcomes):  # a pack holds at least one kernel
        finish(folder)
    return outcomes


def expand_file(wanted: Iterable[tuple[ScanSpec, str | None]], targets: Sequence[str], source: Path) -> list[KernelKey]:
    """Return each kernel once: for ``targets``, or else for the targets that the file names.

    Where the plans for many and for few lines differ, both kernels are wanted. Raises UnsupportedRequest when neither
    names a target, and for a file that names no kernel.
    """
    found: dict[KernelKey, None] = {}
    for spec, own in wanted:
        if not targets and own is None:
            raise UnsupportedRequest(
                f"precompile: {spec.slug} has no target",
                allowed="--targets, or targets in the spec file",
                value=f"neither names one ({source})",
                hint="add --targets sm_80,sm_90",
            )
        found.update(dict.fromkeys(_keys_of(spec, targets or [str(own)])))
    if not found:
        raise UnsupportedRequest(
            f"{source} names no kernel",
            allowed="a spec file with specs = [...] or [[scan]] tables",
            value=f"{source} names none",
            hint="name kernels in it, or let `scanops record` do so",
        )
    return list(found)


def find_or_build(key: KernelKey, store: Store, builder: str = AUTO) -> Built:
    """Find or build one kernel in ``store``, whatever the policy is, and return the outcome, errors included."""
    started = time.perf_counter()
    found, kernel, error = False, None, None
    try:
        kernel = obtain(key, policies.FIND.by(builder), store)
        found = kernel is not None
        kernel = kernel or obtain(key, policies.STRICT.by(builder), store)
    except ScanopsError as problem:
        error = problem
    took = time.perf_counter() - started
    return Built(key=key, found=found, seconds=took, kernel=kernel, error=error)
