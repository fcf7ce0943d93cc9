"""As torch.cumsum and torch.cumprod do: dims, wrapping, signs, ranks, tensors without memory, modes of torch, out=."""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import scanops
from scanops.errors import ScanopsError, UnsupportedRequest
from tests.numbers.oracle import of_same_turn
from tests.requests.checks import refused
from tests.torch_integration.rows import flat


@pytest.mark.parametrize("op", ["cumsum", "cumprod"])
def test_the_dtype_is_that_of_an_out(op: str, device: str) -> None:
    x = torch.tensor([[1, 0, 1, 2, 1], [1, 1, 2, 1, 3]], dtype=torch.int32, device=device)
    for dtype in (torch.float64, torch.int16):
        out = torch.empty(x.shape, dtype=dtype, device=device)
        assert getattr(scanops, op)(x, 0, out=out) is out
        assert torch.equal(out, getattr(torch, op)(x, 0, dtype=dtype))


class Whole:
    """As numpy's: a whole number that is no int."""

    def __index__(self) -> int:
        return -1


@pytest.mark.parametrize("dim", [Whole(), torch.tensor(1)], ids=["a class", "a tensor"])
def test_a_dim_that_is_a_whole_number_of_another_class(dim: Any, device: str) -> None:
    x = torch.rand(2, 3, device=device)
    for _ in range(2):
        torch.testing.assert_close(scanops.cumsum(x, dim), torch.cumsum(x, 1))
        torch.testing.assert_close(scanops.cummax(x, dim).values, torch.cummax(x, 1).values)
        torch.testing.assert_close(scanops.linear_scan(torch.ones_like(x), x, dim), torch.cumsum(x, 1))


@pytest.mark.parametrize("length", [1, 33, 3000])
def test_negative_zero(length: int, device: str) -> None:
    x = torch.full((2, length), -0.0, device=device)
    assert torch.equal(scanops.cumsum(x, 1), torch.zeros(2, length, device=device))  # of either sign
    signs = torch.cumprod(torch.full((length,), -1.0), 0).expand(2, length)
    y = scanops.cumprod(x, 1)
    assert torch.equal(torch.copysign(torch.ones_like(y), y).cpu(), signs)


def test_a_view_with_the_negative_bit(device: str) -> None:
    """The imaginary part of a conjugate: its memory is to be read, and written, negated."""
    negated, plain = torch.tensor([1 + 2j, 3 + 4j], device=device).conj().imag, torch.empty(4, device=device)[::2]
    assert negated.is_neg() and negated.stride() == plain.stride()
    for _ in range(2):
        assert scanops.cumsum(negated, 0).tolist() == [-2, -6]
        assert scanops.cumsum(plain.fill_(1), 0).tolist() == [1, 2]
    assert scanops.cumsum(plain, 0, mask=negated).tolist() == [-2, -6]
    assert scanops.cumsum(plain, 0, out=negated).tolist() == [1, 2]


@pytest.mark.parametrize(("shape", "dim"), [((3, 4), 1), ((3, 4), 0), ((2, 0), 1), ((), 0)], ids=str)
@pytest.mark.parametrize("pretended", ["meta", "cpu", "cuda"])
def test_tensors_without_memory(pretended: str, shape: tuple[int, ...], dim: int, device: str) -> None:
    """Meta tensors, and fake ones: nothing is launched and no offsets are read, whatever device they claim."""
    with contextlib.nullcontext() if pretended == "meta" else FakeTensorMode():
        x, offsets = (torch.empty(size, dtype=torch.int32, device=pretended) for size in (shape, (3,)))
        flags = torch.empty(shape, dtype=torch.bool, device=pretended)
        both: dict[str, Any] = {"reverse": True, "exclusive": True}
        for each in ({}, both, {"mask": flags}, {"dtype": torch.float16}, {"offsets": offsets}):
            y, last = scanops.cumprod(x, dim, return_final=True, **each)
            assert (y.shape, last.ndim) == (x.shape, max(0, len(shape) - 1))
            assert y.device.type == last.device.type == pretended and y.is_contiguous()
            assert y.dtype == each.get("dtype", torch.int64)


