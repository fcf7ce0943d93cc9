"""The C++ fast path: repeated calls, and their backward passes, are looked up, allocated and launched without Python.

A table in C++ has the keys of ``scanops.runtime.call_cache``: the call, and dtype, sizes, strides, device and 16-byte
alignment of each tensor. Python fills it: ``register_call`` is given a call that was served before, so that every check
has passed and every error is Python's. A miss goes to Python, and so does what a key cannot hold: modes, transforms,
forward differentiation, ``out=``, a number as carry-in, carries of segments, stand-ins.
Values of offsets are no part of a key: Python checks them where C++ has not seen them.

Functions of a fused scan are known by what they read (``scanops.fusion.trace_keys``), which C++ reads at each call.

Python and C++ name what they exchange: tensors and options of a call as ``Serve`` does, the rest by the fields of named
tuples. The order of tensors that are saved is that of ``SavedTensors``, which is compared with C++'s when it is loaded.

The C++ node of autograd is the fast path of ``scanops.ops.node.ScanFunction``: a call with its backward pass takes
71 us of CPU time, torch's 91 us. It saves the same tensors, repeats the steps of a backward pass that Python has
recorded (``scanops.runtime.recipes``), and calls Python's ``GradientFromPython`` for all others. The key of a fused
scan has which tensors want a gradient: its kernel writes states that the gradient reads.

Calls whose kernels have links to other ranks are served as well. Their keys have the process group and what the public
function was given. Before a launch C++ compares two words of the link, and calls Python to note the
call for other ranks, where a rank was lost, and where the stream is another than that of the launch before.

The library is an entry of the store (``building.py``). The first launch on a GPU lets a background worker load it, or
build it if the policy allows that (``start``). ``SCANOPS_NATIVE=0`` switches it off.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

from scanops import emulator, environment
from scanops.emulator import CPU
from scanops.errors import ScanopsError
from scanops.forks import import_late, reset_in_child
from scanops.processes import Worker
from scanops.requests.request import FURTHER_AT, Inputs, SavedTensors
from scanops.runtime.policies import POLICIES

if TYPE_CHECKING:
    import torch

    from scanops.requests.call import Call
    from scanops.requests.request import Inputs, Tensors
    from scanops.runtime.launcher import Launcher, Template
    from scanops.runtime.recipes import Recipe

_LOG = logging.getLogger("scanops")


class Serve(Protocol):
    """The entry of C++ for calls: tensors and options by the names that it has them by, in its order the fastest.

    ``options`` has names of the public functions; ``beside`` it are ``map`` and ``then``, or of a call of ranks the
    name of the public function and the keywords that no other call has. Returns a result, a tuple of several, or None
    where Python is to serve the call; of a call of ranks always a tuple.
    """

    @overload
    def __call__(self, x: Any, gate: Any, op: Any, dim: Any, options: dict[str, Any], /, **beside: Any) -> Any: ...
    @overload
    def __call__(
        self,
        *,
        x: Any,
        mask: Any = None,
        gate: Any = None,
        initial: Any = None,
        starts: Any = None,
        offsets: Any = None,
        op: Any,
        dim: Any,
        reverse: bool = False,
        exclusive: bool = False,
        final: bool = False,
        dtype: Any = None,
        accumulate: Any = None,
        complete: bool = False,
        chunk: Any = None,
    ) -> Any: ...


serve: Serve | None = None  # until the library is loaded

_MODULES: list[ModuleType] = []  # the one, once it was loaded: C++ is not unloaded
_GENERATION = [0]  # generation of the table
NUMBERS = itertools.count()  # of gradients that C++ may be asked for
# Of a launch: with and without inference mode and autocast, which Python's cache need not tell apart.
_MOST_REGISTRATIONS = 4


def get(*, build: bool) -> bool:
    """Load the library from the store, or build it if ``build``; return whether it is loaded.

    Raises BuildFailure, BadStoreEntry and BadSignature as ``scanops.compile`` does, MissingKernel where only what is
    signed may be loaded and no pack has it.
    """
    global serve
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
        assert SavedTensors._fields == module.OPERANDS  # one order of tensors, here and in C++
        _MODULES.append(module)
        _LOG.info("calls are served natively: %s", entry.directory)
    serve = _MODULES[0].serve
    return True


def forget() -> None:
    """Empty the table: calls pass through Python again."""
    _GENERATION[0] += 1
    for module in _MODULES:
        module.clear()


def generation() -> int:
    """Return the generation of the call cache, which ends when it is emptied."""
    return _GENERATION[0]


def count_registered() -> int:
    """Return the number of calls that the table holds."""
    return sum(module.size() for module in _MODULES)


class NativeLaunch(NamedTuple):
    """One kernel launch, as C++ runs it."""

    template: Template
    # (which of Template.reads, place among tensors and the results before, bytes to skip) each
    reads: tuple[tuple[int, int, int], ...]
    launcher: Launcher


class NativeOperation(NamedTuple):
    """A step that PyTorch's operators compute, as C++ runs it."""

    compute: Callable[[Any], Tensors]
    reads: tuple[int, ...]  # places among tensors and the results before; -1 is None


