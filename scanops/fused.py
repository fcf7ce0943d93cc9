"""Scans of expressions: elements made of several tensors, results passed through a function, in one kernel.

``scan_fused`` checks a call, traces its functions and runs a kernel; autograd records it as one node, whose backward
pass is again such a scan. For sums y[i] = then(s[i], x[i]), s[i] = s[i-1] + map(x[i]), the gradient that reaches s[i]
is a sum from the end, and that of each tensor an expression of it. For products and recurrences, s[i] = a[i] s[i-1] +
b[i], it is a recurrence from the end with the same gates. Where derivatives need s, one more kernel computes it again.

Where torch follows the code (transforms, modes, subclasses), on the CPU and under a policy without a kernel, the same
expressions are computed by torch's operators around an ordinary scan.

Source: reverse-mode differentiation as in Griewank and Walther, "Evaluating Derivatives" (2008).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch.compiler import is_compiling

from scanops import environment
from scanops.codegen.lines import are_few
from scanops.codegen.operators import is_built_in, operator_named
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest, shown
from scanops.expressions import (
    MOST_OPERANDS,
    MOST_OUTPUTS,
    Fusion,
    Graph,
    Node,
    Operand,
    Output,
    Term,
    fusion_of,
    wide,
)
from scanops.ops.backward import summed_to
from scanops.ops.dispatch import called, known_name
from scanops.processes import NO_FORK
from scanops.requests import checks
from scanops.requests.call import Call, is_recorded, runs_kernels
from scanops.requests.geometry import FURTHER, is_aligned, layout_of, line_shape, split_shape
from scanops.requests.request import Inputs
from scanops.runtime import calls
from scanops.runtime.launcher import Launcher, device_of
from scanops.runtime.policies import POLICIES
from scanops.tracing import key_of, traced

Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Any]
_PLACES = ("output", "indices", "third", "fourth")  # the fields of ScanArguments for outputs
_NAMES = ("input", *FURTHER)  # and for operands
_RECURRENCES = ("sum", "prod", "linear")  # the operators whose gradients are such scans


class Work(NamedTuple):
    """A fused scan without its tensors."""

    fusion: Fusion
    op: str
    dim: int  # counts from 0
    reverse: bool
    exclusive: bool


def scan_fused(
    given: Any,
    op: Any,
    dim: Any,
    map: Function | None,
    then: Function | None,
    mask: torch.Tensor | None,
    reverse: bool,
    exclusive: bool,
    dtype: torch.dtype | None,
    others: Mapping[str, object],
) -> torch.Tensor | Tensors:
    """Return what ``scanops.scan`` returns for a tuple of tensors, or with ``map`` or ``then``."""
    inputs = tuple(given) if isinstance(given, tuple | list) else (given,)
    op = known_name(op)
    if is_compiling():
        return _followed(inputs, op, dim, map, then, mask, reverse, exclusive, dtype)
    row = operator_named(op)
    _check(inputs, row, dim, (map, then), mask, others)
    Call(op, 0, reverse, exclusive, False, dtype).check_options()
    tensors = inputs if mask is None else (*inputs, mask)
    shape = _shape_of(tensors)
    dim = checks.check_dim("scan", torch.empty(shape, device="meta"), dim)
    keys: list[Any] = [None if each is None else key_of(each) for each in (map, then)]
    seen = all(each is None or key is not None for each, key in zip((map, then), keys, strict=True))
    kinds = tuple((each.dtype, each.ndim == 0) for each in tensors)
    fusion = traced(map, then, row, kinds, mask is not None, dtype, tuple(keys) if seen else None)
    found = run(Work(fusion, op, dim, reverse, exclusive), tensors)
    return found[0] if len(found) == 1 else found


def run(work: Work, tensors: Tensors) -> Tensors:
    """Return the outputs of a fused scan: by one kernel, or by torch's operators where none can run."""
    if not runs_kernels(tensors) or not _shape_of(tensors).numel():
        return composed(work, tensors)
    if is_recorded() and any(each.requires_grad for each in tensors):
        if work.op in _RECURRENCES and len(tensors) + len(work.fusion.outputs) < MOST_OPERANDS:
            found: Tensors = _Fused.apply(work, *tensors)  # type: ignore[no-untyped-call]
            return found
        return composed(work, tensors)
    return computed(work, tensors)


# ---- by a kernel


