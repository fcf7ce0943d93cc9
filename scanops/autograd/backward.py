"""The kernels of a backward pass: the gradient of a scan is a scan in the opposite direction.

``ADJOINTS`` of ``codegen/adjoints.py`` says which row of the table computes it and what it reads. Here are the tensors:
what was kept, what is computed again, and how the gradient of what was scanned becomes those of x and of a mask that
multiplied it: y = scan(x * m) has x.grad = m * g and m.grad = x * g, where g is the gradient of the product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch

from scanops.codegen.adjoints import ADJOINTS, LATEST, Adjoint
from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import operator_named
from scanops.codegen.saved import AGAIN_LENGTHS
from scanops.fallback.scans import computed
from scanops.requests.geometry import ALIGNMENT, is_dense, split_shape
from scanops.requests.request import NAMES, Inputs, Kind, Needs, Request, Shapes
from scanops.runtime.calls import run
from scanops.runtime.results import Tape, Tensors, readable

LEAST_AGAIN = 128  # least items of a row that one block recomputes: shorter rows leave lanes idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The saved tensors of a forward scan, and the request that it served."""

    request: Request  # without tensors
    shapes: Shapes  # of the inputs, as ``NAMES``
    needs: Needs
    inputs: Tensors  # the inputs themselves, where they were saved
    y: torch.Tensor | None
    indices: torch.Tensor | None
    starts: torch.Tensor | None
    offsets: torch.Tensor | None

    @property
    def tensors(self) -> Tensors:
        """All saved tensors, None where one was not saved."""
        return (*self.inputs, self.y, self.indices, self.starts, self.offsets)

    def forward_inputs(self) -> Inputs:
        """The inputs of the forward scan, if all of them were saved."""
        x, mask, gate, initial = self.inputs
        assert x is not None
        return Inputs(x, mask, gate, self.starts, self.offsets, initial)

    def fitted(self, gradients: Tensors, tape: Tape) -> Tensors:
        """The requested gradients, summed over broadcast dimensions and converted to the dtype of each input."""
        return tuple(
            None
            if each is None or told is None or not need
            else each
            if (each.shape, each.dtype) == told
            else tape.apply(partial(summed_to, shape=told[0], dtype=told[1]), each)
            for each, told, need in zip(gradients, self.shapes, self.needs, strict=True)
        )

    @property
    def weights(self) -> torch.Tensor | None:
        """The numeric mask, or None without one or if it was not saved."""
        mask = self.inputs[1]
        return None if mask is None or mask.dtype == torch.bool else mask

    @property
    def carries(self) -> bool:
        """Whether the gradient of the carry-in is needed: it is the carry-out of the reverse scan."""
        return self.needs[3]


def reads_inputs(request: Request, carries: bool) -> bool:
    """Whether the first or second gradient of a request reads its inputs."""
    adjoint = ADJOINTS.get(request.op)
    if adjoint is None or adjoint.gate or not _fits(adjoint, request):
        return True
    return adjoint.saved == "indices" and (request.final or carries)


