"""What a forward pass saves for its backward pass, and that as the backward pass finds it.

``gradient`` of an operator's row says which row computes the gradient of a scan, and what that reads.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch

from scanops.codegen.derivatives import Gradient, should_recompute
from scanops.codegen.dtypes import dtype_named
from scanops.requests.geometry import ALIGNMENT, split_shape
from scanops.requests.request import NAMES, Inputs, Needs, Request, RequestKind, SavedTensors, Tensors
from scanops.runtime.recipes import Tape


class SavedForward(NamedTuple):
    """A forward scan as its backward pass finds it: the call, which gradients are wanted, and what was saved."""

    kind: RequestKind
    needs: Needs
    tensors: SavedTensors

    def replace_tensors(self, **tensors: torch.Tensor | None) -> SavedForward:
        """Return the same with other tensors of these names."""
        return self._replace(tensors=self.tensors._replace(**tensors))

    def forward_inputs(self, like: torch.Tensor) -> Inputs:
        """The inputs of the forward scan; those not saved are expanded from one element, for shape and dtype only."""
        x, mask, gate, initial = (
            like.new_empty((), dtype=shape[1]).expand(shape[0]) if each is None and shape is not None else each
            for each, shape in zip(self.tensors, self.kind.shapes, strict=False)
        )
        assert x is not None
        return Inputs(x, mask, gate, self.tensors.starts, self.tensors.offsets, initial)

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
            x, mask = self.tensors.x, self.tensors.mask
            of_x = tape.apply(multiply_conjugate, of_term, mask) if self.needs[0] and mask is not None else None
            of_mask = tape.apply(multiply_conjugate, of_term, x) if self.needs[1] and x is not None else None
        return self.sum_gradients((of_x, of_mask, of_gate, of_initial), tape)

    def sum_gradients(self, gradients: Tensors, tape: Tape) -> Tensors:
        """The requested gradients, summed over broadcast dimensions and converted to the dtype of each input."""
        return tuple(
            None
            if each is None or like is None or not need
            else each
            if (each.shape, each.dtype) == like
            else tape.apply(partial(sum_to, shape=like[0], dtype=like[1]), each)
            for each, like, need in zip(gradients, self.kind.shapes, self.needs, strict=True)
        )


def sum_to(gradient: torch.Tensor, *, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Sum a gradient over broadcast dimensions, in the dtype of the input, to which it is converted."""
    real = gradient.real if gradient.is_complex() and not dtype.is_complex else gradient
    if real.shape != shape and dtype.itemsize > real.dtype.itemsize:  # torch rounds a sum to the dtype of its items
        ahead = real.ndim - len(shape)
        dims = [d for d in range(real.ndim) if d < ahead or shape[d - ahead] == 1 != real.shape[d]]
        real = real.sum(dims, keepdim=True, dtype=dtype)
    return real.sum_to_size(shape).to(dtype)


def multiply_conjugate(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return ``one`` times the conjugate of ``other``, in the dtype that both promote to whatever their dimensions."""
    return one.to(torch.promote_types(one.dtype, other.dtype)) * other.conj()


def saved_mask(kind: RequestKind, needs: Needs) -> tuple[bool, ...]:
    """Return which of x, mask, gate, initial, result and indices are saved for the gradients in ``needs``."""
    found = kind.saved_masks.get(needs)
    if found is None:
        names = _list_saved(kind, needs)
        found = kind.saved_masks[needs] = tuple(name in names for name in (*NAMES, "y", "indices"))
    return found


def _list_saved(kind: RequestKind, needs: Needs) -> set[str]:
    call, mask, gradient = kind.request.call, kind.shapes[1], kind.request.operator.gradient
    wanted = {name for name, need in zip(NAMES, needs, strict=True) if need}
    weighted = mask is not None and mask[1] != torch.bool
    # Whether the first or second gradient reads the inputs.
    reads = gradient is None or bool(gradient.gate) or not supports(gradient, kind.request)
    if reads or (gradient is not None and gradient.saved == "indices" and (call.final or "initial" in wanted)):
        found = {"mask", "gate", "initial", "indices"}
        # The terms of a recurrence are read by no gradient but that of a numeric mask.
        if gradient is None or gradient.gate != "gate" or (weighted and "mask" in wanted):
            found.add("x")
        if gradient is not None and _reads_results(gradient, kind, gates="gate" in wanted):
            found.add("y")
        return found
    if weighted:  # each is multiplied by the other
        return {"indices"} | ({"mask"} if "x" in wanted else set()) | ({"x"} if "mask" in wanted else set())
    return {"indices"} if kind.indexed else {"indices", "mask"}  # an index is never that of a masked-out item


def _reads_results(gradient: Gradient, kind: RequestKind, *, gates: bool) -> bool:
    """Whether the kernel of a gradient reads the results of the forward scan."""
    if gradient.saved != "before":
        return gradient.saved == "y" and not compares_rounded_results(kind)
    return gates if gradient.of_terms is not None else not finds_results_in_tiles(gradient, kind)


def compares_rounded_results(kind: RequestKind) -> bool:
    """Whether a gradient that compares items with results has to find those before they were rounded to their dtype.

    Results are one of the items or the carry-in: they are as exact if those have the results' dtype.
    """
    request, (x, mask, _, initial) = kind.request, kind.shapes[:4]
    if not request.operator.ordered or request.dtype == request.carry_dtype:
        return False
    assert x is not None
    is_weighted = mask is not None and mask[1] != torch.bool
    is_carried = initial is not None or request.call.start is not None or request.call.link is not None
    return is_weighted or is_carried or x[1] != request.dtype


def finds_results_in_tiles(gradient: Gradient, kind: RequestKind) -> bool:
    """Whether the kernel of a gradient finds the result before each item in its tile: of rows that fit a tile.

    It moves fewer bytes than one that reads the results. A length that is a symbol is not asked for: the graph of a
    compiler serves all.
    """
    request, row, x = kind.request, gradient.row, kind.shapes[0]
    assert x is not None
    if row is None or len(row.before) < 2 or request.call.exclusive or not supports(gradient, request):
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


def supports(gradient: Gradient, request: Request) -> bool:
    """Whether the row supports results of this dtype."""
    return dtype_named(request.dtype).kind in gradient.kinds
