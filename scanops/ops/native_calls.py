"""Which calls C++ serves from here on, and the gradients that it asks Python for after a call that it served."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from torch.compiler import is_compiling

from scanops.ops import schema
from scanops.ops.fused import FusedForward, recall_fused
from scanops.ops.gradients import differentiate_fused
from scanops.ops.linearised import Scan
from scanops.ops.node import backward_pass
from scanops.ops.saved import saved_mask
from scanops.requests.arguments import resolve_call
from scanops.requests.call import Call
from scanops.requests.packed_sequences import PlainCall
from scanops.requests.request import Inputs, Needs, RequestKind, Tensors
from scanops.requests.torch_state import runs_kernels
from scanops.runtime import call_cache, native
from scanops.runtime.recipes import Recipe


def register(asked: Call, given: Inputs, known: call_cache.CachedLaunch) -> None:
    """Let C++ serve calls like this one, if the kernel is the call's own and not a stand-in.

    ``asked``: the call as the user gave it.
    """
    call = known.kind.request.call
    if call.per_segment or call.link is not None or not _should_register(known):
        return
    parts = _list_gradients(known.kind, given)
    options = native.options_of(asked)
    native.register_call(options, given, known.launcher, final=call.final, adjoints=parts)


def register_functions(
    call: Call,
    given: Inputs,
    options: dict[str, Any],
    functions: list[tuple[Any, Any]],
    scan: Scan,
    *,
    has_mask: bool,
) -> None:
    """Let C++ serve the next scan of equal functions, if a launch has served this one.

    ``options``: as the user gave them. ``functions``: those among them, and an operator of the user's, each with what
    it reads, as ``trace_keys`` describes it. ``scan`` computes the scans of a gradient. ``has_mask``: whether the last
    operand is the user's mask.
    """
    if native.serve is None or is_compiling() or given.offsets is not None or not runs_kernels(given.flat):
        return
    recipe, launcher, launched, hidden = None, None, call, 0
    adjoints: tuple[native.CallGradient, ...] = ()
    if given.differentiates or call.summed:
        forward = recall_fused(call, given)[0]
        if forward.is_composed or not forward.kind.is_cached:
            return
        recipe, launched, hidden = forward.recipe, forward.writing_call, forward.hidden
        if call.summed:  # whose first result is the user's, unless a carry-in is packed before
            if recipe is None or given.initial is not None or not native.should_register(recipe):
                return
            hidden = recipe.results - len(forward.differentiable)
        if given.differentiates:
            part = _of_fused(forward, scan)
            adjoints = (native.CallGradient(forward.needs, part.number, forward.list_saved(), part),)
    if recipe is None:
        known = call_cache.recall(launched, given)[1]
        if known is None or not _should_register(known):
            return
        launcher = known.launcher
    native.register_call(
        options, given, launcher,
        recipe=recipe, final=call.final, hidden=hidden, adjoints=adjoints, traced=functions, has_mask=has_mask,
    )  # fmt: skip


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

    Called by a node in C++ that has no steps for its backward pass yet, or is differentiated again.
    """

    __slots__ = ("_compute", "number")

    def __init__(self, compute: Callable[[str | None, Tensors], tuple[Tensors, Recipe | None]]) -> None:
        self._compute = compute
        self.number = next(native.NUMBERS)

    def __call__(self, policy: str | None, given: Tensors) -> Tensors:
        """Return the gradients; ``given``: those of the results, then what was saved."""
        found, recipe = self._compute(policy, given)
        if recipe is not None:
            native.register_gradient(self.number, given, recipe)
        return found


def _of_plain(kind: RequestKind, needs: Needs) -> GradientFromPython:
    def compute(policy: str | None, given: Tensors) -> tuple[Tensors, Recipe | None]:
        found, recipe = backward_pass(kind, needs, given, policy)
        return found, recipe if given[0] is not None else None  # which is made of zeros there

    return GradientFromPython(compute)


def _of_fused(forward: FusedForward, scan: Scan) -> GradientFromPython:
    def compute(policy: str | None, given: Tensors) -> tuple[Tensors, Recipe | None]:
        if is_compiling():  # whose graph has one operator
            gradients, inputs, _ = forward.split_given(given)
            options = schema.list_fused_arguments(forward.kind.request.call)
            return schema.differentiate_fused_by_operator(options, inputs, gradients, forward.needs), None
        return differentiate_fused(forward, forward.needs, given, policy, scan)

    return GradientFromPython(compute)


def _list_gradients(kind: RequestKind, inputs: Inputs) -> tuple[native.CallGradient, ...]:
    """Return each gradient that a call which C++ serves may be asked for."""
    result = kind.request.dtype
    if not (result.is_floating_point or result.is_complex):
        return ()
    may = [each is not None and (each.is_floating_point() or each.is_complex()) for each in inputs.differentiable]
    found = []
    for needs in itertools.product(*((False, True) if wanted else (False,) for wanted in may)):
        if any(needs):
            part = _of_plain(kind, needs)
            *saved, indices = saved_mask(kind.inclusive or kind, needs)
            flags = (*saved, indices and bool(kind.indexed), True, True)  # starts and offsets are saved
            found.append(native.CallGradient(needs, part.number, native.list_saved(flags), part))
    return tuple(found)
