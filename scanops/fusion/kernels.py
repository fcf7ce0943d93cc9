"""A fused scan on tensors: by one kernel, or by torch's operators around an ordinary scan."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch.compiler import is_compiling

from scanops import environment
from scanops.codegen.dtypes import DTYPES, accumulator_of
from scanops.codegen.fusion.fusion import Fusion
from scanops.codegen.fusion.graph import Graph, Node, wide
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.layouts import needs_alignment
from scanops.codegen.operator import Join
from scanops.codegen.spec import ScanSpec
from scanops.fallback.doubling import doubled
from scanops.fallback.scans import depend
from scanops.forks import import_late
from scanops.ops.dispatch import call_of, followed, served
from scanops.requests.call import Call
from scanops.requests.geometry import FURTHER, is_aligned, layout_of, line_shape, separate, split_shape
from scanops.requests.request import Inputs
from scanops.requests.segments import shifted
from scanops.requests.torch_state import is_derived, is_memory, is_recorded, is_traced
from scanops.runtime import call_cache
from scanops.runtime.launcher import Launcher

Tensors = tuple[torch.Tensor, ...]
_PLACES = ("output", "indices", "third", "fourth")  # the fields of ScanArguments for outputs
_NAMES = ("input", *FURTHER)  # and for operands


class Work(NamedTuple):
    """A fused scan without its tensors: those of the fusion, then the carry-in, if there is one."""

    fusion: Fusion
    op: str
    dim: int  # counts from 0
    reverse: bool
    exclusive: bool
    final: bool = False  # whether the carry-out follows the outputs

    def operands(self, tensors: Tensors) -> Tensors:
        """Return the tensors without the carry-in."""
        return tensors[: len(self.fusion.operands)]

    @property
    def carry(self) -> torch.dtype:
        """The dtype of carry-in and carry-out."""
        found: torch.dtype = getattr(torch, accumulator_of(DTYPES[self.fusion.scanned]).name)
        return found if found.is_floating_point else getattr(torch, self.fusion.scanned)


def shape_of(tensors: Tensors) -> torch.Size:
    """The shape that tensors broadcast to. Raises RuntimeError where there is none."""
    if is_compiling() or is_traced():  # in comparisons symbols of sizes would be constants
        return torch.broadcast_tensors(*tensors)[0].shape  # type: ignore[no-any-return, no-untyped-call]
    shapes = [each.shape for each in tensors]
    if all([each == shapes[0] for each in shapes]):
        return shapes[0]
    try:
        return _broadcast(*shapes)
    except TypeError:  # symbols have no hash
        return _broadcast.__wrapped__(*shapes)


@functools.lru_cache(maxsize=1024)
def _broadcast(*shapes: torch.Size) -> torch.Size:
    return torch.broadcast_shapes(*shapes)  # type: ignore[no-any-return, no-untyped-call]


# ---- by a kernel


def remember(key: call_cache.Key, work: Work, tensors: Tensors) -> None:
    """Let the next call of ``key`` with such tensors be launched as this one, if a kernel has served it."""
    around = (environment.SCOPED.get(), *call_cache.facts(tensors))
    launcher = call_cache.FUSED.get((work, *around))
    if launcher is not None:
        call_cache.remember(call_cache.WORKS, (key, *around), (work, launcher))


def computed(work: Work, tensors: Tensors) -> Tensors:
    """Return the outputs by a kernel; by torch's operators where there is none."""
    operands = work.operands(tensors)
    if len(operands) < len(tensors) and tensors[-1].numel() > 1:
        tensors = (*operands, tensors[-1].expand(line_shape(shape_of(operands), work.dim)).contiguous())
    key = (work, environment.SCOPED.get(), *call_cache.facts(tensors))
    launcher = call_cache.FUSED.get(key)
    if launcher is None or call_cache.superseded((launcher,)):
        spec, order = spec_of(work, tensors)
        lines = line_shape(shape_of(operands), work.dim).numel()
        kernel, asked = call_cache.kernel_for(spec, lines, call_cache.device_of(tensors[0]))
        if kernel is None:
            return composed(work, tensors)
        launcher = bound(kernel, work.dim, tensors, order, asked)
        call_cache.remember(call_cache.FUSED, key, launcher)
    found: Tensors = launcher.outputs(tensors)
    return found