def _weighted(kept: Kept, of_term: torch.Tensor, tape: Tape) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The gradients of x and of a numeric mask, from that of the scanned term."""
    x, mask, weights = kept.inputs[0], kept.shapes[1], kept.weights
    if mask is None or mask[1] == torch.bool:
        return of_term, None
    gx = tape.apply(_times, of_term, weights) if kept.needs[0] and weights is not None else None
    gmask = tape.apply(_times, of_term, x) if kept.needs[1] and x is not None else None
    return gx, gmask


def by_rows(kept: Kept, gy: torch.Tensor, gfinal: torch.Tensor | None, tape: Tape) -> Tensors | None:
    """Return the gradients of the inputs, as ``NAMES``, by kernels; None where no row or no kernel computes them.

    ``gy`` is the gradient of the result, ``gfinal`` that of the carry-out.
    """
    request, adjoint = kept.request, ADJOINTS.get(kept.request.op)
    if adjoint is None or not _fits(adjoint, request):
        return None
    if (gfinal is not None and not adjoint.begins) or (kept.carries and not adjoint.ends):
        return None  # the row supports no such carries
    mask = kept.inputs[1]
    selects = mask if mask is not None and mask.dtype == torch.bool and not request.operator.indices else None
    apart = selects is not None and request.call.compensated and adjoint.masked != ""
    row = adjoint.after if request.exclusive and adjoint.after else adjoint.row
    row = adjoint.masked if selects is not None and adjoint.masked and not apart else row
    if adjoint.gate == "gate" and not kept.needs[2]:
        row = f"{row}_of_terms"
    told = None if apart else selects
    inputs = Inputs(gy, told, _gate(kept, adjoint, tape), None, None, gfinal, _saved(kept, row, adjoint))
    again = None
    if operator_named(row).saved and inputs.saved is None:
        again = _again(kept, row, inputs, tape)
        inputs = again or inputs._replace(saved=_before(kept, tape))
        if again is None and inputs.saved is None:
            return None
    results = _scanned(kept, row, adjoint, inputs, tape, again=again is not None)
    if results is None:
        return None
    of_term = tape.apply(_selected, results[0], selects) if apart and selects is not None else results[0]
    of_gate = results[1] if operator_named(row).second else None
    of_initial = results[-1] if kept.carries else None
    return (*_weighted(kept, of_term, tape), of_gate, of_initial)


def _fits(adjoint: Adjoint, request: Request) -> bool:
    """Whether the row supports results of this dtype."""
    return dtype_named(request.dtype).kind in adjoint.kinds


def _gate(kept: Kept, adjoint: Adjoint, tape: Tape) -> torch.Tensor | None:
    """The tensor that the row reads as its gate: the forward scan's gate, or the scanned term."""
    return _term(kept, tape) if adjoint.gate == "x" else kept.inputs[2] if adjoint.gate else None


def _saved(kept: Kept, row: str, adjoint: Adjoint) -> torch.Tensor | None:
    """The forward output that the row reads; for an exclusive scan that is the result before each item."""
    if adjoint.saved == "before":
        return kept.y if kept.request.exclusive and operator_named(row).saved else None
    return kept.y if adjoint.saved == "y" else kept.indices


def _term(kept: Kept, tape: Tape) -> torch.Tensor:
    """The items of the forward scan, multiplied by a numeric mask."""
    term = kept.inputs[0]
    assert term is not None
    if kept.weights is not None:
        term = tape.apply(torch.mul, term, kept.weights)
    return _converted(term, kept.request.dtype, tape)


def _again(kept: Kept, row: str, inputs: Inputs, tape: Tape) -> Inputs | None:
    """The inputs of a kernel that recomputes the forward scan in its tile; None where rows do not fit a tile.

    Operands that are not contiguous rows are copied, which moves fewer bytes than the extra forward scan.
    """
    request, (_, length, inner) = kept.request, split_shape(inputs.x.shape, kept.request.dim)
    whole = inner == 1 and kept.starts is None and kept.offsets is None and kept.shapes[3] is None
    most = AGAIN_LENGTHS.get(request.carry_dtype.itemsize, 0)
    most //= 1 if length * request.dtype.itemsize % ALIGNMENT == 0 else 2
    if not (whole and request.call.plain and LEAST_AGAIN <= length <= most):
        return None
    if operator_named(row).before == ("",):  # the next item reads a result in place
        if kept.y is None or not _tiled(kept.y, inputs.x.shape):
            return None
        inputs = inputs._replace(saved=kept.y)
    spread = partial(_spread, shape=inputs.x.shape)
    x, mask, gate = (
        t if t is None or _tiled(t, inputs.x.shape) else tape.apply(spread, t)
        for t in (inputs.x, inputs.mask, inputs.gate)
    )
    assert x is not None
    return inputs._replace(x=x, mask=mask, gate=gate)


def _tiled(tensor: torch.Tensor, shape: torch.Size) -> bool:
    """Whether a tensor is laid out as the rows of a tile."""
    return is_dense(tensor, shape) and tensor.data_ptr() % ALIGNMENT == 0


