"""Gradients of scans: which tensors a call saves for its backward pass, and the gradient by PyTorch's operators.

No more is saved than torch saves: of a sum only its mask, of ``cummax`` only the indices. Kernels compute gradients
wherever they can (``backward.py``); derivatives of gradients are scans (``linearised.py``).
"""

from __future__ import annotations

import torch

from scanops.autograd.backward import Kept, reads_inputs
from scanops.codegen.adjoints import ADJOINTS
from scanops.fallback.scans import computed
from scanops.requests.request import NAMES, Inputs, Kind, Needs, Shapes
from scanops.runtime.results import Tensors


def keeps(kind: Kind, needs: Needs) -> tuple[bool, ...]:
    """Return which of x, mask, gate, initial, result and indices the gradients in ``needs`` read."""
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
        # The terms of a recurrence are read by no gradient but that of a numeric mask.
        weighted = mask is not None and mask[1] != torch.bool and "mask" in wanted
        of_x = adjoint is None or adjoint.gate != "gate" or weighted
        return frozenset(("mask", "gate", "initial", "indices", *["x"] * of_x, *["y"] * of_y))
    kept = {"indices"}
    if mask is not None and mask[1] != torch.bool:  # each is multiplied by the other
        kept |= ({"mask"} if "x" in wanted else set()) | ({"x"} if "mask" in wanted else set())
    elif not request.operator.indices:  # an index is never that of a masked-out item
        kept.add("mask")
    return frozenset(kept)


def told(
    inputs: Tensors, shapes: Shapes, starts: torch.Tensor | None, offsets: torch.Tensor | None, like: torch.Tensor
) -> Inputs:
    """Return the inputs of a forward scan; those not saved are expanded from one element, for shape and dtype only."""
    x, mask, gate, initial = (
        like.new_empty((), dtype=shape[1]).expand(shape[0]) if each is None and shape is not None else each
        for each, shape in zip(inputs, shapes, strict=True)
    )
    assert x is not None
    return Inputs(x, mask, gate, starts, offsets, initial)


def by_fallback(kept: Kept, gy: torch.Tensor, gfinal: torch.Tensor | None) -> Tensors:
    """Return the gradients as ``NAMES`` from the fallback's own autograd graph, which is right to any order."""
    request, inputs, needs = kept.request, kept.forward_inputs(), kept.needs
    again = torch.is_grad_enabled()  # whether a second derivative is wanted
    with torch.enable_grad():
        # A view of each, because two inputs may be one tensor.
        pairs = zip(inputs.differentiable, needs, strict=True)
        views = tuple(t.view_as(t) if need and t is not None else t for t, need in pairs)
        results = computed(request, inputs.with_differentiable(views))
        given = [(results[0], gy), *([(results[-1], gfinal)] if gfinal is not None else [])]
        given = [(y, g) for y, g in given if y.requires_grad]
        if not given:
            return (None,) * len(needs)
        wanted = [view for view, need in zip(views, needs, strict=True) if need and view is not None]
        ys, gs = [y for y, _ in given], [g for _, g in given]
        found = iter(torch.autograd.grad(ys, wanted, gs, create_graph=again, allow_unused=True))
    return tuple(next(found) if need else None for need in needs)
