"""Calls without Python: what an equal call before this one has settled is looked up, allocated and launched in C++.

A table in C++ is keyed by all that ``scanops.runtime``'s own is: options, and dtype, sizes, strides, device and 16-byte
boundary of each tensor. Python fills it: ``learn`` is told of a call that was served before, so that every check was
made then and every error is Python's. What is not in the table goes to Python as if there were nothing else, and so
does what a table cannot know: modes, transforms, forward differentiation, ``out=``, values to go on from, offsets,
kernels that need a workspace, kernels that stand in for others.

The library is an entry of the store (``native/building.py``): it is loaded when calls repeat and it is there, built by
a worker under the policy ``build`` (``native/later.py``), and ``SCANOPS_NATIVE=0`` does without.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from scanops import emulation, policies

if TYPE_CHECKING:
    import torch

    from scanops.request import Inputs
    from scanops.runtime import Launcher

__all__ = ["forget", "get", "learn", "learnt", "loaded", "served", "unload"]

_LOG = logging.getLogger("scanops")


def _nothing(*_: object) -> None:
    """Python is to serve."""


# served(op, dim, tensors, reverse, exclusive, final, dtype, accumulate, out): a tuple of results, or None; the tensors
# are those of an Inputs, and what lines go on from.
served: Callable[..., tuple[torch.Tensor, ...] | None] = _nothing

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
        from scanops.native import building  # nothing that a call needs

        entry = building.found() or (building.built() if build else None)
        if entry is None:
            return False
        module = building.module_of(entry)
        from scanops.native.gradients import backward

        module.begin(emulation.variable(), policies.variable(), backward, _failed, _stream_getter())
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


def learn(options: tuple[object, ...], inputs: Inputs, launcher: Launcher) -> None:
    """Python has served such a call by ``launcher``; the next one need not come to it."""
    if not loaded():
        from scanops.native.later import repeated

        repeated(launcher.kernel.target)
        return
    if launcher.generation == _GENERATION[0]:
        return
    launcher.generation = _GENERATION[0]
    template = launcher.template
    if template is None:
        return
    from scanops.native.gradients import adjoint_of

    active = None if inputs.x.is_cuda else emulation.active()
    if active is None and not inputs.x.is_cuda:
        return
    adjoint = adjoint_of(options, inputs, template.outputs[0][2])
    multiprocessors = active.multiprocessors if active else 0
    _MODULES[0].learn(options, inputs, multiprocessors, *template, adjoint, launcher)


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
