"""A launch as data: what a launcher computes in C from its arguments, ``Plan.launch`` tells Python."""

from __future__ import annotations

import ctypes
import json
import random
import re
from pathlib import Path

import pytest

from scanops import ScanSpec, make_plan
from scanops.artifact import CPU, BuildRequest
from scanops.builders.direct import build
from scanops.codegen.launch import MOST_BLOCKS, Launch
from scanops.codegen.source import render
from scanops.requests.geometry import BEFORE_FURTHER, ScanArguments
from tools.golden import GOLDEN

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
NAMED = {"segments": "offsets", "second": "indices"}  # parameters with the bytes of fields that have other names
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
    """Grid, block, shared memory, workspace, and the bytes of each parameter."""
    plan, rest = PLANS[slug], random.Random(slug)
    launch = Launch.read(json.loads(json.dumps(plan.launch._asdict())))
    assert launch == plan.launch
    text = render(plan).replace(HEADER, HEADER + RECORDED, 1)
    declared = re.search(r"scan_kernel\(([^)]*)\) {", text)[1].split(",")  # type: ignore[index]
    assert [NAMED.get(each.split()[-1], each.split()[-1]) for each in declared] == list(launch.parameters)
    (tmp_path / "kernel.cu").write_text(text, encoding="utf-8")
    library = ctypes.CDLL(str(build(BuildRequest(name="grid", source=text, target=CPU), tmp_path).file))
    library.scanops_workspace_bytes.restype = ctypes.c_longlong
    launched = (ctypes.c_longlong * 3).in_dll(library, "launched")
    taken = (ctypes.c_char * ROOM * 32).in_dll(library, "taken")
    spec, refused = plan.spec, 0
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
        code = library.scanops_launch(ctypes.byref(arguments), None)
        size = library.scanops_workspace_bytes(ctypes.c_longlong(lines), ctypes.c_longlong(length))
        assert code == (REFUSED if numbers.blocks > MOST_BLOCKS else 0) and size == numbers.workspace_bytes
        assert tuple(getattr(arguments, name) for name in launch.chosen) == numbers.chosen
        refused += code == REFUSED
        if not code:
            assert tuple(launched) == (numbers.blocks, numbers.threads, numbers.shared_bytes)
            for name, parameter in zip(launch.parameters, taken, strict=False):
                field = getattr(ScanArguments, name)
                wide = {"offsets": 16, "geometry": BEFORE_FURTHER - field.offset}.get(name, field.size)
                narrow = 4 if name == "length" else wide  # a position of 32 bits is the low half
                assert parameter.raw[:narrow] == bytes(arguments)[field.offset : field.offset + narrow], name
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
