"""Which calls C++ serves from here on, and the gradients that it asks Python for after a call that it served."""

from __future__ import annotations

import itertools
from typing import Any

from torch.compiler import is_compiling

from scanops.ops.node import backward_pass
from scanops.ops.saved import saved_mask
from scanops.requests.arguments import resolve_call
from scanops.requests.call import Call
from scanops.requests.packed_sequences import PlainCall
from scanops.requests.request import Inputs, Needs, RequestKind, Tensors
from scanops.requests.torch_state import runs_kernels
from scanops.runtime import call_cache, native


def register(asked: Call, given: Inputs, known: call_cache.CachedLaunch) -> None:
    """Let C++ serve calls like this one, if the kernel is the call's own and not a stand-in.

    ``asked``: the call as the user gave it.
    """
    call = known.kind.request.call
    if call.per_segment or call.link is not None or not _should_register(known):
        return
    parts = () if call.complete else _list_gradients(known.kind, given)
    options = native.options_of(asked)
    native.register_call(options, given, known.launcher, final=call.final, adjoints=parts)


def register_functions(
    call: Call, given: Inputs, options: dict[str, Any], functions: list[tuple[Any, Any]], *, has_mask: bool
) -> None:
    """Let C++ serve the next scan of equal functions, if a launch has served this one.

    ``options``: as the user gave them. ``functions``: those among them, and an operator of the user's, each with what
    it reads, as ``trace_keys`` describes it. ``has_mask``: whether the last operand is the user's mask.
    """
    if native.serve is None or is_compiling() or given.offsets is not None or not runs_kernels(given.flat):
        return
    known = call_cache.recall(call, given)[1]
    if known is not None and _should_register(known):
        native.register_call(options, given, known.launcher, traced=functions, has_mask=has_mask)


def _should_register(known: call_cache.CachedLaunch) -> bool:
    """Whether C++ is to be told of a launch: it is no stand-in, and C++ was not told of it often."""
    return known.launcher.own and native.should_register(known.launcher)


def register_chunks(call: Call, given: Inputs, view: PlainCall, result: Any) -> None:
    """Let C++ serve the next scan of whole chunks: by the launch of the ``view`` with a dimension more that it is.

    ``result`` has the shape that the call returns. Masks that were converted for the view are left to Python.
    """
    if native.serve is None or is_compiling() or type(call.dim) is not int:
        return
    viewed, eager = resolve_call(view.call, view.inputs, view.outs)
    known = call_cache.recall(viewed, view.inputs)[1] if eager and view.outs[0] is None else None
    if known is None or len(known.launcher.places) > 1:
        return
    pairs = zip((given.x, given.mask), (view.inputs.x, view.inputs.mask), strict=True)
    if any(
        each is not None and own is not None and (each.dtype, each.data_ptr()) != (own.dtype, own.data_ptr())
        for each, own in pairs
    ):
        return
    if _should_register(known):
        native.register_call(native.options_of(call), given, known.launcher, shape=result.shape)


class GradientFromPython:
    """The gradients of calls of one kind that C++ has served, where those of some inputs are wanted.

    Called by a node in C++ that has no kernels for its backward pass yet, or is differentiated again.
    """

    __slots__ = ("_kind", "_needs", "number")

    def __init__(self, kind: RequestKind, needs: Needs) -> None:
        self._kind, self._needs = kind, needs
        self.number = next(native.NUMBERS)

    def __call__(self, policy: str | None, given: Tensors) -> Tensors:
        """Return the gradients as ``NAMES``; ``given`` is as in ``backward_pass``."""
        found, recipe = backward_pass(self._kind, self._needs, given, policy)
        if recipe is not None and given[0] is not None:
            native.register_gradient(self.number, given, recipe)
        return found


def _list_gradients(kind: RequestKind, inputs: Inputs) -> tuple[native.CallGradient, ...]:
    """Return each gradient that a call which C++ serves may be asked for."""
    result = kind.request.dtype
    if not (result.is_floating_point or result.is_complex):
        return ()
    may = [each is not None and (each.is_floating_point() or each.is_complex()) for each in inputs.differentiable]
    found = []
    for needs in itertools.product(*((False, True) if wanted else (False,) for wanted in may)):
        if any(needs):
            part = GradientFromPython(kind, needs)
            saves = _bits((*saved_mask(kind, needs), True, True))  # starts and offsets are saved
            found.append(native.CallGradient(_bits(needs), part.number, saves, part))
    return tuple(found)


def _bits(flags: tuple[bool, ...]) -> int:
    return sum(flag << place for place, flag in enumerate(flags))
