"""Fused scans with gradients: autograd records one node, whose backward pass is again such a scan.

For y[i] = then(s[i], x[i]), s[i] = c(s[i-1], map(x[i])), the gradient that reaches s[i] is a recurrence from the end,
u[i-1] = J[i] (u[i] + that of y[i]), where J[i] are the derivatives of s[i] by s[i-1]: a sum, a recurrence with gates,
or one of matrices and vectors for states of several fields. Those of the tensors are expressions of it. Where
derivatives need s, the forward kernel writes it as well and the backward kernel reads s[i-1] there, if that moves fewer
bytes than a kernel that computes s[i-1] again.

Source: reverse-mode differentiation as in Griewank and Walther, "Evaluating Derivatives" (2008).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling

from scanops.codegen.dtypes import DTYPES
from scanops.codegen.fusion.fusion import MOST_OPERANDS, MOST_OUTPUTS, Fusion, Operand, Output, fusion_of
from scanops.codegen.fusion.graph import Graph, Node, Term, is_float, wide
from scanops.codegen.fusion.graph_derivatives import Entries, affine, number_of, pulled_back
from scanops.codegen.operators.recurrences import EXPRESSIONS
from scanops.fusion.kernels import Tensors, Work, composed, computed, evaluated, shape_of
from scanops.ops import schema
from scanops.ops.backward import summed_to
from scanops.ops.dispatch import is_followed
from scanops.requests.checks import check_dim
from scanops.requests.torch_state import is_derived, is_recorded, is_symbol, runs_kernels

_RECURRENCES = ("sum", "prod", "linear")  # the operators of the table whose gradients are such scans
_MOST_ENTRIES = 24  # fields of a state of a matrix and a vector


def run(work: Work, tensors: Tensors) -> Tensors:
    """Return the outputs of a fused scan: by one kernel, by one operator, or by torch's operators around a scan."""
    plain = len(tensors) == len(work.fusion.operands) and not work.final
    if runs_kernels(tensors) and shape_of(work.operands(tensors)).numel():
        return differentiated(work, tensors, computed)
    if plain and is_followed(tensors) and not is_derived() and type(tensors[0]).__name__ != "DTensor":
        return operated(work.fusion.text, work[1:5], tensors)
    return composed(work, tensors)


def operated(text: str, scan: tuple[Any, ...], tensors: Tensors) -> Tensors:
    """Return the outputs by the operator; ``scan``: the fields of ``Work`` after the fusion."""
    op, dim, reverse, exclusive = scan
    shape = torch.broadcast_tensors(*tensors)[0].shape  # type: ignore[no-untyped-call]
    dim = check_dim("scan", shape, dim)
    any_length = len(shape) > 0 and is_symbol(shape[dim])
    return tuple(schema.FUSED(list(tensors), text, op, dim, reverse, exclusive, any_length))


def differentiated(work: Work, tensors: Tensors, compute: Callable[[Work, Tensors], Tensors]) -> Tensors:
    """Return the outputs that ``compute`` gives, recorded by autograd where a gradient is wanted."""
    if not (is_recorded() and any(each.requires_grad for each in tensors)):
        return compute(work, tensors)
    if _is_scanned_back(work, tensors):
        found: Tensors = _Fused.apply(work, compute, *tensors)  # type: ignore[no-untyped-call]
        return found
    return composed(work, tensors)


def _is_scanned_back(work: Work, tensors: Tensors) -> bool:
    """Whether the gradients are computed by scans."""
    fusion, wanted = work.fusion, tuple(each.requires_grad for each in work.operands(tensors))
    if work.op in _RECURRENCES:
        return any(wanted) and len(tensors) + len(fusion.outputs) < MOST_OPERANDS
    every = (True,) * len(fusion.outputs), wanted, (True,) * len(wanted)
    return bool(fusion.fields) and _adjoint(fusion, work.op, work.exclusive, *every) is not None


