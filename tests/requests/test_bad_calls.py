"""Calls that are refused on every route: a typed error whose first line shows the offending value."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import scanops
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.spec import MAX_LENGTH
from scanops.errors import DimensionOutOfRange, MissingCompiler, ScanopsError, UnsupportedRequest
from scanops.requests.geometry import MAX_RANK
from tests.requests.checks import refused
from tests.scripts import ran

untyped: Any = scanops  # these calls are wrong on purpose
FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
ROLES = ("x", "mask", "gate", "initial", "segment_starts", "offsets")


def ones(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, device=device).to(dtype)


def indices(device: str, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def elsewhere(device: str) -> torch.Tensor:
    """Three ones on a device that is not ``device``, on any machine."""
    return torch.ones(3, device="meta" if device == "cpu" else "cpu")


def sparse(device: str) -> torch.Tensor:
    return ones(device, 3, 3).to_sparse()


def quantised(*shape: int) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(shape), 1.0, 0, torch.quint8)


def nested(device: str, layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([ones(device, 2, 3), ones(device, 4, 3)], layout=layout)


def cumsum(device: str, *shape: int, dim: Any = 0, **options: Any) -> object:
    return untyped.cumsum(ones(device, *shape), dim, **options)


def scan(device: str, op: Any, of: torch.dtype = torch.float32, **options: Any) -> object:
    return untyped.scan(ones(device, 4, dtype=of), op, 0, **options)


def offsets(device: str, *numbers: int, dtype: torch.dtype = torch.int64, length: int = 4, **options: Any) -> object:
    """A scan of ``length`` items by these offsets."""
    return cumsum(device, length, offsets=torch.tensor(numbers, dtype=dtype, device=device), **options)


def linear(device: str, a: Any, b: Any, dim: Any = 0, **options: Any) -> object:
    """A recurrence of gates and items of these shapes, or as they are."""
    a, b = (ones(device, *each) if isinstance(each, tuple) else each for each in (a, b))
    return untyped.linear_scan(a, b, dim, **options)


def extremes(device: str, *outs: Any) -> object:
    return untyped.cummax(ones(device, 4), 0, out=outs)


def needs_gradient(device: str, role: str) -> object:
    tensors = {name: ones(device, 4).requires_grad_(name == role) for name in ("x", "mask", "initial", "out")}
    return untyped.cumsum(tensors.pop("x"), 0, **tensors | {"initial": tensors["initial"][0]})


def overlapping(device: str, role: str) -> object:
    """A scan whose out overlaps the operand of this role, and not exactly."""
    memory = ones(device, 40)
    out, shifted = memory[:8], memory[4:12]
    if role == "offsets":
        out = memory[10:18]
        shifted = memory.view(torch.int64)[8:10].zero_()
        shifted[1] = 8
    elif role == "segment_starts":
        shifted = out.view(torch.bool)[:8]
    elif role == "initial":
        shifted = memory[2]
    if role in ("gate", "x"):
        return linear(device, *((shifted, (8,)) if role == "gate" else ((8,), shifted)), out=out)
    return cumsum(device, 8, out=out, **{role: shifted})


def of_inference(device: str) -> torch.Tensor:
    with torch.inference_mode():
        return ones(device, 3)


Row = tuple[Callable[[str], object], str]  # a call with tensors on a device, and what the first line shows


def option(shown: str = "", **options: Any) -> Row:
    """A sum of three ones with this option."""
    ((name, value),) = options.items()
    return lambda d: cumsum(d, 3, **options), shown or f"{name}={value!r}"


def operand(role: str, make: Callable[[str], object], shown: str) -> Row:
    """A sum of three ones with this operand."""
    return lambda d: cumsum(d, 3, **{role: make(d)}), shown


OUT_OF_RANGE: list[Row] = [
    (lambda d: cumsum(d, 3, dim=1), "dim=1"),
    (lambda d: cumsum(d, 2, 3, dim=-3), "dim=-3"),
    (lambda d: cumsum(d, dim=1), "dim=1"),
    (lambda d: cumsum(d, 3, dim=10**5000), "(an int of 16610 bits)"),
    (lambda d: linear(d, (3, 1), (3,), 2), "dim=2"),
]

# Operands that are no tensors, or tensors of a layout, device, dtype or shape that no kernel reads.
OPERANDS: list[Row] = [
    (lambda d: untyped.cumsum([1.0, 2.5], 0), "x=[1.0, 2.5]"),
    (lambda d: untyped.cumsum([0] * 10**6, 0), f"x=[{'0, ' * 66}0..."),
    (lambda d: untyped.cumsum([10**5000], 0), "a list that has no repr"),
    (lambda d: untyped.cumsum(sparse(d), 0), "x.layout=torch.sparse_coo"),
    (lambda d: untyped.cumsum(nested(d, torch.strided), 1), "x.is_nested=True"),
    (lambda d: untyped.cumsum(nested(d, torch.jagged), 0), "dim=0"),
    (lambda d: scan(d, "sum", torch.complex32), "complex32"),
    (lambda d: untyped.cumsum(torch.empty(3, dtype=torch.float8_e8m0fnu, device=d), 0), "float8_e8m0fnu"),
    (lambda d: scan(d, "sum", torch.float8_e4m3fn, mask=ones(d, 4)), "float8_e4m3fn"),
    (lambda d: scan(d, "sum", torch.uint32, mask=ones(d, 4, dtype=torch.int8)), "uint32 and int8"),
    option(mask=[True, False, True]),
    operand("mask", lambda d: ones(d, 3, dtype=torch.float8_e5m2), "float8_e5m2"),
    operand("mask", lambda d: ones(d, 4), "(4,)"),
    (lambda d: cumsum(d, 2, 3, mask=ones(d, 2)), "(2,)"),
    (lambda d: cumsum("cpu", 3, mask=quantised(3)), "mask.dtype=torch.quint8"),
    (lambda d: linear("cpu", quantised(3), (3,)), "a.dtype=torch.quint8"),
    (lambda d: cumsum("cpu", 3, initial=quantised()), "initial.dtype=torch.quint8"),
    *(
        operand(role, lambda d, t=dtype: torch.empty(3, dtype=t, device=d), f"{role}.dtype={dtype}")
        for role in ("mask", "initial")
        for dtype in (torch.uint4, torch.bits8, torch.float4_e2m1fn_x2)
    ),
    *(operand(role, sparse, f"{role}.layout=torch.sparse_coo") for role in ("mask", "out", "initial")),
    operand("mask", elsewhere, "mask.device="),
    operand("out", elsewhere, "out.device="),
    operand("initial", lambda d: elsewhere(d)[0], "initial.device="),
    operand("segment_starts", lambda d: elsewhere(d) > 0, "segment_starts.device="),
    operand("offsets", lambda d: elsewhere(d).long(), "offsets.device="),
]

OPTIONS: list[Row] = [
    *(option(name, dtype=getattr(torch, name)) for name in ("bool", "complex32", *FLOAT8)),
    *(option(repr(dtype), dtype=dtype) for dtype in ("float64", "", float)),
    (lambda d: scan(d, "median"), "'median'"),
    (lambda d: scan(d, ["sum"]), "['sum']"),
    (lambda d: scan(d, 10**5000), "bits"),
    *(option(**{flag: value}) for flag in ("reverse", "exclusive", "return_final") for value in (0, 1, None, "yes")),
    option(complete=1),
    operand("reverse", lambda d: ones(d, 2), "reverse=tensor"),
    option("reverse=-1000", reverse=-(10**5000)),
    (lambda d: untyped.cummin(ones(d, 3), 0, return_final="yes"), "return_final='yes'"),
    (lambda d: linear(d, (3,), (3,), reverse="no"), "reverse='no'"),
    *(option(dim=dim) for dim in (0.0, True, None, (0,), "0")),
    (lambda d: untyped.cumsum(ones(d, 1).expand(MAX_LENGTH + 1), 0), str(MAX_LENGTH + 1)),
    (lambda d: cumsum("meta", MAX_LENGTH + 1), str(MAX_LENGTH + 1)),
]

# Accumulators that are narrower than the default, of another kind, or none at all.
ACCUMULATORS: dict[torch.dtype, tuple[Any, ...]] = {
    torch.float16: (torch.float16,),
    torch.float32: (torch.float16, torch.complex128, torch.int64, torch.float8_e4m3fn, "kahan", 3, [torch.float64]),
    torch.float64: (torch.float32,),
    torch.int32: (torch.int64, "compensated"),
    torch.complex64: (torch.float64, "compensated"),
}
ACCUMULATE: list[Row] = [
    (lambda d, of=of, wrong=wrong: scan(d, "sum", of, accumulate=wrong), "accumulate=")
    for of, wrongs in ACCUMULATORS.items()
    for wrong in wrongs
]

# Operators that give indices, or take some kinds of dtype only.
OPERATORS: list[Row] = [
    (lambda d: scan(d, "cummax"), "op='cummax'"),
    (lambda d: scan(d, "linear"), "op='linear'"),
    (lambda d: scan(d, "sum_gradient"), "'sum_gradient'"),
    (lambda d: untyped.cummax(ones(d, 4, dtype=torch.complex64), 0), "dtype=complex64"),
    (lambda d: scan(d, "bitwise_and", torch.complex64), "dtype=complex64"),
    (lambda d: untyped.logcumsumexp(indices(d, 4), 0), "dtype=int64"),
    (lambda d: scan(d, "logical_or", dtype=torch.float32), "dtype=float32"),
]

CARRIES: list[Row] = [
    *(option(initial=value) for value in ([0.0], "0", 1j, 1e300)),
    option("initial=1000", initial=10**400),
    operand("initial", lambda d: ones(d, 3), "(3,)"),
    operand("initial", lambda d: ones(d, dtype=torch.complex64), "initial.dtype=torch.complex64"),
    (lambda d: cumsum(d, 2, 3, dim=1, initial=ones(d, 2, 1)), "(2, 1)"),
    (lambda d: scan(d, "sum", torch.int64, initial=0.5), "initial=0.5"),
    (lambda d: scan(d, "sum", torch.int64, initial=ones(d)), "initial.dtype=torch.float32"),
    (lambda d: scan(d, "logical_or", initial=1), "initial=1"),
    (lambda d: scan(d, "sum", dtype=torch.uint8, initial=256), "initial=256"),
    (lambda d: scan(d, "sum", dtype=torch.uint8, initial=-1), "initial=-1"),
]

SEGMENTS: list[Row] = [
    (lambda d: offsets(d, 0, 4, segment_starts=indices(d, 4, dtype=torch.bool)), "segment_starts=a tensor"),
    option(segment_starts=[True, False, True]),
    operand("segment_starts", lambda d: indices(d, 2), "torch.int64"),
    operand("segment_starts", lambda d: indices(d, 5) > 0, "(5,)"),
    option(offsets=[0, 3]),
    operand("offsets", lambda d: ones(d, 2), "torch.float32"),
    operand("offsets", lambda d: indices(d, 2, dtype=torch.int16), "torch.int16"),
    operand("offsets", lambda d: indices(d, 2, 2), "shape (2, 2)"),
    operand("offsets", lambda d: indices(d), "shape ()"),
    (lambda d: offsets(d, 0, length=0), "shape (1,)"),
    (lambda d: offsets(d, 1, 4), "offsets from 1 to 4"),
    (lambda d: offsets(d, -1, 4, dtype=torch.int32), "offsets from -1"),
    (lambda d: offsets(d, 0, 2, 5), "to 5"),
    (lambda d: offsets(d, 0, 9, 4), "falling at index 2"),
    (lambda d: offsets(d, 0, -1, 4), "falling at index 1"),
]

RECURRENCES: list[Row] = [
    (lambda d: linear(d, "0.5", (3,)), "a='0.5'"),
    (lambda d: linear(d, (3,), [1.0]), "b=[1.0]"),
    (lambda d: linear(d, sparse(d), (3, 3)), "a.layout=torch.sparse_coo"),
    (lambda d: linear(d, (2, 4), (2, 3)), "a.shape=(2, 4), b.shape=(2, 3)"),
    (lambda d: linear(d, elsewhere(d), (3,)), "a.device="),
    (lambda d: linear(d, ones(d, 3, dtype=torch.float8_e4m3fn), (3,)), "float8_e4m3fn"),
    (lambda d: linear(d, *(ones(d, 3, dtype=each) for each in (torch.uint32, torch.int32))), "uint32"),
    (lambda d: linear(d, (3,), (3,), accumulate="compensated"), "'compensated'"),
    (lambda d: linear(d, (3, 1), (3,), mask=ones(d, 2, 3, dtype=torch.bool)), "(2, 3)"),
]

NAMES = {"x": "b", "gate": "a"}  # the arguments of linear_scan
OUTS: list[Row] = [
    option(out=[0.0, 0.0]),
    operand("out", lambda d: ones(d, 4), "(4,)"),
    *(
        operand("out", lambda d, name=name: ones(d, 3, dtype=getattr(torch, name)), name)
        for name in ("bool", "complex32", *FLOAT8)
    ),
    operand("out", lambda d: ones(d, 1).expand(3), "(0,)"),
    operand("out", of_inference, "out.is_inference()=True"),
    *((partial(overlapping, role=role), f"{NAMES.get(role, role)} at") for role in ROLES),
    *((partial(needs_gradient, role=role), "requires_grad=True") for role in ("x", "mask", "initial", "out")),
    (lambda d: (lambda x: scanops.cumsum(x, 0, out=x.t()))(ones(d, 4, 4)), "x at"),
    (lambda d: (lambda x: scanops.cumsum(x, 0, out=x.view(torch.int32)))(ones(d, 4)), "x at"),
    (lambda d: (lambda y: scanops.cumsum(y[:1].expand(4), 0, out=y))(ones(d, 4)), "x at"),
    (lambda d: cumsum(d, 2, 3, dim=1, out=ones(d, 9).as_strided((2, 3), (1, 1))), "out.stride()=(1, 1)"),
    (lambda d: untyped.cummax(ones(d, 4), 0, out=ones(d, 4)), "out is a Tensor"),
    (lambda d: extremes(d, *(ones(d, 4) for _ in range(3))), "out is a tuple of 3"),
    (lambda d: extremes(d, ones(d, 4), indices(d, 4, dtype=torch.int32)), "indices.dtype=torch.int32"),
    (lambda d: extremes(d, ones(d, 4), [0]), "indices=[0]"),
    (lambda d: (lambda x, y: scanops.cummin(x, 0, out=(y, y)))(*indices(d, 2, 4).unbind()), "indices at"),
]

COMPLETE: list[Row] = [
    *(
        (lambda d, name=name: cumsum(d, 3, complete=True, **{name: True}), f"x of shape (3,), {name}")
        for name in ("exclusive", "return_final")
    ),
    (lambda d: offsets(d, 0, 4, complete=True), "x of shape (4,), offsets"),
    (lambda d: cumsum(d, 3, complete=True, segment_starts=indices(d, 3) > 0), "x of shape (3,), segment_starts"),
    (lambda d: cumsum(d, complete=True), "x of shape ()"),
    (lambda d: cumsum(d, 2, 3, complete=True, out=ones(d, 2, 3)), "out.shape=(2, 3)"),
]

UNSUPPORTED = OPERANDS + OPTIONS + ACCUMULATE + OPERATORS + CARRIES + SEGMENTS + RECURRENCES + OUTS + COMPLETE
BAD = [(DimensionOutOfRange, *row) for row in OUT_OF_RANGE] + [(UnsupportedRequest, *row) for row in UNSUPPORTED]


@pytest.mark.parametrize(("kind", "call", "value"), BAD, ids=[value for _, _, value in BAD])
def test_refused(kind: type[ScanopsError], call: Callable[[str], object], value: str, device: str) -> None:
    error = refused(kind, lambda: call(device), value)
    assert value in str(error).splitlines()[0]


def test_strides_of_too_many_dimensions(kernels: str) -> None:
    """Every second dimension is expanded, so that no two can be merged."""
    rank = MAX_RANK + 2  # one of them is scanned
    x = torch.ones(2 * rank, dtype=torch.float16, device=kernels)
    x = x.as_strided((2,) * rank, tuple(i % 2 for i in range(rank)))
    error = refused(UnsupportedRequest, lambda: scanops.cumsum(x, -1), str(MAX_RANK + 1))
    assert str(MAX_RANK) in error.allowed


# Calls with an int carry-in of more than 64 bits, which torch takes nowhere.
WIDE: dict[str, Callable[[Any], torch.Tensor]] = {
    "eager": lambda scan: scan(torch.ones(2, 3)),
    "a conjugated view": lambda scan: scan(torch.ones(2, 3, dtype=torch.complex64).conj()),
    "a negated view": lambda scan: scan(torch.ones(2, 3, dtype=torch.complex64).conj().imag.neg()),
    "vmap": lambda scan: torch.vmap(lambda x: scan(x[None])[0])(torch.ones(2, 3)),
    "compiled": lambda scan: torch.compile(scan, backend="eager")(torch.ones(2, 3)),
}


@pytest.mark.parametrize("name", WIDE)
def test_a_carry_in_beyond_64_bits(name: str) -> None:
    assert WIDE[name](lambda x: scanops.cumsum(x, 1, initial=10**30)).real.allclose(torch.full((2, 3), 1e30))
    with pytest.raises(Exception, match="cumsum: initial must fit"):
        WIDE[name](lambda x: scanops.cumsum(x, 1, initial=10**5000))


# ---- compilers, targets and stores that are missing or unfit, kernels on the wrong tensors, and errors as values

SPEC = scanops.ScanSpec(op="sum", dtype="float32", length=20)


def test_no_host_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's operators need none, nor a store. Its absence is not remembered: one that appears later is used."""
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("SCANOPS_CXX", "no-such-compiler")
    assert scanops.cumsum(torch.ones(3), 0).tolist() == [1, 2, 3] and not (tmp_path / "store").exists()
    refused(MissingCompiler, lambda: scanops.compile(SPEC, "cpu"), "'no-such-compiler'")
    x = torch.ones(3, 7772)
    with scanops.emulate():
        refused(MissingCompiler, lambda: scanops.cumsum(x, 1), "'no-such-compiler'")
        monkeypatch.delenv("SCANOPS_CXX")
        assert torch.equal(scanops.cumsum(x, 1), torch.cumsum(x, 1))


