"""Fused scans with gradients: autograd records one node, whose backward pass is again such a scan.

For sums y[i] = then(s[i], x[i]), s[i] = s[i-1] + map(x[i]), the gradient that reaches s[i] is a sum from the end, and
that of each tensor an expression of it. For products and recurrences, s[i] = a[i] s[i-1] + b[i], it is a recurrence
from the end with the same gates. Where derivatives need s, one more kernel computes s[i-1] again.

Source: reverse-mode differentiation as in Griewank and Walther, "Evaluating Derivatives" (2008).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling

from scanops import environment
from scanops import torch_private as private
from scanops.fusion.expressions import Graph, Node, Term, arguments_of, is_float, wide
from scanops.fusion.kernel import MOST_OPERANDS, MOST_OUTPUTS, Fusion, Operand, Output, fusion_of
from scanops.fusion.kernels import Tensors, Work, composed, computed, shape_of
from scanops.ops import schema
from scanops.ops.backward import summed_to
from scanops.ops.dispatch import is_followed, is_symbol
from scanops.requests.call import is_recorded, runs_kernels
from scanops.requests.checks import check_dim
from scanops.runtime import calls, native

_RECURRENCES = ("sum", "prod", "linear")  # the operators whose gradients are such scans


def run(work: Work, tensors: Tensors) -> Tensors:
    """Return the outputs of a fused scan: by one kernel, by one operator, or by torch's operators around a scan."""
    if runs_kernels(tensors) and shape_of(tensors).numel():
        return differentiated(work, tensors, computed)
    if is_followed(tensors) and not _is_derived() and type(tensors[0]).__name__ != "DTensor":
        return operated(work.fusion.text, work[1:], tensors)
    return composed(work, tensors)


def repeated(key: calls.Key, tensors: Tensors) -> torch.Tensor | Tensors | None:
    """Return the outputs of a call like one before it: by C++, or by the launch that served that; None: not yet."""
    if native.served is not None and len(tensors) <= len(native.SLOTS):
        answer = native.served(native.slots(tensors), key)
        if answer is not None:
            return answer
    if not runs_kernels(tensors):
        return None
    known = calls.FUSED.get((key, environment.SCOPED.get(), *calls.facts(tensors)))
    if known is None:
        return None
    work, launcher = known
    if not launcher.own:
        if calls.superseded((launcher,)):
            return None
    elif native.served is None:
        native.repeated(launcher.kernel.target)
    elif launcher.generation != native.generation():
        native.learn_fused(key, tensors, launcher)
    found = differentiated(work, tensors, lambda work, tensors: launcher.outputs(tensors))
    return found[0] if len(found) == 1 else found


def operated(text: str, scan: tuple[Any, ...], tensors: Tensors) -> Tensors:
    """Return the outputs by the operator; ``scan``: the fields of ``Work`` after the fusion."""
    op, dim, reverse, exclusive = scan
    shape = torch.broadcast_tensors(*tensors)[0].shape  # type: ignore[no-untyped-call]
    dim = check_dim("scan", shape, dim)
    any_length = len(shape) > 0 and is_symbol(shape[dim])
    return tuple(schema.FUSED(list(tensors), text, op, dim, reverse, exclusive, any_length))


def _is_derived() -> bool:
    """Whether eager code runs under a transform that takes derivatives, or in forward mode."""
    kinds = [level.key() for level in private.interpreters() or ()]
    return private.dual_level() >= 0 or any(kind != private.TransformType.Vmap for kind in kinds)


def differentiated(work: Work, tensors: Tensors, compute: Callable[[Work, Tensors], Tensors]) -> Tensors:
    """Return the outputs that ``compute`` gives, recorded by autograd where a gradient is wanted."""
    if not (is_recorded() and any(each.requires_grad for each in tensors)):
        return compute(work, tensors)
    if work.op in _RECURRENCES and len(tensors) + len(work.fusion.outputs) < MOST_OPERANDS:
        found: Tensors = _Fused.apply(work, compute, *tensors)  # type: ignore[no-untyped-call]
        return found
    return composed(work, tensors)


