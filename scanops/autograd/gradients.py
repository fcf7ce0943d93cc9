"""Gradients of scans: which tensors are kept for them, and who computes them.

A gradient is computed by kernels of its own wherever there are any (``scanops.autograd.backward``). Nothing is kept
for them that torch would not keep: of a sum only its mask, of ``cummax`` only the indices. What is differentiated
again, or has no memory, is composed of scans (``scanops.autograd.linearised``), and where they do not know how of
torch's operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.compiler import is_compiling

from scanops.autograd import linearised
from scanops.autograd.backward import Kept, by_rows, reads_inputs
from scanops.codegen.adjoints import ADJOINTS
from scanops.requests.kinds import NAMES, Kind, Needs, Shapes
from scanops.requests.request import Inputs, Request, is_memory
from scanops.runtime import calls, policies
from scanops.runtime.recipes import Recipe, Tape, Tensors

__all__ = [
    "Serving",
    "differentiated",
    "follow_by",
    "gradients_of",
    "keep_for_backward",
    "keeps",
    "kept_by",
    "told",
    "walked",
]

Outputs = tuple[torch.Tensor, ...]


class Serving(NamedTuple):
    """The ways in which a request is served, given by who calls."""

    served: Callable[[Request], Outputs]  # by a kernel where there is one
    composed: Callable[[Request, Inputs], Outputs]  # by torch's operations
    reads: Callable[[Tensors], bool]  # whether kernels may read these now


# How a pass goes where somebody follows it: by operations, which are built on this module and told here by theirs.
_FOLLOWED: list[Callable[[Kind, Needs, Tensors], Tensors]] = []


def follow_by(compute: Callable[[Kind, Needs, Tensors], Tensors]) -> None:
    """Let ``compute`` give the gradients as ``NAMES``, of what ``walked`` is given."""
    _FOLLOWED[:] = [compute]


def differentiated(kind: Kind, serving: Serving, compute: Callable[[Inputs], Outputs], inputs: Inputs) -> Outputs:
    """What ``compute`` gives for the inputs of a request, with gradients."""
    call = (kind, serving, compute, inputs)
    found: Outputs = _Differentiable.apply(call, *inputs.differentiable)  # type: ignore[no-untyped-call]
    return found


def keep_for_backward(ctx: Any, tensors: Tensors) -> None:
    """As ``ctx.save_for_backward``; but what keeps nothing may be walked back twice, as torch's own scans and the nodes
    of C++.
    """
    ctx.save_for_backward(*tensors)
    ctx.nothing = (None,) * len(tensors) if all(each is None for each in tensors) else None


def kept_by(ctx: Any) -> Tensors:
    """What ``keep_for_backward`` was given."""
    kept: Tensors = ctx.nothing or ctx.saved_tensors
    return kept


class _Differentiable(torch.autograd.Function):
    """A scan forwards; backwards another one."""

    @staticmethod
    def forward(
        ctx: Any,
        call: tuple[Kind, Serving, Callable[[Inputs], Outputs], Inputs],
        *tensors: torch.Tensor | None,
    ) -> Outputs:
        kind, serving, compute, inputs = call
        results = compute(inputs.with_differentiable(tensors))
        read = (*tensors, results[0], results[1] if kind.indexed else None)
        keep = keeps(kind, ctx.needs_input_grad[1:])
        kept = (
            *(each if wanted else None for each, wanted in zip(read, keep, strict=True)),
            inputs.starts,
            inputs.offsets,
        )
        keep_for_backward(ctx, kept)
        ctx.kind, ctx.serving, ctx.policy = kind, serving, policies.scoped()
        if whole := [result for result in results if result.dtype == torch.int64]:
            ctx.mark_non_differentiable(*whole)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Tensors:
        kind = ctx.kind
        gy, gfinal = gradients[0], gradients[-1] if kind.final else None
        if gy is None and gfinal is None:
            return (None,) * (1 + len(NAMES))
        needs = ctx.needs_input_grad[1:]
        found, _ = walked(kind, needs, ctx.serving, (gy, gfinal, *kept_by(ctx)), ctx.policy)
        return (None, *found)


def walked(
    kind: Kind, needs: Needs, serving: Serving, given: Tensors, policy: str | None
) -> tuple[Tensors, Recipe | None]:
    """The gradients as ``NAMES``, the way they went before, which is then told, or looked for as ``policy`` says.

    ``given``: those of the result and of what went on from the lines, inputs as ``NAMES``, the result, its indices,
    starts and offsets, as far as there are any and they were kept.
    """
    gy, gfinal, *inputs, y, indices, starts, offsets = given
    if gy is None:  # what went on from the lines is all that was used
        assert gfinal is not None and kind.shapes[0] is not None
        gy = gfinal.new_zeros((), dtype=kind.request.dtype).expand(kind.shapes[0][0])
        given = (gy, *given[1:])
    # Compiled autograd follows operations; that of torch 2.11 says so by tensors without memory alone.
    if is_compiling() or (torch._C._len_torch_dispatch_stack() and not is_memory(gy)):
        return _FOLLOWED[0](kind, needs, given), None
    key = None
    # What the kernels of a gradient may read, and how they went: there is none of what is to be differentiated again.
    if kind.lasts and not torch.is_grad_enabled() and serving.reads(given):
        key, recipe = calls.recalled_gradient(kind, needs, given, policy)
        if recipe is not None:
            return recipe.again(given), recipe
    kept = Kept(
        request=kind.request,
        shapes=kind.shapes,
        needs=needs,
        inputs=tuple(inputs),
        y=y,
        indices=indices,
        starts=starts,
        offsets=offsets,
    )
    with policies.resumed(policy):  # autograd walks back in a thread of its own
        return gradients_of(kept, serving, gy.resolve_conj().resolve_neg(), gfinal, key), None


def gradients_of(
    kept: Kept, serving: Serving, gy: torch.Tensor, gfinal: torch.Tensor | None, key: calls.Key | None = None
) -> Tensors:
    """The gradients of the inputs, as ``NAMES``, from that of the result and of what went on from the lines.

    How kernels have computed them is remembered under ``key``.
    """
    given = (gy, gfinal, *kept.tensors)
    tape = Tape(given)
    if not torch.is_grad_enabled() and serving.reads(given):
        rows = by_rows(kept, gy, gfinal, tape)
        if rows is not None:
            found = kept.fitted(rows, tape)
            recipe = tape.recipe(found)
            if key is not None and recipe is not None:
                calls.remember_gradient(key, recipe)
            return found
    return kept.fitted(_followable(kept, serving, gy, gfinal), tape)


def keeps(kind: Kind, needs: Needs) -> tuple[bool, ...]:
    """Of the inputs as ``NAMES``, the result and its indices those that a gradient reads again."""
    found = kind.keeps.get(needs)
    if found is None:
        names = _kept_names(kind, needs)
        found = kind.keeps[needs] = tuple(name in names for name in (*NAMES, "y", "indices"))
    return found


def _kept_names(kind: Kind, needs: Needs) -> frozenset[str]:
    request, mask = kind.request, kind.shapes[1]
    adjoint = ADJOINTS.get(request.op)
    wanted = {name for name, need in zip(NAMES, needs, strict=True) if need}
    if reads_inputs(request, "initial" in wanted):
        saved = "" if adjoint is None else adjoint.saved
        of_y = saved == "y" or (saved == "before" and (request.exclusive or "gate" in wanted))
        # What a recurrence adds is in no gradient but that of its weights
        weighted = mask is not None and mask[1] != torch.bool and "mask" in wanted
        of_x = adjoint is None or adjoint.gate != "gate" or weighted
        return frozenset(("mask", "gate", "initial", "indices", *["x"] * of_x, *["y"] * of_y))
    kept = {"indices"}
    if mask is not None and mask[1] != torch.bool:  # each is multiplied by the other
        kept |= ({"mask"} if "x" in wanted else set()) | ({"x"} if "mask" in wanted else set())
    elif not request.operator.indices:  # an index is never that of an item masked out
        kept.add("mask")
    return frozenset(kept)


# ---- by operations that torch can follow


def _followable(kept: Kept, serving: Serving, gy: torch.Tensor, gfinal: torch.Tensor | None) -> Tensors:
    request = kept.request
    further = request.operator.indices and (request.final or kept.needs[3])  # whose item that is nobody kept
    if further or not linearised.knows(request.op, request.dtype):
        return _differentiated_forward(kept, serving, gy, gfinal)
    given = told(kept.inputs, kept.shapes, kept.starts, kept.offsets, gy)
    return linearised.pulled_back(replace(request, inputs=given), kept.needs, (kept.y, kept.indices), gy, gfinal)


def told(
    inputs: Tensors, shapes: Shapes, starts: torch.Tensor | None, offsets: torch.Tensor | None, like: torch.Tensor
) -> Inputs:
    """The inputs of a forward scan, where those that were not kept tell shape and dtype alone: nobody reads them."""
    x, mask, gate, initial = (
        like.new_empty((), dtype=shape[1]).expand(shape[0]) if each is None and shape is not None else each
        for each, shape in zip(inputs, shapes, strict=True)
    )
    assert x is not None
    return Inputs(x, mask, gate, starts, offsets, initial)


def _differentiated_forward(kept: Kept, serving: Serving, gy: torch.Tensor, gfinal: torch.Tensor | None) -> Tensors:
    """The gradient of torch's own operations, which is right to any order."""
    request, inputs, needs = kept.request, kept.forward_inputs(), kept.needs
    again = torch.is_grad_enabled()  # whether a second derivative was asked for
    with torch.enable_grad():
        # A view each, because two inputs may be one tensor whose gradients autograd adds up later.
        pairs = zip(inputs.differentiable, needs, strict=True)
        views = tuple(t.view_as(t) if need and t is not None else t for t, need in pairs)
        results = serving.composed(request, inputs.with_differentiable(views))
        given = [(results[0], gy), *([(results[-1], gfinal)] if gfinal is not None else [])]
        given = [(y, g) for y, g in given if y.requires_grad]
        if not given:
            return (None,) * len(needs)
        wanted = [view for view, need in zip(views, needs, strict=True) if need and view is not None]
        ys, gs = [y for y, _ in given], [g for _, g in given]
        found = iter(torch.autograd.grad(ys, wanted, gs, create_graph=again, allow_unused=True))
    return tuple(next(found) if need else None for need in needs)
