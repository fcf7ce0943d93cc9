"""How gradients are computed: the routes, in the order in which they are tried.

A route is taken if its condition holds, and if its function returns gradients: None says that there is no kernel for
them. ``ROUTES`` are those of scans of one tensor, ``FUSED_ROUTES`` those of scans with ``map``, ``then`` or ``sum``.

Two things come before the routes. The gradients of a complete scan are those of its inclusive results, with that of the
carry-in added. A pass like one that kernels have computed repeats its recipe, which the call cache holds.

A rank of a sharded dimension computes its part by these routes. What ranks exchange for it, and derivatives of higher
order, are in ``scanops.distributed`` (``onepass.py``, ``twopass.py``, ``composed.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch.compiler import is_compiling

from scanops import torch_private as private
from scanops.codegen.fusion.adjoint import SavedStates
from scanops.errors import UnsupportedRequest
from scanops.fallback.scans import compute
from scanops.fallback.summed import differentiate_by_torch
from scanops.ops import schema
from scanops.ops.fused import FusedForward, differentiate_by_adjoint
from scanops.ops.gradient_kernels import run_gradient_kernels
from scanops.ops.linearised import Scan, knows, pull_back
from scanops.ops.saved import SavedForward, sum_to
from scanops.ops.schema import Outputs
from scanops.requests.call import Call
from scanops.requests.request import NAMES, Inputs, Needs, RequestKind, SavedTensors, Tensors
from scanops.requests.torch_state import has_kernels, is_batched, is_memory, runs_kernels, torch_kernels
from scanops.runtime import call_cache
from scanops.runtime.policies import resumed
from scanops.runtime.recipes import Recipe, Tape
from scanops.runtime.states import differentiate_states, run_states

# ---- scans of one tensor


class BackwardPass(NamedTuple):
    """The backward pass of a scan of one tensor."""

    forward: SavedForward
    gy: torch.Tensor  # the gradient of the results
    gfinal: torch.Tensor | None  # that of the carry-out
    scan: Scan  # computes scans that are differentiated again
    is_followed: bool  # whether a compiler, a mode or a subclass is to see one operator
    runs_kernels: bool  # whether kernels may read the tensors
    key: call_cache.Key | None = None  # under which the call cache is to hold the recipe
    whole: Tape | None = None  # of the pass that this one is a part of

    @property
    def tape(self) -> Tape:
        """A record of the steps of the pass, a new one unless it is a part of another."""
        return self.whole or Tape((self.gy, self.gfinal, *self.forward.tensors))


class Route(NamedTuple):
    """One way to compute the gradients of a scan of one tensor, as ``NAMES``."""

    applies: Callable[[BackwardPass], bool]
    compute: Callable[[BackwardPass], Tensors | None]


def _by_operator(work: BackwardPass) -> Tensors:
    """``scan_backward`` of ``torch.library``, below which the other routes are taken."""
    _check_unlinked(work)
    forward, kind = work.forward, work.forward.kind
    read = forward.forward_inputs(work.gy)
    call = replace(kind.request.call, dtype=None) if kind.indexed else kind.request.call
    if call.start is not None:
        read = read._replace(initial=None)
    results, options = (forward.tensors.y, forward.tensors.indices), schema.backward_arguments(call, forward.needs)
    every = schema.BACKWARD(work.gy, work.gfinal, *results, *read[: schema.TENSORS], *options)
    return tuple(each if need else None for each, need in zip(every, forward.needs, strict=True))


def _by_kernels(work: BackwardPass) -> Tensors | None:
    """The kernels that ``gradient`` of the operator's row names, and their recipe for the next pass."""
    tape = work.tape
    rows = run_gradient_kernels(work.forward, work.gy, work.gfinal, tape)
    if rows is None:
        return None
    found = work.forward.fit(rows, tape)
    _keep_recipe(work.key, tape, found)
    return found


def _keep_recipe(key: call_cache.Key | None, tape: Tape, found: Tensors) -> None:
    """Let the next pass of ``key`` repeat the steps that gave ``found``."""
    recipe = None if key is None else tape.recipe(found)
    if key is not None and recipe is not None:
        call_cache.remember(call_cache.GRADIENTS, key, recipe)


