"""What a kernel computes around a scan: the text of a ``Fusion``, and its C++.

A ``Fusion`` says what is scanned, the elements and the gates of a recurrence or the fields of states, in terms of the
operands; and the outputs, in terms of the result of the scan and the operands. Its ``text`` is JSON, the field ``map``
of ``ScanSpec``. This module needs no torch.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from scanops.codegen.dtypes import DTYPES, literal, number_in
from scanops.codegen.fusion.fused_rows import Field, is_field_name, of_states, row_with
from scanops.codegen.fusion.graph import (
    LEAVES,
    SUM,
    Graph,
    Node,
    Printer,
    Term,
    arguments_of,
    check_nodes,
    indent,
    is_place,
    wide,
)
from scanops.codegen.layouts import LAYOUTS, LINE, STATE_LAYOUTS, STEP
from scanops.codegen.lazy import lazy
from scanops.codegen.operator import Operator
from scanops.codegen.operators.recurrences import EXPRESSIONS
from scanops.errors import UnsupportedRequest, format_value

MOST_OPERANDS, MOST_OUTPUTS = 8, 4  # of a kernel: pointers in ScanArguments
_LAYOUTS = (*LAYOUTS, LINE, STEP, *STATE_LAYOUTS)
_MOST_FIELDS = 64  # of a state, and operands
_MOST_CHARACTERS = 2**20  # of a text


class Operand(NamedTuple):
    """An operand of a fused kernel: its dtype, and its layout as ``ScanSpec`` names it."""

    dtype: str
    layout: Any = "dense"
    # Of results of a scan in the other direction, read as those before each item: what is before all of them. Items of
    # any other operand are read where they are.
    start: float | None = None


class Output(NamedTuple):
    """An output: the number of its node, and the dtype that it is stored in."""

    at: int
    dtype: str


def _require(right: bool, wrong: str) -> None:
    if not right:
        raise ValueError(wrong)


def _is_dtype(name: object) -> bool:
    return isinstance(name, str) and name in DTYPES and DTYPES[name].kind != "complex"


def _rows(value: Any, name: str, least: int, most: int, size: int) -> list[list[Any]]:
    """Return a list of lists of one size."""
    right = isinstance(value, list) and least <= len(value) <= most
    _require(right and all(isinstance(each, list) and len(each) == size for each in value), f"the {name} are no rows")
    found: list[list[Any]] = value
    return found


@dataclass(frozen=True, eq=False)  # that of a text is one object: ``fusion_of``
class Fusion:
    """Expressions around a scan. ``nodes`` are those of a Graph; others are named by their numbers."""

    nodes: tuple[Node, ...]
    operands: tuple[Operand, ...]
    elements: tuple[int, ...]  # the values that are scanned, then the gates; of ``fields`` one for each
    scanned: str  # dtype of the scan: what ``then`` is given a result of
    outputs: tuple[Output, ...]
    # Of an operator of expressions; any other has a row of its own.
    fields: tuple[Field, ...] = ()
    combine: tuple[int, ...] = ()  # each field of a state, from those of the older and the newer one
    append: tuple[int, ...] = ()  # likewise where the newer state is that of an item

    @lazy
    def text(self) -> str:
        """The canonical text: of equal expressions of equal operands the same, and nothing else."""
        kept = {at: number for number, at in enumerate(Graph(self.nodes).find_ancestors(*self._roots))}
        nodes = []
        for at in kept:
            node, count = self.nodes[at], len(arguments_of(self.nodes[at]))
            nodes.append([*node[:2], *(kept[each] for each in node[2 : 2 + count]), *node[2 + count :]])
        outputs = [[kept[each.at], each.dtype] for each in self.outputs]
        elements, *rules = ([kept[at] for at in each] for each in (self.elements, self.combine, self.append))
        parts = [nodes, self.operands, elements, self.scanned, outputs, self.fields, *rules]
        return json.dumps(parts, separators=(",", ":"))

    @staticmethod
    def of_text(text: str) -> Fusion:
        """Return the fusion with this text. Raises ValueError for a text that is not that of a fusion."""
        if not isinstance(text, str) or len(text) > _MOST_CHARACTERS:
            raise ValueError(f"it is no string of at most {_MOST_CHARACTERS} characters")
        try:
            parts = json.loads(text)
        except RecursionError:
            raise ValueError("its lists are nested too deeply") from None
        _require(isinstance(parts, list) and len(parts) == 8, "it has not the eight parts of a fusion")
        nodes, operands, elements, scanned, outputs, fields, combine, append = parts
        rows = _rows(operands, "operands", 1, _MOST_FIELDS, 3)  # of which a kernel reads some
        for dtype, layout, start in rows:
            _require(_is_dtype(dtype) and layout in _LAYOUTS, "an operand is no dtype and layout of tensors")
            _require(start is None or type(start) in (int, float), "what is before an operand's items is no number")
            number_in(start or 0, DTYPES[dtype], "what is before an operand's items")
        _require(rows[0][1] != LINE, "the first operand has one item for a line")
        _require(rows[0][2] is None, "the first operand is read an item further on")
        _require(_is_dtype(scanned), "what is scanned has no dtype")
        states = _rows(fields, "fields", 0, _MOST_FIELDS, 3)
        for name, dtype, number in states:
            _require(is_field_name(name) and _is_dtype(dtype), "a field has no name and dtype")
            _require(type(number) in (bool, int, float), "the identity of a field is no number")
            number_in(number, DTYPES[dtype], f"the identity of the field {name!r}")
        _require(len({name for name, *_ in states}) == len(states), "two fields have one name")
        dtypes = [dtype for _, dtype, _ in states]
        results = dtypes or [scanned]
        leaves = {"operand": [dtype for dtype, *_ in rows], "result": results, "older": dtypes, "newer": dtypes}
        checked = check_nodes(nodes, leaves)
        stored = _rows(outputs, "outputs", 1, MOST_OUTPUTS, 2)
        for at, dtype in stored:
            _require(is_place(at, len(checked)) and _is_dtype(dtype) and DTYPES[dtype].stored, "an output is no result")
            _require(checked[at][1] == wide(dtype), "an output is of another dtype than its node")
        count = (len(states),) if states else (1, 2)
        for name, roots, counts in (
            ("elements", elements, count), ("combine", combine, (len(states),)), ("append", append, (0, len(states)))
        ):  # fmt: skip
            right = isinstance(roots, list) and len(roots) in counts and all(is_place(at, len(checked)) for at in roots)
            _require(right, f"{name} are no nodes, one for each value")
            wanted = dtypes or [scanned] * len(roots)
            found = [checked[at][1] for at in roots]
            _require(
                found == [wide(each) for each in wanted[: len(roots)]], f"{name} are of other dtypes than the state"
            )
        graph = Graph(checked)
        for roots, legal in (
            (elements, ("operand",)), ([at for at, _ in stored], ("operand", "result")),
            ([*combine, *append], ("older", "newer")),
        ):  # fmt: skip
            used = {checked[at][0] for at in graph.find_ancestors(*roots)}.intersection(LEAVES)
            _require(used <= set(legal), f"nodes read {', '.join(sorted(used.difference(legal)))} where there is none")
        fusion = Fusion(
            checked,
            tuple(Operand(*each) for each in rows),
            tuple(elements),
            scanned,
            tuple(Output(*each) for each in stored),
            tuple(Field(*each) for each in states),
            tuple(combine),
            tuple(append),
        )
        scans = {checked[at][0] for at in graph.find_ancestors(*elements, *combine, *append)}
        _require(SUM not in scans, "a value that is scanned is made of a sum over lines")
        below = {checked[at][0] for at in graph.find_ancestors(*(checked[at][2] for at in fusion.sums))}
        _require(SUM not in below, "a sum over lines is within another")
        above = {checked[at][0] for at in fusion.above} if fusion.sums else set()
        _require("result" not in above, "an output beside a sum over lines reads the result of one line")
        return fusion

    @lazy
    def sums(self) -> tuple[int, ...]:
        """The sums of expressions over lines that outputs are made of: they have an item for those lines together."""
        reached = Graph(self.nodes).find_ancestors(*(each.at for each in self.outputs))
        return tuple(at for at in reached if self.nodes[at][0] == SUM)

    @lazy
    def above(self) -> tuple[int, ...]:
        """The nodes that outputs are made of, as far as the sums over lines, these included."""
        found, waiting = set[int](), [each.at for each in self.outputs]
        while waiting:
            at = waiting.pop()
            if at not in found:
                found.add(at)
                waiting += [] if self.nodes[at][0] == SUM else arguments_of(self.nodes[at])
        return tuple(sorted(found))

    @lazy
    def read_above(self) -> tuple[int, ...]:
        """The operands that outputs read beside sums over lines."""
        return tuple(sorted({self.nodes[at][2] for at in self.above if self.nodes[at][0] == "operand"}))

    @property
    def digest(self) -> str:
        """A short name of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:20]

    @lazy
    def read(self) -> tuple[int, ...]:
        """The operands that states and outputs are made of."""
        return self.find_operands(self._roots)

    def find_operands(self, roots: Iterable[int]) -> tuple[int, ...]:
        """The operands that nodes are made of."""
        reached = Graph(self.nodes).find_ancestors(*roots)
        return tuple(sorted({self.nodes[at][2] for at in reached if self.nodes[at][0] == "operand"}))

    @property
    def _roots(self) -> tuple[int, ...]:
        return (*self.elements, *(each.at for each in self.outputs), *self.combine, *self.append)

    @lazy
    def sources(self) -> tuple[tuple[str, str, str, str, Any, int], ...]:
        """The fields of each operand's ``Source``: C names, dtype, layout, items by which it is read further on."""
        others = ((f"further{n}", f"Further{n}", f"x{n}") for n in range(1, len(self.operands)))
        names = (("input", "Input", "x"), *others)
        pairs = zip(names, self.operands, strict=True)
        return tuple((*name, each.dtype, each.layout, int(each.start is not None)) for name, each in pairs)

    def select_operands(self, places: Sequence[int], layouts: Sequence[str]) -> Fusion:
        """Return the fusion of these operands in this order, of these layouts; those left out are not read."""
        graph, source = Graph(), Graph(self.nodes)
        by_place = {place: number for number, place in enumerate(places)}

        def leaf(node: Node) -> Term:
            return graph.add(*node[:2], by_place[node[2]] if node[0] == "operand" else node[2])

        def moved(roots: Iterable[int]) -> tuple[int, ...]:
            return tuple(source.copy_into(root, graph, leaf).at for root in roots)

        rules = {name: moved(getattr(self, name)) for name in ("elements", "combine", "append")}
        outputs = zip(moved(each.at for each in self.outputs), self.outputs, strict=True)
        made = tuple(Output(at, each.dtype) for at, each in outputs)
        pairs = zip(places, layouts, strict=True)
        operands = tuple(self.operands[at]._replace(layout=layout) for at, layout in pairs)
        return replace(self, nodes=tuple(graph.nodes), operands=operands, outputs=made, **rules)  # type: ignore[arg-type]

    @lazy
    def held(self) -> tuple[int, ...]:
        """The nodes whose values outputs take beside the result of the scan: of each item, a field of the state.

        They are the last ones before the result comes in, or the operands that these are made of, if those are fewer
        bytes. What is made of operands of a whole line alone is computed again.
        """
        graph, roots = Graph(self.nodes), [each.at for each in self.outputs]
        reached = graph.find_ancestors(*roots)
        late = set[int]()  # the nodes that follow from the result
        for at in reached:
            if self.nodes[at][0] == "result" or late.intersection(arguments_of(self.nodes[at])):
                late.add(at)
        last = {*roots, *(each for at in reached if at in late for each in arguments_of(self.nodes[at]))} - late
        made_of = {at: [each for each in graph.find_ancestors(at) if self.nodes[each][0] == "operand"] for at in last}
        of_items = {at for at in last if any(self._is_of_item(each) for each in made_of[at])}
        of_lines = {each for at in last - of_items for each in made_of[at]}
        operands = {each for at in last for each in made_of[at]}
        fewer = self._bytes(of_items | of_lines) <= self._bytes(operands)
        return tuple(sorted(of_items | of_lines if fewer else operands))

    def _varies(self, at: int) -> bool:
        return bool(self.nodes[at][0] == "operand") and self._is_of_item(at)

    def _is_of_item(self, at: int) -> bool:
        return bool(self.nodes[at][0] != "operand" or self.operands[self.nodes[at][2]].layout != "line")

    def _bytes(self, nodes: Iterable[int]) -> int:
        return sum(max(4, DTYPES[self.nodes[at][1]].bytes) for at in nodes if self._is_of_item(at))

    @property
    def held_bytes(self) -> int:
        """Bytes of registers for what outputs take of an item, and for its state if that is of ``fields``.

        Operands of a whole line are held once, and constants in no register.
        """
        graph = Graph(self.nodes)
        of_items = [at for at in set(self.elements) if self.fields and any(map(self._varies, graph.find_ancestors(at)))]
        return self._bytes({*self.held, *of_items})

    @property
    def plain(self) -> bool:
        """Whether the one output is the result of the scan itself."""
        only, result = self.outputs[0], bool(self.nodes[self.outputs[0].at][0] == "result")
        return not self.fields and len(self.outputs) == 1 and result and only.dtype == self.scanned

    def row(self, row: Operator, spec: Any) -> Operator:
        """Return the operator of ``row`` whose state also holds the operands that outputs read, and that makes these.

        The further fields belong to single elements, as those of gradients do: they are not exchanged. Raises
        UnsupportedRequest where a ScanSpec has fields that do not go with expressions.
        """
        differing = [
            f"{name}={told!r}"
            for name, told, found in (
                ("op", spec.op if (spec.op == EXPRESSIONS.name) != bool(self.fields) else None, None),
                ("dtype", spec.dtype, self.operands[0].dtype),
                ("out_dtype", spec.out_dtype, self.outputs[0].dtype),
            )
            if told != found
        ]
        if differing:
            raise UnsupportedRequest(
                f"{spec.op}: map is of another scan",
                allowed=f"dtype={self.operands[0].dtype!r}, out_dtype={self.outputs[0].dtype!r}, "
                f"op={EXPRESSIONS.name!r} for states of fields and no other",
                value=", ".join(differing),
                hint="take map and the other fields from one recording",
            )
        most = MOST_OPERANDS + bool(spec.states)  # with head flags beside those of a call
        if len(self.operands) > most:
            raise UnsupportedRequest(
                f"{spec.op}: map is of too many tensors for a kernel",
                allowed=f"1 to {most} tensors",
                value=f"{len(self.operands)} tensors",
                hint="combine some of them before the scan",
            )
        if self.sums and not spec.states:
            raise UnsupportedRequest(
                f"{spec.op}: map adds the results of several lines",
                allowed="expressions whose outputs have an item for each item that is scanned",
                value="a sum over lines",
                hint="scan without it, and add the results with torch.sum",
            )
        others = ("mask", "gate", "saved", "complete", *(("segments",) if spec.states else ()))
        wrong = [name for name in others if getattr(spec, name)]
        if wrong or row.indices:
            raise UnsupportedRequest(
                f"{spec.op}: map does not go with {wrong[0] if wrong else 'an operator with indices'}",
                allowed="an operator with one result, without mask, gate, saved tensor and complete results",
                value=f"{wrong[0]}={getattr(spec, wrong[0])!r}" if wrong else f"op={spec.op!r}",
                hint="make mask and gate operands of the expression",
            )
        return row if self.plain else row_with(self, row)

    def functions(self, project: str, halves: bool) -> str:
        """C++ of the functions that ``lifted`` and the row name; ``project``: the row's expression of its result.

        ``halves``: the first output and carries are of half types.
        """
        leaves: dict[tuple[str, Any], str] = {("result", 0): "y"} | of_states(self.fields, "result", "s")
        for place, (dtype, *_) in enumerate(self.operands):
            leaves["operand", place] = DTYPES[dtype].read.format(x=self.sources[place][2])
        short = halves and all(DTYPES[dtype].kind == "float" and DTYPES[dtype].bytes < 4 for _, dtype in self.outputs)
        held = () if self.plain else self.held
        lines, texts = Printer(self.nodes, leaves, short).statements(*self.elements, *held)
        count = len(self.elements)
        lift = f"lift({', '.join(texts[:count])})"
        lift = f"State{{{', '.join([*texts[:count], *'0' * len(held)])}}}" if self.fields else lift
        fields = [f"s.own{number} = {text};" for number, text in enumerate(texts[count:])]
        lines += [f"State s = {lift};", *fields, "return s;"] if held else [f"return {lift};"]
        inline = "__device__ __forceinline__"
        taken = ", ".join(f"{source[1]} {source[2]}" for source in self.sources)
        also = ", with what outputs take of the operands" if held else ""
        parts = [f"// The state of an item, of the operands{also}.\n{inline} State mapped({taken}) {{\n"
                 f"{indent(*lines)}}}\n"]  # fmt: skip
        nodes = list(self.nodes)
        for number, at in enumerate(held):
            nodes[at] = ("operand", nodes[at][1], f"own{number}")
            leaves["operand", f"own{number}"] = ("(s.own{} != 0)" if nodes[at][1] == "bool" else "s.own{}").format(
                number
            )
        printer = Printer(nodes, leaves, short)
        for number, (at, dtype) in enumerate(() if self.plain else self.outputs):
            made = DTYPES[wide(dtype)].value
            result = "" if self.fields else f"[[maybe_unused]] {DTYPES[self.scanned].value} y, "
            parts.append(f"{inline} {made} then{number}({result}[[maybe_unused]] const State& s) "
                         f"{{\n{printer.body(at)}}}\n")  # fmt: skip
            if number > 0:
                written = DTYPES[dtype].write.format(x=project.replace("then0", f"then{number}", 1))
                function = f"{inline} Out{number} out{number}_of(State state) {{\n    return {{{written}}};\n}}\n"
                parts.append(f"struct Out{number} {{\n    {DTYPES[dtype].storage} value;\n}};\n\n{function}")
        return "\n".join(parts)

    @property
    def lifted(self) -> str:
        """The C++ expression that makes the state of an item of its operands."""
        items = []
        for (_, kind, name, *_), (dtype, _, start) in zip(self.sources, self.operands, strict=True):
            first = (
                f"({kind})({DTYPES[dtype].write.format(x=literal(start, DTYPES[wide(dtype)]))})"
                if start
                else f"{kind}{{}}"
            )
            items.append(name if start is None else f"last ? {first} : {name}")
        return f"mapped({', '.join(items)})"

    @property
    def further(self) -> tuple[tuple[str, str, str], ...]:
        """Of each output after the first: name of the parameter, C type of an item, C name of a thread's accesses."""
        return tuple((f"out{n}", f"Out{n}", f"z{n}") for n in range(1, len(self.outputs)))