def _spread(tensor: torch.Tensor, *, shape: torch.Size) -> torch.Tensor:
    return tensor.expand(shape).clone(memory_format=torch.contiguous_format)


def _before(kept: Kept, tape: Tape) -> torch.Tensor | None:
    """The result before each item: saved, or from the exclusive forward scan; None where there is no kernel."""
    if kept.y is None:
        again = replace(kept.request, inputs=kept.forward_inputs())
    else:
        given = Inputs(kept.y, None, None, kept.starts, kept.offsets, kept.inputs[3])
        again = replace(kept.request, call=replace(kept.request.call, op=LATEST), inputs=given)
    again = replace(again, call=replace(again.call, exclusive=True, final=False))
    results = _run(again, tape)
    return None if results is None else results[0]


def _scanned(
    kept: Kept, row: str, adjoint: Adjoint, inputs: Inputs, tape: Tape, *, again: bool
) -> tuple[torch.Tensor, ...] | None:
    """The outputs of a row's kernel, then the carry-out if it is needed; None where there is no kernel."""
    request, initial = kept.request, inputs.initial
    if initial is not None:
        initial = _converted(initial, request.carry_dtype, tape)
        initial = initial if initial.is_contiguous() else tape.apply(torch.Tensor.contiguous, initial)
    inputs = inputs._replace(starts=kept.starts, offsets=kept.offsets, initial=initial)
    if inputs.saved is not None:
        gate = None if inputs.gate is None else _near(inputs.gate, tape)
        inputs = inputs._replace(x=_near(inputs.x, tape), gate=gate)
    call = request.call.derivative(
        row,
        reverse=not request.reverse,
        exclusive=request.exclusive if adjoint.exclusive is None else adjoint.exclusive,
        final=kept.carries,
        dtype=_dtype(kept, row),
        carry=request.carry_dtype,
    )
    back = Request(call=call, inputs=inputs, carry_dtype=request.carry_dtype, again=again)
    return _run(back, tape)


def _run(request: Request, tape: Tape) -> tuple[torch.Tensor, ...] | None:
    """Run one scan by a kernel and note it on the tape; None where there is no kernel."""
    outcome = run(request)
    if outcome is None:
        return None
    if outcome.launcher is not None and outcome.asked is not None:
        tape.launched(outcome.launcher, outcome.asked, readable(request), outcome.results)
    return outcome.results


def _dtype(kept: Kept, row: str) -> torch.dtype:
    """The output dtype of a row: x's where it is no wider than the accumulator, else the result's."""
    request, told = kept.request, kept.shapes[0]
    assert told is not None
    here, carry = dtype_named(told[1]), dtype_named(request.carry_dtype)
    narrows = here.stored and here.kind == carry.kind and here.bytes <= carry.bytes
    alone = kept.shapes[1] is None or kept.shapes[1][1] == torch.bool
    alone = alone and not operator_named(row).second and not request.call.compensated
    return told[1] if narrows and alone else request.dtype


def _near(tensor: torch.Tensor, tape: Tape) -> torch.Tensor:
    """The tensor, if it is broadcast or strided as the saved one; else a copy that is."""
    if tensor.ndim == 0 or tensor.is_contiguous() or 0 in tensor.stride() or tensor.stride(-1) == 1:
        return tensor
    return tape.apply(torch.Tensor.contiguous, tensor)


# ---- by PyTorch, between kernels


def _converted(tensor: torch.Tensor, dtype: torch.dtype, tape: Tape) -> torch.Tensor:
    return tensor if tensor.dtype == dtype else tape.apply(partial(torch.Tensor.to, dtype=dtype), tensor)


def summed_to(gradient: torch.Tensor, *, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Sum a gradient over broadcast dimensions, and convert it to the dtype of the input."""
    real = gradient.real if gradient.is_complex() and not dtype.is_complex else gradient
    return real.sum_to_size(shape).to(dtype)


def _times(gradient: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return gradient * factor.conj()


def _selected(gradient: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, gradient, 0)


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
