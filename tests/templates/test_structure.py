"""Level 3: the text does what the plan says: steps counted in it, with every helper function inlined."""

from __future__ import annotations

import functools
import itertools
import re

import pytest

from scanops.codegen import ScanSpec, generate, make_plan
from scanops.codegen.operators import BUILT_IN
from scanops.codegen.plan import Plan
from scanops.codegen.strategies.block import BlockPlan
from scanops.codegen.strategies.columns import ColumnsPlan
from scanops.codegen.strategies.panel import PanelPlan
from scanops.codegen.strategies.panels import PanelsPlan
from scanops.codegen.strategies.rows import RowPlan
from scanops.codegen.strategies.staged import StagedPlan
from scanops.codegen.strategies.transposed import TransposedPlan
from scanops.codegen.strategies.warp import WarpPlan
from scanops.codegen.strategies.wave import WavePlan
from tests.templates.cases import SHAPES, STRATEGIES, WIDER
from tests.templates.reading import Text
from tools.golden import GOLDEN

SHUFFLE = r"__shfl_(?:up_)?sync\("
# Else loops are not counted; and a second output is what the first one is, once more.
SPECIALISED = [spec for spec in WIDER if spec.length is not None and not spec.indexed]
CASES = pytest.mark.parametrize("spec", SPECIALISED, ids=str)


@functools.cache
def read(spec: ScanSpec) -> tuple[Plan, Text]:
    return make_plan(spec), Text.of(generate(spec))


@pytest.mark.parametrize("spec", [spec for spec in WIDER if spec.indexed], ids=str)
def test_two_outputs_are_stored_alike(spec: ScanSpec) -> None:
    """Whatever names the first output in the kernel has its twin for the second; functions are overloads."""
    text = Text.of(generate(spec))
    names = {"y": "z", "output": "indices", "Output": "Index"}

    def twin(line: str) -> str:
        return re.sub(r"\b(y|output|Output)\b", lambda found: names[found[0]], line)

    lines = [line.strip() for line in text.kernel.splitlines()]
    stores = [line for line in lines if re.search(r"store_items\(|write_rows\(|scan_row\(", line)]
    first = [line for line in stores if re.search(r"\by\b|output|ring\.x|staged\.input", line)]
    second = [line for line in stores if re.search(r"\bz\b|indices", line)]
    assert len(first) == len(second) > 0
    for line in first:
        if "ring.x" not in line and "staged.input" not in line:  # whose results take the place of the items
            assert twin(line) in second or re.search(r"\by\b.*\bz\b", line)
    heads = [line for line in text.source.splitlines() if re.search(r" (store_items|results|write)\(", line)]
    assert [line for line in heads if line.startswith("__device__") and "Output" in line]
    for line in heads:
        if line.startswith("__device__") and "store_items(Output*" in line:
            assert twin(line).replace("OutputVector", "IndexVector") in heads


def test_the_cases_cover_every_strategy() -> None:
    plans = [make_plan(spec) for spec in WIDER]
    assert {plan.strategy for plan in plans} == set(STRATEGIES)
    assert {plan.loops for plan in plans if plan.strategy == "columns"} == {True, False}


# Written scans of 32 tiles' totals: the wave has a second one for rows with more groups than a block has warps.
GROUP_SCANS = {"split": 1, "wave": 2}


def lane_steps(plan: Plan) -> int:
    """Shuffles of one scan across lanes, a combine with each."""
    return len(plan.steps)


def warps_steps(plan: Plan) -> int:
    """And of the scan of the warps' totals, where lanes exchange accesses."""
    return len(plan.warp_steps) if plan.strategy == "block" else len(plan.steps)


