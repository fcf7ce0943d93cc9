"""Fused scans whose results are summed over lines, by PyTorch's operators in chunks of steps.

The states of all lines exist for one chunk at a time, in the backward pass as well, which computes them again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from scanops.codegen.fusion.fusion import Fusion
from scanops.codegen.fusion.graph import wide
from scanops.fallback.fused import evaluate
from scanops.requests.call import Call
from scanops.requests.fused import broadcast_shape, carry_dtype_of, without_dims
from scanops.requests.geometry import line_shape
from scanops.requests.request import Inputs, Needs, Tensors

Outputs = tuple[torch.Tensor, ...]
Scan = Callable[[Call, Inputs], Outputs]
CHUNK_ITEMS = 2**20  # states of a chunk
CHUNK_STEPS = 32  # of a chunk at least: the backward pass keeps one state for so many


class _Lines(NamedTuple):
    """A call and its operands, of the number of dimensions of the broadcast shape."""

    call: Call
    fusion: Fusion
    shape: torch.Size
    operands: Outputs
    scan: Scan

    @staticmethod
    def of(call: Call, given: Inputs, scan: Scan) -> _Lines:
        assert call.fusion is not None
        shape = broadcast_shape(given.operands)
        operands = tuple(each.reshape([1] * (len(shape) - each.ndim) + list(each.shape)) for each in given.operands)
        return _Lines(call, call.fusion, shape, operands, scan)

    @property
    def spans(self) -> Iterator[tuple[int, int]]:
        """Where each chunk begins, and its steps, in the order of the scan."""
        length = self.shape[self.call.dim]
        lines = max(1, math.prod(line_shape(self.shape, self.call.dim)))
        steps = max(CHUNK_STEPS, CHUNK_ITEMS // lines)
        begins = range(0, length, steps)
        for begin in reversed(begins) if self.call.reverse else begins:
            yield begin, min(steps, length - begin)

    def narrow(self, operands: Sequence[torch.Tensor], begin: int, steps: int) -> Outputs:
        """The operands of a chunk; those that do not vary along the line are whole."""
        dim = self.call.dim
        return tuple(each if each.shape[dim] == 1 else each.narrow(dim, begin, steps) for each in operands)

    def first_carry(self, initial: torch.Tensor | None) -> torch.Tensor:
        """The state of each line before its first item."""
        shape = line_shape(self.shape, self.call.dim)
        if initial is not None:
            return initial.expand(shape)
        return torch.zeros((), dtype=carry_dtype_of(self.fusion), device=self.operands[0].device).expand(shape)

    def compute(self, operands: Outputs, carry: torch.Tensor, steps: int) -> tuple[Outputs, torch.Tensor]:
        """Return the outputs of a chunk, with a dimension of size 1 for each that is summed, and the last states."""
        fusion, call = self.fusion, self.call
        shape = [steps if d == call.dim else size for d, size in enumerate(self.shape)]
        values: dict[int, torch.Tensor] = {}
        leaves: dict[str, Any] = {"operand": operands}
        roots, flags = list(fusion.elements), None
        operation, _, *parts_of_gate = fusion.nodes[roots[1]]
        if operation == "where" and fusion.nodes[parts_of_gate[1]][::2] == ("number", 0):
            # What stands before such an item is not read: 0 times infinity is no number.
            (flags,) = evaluate(fusion.nodes, [parts_of_gate[0]], leaves, values)
            roots[1], flags = parts_of_gate[2], flags.expand(shape)
        element, gate = (each.expand(shape) for each in evaluate(fusion.nodes, roots, leaves, values))
        # The states are not rounded to a half type, which no result of theirs is stored in.
        dtype = carry.dtype
        element, gate = element.to(dtype), gate.to(dtype)
        turns = call.reverse and flags is not None  # the flags are those in the order of the scan
        if turns and flags is not None:
            element, gate, flags = element.flip(call.dim), gate.flip(call.dim), flags.flip(call.dim)
        plain = Call(call.op, call.dim, call.reverse and not turns, call.exclusive, True, dtype)
        states, last = self.scan(plain, Inputs(element, gate=gate, starts=flags, initial=carry))
        states = states.flip(call.dim) if turns else states
        leaves["result"] = [states]
        parts = evaluate(fusion.nodes, [fusion.nodes[at][2] for at in fusion.sums], leaves, values)
        for at, part in zip(fusion.sums, parts, strict=True):
            values[at] = part.expand(shape).sum(call.summed, keepdim=True)
        shape = [1 if d in call.summed else size for d, size in enumerate(shape)]
        found = evaluate(fusion.nodes, [each.at for each in fusion.outputs], leaves, values)
        dtypes = [getattr(torch, each.dtype) for each in fusion.outputs]
        return tuple(each.expand(shape).to(dtype) for each, dtype in zip(found, dtypes, strict=True)), last


def compose_summed(call: Call, given: Inputs, scan: Scan) -> Outputs:
    """Return the outputs of a checked scan, and its carry-out if asked for; ``scan`` computes plain scans."""
    lines = _Lines.of(call, given, scan)
    carry, chunks = lines.first_carry(given.initial), list[Outputs]()
    for begin, steps in lines.spans:
        found, carry = lines.compute(lines.narrow(lines.operands, begin, steps), carry, steps)
        chunks.append(tuple(each.squeeze(call.summed) for each in found))
    chunks = chunks[::-1] if call.reverse else chunks
    dim = call.dim - sum(d < call.dim for d in call.summed)
    if not chunks:
        shape = without_dims(lines.shape, call.summed)
        dtypes = [getattr(torch, each.dtype) for each in lines.fusion.outputs]
        results = [lines.operands[0].new_empty(shape, dtype=dtype) for dtype in dtypes]
    else:
        results = [torch.cat(each, dim).contiguous() for each in zip(*chunks, strict=True)]
    return (*results, *([carry.clone(memory_format=torch.contiguous_format)] if call.final else []))


def differentiate_by_torch(
    call: Call, given: Inputs, gradients: Sequence[torch.Tensor | None], needs: Needs, scan: Scan
) -> Tensors:
    """Return the gradients of ``given.differentiable`` that ``needs`` are wanted of, from those of the outputs.

    Chunk by chunk from the last one, unless they are differentiated again.
    """
    of_x, _, _, of_initial, *of_further = needs
    wanted = [of_x, *of_further]
    if torch.is_grad_enabled():
        found, carry = _record(call, given, gradients, wanted, of_initial, scan)
    else:
        found, carry = _walk_back(call, given, gradients, wanted, of_initial, scan)
    x, *further = found
    return (x, None, None, carry, *further)


def _record(
    call: Call,
    given: Inputs,
    gradients: Sequence[torch.Tensor | None],
    wanted: Sequence[bool],
    of_initial: bool,
    scan: Scan,
) -> tuple[list[torch.Tensor | None], torch.Tensor | None]:
    """The gradients as functions of the tensors and of what is given, which autograd records."""
    start = given.initial
    x, *further = [each.view_as(each) for each in given.operands]  # of which no one is made of another
    start = None if start is None else start.view_as(start)
    inputs = Inputs(x, initial=start, further=tuple(further))
    outputs = compose_summed(call, inputs, scan)
    pairs = [
        (y, of_y) for y, of_y in zip(outputs, gradients, strict=True) if of_y is not None and y.grad_fn is not None
    ]
    leaves = [each for each, need in zip(inputs.operands, wanted, strict=True) if need]
    leaves += [start] if of_initial and start is not None else []
    found = _pull_back([y for y, _ in pairs], leaves, [each for _, each in pairs], again=True)
    rest = list(found)
    every = [rest.pop(0) if need else None for need in wanted]
    return every, rest.pop() if rest else None


def _walk_back(
    call: Call,
    given: Inputs,
    gradients: Sequence[torch.Tensor | None],
    wanted: Sequence[bool],
    of_initial: bool,
    scan: Scan,
) -> tuple[list[torch.Tensor | None], torch.Tensor | None]:
    """The gradients from the last chunk to the first, each of which is computed again."""
    lines = _Lines.of(call, given, scan)
    dim = call.dim
    # Gradients of what does not vary are sums of many terms: in float32 at least.
    operands = tuple(each.detach().to(getattr(torch, wide(str(each.dtype)[6:]))) for each in lines.operands)
    spans = list(lines.spans)
    starts = [lines.first_carry(None if given.initial is None else given.initial.detach())]
    for begin, steps in spans[:-1]:
        starts.append(lines.compute(lines.narrow(operands, begin, steps), starts[-1], steps)[1])
    *of_results, of_carry = gradients if call.final else (*gradients, None)
    of_whole = []
    for each in of_results:
        for d in call.summed:
            each = None if each is None else each.unsqueeze(d)
        of_whole.append(each)
    found: list[list[torch.Tensor]] = [[] for _ in wanted]  # of chunks, or their sum
    for (begin, steps), start in zip(reversed(spans), reversed(starts), strict=False):
        with torch.enable_grad():
            start = start.detach().requires_grad_()
            parts = tuple(
                each.detach().requires_grad_(need)
                for each, need in zip(lines.narrow(operands, begin, steps), wanted, strict=True)
            )
            results, last = lines.compute(parts, start, steps)
        of_parts = [None if each is None else each.narrow(dim, begin, steps) for each in of_whole]
        pairs = zip((*results, last), (*of_parts, of_carry), strict=True)
        known = [(y, of_y.to(y.dtype)) for y, of_y in pairs if of_y is not None and y.requires_grad]
        leaves = [*(each for each in parts if each.requires_grad), start]
        *given_back, of_carry = _pull_back([y for y, _ in known], leaves, [each for _, each in known])
        for place, need in enumerate(wanted):
            if need:
                part, whole = given_back.pop(0), found[place]
                varies = lines.operands[place].shape[dim] > 1
                found[place] = [*whole, part] if varies or not whole else [whole[0] + part]
    every = [
        _join(each, dim, call.reverse, of) if need else None
        for each, of, need in zip(found, given.operands, wanted, strict=True)
    ]
    if not of_initial or given.initial is None:
        return every, None
    of_carry = torch.zeros_like(given.initial) if of_carry is None else of_carry
    return every, of_carry.sum_to_size(given.initial.shape).to(given.initial.dtype)


def _pull_back(
    results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], given: Sequence[torch.Tensor], again: bool = False
) -> list[torch.Tensor]:
    """The gradients of leaves, 0 where no result depends on one. ``again``: they are differentiated again."""
    if not results or not leaves:
        return [torch.zeros_like(each) for each in leaves]
    return list(torch.autograd.grad(results, leaves, given, create_graph=again, materialize_grads=True))


def _join(parts: list[torch.Tensor], dim: int, reverse: bool, operand: torch.Tensor) -> torch.Tensor:
    """The gradient of an operand, from those of chunks, the last one in the order of the scan first."""
    if not parts:
        return torch.zeros_like(operand, memory_format=torch.contiguous_format)
    parts = [each.to(operand.dtype) for each in (parts if reverse else parts[::-1])]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim)).reshape(operand.shape)