NativeStep = NativeLaunch | NativeOperation

# The places, among Inputs.flat and then results, of the tensors that a plain scan may save, as SavedTensors names them.
_SAVED = (0, 1, 2, 5, FURTHER_AT, FURTHER_AT + 1, 3, 4)


def list_saved(flags: Sequence[bool]) -> tuple[int, ...]:
    """Return ``CallGradient.saves`` of a plain scan, whether each of ``SavedTensors`` is saved; others are not."""
    return tuple(place if flag else -1 for place, flag in itertools.zip_longest(_SAVED, flags, fillvalue=False))


class CallGradient(NamedTuple):
    """A gradient that a call may be asked for which C++ serves."""

    needs: tuple[bool, ...]  # the inputs that it is wanted of, as Inputs.differentiable
    number: int  # by which register_gradient names it
    saves: tuple[int, ...]  # what the node saves: places among Inputs.flat, then results; -1 for nothing
    differentiate: Callable[..., Tensors]  # what computes it from Python: (policy, tensors), of a linked call with more
    begin: Callable[..., object] | None = None  # of a linked call: what precedes its pass


class LinkedCall(NamedTuple):
    """What Python does of a call whose kernels have links to other ranks, around its launch."""

    begin: Callable[[], object]  # before it: returns what the backward pass is to know
    # after it, of the results: returns them and the carry-in that came from another rank; None where nothing follows
    finish: Callable[..., tuple[tuple[torch.Tensor, ...], torch.Tensor | None]] | None


def options_of(call: Call) -> dict[str, Any]:
    """Return the options by which C++ knows a call of one tensor."""
    return {name: getattr(call, name) for name in _MODULES[0].OPTIONS}


def register_call(
    options: Mapping[str, object],
    inputs: Inputs,
    launcher: Launcher | None,
    *,
    recipe: Recipe | None = None,
    final: bool = False,
    hidden: int = 0,
    adjoints: tuple[CallGradient, ...] = (),
    shape: torch.Size | None = None,
    link: LinkedCall | None = None,
    traced: Sequence[tuple[object, tuple[object, ...]]] = (),
    has_mask: bool = False,
) -> None:
    """Let C++ serve calls like this one, which ``launcher`` has served, or of several steps ``recipe``.

    ``options`` is what ``serve`` is given beside the tensors. ``final``: whether the carry-out is the last result.
    ``hidden``: results before it that the user does not get. ``adjoints``: each gradient that the call may be asked
    for. ``shape``: that of the result, where it is another view of what the launcher writes. ``traced``: functions
    among the options, each with what it reads. ``has_mask``: whether the last of further operands is given as the mask.
    """
    module, on_gpu = _MODULES[0], inputs.x.is_cuda
    further = inputs.flat[FURTHER_AT:]
    if len(further) > module.MOST_FURTHER + has_mask or not (on_gpu or emulator.ACTIVE.get()):
        return
    for each, key in traced:
        module.trace(each, key)
    names = Inputs._fields[:FURTHER_AT]
    places = [*map(module.OPERANDS.index, names), *range(len(module.OPERANDS), len(module.OPERANDS) + len(further))]
    fields = {**dict(zip(names, inputs.flat, strict=False)), **options}
    if has_mask:
        places[-1] = module.OPERANDS.index("mask")
        further, fields["mask"] = further[:-1], further[-1]
    fields["x"] = (inputs.x, *further) if further else inputs.x
    # Of results, which are behind all operands here and there.
    first = len(module.OPERANDS) + len(further)
    steps: tuple[NativeStep, ...] | None = None
    if recipe is not None:
        places += range(first, first + recipe.results)
        steps = _list_steps(recipe, places)
    elif launcher is not None:
        places += range(first, first + len(launcher.places))
        template = launcher.template
        if shape is not None:
            ((at, _, dtype, skip),) = template.outputs
            template = template._replace(outputs=((at, shape, dtype, skip),))
        reads = tuple((which, places[place], skip) for which, (_, place, skip) in enumerate(launcher.reads))
        steps = (NativeLaunch(template, reads, launcher),)
    if steps is None:
        return
    known = tuple(
        each._replace(saves=tuple(-1 if place < 0 else places[place] for place in each.saves)) for each in adjoints
    )
    module.register_call(fields, _multiprocessors(on_gpu), steps, final, hidden, known, link)