def _has_scans(work: BackwardPass) -> bool:
    """Whether the derivative is a scan. Of carries of operators with indices it is not: no item's index is saved."""
    _check_unlinked(work)
    kind, needs = work.forward.kind, work.forward.needs
    if kind.indexed and (kind.final or needs[NAMES.index("initial")]):
        return False
    return knows(kind.request.call.op, kind.request.dtype, kernels=has_kernels(work.gy))


def _by_scans(work: BackwardPass) -> Tensors:
    """Scans of the derivative, which have derivatives themselves."""
    forward = work.forward
    request = replace(forward.kind.request, inputs=forward.forward_inputs(work.gy))
    results = forward.tensors.y, forward.tensors.indices
    return forward.fit(pull_back(request, forward.needs, results, work.gy, work.gfinal, work.scan), work.tape)


def _by_torch(work: BackwardPass) -> Tensors:
    """PyTorch's differentiation of the fallback, which is right to any order."""
    forward = work.forward
    inputs, needs = forward.forward_inputs(work.gy), forward.needs
    again = torch.is_grad_enabled()  # whether a second derivative is wanted
    with torch.enable_grad():
        # A view of each, because two inputs may be one tensor.
        pairs = zip(inputs.differentiable, needs, strict=True)
        views = tuple(_differentiate(t) if need and t is not None else t for t, need in pairs)
        named = dict(zip(NAMES, views, strict=True))
        results = compute(forward.kind.request, inputs._replace(**named))  # type: ignore[arg-type]
        given = [(results[0], work.gy), *([(results[-1], work.gfinal)] if work.gfinal is not None else [])]
        given = [(y, g) for y, g in given if y.requires_grad]
        if not given:
            return (None,) * len(needs)
        wanted = [view for view, need in zip(views, needs, strict=True) if need and view is not None]
        ys, gs = [y for y, _ in given], [g for _, g in given]
        found = iter(torch.autograd.grad(ys, wanted, gs, create_graph=again, allow_unused=True))
        gradients = tuple(next(found) if need else None for need in needs)
    return forward.sum_gradients(gradients, work.tape)


