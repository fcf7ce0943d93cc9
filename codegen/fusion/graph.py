"""Pointwise expressions of several tensors, and their C++.

A ``Graph`` is a list of nodes, each after its arguments and none twice, so that equal expressions are equal lists. A
node is ``(operation, dtype, *arguments)``, of which those that are nodes are numbers in the list. Half types and 8-bit
floats are read as float32 and computed in float32; where an expression converts to one of them, it rounds. This module
needs no torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scanops.codegen.dtypes import DTYPES, DType, convert_number, literal, number_in, promote

Node = tuple[Any, ...]
_FUNCTIONS = ("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "sin", "cos", "tanh", "erf", "trunc")
_DIVISIONS = ("fmod", "remainder", "floor_divide")  # of floats
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
# C++ of an operation over the texts of its arguments, each in the dtype of the node, of a comparison in its operands'
_TEXTS = {
    **{name: f"{name}({{0}})" for name in _FUNCTIONS},
    **{name: f"({{0}} {sign} {{1}})" for name, sign in (*_INFIX.items(), *COMPARISONS.items())},
    **{"neg": "(-{0})", "where": "({0} ? {1} : {2})", "pow": "pow({0}, {1})", "floor": "floor({0})"},
    **{"abs": "({0} < 0 ? -{0} : {0})", "not": "(!{0})", "sigmoid": "(1 / (1 + exp(-{0})))", "detach": "{0}"},
    **{"fmod": "fmod({0}, {1})", "remainder": "floor_remainder({0}, {1})", "floor_divide": "floor_divide({0}, {1})"},
    "rsqrt": "(1 / sqrt({0}))",
    "maximum": "({0} > {1} || {0} != {0} ? {0} : {1})",  # NaN if one is
    "minimum": "({0} < {1} || {0} != {0} ? {0} : {1})",
    "softplus": "(({0} > 0 ? {0} : 0) + log1p(exp({0} > 0 ? -{0} : {0})))",
}
OPERATIONS = frozenset(_TEXTS)
_STEPS = ("floor", "trunc", *_DIVISIONS)  # functions that are not continuous
LEAVES = ("operand", "result", "older", "newer")  # an item of an operand, and fields of states, by their places
SUM = "sum"  # of an expression, over the lines whose results a scan adds; functions of items have no such operation
# In float32: fewer instructions, errors of at most 3 units in the last place, results below 2^-126 may be 0. See
# stages/pointwise.cuh.j2.
_SINGLE = {
    **{"abs": "fabs({0})", "div": "quotient({0}, {1})", "rsqrt": "rsqrt_of({0})", "softplus": "softplus({0})"},
    **{"sigmoid": "reciprocal_of(1 + exp(-{0}))", "sqrt": "root_of({0})"},
}
# The same where all results are of half types, whose precision is 2^-11: relative errors of 2^-13, of a logarithm of a
# number near 1 absolute ones of 2^-22
_SHORT = {
    **{"abs": "fabs({0})", "div": "({0} * reciprocal_of({1}))", "rsqrt": "rsqrt_of({0})", "sqrt": "root_of({0})"},
    **{"exp": "exp2_of({0} * 1.44269504f)", "exp2": "exp2_of({0})", "softplus": "short_softplus({0})"},
    **{"log": "(log2_of({0}) * 0.693147181f)", "log2": "log2_of({0})", "tanh": "short_tanh({0})"},
    "sigmoid": "reciprocal_of(1 + exp2_of({0} * -1.44269504f))",
}


def wide(dtype: str) -> str:
    """Return the dtype in which values of ``dtype`` are computed: float32 for half types and 8-bit floats."""
    row = DTYPES[dtype]
    return "float32" if row.kind == "float" and row.bytes < 4 else dtype


def is_float(dtype: str) -> bool:
    """Whether values of a dtype have derivatives."""
    return DTYPES[dtype].kind == "float"


class Term:
    """A node, with Python's operators for formulas of derivatives; numbers take the dtype of the term beside them."""

    __slots__ = ("at", "graph")

    def __init__(self, graph: Graph, at: int) -> None:
        self.graph, self.at = graph, at

    @property
    def node(self) -> Node:
        return self.graph.nodes[self.at]

    @property
    def dtype(self) -> str:
        return str(self.node[1])

    def apply(self, operation: str, *others: Term | float, dtype: str = "") -> Term:
        """Return the operation of this term and others, converted to ``dtype``, by default what they promote to."""
        terms = [self, *(each for each in others if isinstance(each, Term))]
        to = dtype or functools.reduce(promote, (DTYPES[each.dtype] for each in terms)).name
        return self.graph.apply(operation, to, self, *others)

    def __add__(self, other: Term | float) -> Term:
        return self.apply("add", other)

    def __sub__(self, other: Term | float) -> Term:
        return self.apply("sub", other)

    def __rsub__(self, other: float) -> Term:
        return self.graph.number(other, self.dtype).apply("sub", self)

    def __mul__(self, other: Term | float) -> Term:
        return self.apply("mul", other)

    def __truediv__(self, other: Term | float) -> Term:
        return self.apply("div", other)

    def __neg__(self) -> Term:
        return self.apply("neg")

    def compare(self, operation: str, other: Term | float) -> Term:
        """Return a comparison, of dtype bool."""
        other = self.graph.term(other, other.dtype if isinstance(other, Term) else self.dtype)
        both = promote(DTYPES[self.dtype], DTYPES[other.dtype]).name
        return self.graph.add(operation, "bool", self.cast(both).at, other.cast(both).at)

    def select(self, yes: Term | float, no: Term | float) -> Term:
        """Return ``yes`` where this term holds, else ``no``; one of them is a term."""
        dtypes = [DTYPES[each.dtype] for each in (yes, no) if isinstance(each, Term)]
        dtype = functools.reduce(promote, dtypes).name
        return self.graph.add(
            "where", dtype, self.cast("bool").at, *(self.graph.term(each, dtype).at for each in (yes, no))
        )

    def cast(self, dtype: str) -> Term:
        """Return the value converted to a dtype; a narrower float rounds."""
        to = wide(dtype)
        if self.node[0] == "number":
            term = self.graph.number(convert_number(self.node[2], DTYPES[to]), to)
        else:
            term = self if self.dtype == to else self.graph.add("cast", to, self.at)
        return term if to == dtype else self.graph.add("round", to, term.at, dtype)


