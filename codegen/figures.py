"""What a plan costs, told from the plan alone: bytes, registers, and blocks a multiprocessor."""

from __future__ import annotations

import math

from scanops.codegen.fragments import fragments
from scanops.codegen.kernel_key import FEW, KernelKey
from scanops.codegen.lines import PANEL_LINES, choose_variant
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import Plan, ceil_div
from scanops.codegen.targets import Occupancy, occupancy

BASE_REGISTERS = 24  # a thread's addresses, guards and temporaries; as many for each operand
ITEMS = 2**28  # of a tensor, about: some twenty times an L2
PER_THREAD = ("items", "vectors", "vector", "unroll")  # of a plan: their product is a thread's items in a tile


def lines_for(key: KernelKey, multiprocessors: int, items: int = ITEMS) -> int:
    """Return the number of lines of so many items in all, about: no more than are few where the kernel is for few."""
    spec = key.spec
    lines = max(1, items // (spec.capacity * spec.inner)) * spec.inner
    if spec.input_layout == "transposed" and spec.inner == 1:
        lines = ceil_div(lines, PANEL_LINES) * PANEL_LINES  # side by side: in whole accesses
    while key.is_few and lines > spec.inner and choose_variant(spec, lines, multiprocessors) != FEW:
        lines = lines // spec.inner // 2 * spec.inner
    return lines


def item_bytes(spec: ScanSpec) -> int:
    """Bytes that must move for an item: what is read once in, the outputs once out."""
    return spec.read_bytes + sum(spec.result_bytes)


def estimate_registers(plan: Plan) -> int:
    """Registers a thread, about: the states of its items, and its loads where another tile is on its way meanwhile.

    The compiler has the last word: it overlaps lives, and moves what it can.
    """
    state = fragments(plan.spec).state_bytes
    items = _items_a_thread(plan)
    loops = plan.tiles > 1 and plan.strategy != "split"
    waiting = items * plan.spec.read_bytes if loops and not plan.shared_bytes else 0
    held = (items * state + items // max(1, plan.items) * state + waiting) / 4
    base = BASE_REGISTERS * len(plan.spec.sources)
    return min(plan.target.thread_registers, base + math.ceil(held))


def residents(plan: Plan, registers: int, declared_bytes: int = 0) -> Occupancy:
    """What a multiprocessor holds of the plan's blocks, with so many registers and so much declared shared memory."""
    shared = declared_bytes + plan.shared_bytes
    return occupancy(plan.target, threads=plan.threads, registers=registers, shared_bytes=shared)


def bytes_in_flight(plan: Plan, blocks: int) -> int:
    """Bytes that a multiprocessor's blocks have asked memory for at the most, before they wait for the first."""
    staged = plan.shared_bytes or int(getattr(plan, "declared_bytes", 0))  # what arrives in shared memory
    return blocks * (staged or plan.threads * _items_a_thread(plan) * plan.spec.read_bytes)


def _items_a_thread(plan: Plan) -> int:
    return math.prod(int(getattr(plan, name, 1)) for name in PER_THREAD)
