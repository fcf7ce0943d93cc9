"""The C++ fast path: repeated calls, and their backward passes, are looked up, allocated and launched without Python.

A table in C++ has the keys of ``scanops.runtime.call_cache``: the call, and dtype, sizes, strides, device and 16-byte
alignment of each tensor. Python fills it: ``learn`` is given a call that was served before, so that every check has
passed and every error is Python's. A miss goes to Python, and so does what a key cannot hold: modes, transforms,
forward differentiation, ``out=``, a number as carry-in, carries of segments, stand-ins, and gradients of complete scans
and of segments by offsets. The values of offsets are no part of a key: Python checks them where C++ has not seen them.

The C++ node of autograd is the fast path of ``scanops.ops.node.ScanFunction``: a call with its backward pass takes
71 us of CPU time, torch's 91 us. It saves the same tensors, launches the backward passes that Python found to be
kernels only (``scanops.runtime.recipes``), and calls Python's ``Backward`` for all others.

Calls whose kernels have links to other ranks are served as well (``served_linked``). Their keys have the process group
and what the public function was given. Before a launch C++ compares two words of the link, and calls Python to note the
call for other ranks, where a rank was lost, and where the stream is another than that of the launch before.

The library is an entry of the store (``building.py``). The first launch on a GPU lets a background worker load it, or
build it if the policy allows that (``start``). ``SCANOPS_NATIVE=0`` switches it off.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from scanops import emulator, environment
from scanops.emulator import CPU
from scanops.errors import ScanopsError
from scanops.forks import import_late, reset_in_child
from scanops.processes import Worker
from scanops.runtime.policies import POLICIES

if TYPE_CHECKING:
    import torch

    from scanops.requests.request import Tensors
    from scanops.runtime.launcher import Launcher, Template
    from scanops.runtime.recipes import Recipe

_LOG = logging.getLogger("scanops")


# served(tensors, call.options()): a result, a tuple of several, or None; the tensors are an Inputs up to initial.
served: Callable[..., torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None] | None = None  # until it is loaded
# served_linked(tensors, options, group): results, or None; of calls of scanops.distributed in one pass.
served_linked: Callable[..., tuple[torch.Tensor, ...] | None] | None = None  # likewise

# Of Inputs x, mask, gate, starts, offsets and initial, and where C++ has them: x, mask, gate, initial, result, indices,
# starts, offsets.
_PLACES = {0: 0, 1: 1, 2: 2, 3: 6, 4: 7, 5: 3}
_MODULES: list[ModuleType] = []  # the one, once it was loaded: C++ is not unloaded
_GENERATION = [0]  # generation of the table
NUMBERS = itertools.count()  # of gradients that C++ may be asked for
_MOST_LESSONS = 4  # of a launch: with and without inference mode and autocast, which Python's cache need not tell apart


def get(*, build: bool) -> bool:
    """Load the library from the store, or build it if ``build``; return whether it is loaded.

    Raises BuildFailure, BadStoreEntry and BadSignature as ``scanops.compile`` does, MissingKernel where only what is
    signed may be loaded and no pack has it.
    """
    global served, served_linked
    if not _MODULES:
        building = import_late("scanops.runtime.native.building")  # no call needs it
        entry = building.find_library()
        if entry is None and build:
            _LOG.info("the C++ call path is being built, which takes about 30 s: until then calls go through Python")
            entry = building.build()
        if entry is None:
            return False
        module = building.module_of(entry)
        workspaces = import_late("scanops.runtime.workspaces")  # needs torch, as building does not
        stream_getter = building.stream_getter()
        module.begin(
            emulator.ACTIVE,
            environment.SCOPED,
            _raise_failure,
            _check_offsets,
            workspaces.find_workspace_at,
            _enter_link,
            _abandon_link,
            stream_getter,
        )
        _MODULES.append(module)
        _LOG.info("calls are served natively: %s", entry.directory)
    served, served_linked = _MODULES[0].serve, _MODULES[0].serve_linked
    return True


def forget() -> None:
    """Drop everything learnt: calls pass through Python again."""
    _GENERATION[0] += 1
    for module in _MODULES:
        module.clear()


def generation() -> int:
    """Return the generation of the call cache, which ends when it is emptied."""
    return _GENERATION[0]


def learnt() -> int:
    """Return the number of calls that the table holds."""
    return sum(module.size() for module in _MODULES)


def learn(
    key: tuple[object, ...],
    tensors: Tensors,
    launcher: Launcher,
    final: bool = False,
    adjoints: tuple[object, ...] = (),
    shape: torch.Size | None = None,
) -> None:
    """Let C++ serve calls like this one, which ``launcher`` has served.

    ``tensors`` are numbered as ``Inputs.flat``, those of a fused scan as well.
    ``adjoints``: (needs as bits, number, saved tensors as bits, Python's part) of each gradient that the call may be
    asked for. ``shape``: that of the result, where it is another view of what the launcher writes.
    """
    template, on_gpu = launcher.template, tensors[0] is not None and tensors[0].is_cuda
    is_fused = len(tensors) > len(_PLACES) or launcher.kernel.spec.fusion is not None
    given = [_SLOTS.get(place, place) if is_fused else place for _, place, _ in launcher.reads]
    if not _PLACES.keys() >= set(given) or not (on_gpu or emulator.ACTIVE.get()):
        return
    if is_fused:
        tensors = slots((tensors[0], *tensors[len(_PLACES) :]))  # type: ignore[arg-type]
        if len(tensors) > len(_PLACES):
            return
    if shape is not None:
        (output,) = template.outputs
        template = template._replace(outputs=((output[0], shape, output[2]),))
    skips = [skip for _, _, skip in launcher.reads]
    reads = tuple((which, _PLACES[slot], skip) for which, (slot, skip) in enumerate(zip(given, skips, strict=True)))
    _MODULES[0].learn(
        key, tensors, final, _multiprocessors(on_gpu), (NativeLaunch(template, reads, launcher),), adjoints
    )


class LinkedCall(NamedTuple):
    """What Python does of a call whose kernels have links to other ranks, around its launch."""

    begin: Callable[[], object]  # before it: returns what the backward pass is to know
    # after it, of the results: returns them and the carry-in that came from another rank; None where nothing follows
    finish: Callable[..., tuple[tuple[torch.Tensor, ...], torch.Tensor | None]] | None
    # (number, saved tensors as bits, Python's part, what precedes it), where a gradient is wanted
    adjoint: tuple[int, int, object, Callable[..., object]] | None


def learn_linked(
    options: tuple[object, ...], group: object, tensors: Tensors, launcher: Launcher, final: bool, call: LinkedCall
) -> None:
    """Let C++ serve linked calls like this one, which ``launcher`` has served.

    ``options`` and ``group`` are what they are known by; ``tensors`` are those of ``learn``, and ``final`` says whether
    the carry-out is the last result.
    """
    on_gpu = tensors[0] is not None and tensors[0].is_cuda
    reads = tuple((which, _PLACES[place], skip) for which, (_, place, skip) in enumerate(launcher.reads))
    launches = (NativeLaunch(launcher.template, reads, launcher),)
    _MODULES[0].learn_linked(options, group, tensors, final, _multiprocessors(on_gpu), launches, *call)


# Where C++ is given further operands of a fused scan, by their places in ``Inputs.flat``; it is given no offsets.
_SLOTS = {6: 1, 7: 2, 8: 3, 9: 5}


def slots(tensors: tuple[torch.Tensor, ...]) -> Tensors:
    """Return the tensors of a fused scan as C++ reads those of Inputs; of more than it has room for it reads none."""
    return tensors if len(tensors) <= 4 else (*tensors[:4], None, *tensors[4:])


class NativeLaunch(NamedTuple):
    """One kernel launch of a backward pass, as C++ runs it."""

    template: Template
    # (which of Template.reads, place among tensors and the results before, bytes to skip) each
    reads: tuple[tuple[int, int, int], ...]
    launcher: Launcher


class Patch:
    """The kernel in C++ of one of torch's operators; torch has its own again when this is deleted.

    It has the kernel of the operator as it was when it was made, and by ``install`` that which it then lies over.
    """

    def __init__(self, name: str, overload: str, key: str) -> None:
        self._module = _MODULES[0]
        self._patch = self._module.find_patch(name, overload, key)

    def install(
        self,
        options: tuple[object, ...],
        is_functional: bool,
        is_recorded: bool,
        small: tuple[int, ...],
        sharded: list[Any],
        blocks: list[None],
    ) -> None:
        """Register the kernel.

        ``options``: those of the call along dimension 0. ``is_functional``: the operator returns new tensors;
        ``is_recorded``: by autograd, at this dispatch key. ``small`` scans are left to torch, and all of them to Python
        while ``sharded`` holds anything. While ``blocks`` is empty, every scan is left to torch.
        """
        self._module.install(self._patch, options, is_functional, is_recorded, tuple(small), sharded, blocks)


def find_patch(name: str, overload: str, key: str) -> Patch | None:
    """Return the patch of an operator of torch at a dispatch key, None where the library is not loaded."""
    return None if served is None else Patch(name, overload, key)


# A tape holds no tensor at 0, then what C++ knows: the gradients of result and carry-out, x, mask, gate, initial,
# result, indices and starts. Behind these are offsets, of which it is not told.
_TOLD = range(1, 10)
_BEGIN = 11


def learn_gradient(number: int, tensors: Tensors, recipe: Recipe) -> None:
    """Let C++ run backward passes like this one, which followed ``recipe``, if that is kernels of its own only.

    ``tensors``: the gradients of result and carry-out, then the saved x, mask, gate, initial, result, indices, starts.
    """
    if served is None or not _take_lesson(recipe):
        return
    places = [*_TOLD]  # on the tape, of what C++ has in this order
    launches, end = [], _BEGIN
    for _, reads, launcher in recipe.steps:
        if launcher is None or not launcher.own:
            return
        read = [reads[place] for _, place, _ in launcher.reads]
        if not set(places).issuperset(read):
            return
        launches.append(
            NativeLaunch(
                launcher.template, tuple((which, places.index(at), 0) for which, at in enumerate(read)), launcher
            )
        )
        places += range(end, end + len(launcher.places))
        end += len(launcher.places)
    gradient = tensors[0]
    if gradient is None or any(place and place < _BEGIN for place in recipe.gives):
        return
    gives = tuple(place - _BEGIN if place else -1 for place in recipe.gives)  # which result each gradient is; -1: none
    _MODULES[0].learn_gradient(number, tensors, _multiprocessors(gradient.is_cuda), tuple(launches), gives)


def _multiprocessors(on_gpu: bool) -> int:
    active = None if on_gpu else emulator.ACTIVE.get()
    return active.multiprocessors if active else 0


def _check_offsets(options: tuple[Any, ...], offsets: torch.Tensor, x: torch.Tensor) -> None:
    """Raise unless these offsets are those of segments of ``x``, which is scanned as ``options`` say."""
    call, dim = import_late("scanops.requests.call").Call, options[1]  # which need torch, as building does not
    import_late("scanops.requests.segments").check_offsets(call(options[0], dim).name, offsets, x, dim)


def _raise_failure(launcher: Launcher, code: int, again: bool, index: int, stream: int) -> None:
    """Raise the error of a launch, unless its cause is gone: then it is to be made ``again``, once."""
    if again or not launcher.recovers(code):
        workspaces = import_late("scanops.runtime.workspaces")
        workspaces.drop_workspace(workspaces.device_at(index), stream)
        raise launcher.failure(code)


def _enter_link(launcher: Launcher) -> None:
    """Let the next launch of a link follow its last one. Raises PeerLost."""
    assert launcher.link is not None
    launcher.link.enter()


def _abandon_link(launcher: Launcher) -> None:
    """Let kernels of other ranks end their waits for a launch that has failed."""
    assert launcher.link is not None
    launcher.link.abandon()


_STARTED: list[str] = []  # the target whose launch asked for the library first
_BUILDER = Worker()  # of its own, as kernels are built meanwhile
reset_in_child(_STARTED.clear)
reset_in_child(_BUILDER.__init__)  # type: ignore[misc]  # its thread is the parent's


def start(target: str) -> None:
    """Load the library in the background at the first launch on a GPU, built first if the policy allows it."""
    if target != CPU and not _STARTED and environment.native():
        _STARTED.append(target)
        may_build = POLICIES[environment.policy()].may_build and environment.require_signed() is None
        _BUILDER.run_later("native", "the C++ call path", lambda: _load(may_build, logging.INFO))


def load() -> None:
    """Load the library now if it was built before; a failure is logged."""
    if served is None and environment.native():
        _load(False, logging.INFO)


class Learner(Protocol):
    """What C++ is taught a few times, in each generation of the table: a launch, a recipe, or a linked call."""

    lessons: tuple[int, int]  # a generation, and how often C++ was taught this in it


def should_learn(learner: Learner) -> bool:
    """Return whether C++ is to learn a call like one before it."""
    return served is not None and _take_lesson(learner)


def _take_lesson(learner: Learner) -> bool:
    """Count one more lesson of a launch in this generation of the table, and return whether it is to be given."""
    generation, count = learner.lessons
    learner.lessons = _GENERATION[0], count + 1 if generation == _GENERATION[0] else 1
    return learner.lessons[1] <= _MOST_LESSONS


def prepare(target: str) -> None:
    """Load the library now, or build it if the policy allows it; calls are correct without it."""
    if target != CPU and environment.native():
        _load(POLICIES[environment.policy()].may_build, logging.WARNING)


def _load(build: bool, level: int) -> None:
    """Load the library, or build it if ``build``. A failure is logged."""
    try:
        get(build=build)
    except ScanopsError as problem:
        _LOG.log(level, "calls are served from Python: %s", problem)