def spec_of(work: Work, tensors: Tensors) -> tuple[ScanSpec, list[int]]:
    """Return the spec of the kernel for tensors of these shapes and strides, and which of them it reads, in order."""
    operands, dim = work.operands(tensors), work.dim
    shape = shape_of(operands)
    views = [each.expand(shape) for each in operands]
    layouts: list[Any] = [layout_of(each, shape, dim) for each in views]
    # The operands that the expressions read, first one that lies as the output does, if there is any.
    read = work.fusion.read or (0,)
    moved = {place for place, each in enumerate(work.fusion.operands) if each.start is not None}
    first = min(read, key=lambda at: (at in moved, layouts[at] != "dense", layouts[at] == "line", at))
    order = sorted(read, key=lambda place: place != first)
    views, layouts = [views[place] for place in order], [layouts[place] for place in order]
    layouts[0] = "strided" if layouts[0] == "line" else layouts[0]
    fusion = work.fusion.selected(order, layouts)
    _, length, inner = split_shape(shape, dim)
    spec = ScanSpec(
        op=work.op,
        dtype=fusion.operands[0].dtype,
        length=length,
        out_dtype=fusion.outputs[0].dtype,
        reverse=work.reverse,
        exclusive=work.exclusive,
        initial=len(tensors) > len(operands),
        final=work.final,
        inner=inner,
        input_layout=layouts[0],
        map=fusion.text,
        aligned=not needs_alignment(inner, layouts[0])
        or all(is_aligned(each, layout, dim) for each, layout in zip(views, layouts, strict=True)),
    )
    return spec, order


def bound(kernel: Any, dim: int, tensors: Tensors, order: Sequence[int], asked: KernelKey) -> Launcher:
    """Return the launch of a kernel on tensors of these shapes and strides, of which it reads some, in this order."""
    spec, carry = kernel.spec, tensors[-1] if kernel.spec.initial else None
    shape = shape_of(tensors[: len(tensors) - spec.initial])
    kinds = [(shape, dtype) for _, dtype in spec.fusion.outputs]
    places = [(name, *kind) for name, kind in zip(_PLACES, kinds, strict=False)]
    places += [("carry_out", line_shape(shape, dim), spec.carry.name)] if spec.final else []
    request: Any = SimpleNamespace(  # what a Launcher needs of one
        call=Call(spec.op, dim),
        inputs=Inputs(tensors[0], initial=carry),
        x=tensors[0],
        operands={name: tensors[place].expand(shape) for name, place in zip(_NAMES, order, strict=False)},
        places=tuple((name, where, getattr(torch, dtype)) for name, where, dtype in places),
        shape=shape,
    )
    reads = [*zip(_NAMES, order, strict=False), *([] if carry is None else [("carry_in", len(tensors) - 1)])]
    return Launcher(kernel, request, call_cache.device_of(tensors[0]), asked, tuple((*each, 0) for each in reads))


# ---- by torch's operators

