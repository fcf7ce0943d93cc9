"""The expressions of a scan with states, by the stage of the kernel that computes them.

An operand varies along lines, steps and states, or along some of these. What an expression varies along follows from
its operands, and decides where it is computed: once for a thread, once for each step of a line, once for each step of
all lines of a block, or for each state at each step. The values that one stage computes and another one reads are
``Stage.values``. The backward pass differentiates stage by stage. This module needs no torch.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scanops.codegen.dtypes import DTYPES
from scanops.codegen.fusion.fusion import Fusion
from scanops.codegen.fusion.graph import Graph, Node, Printer, Term, arguments_of, indent, is_float
from scanops.codegen.fusion.graph_derivatives import pull_back
from scanops.codegen.layouts import LINE_DIM as LINE
from scanops.codegen.layouts import STATE_DIM as STATE
from scanops.codegen.layouts import STEP_DIM as STEP
from scanops.codegen.layouts import dims_of
from scanops.codegen.lazy import lazy

LOG2_E = 1.4426950408889634
SCANNED = "h"  # beside what a value varies along: it follows from the scan
ONCE, STEPS, TILE, FULL = "once", "step", "tile", "full"  # the stages, and the operands that are read in the scan
STAGES = (ONCE, STEPS, TILE, FULL)
# What functions of the scan may read: as a parameter, and as an argument for state n of a thread
_READABLE = {
    "g": ("Value g", "g"),
    "before": ("Value before", "previous"),
    "passed": ("Value passed", "carried[n]"),
    "h": ("Value h", "h[n]"),
    "gate": ("Value gate", "gate"),
    "dsums": ("const Sums& dsums", "dsums"),
    "once": ("const Once& once", "once[n]"),
    "step": ("const Step& step", "step"),
    "tile": ("const Tile& tile", "tile"),
    "full": ("const Full& full", "full"),
}
# The scan computes exponentials by the instruction for powers of 2: relative errors of (2 + 1.5 |x|) 2^-24.
_SCAN_FUNCTIONS = {"exp": f"exp2_of({{0}} * {LOG2_E}f)", "exp2": "exp2_of({0})"}


def stage_of(dims: frozenset[str]) -> str:
    """Return the stage of the scan that has a value which varies along ``dims``."""
    if STEP not in dims:
        return ONCE
    return TILE if dims == {STEP, STATE} else STEPS if STATE not in dims else FULL


class OperandGradient(NamedTuple):
    """A tensor that the backward kernel writes: a part of the gradient of an operand."""

    operand: int  # its place
    stage: str  # ``step``: an item for each step of a line; ``line``: one for each line; ``once``: for each state of a
    # line; ``tile``: for each state and step, and for each block of lines; ``full``: for all


@dataclass(frozen=True, eq=False)
class StageFunction:
    """C++ of expressions: a function that returns a struct of values, or one value."""

    name: str
    text: str
    operands: tuple[int, ...]  # the operands that it reads as they lie in memory


@dataclass(eq=False)
class Stages:
    """The expressions of a fusion with sums over states, whose operands have layouts of states."""

    fusion: Fusion
    wanted: tuple[bool, ...] = ()  # of a backward pass: which operands get a gradient
    graph: Graph = field(default_factory=Graph)
    reads: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of functions of the scan: what they read
    values: dict[str, list[int]] = field(default_factory=lambda: {stage: [] for stage in STAGES})

    def __post_init__(self) -> None:
        fusion, source = self.fusion, Graph(self.fusion.nodes)
        self._dims: dict[int, frozenset[str]] = {}
        self._rebuilt: dict[int, int] = {}
        self._source = source
        item, gate = (self._rebuild(at) for at in fusion.elements)
        self.outputs = [self._rebuild(each.at) for each in fusion.outputs]
        self.sums = [at for at in Graph(self.graph.nodes).find_ancestors(*self.outputs) if self._operation(at) == "sum"]
        self.item, self.gate = item, gate
        self.reset = self._reset_of(gate)  # the condition under which a state begins anew, and the gate elsewhere
        if self.reset is not None:
            self.gate = self.reset[1]
        self.contributions = [int(self.graph.nodes[at][2]) for at in self.sums]
        self.scan_values = {
            name: self._hasten(at)
            for name, at in {
                "gate_of": self.gate,
                "item_of": self.item,
                **{f"contribution{n}": at for n, at in enumerate(self.contributions)},
                **({"resets": self.reset[0]} if self.reset else {}),
            }.items()
        }
        for root in self.scan_values.values():
            self._find_values(root)
        self.gradients: tuple[OperandGradient, ...] = ()
        if self.wanted:
            self._differentiate()

    # ---- what values vary along

    def _operation(self, at: int) -> str:
        return str(self.graph.nodes[at][0])

    def dims(self, at: int) -> frozenset[str]:
        """What a node varies along."""
        if at not in self._dims:
            node = self.graph.nodes[at]
            if node[0] == "operand":
                found = dims_of(self.fusion.operands[node[2]].layout)
            elif node[0] == "result":
                found = frozenset((LINE, STEP, STATE, SCANNED))
            else:
                found = frozenset(itertools.chain(*(self.dims(each) for each in arguments_of(node))))
            self._dims[at] = found - {STATE, SCANNED} if node[0] == "sum" else found
        return self._dims[at]

    def _rebuild(self, at: int) -> int:
        """Return the node in the graph of the stages, whose products are ordered by what their factors vary along."""
        if at not in self._rebuilt:
            node = self._source.nodes[at]
            count = len(arguments_of(node))
            factors = self._factors(at)
            if len(factors) > 2:
                made = self._multiply([self._rebuild(each) for each in factors], str(node[1])).at
            else:
                moved = (self._rebuild(each) for each in node[2 : 2 + count])
                made = self.graph.add(*node[:2], *moved, *node[2 + count :]).at
            self._rebuilt[at] = made
        return self._rebuilt[at]

    def _factors(self, at: int) -> list[int]:
        node = self._source.nodes[at]
        if node[0] != "mul" or not is_float(node[1]):
            return [at]
        return [each for argument in node[2:] for each in self._factors(argument)]

    def _multiply(self, factors: Sequence[int], dtype: str) -> Term:
        """A product of the factors of one stage first: the values that fewer threads compute."""
        groups: dict[str, list[Term]] = {}
        numbers = [each for each in factors if self._operation(each) == "number"]
        for each in sorted(set(factors) - set(numbers), key=lambda at: len(self.dims(at))):
            groups.setdefault(self._stage(each), []).extend([Term(self.graph, each)] * factors.count(each))
        first = next((groups[stage] for stage in (ONCE, STEPS, TILE, FULL) if stage in groups), None)
        terms = [Term(self.graph, each) for each in numbers]
        if first is not None:
            first.extend(terms)
        else:
            groups[ONCE] = terms
        products = [
            functools.reduce(lambda a, b: a * b, groups[stage])
            for stage in (STEPS, TILE, ONCE, FULL)
            if stage in groups
        ]
        return functools.reduce(lambda a, b: a * b, products).cast(dtype)

    def _stage(self, at: int) -> str:
        return stage_of(self.dims(at) - {SCANNED}) if SCANNED not in self.dims(at) else FULL

    def _reset_of(self, gate: int) -> tuple[int, int] | None:
        """The condition and the gate of ``where(condition, 0, gate)``, by which segments begin."""
        node = self.graph.nodes[gate]
        if node[0] != "where" or self.graph.nodes[node[3]][0] != "number" or self.graph.nodes[node[3]][2] != 0:
            return None
        return int(node[2]), int(node[4])

    def _hasten(self, root: int) -> int:
        """Return an expression of the scan with powers of 2 for exponentials, the factor where it is computed least."""
        graph, made = self.graph, dict[int, int]()
        for at in graph.find_ancestors(root):
            operation, dtype, *rest = graph.nodes[at]
            count = len(arguments_of(graph.nodes[at]))
            arguments = [made[each] for each in rest[:count]]
            if operation == "exp" and dtype == "float32" and self._stage(at) == FULL:
                inner = graph.nodes[arguments[0]]
                factors = list(inner[2:]) if inner[0] == "mul" else [arguments[0]]
                cheapest = min(factors, key=lambda each: STAGES.index(self._stage(each)))
                others = [Term(graph, each) for each in factors if each != cheapest]
                scaled = Term(graph, cheapest) * LOG2_E
                made[at] = graph.add("exp2", dtype, functools.reduce(lambda a, b: b * a, others, scaled).at).at
            else:
                made[at] = graph.add(operation, dtype, *arguments, *rest[count:]).at
        return made[root]

    def _find_values(self, root: int) -> None:
        """Note the values that an expression of the scan reads of other stages."""
        stage = self._stage(root)
        if self._operation(root) in ("number", "result"):
            return
        if stage != FULL or self._operation(root) == "operand":
            if root not in self.values[stage]:
                self.values[stage].append(root)
            return
        for each in arguments_of(self.graph.nodes[root]):
            self._find_values(each)

    # ---- C++

    def _struct(self, stage: str) -> str:
        return {ONCE: "Once", STEPS: "Step", TILE: "Tile", FULL: "Full"}[stage]

    def type_of(self, at: int) -> str:
        """The C type of a value in structs and shared memory: what is narrower than 4 bytes is an int there."""
        row = DTYPES[self.graph.nodes[at][1]]
        return row.value if row.kind == "float" or row.bytes >= 4 else "int"

    def _leaf(self, nodes: list[Node], leaves: dict[tuple[str, object], str], at: int, text: str) -> None:
        """Let a node be printed as a text."""
        key = f"node{at}"
        nodes[at] = ("operand", nodes[at][1], key)
        leaves["operand", key] = text

    def _print(
        self, graph: Graph, roots: Sequence[int], known: Mapping[int, str], *, of_scan: bool
    ) -> tuple[list[str], list[str]]:
        nodes, leaves = list(graph.nodes), dict[tuple[str, object], str]()
        for at, text in known.items():
            self._leaf(nodes, leaves, at, text)
        for place, (dtype, *_) in enumerate(self.fusion.operands):
            leaves["operand", place] = DTYPES[dtype].read.format(x=self.fusion.sources[place][2])
        leaves["result", 0] = "h"
        halves = all(DTYPES[dtype].kind == "float" and DTYPES[dtype].bytes < 4 for _, dtype in self.fusion.outputs)
        printer = Printer(nodes, leaves, halves and not of_scan)
        if of_scan:
            printer.single = {**printer.single, **_SCAN_FUNCTIONS}
        return printer.statements(*roots)

    def _operands_of(self, roots: Iterable[int]) -> tuple[int, ...]:
        reached = self.graph.find_ancestors(*roots)
        return tuple(sorted({self.graph.nodes[at][2] for at in reached if self.graph.nodes[at][0] == "operand"}))

    def _parameters(self, operands: Iterable[int]) -> list[str]:
        return [f"{self.fusion.sources[at][1]} {self.fusion.sources[at][2]}" for at in operands]

    @lazy
    def prepared(self) -> dict[str, StageFunction]:
        """The functions that compute the values of the stages once, step and tile, of operands as they lie."""
        found = {}
        for stage in (ONCE, STEPS, TILE):
            roots = self.values[stage]
            lines, texts = self._print(self.graph, roots, {}, of_scan=False)
            kind, operands = self._struct(stage), self._operands_of(roots)
            body = indent(*lines, f"return {{{', '.join(texts)}}};")
            head = f"__device__ __forceinline__ {kind} prepare_{stage}({', '.join(self._parameters(operands))})"
            found[stage] = StageFunction(f"prepare_{stage}", f"{head} {{\n{body}}}", operands)
        return found

    @property
    def structs(self) -> str:
        """C++ of the structs of the values that the scan reads."""
        says = {
            ONCE: "values of a state of a line",
            STEPS: "values of a step of a line, which its states share",
            TILE: "values of a state at a step, which all lines of a block share",
            FULL: "operands of a state of a line at a step",
        }
        return "".join(
            f"struct {self._struct(stage)} {{  // {says[stage]}\n"
            + indent(*(f"{self.type_of(at)} v{n};" for n, at in enumerate(self.values[stage])))
            + "};\n"
            for stage in STAGES
        )

    def _known(self) -> dict[int, str]:
        return {at: f"{stage}.v{n}" for stage in STAGES for n, at in enumerate(self.values[stage])}

    def _reads(self, graph: Graph, roots: Iterable[int], known: Iterable[int] = ()) -> list[str]:
        """Which of ``_READABLE`` expressions of the scan are made of; those in ``known`` are values of stages."""
        found, waiting, ends = set[str](), list(roots), set(known)
        stages = {at: stage for stage in STAGES for at in self.values[stage]} if ends else {}
        while waiting:
            at = waiting.pop()
            node = graph.nodes[at]
            if at in ends:
                found.add(stages[at])
            elif node[0] == "result":
                found.add("h")
            elif node[0] == "operand":
                found.add(str(node[2]).partition(".")[0])
            else:
                waiting += arguments_of(node)
        return [name for name in _READABLE if name in found]

    def _define(self, name: str, kind: str, reads: Sequence[str], body: str) -> str:
        self.reads[name] = tuple(reads)
        parameters = ", ".join(_READABLE[each][0] for each in reads)
        return f"__device__ __forceinline__ {kind} {name}({parameters}) {{\n{body}}}\n"

    def call(self, name: str) -> str:
        """The C++ call of a function of the scan, for state n of a thread."""
        return f"{name}({', '.join(_READABLE[each][1] for each in self.reads[name])})"

    @lazy
    def scan_functions(self) -> str:
        """C++ of the expressions of the scan: gate and item, and what each sum adds of a state."""
        made, known = [], self._known()
        for name, root in self.scan_values.items():
            lines, (text,) = self._print(self.graph, [root], known, of_scan=True)
            body = indent(*lines, f"return {text};")
            made.append(self._define(name, self.type_of(root), self._reads(self.graph, [root], known), body))
        return "\n".join(made)

    @lazy
    def finish(self) -> StageFunction:
        """The function of the outputs, of the sums at a step and of the operands of that step and line."""
        known = {at: f"sums.v{n}" for n, at in enumerate(self.sums)}
        cut = self._cut(self.outputs, self.sums)
        lines, texts = self._print(self.graph, self.outputs, known, of_scan=False)
        written = [
            DTYPES[each.dtype].write.format(x=text) for each, text in zip(self.fusion.outputs, texts, strict=True)
        ]
        operands = self._operands_of(cut)
        parameters = ", ".join(["const Sums& sums", *self._parameters(operands)])
        body = indent(*lines, f"return {{{', '.join(written)}}};")
        return StageFunction(
            "finish", f"__device__ __forceinline__ Outputs finish({parameters}) {{\n{body}}}", operands
        )

    def _cut(self, roots: Iterable[int], at: Iterable[int]) -> list[int]:
        """The nodes that roots follow from without passing ``at``."""
        stop, found, waiting = set(at), set[int](), list(roots)
        while waiting:
            each = waiting.pop()
            if each not in found and each not in stop:
                found.add(each)
                waiting += arguments_of(self.graph.nodes[each])
        return sorted(each for each in found if self.graph.nodes[each][0] == "operand")

    # ---- the backward pass

    def _differentiate(self) -> None:
        for root in (self.gate, self.item, *self.contributions):
            self._find_values(root)
        dtype = str(self.graph.nodes[self.item][1])
        self._scan, scan = Graph(), {}  # the graph of the gradients of a state at a step, and nodes that end in it
        for stage in STAGES:
            for n, at in enumerate(self.values[stage]):
                scan[at] = self._scan.add("operand", self.graph.nodes[at][1], f"{stage}.v{n}")
        reaches = [self._scan.add("operand", dtype, f"dsums.v{n}") for n in range(len(self.sums))]
        before, g, passed = (self._scan.add("operand", dtype, name) for name in ("before", "g", "passed"))
        contributions = [self._copy(at, self._scan, scan) for at in self.contributions]
        direct = pull_back(self._scan, list(zip(contributions, reaches, strict=True)))
        self._direct = direct.get(self._scan.add("result", dtype, 0).at)
        gate = self._copy(self.gate, self._scan, scan)
        self._gate_at = gate.at
        of_gate = gate, g * before
        if gate.node[0] == "exp":  # whose derivative is the gate: g times it is what the next state gets anyway
            of_gate = Term(self._scan, gate.node[2]), passed * before
        through = pull_back(self._scan, [(self._copy(self.item, self._scan, scan), g), of_gate])
        self._of_values: dict[str, dict[int, Term]] = {stage: {} for stage in STAGES}
        for stage in STAGES:
            for n, at in enumerate(self.values[stage]):
                parts = [found[scan[at].at] for found in (direct, through) if scan[at].at in found]
                wanted = any(self.wanted[place] for place in self._operands_of([at]))
                if parts and wanted and is_float(self.graph.nodes[at][1]):
                    self._of_values[stage][n] = functools.reduce(lambda a, b: a + b, parts).cast(scan[at].dtype)
        # ---- from the values of stages to the operands
        self._operand_graphs: dict[str, tuple[Graph, dict[int, Term]]] = {}
        self._reaches: list[Term | None] = []
        gradients: list[OperandGradient] = []
        for stage in STAGES:
            graph, leaves = Graph(), dict[int, Term]()
            roots: list[tuple[Term, Term]] = []
            if stage == STEPS:
                leaves = {at: graph.add("operand", dtype, f"sums.v{n}") for n, at in enumerate(self.sums)}
                for n, (at, each) in enumerate(zip(self.outputs, self.fusion.outputs, strict=True)):
                    grad = graph.add("operand", self.graph.nodes[at][1], f"grad{n}")
                    if is_float(each.dtype):
                        roots.append((self._copy(at, graph, leaves), grad))
                found = pull_back(graph, roots)
                self._reaches = [found.get(leaf.at) for leaf in leaves.values()]
            for n in self._of_values[stage]:
                at = self.values[stage][n]
                grad = graph.add("operand", self.graph.nodes[at][1], f"d{stage}.v{n}")
                roots.append((self._copy(at, graph, leaves), grad))
            found = pull_back(graph, roots)
            of_operands = {}
            for place, is_wanted in enumerate(self.wanted):
                leaf = graph.operand(place, self.fusion.operands[place].dtype)
                if is_wanted and leaf.at in found:
                    of_operands[place] = found[leaf.at]
                    kind = (
                        "line" if stage == STEPS and STEP not in dims_of(self.fusion.operands[place].layout) else stage
                    )
                    gradients.append(OperandGradient(place, kind))
            self._operand_graphs[stage] = graph, of_operands
        self.gradients = tuple(gradients)

    def _copy(self, root: int, to: Graph, ends: Mapping[int, Term]) -> Term:
        """Return an expression in another graph, where the nodes in ``ends`` are terms."""
        made: dict[int, Term] = {}

        def copy(at: int) -> Term:
            if at in ends:
                return ends[at]
            if at not in made:
                node = self.graph.nodes[at]
                count = len(arguments_of(node))
                moved = [copy(each).at for each in node[2 : 2 + count]]
                made[at] = to.add(*node[:2], *moved, *node[2 + count :])
            return made[at]

        return copy(root)

    def _print_gradients(
        self, graph: Graph, roots: Sequence[int], known: Mapping[int, str], *, of_scan: bool
    ) -> tuple[list[str], list[str]]:
        """As ``_print``, of a graph whose leaves are named by what they are in C++."""
        named = {
            at: node[2] for at, node in enumerate(graph.nodes) if node[0] == "operand" and isinstance(node[2], str)
        }
        for at, name in named.items():
            if name.startswith("grad"):
                output = self.fusion.outputs[int(name.removeprefix("grad"))]
                named[at] = DTYPES[output.dtype].read.format(x=name)
        return self._print(graph, roots, {**named, **known}, of_scan=of_scan)

    @property
    def has_direct(self) -> bool:
        """Whether sums add anything that follows from the state."""
        return self._direct is not None

    @property
    def reads_sums(self) -> bool:
        """Whether some gradient is a function of the sums themselves."""
        return self._reads_sums(each.at for each in self._operand_graphs[STEPS][1].values()) or self.reach_reads_sums

    @property
    def reach_reads_sums(self) -> bool:
        """Whether what reaches the sums is a function of these."""
        return self._reads_sums(each.at for each in self._reaches if each is not None)

    def _reads_sums(self, roots: Iterable[int]) -> bool:
        graph = self._operand_graphs[STEPS][0]
        reached = (graph.nodes[at] for at in graph.find_ancestors(*roots))
        return any(node[0] == "operand" and str(node[2]).startswith("sums.") for node in reached)

    def gradient_values(self, stage: str) -> dict[int, str]:
        """The values of a stage that have a gradient, by number, with their C types."""
        return {n: self.type_of(self.values[stage][n]) for n in self._of_values[stage]}

    @property
    def gradient_structs(self) -> str:
        """C++ of the structs of gradients of values of the stages."""
        return "".join(
            f"struct {self._struct(stage)}Gradients {{\n"
            + indent(*(f"{kind} v{n};" for n, kind in self.gradient_values(stage).items()))
            + "};\n"
            for stage in STAGES
        )

    @lazy
    def scan_gradient_functions(self) -> str:
        """C++ of the gradients of a state at a step: what reaches it through sums, and those of the stages' values."""
        parts = []
        if self._direct is not None:
            roots = [self._direct.at]
            lines, (text,) = self._print_gradients(self._scan, roots, {}, of_scan=True)
            body = indent(*lines, f"return {text};")
            parts.append(self._define("reach_state", "Value", self._reads(self._scan, roots), body))
        found = {f"{stage}.v{n}": term.at for stage in STAGES for n, term in self._of_values[stage].items()}
        is_leaf = self._scan.nodes[self._gate_at][0] in ("operand", "number")
        known = {} if is_leaf else {self._gate_at: "gate"}
        lines, texts = self._print_gradients(self._scan, list(found.values()), known, of_scan=True)
        written = [f"found.{name} = {text};" for name, text in zip(found, texts, strict=True)]
        body = indent("ScanGradients found;", *lines, *written, "return found;")
        named = Graph(self._scan.nodes)
        if not is_leaf:  # a node of its own, printed as what the scan has computed
            named.nodes[self._gate_at] = ("operand", "", "gate")
        parts.append(self._define("scan_gradients", "ScanGradients", self._reads(named, found.values()), body))
        return "\n".join(parts)

    @lazy
    def reach(self) -> StageFunction:
        """The function of what reaches the sums at a step, of the gradients of the outputs there."""
        graph = self._operand_graphs[STEPS][0]
        dtypes = [str(self.graph.nodes[at][1]) for at in self.sums]
        pairs = zip(self._reaches, dtypes, strict=True)
        terms = [graph.number(0, dtype) if each is None else each for each, dtype in pairs]
        return self._operand_function("reach_sums", "Sums", STEPS, terms, "[[maybe_unused]] const Sums& sums")

    def operand_gradients(self, stage: str) -> tuple[StageFunction, tuple[int, ...]]:
        """The function of the gradients of operands that a stage reads, and which operands these are."""
        found = self._operand_graphs[stage][1]
        kind = f"{self._struct(stage)}Operands"
        first = f"[[maybe_unused]] const {self._struct(stage)}Gradients& d{stage}"
        first += ", [[maybe_unused]] const Sums& sums" if stage == STEPS else ""
        terms = [each.cast(each.dtype) for each in found.values()]
        return self._operand_function(f"{stage}_gradients", kind, stage, terms, first), tuple(found)

    def operand_struct(self, stage: str) -> str:
        """C++ of the struct of the gradients of operands that a stage reads."""
        fields = (f"Value x{place};" for place in self._operand_graphs[stage][1])
        return f"struct {self._struct(stage)}Operands {{\n{indent(*fields)}}};\n"

    def _operand_function(self, name: str, kind: str, stage: str, terms: Sequence[Term], first: str) -> StageFunction:
        graph = self._operand_graphs[stage][0]
        roots = [each.at for each in terms]
        lines, texts = self._print_gradients(graph, roots, {}, of_scan=False)
        reached = [graph.nodes[at] for at in graph.find_ancestors(*roots)]
        operands = tuple(sorted({node[2] for node in reached if node[0] == "operand" and isinstance(node[2], int)}))
        grads = [f"Grad{n} grad{n}" for n in range(len(self.outputs))] if stage == STEPS else []
        parameters = ", ".join([first, *(f"[[maybe_unused]] {each}" for each in grads), *self._parameters(operands)])
        head = f"__device__ __forceinline__ {kind} {name}({parameters})"
        body = indent(*lines, f"return {{{', '.join(texts)}}};")
        return StageFunction(name, f"{head} {{\n{body}}}\n", operands)


@functools.lru_cache(maxsize=256)
def split_stages(fusion: Fusion, wanted: tuple[bool, ...] = ()) -> Stages:
    """Return the stages of a fusion with sums; of its backward pass where gradients are wanted."""
    return Stages(fusion, wanted)
