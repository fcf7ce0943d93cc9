"""Gradients and tangents of scans by scans, to any order: the derivative of a scan is a recurrence.

In scan order a line is h[i] = c(h[i-1], t[i]), of terms t and of gates where there are any, so that

    dh[i] = f[i] * dh[i-1] + w[i] * dt[i],    f = dc/dh, w = dc/dt

which is ``linear_scan`` with the gate f: along the line for tangents, against it for gradients. f and w are the
``derivative`` of an operator's row, made of the items and of the results before and at an item. Masks, segments,
directions and carries are those of the scan itself. The results are made of scans and of torch's operations, and so
have derivatives themselves.

Source: automatic differentiation as in Griewank and Walther, "Evaluating Derivatives" (2008); for the recurrence Martin
and Cundy, "Parallelizing Linear Recurrent Neural Nets Over Sequence Length" (2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from scanops import environment
from scanops.codegen.derivatives import Derivative
from scanops.codegen.dtypes import dtype_named
from scanops.codegen.lazy import lazy
from scanops.codegen.operators import operator_named
from scanops.requests.call import Call
from scanops.requests.geometry import line_shape
from scanops.requests.request import Inputs, Request, Tensors
from scanops.requests.segments import carry_along, flags_along, places_along, shift
from scanops.requests.torch_state import has_kernels

Outputs = tuple[torch.Tensor, ...]

Scan = Callable[[Call, Inputs], Outputs]  # computes a scan of tensors that derivatives are taken of


class _Line:
    """The lines of a scan in the dtype of its carries, with the quantities that derivatives need."""

    def __init__(self, request: Request, y: torch.Tensor | None, scan: Scan) -> None:
        self.request, self.call, self.inputs = request, request.call, request.inputs
        row = request.operator
        self.local = row.derivative or Derivative()
        self._nothing = 0 if row.indices else row.start_of(dtype_named(request.carry_dtype))
        self._scan = scan
        mask = self.inputs.mask
        selects = mask is not None and mask.dtype == torch.bool
        self.keep = mask if selects else None
        self.weights: torch.Tensor | None = None if selects else self.wide(mask)  # in the carry dtype
        # A narrowed result is not the exact previous state, but all that a linear recurrence saves.
        serves = y is None or y.dtype == request.carry_dtype or (row.gated and row.derivative is not None)
        self._y = self.wide(y) if serves else None

    def scan(self, op: str, x: torch.Tensor, **options: Any) -> Outputs:
        """Run another scan over the same lines, and the same segments unless ``starts`` are given."""
        flags = {name: options.get(name, False) for name in ("reverse", "exclusive", "final")}
        inputs = self.inputs._replace(x=x, initial=self.wide(options.get("initial")), saved=None)
        inputs = inputs._replace(mask=options.get("mask"), gate=options.get("gate"))
        call = self.call.derivative(op, dtype=self.request.carry_dtype, **flags)
        if "starts" in options:
            inputs, call = inputs._replace(starts=options["starts"], offsets=None), replace(call, chunk=None)
        return self._scan(call, inputs)

    def wide(self, tensor: torch.Tensor | None) -> Any:
        """A tensor in the carry dtype."""
        return None if tensor is None else tensor.to(self.request.carry_dtype)

    @lazy
    def term(self) -> torch.Tensor:
        """The scanned items in the carry dtype; masked-out items have the value that changes no result."""
        term = self.wide(self.inputs.x)
        return self.kept(term if self.weights is None else term * self.weights, self._nothing)

    @lazy
    def gate(self) -> Any:
        """The gates in the carry dtype."""
        return self.wide(self.inputs.gate)

    @lazy
    def before(self) -> torch.Tensor:
        """The result before each item (exclusive scan)."""
        if self._y is None:
            return self._again(exclusive=True)
        return self._y if self.call.exclusive else self._delay(self._y)

    @lazy
    def after(self) -> torch.Tensor:
        """The result that includes each item (inclusive scan)."""
        return self._y if self._y is not None and not self.call.exclusive else self._again(exclusive=False)

    def _delay(self, y: torch.Tensor) -> torch.Tensor:
        """The results shifted by one item in scan order, with the carry-in or the identity at the start."""
        dim, ahead, nothing = self.call.dim, self.call.reverse, self._nothing
        shape = y.shape or torch.Size((1,))  # a line of its own
        edge: float | torch.Tensor = nothing
        offsets = self.inputs.offsets
        if self.call.per_segment and self.inputs.initial is not None and offsets is not None:
            nothing = carry_along(self.wide(self.inputs.initial), offsets, shape, dim)
            edge = nothing.narrow(dim, shape[dim] - 1 if ahead else 0, min(1, shape[dim]))
        elif self.inputs.initial is not None:
            edge = self.wide(self.inputs.initial).expand(line_shape(shape, dim)).unsqueeze(dim)
        before = shift(y.reshape(shape), dim, edge, ahead=ahead)
        flags = flags_along(self.inputs.starts, offsets, self.inputs.x.expand(shape), dim, self.call.chunk)
        if flags is not None:
            first = shift(flags, dim, False, ahead=True) if ahead else flags
            before = torch.where(first, nothing, before)
        return before.reshape(y.shape)

    def _again(self, *, exclusive: bool) -> torch.Tensor:
        call, given = self.call, {"mask": self.keep, "gate": self.inputs.gate, "initial": self.inputs.initial}
        return self.scan(call.op, self.term, reverse=call.reverse, exclusive=exclusive, **given)[0]

    def kept(self, tensor: torch.Tensor, otherwise: float) -> torch.Tensor:
        """The tensor with ``otherwise`` at masked-out items."""
        return tensor if self.keep is None else torch.where(self.keep, tensor, otherwise)

    @lazy
    def factor(self) -> torch.Tensor | None:
        """The derivative f by the result before each item; None where it is 1 everywhere."""
        return None if self.local.before is None else self.kept(self.local.before(self), 1)


def knows(op: str, dtype: torch.dtype, *, kernels: bool) -> bool:
    """Whether derivatives of an operator with results of ``dtype`` are scans, or follow from its indices.

    False without ``kernels`` or under a policy of fallback: PyTorch computes a recurrence in many passes, which only
    pays for the derivatives of another recurrence.
    """
    row, kind = operator_named(op), dtype_named(dtype).kind
    if row.indices:
        return kind in Derivative().kinds
    known = row.derivative
    is_slow = not kernels or environment.policy() == "fallback"
    if known is None or (known.before and not row.gated and is_slow):
        return False
    return kind in known.kinds


def pull_back(
    request: Request,
    needs: tuple[bool, ...],
    results: Tensors,
    gy: torch.Tensor,
    gfinal: torch.Tensor | None,
    scan: Scan,
) -> Tensors:
    """Return the needed gradients of term, gate and initial from those of the result and the carry-out.

    ``results`` are the values and any indices; operators with indices have no gradients of carries. s[i] is the
    gradient of h[i]: s[i] = gy[i] + f[i+1] * s[i+1]; for exclusive results s[i] = u[i+1] with
    u[i] = gy[i] + f[i] * u[i+1].
    """
    line = _Line(request, results[0], scan)
    if request.operator.indices:
        return _collect(line, results[1], gy), None, None
    gy = gy.to(request.carry_dtype)
    local, call = line.local, request.call
    back: dict[str, Any] = {"initial": gfinal, "reverse": not request.call.reverse, "final": needs[3]}
    if line.factor is None:
        found = line.scan("sum", gy, exclusive=call.exclusive, **back)
        s = found[0]
    else:
        factor = line.factor.conj().resolve_conj()
        terms = gy if call.exclusive else factor * gy
        found = line.scan("linear", terms, gate=factor, exclusive=True, **back)
        s = found[0] if call.exclusive else gy + found[0]
    of_gate = line.kept(s * local.gate(line).conj(), 0) if local.gate is not None and needs[2] else None
    of_term = s if local.term is None or not (needs[0] or needs[1]) else s * local.term(line).conj()
    return line.kept(of_term, 0), of_gate, found[-1] if needs[3] else None


def push_forward(request: Request, results: Tensors, tangents: Tensors, scan: Scan) -> Outputs:
    """Return the tangents of the result, and of the carry-out if there is one, from those of the inputs."""
    if request.call.complete:
        y, start = results[0], tangents[3]
        assert y is not None
        (moved,) = push_forward(request.inclusive, (request.within(y), None), tangents, scan)
        return (request.extend(moved, moved.new_zeros(()) if start is None else start),)
    line = _Line(request, results[0], scan)
    of_x, of_mask, of_gate, of_initial = tangents
    of_x = of_x if of_x is None or line.weights is None else of_x * line.weights
    of_mask = None if of_mask is None else line.wide(of_mask) * line.wide(line.inputs.x)
    of_term = of_x if of_mask is None else of_mask if of_x is None else of_x + of_mask
    if request.operator.indices:
        return (_gather(request, results[1], of_term).to(request.dtype),)
    local = line.local
    if of_term is not None and local.term is not None:
        of_term = of_term * local.term(line)
    if of_gate is not None and local.gate is not None:
        through = of_gate * local.gate(line)
        of_term = through if of_term is None else of_term + through
    moved = torch.zeros_like(request.x, dtype=request.carry_dtype) if of_term is None else of_term
    moved = line.kept(moved.to(request.carry_dtype), 0).expand(request.x.shape)
    op, call = "sum" if line.factor is None else "linear", request.call
    along = {"reverse": call.reverse, "exclusive": call.exclusive, "final": call.final}
    found = line.scan(op, moved, gate=line.factor, initial=of_initial, **along)
    return (found[0].to(request.dtype), *found[1:])


# ---- operators with indices


def _collect(line: _Line, indices: torch.Tensor | None, gy: torch.Tensor) -> torch.Tensor:
    """The gradient of each item of an operator with indices: the sum over the results that the item gave."""
    assert indices is not None
    dim = line.call.dim
    at, given = (each.reshape(each.shape or (1,)) for each in (indices, gy))
    given = torch.where(at < 0, torch.zeros_like(given), given)
    if environment.policy() == "fallback" or not has_kernels(gy):  # one pass, faster where segments are many
        found = torch.zeros_like(given).scatter_add(dim, at.clamp(min=0), given)
    else:
        found = _sum_by_runs(line, at, given)
    return found.reshape(gy.shape)


def _sum_by_runs(line: _Line, at: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """The gradient of each item by a segmented scan, in a fixed order of additions.

    Results that come from one item are consecutive and start at the item, so the gradients are sums of segments from
    each leading item to the next.
    """
    dim, back = line.call.dim, not line.call.reverse
    if line.call.exclusive:  # an exclusive result comes from the item before
        at, given = shift(at, dim, -1, ahead=back), shift(given, dim, 0, ahead=back)
    leads = at == places_along(at, dim)
    starts = leads if back else shift(leads, dim, False, ahead=False)  # a segment that ends at its leading item
    sums = line.scan("sum", given, starts=starts, reverse=back)[0]
    return torch.where(leads, sums, torch.zeros_like(sums))


def _gather(request: Request, indices: torch.Tensor | None, tangent: torch.Tensor | None) -> torch.Tensor:
    """The tangent of each result: that of the item its index names."""
    assert indices is not None
    if tangent is None:
        return torch.zeros_like(request.x)
    at, given = (each.reshape(each.shape or (1,)) for each in (indices, tangent.expand(request.x.shape)))
    found = given.gather(request.call.dim, at.clamp(min=0))
    return torch.where(at < 0, torch.zeros_like(found), found).reshape(indices.shape)