class _Fused(torch.autograd.Function):
    """The node of a fused scan: it saves the tensors of the call, and nothing else."""

    @staticmethod
    def forward(ctx: Any, work: Work, compute: Callable[[Work, Tensors], Tensors], *tensors: torch.Tensor) -> Tensors:
        ctx.work, ctx.text = work, work.fusion.text
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        outputs = tuple(compute(work, tensors))
        ctx.mark_non_differentiable(*(each for each in outputs if not each.is_floating_point()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        work, tensors, needs = ctx.work, ctx.saved_tensors, tuple(ctx.needs_input_grad[2:])
        if is_dynamo_compiling():
            every = schema.FUSED_BACKWARD(list(gradients), list(tensors), needs, ctx.text, *work[1:])
            return None, None, *(each if need else None for each, need in zip(every, needs, strict=True))
        return None, None, *gradients_of(work, tensors, gradients, needs)


def gradients_of(
    work: Work, tensors: Tensors, gradients: Sequence[torch.Tensor | None], needs: tuple[bool, ...]
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of the tensors that ``needs`` are wanted of, from those of the outputs."""
    given = tuple(each is not None for each in gradients)
    if not any(given):
        return (None,) * len(tensors)
    shape = shape_of(tensors)
    whole = tuple(each.shape == shape for each in tensors)
    adjoint = _adjoint(work.fusion, work.op, work.exclusive, given, needs, whole)
    known = tuple(each.contiguous() if each.requires_grad else each for each in gradients if each is not None)
    read = (*tensors, *known)
    if adjoint.before is not None:
        again = Work(adjoint.before, work.op, work.dim, work.reverse, True)
        read += run(again, tensors)
    found: list[torch.Tensor] = []
    for fusion in adjoint.parts:
        found += run(Work(fusion, adjoint.op, work.dim, not work.reverse, adjoint.exclusive), read)
    pairs = zip(tensors, adjoint.of, strict=True)
    return tuple(None if at is None else summed_to(found[at], shape=each.shape, dtype=each.dtype) for each, at in pairs)


def pulled_back(graph: Graph, roots: Sequence[tuple[Term, Term]]) -> dict[int, Term]:
    """Return the gradient by each node, from those of the ``roots``, pairs of a node and its gradient."""
    found: dict[int, Term] = {}

    def give(to: int, gradient: Term) -> None:
        gradient = gradient.cast(graph.nodes[to][1])
        found[to] = found[to] + gradient if to in found else gradient

    for root, gradient in roots:
        if is_float(root.dtype):
            give(root.at, gradient)
    for at in range(max(found, default=-1), -1, -1):
        if at in found:
            terms = [Term(graph, each) for each in arguments_of(graph.nodes[at])]
            if any(is_float(each.dtype) for each in terms):
                gradients = _derivative(Term(graph, at), found[at], *terms)
                for term, of_term in zip(terms, gradients, strict=False):
                    if of_term is not None and is_float(term.dtype):
                        give(term.at, of_term)
    return found


def _derivative(y: Term, d: Term, *terms: Term) -> tuple[Term | None, ...]:
    """The gradients of the arguments of a node from its own, ``d``; None: it has none."""
    operation, x = str(y.node[0]), terms[0]
    rule = _RULES.get(operation)
    if rule is not None:
        return (rule(d, x, y),)
    if operation == "where":
        return None, x.select(d, 0.0), x.select(0.0, d)
    if operation in ("maximum", "minimum"):
        x, other = terms
        share = x.compare("gt" if operation == "maximum" else "lt", other).select(d, 0.0)
        share = x.compare("eq", other).select(d * 0.5, share)
        return share, d - share
    other = terms[-1]
    if operation == "mul":
        return d * other, d * x
    if operation == "div":
        of_x = d / other
        return of_x, -(of_x * y)
    if operation == "pow":
        of_x = d * other * x.apply("pow", other - 1.0)
        return other.compare("eq", 0.0).select(0.0, of_x), y.compare("eq", 0.0).select(0.0, d * y * x.apply("log"))
    return {"add": (d, d), "sub": (d, -d)}.get(operation, ())


_RULES: dict[str, Callable[[Term, Term, Term], Term | None]] = {  # (gradient of y, x, y) -> gradient of x
    "cast": lambda d, x, y: d,
    "round": lambda d, x, y: d,
    "detach": lambda d, x, y: None,
    "floor": lambda d, x, y: None,
    "neg": lambda d, x, y: -d,
    "abs": lambda d, x, y: x.compare("gt", 0.0).select(d, x.compare("lt", 0.0).select(-d, 0.0)),
    "exp": lambda d, x, y: d * y,
    "exp2": lambda d, x, y: d * y * 0.6931471805599453,
    "expm1": lambda d, x, y: d * (y + 1.0),
    "log": lambda d, x, y: d / x,
    "log2": lambda d, x, y: d / (x * 0.6931471805599453),
    "log1p": lambda d, x, y: d / (x + 1.0),
    "sqrt": lambda d, x, y: d / (y * 2.0),
    "rsqrt": lambda d, x, y: d * y * y * y * -0.5,
    "sin": lambda d, x, y: d * x.apply("cos"),
    "cos": lambda d, x, y: -(d * x.apply("sin")),
    "tanh": lambda d, x, y: d * (1.0 - y * y),
    "erf": lambda d, x, y: d * (-(x * x)).apply("exp") * 1.1283791670955126,
    "sigmoid": lambda d, x, y: d * y * (1.0 - y),
    "softplus": lambda d, x, y: d * x.apply("sigmoid"),
}


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
    direct = pulled_back(local, roots)

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
    through_map = pulled_back(graph, of_items if gate is None else [*of_items, (gate, total * previous)])

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
