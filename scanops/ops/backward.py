"""The kernels of a backward pass: the gradient of a scan is a scan in the opposite direction.

``gradient`` of an operator's row says which row computes it and what that reads. Here are the tensors: what was kept,
what is computed again, and how the gradient of what was scanned becomes those of the inputs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from scanops.codegen.derivatives import Gradient, should_recompute
from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operator import Operator
from scanops.codegen.operators.recurrences import LATEST
from scanops.fallback.scans import compute
from scanops.requests.geometry import ALIGNMENT, line_shape, split_shape
from scanops.requests.request import NAMES, Inputs, Needs, Request, RequestKind, Tensors
from scanops.runtime.call_cache import run
from scanops.runtime.launcher import readable
from scanops.runtime.recipes import Tape


class Kept(NamedTuple):
    """The saved tensors of a forward scan, and the call that it served; None where a tensor was not saved."""

    kind: RequestKind
    needs: Needs
    x: torch.Tensor | None
    mask: torch.Tensor | None
    gate: torch.Tensor | None
    initial: torch.Tensor | None
    y: torch.Tensor | None
    indices: torch.Tensor | None
    starts: torch.Tensor | None
    offsets: torch.Tensor | None

    @property
    def tensors(self) -> Tensors:
        """All saved tensors, None where one was not saved."""
        return self[2:]

    def forward_inputs(self, like: torch.Tensor) -> Inputs:
        """The inputs of the forward scan; those not saved are expanded from one element, for shape and dtype only."""
        x, mask, gate, initial = (
            like.new_empty((), dtype=shape[1]).expand(shape[0]) if each is None and shape is not None else each
            for each, shape in zip(self.tensors, self.kind.shapes, strict=False)
        )
        assert x is not None
        return Inputs(x, mask, gate, self.starts, self.offsets, initial)

    @property
    def weighted(self) -> bool:
        """Whether a numeric mask multiplied what was scanned."""
        mask = self.kind.shapes[1]
        return mask is not None and mask[1] != torch.bool

    def fit(self, found: Tensors, tape: Tape) -> Tensors:
        """The requested gradients as ``NAMES``, from those of the scanned term, gate and carry-in.

        y = scan(x * m) has x.grad = m * g and m.grad = x * g, where g is the gradient of the term.
        """
        of_term, of_gate, of_initial = found
        of_x, of_mask = of_term, None
        if self.weighted and of_term is not None:
            of_x = tape.apply(_times, of_term, self.mask) if self.needs[0] and self.mask is not None else None
            of_mask = tape.apply(_times, of_term, self.x) if self.needs[1] and self.x is not None else None
        return self.sum_gradients((of_x, of_mask, of_gate, of_initial), tape)

    def sum_gradients(self, gradients: Tensors, tape: Tape) -> Tensors:
        """The requested gradients, summed over broadcast dimensions and converted to the dtype of each input."""
        return tuple(
            None
            if each is None or told is None or not need
            else each
            if (each.shape, each.dtype) == told
            else tape.apply(partial(sum_to, shape=told[0], dtype=told[1]), each)
            for each, told, need in zip(gradients, self.kind.shapes, self.needs, strict=True)
        )


def sum_to(gradient: torch.Tensor, *, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Sum a gradient over broadcast dimensions, in the dtype of the input, to which it is converted."""
    real = gradient.real if gradient.is_complex() and not dtype.is_complex else gradient
    if real.shape != shape and dtype.itemsize > real.dtype.itemsize:  # torch rounds a sum to the dtype of its items
        ahead = real.ndim - len(shape)
        dims = [d for d in range(real.ndim) if d < ahead or shape[d - ahead] == 1 != real.shape[d]]
        real = real.sum(dims, keepdim=True, dtype=dtype)
    return real.sum_to_size(shape).to(dtype)