class Patch:
    """The kernel in C++ of one of torch's operators; torch has its own again when this is deleted.

    It has the kernel of the operator as it was when it was made, and by ``install`` that which it then lies over.
    """

    def __init__(self, name: str, overload: str, key: str) -> None:
        self._module = _MODULES[0]
        self._patch = self._module.find_patch(name, overload, key)

    def install(
        self,
        call: Call,
        is_functional: bool,
        is_recorded: bool,
        small: object,
        sharded: list[Any],
        blocks: list[None],
    ) -> None:
        """Register the kernel.

        ``call`` is along dimension 0. ``is_functional``: the operator returns new tensors; ``is_recorded``: by
        autograd, at this dispatch key. ``small`` scans are left to torch, by limits as ``scanops.patching.Small`` names
        them, and all of them to Python while ``sharded`` holds anything. While ``blocks`` is empty, every scan is left
        to torch.
        """
        self._module.install(self._patch, options_of(call), is_functional, is_recorded, small, sharded, blocks)


def find_patch(name: str, overload: str, key: str) -> Patch | None:
    """Return the patch of an operator of torch at a dispatch key, None where the library is not loaded."""
    return None if serve is None else Patch(name, overload, key)


def register_gradient(number: int, tensors: Tensors, recipe: Recipe) -> None:
    """Let C++ run backward passes like this one, which followed ``recipe``, if that is kernels of its own only.

    ``tensors``: the gradients of result and carry-out, then ``SavedTensors``.
    """
    # A tape holds no tensor at 0, then these tensors, then the results of each step.
    first = 1 + len(tensors)
    if any(0 < place < first for place in recipe.gives) or not should_register(recipe):
        return
    steps = _list_steps(recipe, range(len(tensors) + recipe.results))
    if steps is None:
        return
    gives = tuple(place - first if place else -1 for place in recipe.gives)  # which result each gradient is; -1: none
    on_gpu = any(each is not None and each.is_cuda for each in tensors)
    _MODULES[0].register_gradient(number, tensors, _multiprocessors(on_gpu), steps, gives)


def _list_steps(recipe: Recipe, places: Sequence[int]) -> tuple[NativeStep, ...] | None:
    """Return the steps as C++ runs them, or None where a kernel is a stand-in.

    ``places``: where C++ has each of the tensors that the recipe is given, and then of its results.
    """
    steps: list[NativeStep] = []
    for compute, reads, launcher in recipe.steps:
        if launcher is None:
            steps.append(NativeOperation(compute, tuple(places[place - 1] if place else -1 for place in reads)))
        elif launcher.own:
            read = tuple((n, places[reads[place] - 1], skip) for n, (_, place, skip) in enumerate(launcher.reads))
            steps.append(NativeLaunch(launcher.template, read, launcher))
        else:
            return None
    return tuple(steps)


def _multiprocessors(on_gpu: bool) -> int:
    active = None if on_gpu else emulator.ACTIVE.get()
    return active.multiprocessors if active else 0


def _check_offsets(op: str, dim: int, offsets: torch.Tensor, x: torch.Tensor) -> None:
    """Raise unless these offsets are those of segments of ``x``, which is scanned by ``op`` along ``dim``."""
    who = import_late("scanops.requests.call").Call(op, dim).name
    import_late("scanops.requests.segments").check_offsets(who, offsets, x, dim)


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
    if serve is None and environment.native():
        _load(False, logging.INFO)


class Registrable(Protocol):
    """What C++ is told of a few times in each generation of the table: a launch, a recipe, or a linked call."""

    registrations: tuple[int, int]  # a generation, and how often C++ was told in it


def should_register(each: Registrable) -> bool:
    """Count one more time that C++ may be told, and return whether it is to be: of a call like one before it."""
    if serve is None:
        return False
    generation, count = each.registrations
    each.registrations = _GENERATION[0], count + 1 if generation == _GENERATION[0] else 1
    return each.registrations[1] <= _MOST_REGISTRATIONS


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