def test_where_autograd_takes_no_notes(device: str) -> None:
    """Whatever the grad mode says: within inference mode, and in what somebody registers for a device."""
    x = torch.ones(3, device=device, requires_grad=True)
    for _ in range(2):
        with torch.no_grad():
            assert not scanops.cumprod(x, 0).requires_grad
        with torch.inference_mode(), torch.enable_grad():
            mask = torch.ones(3, device=device)
            for y in (scanops.cumprod(x, 0), scanops.cumsum(x, 0, mask=mask), scanops.cumsum(x, 0, out=mask)):
                assert y.is_inference() and not y.requires_grad
        again = scanops.cumsum(mask, 0)  # an inference tensor, read outside
        assert torch.equal(again, torch.cumsum(mask, 0)) and not again.is_inference()
        with torch._C._AutoDispatchBelowAutograd():
            assert not scanops.cumprod(x, 0).requires_grad
        assert scanops.cumprod(x, 0).requires_grad


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("shape", [(2, 130, 5), (1, 9001)], ids=str)
def test_deterministic_algorithms_need_no_other_path(shape: tuple[int, ...], device: str) -> None:
    """Nothing is refused, and results are the bits of a call without them; gradients are the same at each call."""
    x = torch.rand(shape, device=device, generator=torch.Generator(device).manual_seed(1)).requires_grad_()
    offsets = torch.tensor([0, shape[1] // 2, shape[1]], device=device)

    def calls() -> list[torch.Tensor]:
        y, last = scanops.linear_scan(x / 2, x, 1, offsets=offsets, return_final=True)
        greatest = scanops.cummax(x, 1, mask=x.detach() > 0.1)
        (of_x,) = torch.autograd.grad(y.sum() + last.sum() + greatest.values.sum(), x)
        return [scanops.cumsum(x, 1), y, last, *greatest, of_x]

    found = calls()
    torch.use_deterministic_algorithms(False)
    for y, plain in zip(found, calls(), strict=True):
        assert torch.equal(y, plain)


# ---- out=


def test_where_out_may_lie(device: str) -> None:
    """Interleaved without sharing an address, beside x, or the weights themselves."""
    out = torch.zeros(8, device=device).as_strided((2, 3), (3, 2))
    assert scanops.cumsum(torch.ones(2, 3, device=device), 1, out=out).tolist() == [[1, 2, 3]] * 2
    memory = torch.ones(12, device=device)
    scanops.cumsum(memory[:4], 0, mask=memory[4:8], out=memory[8:])
    assert memory[8:].tolist() == [1, 2, 3, 4]
    weights = torch.tensor([1.0, 0.0, 2.0], device=device)
    scanops.cumsum(torch.ones(3, device=device), 0, mask=weights, out=weights)
    assert weights.tolist() == [1, 1, 3]


def test_out_is_written_without_gradients_and_by_no_refused_call(device: str) -> None:
    x, out = torch.ones(3, device=device, requires_grad=True), torch.full((3,), 5.0, device=device)
    with torch.no_grad():
        refused(UnsupportedRequest, lambda: scanops.cumsum(x, 0, mask=torch.ones(4, device=device), out=out))
        assert (out == 5).all() and scanops.cumsum(x, 0, out=out).tolist() == [1, 2, 3]


@pytest.mark.parametrize("own", [True, False], ids=["contiguous", "strided"])
def test_autograd_knows_that_a_saved_out_was_changed(own: bool, device: str) -> None:
    """A kernel writes to it without torch."""
    weight = torch.ones(4, device=device, requires_grad=True)
    kept = torch.ones(4, device=device) if own else torch.ones(8, device=device)[::2]
    values, indices = torch.ones(4, device=device), torch.zeros(4, dtype=torch.int64, device=device)
    for out, write in (
        (kept, lambda: scanops.cumsum(torch.ones(4, device=device), 0, out=kept)),
        (kept, lambda: scanops.cumsum(kept.detach(), 0, out=kept.detach())),
        (values, lambda: scanops.cummax(torch.ones(4, device=device), 0, out=(values, indices))),
        (indices, lambda: scanops.cummax(torch.ones(4, device=device), 0, out=(values, indices))),
    ):
        y = (weight * out).sum()
        write()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


# ---- torch's own sample inputs of its scans

invocations = pytest.importorskip("torch.testing._internal.common_methods_invocations")

NAMES = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
ROWS = {row.name: row for row in invocations.op_db if row.name in NAMES}
HALVES = (torch.float16, torch.bfloat16)


def dtypes_of(name: str) -> list[torch.dtype]:
    """What torch scans on a GPU, and on a CPU."""
    row = ROWS[name]
    return sorted(row.supported_dtypes("cuda") | row.supported_dtypes("cpu"), key=str)


CASES = [(name, dtype) for name in NAMES for dtype in dtypes_of(name)]
WITH_ERRORS = [name for name in NAMES if ROWS[name].error_inputs_func]


def agree(name: str, ours: Callable[..., Any], theirs: Callable[..., Any], sample: Any) -> None:
    """Hold a call to torch's with a sample: types, dtypes, shapes, strides and values."""
    found, wanted = (flat(scan(sample.input, *sample.args, **sample.kwargs)) for scan in (ours, theirs))
    assert len(found) == len(wanted)
    right = wanted
    if wanted[0].dtype in HALVES:  # torch rounds each partial result on a GPU: what it has in 32 bits is rounded once
        options = {name: value for name, value in sample.kwargs.items() if name != "dtype"}
        right = flat(theirs(sample.input.to(wanted[0].dtype).float(), *sample.args, **options))
    for y, alike, value in zip(found, wanted, right, strict=True):
        y = of_same_turn(y, alike) if name == "logcumsumexp" and y.is_complex() else y
        assert (y.dtype, y.shape, y.stride()) == (alike.dtype, alike.shape, alike.stride())
        torch.testing.assert_close(y, value.to(y.dtype))


# Emulated kernels are given the samples in tests/torch_integration/test_patch.py.
@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_samples(name: str, dtype: torch.dtype, place: str) -> None:
    samples = list(ROWS[name].sample_inputs(place, dtype))
    assert samples
    for sample in samples:
        agree(name, getattr(scanops, name), getattr(torch, name), sample)


@pytest.mark.parametrize("name", WITH_ERRORS)
def test_errors(name: str, device: str) -> None:
    """torch's own wrong inputs: an error of ours that is also of torch's type."""
    wrong = list(ROWS[name].error_inputs(device))
    assert wrong
    for bad in wrong:
        sample = bad.sample_input
        with pytest.raises(bad.error_type):
            getattr(torch, name)(sample.input, *sample.args, **sample.kwargs)
        with pytest.raises(ScanopsError) as caught:
            getattr(scanops, name)(sample.input, *sample.args, **sample.kwargs)
        assert isinstance(caught.value, bad.error_type)


# ---- offsets of segments: values are checked once, again after each change, and not where torch has no values


@pytest.mark.parametrize("way", ["eager", "strided", "functionalized", "inference"])
def test_changed_offsets_are_checked_again(way: str, device: str) -> None:
    """Those of inference mode have no version counter, and those of a functionalized call come from outside."""
    with torch.inference_mode(way == "inference"):
        x, given = torch.ones(4, device=device), torch.tensor([0, 2, 4], device=device)
        if way == "strided":
            given = given.int().repeat_interleave(2)[::2]

        def scan(x: torch.Tensor, offsets: torch.Tensor = given) -> list[float]:
            call = functools.partial(scanops.cumsum, dim=0, offsets=offsets)
            return (torch.func.functionalize(call) if way == "functionalized" else call)(x).tolist()

        for _ in range(3):
            assert scan(x) == [1, 2, 1, 2]
        assert scan(x, torch.tensor([0, 0, 4], device=device)) == [1, 2, 3, 4]
        given[1] = 3
        assert scan(x) == [1, 2, 3, 1]
        given[1] = 5
        refused(UnsupportedRequest, lambda: scan(x), "falling at index 2")
        given[1] = 1
        assert scan(x) == [1, 1, 2, 3]
        refused(UnsupportedRequest, lambda: scan(x[:3]), "to 4")


def test_offsets_that_a_scan_has_written_are_checked_again(device: str) -> None:
    """As cu_seqlens are made: a buffer that begins with 0, filled with sums of lengths."""
    x, given = torch.ones(4, device=device), torch.zeros(3, dtype=torch.int64, device=device)
    for lengths, expected in (((2, 2), [1, 2, 1, 2]), ((1, 3), [1, 1, 2, 3])):
        scanops.cumsum(torch.tensor(lengths, device=device), 0, out=given[1:])
        assert scanops.cumsum(x, 0, offsets=given).tolist() == expected
    scanops.cumsum(torch.tensor((400, 3), device=device), 0, out=given[1:])
    refused(UnsupportedRequest, lambda: scanops.cumsum(x, 0, offsets=given), "to 403")


def test_checked_offsets_are_saved_as_tensors(device: str) -> None:
    """Who reads the file need not know scanops, nor trust it."""
    given = torch.tensor([0, 2, 4], device=device)
    scanops.cumsum(torch.ones(4, device=device), 0, offsets=given)
    file = io.BytesIO()
    torch.save({"cu_seqlens": given}, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True)["cu_seqlens"], given)
    assert not vars(given) and b"scanops" not in pickle.dumps(given)


@pytest.mark.gpu
def test_offsets_under_capture() -> None:
    """Values are not read while a graph is captured; offsets that were checked before are known."""
    x, given = torch.ones(4, device="cuda"), torch.tensor([0, 2, 4], device="cuda")
    known = torch.tensor([0, 1, 4], device="cuda")
    scanops.cumsum(x, 0, offsets=known)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = scanops.cumsum(x, 0, offsets=known)
        refused(UnsupportedRequest, lambda: scanops.cumsum(x, 0, offsets=given), "offsets of shape (3,)")
    graph.replay()
    assert y.tolist() == [1, 1, 2, 3]
