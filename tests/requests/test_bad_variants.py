"""What lines begin and end with, segments and recurrences that are refused."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import scanops
from scanops.errors import DimensionOutOfRange, UnsupportedRequest
from tests.requests.bad import Bad, cumsum, elsewhere, f32, indices, ones, sparse, starts
from tests.requests.checks import refused


def offsets(device: str, *numbers: int, dtype: torch.dtype = torch.int64, length: int = 4, **options: Any) -> object:
    """A scan of ``length`` items by these offsets."""
    return cumsum(device, length, offsets=torch.tensor(numbers, dtype=dtype, device=device), **options)


def linear(device: str, a: Any, b: Any, dim: Any = 0, **options: Any) -> object:
    """With gates and items of these shapes, or as they are."""
    a, b = (ones(device, *each) if isinstance(each, tuple) else each for each in (a, b))
    return scanops.linear_scan(a, b, dim, **options)


def parts_of_one(device: str, role: str) -> object:
    """The out overlaps some of what is read, and not exactly."""
    memory = ones(device, 16)
    out = memory[:8]
    read = {"gate": memory[4:12], "initial": memory[2:3].view(()), "x": memory[1:9]}
    if role == "offsets":
        whole = torch.zeros(10, dtype=torch.int64, device=device)
        whole[-1] = 8
        return scanops.cumsum(ones(device, 8), 0, offsets=whole[8:], out=whole.view(f32)[10:18])
    if role == "starts":
        return scanops.cumsum(ones(device, 8), 0, segment_starts=out.view(torch.bool)[:8], out=out)
    if role == "initial":
        return scanops.cumsum(ones(device, 8), 0, initial=read[role], out=out)
    a, b = (read["gate"], ones(device, 8)) if role == "gate" else (ones(device, 8), read["x"])
    return scanops.linear_scan(a, b, 0, out=out)


FIRST_ITEM = scanops.Operator(
    name="first_item",
    formula="y[i] = x[0]",
    fields=("value", "any"),
    lift=("x", "1"),
    combine=("older.any ? older.value : newer.value", "older.any + newer.any"),
    identity=("0", "0"),
    project="state.value",
    commutative=False,
    start=(0, 0),
    step=lambda h, x: (torch.where(h[1] > 0, h[0], x), h[1] + 1),
    output=lambda h: h[0],
)

# ---- what lines begin with and end with
CARRIES: dict[str, Bad] = {
    "initial a list": Bad(call=lambda d: cumsum(d, 3, initial=[0.0]), value="initial=[0.0]"),
    "initial a word": Bad(call=lambda d: cumsum(d, 3, initial="0"), value="initial='0'"),
    "initial for each item": Bad(call=lambda d: cumsum(d, 3, initial=ones(d, 3)), value="(3,)"),
    "initial with the scanned dimension": Bad(
        call=lambda d: cumsum(d, 2, 3, dim=1, initial=ones(d, 2, 1)), value="(2, 1)"
    ),
    "initial for other lines": Bad(call=lambda d: cumsum(d, 2, 3, initial=ones(d, 2)), value="(2,)"),
    "initial elsewhere": Bad(call=lambda d: cumsum(d, 3, initial=elsewhere(d)), value="initial.device="),
    "initial sparse": Bad(
        call=lambda d: cumsum(d, 3, 3, 3, initial=sparse(d)), value="initial.layout=torch.sparse_coo"
    ),
    "a fraction for integers": Bad(call=lambda d: scanops.cumsum(indices(d, 3), 0, initial=0.5), value="initial=0.5"),
    "a floating tensor for integers": Bad(
        call=lambda d: scanops.cumsum(indices(d, 3), 0, initial=ones(d)), value="initial.dtype=torch.float32"
    ),
    "complex for real": Bad(call=lambda d: cumsum(d, 3, initial=1j), value="initial=1j"),
    "a complex tensor for real": Bad(
        call=lambda d: cumsum(d, 3, initial=ones(d, dtype=torch.complex64)), value="initial.dtype=torch.complex64"
    ),
    "a number for truth": Bad(call=lambda d: scanops.scan(ones(d, 3), "logical_or", 0, initial=1), value="initial=1"),
    "too great for uint8": Bad(call=lambda d: cumsum(d, 3, dtype=torch.uint8, initial=256), value="256"),
    "below 0 for uint8": Bad(call=lambda d: cumsum(d, 3, dtype=torch.uint8, initial=-1), value="initial=-1"),
    "too great for int64": Bad(call=lambda d: scanops.cumsum(indices(d, 3), 0, initial=2**63), value=str(2**63)),
    "too great for float32": Bad(call=lambda d: cumsum(d, 3, initial=1e300), value="1e+300"),
    "too great for any float": Bad(call=lambda d: cumsum(d, 3, initial=10**400), value="initial=1000"),
    "the greatest so far of words": Bad(
        call=lambda d: scanops.cummax(ones(d, 3), 0, initial="x"),  # type: ignore[call-overload]
        value="initial='x'",
    ),
    "an operator that cannot go on": Bad(
        call=lambda d: scanops.scan(ones(d, 3), FIRST_ITEM, 0, initial=0.0), value="op='first_item'"
    ),
    "return_final a number": Bad(call=lambda d: cumsum(d, 3, return_final=1), value="return_final=1"),
    "return_final None": Bad(call=lambda d: cumsum(d, 3, return_final=None), value="return_final=None"),
    "return_final of indices": Bad(
        call=lambda d: scanops.cummin(ones(d, 3), 0, return_final="yes"),  # type: ignore[call-overload]
        value="return_final='yes'",
    ),
    "return_final of a recurrence": Bad(call=lambda d: linear(d, (3,), (3,), return_final=0), value="return_final=0"),
    "reverse of a recurrence": Bad(call=lambda d: linear(d, (3,), (3,), reverse="no"), value="reverse='no'"),
    "out that needs a gradient of initial": Bad(
        call=lambda d: cumsum(d, 3, initial=ones(d).requires_grad_(), out=ones(d, 3)), value="requires_grad=True"
    ),
}

# ---- segments
SEGMENTS: dict[str, Bad] = {
    "told twice": Bad(call=lambda d: offsets(d, 0, 4, segment_starts=starts(d, 4)), value="segment_starts=a tensor"),
    "told twice, in lists": Bad(
        call=lambda d: cumsum(d, 4, offsets=[0, 4], segment_starts=[True] * 4), value="offsets=[0, 4]"
    ),
    "starts a list": Bad(call=lambda d: cumsum(d, 2, segment_starts=[True, False]), value="[True, False]"),
    "starts of bytes": Bad(
        call=lambda d: cumsum(d, 4, segment_starts=starts(d, 4, dtype=torch.uint8)), value="torch.uint8"
    ),
    "starts as indices": Bad(
        call=lambda d: cumsum(d, 4, segment_starts=starts(d, 2, dtype=torch.int64)), value="torch.int64"
    ),
    "starts longer": Bad(call=lambda d: cumsum(d, 4, segment_starts=starts(d, 5)), value="(5,)"),
    "starts of a higher rank": Bad(call=lambda d: cumsum(d, 4, segment_starts=starts(d, 1, 4)), value="(1, 4)"),
    "starts elsewhere": Bad(
        call=lambda d: cumsum(d, 4, segment_starts=elsewhere(d, 4, dtype=torch.bool)), value="segment_starts.device="
    ),
    "offsets a list": Bad(call=lambda d: cumsum(d, 4, offsets=[0, 4]), value="offsets=[0, 4]"),
    "offsets of floats": Bad(call=lambda d: cumsum(d, 4, offsets=ones(d, 2)), value="torch.float32"),
    "offsets of int16": Bad(call=lambda d: offsets(d, 0, 4, dtype=torch.int16), value="torch.int16"),
    "offsets of uint32": Bad(call=lambda d: offsets(d, 0, 4, dtype=torch.uint32), value="torch.uint32"),
    "offsets of two dimensions": Bad(
        call=lambda d: cumsum(d, 2, 4, dim=1, offsets=indices(d, 2, 2)), value="shape (2, 2)"
    ),
    "one offset for each line": Bad(call=lambda d: cumsum(d, 4, offsets=indices(d)), value="shape ()"),
    "no offsets": Bad(call=lambda d: offsets(d), value="shape (0,)"),
    "one offset": Bad(call=lambda d: offsets(d, 0), value="shape (1,)"),
    "one offset, of nothing": Bad(call=lambda d: offsets(d, 0, length=0), value="shape (1,)"),
    "the first is not 0": Bad(call=lambda d: offsets(d, 1, 4), value="offsets from 1 to 4"),
    "the first is below 0": Bad(call=lambda d: offsets(d, -1, 4, dtype=torch.int32), value="offsets from -1"),
    "the last is too small": Bad(call=lambda d: offsets(d, 0, 2, 3), value="to 3"),
    "the last is too great": Bad(call=lambda d: offsets(d, 0, 2, 5), value="to 5"),
    "the last is missing": Bad(call=lambda d: offsets(d, 0, 1, 2), value="to 2"),
    "they fall": Bad(call=lambda d: offsets(d, 0, 3, 2, 4), value="falling at index 2"),
    "they go beyond and come back": Bad(call=lambda d: offsets(d, 0, 9, 4), value="falling at index 2"),
    "they go below 0": Bad(call=lambda d: offsets(d, 0, -1, 4), value="falling at index 1"),
    "offsets elsewhere": Bad(
        call=lambda d: cumsum(d, 4, offsets=elsewhere(d, 2, dtype=torch.int64)), value="offsets.device="
    ),
    "offsets along another dimension": Bad(
        call=lambda d: cumsum(d, 4, 6, dim=1, offsets=torch.tensor([0, 4], device=d)), value="to 4"
    ),
}

# ---- recurrences
LINEAR: dict[str, Bad] = {
    "a is a number": Bad(call=lambda d: linear(d, 0.5, (3,)), value="a=0.5"),
    "b is a list": Bad(call=lambda d: linear(d, (3,), [1.0]), value="b=[1.0]"),
    "a is sparse": Bad(call=lambda d: linear(d, sparse(d), (3, 3)), value="a.layout=torch.sparse_coo"),
    "they do not broadcast": Bad(call=lambda d: linear(d, (2, 4), (2, 3)), value="a.shape=(2, 4), b.shape=(2, 3)"),
    "a gate for each row, without its place": Bad(call=lambda d: linear(d, (2,), (2, 3), 1), value="a.shape=(2,)"),
    "a elsewhere": Bad(call=lambda d: linear(d, elsewhere(d, 3), (3,)), value="gate.device="),
    "a of half complex": Bad(call=lambda d: linear(d, ones(d, 3, dtype=torch.complex32), (3,)), value="complex32"),
    "fp8 gates, float32 items": Bad(
        call=lambda d: linear(d, ones(d, 3).to(torch.float8_e4m3fn), (3,)), value="float8_e4m3fn"
    ),
    "fp8 of two sorts": Bad(
        call=lambda d: linear(d, ones(d, 3).to(torch.float8_e4m3fn), ones(d, 3).to(torch.float8_e5m2)),
        value="float8_e5m2",
    ),
    "fp8 result": Bad(call=lambda d: linear(d, (3,), (3,), dtype=torch.float8_e5m2), value="float8_e5m2"),
    "unsigned gates, signed items": Bad(
        call=lambda d: linear(d, ones(d, 3, dtype=torch.uint32), ones(d, 3, dtype=torch.int32)), value="uint32"
    ),
    "compensated": Bad(call=lambda d: linear(d, (3,), (3,), accumulate="compensated"), value="'compensated'"),
    "accumulated in less": Bad(call=lambda d: linear(d, (3,), (3,), accumulate=torch.float16), value="float16"),
    "dim of what both broadcast to": Bad(
        call=lambda d: linear(d, (3, 1), (3,), 2), value="dim=2", kind=DimensionOutOfRange
    ),
    "a mask of the shape of neither": Bad(call=lambda d: linear(d, (3, 1), (3,), mask=starts(d, 2, 3)), value="(2, 3)"),
    "by its name": Bad(call=lambda d: scanops.scan(ones(d, 3), "linear", 0), value="op='linear'"),
    "out of the shape of b": Bad(call=lambda d: linear(d, (2, 3), (3,), out=ones(d, 3)), value="(3,)"),
    "out partly the gate": Bad(call=lambda d: parts_of_one(d, "gate"), value="gate at"),
    "out partly the items": Bad(call=lambda d: parts_of_one(d, "x"), value="x at"),
    "out partly what lines begin with": Bad(call=lambda d: parts_of_one(d, "initial"), value="initial at"),
    "out partly the offsets": Bad(call=lambda d: parts_of_one(d, "offsets"), value="offsets at"),
    "out partly the flags": Bad(call=lambda d: parts_of_one(d, "starts"), value="segment_starts at"),
}

VARIANTS = {
    f"{table}: {name}": bad
    for table, rows in {"carry": CARRIES, "segments": SEGMENTS, "linear": LINEAR}.items()
    for name, bad in rows.items()
}


@pytest.mark.parametrize("bad", VARIANTS.values(), ids=VARIANTS)
def test_variants(bad: Bad, device: str) -> None:
    refused(bad.kind, lambda: bad.call(device), bad.value)


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


def test_offsets_that_are_changed_are_looked_at_again(device: str) -> None:
    x, given = ones(device, 4), torch.tensor([0, 2, 4], device=device)
    for _ in range(2):
        assert scanops.cumsum(x, 0, offsets=given).tolist() == [1, 2, 1, 2]
    given[1] = 3
    assert scanops.cumsum(x, 0, offsets=given).tolist() == [1, 2, 3, 1]
    given[1] = 5
    refused(UnsupportedRequest, lambda: scanops.cumsum(x, 0, offsets=given), "falling at index 2")
    given[1] = 1
    assert scanops.cumsum(x, 0, offsets=given).tolist() == [1, 1, 2, 3]
    refused(UnsupportedRequest, lambda: scanops.cumsum(ones(device, 5), 0, offsets=given), "to 4")


def test_offsets_that_a_scan_has_written_are_looked_at_again(device: str) -> None:
    """As cu_seqlens are made: a buffer that begins with 0, filled with sums of lengths."""
    x, given = ones(device, 4), torch.zeros(3, dtype=torch.int64, device=device)
    for lengths, expected in (((2, 2), [1, 2, 1, 2]), ((1, 3), [1, 1, 2, 3])):
        scanops.cumsum(torch.tensor(lengths, device=device), 0, out=given[1:])
        assert scanops.cumsum(x, 0, offsets=given).tolist() == expected
    scanops.cumsum(torch.tensor((400, 3), device=device), 0, out=given[1:])
    refused(UnsupportedRequest, lambda: scanops.cumsum(x, 0, offsets=given), "to 403")


def test_offsets_that_were_looked_at_are_saved_as_tensors(device: str) -> None:
    """Who reads the file need not know scanops, nor trust it."""
    given = torch.tensor([0, 2, 4], device=device)
    scanops.cumsum(ones(device, 4), 0, offsets=given)
    file = io.BytesIO()
    torch.save({"cu_seqlens": given}, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True)["cu_seqlens"], given)
    assert not vars(given) and b"scanops" not in pickle.dumps(given)


@pytest.mark.gpu
def test_offsets_under_capture() -> None:
    """Values are not looked at while a graph is captured; what was looked at before is known."""
    x, given = torch.ones(4, device="cuda"), torch.tensor([0, 2, 4], device="cuda")
    known = torch.tensor([0, 1, 4], device="cuda")
    scanops.cumsum(x, 0, offsets=known)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = scanops.cumsum(x, 0, offsets=known)
        refused(UnsupportedRequest, lambda: scanops.cumsum(x, 0, offsets=given), "offsets of shape (3,)")
    graph.replay()
    assert y.tolist() == [1, 1, 2, 3]