class Graph:
    """Nodes in the order of their first use."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes: list[Node] = []
        self._places: dict[str, int] = {}
        for operation, dtype, *arguments in nodes:
            self.add(operation, dtype, *arguments)

    def add(self, operation: str, dtype: str, *arguments: Any) -> Term:
        """Return the node of these arguments, which is there once."""
        node = (operation, dtype, *arguments)
        at = self._places.setdefault(repr(node), len(self.nodes))
        if at == len(self.nodes):
            self.nodes.append(node)
        return Term(self, at)

    def number(self, value: float, dtype: str) -> Term:
        """Return a constant of that dtype. Raises UnsupportedRequest for a number that the dtype does not hold."""
        row = DTYPES[dtype]
        if row.kind == "int" and row.lowest == 0 and isinstance(value, int) and -row.highest <= value < 0:
            value = convert_number(value, row)  # as torch does it
        return self.add("number", dtype, number_in(value, row, "a constant of the expression"))

    def operand(self, place: int, dtype: str) -> Term:
        """Return an item of an operand of that dtype."""
        return self.add("operand", wide(dtype), place)

    def term(self, value: Term | float, dtype: str) -> Term:
        """Return a value converted to the dtype that ``dtype`` is computed in, a number as a constant."""
        return value.cast(wide(dtype)) if isinstance(value, Term) else self.number(value, wide(dtype))

    def apply(self, operation: str, dtype: str, *arguments: Term | float) -> Term:
        """Return an operation of arguments converted to ``dtype``, in which it computes."""
        terms = [self.term(each, dtype) for each in arguments]
        return _simpler(operation, terms) or self.add(operation, wide(dtype), *(each.at for each in terms))

    def copy_into(self, root: int, to: Graph, leaf: Callable[[Node], Term]) -> Term:
        """Return an expression of this graph in another one, with the terms that ``leaf`` gives for its leaves."""
        made: dict[int, Term] = {}
        for at in self.find_ancestors(root):
            node = self.nodes[at]
            count = len(arguments_of(node))
            moved = (made[each].at for each in node[2 : 2 + count])
            whole = (*node[:2], *moved, *node[2 + count :])
            made[at] = leaf(node) if node[0] in LEAVES else to.add(*whole)
        return made[root]

    def find_ancestors(self, *roots: int) -> list[int]:
        """The nodes that some roots follow from, these included, in order."""
        needed = set(roots)
        for at in range(max(roots, default=-1), -1, -1):
            if at in needed:
                needed.update(arguments_of(self.nodes[at]))
        return sorted(needed)


def arguments_of(node: Node) -> tuple[int, ...]:
    """The nodes among the arguments of one."""
    if node[0] in LEAVES or node[0] == "number":
        return ()
    return tuple(node[2:3]) if node[0] == "round" else tuple(node[2:])


def _simpler(operation: str, terms: list[Term]) -> Term | None:
    """A product with 1, or a sum with 0, as derivatives have them; None where there is nothing to leave out."""
    if operation == "neg" and terms[0].node[0] == "number":
        return terms[0].graph.number(convert_number(-terms[0].node[2], DTYPES[terms[0].dtype]), terms[0].dtype)
    if operation not in ("add", "mul"):
        return None
    neutral = 0 if operation == "add" else 1
    for one, other in (terms, terms[::-1]):
        if one.node[0] == "number" and one.node[2] == neutral:
            return other
    return None


# ---- graphs that were not traced here

_MOST_NODES = 4096
_FLOATS = (*_FUNCTIONS, *_DIVISIONS, "div", "pow", "floor", "sigmoid", "softplus", "rsqrt")
_WHOLE = ("and", "or", "xor", "not")  # of integers and of bool


def check_nodes(nodes: Any, leaves: Mapping[str, Sequence[str]]) -> tuple[Node, ...]:
    """Return the nodes of a graph that was read, each checked; ``leaves``: the dtypes of those of each kind, by place.

    Raises ValueError, which says what is wrong.
    """
    if not isinstance(nodes, list) or len(nodes) > _MOST_NODES:
        raise ValueError(f"the nodes are no list of at most {_MOST_NODES}")
    dtypes: list[str] = []
    for at, node in enumerate(nodes):
        if not (isinstance(node, list) and len(node) >= 2 and isinstance(node[0], str) and isinstance(node[1], str)):
            raise ValueError(f"node {at} is not an operation, a dtype and arguments")
        operation, dtype, *given = node
        known = DTYPES.get(dtype)
        if known is None or known.kind == "complex" or wide(dtype) != dtype:
            raise ValueError(f"node {at} is of no dtype that expressions compute in")
        if not _fits(operation, known, given, dtypes, leaves):
            raise ValueError(f"the arguments of node {at} are not those of {operation!r} in {dtype}")
        dtypes.append(dtype)
    if len(Graph(nodes).nodes) < len(nodes):
        raise ValueError("a node is there twice")
    return tuple(map(tuple, nodes))


def _fits(
    operation: str, dtype: DType, given: list[Any], dtypes: Sequence[str], leaves: Mapping[str, Sequence[str]]
) -> bool:
    """Whether these are the arguments of an operation whose result is of a dtype; ``dtypes``: of the nodes before."""
    if operation == "number":
        kind: type = {"bool": bool, "int": int, "float": float}[dtype.kind]
        values: list[Any] = [each for each in given if type(each) is kind]
        return len(values) == len(given) == 1 and number_in(values[0], dtype) is not None
    if operation in LEAVES:
        known = leaves.get(operation, ())
        return len(given) == 1 and is_place(given[0], len(known)) and wide(known[given[0]]) == dtype.name
    if operation == "round":
        to = DTYPES.get(given.pop()) if len(given) == 2 and isinstance(given[1], str) else None
        if to is None or not to.stored or to.name == dtype.name or wide(to.name) != dtype.name:
            return False
    elif operation not in OPERATIONS and operation not in ("cast", SUM):
        return False
    if not all(is_place(each, len(dtypes)) for each in given):
        return False
    of = [dtypes[each] for each in given]
    if operation == "cast":
        return len(of) == 1 and of[0] != dtype.name
    if operation in COMPARISONS:
        return dtype.kind == "bool" and len(of) == 2 and of[0] == of[1]
    if operation == "where":
        return of == ["bool", dtype.name, dtype.name]
    if operation == SUM:
        return dtype.kind == "float" and of == [dtype.name]
    count = 1 if operation == "round" or "{1}" not in _TEXTS[operation] else 2
    legal = dtype.kind == "float" if operation in _FLOATS else operation not in _WHOLE or dtype.kind != "float"
    return legal and of == [dtype.name] * count


def is_place(value: object, count: int) -> bool:
    """Whether a value is the place of one of so many things."""
    return type(value) is int and 0 <= value < count


# ---- C++


class Printer:
    """The C++ of expressions over the texts of operands and of the scan's result.

    ``short``: for results of half types alone, by functions that are as exact as these.
    """

    def __init__(self, nodes: Sequence[Node], leaves: dict[tuple[str, Any], str], short: bool) -> None:
        self.nodes, self.leaves = nodes, leaves
        self.single = _TEXTS | (_SHORT if short else _SINGLE)

    def body(self, root: int) -> str:
        """The statements that return an expression."""
        lines, (text,) = self.statements(root)
        return indent(*lines, f"return {text};")

    def statements(self, *roots: int) -> tuple[list[str], list[str]]:
        """The statements that expressions need, and their texts; what they use several times is computed once."""
        graph = Graph(self.nodes)
        reached = graph.find_ancestors(*roots)
        uses = [*roots, *(each for at in reached for each in arguments_of(self.nodes[at]))]
        repeated = ("abs", "maximum", "minimum", "softplus")  # whose texts name their arguments several times
        uses += [each for at in reached if self.nodes[at][0] in repeated for each in arguments_of(self.nodes[at])]
        steps = [self.nodes[at] for at in reached if self.nodes[at][0] in _STEPS or _is_truncated(self.nodes[at])]
        floored = {each for node in steps for each in node[2:]}  # an error of one ulp may change the result
        lines: list[str] = []
        texts: dict[int, str] = {}
        for at in reached:
            node = self.nodes[at]
            text = self._text(node, texts, at in floored)
            if arguments_of(node) and uses.count(at) > 1:
                lines.append(f"const {DTYPES[node[1]].value} t{at} = {text};")
                text = f"t{at}"
            texts[at] = text
        return lines, [texts[root] for root in roots]

    def _text(self, node: Node, texts: dict[int, str], exact: bool) -> str:
        operation, dtype = node[0], DTYPES[node[1]]
        if operation == "number":
            return literal(node[2], dtype)
        if operation in LEAVES:
            return self.leaves[operation, node[2]]
        given = [texts[each] for each in arguments_of(node)]
        if operation == "cast":
            return dtype.rounded.format(x=given[0], value=dtype.value)
        if operation == "round":
            return DTYPES[node[3]].rounded.format(x=given[0], value=dtype.value)
        if operation == "abs" and dtype.kind == "int":  # the least value is its own
            whole = f"({dtype.accumulator}){given[0]}"
            return f"({dtype.value})({given[0]} < 0 ? -{whole} : {whole})"
        if operation in ("abs", "neg"):
            given = [f"({each})" if each.startswith("-") else each for each in given]
        if operation == "not" and dtype.kind == "int":
            return f"({dtype.value})(~{given[0]})"
        if operation in ("add", "sub", "mul", "neg") and dtype.kind == "int":  # which wraps around
            given = [f"({dtype.accumulator}){each}" for each in given]
            return f"({dtype.value})({_TEXTS[operation].format(*given)})"
        if dtype.name == "float32" and not exact:
            divisor = self.nodes[node[3]] if operation == "div" else node
            if divisor[0] == "number" and 2**-126 <= abs(divisor[2]) <= 2**126:  # as torch divides by numbers
                operation, given[1] = "mul", literal(1 / divisor[2], dtype)
            return self.single[operation].format(*given)
        return _TEXTS[operation].format(*given)


def _is_truncated(node: Node) -> bool:
    return bool(node[0] == "cast" and DTYPES[node[1]].kind == "int")


def indent(*lines: str) -> str:
    """Statements of the body of a function."""
    return "".join(f"    {line}\n" for line in lines)
