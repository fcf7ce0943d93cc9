"""Pointwise expressions of several tensors: their text, their derivatives, and their C++.

A ``Graph`` is a list of nodes, each after its operands and none twice, so that equal expressions are equal lists. A
node is ``(operation, dtype, *arguments)``, of which those that are nodes are numbers in the list. Half types and 8-bit
floats are read as float32 and computed in float32; where an expression converts to one of them, it rounds.

A ``Fusion`` says what a kernel computes around a scan: the elements, and the gates of a recurrence, from the operands;
and the outputs from the result of the scan and the operands. Its ``text`` is JSON, the field ``map`` of ``ScanSpec``.
This module needs no torch.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import Any, NamedTuple

from scanops.codegen.dtypes import DTYPES, DType, promote
from scanops.codegen.operator import Operator
from scanops.errors import UnsupportedRequest, shown

Node = tuple[Any, ...]
MOST_OPERANDS, MOST_OUTPUTS = 8, 4  # of a kernel: pointers in ScanArguments
_FIELD = {"bool": "index", "uint8": "index", "int8": "index", "int16": "index", "uint16": "index", "int32": "int32"}
_FUNCTIONS = ("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "sin", "cos", "tanh", "erf")
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
# C++ of an operation over the texts of its arguments, each in the dtype of the node, of a comparison in its operands'
_TEXTS = {
    **{name: f"{name}({{0}})" for name in _FUNCTIONS},
    **{name: f"({{0}} {sign} {{1}})" for name, sign in (*_INFIX.items(), *COMPARISONS.items())},
    **{"neg": "(-{0})", "where": "({0} ? {1} : {2})", "pow": "pow({0}, {1})", "floor": "floor({0})"},
    **{"abs": "({0} < 0 ? -{0} : {0})", "not": "(!{0})", "sigmoid": "(1 / (1 + exp(-{0})))", "detach": "{0}"},
    "rsqrt": "(1 / sqrt({0}))",
    "maximum": "({0} > {1} || {0} != {0} ? {0} : {1})",  # NaN if one is
    "minimum": "({0} < {1} || {0} != {0} ? {0} : {1})",
    "softplus": "(({0} > 0 ? {0} : 0) + log1p(exp({0} > 0 ? -{0} : {0})))",
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
        if not isinstance(other, Term):
            other = self.graph.number(other, self.dtype)
        both = promote(DTYPES[self.dtype], DTYPES[other.dtype]).name
        return self.graph.add(operation, "bool", self.cast(both).at, other.cast(both).at)

    def select(self, yes: Term | float, no: Term | float) -> Term:
        """Return ``yes`` where this term holds, else ``no``; one of them is a term."""
        dtypes = [DTYPES[each.dtype] for each in (yes, no) if isinstance(each, Term)]
        dtype = functools.reduce(promote, dtypes).name
        terms = (each if isinstance(each, Term) else self.graph.number(each, dtype) for each in (yes, no))
        return self.graph.add("where", dtype, self.cast("bool").at, *(each.cast(dtype).at for each in terms))

    def cast(self, dtype: str) -> Term:
        """Return the value converted to a dtype; a narrower float rounds."""
        to = wide(dtype)
        if self.node[0] == "number":
            term = self.graph.number(self.node[2], to)
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
        """Return a constant."""
        kind = DTYPES[dtype].kind
        return self.add(
            "number", dtype, bool(value) if kind == "bool" else int(value) if kind == "int" else float(value)
        )

    def operand(self, place: int, dtype: str) -> Term:
        """Return an item of an operand of that dtype."""
        return self.add("operand", wide(dtype), place)

    def apply(self, operation: str, dtype: str, *arguments: Term | float) -> Term:
        """Return an operation of arguments converted to ``dtype``, in which it computes."""
        to = wide(dtype)
        terms = [(each.cast(to) if isinstance(each, Term) else self.number(each, to)) for each in arguments]
        found = _simpler(operation, terms)
        return self.add(operation, to, *(each.at for each in terms)) if found is None else found

    def pulled_back(self, roots: Sequence[tuple[Term, Term]]) -> dict[int, Term]:
        """Return the gradient by each node, from those of the ``roots``, pairs of a node and its gradient."""
        found: dict[int, Term] = {}

        def give(to: int, gradient: Term) -> None:
            gradient = gradient.cast(self.nodes[to][1])
            found[to] = found[to] + gradient if to in found else gradient

        for root, gradient in roots:
            if is_float(root.dtype):
                give(root.at, gradient)
        for at in range(max(found, default=-1), -1, -1):
            if at in found:
                terms = [Term(self, each) for each in arguments_of(self.nodes[at])]
                if any(is_float(each.dtype) for each in terms):
                    gradients = _derivative(Term(self, at), found[at], *terms)
                    for term, of_term in zip(terms, gradients, strict=False):
                        if of_term is not None and is_float(term.dtype):
                            give(term.at, of_term)
        return found

    def carried(self, root: int, to: Graph, leaf: Callable[[Node], Term]) -> Term:
        """Return an expression of this graph in another one, with the terms that ``leaf`` gives for its leaves."""
        made: dict[int, Term] = {}
        for at in self.reached(root):
            node = self.nodes[at]
            count = len(arguments_of(node))
            moved = (made[each].at for each in node[2 : 2 + count])
            whole = (*node[:2], *moved, *node[2 + count :])
            made[at] = leaf(node) if node[0] in ("operand", "result") else to.add(*whole)
        return made[root]

    def reached(self, *roots: int) -> list[int]:
        """The nodes that some roots follow from, these included, in order."""
        needed = set(roots)
        for at in range(max(roots, default=-1), -1, -1):
            if at in needed:
                needed.update(arguments_of(self.nodes[at]))
        return sorted(needed)


def arguments_of(node: Node) -> tuple[int, ...]:
    """The nodes among the arguments of one."""
    if node[0] in ("operand", "result", "number"):
        return ()
    return tuple(node[2:3]) if node[0] == "round" else tuple(node[2:])


def _simpler(operation: str, terms: list[Term]) -> Term | None:
    """A product with 1, or a sum with 0, as derivatives have them; None where there is nothing to leave out."""
    if operation not in ("add", "mul"):
        return None
    neutral = 0 if operation == "add" else 1
    for one, other in (terms, terms[::-1]):
        if one.node[0] == "number" and one.node[2] == neutral:
            return other
    return None


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
OPERATIONS = frozenset(_TEXTS)


# ---- C++


def _number(value: float, dtype: DType) -> str:
    """A constant as a C++ literal."""
    if dtype.kind == "bool":
        return str(bool(value)).lower()
    if dtype.kind == "int":
        return f"({dtype.value}){int(value)}LL" if value > -(2**63) else f"({dtype.value})(-{2**63 - 1}LL - 1)"
    if isnan(value):
        text = "NAN"
    elif value in (inf, -inf):
        text = "INFINITY" if value > 0 else "-INFINITY"
    else:
        text = repr(float(value))
    return f"({dtype.value}){text}" if dtype.bytes == 4 or text[-1] in "YN" else text


class _Printer:
    """The C++ of expressions over the texts of operands and of the scan's result."""

    def __init__(self, nodes: Sequence[Node], leaves: dict[tuple[str, Any], str]) -> None:
        self.nodes, self.leaves = nodes, leaves

    def body(self, root: int, indent: str = "    ") -> str:
        """The statements that return an expression; what it uses several times is computed once."""
        graph = Graph(self.nodes)
        reached = graph.reached(root)
        uses = [each for at in reached for each in arguments_of(self.nodes[at])]
        repeated = ("abs", "maximum", "minimum", "softplus")  # whose texts name their arguments several times
        uses += [each for at in reached if self.nodes[at][0] in repeated for each in arguments_of(self.nodes[at])]
        lines: list[str] = []
        texts: dict[int, str] = {}
        for at in reached:
            node = self.nodes[at]
            text = self._text(node, texts)
            if arguments_of(node) and uses.count(at) > 1:
                lines.append(f"const {DTYPES[node[1]].value} t{at} = {text};")
                text = f"t{at}"
            texts[at] = text
        return "".join(f"{indent}{line}\n" for line in (*lines, f"return {texts[root]};"))

    def _text(self, node: Node, texts: dict[int, str]) -> str:
        operation, dtype = node[0], DTYPES[node[1]]
        if operation == "number":
            return _number(node[2], dtype)
        if operation in ("operand", "result"):
            return self.leaves[operation, node[2] if operation == "operand" else None]
        given = [texts[each] for each in arguments_of(node)]
        if operation == "cast":
            return dtype.rounded.format(x=given[0], value=dtype.value)
        if operation == "round":
            return DTYPES[node[3]].rounded.format(x=given[0], value=dtype.value)
        if operation == "not" and dtype.kind == "int":
            return f"(~{given[0]})"
        if operation in ("add", "sub", "mul", "neg") and dtype.kind == "int":  # which wraps around
            given = [f"({dtype.accumulator}){each}" for each in given]
            return f"({dtype.value})({_TEXTS[operation].format(*given)})"
        return _TEXTS[operation].format(*given)


