"""Plans: each covers its line exactly, keeps every rule that templates take for granted, and can be launched.

Targets, and the occupancy of plans on them.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import scanops
from scanops import ScanSpec, make_plan
from scanops.build_request import CPU, BuildRequest
from scanops.builders.direct import build
from scanops.codegen.candidates import candidates
from scanops.codegen.derivatives import RECOMPUTED_LENGTHS
from scanops.codegen.exports.texts import units_of
from scanops.codegen.figures import estimate_registers, lines_for
from scanops.codegen.kernel_key import FEW, MANY, KernelKey
from scanops.codegen.launch import MOST_BLOCKS, Launch, Numbers
from scanops.codegen.lines import ONE_BLOCK, SPLIT_LENGTH, any_length, choose_variant, key_for, keys_for
from scanops.codegen.source import HOST_SIDE, render
from scanops.codegen.spec import MAX_LENGTH
from scanops.codegen.strategies.columns import ColumnsPlan
from scanops.codegen.targets import TARGETS, occupancy, target_named
from scanops.errors import UnsupportedRequest
from scanops.requests.geometry import BEFORE_FURTHER, ScanArguments
from scanops.runtime.binding import bind_launch
from tests.codegen.strategies import specs, targets
from tests.requests.checks import refused
from tests.scripts import ROOT
from tools.golden import GOLDEN


@given(specs, targets, st.booleans())
@example(ScanSpec.parse("cummax-f16-n32768"), "sm_75", False)  # a ring too short for items that pass through registers
@example(ScanSpec.parse("sum-e5m2-n65536-out_c128"), "sm_75", False)  # pieces of results that fill shared memory
@example(ScanSpec.parse("linear-bf16-n6657-out_i16-mask_c128-gate_f16-strided-line_mask"), "sm_90", False)
@example(
    ScanSpec.parse("linear_gradient-f32-n20000-inner33-gate_f32-saved_f32-reverse-exclusive-results_saved"),
    "sm_90",
    True,
)
def test_a_plan_covers_the_line(spec: ScanSpec, target: str, few: bool) -> None:
    """No tile lies wholly past the end, positions fit their type, and the rules of plans from files hold."""
    plan = make_plan(spec, target, few)
    assert plan.shared_bytes <= plan.target.block_shared_bytes
    reach = spec.capacity + max(0, getattr(plan, "boundary", 0) - 1)  # rows that begin anywhere reach past a boundary
    assert plan.tile * plan.tiles >= reach > plan.tile * (plan.tiles - 1)
    assert plan.guarded or plan.tile * plan.tiles == spec.length
    assert reach + plan.tile < 2**31 or "typedef long long Position" in render(plan)
    assert 16 <= estimate_registers(plan) <= plan.target.thread_registers


@given(specs, targets, st.booleans())
def test_the_grid_is_bounded(spec: ScanSpec, target: str, few: bool) -> None:
    """No block has no line, and a smaller GPU has no more of them."""
    plan = make_plan(spec, target, few)
    for lines in (spec.inner, 7 * spec.inner, 1000 * spec.inner):
        few_blocks, blocks = (plan.launch.numbers(lines, spec.capacity, gpu).blocks for gpu in (1, 10**12))
        assert 1 <= few_blocks <= blocks <= lines * plan.tiles


STRATEGIES = {
    "warp": "n4 n128 n100-strided n15-transposed n16-few-transposed",
    "staged": "n1 n100 n600",
    "block": f"n4096 n32768 n{ONE_BLOCK}-few n4096-mask_b8-transposed-strided_mask",
    "persistent": f"n65536 n{MAX_LENGTH}",
    "split": f"n1048576-few-strided n{ONE_BLOCK + 4}-few n{SPLIT_LENGTH}-few-linked",
    "transposed": "n16-transposed n4096-inner16-transposed",
    "columns": "n4096-inner15-transposed n1-inner2",
    "columns_lookback": f"n{MAX_LENGTH}-inner{MAX_LENGTH}-few n4096-inner1024-unaligned n4096-inner1024-columns "
    "n4096-inner1001",
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_which_strategy(strategy: str) -> None:
    """The planner's choice for float32 sums of these shapes."""
    for words in STRATEGIES[strategy].split():
        spec = ScanSpec.parse(f"sum-f32-{words.replace('-few', '')}")
        assert make_plan(spec, few="-few" in words).strategy == strategy, words


