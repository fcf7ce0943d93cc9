"""The backward pass of a fused scan, as further fusions: which scans compute it, and which states they read.

For y[i] = then(s[i], x[i]), s[i] = c(s[i-1], map(x[i])), the gradient that reaches s[i] is a recurrence from the end,
u[i-1] = J[i] (u[i] + that of y[i]), where J[i] are the derivatives of s[i] by s[i-1]: a sum, a recurrence with gates,
or one of matrices and vectors for states of several fields. Those of the tensors are expressions of it. Where
derivatives need s, the forward kernel writes it as well and the backward kernel reads s[i-1] there, if that moves fewer
bytes than a kernel that computes s[i-1] again.

Source: reverse-mode differentiation as in Griewank and Walther, "Evaluating Derivatives" (2008).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from scanops.codegen.dtypes import DTYPES
from scanops.codegen.fusion.fusion import MOST_OPERANDS, MOST_OUTPUTS, Fusion, Operand, Output, fusion_of
from scanops.codegen.fusion.graph import Graph, Node, Term, is_float, wide
from scanops.codegen.fusion.graph_derivatives import Entries, affine, number_of, pull_back
from scanops.codegen.operators.recurrences import EXPRESSIONS

RECURRENCES = ("sum", "prod", "linear")  # the operators of the table whose gradients are such scans
_MOST_ENTRIES = 24  # fields of a state of a matrix and a vector


class SavedStates(NamedTuple):
    """The fields of the states of a fused scan that its backward pass reads, and where the forward pass writes them."""

    text: str  # of the fusion that writes them
    outputs: int  # of that fusion
    at: tuple[int, ...]  # which of these each field is
    fields: tuple[int, ...]  # the numbers of the fields
    starts: tuple[float | None, ...]  # what is before the first of a line; None: a result is what is before its item


@functools.lru_cache(maxsize=1024)
def choose_states(
    fusion: Fusion, op: str, exclusive: bool, needs: tuple[bool, ...], whole: tuple[bool, ...]
) -> SavedStates | None:
    kept = (False,) * len(needs)  # sums over lines read the same states
    adjoint = derive_adjoint(fusion, op, exclusive, (True,) * len(fusion.outputs), needs, whole, kept)
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
    read = {place for place in fusion.find_operands((*fusion.elements, *fusion.combine)) if whole[place]}
    again = sum(DTYPES[fusion.operands[place].dtype].bytes for place in read)
    again += 2 * sum(DTYPES[kinds[n]].bytes for n in fields)
    if len(outputs) > MOST_OUTPUTS or moved >= again:
        return None
    return SavedStates(
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


@functools.lru_cache(maxsize=1024)
def read_states(fusion: Fusion, kinds: tuple[tuple[int, tuple[str, float | None]], ...]) -> Fusion:
    """A part of a backward pass that reads fields of states from what the forward pass saved, of these dtypes."""
    operands = list(fusion.operands)
    for place, (dtype, start) in kinds:
        operands[place] = Operand(dtype, start=start)
    return fusion_of(replace(fusion, operands=tuple(operands)).text)


class _Gradient(NamedTuple):
    """The gradient of tensors, or of one alone, the place of which is given: then it may be summed over lines."""

    output: Output
    summed: int | None


class Adjoint(NamedTuple):
    """The scans of a backward pass. Their tensors: those of the call, the given gradients, the fields before items."""

    before: tuple[Fusion, ...]  # compute the fields of the state before each item that derivatives need
    there: tuple[bool, ...]  # which these are
    parts: tuple[Fusion, ...]  # whose outputs follow each other
    line_sums: tuple[int, ...]  # of each part: of how many outputs, the last ones, it returns sums over lines
    last: Fusion | None  # expressions of all that by torch's operators, where a kernel would read too many tensors
    op: str
    exclusive: bool
    of: tuple[int | None, ...]  # which output is the gradient of each tensor


@functools.lru_cache(maxsize=1024)
def derive_adjoint(
    fusion: Fusion,
    op: str,
    exclusive: bool,
    given: tuple[bool, ...],
    needs: tuple[bool, ...],
    whole: tuple[bool, ...],
    summed: tuple[bool, ...],
) -> Adjoint | None:
    """Return the backward pass of a fused scan, of s[i] = c(s[i-1], x[i]) for short; None where it is too large.

    ``given``: which outputs have a gradient; ``needs``: which tensors are to have one; ``whole``: which are of the
    shape of the results; ``summed``: of which others kernels sum the gradient over lines.
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
    made = [source.copy_into(each.at, local, leaf_of(local)) for each in outputs]
    roots = [(y, local.operand(count + n, dtypes[count + n])) for n, y in enumerate(made)]
    direct = pull_back(local, roots)

    # ---- s by s[i-1], which the gradients that reach s and the tensors through `then` are expressions of
    elements = [source.copy_into(at, graph, leaf_of(graph)) for at in fusion.elements]
    previous = [graph.operand(before + n, dtype) for n, dtype in enumerate(fields)]
    if fusion.fields:
        states = {"older": previous, "newer": elements}
        after = [source.copy_into(at, graph, lambda node: states[node[0]][node[2]]) for at in fusion.combine]
    elif op == "sum":
        after = [previous[0] + elements[0]]
    else:
        after = [elements[0] * previous[0] if op == "prod" else elements[1] * previous[0] + elements[0]]
    seen = previous if exclusive else after

    def through_then(operand: Term) -> Term | None:
        found, leaf = direct.get(operand.at), leaf_of(graph)
        return found and local.copy_into(
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
        entries = pull_back(graph, [(after[row], graph.number(1, fields[row]))])
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

    def gradients(totals: Sequence[Term]) -> list[_Gradient | None]:
        through_map = pull_back(graph, [(after[n], each) for n, each in zip(live, totals, strict=True)])
        found: list[_Gradient | None] = []
        for place, wanted in enumerate(needs):
            dtype = dtypes[place]
            parts = through_map.get(graph.operand(place, dtype).at), through_then(local.operand(place, dtype))
            there = [each for each in parts if each is not None]
            gradient = functools.reduce(Term.__add__, there) if there and wanted else None
            stored = dtype if whole[place] else wide(dtype)  # others are summed
            output = None if gradient is None else Output(gradient.cast(wide(dtype)).at, stored)
            sums = summed[place] and stored == scanned and is_float(scanned)
            found.append(output and _Gradient(output, place if sums else None))
        return found

    operands = tuple(map(Operand, dtypes))

    def fusion_with(made: Sequence[Output], operands: tuple[Operand, ...] = operands) -> Fusion:
        return Fusion(tuple(graph.nodes), operands, tuple(each.at for each in terms), dtype, tuple(made), **scan)

    wanted, last = gradients(total), None
    distinct = list(dict.fromkeys(each for each in wanted if each is not None))
    distinct.sort(key=lambda each: each.summed is not None)
    parts = _parts([each.output for each in distinct], fusion_with)
    if parts is None:  # the gradients that reach the states by kernels, those of tensors by torch's operators
        parts = _parts([Output(each.at, dtype) for each in total], fusion_with)
        wanted = gradients([graph.operand(len(dtypes) + n, dtype) for n in range(len(live))])
        wanted = [each and each._replace(summed=None) for each in wanted]  # torch's operators have the items
        distinct = list(dict.fromkeys(each for each in wanted if each is not None))
        last = fusion_with([each.output for each in distinct], (*operands, *(Operand(dtype) for _ in live)))
        if parts is None:
            return None
    reads = {place for each in parts for place in each.read}
    reads |= set(last.find_operands(each.at for each in last.outputs)) if last else set()
    needed = [n for n in range(len(fields)) if before + n in reads]
    before_items = [Output(source.add("result", fields[n], n).at, fields[n]) for n in needed]
    chunks = [tuple(before_items[at : at + MOST_OUTPUTS]) for at in range(0, len(needed), MOST_OUTPUTS)]
    there = tuple(n in needed for n in range(len(fields) if last else max(needed, default=-1) + 1))
    parts = [replace(each, operands=operands[: before + len(there)]) for each in parts]
    are_summed = itertools.repeat(False) if last else iter([each.summed is not None for each in distinct])
    line_sums = tuple(sum([*itertools.islice(are_summed, len(part.outputs))][1:]) for part in parts)
    return Adjoint(
        before=tuple(fusion_of(replace(fusion, nodes=tuple(source.nodes), outputs=each).text) for each in chunks),
        there=there,
        parts=tuple(fusion_of(each.text) for each in parts),
        line_sums=line_sums,
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