def shuffles(plan: Plan) -> int:
    """Of whole states, written in the kernel."""
    scan = lane_steps(plan)
    if isinstance(plan, StagedPlan):
        return scan + 1 if plan.crosses_lanes else 0
    if isinstance(plan, WarpPlan):
        # a scan an access, then its neighbour's prefix and the last lane's total
        return plan.vectors * (scan + 2) if plan.crosses_lanes else 0
    if isinstance(plan, RowPlan) and plan.in_runs:
        # one scan of all accesses and its neighbour's total, then of the warps likewise, and of 32 tiles' totals
        return scan + 1 + warps_steps(plan) + 1 + GROUP_SCANS.get(plan.strategy, 0) * scan
    if isinstance(plan, RowPlan):
        # and the scan of the warps' totals, the total before this warp, and scans of 32 tiles' totals
        return plan.vectors * (scan + 2) + scan + 1 + GROUP_SCANS.get(plan.strategy, 0) * scan
    if isinstance(plan, TransposedPlan):
        return 0  # a lane scans whole stretches of a line
    assert isinstance(plan, PanelPlan)
    carried = isinstance(plan, ColumnsPlan) and not plan.crosses_warps  # through shared memory, or by a shuffle
    folds = len(plan.fold_steps) * (plan.has_peers + plan.has_groups) if isinstance(plan, PanelsPlan) else 0
    return (plan.vector * (scan + 1 + carried) if plan.crosses_lanes else 0) + folds


def combines(plan: Plan) -> int:
    """Written in the kernel."""
    scan = lane_steps(plan)
    serial = plan.items - (plan.joins == "combine")  # to scan the items of one access; else from the identity on
    # One behind the other from the prefix on; or joined with it, but for the first output of an exclusive scan.
    stored = plan.items if plan.serial else plan.items - plan.spec.exclusive
    stored += plan.spec.final * (plan.items if plan.serial else 1)  # and up to the last item of the line
    if isinstance(plan, (ColumnsPlan, TransposedPlan)):
        folded = plan.warps if plan.crosses_warps else 1
        return plan.vector * (serial + stored + folded + (scan + 1 if plan.crosses_lanes else 0))
    if isinstance(plan, PanelsPlan):
        again = serial if plan.staged and not plan.serial else 0  # to publish a tile's totals, and to store it
        rows = plan.vector * (serial + again + stored + 1 + (scan + 1 if plan.crosses_lanes else 0))
        # totals of tiles and of groups, a lane's own and across lanes, go into the prefix; a group's and a carry go out
        peers = plan.has_peers * (len(plan.peers) + len(plan.fold_steps) + 1)
        groups = plan.has_groups * (len(plan.peer_groups) + len(plan.fold_steps) + 2)
        return rows + 1 + peers + groups + plan.has_carry
    if isinstance(plan, StagedPlan):
        # in one loop, or in the loop that finds the total of a piece and in the one that uses it
        again = 0 if plan.kept and not plan.serial else serial
        return serial + 1 + stored + (again + 1 + scan if plan.crosses_lanes else 0)
    assert isinstance(plan, RowPlan)
    if isinstance(plan, WarpPlan):
        return plan.vectors * (serial + stored + (scan + 2 if plan.crosses_lanes else 1))
    again = (
        serial if isinstance(plan, WavePlan) and not plan.serial else 0
    )  # to publish a tile's total, and to store it
    rows = plan.vectors * (serial + again + scan + 2 + 1 + stored) + scan  # one more for the prefix of the warps
    if plan.in_runs:
        rows = plan.vectors * (serial + stored) + scan + warps_steps(plan) + 1
    groups = GROUP_SCANS.get(plan.strategy, 0)
    # 32 totals, the groups, then all of it into the prefix, from the wave's running base and the current group
    return rows + groups * (scan + 1) + {"block": 0, "split": 1, "wave": 2}[plan.strategy]


def handed_on(plan: Plan) -> int:
    """Shuffles of an access to the lane before, where items are shifted into their places in registers."""
    if not isinstance(plan, RowPlan) or isinstance(plan, WavePlan) or not plan.exchanges:
        return 0
    return plan.vectors * sum(len(operand.next_parts) for operand in plan.operands if operand.realigned)