class _Fused(torch.autograd.Function):
    """The node of a fused scan: it saves the tensors of the call, and the states that its backward pass reads."""

    @staticmethod
    def forward(ctx: Any, work: Work, compute: Callable[[Work, Tensors], Tensors], *tensors: torch.Tensor) -> Tensors:
        ctx.work, ctx.text = work, work.fusion.text
        ctx.set_materialize_grads(False)
        needs = tuple(ctx.needs_input_grad[2:])
        ctx.states = states = _states_of(work, tensors, needs) if compute is computed else None
        if states is None:
            ctx.save_for_backward(*tensors)
            outputs = tuple(compute(work, tensors))
        else:
            found = tuple(compute(work._replace(fusion=fusion_of(states.text)), tensors))
            outputs = (*found[: len(work.fusion.outputs)], *found[states.outputs :])
            ctx.save_for_backward(*tensors, *(found[at] for at in states.at))
        ctx.mark_non_differentiable(*(each for each in outputs if not each.is_floating_point()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        work, saved, needs = ctx.work, ctx.saved_tensors, tuple(ctx.needs_input_grad[2:])
        tensors = saved[: len(needs)]
        if is_dynamo_compiling():
            every = schema.FUSED_BACKWARD(list(gradients), list(tensors), needs, ctx.text, *work[1:5], False)
            return None, None, *(each if need else None for each, need in zip(every, needs, strict=True))
        # What is differentiated again follows from the tensors of the call alone.
        states = None if torch.is_grad_enabled() or not runs_kernels(saved) else ctx.states
        return None, None, *gradients_of(work, tensors, gradients, needs, states, saved[len(needs) :])


class _States(NamedTuple):
    """The fields of the states of a fused scan that its backward pass reads, and where the forward pass writes them."""

    text: str  # of the fusion that writes them
    outputs: int  # of that fusion
    at: tuple[int, ...]  # which of these each field is
    fields: tuple[int, ...]  # the numbers of the fields
    starts: tuple[float | None, ...]  # what is before the first of a line; None: a result is what is before its item


def _states_of(work: Work, tensors: Tensors, needs: tuple[bool, ...]) -> _States | None:
    """The states to save; None where none are read, or where saving them does not move fewer bytes."""
    fusion, operands = work.fusion, work.operands(tensors)
    if len(operands) < len(tensors):  # items of the carry-in are before the first results
        return None
    shape = shape_of(operands)
    whole = tuple(each.shape == shape for each in operands)
    return _states(fusion, work.op, work.exclusive, needs[: len(operands)], whole)


@functools.lru_cache(maxsize=1024)
def _states(
    fusion: Fusion, op: str, exclusive: bool, needs: tuple[bool, ...], whole: tuple[bool, ...]
) -> _States | None:
    adjoint = _adjoint(fusion, op, exclusive, (True,) * len(fusion.outputs), needs, whole)
    if adjoint is None or adjoint.last is not None or not any(adjoint.there):
        return None
    graph, outputs = Graph(fusion.nodes), list(fusion.outputs)
    kinds = [each.dtype for each in fusion.fields] or [wide(fusion.scanned)]
    starts = [each.identity for each in fusion.fields] or [1.0 if op == "prod" else 0.0]
    fields = tuple(n for n, there in enumerate(adjoint.there) if there)
    at: list[int] = []
    for n in fields:
        result = graph.add("result", kinds[n], n).at
        # An output that is the state. Rounded, it is all that a recurrence saves.
        given = [
            k
            for k, each in enumerate(fusion.outputs)
            if _is_rounded(graph.nodes, each.at, result)
            and (op == "linear" or (each.at == result and each.dtype == kinds[n]))
        ]
        at.append(given[0] if given else len(outputs))
        outputs += [] if given else [Output(result, kinds[n])]
    moved = 2 * sum(DTYPES[outputs[k].dtype].bytes for k in at if k >= len(fusion.outputs))  # written and read
    moved += sum(DTYPES[outputs[k].dtype].bytes for k in at if k < len(fusion.outputs))
    read = {place for place in fusion.made_of((*fusion.elements, *fusion.combine)) if whole[place]}
    again = sum(DTYPES[fusion.operands[place].dtype].bytes for place in read)
    again += 2 * sum(DTYPES[kinds[n]].bytes for n in fields)
    if len(outputs) > MOST_OUTPUTS or moved >= again:
        return None
    return _States(
        text=replace(fusion, nodes=tuple(graph.nodes), outputs=tuple(outputs)).text,
        outputs=len(outputs),
        at=tuple(at),
        fields=fields,
        starts=tuple(None if exclusive else float(starts[n]) for n in fields),
    )


def _is_rounded(nodes: Sequence[Node], at: int, result: int) -> bool:
    """Whether an expression is a result, rounded or not."""
    while nodes[at][0] in ("cast", "round") and is_float(nodes[at][1]):
        at = nodes[at][2]
    return at == result


def gradients_of(
    work: Work,
    tensors: Tensors,
    gradients: Sequence[torch.Tensor | None],
    needs: tuple[bool, ...],
    states: _States | None = None,
    saved: Tensors = (),
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of the tensors that ``needs`` are wanted of, from those of the outputs.

    ``saved``: the ``states`` that the forward pass has written. Carries change places: that of the scan from the other
    end goes in as the gradient of what came out here.
    """
    if all(each is None for each in gradients):
        return (None,) * len(tensors)
    whole_call, tensors = tensors, work.operands(tensors)
    carried, of_final = len(whole_call) > len(tensors), gradients[len(work.fusion.outputs) :]
    gradients, carries = gradients[: len(work.fusion.outputs)], tuple(each for each in of_final if each is not None)
    given = tuple(each is not None for each in gradients)
    final, needs = any(needs[len(tensors) :]), needs[: len(tensors)]
    shape = shape_of(tensors)
    whole = tuple(each.shape == shape for each in tensors)
    adjoint = _adjoint(work.fusion, work.op, work.exclusive, given, needs, whole)
    assert adjoint is not None
    known_fields = (
        {} if states is None else dict(zip(states.fields, zip(saved, states.starts, strict=True), strict=True))
    )
    reads = {n for n, there in enumerate(adjoint.there) if there}
    known = tuple(each.contiguous() if each.requires_grad else each for each in gradients if each is not None)
    read = [*tensors, *known]
    parts = adjoint.parts
    if reads and reads <= known_fields.keys() and adjoint.last is None:
        read += [known_fields[n][0] if n in reads else tensors[0] for n in range(len(adjoint.there))]
        before = len(tensors) + len(known)
        kinds = {before + n: (str(y.dtype)[6:], start) for n, (y, start) in known_fields.items() if n in reads}
        parts = tuple(_reading(each, tuple(sorted(kinds.items()))) for each in parts)
    else:
        again = (run(Work(each, work.op, work.dim, work.reverse, True), whole_call) for each in adjoint.before)
        states_before = [y for each in again for y in each]
        read += [states_before.pop(0) if there else tensors[0] for there in adjoint.there]  # nothing reads the latter
    found: list[torch.Tensor] = []
    of_carry: tuple[torch.Tensor | None, ...] = (None,) * carried
    for fusion in parts:
        back = Work(fusion, adjoint.op, work.dim, not work.reverse, adjoint.exclusive, final)
        found += run(back, (*read, *carries))
        if final:
            of_carry = (summed_to(found.pop(), shape=whole_call[-1].shape, dtype=whole_call[-1].dtype),)
    if adjoint.last is not None:
        outputs = adjoint.last.outputs
        values = evaluated(adjoint.last.nodes, [each.at for each in outputs], {"operand": [*read, *found]}, {})
        dtypes = [getattr(torch, each.dtype) for each in outputs]
        found = [each.expand(shape).to(dtype) for each, dtype in zip(values, dtypes, strict=True)]
    pairs = zip(tensors, adjoint.of, strict=True)
    of = (None if at is None else summed_to(found[at], shape=each.shape, dtype=each.dtype) for each, at in pairs)
    return (*of, *of_carry)


@functools.lru_cache(maxsize=1024)
def _reading(fusion: Fusion, kinds: tuple[tuple[int, tuple[str, float | None]], ...]) -> Fusion:
    """A part of a backward pass that reads fields of states from what the forward pass saved, of these dtypes."""
    operands = list(fusion.operands)
    for place, (dtype, start) in kinds:
        operands[place] = Operand(dtype, start=start)
    return fusion_of(replace(fusion, operands=tuple(operands)).text)


class _Adjoint(NamedTuple):
    """The scans of a backward pass. Their tensors: those of the call, the given gradients, the fields before items."""

    before: tuple[Fusion, ...]  # compute the fields of the state before each item that derivatives need
    there: tuple[bool, ...]  # which these are
    parts: tuple[Fusion, ...]  # whose outputs follow each other
    last: Fusion | None  # expressions of all that by torch's operators, where a kernel would read too many tensors
    op: str
    exclusive: bool
    of: tuple[int | None, ...]  # which output is the gradient of each tensor


@functools.lru_cache(maxsize=1024)
def _adjoint(
    fusion: Fusion, op: str, exclusive: bool, given: tuple[bool, ...], needs: tuple[bool, ...], whole: tuple[bool, ...]
) -> _Adjoint | None:
    """Return the backward pass of a fused scan, of s[i] = c(s[i-1], x[i]) for short; None where it is too large.

    ``given``: which outputs have a gradient; ``needs``: which tensors are to have one; ``whole``: which are of the
    shape of the results.
    """
    count, scanned = len(fusion.operands), wide(fusion.scanned)
    outputs = [each for each, there in zip(fusion.outputs, given, strict=True) if there]
    before = count + len(outputs)  # the place of the first field of s[i-1]
    fields = [each.dtype for each in fusion.fields] or [scanned]
    dtypes = (*(each.dtype for each in fusion.operands), *(each.dtype for each in outputs), *fields)
    source, local, graph = Graph(fusion.nodes), Graph(), Graph()

    def leaf_of(home: Graph) -> Callable[[Node], Term]:
        def leaf(node: Node) -> Term:
            place = node[2] + (before if node[0] == "result" else 0)
            return home.operand(place, dtypes[place])

        return leaf

    # ---- the derivatives of `then`: the fields of s are tensors of their own, in the places of those of s[i-1]
    made = [source.carried(each.at, local, leaf_of(local)) for each in outputs]
    roots = [(y, local.operand(count + n, dtypes[count + n])) for n, y in enumerate(made)]
    direct = pulled_back(local, roots)

    # ---- s by s[i-1], which the gradients that reach s and the tensors through `then` are expressions of
    elements = [source.carried(at, graph, leaf_of(graph)) for at in fusion.elements]
    previous = [graph.operand(before + n, dtype) for n, dtype in enumerate(fields)]
    if fusion.fields:
        states = {"older": previous, "newer": elements}
        after = [source.carried(at, graph, lambda node: states[node[0]][node[2]]) for at in fusion.combine]
    elif op == "sum":
        after = [previous[0] + elements[0]]
    else:
        after = [elements[0] * previous[0] if op == "prod" else elements[1] * previous[0] + elements[0]]
    seen = previous if exclusive else after

    def through_then(operand: Term) -> Term | None:
        found, leaf = direct.get(operand.at), leaf_of(graph)
        return found and local.carried(
            found.at, graph, lambda node: seen[node[2] - before] if node[2] >= before else leaf(node)
        )

    # ---- the scan from the end: u[i] is the gradient that reaches s[i] through the items behind it
    floats = [n for n, dtype in enumerate(fields) if is_float(dtype)]
    reaching = {n: through_then(local.operand(before + n, fields[n])) for n in floats}
    of_s = {n: each.cast(fields[n]) for n, each in reaching.items() if each is not None}
    jacobian: dict[int, Entries] = {}  # by the fields of s[i], then of s[i-1]
    waiting = list(of_s) or [*floats, 0][:1]
    while waiting:
        row = waiting.pop()
        entries = pulled_back(graph, [(after[row], graph.number(1, fields[row]))])
        jacobian[row] = {n: entries[each.at] for n, each in enumerate(previous) if each.at in entries}
        waiting += [n for n in jacobian[row] if n not in jacobian and n not in waiting]
    live = sorted(jacobian)
    none, dtype = graph.number(0, scanned), fields[live[0]]
    plain, scan = False, dict[str, Any]()
    if len(live) == 1:
        factor, reached = jacobian[live[0]].get(live[0], none), of_s.get(live[0], none)
        plain = number_of(factor) == 1  # a sum
        terms = [reached] if plain else [reached if exclusive else factor * reached, factor]
        results = [graph.add("result", dtype, 0)]
    else:
        matrix = {(live.index(to), live.index(row)): term for row in live for to, term in jacobian[row].items()}
        products = [
            [jacobian[row][to] * of_s[row] for row in live if to in jacobian[row] and row in of_s] for to in live
        ]
        vector = [functools.reduce(Term.__add__, each) if each else None for each in products]
        maps = affine(graph, matrix, [of_s.get(n) for n in live] if exclusive else vector, dtype, None)
        terms, results = maps.elements, [graph.add("result", dtype, place) for place in maps.vector]
        scan = {"fields": maps.fields, "combine": maps.combine, "append": maps.append}
        if len(maps.fields) > _MOST_ENTRIES:
            return None
    total = [y if plain or exclusive or n not in of_s else of_s[n] + y for n, y in zip(live, results, strict=True)]

    def gradients(totals: Sequence[Term]) -> list[Output | None]:
        through_map = pulled_back(graph, [(after[n], each) for n, each in zip(live, totals, strict=True)])
        found: list[Output | None] = []
        for place, wanted in enumerate(needs):
            dtype = dtypes[place]
            parts = through_map.get(graph.operand(place, dtype).at), through_then(local.operand(place, dtype))
            there = [each for each in parts if each is not None]
            gradient = functools.reduce(Term.__add__, there) if there and wanted else None
            stored = dtype if whole[place] else wide(dtype)  # others are summed
            found.append(None if gradient is None else Output(gradient.cast(wide(dtype)).at, stored))
        return found

    operands = tuple(map(Operand, dtypes))

    def fusion_with(made: Sequence[Output], operands: tuple[Operand, ...] = operands) -> Fusion:
        return Fusion(tuple(graph.nodes), operands, tuple(each.at for each in terms), dtype, tuple(made), **scan)

    wanted = gradients(total)
    distinct, last = list(dict.fromkeys(each for each in wanted if each is not None)), None
    parts = _parts(distinct, fusion_with)
    if parts is None:  # the gradients that reach the states by kernels, those of tensors by torch's operators
        parts = _parts([Output(each.at, dtype) for each in total], fusion_with)
        wanted = gradients([graph.operand(len(dtypes) + n, dtype) for n in range(len(live))])
        distinct = list(dict.fromkeys(each for each in wanted if each is not None))
        last = fusion_with(distinct, (*operands, *(Operand(dtype) for _ in live)))
        if parts is None:
            return None
    reads = {place for each in parts for place in each.read}
    reads |= set(last.made_of(each.at for each in last.outputs)) if last else set()
    needed = [n for n in range(len(fields)) if before + n in reads]
    before_items = [Output(source.add("result", fields[n], n).at, fields[n]) for n in needed]
    chunks = [tuple(before_items[at : at + MOST_OUTPUTS]) for at in range(0, len(needed), MOST_OUTPUTS)]
    there = tuple(n in needed for n in range(len(fields) if last else max(needed, default=-1) + 1))
    parts = [replace(each, operands=operands[: before + len(there)]) for each in parts]
    return _Adjoint(
        before=tuple(fusion_of(replace(fusion, nodes=tuple(source.nodes), outputs=each).text) for each in chunks),
        there=there,
        parts=tuple(fusion_of(each.text) for each in parts),
        last=last,
        op="sum" if plain else EXPRESSIONS.name if scan else "linear",
        exclusive=exclusive if plain else True,
        of=tuple(None if each is None else distinct.index(each) for each in wanted),
    )


def _parts(outputs: Sequence[Output], fusion_with: Callable[[Sequence[Output]], Fusion]) -> list[Fusion] | None:
    """Kernels that compute these outputs; None where one would read too many tensors."""
    parts: list[list[Output]] = []
    for each in outputs:
        if parts and len(parts[-1]) < MOST_OUTPUTS and len(fusion_with([*parts[-1], each]).read) <= MOST_OPERANDS:
            parts[-1].append(each)
        else:
            parts.append([each])
    fusions = [fusion_with(each) for each in parts]
    return fusions if all(len(each.read) <= MOST_OPERANDS for each in fusions) else None