_TORCH: dict[str, Any] = {
    **{"and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor, "not": torch.bitwise_not},
    "softplus": lambda x: torch.nn.functional.softplus(x, threshold=40),  # where log(1 + exp(x)) rounds to x
    "detach": torch.Tensor.detach,
    "floor_divide": lambda x, y: torch.div(x, y, rounding_mode="floor"),  # which has a derivative, 0
}


def composed(work: Work, tensors: Tensors) -> Tensors:
    """Return the outputs by torch's operators around an ordinary scan, which have derivatives of every kind."""
    fusion, (initial, *_) = work.fusion, (*tensors[len(work.fusion.operands) :], None)
    tensors = tuple(
        each if start is None else shifted(each, work.dim, start, ahead=not work.reverse)
        for each, (*_, start) in zip(work.operands(tensors), fusion.operands, strict=True)
    )
    shape = shape_of(tensors)
    finals: list[torch.Tensor] = []
    results: list[torch.Tensor] = []
    values: dict[int, torch.Tensor] = {}

    def computed(roots: Sequence[int]) -> Tensors:
        found = evaluated(fusion.nodes, roots, {"operand": tensors, "result": results}, values)
        return tuple(each.expand(shape) for each in found)

    element, *gates = elements = computed(fusion.elements)
    if fusion.fields:
        results += _of_states(work, elements)
    else:
        dtype = getattr(torch, fusion.scanned)
        given: Any = (element, None, gates[0] if gates else None, None, None, initial)
        y, *finals = _scanned(given, (*work[1:], dtype, None))
        results.append(y.to(getattr(torch, wide(fusion.scanned))))
    found = zip(computed([each.at for each in fusion.outputs]), fusion.outputs, strict=True)
    outputs = [each.to(getattr(torch, output.dtype)) for each, output in found]
    if is_derived() or (is_recorded() and any(each.requires_grad for each in tensors)):
        operands = [each.expand(shape) for each in tensors]
        return (*(depend(each, operands, work.dim) for each in outputs), *finals)
    if not all(map(is_memory, (*outputs, *tensors))):  # as batches, whose storage cannot be asked
        return (*(each.clone(memory_format=torch.contiguous_format) for each in outputs), *finals)
    return (*separate(outputs, tensors), *finals)


def _scanned(tensors: tuple[Any, ...], options: tuple[Any, ...]) -> Tensors:
    """Return the results of an ordinary scan."""
    call, given, eager = call_of(tensors, (None,), False, options)
    if type(given.x).__name__ == "DTensor":
        found: Tensors = import_late("scanops.distributed.placed").scan_placed(call, given)  # takes long to import
        return found
    return served(call, given, eager=True) if eager else followed(call, given)


def _of_states(work: Work, states: Tensors) -> Tensors:
    """Scan states of several fields in log2(n) passes."""
    fusion, dim, whole = work.fusion, work.dim, states[0]
    if not whole.ndim:
        return tuple(each[0] for each in _of_states(work, tuple(each[None] for each in states)))

    def combine(older: Tensors, newer: Tensors) -> Tensors:
        found = evaluated(fusion.nodes, fusion.combine, {"older": older, "newer": newer}, {})
        return tuple(each.expand(newer[0].shape) for each in found)

    states = tuple(each.flip(dim) if work.reverse else each for each in states)
    shape = [min(1, size) if at == dim else size for at, size in enumerate(whole.shape)]
    nothing = tuple(each.new_full(shape, field.identity) for each, field in zip(states, fusion.fields, strict=True))
    if work.exclusive:
        pairs = zip(nothing, states, strict=True)
        states = tuple(torch.cat([none, each], dim).narrow(dim, 0, whole.shape[dim]) for none, each in pairs)
    states = doubled(Join(combine=combine), states, nothing, None, dim)
    return tuple(each.flip(dim) if work.reverse else each for each in states)


def evaluated(
    nodes: Sequence[Node], roots: Sequence[int], leaves: dict[str, Any], values: dict[int, torch.Tensor]
) -> Tensors:
    """Return expressions by torch's operators. ``leaves``: tensors by operation and place; ``values``: known nodes."""
    device = next(each[0].device for each in leaves.values() if each)
    for at in Graph(nodes).reached(*roots):
        if at not in values:
            operation, dtype, *arguments = nodes[at]
            to = getattr(torch, dtype)
            if operation in leaves:
                values[at] = leaves[operation][arguments[0]].to(to)
            elif operation == "number":
                values[at] = torch.full((), arguments[0], dtype=to, device=device)
            elif operation == "cast":
                values[at] = values[arguments[0]].to(to)
            elif operation == "round":
                values[at] = values[arguments[0]].to(getattr(torch, arguments[1])).to(to)
            else:
                function = _TORCH.get(operation) or getattr(torch, operation)
                values[at] = function(*(values[each] for each in arguments))
    return tuple(values[at] for at in roots)