def accesses(plan: Plan) -> int:
    """Accesses of one operand, of a tile; written once for a lane's loop along its row."""
    return plan.vectors if isinstance(plan, RowPlan) else 1


@CASES
def test_shuffles(spec: ScanSpec) -> None:
    plan, text = read(spec)
    fields = sum(part is not None for part in plan.code.parts)
    assert text.patterns(SHUFFLE) == shuffles(plan) * fields + handed_on(plan)
    widths = set(re.findall(r"__shfl_(?:up_)?sync\(0xffffffffu, [^,]+, [^,]+, (\d+)\)", text.source))
    assert widths <= {str(plan.width)}


@CASES
def test_lane_steps_are_powers_of_two_in_order(spec: ScanSpec) -> None:
    plan, text = read(spec)
    steps: dict[str, tuple[int, ...]] = {"scan_lanes": plan.steps if shuffles(plan) else ()}
    if isinstance(plan, PanelPlan):
        folded = plan.fold_steps if isinstance(plan, PanelsPlan) and plan.folds else ()
        steps = {"scan_lanes": folded, "scan_slots": plan.steps if plan.crosses_lanes else ()}
    for name, wanted in steps.items():
        body = text.functions.get(name, "")
        written = [int(step) for step in re.findall(r"shuffle_up(?:_each)?\(s, (\d+)\)", body)]
        assert written == list(wanted)
        assert all(later == 2 * earlier for earlier, later in itertools.pairwise(written))


BARRIERS = {"warp": 0, "staged": 0, "block": 1, "panels": 3, "split": 4, "wave": 5}


@CASES
def test_barriers(spec: ScanSpec) -> None:
    plan, text = read(spec)
    barriers = {**BARRIERS, "columns": int(plan.crosses_warps), "transposed": int(plan.crosses_warps)}
    assert text.calls("__syncthreads") == barriers[plan.strategy] + spec.again  # totals of the scan before
    exchanged = isinstance(plan, PanelPlan) and plan.exchanged
    # rows in and out, and before the next tile's rows come in; rows go out where a neighbour's items still lie
    turns = 2 + (plan.strategy == "columns" and plan.loops) if exchanged else 2 * isinstance(plan, StagedPlan)
    turns += exchanged and plan.overwrites
    if isinstance(plan, WavePlan):  # what a lane reads, the next one brought; each access's pieces
        turns = 2 * plan.realigns + 2 * plan.vectors * plan.in_pieces
    if plan.in_runs:  # operands and results are there, and read before the next ones come; in the ring, operands wait
        turns = 4 if isinstance(plan, WavePlan) else 2 * len(plan.operands) + 1
    if isinstance(plan, TransposedPlan):
        # a tile is there, its place is free for results, results are there, it is free for the next tile
        turns = 1 + plan.in_place + plan.to_rows + plan.loops
    assert text.calls("__syncwarp") == turns
    in_shared = isinstance(plan, (StagedPlan, TransposedPlan)) or (isinstance(plan, PanelPlan) and plan.staged)
    assert ("__shared__" in text.source) == (barriers[plan.strategy] > 0 or in_shared)


@CASES
def test_combines(spec: ScanSpec) -> None:
    plan, text = read(spec)
    assert text.calls("combine") + text.calls("append") == combines(plan)


# Names of states by the age of what they hold, oldest first. Digits and indices are left out.
AGES = {"carry": 0, "base": 0, "before": 1, "prefix": 1, "warps": 1, "older": 2, "inside": 2, "p": 2, "s": 3}


@CASES
def test_every_combine_has_the_older_operand_first(spec: ScanSpec) -> None:
    _, text = read(spec)
    seen = 0
    for first, second in re.findall(r"combine(?:_each)?\((\w+)[\w.\[\]]*, (\w+)[\w.\[\]]*\)", text.source):
        ages = [AGES.get(name.rstrip("0123456789")) for name in (first, second)]
        if first != second and None not in ages:
            seen += 1
            assert ages == sorted(ages, key=lambda age: age or 0) and ages[0] != ages[1], f"combine({first}, {second})"
    assert seen or not shuffles(make_plan(spec))