ROWS = torch.ones(3, 20)
TURNS: dict[str, Any] = {
    "off a boundary": lambda x: torch.ones(100, device=x.device)[1:].view(x.shape),
    **{"negated": torch._neg_view, "conjugated": torch.conj},
}
ANY: dict[str, Any] = {"length": None, "at_most": 512}
# The options of a kernel's spec; the tensor, and perhaps the mask and the dimension; what the first line names.
MISMATCHES: dict[str, tuple[dict[str, Any], torch.Tensor, dict[str, Any], str]] = {
    "length": ({}, torch.ones(3, 21), {}, "length=21"),
    "dtype": ({}, ROWS.double(), {}, "dtype='float64'"),
    "dim": ({}, torch.ones(20, 3), {"dim": 0}, "inner=3"),
    "a mask": ({}, ROWS, {"mask": ROWS > 0}, "mask='bool'"),
    "strides": ({}, torch.ones(20, 3).t(), {}, "input_layout='strided'"),
    "no mask": ({"mask": "bool"}, ROWS, {}, "mask=None"),
    "another mask": ({"mask": "bool"}, ROWS, {"mask": ROWS}, "mask='float32'"),
    "a greater length": (ANY, torch.ones(3, 513), {}, "length=513"),
    "a length between": (ANY | {"multiple": 4}, torch.ones(3, 126), {}, "length=126"),
    "any length, dim": (ANY | {"inner": 16}, torch.ones(3, 12), {}, "inner=1"),
    "off a boundary": (ANY, torch.ones(100)[1:].view(3, 33), {}, "aligned"),
    "negated": ({}, ROWS, {}, "is_neg()=True"),
    "conjugated": ({"dtype": "complex64"}, ROWS.to(torch.complex64), {}, "is_conj()=True"),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_kernel_on_tensors_of_another_spec(name: str, kernels: str) -> None:
    special, x, options, word = MISMATCHES[name]
    kernel = scanops.compile(scanops.ScanSpec(**{"op": "sum", "dtype": "float32", "length": 20} | special))  # type: ignore[arg-type]
    there = {name: each.to(kernels) if name == "mask" else each for name, each in options.items()}
    turned = TURNS.get(name, torch.detach)(x.to(kernels))  # there, as a copy to a GPU is not a view
    error = refused(UnsupportedRequest, partial(kernel, turned, **there), word)
    assert "scanops.scan" in error.hint or "resolve" in error.hint


@pytest.mark.parametrize(
    ("target", "device", "word"),
    [("sm_90", "cpu", "cpu"), ("cpu", "meta", "meta"), pytest.param("cpu", "cuda", "target=", marks=pytest.mark.gpu)],
)
def test_a_kernel_reads_no_tensor_of_another_device(target: str, device: str, word: str) -> None:
    kernel = scanops.Kernel(KernelKey(SPEC, target), entry=None)  # type: ignore[arg-type]  # it is refused before it is loaded
    for place in (contextlib.nullcontext(), scanops.emulate()):
        with place:
            refused(UnsupportedRequest, lambda: kernel(torch.ones(3, 20, device=device)), word)


# ---- importing costs nothing and needs nothing; generating needs no torch

# Events of the interpreter while the second half runs. Bytecode is looked for and not written.
WATCHED = """
import json, os, sys
events = []
sys.addaudithook(lambda name, details: events.append((name, [str(detail) for detail in details])))
import scanops
count = len(events)
seen = events[:count]
print(json.dumps({"events": seen, "modules": sorted(sys.modules)}))
"""
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import scanops
spec = scanops.ScanSpec(op="prod", dtype="bfloat16", length=4096, mask="bool")
text = scanops.generate(spec, target="sm_80")
assert "prod_bf16_n4096_mask_b8_block(" in text and scanops.make_plan(spec).strategy == "block"
try:
    scanops.generate(spec, "sm_12")
except scanops.errors.UnsupportedRequest as error:
    assert error.hint
kernel = scanops.compile(scanops.ScanSpec(op="sum", dtype="float32", length=9), "cpu")
assert kernel.path.is_file() and kernel.source_path.is_file() and kernel.code
assert sorted(dir(scanops)) == sorted(scanops.__all__)
print(len(text))
"""


def python(code: str, folder: Path) -> str:
    """What a new interpreter prints, its home and its store an empty folder."""
    home = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "SCANOPS_STORE": str(folder / "store")}
    more = {"PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    return ran(sys.executable, "-c", code, folder=folder, **home, **more).stdout


def test_import_loads_nothing_heavy_and_reads_modules_alone(tmp_path: Path) -> None:
    watched = json.loads(python(WATCHED, tmp_path))
    assert not list(tmp_path.iterdir())
    heavy = {"torch", "jinja2", "numpy", "ctypes", "subprocess", "platformdirs", "filelock", "click"}
    assert not heavy & set(watched["modules"])
    assert [name for name in watched["modules"] if name.startswith("scanops.")] == ["scanops._version", "scanops.forks"]
    opened = [details for name, details in watched["events"] if name == "open"]
    assert opened, "the hook saw nothing"
    for path, mode, flags in opened:
        assert Path(path).suffix in (".py", ".pyc"), path
        assert mode in ("r", "rb", "None") and int(flags) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) == 0
    touching = (
        "os.mkdir",
        "os.remove",
        "os.rename",
        "shutil.",
        "subprocess.",
        "os.system",
        "os.posix_spawn",
        "ctypes.",
        "socket.",
        "os.putenv",
        "os.fork",
        "os.exec",
    )
    assert [name for name, _ in watched["events"] if name.startswith(touching)] == []


def test_generating_and_building_need_no_torch(tmp_path: Path) -> None:
    assert int(python(WITHOUT_TORCH, tmp_path)) > 1000


def test_an_unknown_name_says_what_there_is() -> None:
    import scanops

    with pytest.raises(AttributeError, match=r"no attribute 'cumlogical'.*cumsum"):
        scanops.cumlogical  # noqa: B018