# ---- what is computed around a scan


class Operand(NamedTuple):
    """An operand of a fused kernel: its dtype, and its layout as ``ScanSpec`` names it."""

    dtype: str
    layout: Any = "dense"


class Result(NamedTuple):
    """The names of an output: as those of ``codegen.strategies.base``, which few scans need."""

    name: str
    type: str
    pointer: str


class Output(NamedTuple):
    """An output: the number of its node, and the dtype that it is stored in."""

    at: int
    dtype: str


@dataclass(frozen=True, eq=False)  # that of a text is one object: ``fusion_of``
class Fusion:
    """Expressions around a scan. ``nodes`` are those of a Graph."""

    nodes: tuple[Node, ...]
    operands: tuple[Operand, ...]
    element: int  # number of the node whose values are scanned
    gate: int | None  # likewise of the gates, for an operator that has them
    scanned: str  # dtype of the scan: what ``then`` is given a result of
    outputs: tuple[Output, ...]

    @functools.cached_property
    def text(self) -> str:
        """The canonical text: of equal expressions of equal operands the same, and nothing else."""
        kept = {at: number for number, at in enumerate(Graph(self.nodes).reached(*self._roots))}
        nodes = []
        for at in kept:
            node, count = self.nodes[at], len(arguments_of(self.nodes[at]))
            nodes.append([*node[:2], *(kept[each] for each in node[2 : 2 + count]), *node[2 + count :]])
        outputs = [[kept[each.at], each.dtype] for each in self.outputs]
        gate = None if self.gate is None else kept[self.gate]
        parts = [nodes, self.operands, kept[self.element], gate, self.scanned, outputs]
        return json.dumps(parts, separators=(",", ":"))

    @staticmethod
    def of_text(text: str) -> Fusion:
        """Return the fusion with this text."""
        nodes, operands, element, gate, scanned, outputs = json.loads(text)
        return Fusion(
            tuple(map(tuple, nodes)),
            tuple(Operand(*each) for each in operands),
            element,
            gate,
            scanned,
            tuple(Output(*each) for each in outputs),
        )

    @property
    def digest(self) -> str:
        """A short name of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:20]

    @functools.cached_property
    def read(self) -> tuple[int, ...]:
        """The operands that elements, gates and outputs are made of."""
        reached = Graph(self.nodes).reached(*self._roots)
        return tuple(sorted({self.nodes[at][2] for at in reached if self.nodes[at][0] == "operand"}))

    @property
    def _roots(self) -> tuple[int, ...]:
        return (self.element, *(() if self.gate is None else (self.gate,)), *(each.at for each in self.outputs))

    @functools.cached_property
    def sources(self) -> tuple[tuple[str, str, str, str, Any], ...]:
        """Of each operand: name of the parameter, C type of an item, C name of a thread's items, dtype, layout."""
        others = ((f"further{n}", f"Further{n}", f"x{n}") for n in range(1, len(self.operands)))
        names = (("input", "Input", "x"), *others)
        return tuple((*name, *operand) for name, operand in zip(names, self.operands, strict=True))

    def selected(self, places: Sequence[int]) -> Fusion:
        """Return the fusion of these operands in this order; those left out are not read."""
        graph, source = Graph(), Graph(self.nodes)
        by_place = {place: number for number, place in enumerate(places)}

        def leaf(node: Node) -> Term:
            if node[0] == "result":
                return graph.add(*node)
            return graph.add(*node[:2], by_place[node[2]])

        element, *others = (source.carried(root, graph, leaf).at for root in self._roots)
        gate = others.pop(0) if self.gate is not None else None
        return Fusion(
            tuple(graph.nodes),
            tuple(self.operands[place] for place in places),
            element,
            gate,
            self.scanned,
            tuple(Output(at, each.dtype) for at, each in zip(others, self.outputs, strict=True)),
        )

    def laid(self, layouts: Sequence[str]) -> Fusion:
        """Return the fusion of operands that lie so."""
        return replace(self, operands=tuple(map(Operand, (each.dtype for each in self.operands), layouts)))

    @functools.cached_property
    def kept(self) -> tuple[int, ...]:
        """The operands that an output reads beside the result of the scan."""
        reached = Graph(self.nodes).reached(*(each.at for each in self.outputs))
        return tuple(sorted({self.nodes[at][2] for at in reached if self.nodes[at][0] == "operand"}))

    @property
    def held_bytes(self) -> int:
        """Bytes of registers for the operands of an item that outputs read; those of a whole line are held once."""
        kept = [self.operands[place] for place in self.kept if self.operands[place].layout != "line"]
        return sum(max(4, DTYPES[each.dtype].bytes) for each in kept)

    @property
    def plain(self) -> bool:
        """Whether the one output is the result of the scan itself."""
        only = self.outputs[0]
        return len(self.outputs) == 1 and self.nodes[only.at][0] == "result" and only.dtype == self.scanned

    def row(self, row: Operator, spec: Any) -> Operator:
        """Return the operator of ``row`` whose state also holds the operands that outputs read, and that makes these.

        The further fields belong to single elements, as those of gradients do: they are not exchanged. Raises
        UnsupportedRequest where a ScanSpec has fields that do not go with expressions.
        """
        wrong = [name for name in ("mask", "gate", "saved", "segments", "complete") if getattr(spec, name)]
        if wrong or row.indices or row.gives == "index":
            raise UnsupportedRequest(
                f"{spec.op}: map does not go with {wrong[0] if wrong else 'an operator with indices'}",
                allowed="an operator with one result, without mask, gate, saved tensor, segments and complete results",
                value=f"{wrong[0]}={getattr(spec, wrong[0])!r}" if wrong else f"op={spec.op!r}",
                hint="make mask and gate operands of the expression",
            )
        return row if self.plain else _row_with(self, row.handle)

    def functions(self, project: str) -> str:
        """C++ of the functions that ``lifted`` and the row name; ``project``: the row's expression of its result."""
        leaves: dict[tuple[str, Any], str] = {("result", None): "y"}
        for place, (dtype, _) in enumerate(self.operands):
            leaves["operand", place] = DTYPES[dtype].read.format(x=self.sources[place][2])
        printer, taken = _Printer(self.nodes, leaves), ", ".join(self._taken("{1} {2}"))
        inline = "__device__ __forceinline__"
        parts = [f"// What is scanned, of the operands.\n{inline} Value mapped({taken}) {{\n"
                 f"{printer.body(self.element)}}}\n"]  # fmt: skip
        if self.gate is not None:
            parts.append(f"{inline} Value mapped_gate({taken}) {{\n{printer.body(self.gate)}}}\n")
        own = "".join(f"    s.own{place} = {leaves['operand', place]};\n" for place in self.kept)
        parts.append(f"// With the operands that outputs read.\n{inline} State beside(State s, {taken}) {{\n"
                     f"{own}    return s;\n}}\n")  # fmt: skip
        for place in self.kept:
            is_bool = self.operands[place].dtype == "bool"
            leaves["operand", place] = f"(s.own{place} != 0)" if is_bool else f"s.own{place}"
        for number, (at, dtype) in enumerate(self.outputs):
            body = printer.body(at)
            made = DTYPES[wide(dtype)].value
            result = DTYPES[self.scanned].value
            parts.append(f"{inline} {made} then{number}([[maybe_unused]] {result} y, [[maybe_unused]] const State& s) "
                         f"{{\n{body}}}\n")  # fmt: skip
            if number > 0:
                written = DTYPES[dtype].write.format(x=project.replace("then0", f"then{number}", 1))
                function = f"{inline} Out{number} out{number}_of(State state) {{\n    return {{{written}}};\n}}\n"
                parts.append(f"struct Out{number} {{\n    {DTYPES[dtype].storage} value;\n}};\n\n{function}")
        return "\n".join(parts)

    def _taken(self, form: str) -> list[str]:
        return [form.format(*each) for each in self.sources]

    @property
    def lifted(self) -> str:
        """The C++ expression that makes the state of an item of its operands."""
        given = ", ".join(self._taken("{2}"))
        lift = f"lift(mapped({given}){'' if self.gate is None else f', mapped_gate({given})'})"
        return lift if self.plain else f"beside({lift}, {given})"

    @property
    def further(self) -> tuple[Result, ...]:
        """The names of the outputs after the first in the text of a kernel."""
        return tuple(Result(f"out{n}", f"Out{n}", f"z{n}") for n in range(1, len(self.outputs)))


