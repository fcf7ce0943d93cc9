"""Calls without Python: what an equal call before this one has settled is looked up, allocated and launched in C++.

A table in C++ is keyed as that of ``scanops.runtime.calls``: options, and dtype, sizes, strides, device and 16-byte
boundary of each tensor. Python fills it: ``learn`` is told of a call that was served before, so that every check was
made then and every error is Python's. What is not in the table goes to Python as if there were nothing else, and so
does what a table cannot know: modes, transforms, forward differentiation, ``out=``, numbers to go on from, offsets,
kernels that need a workspace, kernels that stand in for others.

Backward passes are in the same table, of whatever operator: a node keeps the tensors that Python's gradient would keep,
and if that has come to kernels alone, which read these tensors as they are, C++ launches those from then on
(``scanops.runtime.recipes``). All else a node asks Python for.

The library is an entry of the store (``native/building.py``): it is loaded when calls repeat and it is there, built by
a worker under the policy ``build`` (``native/later.py``), and ``SCANOPS_NATIVE=0`` does without.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from scanops import emulation
from scanops.forks import NO_FORK
from scanops.runtime import policies

if TYPE_CHECKING:
    import torch

    from scanops.requests.kinds import Kind
    from scanops.requests.request import Inputs
    from scanops.runtime.launcher import Launcher, Template
    from scanops.runtime.recipes import Recipe, Tensors

__all__ = ["Launch", "Pass", "forget", "get", "learn", "learn_gradient", "learnt", "loaded", "served", "unload"]

_LOG = logging.getLogger("scanops")


def _nothing(*_: object) -> None:
    """Python is to serve."""


# served(op, dim, tensors, reverse, exclusive, final, dtype, accumulate, out): a tuple of results, or None; the tensors
# are those of an Inputs, as far as initial.
served: Callable[..., tuple[torch.Tensor, ...] | None] = _nothing

# Of Inputs x, mask, gate, starts and initial, and where C++ has them: x, mask, gate, initial, result, indices, starts.
_PLACES = {0: 0, 1: 1, 2: 2, 3: 6, 5: 3}
_MODULES: list[ModuleType] = []  # the one, once it was loaded: C++ is not unloaded
_GENERATION = [0]  # of the table; what a launcher was learnt in


def loaded() -> bool:
    """Whether calls are looked up in C++."""
    return served is not _nothing


def get(*, build: bool) -> bool:
    """Have the library, from the store, or built where ``build`` says so; whether it is there.

    Raises BuildFailure, BadStoreEntry and BadSignature as ``scanops.compile`` does, MissingKernel where only what is
    signed may be loaded and no pack has it.
    """
    global served
    if not _MODULES:
        with NO_FORK:
            from scanops.runtime.native import building  # nothing that a call needs

        entry = building.found() or (building.built() if build else None)
        if entry is None:
            return False
        module = building.module_of(entry)
        module.begin(emulation.variable(), policies.variable(), _failed, _stream_getter())
        _MODULES.append(module)
        _LOG.info("calls are served natively: %s", entry.directory)
    served = _MODULES[0].serve
    return True


def unload() -> None:
    """Let Python serve all calls again."""
    global served
    served = _nothing


def forget() -> None:
    """Drop what was learnt: calls are to pass through Python again."""
    _GENERATION[0] += 1
    for module in _MODULES:
        module.clear()


def learnt() -> int:
    """How many calls are known."""
    return sum(module.size() for module in _MODULES)


def learn(
    options: tuple[object, ...],
    inputs: Inputs,
    launcher: Launcher,
    kind: Kind,
    adjoints: Callable[[Kind, Inputs], tuple[object, ...]],
) -> None:
    """Python has served such a call by ``launcher``; the next one need not come to it.

    ``adjoints`` gives the gradients that may be asked of it: (needs as bits, number, what they keep as bits, who
    computes them in Python) each.
    """
    if kind.generation == _GENERATION[0]:
        return
    kind.generation = _GENERATION[0]
    template = launcher.template
    on_gpu = inputs.x.is_cuda
    if template is None or inputs.offsets is not None or not (on_gpu or emulation.active()):
        return
    given = tuple((which, place) for which, place in _PLACES.items() if inputs[which] is not None)
    launches = (Launch(template, given, launcher),)
    _MODULES[0].learn(options, inputs, _multiprocessors(on_gpu), launches, adjoints(kind, inputs))


class Launch(NamedTuple):
    """A kernel's turn."""

    template: Template
    reads: tuple[tuple[int, int], ...]  # (which of Template.reads, place among tensors and the results before) each
    launcher: Launcher


class Pass(NamedTuple):
    """A backward pass."""

    launches: tuple[Launch, ...]
    gives: tuple[int, ...]  # which of their results is the gradient of x, mask, gate and initial; -1: there is none


def learn_gradient(number: int, tensors: Tensors, recipe: Recipe, pass_of: Callable[[Recipe], Pass | None]) -> None:
    """Python has served such a backward pass by ``recipe``; the next one need not come to it.

    ``tensors``: the gradients of the result and of the final, then as they were kept x, mask, gate, initial, result,
    indices and starts.
    """
    if not loaded() or recipe.generation == _GENERATION[0]:
        return
    recipe.generation = _GENERATION[0]
    known, gradient = pass_of(recipe) if recipe.own else None, tensors[0]
    if known is not None and gradient is not None:
        _MODULES[0].learn_gradient(number, tensors, _multiprocessors(gradient.is_cuda), *known)


def _multiprocessors(on_gpu: bool) -> int:
    active = None if on_gpu else emulation.active()
    return active.multiprocessors if active else 0


def _failed(launcher: Launcher, code: int) -> NoReturn:
    raise launcher.failure(code)


def _stream_getter() -> int:
    """The address of torch's C function that gives the current stream of a GPU; 0 where this torch has none."""
    import torch

    if torch.version.cuda is None:
        return 0
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))  # it is loaded already
        function: Any = library.aoti_torch_get_current_cuda_stream
    except (OSError, AttributeError) as problem:
        _LOG.info("calls on GPUs are served from Python: %s", problem)
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0