SITUATIONS = {
    "sum-f32-n8191": {1: False},
    "sum-f32-n8192": {1: True, 131: True, 132: False},
    "sum-f32-n1048576": {8: True, 9: False},  # more items are faster by persistent blocks
    "sum-f32-any": {1: True, 200: False},
    "sum-f32-n65536-transposed": {1: True, 2111: True, 2112: False},  # column tiles of 32 lines on half of the GPU
    "sum-f32-n16-inner64": {64: True, 66 * 64: True, 67 * 64: False},
    "sum-f32-n1025-inner64": {64: True, 33 * 64: True, 34 * 64: False},
    "sum-bf16-n1025-inner64": {64: True, 264 * 64: True, 265 * 64: False},  # a block holds more of them
    "linear-bf16-n1025-inner64-gate_bf16": {33 * 64: True, 34 * 64: False},
    "logcumsumexp-bf16-n1025-inner64": {33 * 64: True, 34 * 64: False},  # a loop computes as fast as tiles do
    "sum-f32-n4096-inner64-mask_b8-step_mask": {64: True, 34 * 64: False},
    "sum-f32-n4096-inner64-strided": {64: False},  # one plan for any number of lines
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("inner", [9, 61, 64, 203, 1024])
@pytest.mark.parametrize("length", [2000, 40000])
def test_few_columns_of_expressions(length: int, inner: int, dtype: str) -> None:
    """Of states of several registers, read by accesses of one column or of several."""
    text = (
        f'[[["operand","{dtype}",0],["operand","{dtype}",1],["operand","{dtype}",2],["result","{dtype}",0],["mul","{dtype}",3,1],'
        f'["mul","{dtype}",3,2]],[["{dtype}","dense",null],["{dtype}","dense",null],["{dtype}","dense",null]],[0],"{dtype}",'
        f'[[4,"{dtype}"],[5,"{dtype}"]],[],[],[]]'
    )
    for gate in (False, True):
        spec = ScanSpec(op="sum", dtype=dtype, length=length, inner=inner, reverse=gate, map=text)
        assert make_plan(spec, few=True).tiles > 0


@pytest.mark.parametrize("name", ["sum-bf16", "sum-f32", "sum-f64", "sum-c128", "logcumsumexp-f32", "max-f16"])
def test_few_short_columns(name: str) -> None:
    """A tile reads whole sectors of 32 bytes, or all columns."""
    for length, inner in itertools.product((1, 33, 740, 1024), (2, 8, 16, 17, 46, 64, 161, 1024)):
        plan = make_plan(f"{name}-n{length}-inner{inner}", few=True)
        assert isinstance(plan, ColumnsPlan)
        assert plan.columns * plan.spec.out.bytes >= min(32, inner * plan.spec.out.bytes)


@pytest.mark.parametrize("slug", SITUATIONS)
def test_which_lines_are_few(slug: str) -> None:
    """For a GPU of 132 multiprocessors, by length and columns; and where a spec has a kernel for each answer."""
    spec = ScanSpec.parse(slug)
    assert {lines: choose_variant(spec, lines, 132) == FEW for lines in SITUATIONS[slug]} == SITUATIONS[slug]
    keys, several = keys_for(spec, "sm_90"), any(SITUATIONS[slug].values())
    assert keys == tuple(KernelKey(spec, "sm_90", each) for each in ((MANY, FEW) if several else (MANY,)))
    if not spec.takes_length:  # lines to measure: whole groups of columns, few of them where those are asked for
        counts = {key.variant: lines_for(key, 132) for key in keys}
        assert all(choose_variant(spec, n, 132) == each and n % spec.inner == 0 for each, n in counts.items())
    with pytest.raises(UnsupportedRequest, match="0 lines"):
        key_for(spec, "sm_90", 0)


UNKNOWN = itertools.product(
    (make_plan, scanops.generate, scanops.compile), ("sm_12", "sm_90x", "SM_90", "", 90, "cuda")
)


@pytest.mark.parametrize(("call", "target"), [*UNKNOWN, (make_plan, None), (make_plan, "cpu")])
def test_an_unknown_target(call: Callable[..., object], target: object) -> None:
    """The error names the target and those that are known."""
    error = refused(UnsupportedRequest, lambda: call(ScanSpec(op="sum", dtype="float32", length=5), target))
    assert repr(target) in error.asked and "sm_90" in error.allowed


def test_every_row_that_is_scanned_twice_fits_a_block_of_every_target() -> None:
    """The longest recomputed rows are one tile of a block; candidates keep the strategy."""
    dtypes = {"float16": 4, "bfloat16": 4, "float32": 4, "float64": 8}
    for target, (dtype, size), mask in itertools.product(TARGETS, dtypes.items(), (None, "bool")):
        for most in (RECOMPUTED_LENGTHS[size], RECOMPUTED_LENGTHS[size] // 2 - 1, 1):
            spec = ScanSpec(op="prod_gradient", dtype=dtype, gate=dtype, mask=mask, length=most)
            plan = make_plan(spec, target)
            assert plan.strategy == "block" and plan.tile >= most
            assert any_length(plan.key) == plan.key
    assert {plan.strategy for plan in candidates(KernelKey(spec, "sm_90"))} == {"block"}


# (target, threads, registers, shared bytes, blocks, what keeps another out)
KNOWN = (
    ("sm_90", 512, 64, 0, 2, ("registers",)),
    ("sm_90", 512, 65, 0, 1, ("registers",)),  # 65 registers cost as much as 72
    ("sm_90", 64, 16, 0, 32, ("threads", "blocks")),
    ("sm_90", 128, 32, 113 * 1024, 2, ("shared memory",)),
    ("sm_90", 128, 32, 114 * 1024, 1, ("shared memory",)),  # each block costs 1 KiB more
    ("sm_75", 512, 64, 0, 2, ("threads", "registers")),
    ("sm_75", 32, 16, 4096, 16, ("blocks", "shared memory")),
    ("sm_75", 64, 32, 32 * 1024, 2, ("shared memory",)),  # nothing is reserved before 8.0
    ("sm_120", 1024, 32, 0, 1, ("threads",)),
    ("sm_90", 1056, 16, 0, 0, ("threads",)),
)


@pytest.mark.parametrize("name, threads, registers, shared, blocks, limits", KNOWN)
def test_known_occupancy(
    name: str, threads: int, registers: int, shared: int, blocks: int, limits: tuple[str, ...]
) -> None:
    """Resident blocks, and the resources that limit them."""
    target = target_named(name)
    found = occupancy(target, threads=threads, registers=registers, shared_bytes=shared)
    assert (found.blocks, found.limits) == (blocks, limits)
    assert found.threads == blocks * threads
    assert found.fraction == pytest.approx(blocks * threads / target.threads)


# ---- launches as data: what exported launchers compute in C from their arguments, Plan.launch tells Python

REFUSED = 9  # cudaErrorInvalidConfiguration
ROOM = 2048  # bytes, of a parameter
HEADER = "#include <cuda_runtime.h>\n#endif\n"
# In place of a launch: what it was asked for, and the parameters as the kernel would read them.
RECORDED = """extern "C" { long long launched[3]; unsigned char taken[32][2048]; }
template <class... Parameters>
static cudaError_t recorded(void (*)(Parameters...), dim3 grid, dim3 block, void** given, size_t shared, cudaStream_t) {
    const size_t sizes[] = {sizeof(Parameters)...};
    for (size_t k = 0; k < sizeof...(Parameters); ++k) memcpy(taken[k], given[k], sizes[k]);
    launched[0] = grid.x, launched[1] = block.x, launched[2] = (long long)shared;
    return cudaSuccess;
}
#define cudaLaunchKernel recorded
"""
ANY = """sum-f32-any-le32-by4 prod-f32-any-le8192 sum-f32-any-le512-initial-final sum-f32-any sum-i8-any-few
sum-f32-any-le200-inner64 prod-f64-any-inner6-few linear-f32-any-inner1000-gate_f32-few sum-f32-any-le8192-transposed
sum-f32-any-offsets_i64-strided logcumsumexp-bf16-any-inner64-few
prod_gradient-f32-n40-gate_f32-saved_f32-segments-reverse-exclusive"""  # the length is an argument, but for the last
NOT_EXPORTED = ("geometry", "neighbours")  # parameters of kernels with strides, which no file takes
TYPES = {"long long": ctypes.c_longlong, "int": ctypes.c_int}  # of arguments in C, but for pointers
NAMED = {
    "line_sums": "indices",
    "segments": "offsets",
    "second": "indices",
}  # parameters with the bytes of fields that have other names
PLANS = {
    **{row.slug: row.plan for row in GOLDEN},
    **{slug: make_plan(ScanSpec.parse(slug.removesuffix("-few")), few=slug.endswith("-few")) for slug in ANY.split()},
}


def test_every_strategy_is_launched_here() -> None:
    """With a length of its own, and with one that is an argument."""
    kinds = {(plan.strategy, plan.spec.takes_length) for plan in PLANS.values()}
    assert len(kinds) == 2 * len({strategy for strategy, _ in kinds}) == 16


@pytest.mark.parametrize("slug", PLANS)
def test_a_launch_follows_from_data(slug: str, tmp_path: Path) -> None:
    """Grid, block, shared memory, workspace, and the bytes of each parameter, also in C if the kernel is exported."""
    plan, rest = PLANS[slug], random.Random(slug)
    launch = Launch.read(json.loads(json.dumps(plan.launch._asdict())))
    assert launch == plan.launch
    text = render(plan).replace(HEADER, HEADER + RECORDED, 1)
    without_comments = re.sub("//.*", "", text)
    declared = re.search(rf"^{launch.kernel}\(([^)]*)\) {{", without_comments, re.MULTILINE)[1].split(",")  # type: ignore[index]
    assert [NAMED.get(each.split()[-1], each.split()[-1]) for each in declared] == list(launch.parameters)
    (unit,) = units_of([plan], takes_stream=True) if set(launch.parameters).isdisjoint(NOT_EXPORTED) else (None,)
    text += ("#if 1" + unit.text.partition(HOST_SIDE)[2]).replace("scanops_error_string", "words") if unit else ""
    (tmp_path / "kernel.cu").write_text(text, encoding="utf-8")
    library = ctypes.CDLL(str(build(BuildRequest(name="grid", source=text, target=CPU), tmp_path).file))
    launched = (ctypes.c_longlong * 3).in_dll(library, "launched")
    taken = (ctypes.c_char * ROOM * 32).in_dll(library, "taken")
    spec, refused = plan.spec, 0

    def check(numbers: Numbers, arguments: ScanArguments) -> None:
        assert tuple(launched) == (min(numbers.blocks, MOST_BLOCKS + 1), numbers.threads, numbers.shared_bytes)
        for name, parameter in zip(launch.parameters, taken, strict=False):
            field = getattr(ScanArguments, name)
            wide = {"offsets": 12, "geometry": BEFORE_FURTHER - field.offset}.get(name, field.size)
            narrow = 4 if name == "length" else wide  # a position of 32 bits is the low half
            assert parameter.raw[:narrow] == bytes(arguments)[field.offset : field.offset + narrow], name

    for _ in range(40):
        arguments = ScanArguments.from_buffer_copy(rest.randbytes(ctypes.sizeof(ScanArguments)))
        neighbours = rest.randint(1, 5000)
        lines = spec.inner * neighbours * rest.choice((1, 7, 2**10, 2**31))
        most = max(1, min(spec.capacity, 2**40 // lines) // spec.multiple)
        length = spec.multiple * rest.randint(1, most) if spec.takes_length else spec.capacity
        arguments.lines, arguments.length, arguments.multiprocessors = lines, length, rest.randint(1, 200)
        arguments.neighbours.size = neighbours
        beside = neighbours if "neighbours" in launch.parameters else 0
        numbers = launch.numbers(lines, length, arguments.multiprocessors, beside)
        launch_of = bind_launch(launch, arguments, library.scanops_launch, ctypes.c_void_p(), str)
        assert launch_of.workspace_bytes == numbers.workspace_bytes
        assert launch_of.launch(launch_of.refer(arguments), 0) == 0
        assert tuple(getattr(arguments, name) for name in launch.chosen) == numbers.chosen
        check(numbers, arguments)
        refused += numbers.blocks > MOST_BLOCKS
        if unit is None:
            continue
        given = [getattr(arguments, row.name, None) for row in unit.parameters]
        types = [TYPES.get(row.type, ctypes.c_void_p) for row in unit.parameters]
        code = library.scan_launch(*(kind(value) for kind, value in zip(types, given, strict=True)))
        assert code == (REFUSED if numbers.blocks > MOST_BLOCKS else 0)
        if not code:
            check(numbers, arguments)
        if launch.words:
            library.scanops_workspace_bytes.restype = ctypes.c_longlong
            sizes = ctypes.c_longlong(lines), ctypes.c_longlong(length)
            assert library.scanops_workspace_bytes(*sizes) == numbers.workspace_bytes
    assert 0 < refused < 40


SOUND = PLANS["prod-f32-any-le8192-by4-reverse"].launch._asdict()
BROKEN = (
    *({"threads": bad} for bad in (0, 33, 2048, -32, True, "416", None, 1.0, [32])),
    *({"parameters": bad} for bad in ([], ["stream"], "input", [3], None, [["input"]], ["input", "workspace"])),
    *({"chosen": bad} for bad in (["rows"], ["length"], "stripes", [["stripes"]], {})),
    *({"statuses": bad} for bad in ([1], [0], {}, [True], ["1"])),
    *({name: bad} for name in ("room", "stripe", "width") for bad in (0, 2**63, -1)),
    *({"further": 1}, {"lead": ...}),
)


@pytest.mark.parametrize("change", BROKEN, ids=str)
def test_a_malformed_launch_is_refused(change: dict[str, object]) -> None:
    """Types, bounds, names and fields of what a manifest holds; ... stands for a field that is not there."""
    with pytest.raises((TypeError, ValueError)):
        Launch.read({name: value for name, value in {**SOUND, **change}.items() if value is not ...})


# ---- measured plans


def test_a_gate_for_each_line_has_plans_of_its_own() -> None:
    """Those of a gate for each item read twice as much."""
    assert make_plan("linear-bf16-n524288-gate_bf16").origin == "measured: linear-bf16-n524288-gate_bf16"
    assert make_plan("linear-bf16-n524288-gate_bf16-line_gate").origin.endswith("any GPU")
    own = make_plan("linear-f32-n32768-gate_f32-line_gate")
    assert own.origin == "measured: linear-f32-n32768-gate_f32-line_gate"


# ---- measured shapes for all GPUs

SHAPE_FILE = ROOT / "codegen" / "measured" / "any.json"


def test_each_measured_shape_is_used() -> None:
    """Tables have ascending sizes and the same numbers in each entry; a strategy names each of them."""
    tables = json.loads(SHAPE_FILE.read_text())["shapes"]
    texts = " ".join(path.read_text() for path in (ROOT / "codegen" / "strategies").glob("*.py"))
    for name, table in tables.items():
        limits = [entry["up_to"] or 2**63 for entry in table["entries"]]
        assert limits == sorted(set(limits)) and (len(limits) == 1 or table["by"]), name
        assert len({frozenset(entry["numbers"]) for entry in table["entries"]}) == 1, name
        assert any(f'"{name.rsplit(" ", words)[0]}' in texts for words in range(3)), name


@pytest.mark.parametrize(
    ("slug", "few", "entry", "numbers"),
    [
        ("sum-f32-n4096-unaligned", False, "block misaligned, vector loads of a row up to 4096", {"vectors": 13}),
        ("sum-f32-n20000-offsets_i32", False, "persistent, bytes of an item of the output up to 4", {"stages": 4}),
        ("sum-f32-n1048576", True, "split, items of a row up to 1048576", {"threads": 512, "vectors": 4}),
        ("sum-f32-n1024-inner1024", False, "columns staged, rows up to 1024", {"threads": 512, "items": 8}),
        ("prod-f64-n1048576-inner6-exclusive", True, "columns_lookback few", {"threads": 256}),
    ],
)
def test_a_plan_names_the_shape_it_begins_with(slug: str, few: bool, entry: str, numbers: dict[str, int]) -> None:
    """Where nothing was measured for the class of the spec itself."""
    plan = make_plan(slug, few=few)
    assert plan.origin == f"measured: {entry}, any GPU"
    assert numbers.items() <= plan.numbers().items()