def _with_fields(row: Operator, text: str) -> str:
    """An expression over states of a row, whose state may be a plain number, with the field named."""
    if row.field_types != ("value",):
        return text
    return re.sub(r"\b(older|newer|state)\b", rf"\1.{row.fields[0]}", text)


@functools.lru_cache(maxsize=256)
def _row_with(fusion: Fusion, handle: Any) -> Operator:
    row: Operator = handle.operator
    names = tuple(f"own{place}" for place in fusion.kept)
    named = functools.partial(_with_fields, row) if names else str
    kinds = tuple(_FIELD.get(dtype := wide(fusion.operands[place].dtype), dtype) for place in fusion.kept)
    newer, none = tuple(f"newer.{name}" for name in names), ("0",) * len(names)

    def joined(texts: tuple[str, ...]) -> tuple[str, ...]:
        if len(texts) < len(row.fields):  # one expression for the whole state
            parts = "".join(f" s.{name} = newer.{name};" for name in names)
            return tuple(f"[&] {{ State s = {text};{parts} return s; }}()" for text in texts)
        return (*map(named, texts), *newer)

    return replace(
        row,
        name=f"{row.name}_fused",
        fields=(*row.fields, *names),
        types=(*row.field_types, *kinds),
        own=names,
        lift=(*row.lift, *none),
        combine=joined(row.combine),
        append=joined(row.append) if row.append else (),
        extend=(),
        holds=(),
        settle=(),
        behind=(),
        loss="",
        identity=(*row.identity, *none),
        project=f"then0(({DTYPES[fusion.scanned].value})({named(row.project)}), state)",
        resume=(*row.resumes, *none) if row.resumes else (),
        resumed=lambda y: y,
        output=lambda h: h,
        carried=named(row.carried or row.project),
        kinds=("int", "float", "complex", "bool"),
        forms={},
        gradient=None,
        derivative=None,
        join=None,
    )


_read = functools.lru_cache(maxsize=4096)(Fusion.of_text)


def fusion_of(text: str) -> Fusion:
    """Return the fusion with this text: of equal texts the same object. Raises UnsupportedRequest for any other."""
    try:
        return _read(text)
    except (ValueError, TypeError, IndexError, KeyError) as problem:
        raise UnsupportedRequest(
            "map must be the text of expressions that scanops traced",
            allowed="Fusion.text",
            value=shown(text),
            hint="call scanops.scan with functions, or take the spec from scanops.explain",
        ) from problem