@dataclass(frozen=True)
class _Request:
    """What a Launcher needs of a request."""

    call: Call
    x: torch.Tensor
    operands: dict[str, torch.Tensor]
    places: tuple[tuple[str, torch.Size, torch.dtype], ...]
    shape: torch.Size
    inputs: Inputs = field(default_factory=lambda: Inputs(x=torch.empty(0)))


class _Launcher(Launcher):
    """A launch that reads tensors by their places in the call."""

    __slots__ = ("reads",)
    reads: tuple[tuple[str, int], ...]  # field of ScanArguments, place of the tensor

    def __call__(self, inputs: Sequence[torch.Tensor | None], outs: Tensors) -> None:
        """Launch on the tensors of a call."""
        where = outs[0].device
        with torch.cuda.device(where) if where.type == "cuda" else torch.no_grad():
            arguments, reference = self._taken()
            for name, place in self.reads:
                tensor = inputs[place]
                assert tensor is not None
                setattr(arguments, name, tensor.data_ptr())
            for (name, _, _), out in zip(self.places, outs, strict=True):
                setattr(arguments, name, out.data_ptr())
            self._queue(arguments, reference, where)


def computed(work: Work, tensors: Tensors) -> Tensors:
    """Return the outputs by a kernel; by torch's operators where there is none."""
    key = (work, environment.SCOPED.get(), *calls.facts(tensors))
    launcher = calls.FUSED.get(key)
    if launcher is None:
        launcher = _launcher(work, tensors)
        if launcher is None:
            return composed(work, tensors)
        if launcher.own:
            calls.remember(calls.FUSED, key, launcher)
    found: Tensors = launcher.outputs(tensors)
    return found


def spec_of(work: Work, tensors: Tensors) -> tuple[ScanSpec, list[int]]:
    """Return the spec of the kernel for tensors of these shapes and strides, and which of them it reads, in order."""
    shape, dim = _shape_of(tensors), work.dim
    views = [each.expand(shape) for each in tensors]
    order = _order(work.fusion, [layout_of(each, shape, dim) for each in views])
    views = [views[place] for place in order]
    layouts = [layout_of(each, shape, dim) for each in views]
    layouts[0] = "strided" if layouts[0] == "line" else layouts[0]
    fusion = work.fusion.selected(order).laid(layouts)
    _, length, inner = split_shape(shape, dim)
    spec = ScanSpec(
        op=work.op,
        dtype=fusion.operands[0].dtype,
        length=length,
        out_dtype=fusion.outputs[0].dtype,
        reverse=work.reverse,
        exclusive=work.exclusive,
        inner=inner,
        input_layout=layouts[0],
        map=fusion.text,
        # an odd number of columns is read item by item, which any boundary allows
        aligned=inner % 2 == 1 < inner
        or all(is_aligned(each, layout, dim) for each, layout in zip(views, layouts, strict=True)),
    )
    return spec, order


def _launcher(work: Work, tensors: Tensors) -> _Launcher | None:
    """The launch for tensors of these shapes and strides, by a kernel that is found or built."""
    spec, order = spec_of(work, tensors)
    shape, device = _shape_of(tensors), device_of(tensors[0])
    few = are_few(spec, line_shape(shape, work.dim).numel(), device.multiprocessors)
    with NO_FORK:
        from scanops.runtime.kernels import obtain  # the store and what else only a first call needs

    kernel = obtain(spec, device.target, POLICIES[environment.policy()], few=few)
    if kernel is None:
        return None
    request: Any = _Request(
        call=Call(work.op, work.dim),
        x=tensors[0],
        operands={name: tensors[place].expand(shape) for name, place in zip(_NAMES, order, strict=False)},
        places=tuple(
            (name, shape, getattr(torch, dtype)) for name, (_, dtype) in zip(_PLACES, work.fusion.outputs, strict=False)
        ),
        shape=shape,
    )
    launcher = _Launcher(kernel, request, device, spec, few)
    launcher.reads = tuple(zip(_NAMES, order, strict=False))
    return launcher


def _order(fusion: Fusion, layouts: list[Any]) -> list[int]:
    """The operands that the expressions read, first one that lies as the output does, if there is any."""
    read = list(fusion.read) or [0]
    first = min(read, key=lambda place: (layouts[place] != "dense", layouts[place] == "line", place))
    return [first, *(place for place in read if place != first)]


