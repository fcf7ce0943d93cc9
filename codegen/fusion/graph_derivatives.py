"""Derivatives of expressions, and affine maps of states, which recurrences and their gradients scan.

The maps s -> M s + v of a range of items combine to such a map, which makes every linear recurrence a scan: Blelloch,
"Prefix Sums and Their Applications" (1990), section 1.4. This module needs no torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from scanops.codegen.fusion.fused_rows import Field
from scanops.codegen.fusion.graph import Graph, Term, arguments_of, is_float
from scanops.errors import UnsupportedRequest

Entries = dict[int, Term]


# ---- derivatives


def pull_back(graph: Graph, roots: Sequence[tuple[Term, Term]]) -> dict[int, Term]:
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
            rule, terms = _RULES.get(graph.nodes[at][0]), [Term(graph, each) for each in arguments_of(graph.nodes[at])]
            if rule is not None and any(is_float(each.dtype) for each in terms):
                for term, of_term in zip(terms, rule(found[at], Term(graph, at), *terms), strict=True):
                    if of_term is not None and is_float(term.dtype):
                        give(term.at, of_term)
    return found


def _halve(operation: str) -> Callable[..., Any]:
    """The rule of a maximum or a minimum: of equal arguments each has half of the gradient."""

    def rule(d: Term, y: Term, a: Term, b: Term) -> tuple[Term, Term]:
        share = a.compare("eq", b).select(d * 0.5, a.compare(operation, b).select(d, 0.0))
        return share, d - share

    return rule


_RULES: dict[str, Callable[..., tuple[Term | None, ...]]] = {  # gradient of y, y, arguments -> gradients of these
    "cast": lambda d, y, x: (d,),
    "round": lambda d, y, x: (d,),
    "neg": lambda d, y, x: (-d,),
    "abs": lambda d, y, x: (x.compare("gt", 0.0).select(d, x.compare("lt", 0.0).select(-d, 0.0)),),
    "exp": lambda d, y, x: (d * y,),
    "exp2": lambda d, y, x: (d * y * 0.6931471805599453,),
    "expm1": lambda d, y, x: (d * (y + 1.0),),
    "log": lambda d, y, x: (d / x,),
    "log2": lambda d, y, x: (d / (x * 0.6931471805599453),),
    "log1p": lambda d, y, x: (d / (x + 1.0),),
    "sqrt": lambda d, y, x: (d / (y * 2.0),),
    "rsqrt": lambda d, y, x: (d * y * y * y * -0.5,),
    "sin": lambda d, y, x: (d * x.apply("cos"),),
    "cos": lambda d, y, x: (-(d * x.apply("sin")),),
    "tanh": lambda d, y, x: (d * (1.0 - y * y),),
    "erf": lambda d, y, x: (d * (-(x * x)).apply("exp") * 1.1283791670955126,),
    "sigmoid": lambda d, y, x: (d * y * (1.0 - y),),
    "softplus": lambda d, y, x: (d * x.apply("sigmoid"),),
    "add": lambda d, y, a, b: (d, d),
    "sub": lambda d, y, a, b: (d, -d),
    "mul": lambda d, y, a, b: (d * b, d * a),
    "div": lambda d, y, a, b: (d / b, -(d / b * y)),
    "fmod": lambda d, y, a, b: (d, -(d * (a / b).apply("trunc"))),
    "remainder": lambda d, y, a, b: (d, -(d * a.apply("floor_divide", b))),
    "pow": lambda d, y, a, b: (
        b.compare("eq", 0.0).select(0.0, d * b * a.apply("pow", b - 1.0)),
        y.compare("eq", 0.0).select(0.0, d * y * a.apply("log")),
    ),
    "where": lambda d, y, x, a, b: (None, x.select(d, 0.0), x.select(0.0, d)),
    "maximum": _halve("gt"),
    "minimum": _halve("lt"),
}  # any other operation has no gradient: comparisons, "floor", "trunc", "floor_divide", "detach"


# ---- affine maps


class Affine(NamedTuple):
    """The scan of s[i] = M[i] s[i-1] + v[i]: its states are maps s -> M s + v, which combine to such maps."""

    graph: Graph
    elements: list[Term]
    fields: tuple[Field, ...]
    combine: tuple[int, ...]
    append: tuple[int, ...]
    places: dict[tuple[int, int], int]  # of entries of M among the fields; the others are those of the identity
    vector: list[int]  # likewise of v

    def entry(self, role: str, row: int, column: int) -> Term | None:
        """An entry of M in a state; None: it is 0."""
        place, dtype = self.places.get((row, column)), self.fields[0].dtype
        if place is not None:
            return self.graph.add(role, dtype, place)
        return self.graph.number(1, dtype) if row == column else None


def affine(
    graph: Graph, matrix: dict[tuple[int, int], Term], vector: Sequence[Term | None], dtype: str, mask: Term | None
) -> Affine:
    """Return the scan of affine maps. ``matrix``: the entries that are not 0; ``vector``: None stands for 0.

    Entries that are the identity's in every product are no fields, and such that are equal in every one share a field:
    those of a block-diagonal matrix of equal blocks, for example.
    """
    size = range(len(vector))
    pairs = [(row, column) for row in size for column in size]
    numbers = {pair: number_of(matrix.get(pair)) for pair in pairs}
    fixed = {pair for pair in pairs if numbers[pair] == int(pair[0] == pair[1])}

    def through(row: int, column: int) -> list[int]:
        none = {pair for pair in fixed if pair[0] != pair[1]}
        return [k for k in size if (row, k) not in none and (k, column) not in none]

    while wrong := {(row, column) for row, column in fixed if through(row, column) != [row] * (row == column)}:
        fixed -= wrong
    keys: dict[tuple[int, int], Any] = {
        (row, column): (repr(matrix[row, column].at if (row, column) in matrix else None), row == column)
        for row, column in pairs
    }
    count = 0
    while True:  # equal entries are told apart where their products differ
        free = [pair for pair in pairs if pair not in fixed]
        distinct = list(dict.fromkeys(keys[pair] for pair in free))
        classes = {pair: distinct.index(keys[pair]) for pair in free}
        if len(distinct) == count:
            break
        count = len(distinct)
        keys = {
            (row, column): (
                classes[row, column],
                tuple(sorted((classes.get((row, k), -1), classes.get((k, column), -1)) for k in through(row, column))),
            )
            for row, column in free
        }
    first = {number: pair for pair, number in reversed(classes.items())}
    places = [count + row for row in size]
    none = graph.number(0, dtype)
    elements = [(matrix.get(first[number]) or none).cast(dtype) for number in range(count)]
    elements += [none if each is None else each.cast(dtype) for each in vector]
    diagonal = [float(first[number][0] == first[number][1]) for number in range(count)]
    starts = [*diagonal, *(0.0 for _ in size)]
    if mask is not None:
        elements = [mask.select(each, number) for each, number in zip(elements, starts, strict=True)]
    names = [*(f"m{number}" for number in range(count)), *(f"v{row}" for row in size)]
    fields = tuple(Field(name, dtype, number) for name, number in zip(names, starts, strict=True))
    found = Affine(graph, elements, fields, (), (), classes, places)

    def joined(known: bool) -> tuple[int, ...]:
        """The combine; ``known``: the newer map is that of an item, whose constant entries are told."""

        def newer(row: int, column: int) -> Term | None:
            number = numbers[row, column] if known else None
            if number is None:
                return found.entry("newer", row, column)
            return graph.number(number, dtype) if number else None

        def total(terms: Iterable[tuple[Term | None, Term | None]], last: Term | None = None) -> int:
            products = [one * other for one, other in terms if one is not None and other is not None]
            products += [] if last is None else [last]
            return functools.reduce(lambda one, other: one + other, products, none).at

        made = [
            total((newer(row, k), found.entry("older", k, column)) for k in size)
            for row, column in (first[number] for number in range(count))
        ]
        older = [graph.add("older", dtype, place) for place in places]
        added = [None if known and vector[row] is None else graph.add("newer", dtype, places[row]) for row in size]
        return (*made, *(total([(newer(row, k), older[k]) for k in size], added[row]) for row in size))

    return found._replace(combine=joined(False), append=joined(mask is None))


def number_of(term: Term | None) -> float | None:
    """The value of a constant, 0 for None, and None for any other expression."""
    if term is None:
        return 0
    return float(term.node[2]) if term.node[0] == "number" else None


def affine_parts(graph: Graph, root: int) -> tuple[Term | None, Entries]:
    """Return an expression as a term, None for 0, and the factors of the older fields that it adds, by their places.

    Raises UnsupportedRequest where it is no such sum.
    """
    rest: dict[int, Term | None] = {}  # of the nodes that follow from the older state, without it
    for at in graph.find_ancestors(root):
        operation, dtype, *_ = graph.nodes[at]
        terms = [Term(graph, each) for each in arguments_of(graph.nodes[at])]
        varies = [each.at in rest for each in terms]
        if operation == "older" or any(varies):
            left = [rest.get(each.at, each) for each in terms]
            if operation == "where" and not varies[0] and left[1] is not left[2]:
                rest[at] = terms[0].select(*(0.0 if each is None else each for each in left[1:]))
            elif operation in ("add", "sub") and None in left:
                one, other = left
                rest[at] = one if other is None else -other if operation == "sub" else other
            elif None in left or operation == "older":
                rest[at] = None
            else:
                rest[at] = graph.add(operation, dtype, *(each.at for each in left if each is not None))
            fits = operation in ("older", "add", "sub", "neg", "cast") or (operation, varies[1:]) == ("div", [False])
            fits = fits or (operation == "mul" and not all(varies)) or (operation == "where" and not varies[0])
            if not (fits and is_float(dtype)):
                raise UnsupportedRequest(
                    f"scan: step is not linear in the state: {operation} of it",
                    allowed="sums of fields of the state times values of the tensors, and of such values",
                    value=operation,
                    hint="give an associative combine instead of step, or scan item by item",
                )
    factors = pull_back(graph, [(Term(graph, root), graph.number(1, graph.nodes[root][1]))])
    leaves = {at: graph.nodes[at] for at in factors}
    entries = {node[2]: factors[at] for at, node in leaves.items() if node[0] == "older"}
    return rest.get(root, Term(graph, root)), entries
