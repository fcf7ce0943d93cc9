"""One scan of given tensors: its call, the kernel that serves it, the bytes that it moves, and whether it is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.lines import choose_variant
from scanops.fallback import scans
from scanops.ops.dispatch import run
from scanops.ops.serving import serve
from scanops.requests.call import Call
from scanops.requests.request import Inputs, Request, check_request
from scanops.requests.torch_state import runs_kernels

__all__ = ["POISONS", "Outputs", "Scan", "other_bits", "poison", "same_bits"]

CHECKED_ITEMS = 2**22  # of each checked slice: one at either end, one in the middle
POISONS = ((float("nan"), -12345), (6e4, 54321))  # (for floats, for integers)
UNNAMED = 1e-5  # relative error of operators whose row names no number of roundings
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
Outputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A call with its tensors."""

    name: str
    call: Call
    inputs: Inputs
    out: torch.Tensor | None = None  # where the result goes

    def run(self, out: torch.Tensor | None = None) -> Outputs:
        """Return the outputs, as the public function of the operator computes them; the first is ``out`` if given."""
        out = self.out if out is None else out
        return serve(self.call, self.inputs, run, () if out is None else (out,), eager=runs_kernels(self.inputs.flat))

    @property
    def request(self) -> Request:
        """The call on these tensors, checked."""
        return check_request(self.call, self.inputs, (self.out,))

    @property
    def moved(self) -> int:
        """The bytes that the scan has to move: each input read once, each output written once."""
        read = sum(each.nbytes for each in self.inputs.flat if each is not None)
        return read + sum(shape.numel() * dtype.itemsize for _, shape, dtype in self.request.places)

    def key(self, target: str, multiprocessors: int) -> KernelKey:
        """Return the key of the kernel that serves the call on such a GPU."""
        request, x = self.request, self.inputs.x
        out = torch.empty(x.shape, dtype=request.dtype, device=x.device) if self.out is None else self.out
        spec = request.spec(out)
        return KernelKey(spec, target, choose_variant(spec, request.line_shape.numel(), multiprocessors))

    def is_right(self, outputs: Outputs) -> bool:
        """Whether slices of the outputs equal PyTorch's own: integers exactly, others to within rounding of float64's.

        An error is relative to the scan of the magnitudes, so that sums that cancel are not held to their small value.
        """
        x, call, length = self.inputs.x, self.request.call, self.inputs.x.shape[self.call.dim]
        bound = max(_limit(call.op, length), 2 * math.sqrt(length / 64) * 2.0**-24)
        for lines in _slices(x.shape, call.dim):
            given = _mapped(self.inputs, lambda each, lines=lines: _part(each, x.ndim, call.dim, *lines))  # type: ignore[misc]
            found = [_part(each, x.ndim, call.dim, *lines) for each in outputs]
            if not x.is_floating_point():
                if not all(map(torch.equal, found, scans.outputs(given, call))):
                    return False
                continue
            wide = replace(call, dtype=torch.float64)
            exact = scans.outputs(_mapped(given, _doubled), wide)
            magnitudes = scans.outputs(_mapped(given, _magnitude), wide)
            for y, right, magnitude in zip(found, exact, magnitudes, strict=True):
                if not y.is_floating_point():  # indices
                    if not torch.equal(y, right):
                        return False
                    continue
                off = (y.double() - right).abs_() / magnitude.clamp_min_(torch.finfo(torch.float64).tiny)
                if not off.nan_to_num_(nan=math.inf).max() <= bound + torch.finfo(y.dtype).eps:
                    return False
        return True


def poison(y: torch.Tensor, which: int = 0) -> torch.Tensor:
    """Fill ``y`` with values that no scan of these inputs gives; two poisons tell unwritten items from results."""
    return y.fill_(POISONS[which][0 if y.is_floating_point() else 1])


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two results have the same bits, NaN payloads included."""
    return not bool(other_bits(first, second))


def other_bits(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return whether two results differ in a bit, on their device and without a synchronisation."""
    bits = _BITS.get(first.element_size(), torch.uint8)
    return (first.view(bits) != second.view(bits)).any()


def _limit(op: str, length: int) -> float:
    limit = scans.limit(op, length)
    return limit if math.isfinite(limit) else UNNAMED


def _mapped(inputs: Inputs, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
    """Return the inputs with every tensor that belongs to lines or items changed."""
    changed = [None if each is None else change(each) for each in inputs.flat]
    return Inputs.of_flat(changed)._replace(offsets=inputs.offsets)


def _doubled(each: torch.Tensor) -> torch.Tensor:
    return each.double() if each.is_floating_point() else each


def _magnitude(each: torch.Tensor) -> torch.Tensor:
    return each.double().abs() if each.is_floating_point() else each


def _part(each: torch.Tensor, rank: int, dim: int, other: int, start: int, width: int) -> torch.Tensor:
    """Return a slice of the lines of a tensor of x's shape, or of one without the scanned dimension."""
    return each.narrow(other - (each.ndim < rank and other > dim), start, width)


def _slices(shape: tuple[int, ...], dim: int) -> Iterator[tuple[int, int, int]]:
    """Yield (other dimension, start, width) of slices of whole lines; the whole tensor where there is one line."""
    others = [d for d in range(len(shape)) if d != dim]
    other = max(others, key=lambda d: shape[d], default=dim)
    size = shape[other]
    width = size if other == dim else max(1, min(size, CHECKED_ITEMS * size // math.prod(shape)))
    for start in sorted({0, (size - width) // 2, size - width}):
        yield other, start, width