@CASES
def test_loads(spec: ScanSpec) -> None:
    """Every access of a tile once; a column's ahead of the loop, and in it for the tile after."""
    plan, text = read(spec)
    if isinstance(plan, RowPlan):
        assert {operand.name for operand in plan.operands} == {source.name for source in plan.sources}
        for operand in plan.operands:
            copied = isinstance(plan, WavePlan) and operand.copied
            name = f"{'copy' if copied else 'load'}_{operand.name}"
            assert text.calls(name) == plan.vectors + (operand.realigned and plan.reads_on)
            body = text.functions[name]
            whole = (
                f"copy_async_{operand.bytes * plan.items}(slot, first)"
                if copied
                else f"<const {operand.vector}*>(first)"
            )
            assert body.count(whole) == operand.whole
            at_ends = plan.shifted or operand.realigned
            one_by_one = plan.items if at_ends or not operand.whole else 0
            assert len(re.findall(r"first(?:\[| \+ )\d+", body)) == one_by_one
            assert body.count("is_inside(") == (plan.items if at_ends else 0)
        return
    if isinstance(plan, StagedPlan):
        twice = plan.crosses_lanes and not plan.kept
    elif isinstance(plan, PanelsPlan):
        twice = plan.staged  # to publish a tile's totals, and to store it
    else:
        twice = (
            plan.loops and not isinstance(plan, TransposedPlan) and not (isinstance(plan, PanelPlan) and plan.staged)
        )
    if isinstance(plan, TransposedPlan):
        for slab in plan.slabs:
            assert text.calls(f"copy_{slab.name}") == 1
            moved = len(slab.runs) * len(slab.parts)
            assert moved * 32 * slab.access == slab.items
            assert (
                len(re.findall(r"copy_(?:async|stream)_\d+\(|\*\(slab", text.functions[f"copy_{slab.name}"])) == moved
            )
    if isinstance(plan, PanelPlan):
        assert all(text.calls(f"copy_{source.name}") == plan.staged for source in plan.sources)
    written = accesses(plan) * (2 if twice else 1)
    assert all(text.calls(f"load_{source.name}") == written for source in plan.sources)


def stores_pieces(plan: Plan, text: Text) -> None:
    """Every item is put down once, every piece taken up once and written by an access of its own."""
    assert isinstance(plan, WavePlan)
    assert text.calls("put_items") == text.calls("store_pieces") == plan.vectors
    put, stored = text.functions["put_items"], text.functions["store_pieces"]
    assert put.count("= result(") == plan.items
    assert put.count("pieces[piece_place(lane *") == plan.parts
    assert stored.count("pieces[piece_place(") == plan.parts
    assert stored.count(f"< {plan.length})") == (plan.parts if plan.guarded and not plan.shifted else 0)


@CASES
def test_stores(spec: ScanSpec) -> None:
    plan, text = read(spec)
    if plan.in_pieces:
        stores_pieces(plan, text)
        return
    each = 2 if plan.extends_results else 1  # by shorter steps, and where those do not hold
    if plan.in_runs:
        assert text.calls("make_results") == 1
        assert text.functions["make_results"].count("= result(") == each * plan.items * plan.vectors
        assert text.kernel.count("*reinterpret_cast<OutputVector*>(y") == plan.vectors
        return
    assert text.calls("store_items") == accesses(plan)
    if isinstance(plan, (PanelPlan, TransposedPlan)):
        assert text.calls("results") == plan.items
        assert text.functions["results"].count("= result(") == plan.vector
        return
    body = text.functions["store_items"]
    assert body.count("= result(") == each * plan.items
    if isinstance(plan, RowPlan):
        assert body.count("*reinterpret_cast<OutputVector*>(first) = y;") == 1
        assert len(re.findall(r"first\[\d+\] = y\.item", body)) == (plan.items if plan.shifted else 0)