_TEXTS: dict[str, str] = {}  # by digest: the expressions that this process has traced or read


@functools.lru_cache(maxsize=4096)
def _read(text: str) -> Fusion:
    fusion = Fusion.of_text(text)
    _TEXTS[fusion.digest] = fusion.text
    return fusion


def fusion_of(text: str) -> Fusion:
    """Return the fusion with this text: of equal texts the same object. Raises UnsupportedRequest for any other."""
    try:
        return _read(text)
    except ValueError as problem:
        raise UnsupportedRequest(
            f"map must be the text of expressions that scanops traced: {format_value(str(problem))[1:-1]}",
            allowed="the text that a recording or a spec file has",
            value=f"map={format_value(text)}",
            hint="call scanops.scan with functions, or read a spec file of a program that does",
        ) from problem


def text_named(digest: str, text: str = "") -> str:
    """Return the text of the expressions with this digest: ``text``, or where it is empty one that is known here.

    Raises UnsupportedRequest where there is none.
    """
    if fusion_of(text).digest != digest if text else digest not in _TEXTS:
        raise UnsupportedRequest(
            "the expressions of a short name are not known here",
            allowed="map_DIGEST of expressions that this process has traced, or read from a spec file",
            value=f"map_{digest}",
            hint="record the program that has them, and pass --import FILE, or scanops.specfile.load(FILE)",
        )
    return text or _TEXTS[digest]