def _differentiate(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a tensor that gradients are taken by, which may have been saved without its history."""
    view = tensor.view_as(tensor)
    return view if view.requires_grad else view.requires_grad_()


ROUTES = (
    Route(lambda work: work.is_followed, _by_operator),
    Route(lambda work: work.runs_kernels and not torch.is_grad_enabled(), _by_kernels),
    Route(_has_scans, _by_scans),
    Route(lambda work: True, _by_torch),
)


def compute_gradients(work: BackwardPass) -> Tensors:
    """Return the gradients as ``NAMES``, by the first route that has them."""
    for route in ROUTES:
        found = route.compute(work) if route.applies(work) else None
        if found is not None:
            return found
    raise AssertionError("the last route has all gradients")


def _check_unlinked(work: BackwardPass) -> None:
    """Raise for lines that continue on other ranks: nothing but kernels knows of those."""
    call = work.forward.kind.request.call
    if call.link is not None:
        raise UnsupportedRequest(
            f"{call.name}: the backward pass of a sharded scan in one pass needs kernels",
            allowed="gradients on the device of the forward pass, outside of torch's dispatch modes",
            value=f"gradients of op={call.op!r} that no kernel computes",
            hint="pass method='twopass' to the forward pass",
        )


def differentiate(
    kind: RequestKind, needs: Needs, given: Tensors, policy: str | None, scan: Scan, whole: Tape | None = None
) -> tuple[Tensors, Recipe | None]:
    """Return the gradients as ``NAMES``, and the recipe that computed them where the call cache had one.

    ``given``: the gradients of result and carry-out, then ``SavedTensors``. ``policy`` is that of the block of the
    forward call, and ``scan`` computes what is differentiated again. ``whole``: of the pass that this one is a part of.
    """
    if kind.inclusive is not None:
        return _of_complete(kind, kind.inclusive, needs, given, policy, scan)
    gy, gfinal, *tensors = given
    if gy is None:  # only carry-outs were used
        assert gfinal is not None and kind.shapes[0] is not None
        gy = gfinal.new_zeros((), dtype=kind.request.dtype).expand(kind.shapes[0][0])
        given = (gy, *given[1:])
    forward = SavedForward(kind, needs, SavedTensors(*tensors))
    if is_compiling():
        return compute_gradients(BackwardPass(forward, gy, gfinal, scan, is_followed=True, runs_kernels=False)), None
    key = None
    # Kernels and their recipes are for what is differentiated once.
    if whole is None and kind.is_cached and not torch.is_grad_enabled() and runs_kernels(given):
        key, recipe = call_cache.recall_gradient(kind, needs, given, policy)
        if recipe is not None:
            return recipe.again(given), recipe
    gy = gy.resolve_conj().resolve_neg()
    with resumed(policy):  # autograd runs backward passes in threads of its own
        memory = all(each is None or is_memory(each) for each in (gy, gfinal, *tensors))
        if (private.count_modes() or not memory) and not private.are_transforms_active():
            work = BackwardPass(forward, gy, gfinal, scan, is_followed=True, runs_kernels=False)
            return compute_gradients(work), None
        if (start := kind.request.call.start) is not None:
            initial = torch.full((), start, dtype=kind.request.carry_dtype, device=gy.device)
            forward = forward.replace_tensors(initial=initial)
        by_kernels = runs_kernels((gy, gfinal, *forward.tensors))
        with torch_kernels():
            work = BackwardPass(
                forward, gy, gfinal, scan, is_followed=False, runs_kernels=by_kernels, key=key, whole=whole
            )
            return compute_gradients(work), None


def _of_complete(
    kind: RequestKind, inclusive: RequestKind, needs: Needs, given: Tensors, policy: str | None, scan: Scan
) -> tuple[Tensors, Recipe | None]:
    """The gradients of a complete scan: those of its inclusive results, and that of the carry-in added."""
    key = None
    if kind.is_cached and not is_compiling() and not torch.is_grad_enabled() and runs_kernels(given):
        key, recipe = call_cache.recall_gradient(kind, needs, given, policy)
        if recipe is not None:
            return recipe.again(given), recipe
    gy, _, *saved = given
    tensors, request, tape = SavedTensors(*saved), kind.request, Tape(given)
    assert gy is not None
    if tensors.y is not None:  # kernels read it as a contiguous tensor
        tensors = tensors._replace(y=tape.apply(lambda y: request.within(y).contiguous(), tensors.y))
    of_results = tape.apply(request.within, gy)
    every, _ = differentiate(inclusive, needs, (of_results, None, *tensors), policy, scan, tape)
    *others, of_initial = every
    if needs[3] and kind.shapes[3] is not None:
        shape, dtype = kind.shapes[3]
        of_start = tape.apply(lambda gy: sum_to(request.start_in(gy), shape=shape, dtype=dtype), gy)
        of_initial = of_start if of_initial is None else tape.apply(torch.add, of_initial, of_start)
    found = (*others, of_initial)
    _keep_recipe(key, tape, found)
    return found, None


# ---- scans with functions of several tensors


class FusedBackwardPass(NamedTuple):
    """The backward pass of a scan with ``map``, ``then`` or ``sum``."""

    call: Call
    inputs: Inputs
    gradients: Sequence[torch.Tensor | None]  # of the outputs
    needs: Needs  # which gradients of ``inputs.differentiable`` are wanted
    scan: Callable[..., Outputs]  # computes the scans that the pass is made of, fused or not
    tape: Tape  # of the steps of the pass
    states: SavedStates | None = None  # which states the forward kernel has written
    saved: tuple[torch.Tensor, ...] = ()  # the tensors that it has written
    operator: tuple[object, ...] | None = None  # the arguments of ``fused_backward``, where one operator is to be seen


class FusedRoute(NamedTuple):
    """One way to compute the gradients of ``Inputs.differentiable``."""

    applies: Callable[[FusedBackwardPass], bool]
    compute: Callable[[FusedBackwardPass], Tensors | None]


def _fused_by_operator(work: FusedBackwardPass) -> Tensors:
    """``fused_backward`` of ``torch.library``, below which the other routes are taken."""
    assert work.operator is not None
    return schema.differentiate_fused_by_operator(work.operator, work.inputs, work.gradients, work.needs)


def _may_run_state_kernels(work: FusedBackwardPass) -> bool:
    """Whether kernels may read the tensors of sums: they, and what they save, are for what is differentiated once."""
    by_kernels = bool(work.call.summed) and not torch.is_grad_enabled()
    return by_kernels and runs_kernels((*work.inputs.flat, *work.gradients))


def _by_state_kernels(work: FusedBackwardPass) -> Tensors | None:
    """The backward kernel of scans with sums; that of the forward pass runs again where it has saved nothing."""
    again = None if work.saved else run_states(work.call, work.inputs, work.tape, saves=True)
    saved: Tensors = work.saved if again is None else again[1]
    if not saved:
        return None
    return differentiate_states(work.call, work.inputs, saved, work.gradients, work.needs, work.tape)


def _sums_by_torch(work: FusedBackwardPass) -> Tensors:
    """PyTorch's operators around plain scans."""
    return differentiate_by_torch(work.call, work.inputs, work.gradients, work.needs, work.scan)


def _by_adjoint(work: FusedBackwardPass) -> Tensors:
    """Fused scans that the expressions' derivatives make, by kernels or as the scan is computed."""
    return differentiate_by_adjoint(
        work.call, work.inputs, work.gradients, work.needs, work.scan, work.tape, work.states, work.saved
    )


FUSED_ROUTES = (
    FusedRoute(lambda work: work.operator is not None, _fused_by_operator),
    FusedRoute(_may_run_state_kernels, _by_state_kernels),
    FusedRoute(lambda work: bool(work.call.summed), _sums_by_torch),
    FusedRoute(lambda work: True, _by_adjoint),
)


def compute_fused_gradients(work: FusedBackwardPass) -> Tensors:
    """Return the gradients of ``inputs.differentiable``, by the first route that has them."""
    if work.operator is None and all(each is None for each in work.gradients):
        return (None,) * len(work.needs)
    for route in FUSED_ROUTES:
        found = route.compute(work) if route.applies(work) else None
        if found is not None:
            return found
    raise AssertionError("the last route has all gradients")


def differentiate_fused(
    forward: FusedForward, needs: Needs, given: Tensors, policy: str | None, scan: Callable[..., Outputs]
) -> tuple[Tensors, Recipe | None]:
    """Return the gradients of ``Inputs.differentiable``, and the recipe that computed them, as ``differentiate`` does.

    ``given``: as ``forward.list_given`` returns it.
    """
    kind = forward.kind
    gradients, inputs, saved = forward.split_given(given)
    # What is differentiated again follows from the tensors of the call alone.
    uses_states = not torch.is_grad_enabled() and runs_kernels((*inputs.flat, *saved))
    key = None
    if kind.is_cached and uses_states and runs_kernels((inputs.x, *gradients)):
        key, recipe = call_cache.recall_gradient(kind, needs, given, policy)
        if recipe is not None:
            return recipe.again(given), recipe
        given = _tell_apart(given)
        gradients, inputs, saved = forward.split_given(given)
    tape, call = Tape(given, is_kept=key is not None), kind.request.call
    states = forward.states if uses_states else None
    is_followed = bool(call.summed) and is_sum_followed((*inputs.flat, *saved, *gradients))
    operator = schema.list_fused_arguments(call) if is_followed else None
    with resumed(policy):  # autograd runs backward passes in threads of its own
        work = FusedBackwardPass(call, inputs, gradients, needs, scan, tape, states, saved, operator)
        found = compute_fused_gradients(work)
    _keep_recipe(key, tape, found)
    return found, None


def _tell_apart(given: Tensors) -> Tensors:
    """The tensors, each another one: of a tensor that is given twice a recipe could not tell which is read."""
    found: list[torch.Tensor | None] = []
    for each in given:
        found.append(each if each is None or all(each is not other for other in found) else each.detach())
    return tuple(found)


def is_sum_followed(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Whether a compiler, a mode or a subclass is to see the backward pass of a scan with sums as one operator."""
    every = [each for each in tensors if each is not None]
    followed = is_compiling() or private.count_modes() or not all(map(is_memory, every))
    return bool(followed) and not (private.are_transforms_active() or any(map(is_batched, every)))