@CASES
def test_items_in_scan_order(spec: ScanSpec) -> None:
    plan, text = read(spec)
    if isinstance(plan, (PanelPlan, TransposedPlan)):
        rows = re.findall(r"s\.row\[(\d+)\] = lift_row\(x\.row\[(\d+)\]", text.functions["lift_items"])
        assert rows == [(str(row), str(row)) for row in range(plan.items)]
        return
    lifted = re.findall(r"s\.item\[(\d+)\] = element\(x\.item\[(\d+)\]", text.functions["lift_items"])
    assert [int(position) for position, _ in lifted] == list(range(plan.items))
    assert [int(memory) for _, memory in lifted] == list(plan.scan_order)
    stores = text.functions["make_results" if plan.in_runs else "put_items" if plan.in_pieces else "store_items"]
    stored = [int(memory) for memory in re.findall(r"y\d*\.item\[(\d+)\] = result", stores)]
    if plan.in_runs or plan.extends_results:  # accesses one behind the other; by shorter steps, and without them
        times = (plan.vectors if plan.in_runs else 1) * (2 if plan.extends_results else 1)
        assert stored == list(plan.scan_order) * times
        return
    assert stored == (list(plan.out_order) * plan.parts if isinstance(plan, WavePlan) else list(plan.scan_order))


# Written loops of a kernel: over the groups of tiles ahead and over their totals; of the wave over its tiles as well,
# and over the groups a second time.
KERNEL_LOOPS = {"split": 2, "wave": 4}
LOOP = re.compile(r"\b(?:for|while) \(|\bdo \{")
ROW_LOOPS = {"read_rows", "write_rows", "scan_row"}
# over the dimensions of a tensor that is not dense; until a flag is set; over items at the ends of an operand
OWN_LOOPS = {"begun_before", "begun_between", "starts_from", "line_offset", "await", "bring_input", "bring_mask"}


@CASES
def test_loops(spec: ScanSpec) -> None:
    """A line that is one tile has no loop at all; a longer one has one, over its tiles."""
    plan, text = read(spec)
    if isinstance(plan, StagedPlan):  # rows in and out, along a row, and over rows: all of a length that is known
        assert {name for name, body in text.functions.items() if LOOP.search(body)} <= ROW_LOOPS | {"scan_kernel"}
        assert len(LOOP.findall(text.kernel)) == int(plan.takes_turns)
        assert len(LOOP.findall(text.functions["scan_row"])) == 1 + plan.crosses_lanes
        return
    assert {name for name, body in text.functions.items() if LOOP.search(body)} <= OWN_LOOPS | {"scan_kernel"}
    if isinstance(plan, RowPlan):
        assert len(LOOP.findall(text.kernel)) == KERNEL_LOOPS.get(plan.strategy, 0)
    if isinstance(plan, TransposedPlan):
        assert len(LOOP.findall(text.kernel)) == plan.loops
    if isinstance(plan, PanelsPlan):  # over the totals of warps; until those of tiles have come, and of what is above
        waits = plan.has_peers + (plan.has_groups or plan.has_carry) if plan.folds else 0
        assert len(LOOP.findall(text.kernel)) == 1 + waits
    elif isinstance(plan, PanelPlan):  # over tiles
        assert len(LOOP.findall(text.kernel)) == plan.loops
    if isinstance(plan, (WarpPlan, BlockPlan)) and not plan.strided:
        assert "for (" not in text.source and "while (" not in text.source


