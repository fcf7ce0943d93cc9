"""What a plan costs, told from the plan alone: bytes, registers, blocks a multiprocessor, and the grid of a launch."""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass

from scanops.codegen.fragments import fragments
from scanops.codegen.lines import PANEL_LINES, are_few
from scanops.codegen.occupancy import Occupancy, occupancy
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import Plan, ceil_div

__all__ = [
    "ITEMS",
    "Grid",
    "bytes_in_flight",
    "expected_registers",
    "floor_microseconds",
    "grid_of",
    "item_bytes",
    "lines_for",
    "residents",
]

BASE_REGISTERS = 24  # a thread's addresses, guards and temporaries; as many for each operand
ITEMS = 2**28  # of a tensor, about: some twenty times an L2
PER_THREAD = (
    "items",
    "vectors",
    "vector",
    "unroll",
)  # fields of plans: their product is the items a thread has in a tile


def lines_for(spec: ScanSpec, multiprocessors: int, items: int = ITEMS) -> int:
    """Lines of so many items in all, about; no more than are few, where the spec is for few lines."""
    lines = max(1, items // (spec.capacity * spec.inner)) * spec.inner
    if spec.input_layout == "transposed" and spec.inner == 1:
        lines = ceil_div(lines, PANEL_LINES) * PANEL_LINES  # side by side: in whole accesses
    few = spec.lines == "few"
    while few and lines > spec.inner and not are_few(lines, spec.capacity, spec.inner, multiprocessors):
        lines = lines // spec.inner // 2 * spec.inner
    return lines


def item_bytes(spec: ScanSpec) -> int:
    """Bytes that must move for an item: what is read once in, the outputs once out."""
    return spec.read_bytes + sum(spec.result_bytes)


def floor_microseconds(plan: Plan, moved: int) -> float:
    """The time in which the target's memory can move so many bytes."""
    return moved / plan.target.bandwidth / 1e3


def expected_registers(plan: Plan) -> int:
    """Registers a thread, about: the states of its items, and its loads where another tile is on its way meanwhile.

    The compiler has the last word: it overlaps lives, and moves what it can.
    """
    state = fragments(plan.spec).state_bytes
    items = _items_a_thread(plan)
    waiting = items * plan.spec.read_bytes if plan.loops and not plan.shared_bytes else 0
    held = (items * state + items // max(1, plan.items) * state + waiting) / 4
    base = BASE_REGISTERS * len(plan.sources)
    return min(plan.target.thread_registers, base + math.ceil(held))


def residents(plan: Plan, registers: int, declared_bytes: int = 0) -> Occupancy:
    """What a multiprocessor holds of the plan's blocks, with so many registers and so much declared shared memory."""
    shared = declared_bytes + plan.shared_bytes
    return occupancy(plan.target, threads=plan.threads, registers=registers, shared_bytes=shared)


def bytes_in_flight(plan: Plan, blocks: int) -> int:
    """Bytes that a multiprocessor's blocks have asked memory for at the most, before they wait for the first."""
    staged = plan.shared_bytes or int(getattr(plan, "declared_bytes", 0))  # what arrives in shared memory
    return blocks * (staged or plan.threads * _items_a_thread(plan) * plan.spec.read_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The blocks of a launch, as the generated host code computes them."""

    steps: tuple[tuple[str, str], ...]  # (name, expression) in order; the last one is "blocks"

    @property
    def formula(self) -> str:
        """The number of blocks over ``lines`` and ``multiprocessors``."""
        text = self.steps[-1][1]
        for name, inner in reversed(self.steps[:-1]):
            text = re.sub(rf"\b{name}\b", inner if _CHOICE.fullmatch(text) or " " not in inner else f"({inner})", text)
        return re.sub(r"^(.+) < (.+) \? \1 : \2$", r"min(\1, \2)", text)

    def blocks(self, lines: int, multiprocessors: int, neighbours: int | None = None) -> int:
        """The number of blocks for so many lines, ``neighbours`` of them adjacent (by default all)."""
        known = {"lines": lines, "multiprocessors": multiprocessors, "neighbours": neighbours or lines}
        for name, expression in self.steps:
            known[name] = _value(expression, known)
        return known["blocks"]


_CHOICE = re.compile(r"(.+) < (.+) \? (.+) : (.+)")
_WORDY = re.compile(
    r"arguments->|(?<=\bneighbours)\.size|\((?:long long|int)\)|(?<=\d)LL\b"
)  # what a formula does without
_STEP = re.compile(r"^ *const long long (\w+) = (.+);$", re.MULTILINE)


def grid_of(source: str) -> Grid:
    """The grid of a generated kernel, read from its launcher."""
    launcher = source[source.index("int scanops_launch(") :]
    numbers = dict(re.findall(r"^constexpr (?:int|long long|Position) (k?\w+) = (\d+);", source, re.MULTILINE))
    if "kLanes" in numbers:
        numbers["kTile"] = str(int(numbers["kThreads"]) // int(numbers["kLanes"]) * int(numbers["kItems"]))
    steps: list[tuple[str, str]] = []
    for name, expression in _STEP.findall(launcher):
        expression = re.sub(r"\b(?:k[A-Z]\w*|length)\b", lambda word: numbers.get(word[0], word[0]), expression)
        steps.append((name, _WORDY.sub("", expression)))
        if name == "blocks":
            return Grid(steps=_needed(steps))
    raise ValueError("a launcher that does not say how many blocks it launches")


def _needed(steps: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The last step and those that it follows from: a launcher computes other things besides."""
    used, kept = {steps[-1][0]}, []
    for name, expression in reversed(steps):
        if name in used:
            used |= set(re.findall(r"\w+", expression))
            kept.append((name, expression))
    return tuple(reversed(kept))


def _value(expression: str, known: dict[str, int]) -> int:
    """The value of a C expression over positive whole numbers: sums, products, quotients, one choice."""
    choice = _CHOICE.fullmatch(expression)
    if choice:
        low, high = (_value(choice[k], known) for k in (1, 2))
        return _value(choice[3] if low < high else choice[4], known)
    return _walk(ast.parse(expression, mode="eval").body, known)


def _walk(node: ast.expr, known: dict[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _walk(left, known) + _walk(right, known)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _walk(left, known) - _walk(right, known)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _walk(left, known) * _walk(right, known)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _walk(left, known) // _walk(right, known)
    raise ValueError(f"no whole-number expression: {ast.dump(node)}")


def _items_a_thread(plan: Plan) -> int:
    return math.prod(int(getattr(plan, name, 1)) for name in PER_THREAD)