def _times(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A product in the dtype that both promote to, also where one has no dimension."""
    return one.to(torch.promote_types(one.dtype, other.dtype)) * other.conj()


def keeps(kind: RequestKind, needs: Needs) -> tuple[bool, ...]:
    """Return which of x, mask, gate, initial, result and indices the gradients in ``needs`` read."""
    found = kind.keeps.get(needs)
    if found is None:
        names = _list_kept(kind, needs)
        found = kind.keeps[needs] = tuple(name in names for name in (*NAMES, "y", "indices"))
    return found


def _list_kept(kind: RequestKind, needs: Needs) -> set[str]:
    call, mask, gradient = kind.request.call, kind.shapes[1], kind.request.operator.gradient
    wanted = {name for name, need in zip(NAMES, needs, strict=True) if need}
    weighted = mask is not None and mask[1] != torch.bool
    # Whether the first or second gradient reads the inputs.
    reads = gradient is None or bool(gradient.gate) or not _fits(gradient, kind.request)
    if reads or (gradient is not None and gradient.saved == "indices" and (call.final or "initial" in wanted)):
        kept = {"mask", "gate", "initial", "indices"}
        # The terms of a recurrence are read by no gradient but that of a numeric mask.
        if gradient is None or gradient.gate != "gate" or (weighted and "mask" in wanted):
            kept.add("x")
        if gradient is not None and _reads_results(gradient, kind, gates="gate" in wanted):
            kept.add("y")
        return kept
    if weighted:  # each is multiplied by the other
        return {"indices"} | ({"mask"} if "x" in wanted else set()) | ({"x"} if "mask" in wanted else set())
    return {"indices"} if kind.indexed else {"indices", "mask"}  # an index is never that of a masked-out item


def _reads_results(gradient: Gradient, kind: RequestKind, *, gates: bool) -> bool:
    """Whether the kernel of a gradient reads the results of the forward scan."""
    if gradient.saved != "before":
        return gradient.saved == "y"
    return gates if gradient.of_terms is not None else not _recomputes(gradient, kind)


def _recomputes(gradient: Gradient, kind: RequestKind) -> bool:
    """Whether the kernel of a gradient finds the result before each item in its tile: of rows that fit a tile.

    It moves fewer bytes than one that reads the results. A length that is a symbol is not asked for: the graph of a
    compiler serves all.
    """
    request, row, x = kind.request, gradient.row, kind.shapes[0]
    assert x is not None
    if row is None or len(row.before) < 2 or request.call.exclusive or not _fits(gradient, request):
        return False
    if request.call.any_length:
        return False
    _, length, inner = split_shape(x[0], request.call.dim)
    is_aligned = length * request.dtype.itemsize % ALIGNMENT == 0
    whole = (
        inner == 1
        and request.call.link is None
        and not kind.segmented
        and kind.shapes[3] is None
        and request.call.start is None
    )
    default = request.call.widen() is None and not request.call.compensated
    return whole and default and should_recompute(length, request.carry_dtype.itemsize, is_aligned=is_aligned)


def _fits(gradient: Gradient, request: Request) -> bool:
    """Whether the row supports results of this dtype."""
    return dtype_named(request.dtype).kind in gradient.kinds


# ---- by kernels


def by_rows(kept: Kept, gy: torch.Tensor, gfinal: torch.Tensor | None, tape: Tape) -> Tensors | None:
    """Return the gradients of term, gate and carry-in by kernels; None where no row or no kernel computes them.

    ``gy`` is the gradient of the result, ``gfinal`` that of the carry-out.
    """
    request, carries = kept.kind.request, kept.needs[3]
    gradient = request.operator.gradient
    if gradient is None or not _fits(gradient, request):
        return None
    if (gfinal is not None and not gradient.begins) or (carries and not gradient.ends):
        return None  # the row supports no such carries
    selects = kept.mask if kept.mask is not None and not kept.weighted and not kept.kind.indexed else None
    if gradient.of_terms is not None and not kept.needs[2]:
        gradient = gradient.of_terms
    apart = selects is not None and request.call.compensated and gradient.masked is not None
    row = (request.call.exclusive and gradient.after) or gradient.row or request.operator
    row = gradient.masked if selects is not None and gradient.masked and not apart else row
    gate, saved = kept.gate if gradient.gate else None, kept.indices
    if gradient.gate == "x":
        assert kept.x is not None
        term = tape.apply(_times, kept.x, kept.mask) if kept.weighted else kept.x
        gate = _convert(term, request.dtype, tape)
    if gradient.saved == "before":  # the result of an exclusive scan is the result before each item
        saved = kept.y if request.call.exclusive and row.saved else None
    elif gradient.saved == "y":
        saved = kept.y
    inputs = Inputs(gy, None if apart else selects, gate, kept.starts, kept.offsets, gfinal, saved)
    saved_results = False
    if row.saved and saved is None and _recomputes(gradient, kept.kind):
        inputs = _read_tiles(kept, inputs, tape)
    elif row.saved and saved is None:
        saved_results = kept.y is not None and not (request.call.per_segment and kept.initial is not None)
        saved = kept.y if saved_results else _before(kept, tape)
        inputs = inputs._replace(saved=None if saved is None else _contiguous(saved, tape, serves=False))
        if inputs.saved is None:
            return None
        if saved_results and kept.initial is not None:
            inputs = inputs._replace(begin=_begin(kept.initial, request, inputs.x.shape, tape))
    if gfinal is not None:
        initial = _convert(gfinal, request.carry_dtype, tape)
        inputs = inputs._replace(initial=_contiguous(initial, tape, serves=False))
    if inputs.saved is not None:  # beside it operands are broadcast or strided as it is
        inputs = inputs._replace(
            x=_near(inputs.x, tape), gate=None if inputs.gate is None else _near(inputs.gate, tape)
        )
    call = request.call.derivative(
        row.name,
        reverse=not request.call.reverse,
        exclusive=request.call.exclusive if gradient.exclusive is None else gradient.exclusive,
        final=carries,
        dtype=_dtype(kept, row),
        carry=request.carry_dtype,
    )
    asked = Request(call=call, inputs=inputs, carry_dtype=request.carry_dtype, saved_results=saved_results)
    results = _run(asked, tape)
    if results is None:
        return None
    of_term = results[0]
    if apart:
        of_term = tape.apply(lambda gradient, mask: torch.where(mask, gradient, 0), of_term, selects)
    return of_term, results[1] if row.second else None, results[-1] if carries else None


def _read_tiles(kept: Kept, inputs: Inputs, tape: Tape) -> Inputs:
    """The inputs of a kernel that finds the result before each item in its tile.

    Operands that are not contiguous rows are copied, which moves fewer bytes than an extra forward scan.
    """
    shape = inputs.x.shape

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.expand(shape).clone(memory_format=torch.contiguous_format)

    def tiled(tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None or (
            tensor.shape == torch.Size(shape) and tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0
        ):
            return tensor
        return tape.apply(spread, tensor)

    x = tiled(inputs.x)
    assert x is not None
    return inputs._replace(x=x, mask=tiled(inputs.mask), gate=tiled(inputs.gate))


def _begin(initial: torch.Tensor, request: Request, shape: torch.Size, tape: Tape) -> torch.Tensor:
    """The carry-in with one item for each line of ``shape``, adjacent lines side by side: in place where it is so."""
    dim, dtype = request.call.dim, request.carry_dtype
    lines = line_shape(shape, dim)

    def spread(initial: torch.Tensor) -> torch.Tensor:
        if initial.numel() == 1:
            return initial.to(dtype).reshape(())
        return initial.to(dtype).expand(lines).contiguous().unsqueeze(dim)

    in_place = initial.numel() == 1 or (initial.shape == lines and initial.is_contiguous())
    return (tape.view if in_place and initial.dtype == dtype else tape.apply)(spread, initial)


def _before(kept: Kept, tape: Tape) -> torch.Tensor | None:
    """The result before each item: saved, or from the exclusive forward scan; None where there is no kernel."""
    request = kept.kind.request
    call = replace(request.call, exclusive=True, final=False)
    if kept.y is None:
        assert kept.x is not None
        inputs = kept.forward_inputs(kept.x)
    else:
        call, inputs = (
            replace(call, op=LATEST.name),
            Inputs(kept.y, None, None, kept.starts, kept.offsets, kept.initial),
        )
    results = _run(replace(request, call=call, inputs=inputs), tape)
    return None if results is None else results[0]


def _run(request: Request, tape: Tape) -> tuple[torch.Tensor, ...] | None:
    """Run one scan by a kernel and note it on the tape; None where there is no kernel."""
    found = run(request)
    if found is None:
        return None
    results, launcher = found
    if launcher is not None:
        tape.record_launch(launcher, readable(request).flat, results)
    return results


def _dtype(kept: Kept, row: Operator) -> torch.dtype:
    """The output dtype of a row: x's where it is no wider than the accumulator, else the result's."""
    request, told = kept.kind.request, kept.kind.shapes[0]
    assert told is not None
    here, carry = dtype_named(told[1]), dtype_named(request.carry_dtype)
    narrows = here.stored and here.kind == carry.kind and here.bytes <= carry.bytes
    alone = not (kept.weighted or row.second or request.call.compensated)
    if narrows and alone:
        return told[1]
    # The gradients of weights and gates that are wider than the results are not rounded to the results' dtype.
    pairs = zip(kept.kind.shapes[:3], kept.needs[:3], strict=True)
    wider = any(each is not None and need and each[1].itemsize > request.dtype.itemsize for each, need in pairs)
    return request.carry_dtype if wider else request.dtype


def _near(tensor: torch.Tensor, tape: Tape) -> torch.Tensor:
    """The tensor, if it is broadcast or has contiguous rows; else a contiguous copy."""
    return _contiguous(tensor, tape, serves=tensor.ndim == 0 or 0 in tensor.stride() or tensor.stride(-1) == 1)


def _contiguous(tensor: torch.Tensor, tape: Tape, *, serves: bool) -> torch.Tensor:
    return tensor if serves or tensor.is_contiguous() else tape.apply(torch.Tensor.contiguous, tensor)


def _convert(tensor: torch.Tensor, dtype: torch.dtype, tape: Tape) -> torch.Tensor:
    return tensor if tensor.dtype == dtype else tape.apply(partial(torch.Tensor.to, dtype=dtype), tensor)


# ---- by the fallback


def by_fallback(kept: Kept, gy: torch.Tensor, gfinal: torch.Tensor | None) -> Tensors:
    """Return the gradients as ``NAMES`` from the fallback's own autograd graph, which is right to any order."""
    inputs, needs = kept.forward_inputs(gy), kept.needs
    again = torch.is_grad_enabled()  # whether a second derivative is wanted
    with torch.enable_grad():
        # A view of each, because two inputs may be one tensor.
        pairs = zip(inputs.differentiable, needs, strict=True)
        views = tuple(_differentiate(t) if need and t is not None else t for t, need in pairs)
        results = compute(kept.kind.request, inputs._replace(**dict(zip(NAMES, views, strict=True))))  # type: ignore[arg-type]
        given = [(results[0], gy), *([(results[-1], gfinal)] if gfinal is not None else [])]
        given = [(y, g) for y, g in given if y.requires_grad]
        if not given:
            return (None,) * len(needs)
        wanted = [view for view, need in zip(views, needs, strict=True) if need and view is not None]
        ys, gs = [y for y, _ in given], [g for _, g in given]
        found = iter(torch.autograd.grad(ys, wanted, gs, create_graph=again, allow_unused=True))
    return tuple(next(found) if need else None for need in needs)


def _differentiate(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a tensor that gradients are taken by, which may have been saved without its history."""
    view = tensor.view_as(tensor)
    return view if view.requires_grad else view.requires_grad_()