@CASES
def test_guards(spec: ScanSpec) -> None:
    """A line that fills its tiles is loaded and stored without a question about its end."""
    plan, text = read(spec)
    if isinstance(plan, (PanelPlan, TransposedPlan)):
        assert ("live" in text.source) == plan.guarded
        return
    if isinstance(plan, StagedPlan):  # the lanes of a row, not the rows, reach past an end
        assert ("i >= rest" in text.source) == plan.kept
        assert ("phase(" in text.source) == (not plan.on_boundary)
        return
    assert isinstance(plan, RowPlan)
    asked = len(re.findall(rf"\bfirst(?: \+ \d+)? < {spec.length}\b", text.kernel))
    realigned = sum(operand.realigned for operand in plan.operands)
    accessed = plan.vectors * (len(plan.operands) - realigned + (not plan.in_pieces))
    assert asked == (accessed if plan.guarded and not plan.shifted else 0)
    assert ("is_inside(" in text.source) == (plan.shifted or plan.realigns)
    assert ("begin_row(" in text.source) == plan.shifted
    if isinstance(plan, BlockPlan) and not plan.guarded and not plan.realigns:
        assert "InputVector{}" not in text.source


@CASES
def test_threads(spec: ScanSpec) -> None:
    plan, text = read(spec)
    assert re.search(rf"__launch_bounds__\({plan.threads}[,)]", text.source)
    assert f"config.blockDim = dim3({plan.threads});" in text.source


# Helpers that come in pairs, of which a kernel may need one: both directions of a conversion, both shuffles, the sizes
# of a copy.
PAIRED = {"half_to_float", "float_to_half", "bfloat_to_float", "float_to_bfloat", "shuffle"}
PAIRED |= {"copy_async_4", "copy_async_8", "copy_async_16"}


@CASES
def test_what_is_named_is_used(spec: ScanSpec) -> None:
    """No helper that nothing calls."""
    _, text = read(spec)
    idle = {name for name in text.functions if len(re.findall(rf"\b{name}(?:<\d+>)?\(", text.source)) == 1}
    assert idle - PAIRED == {"scan_kernel"}


# What CUDA and C++ have and no golden calls: every other name in front of a bracket is declared in the text itself.
ELSEWHERE = {"__funnelshift_r", "alignof", "frexp", "ldexp", "log1p"}


@functools.cache
def provided() -> set[str]:
    """What goldens call and do not declare: compilers have accepted them."""
    return ELSEWHERE.union(*(undeclared(generate(golden.spec)) for golden in GOLDEN))


def undeclared(source: str) -> set[str]:
    code = re.sub(r"//.*", "", source)
    called = set(re.findall(r"(?<![\w.])(\w+)(?:<\w+>)?\(", code))
    return called - set(re.findall(r"^__device__ .*?(\w+)\([^()]*\) \{", code, re.MULTILINE))


@pytest.mark.parametrize("op", [name for name, row in BUILT_IN.items() if row.fields[1:]])
def test_what_is_called_is_declared(op: str) -> None:
    """For the operators whose states have several fields, which need most helpers, in every shape."""
    for shape in (*SHAPES, {"length": 300, "inner": 65}):
        wide = {"float": "float64", "int": "int64", "complex": "complex128"}
        dtype = next(name for kind, name in wide.items() if kind in BUILT_IN[op].kinds)
        spec = ScanSpec(op=op, dtype=dtype, gate=dtype if BUILT_IN[op].gated else None, **shape)
        assert not undeclared(generate(spec)) - provided(), spec.slug


@CASES
def test_interface(spec: ScanSpec) -> None:
    """Four exported functions, one kernel, no blanks at line ends, no run of blank lines."""
    _, text = read(spec)
    exported = re.findall(r'extern "C" .*?(\w+)\(', text.source)
    assert exported == ["scanops_abi", "scanops_error_string", "scanops_workspace_bytes", "scanops_launch"]
    assert text.source.count("__global__") == 1
    assert not re.search(r"[ \t]+$", text.source, re.MULTILINE)
    assert "\n\n\n" not in text.source
    assert text.source.endswith("\n") and not text.source.endswith("\n\n")
    assert "None" not in text.source.split("\n\n", 1)[1] and "True" not in text.source.split("\n\n", 1)[1]