# ---- by torch's operators

_TORCH: dict[str, Any] = {
    **{"and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor, "not": torch.bitwise_not},
    "softplus": lambda x: torch.nn.functional.softplus(x, threshold=40),  # where log(1 + exp(x)) rounds to x
    "detach": torch.Tensor.detach,
}


def composed(work: Work, tensors: Tensors) -> Tensors:
    """Return the outputs by torch's operators around an ordinary scan, which have derivatives of every kind."""
    fusion, shape = work.fusion, _shape_of(tensors)
    values: dict[int, torch.Tensor] = {}

    def value(root: int, result: torch.Tensor | None = None) -> torch.Tensor:
        for at in Graph(fusion.nodes).reached(root):
            if at not in values:
                values[at] = _value(fusion.nodes[at], values, tensors, result)
        return values[root].expand(shape)

    dtype = getattr(torch, fusion.scanned)
    gate = None if fusion.gate is None else value(fusion.gate)
    given: Any = (value(fusion.element), None, gate, None, None, None)
    y: Any = called(given, (None,), False, work.op, work.dim, work.reverse, work.exclusive, False, dtype, None)
    y = y.to(getattr(torch, wide(fusion.scanned)))
    return tuple(value(at, y).to(getattr(torch, stored)).contiguous() for at, stored in fusion.outputs)


def _value(node: Node, values: dict[int, torch.Tensor], tensors: Tensors, result: torch.Tensor | None) -> Any:
    operation, dtype, *arguments = node
    to = getattr(torch, dtype)
    if operation == "operand":
        return tensors[arguments[0]].to(to)
    if operation == "number":
        return torch.full((), arguments[0], dtype=to, device=tensors[0].device)
    if operation == "result":
        assert result is not None
        return result
    x = values[arguments[0]]
    if operation == "cast":
        return x.to(to)
    if operation == "round":
        return x.to(getattr(torch, arguments[1])).to(to)
    given = [values[each] for each in arguments]
    return (_TORCH.get(operation) or getattr(torch, operation))(*given)


def _followed(
    inputs: Tensors, op: str, dim: int, map: Any, then: Any, mask: Any, reverse: bool, exclusive: bool, dtype: Any
) -> torch.Tensor | Tensors:
    """The same by calling the functions on tensors, as a compiler follows."""
    made = map(*inputs) if map is not None else inputs[0] if len(inputs) == 1 else inputs[:2]
    gate, x = made if isinstance(made, tuple | list) else (None, made)
    shape = torch.broadcast_shapes(*(each.shape for each in inputs))  # type: ignore[no-untyped-call]
    given: Any = (x.expand(shape), mask, gate, None, None, None)
    y: Any = called(given, (None,), False, op, dim, reverse, exclusive, False, dtype, None)
    found: torch.Tensor | Tensors = y if then is None else then(y, *inputs)
    return found


# ---- gradients


class _Fused(torch.autograd.Function):
    """The node of a fused scan: it saves the tensors of the call, and nothing else."""

    @staticmethod
    def forward(ctx: Any, work: Work, *tensors: torch.Tensor) -> Tensors:
        ctx.work = work
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        outputs = computed(work, tensors)
        ctx.mark_non_differentiable(*(each for each in outputs if not each.is_floating_point()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        work, tensors = ctx.work, ctx.saved_tensors
        given = tuple(each is not None for each in gradients)
        if not any(given):
            return (None,) * (1 + len(tensors))
        shape = _shape_of(tensors)
        whole = tuple(each.shape == shape for each in tensors)
        adjoint = _adjoint(work.fusion, work.op, work.exclusive, given, tuple(ctx.needs_input_grad[1:]), whole)
        known = tuple(each.contiguous() if each.requires_grad else each for each in gradients if each is not None)
        read = (*tensors, *known)
        if adjoint.before is not None:
            again = Work(adjoint.before, work.op, work.dim, work.reverse, True)
            read += run(again, tensors)
        found: list[torch.Tensor] = []
        for fusion in adjoint.parts:
            found += run(Work(fusion, adjoint.op, work.dim, not work.reverse, adjoint.exclusive), read)
        pairs = zip(tensors, adjoint.of, strict=True)
        return None, *(
            None if at is None else summed_to(found[at], shape=each.shape, dtype=each.dtype) for each, at in pairs
        )


class _Adjoint(NamedTuple):
    """The scans of a backward pass. Their tensors: those of the call, the given gradients, the results before items."""

    before: Fusion | None  # computes the result before each item, where derivatives need it
    parts: tuple[Fusion, ...]  # whose outputs follow each other
    op: str
    exclusive: bool
    of: tuple[int | None, ...]  # which output is the gradient of each tensor


@functools.lru_cache(maxsize=1024)
def _adjoint(
    fusion: Fusion, op: str, exclusive: bool, given: tuple[bool, ...], needs: tuple[bool, ...], whole: tuple[bool, ...]
) -> _Adjoint:
    """Return the backward pass of a fused scan, of s[i] = c(s[i-1], x[i]) for short.

    ``given``: which outputs have a gradient; ``needs``: which tensors are to have one; ``whole``: which are of the
    shape of the results.
    """
    count, scanned = len(fusion.operands), wide(fusion.scanned)
    outputs = [each for each, there in zip(fusion.outputs, given, strict=True) if there]
    before = count + len(outputs)  # the place of s[i-1]
    dtypes = (*(each.dtype for each in fusion.operands), *(each.dtype for each in outputs), scanned)
    source, local, graph = Graph(fusion.nodes), Graph(), Graph()

    def leaf_of(home: Graph) -> Callable[[Node], Term]:
        return lambda node: home.operand(*((before, scanned) if node[0] == "result" else (node[2], dtypes[node[2]])))

    # ---- the derivatives of `then`: s is a tensor of its own, in the place of s[i-1]
    made = [source.carried(each.at, local, leaf_of(local)) for each in outputs]
    roots = [(y, local.operand(count + n, dtypes[count + n])) for n, y in enumerate(made)]
    direct = local.pulled_back(roots)

    # ---- s by s[i-1], which the gradients that reach s and the tensors through `then` are expressions of
    element = source.carried(fusion.element, graph, leaf_of(graph))
    gate = None if fusion.gate is None else source.carried(fusion.gate, graph, leaf_of(graph))
    previous, factor = graph.operand(before, scanned), {"sum": None, "prod": element, "linear": gate}[op]
    after = previous if factor is None else factor * previous
    after = previous if exclusive else after if op == "prod" else after + element

    def through_then(operand: Term) -> Term | None:
        found = direct.get(operand.at)
        leaf = leaf_of(graph)
        return found and local.carried(found.at, graph, lambda node: after if node[2] == before else leaf(node))

    # ---- the scan from the end: u[i] is the gradient that reaches s[i] through the items behind it, and
    # factor[i] (of_s[i] + u[i]) is u[i-1]
    of_s = through_then(local.operand(before, scanned))
    of_s = graph.number(0, scanned) if of_s is None else of_s.cast(scanned)
    result = graph.add("result", scanned)
    total = result if factor is None or exclusive else of_s + result
    terms = of_s if factor is None or exclusive else factor * of_s
    of_items = [(element, total * previous if op == "prod" else total)]
    through_map = graph.pulled_back(of_items if gate is None else [*of_items, (gate, total * previous)])

    found: list[Output | None] = []
    for place, wanted in enumerate(needs):
        dtype = dtypes[place]
        parts = through_map.get(graph.operand(place, dtype).at), through_then(local.operand(place, dtype))
        there = [each for each in parts if each is not None]
        gradient = functools.reduce(lambda one, other: one + other, there) if there and wanted else None
        stored = dtype if whole[place] else wide(dtype)  # others are summed
        found.append(None if gradient is None else Output(gradient.cast(wide(dtype)).at, stored))
    distinct = list(dict.fromkeys(each for each in found if each is not None))
    operands, gates = tuple(map(Operand, dtypes)), None if factor is None else factor.at
    scans = [
        Fusion(tuple(graph.nodes), operands, terms.at, gates, scanned, tuple(distinct[at : at + MOST_OUTPUTS]))
        for at in range(0, len(distinct), MOST_OUTPUTS)
    ]
    reads = any(before in each.read for each in scans)
    scans = scans if reads else [replace(each, operands=operands[:before]) for each in scans]
    state = (Output(source.add("result", scanned).at, scanned),)
    again = Fusion(tuple(source.nodes), fusion.operands, fusion.element, fusion.gate, scanned, state)
    return _Adjoint(
        before=fusion_of(again.text) if reads else None,
        parts=tuple(fusion_of(each.text) for each in scans),
        op="sum" if factor is None else "linear",
        exclusive=exclusive if factor is None else True,
        of=tuple(None if each is None else distinct.index(each) for each in found),
    )


# ---- checks


def _shape_of(tensors: Tensors) -> torch.Size:
    first = tensors[0].shape
    if all([each.shape == first for each in tensors]):
        return first
    shape: torch.Size = torch.broadcast_shapes(*(each.shape for each in tensors))  # type: ignore[no-untyped-call]
    return shape


def _check(
    inputs: tuple[Any, ...], row: Any, dim: Any, functions: tuple[Any, Any], mask: Any, others: Mapping[str, object]
) -> None:
    """Raise unless the arguments are of their types and go together."""
    wrong = [name for name, value in others.items() if value is not None and value is not False]
    if wrong:
        raise UnsupportedRequest(
            f"scan: {wrong[0]} does not go with map, then or several tensors",
            allowed="mask, reverse, exclusive and dtype",
            value=f"{wrong[0]}={shown(others[wrong[0]])}",
            hint="call the function first, and scan its result",
        )
    for name, function in zip(("map", "then"), functions, strict=True):
        if function is not None and not callable(function):
            raise UnsupportedRequest(
                f"scan: {name} must be a function",
                allowed="a function of the tensors" + " and, first, of the result" * (name == "then"),
                value=f"{name}={shown(function)}",
                hint=f"pass {name}=lambda x: torch.exp(x), for example",
            )
    count, most = len(inputs) + (mask is not None), MOST_OPERANDS
    if not 1 <= count <= most:
        raise UnsupportedRequest(
            f"scan: a kernel reads 1 to {most} tensors",
            allowed=f"1 to {most} tensors, the mask included",
            value=f"{count} tensors",
            hint="combine some of them before the call",
        )
    if row.indices or (row.gated and functions[0] is None and len(inputs) != 2):
        raise UnsupportedRequest(
            f"scan: {row.name!r} needs another call",
            allowed="operators with one result; for 'linear' a map to a pair of gate and value, or these two tensors",
            value=f"op={row.name!r}, {len(inputs)} tensors",
            hint=f"call scanops.{row.function}" if row.indices else "pass map=lambda ...: (gate, value)",
        )
    if functions[0] is None and len(inputs) > 1 and not (row.gated or functions[1]):
        raise UnsupportedRequest(
            "scan: several tensors need a map",
            allowed="map, which makes the elements of the tensors; or then, which reads those after the first",
            value=f"{len(inputs)} tensors",
            hint="pass map=lambda x, y: x * y, for example",
        )
    if mask is not None and not is_built_in(row):
        raise UnsupportedRequest(
            "scan: a mask beside map or then needs a built-in operator",
            allowed="an operator whose identity is an element",
            value=f"op={row.name!r}",
            hint="call torch.where in map",
        )
    for place, each in enumerate((*inputs, *(() if mask is None else (mask,)))):
        name = "mask" if place == len(inputs) else f"tensor {place}"
        checks.check_tensor("scan", name, each)
        checks.check_device("scan", name, each, inputs[0])
        checks.check_readable("scan", name, each)
        legal = name != "mask" or each.dtype == torch.bool
        if each.is_complex() or each.dtype in _STORED_ONLY or not legal:
            raise UnsupportedRequest(
                f"scan: {name} must be {'bool' if not legal else 'real'} beside map or then",
                allowed="a bool mask" if not legal else "bool, int8 to int64, uint8 and floating dtypes",
                value=f"{name}.dtype={each.dtype}",
                hint="multiply by a numeric mask in map" if not legal else "convert the tensor first",
            )
    try:
        _shape_of(inputs if mask is None else (*inputs, mask))
    except RuntimeError as problem:
        shapes = ", ".join(str(tuple(each.shape)) for each in inputs)
        raise UnsupportedRequest(
            "scan: the tensors must broadcast",
            allowed="each dimension equal in all tensors, or 1",
            value=f"shapes {shapes}" + (f", mask {tuple(mask.shape)}" if mask is not None else ""),
            hint="reshape the tensors; views are not copied",
        ) from problem


_STORED_ONLY = tuple(getattr(torch, name) for name in ("uint16", "uint32", "uint64"))
