"""Packed sequences: carries of segments; compared with each segment scanned alone.

Values of every operator, dtype and strategy are in tests/numbers: the value "carried" of the axis segments.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import math
from typing import Any

import pytest
import torch

import scanops
from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import OPERATORS, Operator
from scanops.errors import UnsupportedRequest
from scanops.fallback.reference import scan as scan_by_definition
from scanops.operands import Operands

CUTS = [0, 0, 3, 3, 10, 31, 40, 40]


def scan(x: torch.Tensor, op: str, dim: int, gate: torch.Tensor | None = None, **options: Any) -> Any:
    return scanops.scan(x, op, dim, **options) if gate is None else scanops.linear_scan(gate, x, dim, **options)


def apart(x: torch.Tensor, op: str, dim: int, cuts: list[int], initial: torch.Tensor | None, **options: Any) -> Any:
    """Results and carries-out, segment after segment."""
    found = []
    for number, (begin, end) in enumerate(itertools.pairwise(cuts)):
        own = {n: t.narrow(dim, begin, end - begin) if isinstance(t, torch.Tensor) else t for n, t in options.items()}
        start = None if initial is None else initial.select(dim, number)
        found.append(scan(x.narrow(dim, begin, end - begin), op, dim, initial=start, return_final=True, **own))
    return torch.cat([y for y, _ in found], dim), torch.stack([final for _, final in found], dim)


OPS = ("sum", "prod", "linear", "max", "logcumsumexp")
SHAPES = ((3, 40), (2, 40, 6))


@pytest.mark.parametrize(
    ("op", "shape", "reverse", "exclusive"),
    [  # rows and columns of an operator in opposite directions
        (op, shape, reverse, (number + reverse) % 2 == turn)
        for number, op in enumerate(OPS)
        for turn, shape in enumerate(SHAPES)
        for reverse in (False, True)
    ],
)
def test_gradients_of_carries(kernels: str, op: str, shape: tuple[int, ...], reverse: bool, exclusive: bool) -> None:
    """Gradients of items, gates, numeric masks and carries-in, through results and carries-out.

    Each segment alone is scanned by PyTorch's operators, outside of ``scanops.emulate()``.
    """
    generator = torch.Generator().manual_seed(1)
    carries = [len(CUTS) - 1 if d == 1 else size for d, size in enumerate(shape)]
    options = {"x": shape, "gate" if op == "linear" else "mask": shape, "initial": carries}
    drawn = {name: torch.rand(size, generator=generator) + 0.5 for name, size in options.items()}

    def results(alone: bool, device: str) -> tuple[torch.Tensor, ...]:
        given = {name: each.to(device, copy=True).requires_grad_() for name, each in drawn.items()}
        further = {"reverse": reverse, "exclusive": exclusive}
        if alone:
            y, final = apart(op=op, dim=1, cuts=CUTS, **given, **further)
        else:
            offsets = torch.tensor(CUTS, dtype=torch.int32, device=device)
            y, final = scan(op=op, dim=1, offsets=offsets, return_final=True, **given, **further)
        weights = (torch.linspace(0.5, 1.5, each.numel(), device=device).view_as(each) for each in (y, final))
        total = sum((each * weight).sum() for each, weight in zip((y, final), weights, strict=True))
        return y, final, *torch.autograd.grad(total, tuple(given.values()))

    expected = contextvars.Context().run(results, True, "cpu")
    for found, wanted in zip(results(False, kernels), expected, strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("exclusive", [False, True], ids=["inclusive", "exclusive"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "linear", "logcumsumexp"])
def test_each_segment_starts_from_a_number(op: str, reverse: bool, exclusive: bool, kernels: str) -> None:
    """Whatever is returned, and however sequences are packed."""
    cuts, options = [0, 2, 2, 3, 7, 7], {"reverse": reverse, "exclusive": exclusive}
    x = (torch.rand(3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5).to(kernels)
    offsets, given = torch.tensor(cuts, device=kernels), {"gate": x} if op == "linear" else {}
    for initial in (1.25, torch.tensor(1.25, device=kernels), torch.full((1, 1), 1.25, device=kernels)):
        pieces = []
        for begin, end in itertools.pairwise(cuts):
            start = 1.25 if isinstance(initial, float) else torch.tensor(1.25, device=kernels)
            own = {name: each[:, begin:end] for name, each in given.items()}
            own |= {"initial": start, "return_final": True, **options}
            pieces.append(contextvars.Context().run(scan, x[:, begin:end], op, 1, **own))
        y = torch.cat([piece[0] for piece in pieces], 1)
        finals = torch.stack([piece[-1] for piece in pieces], 1)
        for final in (False, True, "segments"):
            found = scan(x, op, 1, offsets=offsets, initial=initial, return_final=final, **given, **options)
            results = found if isinstance(found, tuple) else (found,)
            torch.testing.assert_close(results[0], y)
            if final:
                of_line = final is True and getattr(initial, "ndim", 0) == 0
                torch.testing.assert_close(results[-1], finals[:, 0 if reverse else 3] if of_line else finals)
        if op != "linear":
            nested = torch.nested.nested_tensor_from_jagged(x.t().contiguous(), offsets)
            number = initial if getattr(initial, "ndim", 0) == 0 else 1.25
            torch.testing.assert_close(scan(nested, op, 1, initial=number, **options).values(), y.t())


def test_values_for_lines_are_not_those_of_segments() -> None:
    """Also where there are as many lines as segments."""
    x, offsets = torch.ones(3, 5), torch.tensor([0, 1, 2, 5])
    for final in (False, True, "segments"):
        with pytest.raises(UnsupportedRequest, match=r"for each line beside offsets: got initial.shape=\(3,\)"):
            scanops.cumsum(x, 1, offsets=offsets, initial=torch.zeros(3), return_final=final)  # type: ignore[call-overload]
    values = torch.tensor([[1.0], [2.0], [3.0]])
    found = scanops.cumsum(x, 1, offsets=offsets, initial=values)
    assert found.tolist() == [[2, 2, 2, 3, 4], [3, 3, 3, 4, 5], [4, 4, 4, 5, 6]]


def test_gradients_of_a_number_of_all_segments(kernels: str) -> None:
    x = torch.rand(2, 6, dtype=torch.float64, device=kernels, requires_grad=True)
    offsets, start = torch.tensor([0, 2, 2, 6], device=kernels), torch.tensor(1.5, dtype=torch.float64, device=kernels)
    start.requires_grad_()

    def f(start: torch.Tensor) -> torch.Tensor:
        y, last = scanops.cumprod(x, 1, offsets=offsets, initial=start, return_final=True)
        return y.sum() + 2 * last.sum()

    apart = torch.cat([x[:, :2].cumprod(1), x[:, 2:].cumprod(1), 2 * x[:, 2:].prod(1, keepdim=True)], 1)
    torch.testing.assert_close(torch.autograd.grad(f(start), start)[0], apart.sum())
    torch.testing.assert_close(torch.compile(f, backend="aot_eager", fullgraph=True)(start), f(start))


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_transforms_of_carries(reverse: bool) -> None:
    """Tangents, second derivatives, batches, also of offsets, and a compiler."""
    x = torch.rand(3, 12, dtype=torch.float64, requires_grad=True)
    initial = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    offsets = torch.tensor([[0, 5, 5, 9, 12], [0, 5, 5, 9, 12], [0, 1, 2, 3, 12]])

    def f(x: torch.Tensor, initial: torch.Tensor, offsets: torch.Tensor = offsets[0]) -> Any:
        return scan(x, "prod", -1, initial=initial, offsets=offsets, return_final=True, reverse=reverse)

    assert torch.autograd.gradcheck(f, (x, initial), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, (x, initial))
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)(x, initial)
    for found in (compiled, torch.vmap(f)(x, initial)):
        torch.testing.assert_close(found, f(x, initial))
    gradients = (torch.autograd.grad(y.sum() + final.sum(), (x, initial)) for y, final in (compiled, f(x, initial)))
    torch.testing.assert_close(*gradients)
    batched = torch.vmap(f)(x, initial, offsets)
    torch.testing.assert_close(batched[0][2], f(x[2], initial[2], offsets[2])[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"offsets": None}, "carries of segments need offsets: got offsets=None"),
        ({"x": torch.tensor(1.0), "dim": 0, "offsets": torch.tensor([0, 1])}, r"x of shape \(\)"),
        ({"initial": torch.zeros(2, 3)}, r"initial must broadcast to x.shape with the segments"),
        ({"return_final": "lines"}, "return_final must be a bool or 'segments': got return_final='lines'"),
    ],
    ids=["no offsets", "no dimension", "shape", "word"],
)
def test_refusals_of_carries(options: dict[str, Any], words: str) -> None:
    given = {"x": torch.ones(2, 4), "op": "sum", "dim": 1, "offsets": torch.tensor([0, 1, 4])}
    with pytest.raises(UnsupportedRequest, match=words):
        scan(**{**given, "return_final": "segments", **options})


SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -2.5)


def special_items(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Small numbers, and in a tenth of the places special ones if the dtype has them."""
    generator = torch.Generator().manual_seed(3)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(0 if "u" in str(dtype) else -3, 4, shape, generator=generator).to(dtype)
    x = torch.randint(-4, 5, shape, generator=generator) / 4
    special = torch.tensor(SPECIAL)[torch.randint(0, len(SPECIAL), shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 0.1, special, x).to(dtype)


def scan_alone(x: torch.Tensor, op: str, dim: int, **options: Any) -> Any:
    """One segment with its carry-out: item by item, or where the step takes numbers alone, as a line of its own."""
    if op == "logcumsumexp":
        return scanops.logcumsumexp(x, dim, return_final=True, **options)
    return scan_by_definition(x, op, dim, final=True, dtype=x.dtype, **options)


@pytest.mark.parametrize("shape", [(2, 40), (40, 3)])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "logcumsumexp", "bitwise_xor", "logical_or", "cummax"])
def test_carries_by_torch(op: str, shape: tuple[int, ...]) -> None:
    """Of CPU tensors, NaN and empty segments, in both directions; against the definition, segment after segment."""
    dim, dtype = shape.index(40), torch.int64 if "bit" in op else torch.bool if "logical" in op else torch.float64
    x = special_items(dtype, shape)
    offsets = torch.tensor(CUTS)
    carries = [len(CUTS) - 1 if d == dim else size for d, size in enumerate(shape)]
    start = torch.ones(carries).to(dtype)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(4)) < 0.8
    for reverse, exclusive, initial in itertools.product((False, True), (False, True), (None, start)):
        options: dict[str, Any] = {"reverse": reverse, "exclusive": exclusive}
        given = {"mask": mask, "initial": initial, "offsets": offsets, "return_final": "segments", **options}
        found = scanops.cummax(x, dim, **given) if op == "cummax" else scanops.scan(x, op, dim, **given)
        y, final = (found[0][0], found[1]) if op == "cummax" else found
        plain = "max" if op == "cummax" else op
        for number, (begin, end) in enumerate(itertools.pairwise(CUTS)):
            own, keep = (each.narrow(dim, begin, end - begin) for each in (x, mask))
            first = None if initial is None else initial.select(dim, number)
            wanted, last = scan_alone(own, plain, dim, mask=keep, initial=first, **options)
            torch.testing.assert_close(y.narrow(dim, begin, end - begin), wanted, equal_nan=True)
            torch.testing.assert_close(final.select(dim, number), last, equal_nan=True)
        if op == "cummax":  # an index is that of an item in its own segment, or -1
            at, value = found[0][1], found[0][0]
            taken = x.gather(dim, at.clamp(min=0))
            torch.testing.assert_close(torch.where(at < 0, value, taken), value, equal_nan=True)
            own_segment = torch.searchsorted(offsets[1:], torch.arange(40), right=True)
            place = own_segment.reshape([-1 if d == dim else 1 for d in range(2)]).expand(shape)
            assert torch.equal(torch.where(at < 0, place, own_segment[at.clamp(min=0)]), place)


# ---- chunks


def in_chunks(x: torch.Tensor, dim: int, cuts: list[int], size: int, op: str = "sum", **options: Any) -> torch.Tensor:
    """Each chunk of each segment scanned alone: by PyTorch's operators where kernels are emulated."""
    whole = {n: t.expand(x.shape) for n, t in options.items() if isinstance(t, torch.Tensor)}
    begins = [(at, min(at + size, end)) for begin, end in itertools.pairwise(cuts) for at in range(begin, end, size)]
    found = []
    for begin, end in begins:
        own = {n: t.narrow(dim, begin, end - begin) for n, t in whole.items()}
        part = x.narrow(dim, begin, end - begin)
        found.append(contextvars.Context().run(scanops.scan, part, op, dim, **{**options, **own}))
    return torch.cat(found, dim)


@pytest.mark.parametrize("cuts", [None, [0, 0, 5, 50, 50, 96, 96]], ids=["lines", "offsets"])
@pytest.mark.parametrize("length", [96, 100, 7], ids=["whole", "tail", "short"])
@pytest.mark.parametrize(
    ("before", "behind"), [((2,), (6,)), ((2,), (40,)), ((3,), ())], ids=["few columns", "columns", "rows"]
)
def test_chunks(
    kernels: str, before: tuple[int, ...], behind: tuple[int, ...], length: int, cuts: list[int] | None
) -> None:
    """Of half types in float32, with a scale, and its gradient; PyTorch's operators scan each chunk alone."""
    reverse = (cuts is None) == bool(behind)  # in both directions, lines and segments, rows and columns
    cuts = None if cuts is None else sorted(min(at, length) for at in [*cuts, length])
    shape = (*before, length, *behind)
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    weights = torch.linspace(0.5, 1.5, drawn.numel()).view(shape)
    options: dict[str, Any] = {"dtype": torch.float32, "reverse": reverse, "exclusive": reverse}

    def alone() -> tuple[torch.Tensor, torch.Tensor]:
        x = drawn.clone().requires_grad_()
        y = in_chunks(x, 1, cuts or [0, length], 16, mask=torch.full((1,) * len(shape), 1.4427), **options)
        return y, torch.autograd.grad((y * weights).sum(), x)[0]

    wanted, slope = contextvars.Context().run(alone)
    options |= {"chunk": 16, "mask": torch.full((1,) * len(shape), 1.4427, device=kernels)}
    options["offsets"] = None if cuts is None else torch.tensor(cuts, dtype=torch.int32, device=kernels)
    x = drawn.to(kernels, copy=True).requires_grad_()
    y = scanops.cumsum(x, 1, **options)
    torch.testing.assert_close(y.cpu(), wanted)
    (gradient,) = torch.autograd.grad((y * weights.to(kernels)).sum(), x)
    torch.testing.assert_close(gradient.cpu(), slope, rtol=2e-2, atol=1e-2)
    out = torch.empty_like(y, requires_grad=False)
    assert scanops.scan(x.detach(), "sum", 1, out=out, **options) is out
    torch.testing.assert_close(out, y)


@pytest.mark.parametrize("chunk", [5, 200])
@pytest.mark.parametrize("first", [0, 1])
def test_chunks_of_views(kernels: str, first: int, chunk: int) -> None:
    """Columns within wider rows, on and off the boundary of an access, beside a mask, and empty segments."""
    x = torch.rand(2, 700, 48, generator=torch.Generator().manual_seed(1)).to(kernels)[..., first : first + 40]
    mask = x > 0.5
    offsets = torch.tensor([0, 0, 320, 321, 321, 700, 700], device=kernels)
    for reverse in (False, True):
        for op in ("sum", "max"):
            found = scanops.scan(x, op, 1, chunk=chunk, offsets=offsets, mask=mask, reverse=reverse)
            wanted = in_chunks(x, 1, offsets.tolist(), chunk, op, mask=mask, reverse=reverse)
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(("chunk", "length"), [(2**31 - 1, 5), (2**63 - 1, 5), (2**63, 5), (10**30, 5), (5, 5), (4, 5)])
@pytest.mark.parametrize("cuts", [None, [0, 2, 5]], ids=["lines", "offsets"])
def test_chunks_longer_than_lines(kernels: str, cuts: list[int] | None, chunk: int, length: int) -> None:
    x = torch.rand(length, generator=torch.Generator().manual_seed(1)).to(kernels)
    offsets = None if cuts is None else torch.tensor(cuts, device=kernels)
    found = scanops.cumsum(x, 0, chunk=chunk, offsets=offsets)
    torch.testing.assert_close(found, in_chunks(x, 0, cuts or [0, length], chunk))
    compiled = torch.compile(lambda x: scanops.cumsum(x, 0, chunk=chunk), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), in_chunks(x, 0, [0, length], chunk))


@pytest.mark.parametrize("shape", [(9000,), (9000, 8)])
@pytest.mark.parametrize(("low", "high"), [(0, 9000), (0, 40), (8970, 9000)])
def test_thousands_of_segments(kernels: str, shape: tuple[int, ...], low: int, high: int) -> None:
    """Of similar lengths, or all but one at an end of the line, far from where equal ones would begin."""
    random = torch.Generator().manual_seed(2026)
    inner = torch.randint(low, high, (2500,), generator=random).sort().values
    offsets = torch.cat([torch.tensor([0]), inner, torch.tensor([9000])]).to(kernels)
    x = torch.randint(-3, 4, shape, generator=random).double().to(kernels)
    total = torch.cat([x.new_zeros(1, *shape[1:]), x.cumsum(0)])
    y = scanops.cumsum(x, 0, offsets=offsets)
    begins = offsets[torch.searchsorted(offsets, torch.arange(9000, device=x.device), right=True) - 1]
    assert torch.equal(y, total[1:] - total[begins])
    ends = offsets[torch.searchsorted(offsets, torch.arange(9000, device=x.device), right=True)]
    assert torch.equal(scanops.cumsum(x, 0, offsets=offsets, reverse=True), total[ends] - total[:-1])


@pytest.mark.parametrize("shape", [(2, 12), (2, 12, 3), (2, 12, 40)], ids=["rows", "few columns", "columns"])
def test_many_segments_in_chunks(kernels: str, shape: tuple[int, ...]) -> None:
    """More segments than a warp has lanes, of which many are empty or shorter than a chunk."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(0, 7, (500,), generator=generator) * torch.randint(0, 2, (500,), generator=generator)
    lengths[[0, 77, -1]] = torch.tensor([0, 700, 0])
    cuts = [0, *lengths.cumsum(0).tolist()]
    x = torch.randint(-9, 9, (shape[0], cuts[-1], *shape[2:]), generator=generator).to(kernels)
    for chunk, reverse in ((4, False), (64, True), (1, False), (300, True)):
        offsets = torch.tensor(cuts, dtype=torch.int32, device=kernels)
        found = scanops.cumsum(x, 1, chunk=chunk, offsets=offsets, reverse=reverse)
        assert torch.equal(found, in_chunks(x, 1, cuts, chunk, reverse=reverse))


# A call with offsets, and the spec of its kernel: all that read offsets, of rows and of columns.
READERS: dict[str, Any] = {
    "rows": lambda x, offsets: scanops.cumsum(x[..., 0], 1, offsets=offsets),
    "columns": lambda x, offsets: scanops.cumsum(x, 1, offsets=offsets, reverse=True),
    "indices": lambda x, offsets: scanops.cummax(x, 1, offsets=offsets)[1],
    "carries of rows": lambda x, offsets: scanops.cumsum(x[..., 0], 1, offsets=offsets, return_final="segments"),
    "carries of columns": lambda x, offsets: scanops.cumsum(x, 1, offsets=offsets, initial=x[:, :3], return_final=True),
    "chunks of rows": lambda x, offsets: scanops.cumsum(x[..., 0], 1, offsets=offsets, chunk=7),
    "chunks of columns": lambda x, offsets: scanops.cumsum(x, 1, offsets=offsets, chunk=7),
    "chunks of few columns": lambda x, offsets: scanops.cumsum(x[..., :3], 1, offsets=offsets, chunk=7, reverse=True),
}


@pytest.mark.parametrize("way", ["foreign", "data", "in place", "data of a view"])
@pytest.mark.parametrize("name", READERS)
def test_offsets_overwritten_between_calls(kernels: str, name: str, way: str) -> None:
    """Results follow the values at each call, also after writes that PyTorch's version counter does not see."""
    x = torch.rand(2, 64, 40, generator=torch.Generator().manual_seed(1)).to(kernels)
    offsets = torch.tensor([0, 20, 40, 64], device=kernels)
    for cuts in ([0, 20, 40, 64], [0, 30, 30, 64], [0, 0, 9, 64], [0, 20, 40, 64]):
        new = torch.tensor(cuts, device=kernels)
        if way == "foreign" and kernels == "cpu":
            offsets.numpy()[:] = cuts  # the same memory to another library
        elif way == "foreign":
            torch.from_dlpack(offsets).copy_(new)
        elif way == "data":
            offsets.data.copy_(new)
        elif way == "in place":
            offsets.copy_(new)
        else:
            offsets.detach().data[:] = new
        found, wanted = (READERS[name](x, given) for given in (offsets, new))
        pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
        assert all(torch.equal(*pair) for pair in pairs)


def test_offsets_that_are_wrong_at_a_later_call() -> None:
    """On a CPU every call checks them."""
    offsets = torch.tensor([0, 2, 4])
    for name in ("numpy", "data"):
        for emulated in (False, True):
            with scanops.emulate() if emulated else contextlib.nullcontext():
                offsets.copy_(torch.tensor([0, 2, 4]))
                scanops.cumsum(torch.ones(4), 0, offsets=offsets, chunk=2)
                offsets.numpy()[1] = 9 if name == "numpy" else 2
                offsets.data[2] = 4 if name == "numpy" else 5
                with pytest.raises(UnsupportedRequest, match="offsets must rise from 0 to 4: got offsets from 0 to"):
                    scanops.cumsum(torch.ones(4), 0, offsets=offsets, chunk=2)


def test_a_kernel_of_chunks_is_called_by_itself() -> None:
    offsets = torch.tensor([0, 40, 100])
    for slug in ("sum-f32-any-le16-inner16-ragged_i64", "sum-f32-n100-inner8-offsets_i64-chunked"):
        kernel = scanops.compile(scanops.ScanSpec.parse(slug), target="cpu")
        x = torch.rand(2, 100, kernel.spec.inner)
        torch.testing.assert_close(kernel(x, 1, offsets=offsets, chunk=16), in_chunks(x, 1, [0, 40, 100], 16))
        with pytest.raises(UnsupportedRequest, match=r"chunked=|ragged="):
            kernel(x, 1, offsets=offsets)
        assert Operands(kernel.spec, kernel.spec.inner, "cpu").run(kernel)[0].shape[2] == kernel.spec.inner


# ---- chunks under compilers and transforms


@pytest.mark.parametrize("behind", [(), (3,), (16,)], ids=["rows", "few columns", "columns"])
def test_chunks_of_lengths_that_a_compiler_does_not_know(kernels: str, behind: tuple[int, ...]) -> None:
    """Of a selection, of an exported program and of dynamic shapes, with gradients; whole chunks and others."""
    x = torch.rand(12, *behind, generator=torch.Generator().manual_seed(1)).to(kernels)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for backend in ("eager", "aot_eager"):
            f = torch.compile(lambda x, keep: scanops.cumsum(x[keep], 0, chunk=4), fullgraph=True, backend=backend)
            for count in (12, 8, 7, 3, 1):
                keep = torch.arange(12, device=kernels) < count
                torch.testing.assert_close(f(x, keep), in_chunks(x[:count], 0, [0, count], 4))
    g = torch.compile(lambda x: scanops.cumsum(x, 0, chunk=4, reverse=True), backend="aot_eager", dynamic=True)
    for count in (12, 7, 5):
        read = x[:count].clone().requires_grad_()
        weights = torch.linspace(0.5, 1.5, read.numel(), device=kernels).view_as(read)
        gradients = []
        for y in (g(read), in_chunks(read, 0, [0, count], 4, reverse=True)):
            gradients.append(torch.autograd.grad((y * weights).sum(), read)[0])
        torch.testing.assert_close(*gradients)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scanops.cumsum(x, 0, chunk=4)

    length = torch.export.Dim("length", min=2, max=99)
    program = torch.export.export(Model(), (x,), dynamic_shapes=({0: length},)).module()
    for count in (12, 7, 3):
        torch.testing.assert_close(program(x[:count]), in_chunks(x[:count], 0, [0, count], 4))


def test_an_operator_of_torch_library_checks_its_chunk() -> None:
    for chunk in (0, -1):
        with pytest.raises(UnsupportedRequest, match=f"chunk must be a positive int: got chunk={chunk}"):
            torch.ops.scanops.scan(torch.ones(4), None, None, None, None, None, 0, "sum", chunk=chunk)
    with pytest.raises(UnsupportedRequest, match="chunk does not go with return_final"):
        torch.ops.scanops.scan(torch.ones(4), None, None, None, None, None, 0, "sum", chunk=2, final=True)
    (y,) = torch.ops.scanops.scan(torch.ones(5), None, None, None, None, None, 0, "sum", chunk=2)
    assert y.tolist() == [1, 2, 1, 2, 1]


def test_transforms_of_chunks() -> None:
    x, offsets = torch.rand(2, 100, 3), torch.tensor([0, 40, 100])
    for options in ({}, {"offsets": offsets}):
        wanted = in_chunks(x, 1, [0, *([40] if options else []), 100], 16)
        for dynamic in (False, True):
            f = torch.compile(
                lambda x, options=options: scanops.cumsum(x, 1, chunk=16, **options),
                backend="aot_eager",
                fullgraph=True,
                dynamic=dynamic,
            )
            torch.testing.assert_close(f(x), wanted)
        torch.testing.assert_close(torch.vmap(lambda x, o=options: scanops.cumsum(x, 0, chunk=16, **o))(x), wanted)
    offsets[1] = 50  # offsets of chunks follow
    torch.testing.assert_close(scanops.cumsum(x, 1, chunk=16, offsets=offsets), in_chunks(x, 1, [0, 50, 100], 16))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chunk": 0}, "chunk must be a positive int: got chunk=0"),
        ({"chunk": True}, "chunk must be a positive int: got chunk=True"),
        ({"initial": 1.0}, "chunk does not go with initial"),
        ({"return_final": True}, "chunk does not go with return_final"),
        ({"complete": True}, "chunk does not go with complete"),
        ({"segment_starts": torch.zeros(4, dtype=torch.bool)}, "chunk does not go with segment_starts"),
        ({"mask": torch.ones(7)}, "mask must broadcast"),
        ({"out": torch.ones(3)}, "out must have x's shape"),
        ({"out": torch.ones(2, 2, 2)}, r"out must have x's shape: got out.shape=\(2, 2, 2\)"),
        ({"out": [1]}, r"out must be a tensor: got out=\[1\]"),
        ({"out": torch.ones(2, 4, dtype=torch.int32), "dtype": torch.int64}, "out must have dtype torch.int64"),
        ({"then": torch.neg}, "chunk does not go with map, then"),
    ],
    ids=[
        "zero",
        "bool",
        "initial",
        "final",
        "complete",
        "flags",
        "mask",
        "out",
        "out of chunks",
        "no out",
        "dtype of out",
        "then",
    ],
)
def test_refusals_of_chunks(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedRequest, match=words):
        scanops.scan(torch.ones(2, 4), "sum", 1, **{"chunk": 2, **options})


# ---- nested tensors


def jagged(turned: bool = False, **options: Any) -> torch.Tensor:
    """Three sequences of 3, 0 and 5 items of 4 channels, which ``turned`` lie in front of the items."""
    values = torch.rand(8, 4, generator=torch.Generator().manual_seed(1)).to(**options)
    x = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 3, 3, 8], device=values.device))
    return x.transpose(1, 2) if turned else x


@pytest.mark.parametrize("turned", [False, True], ids=["in front", "behind"])
@pytest.mark.parametrize("dim", [1, -1])
def test_nested(kernels: str, dim: int, turned: bool) -> None:
    """Along the ragged dimension and along the other one."""
    x = jagged(turned, device=kernels)
    for y in (scanops.cumsum(x, dim), patched(x, dim) if x.is_cuda or kernels == "cpu" else None):
        if y is not None:
            assert y.is_nested and y.shape == x.shape
            for found, alone in zip(y.unbind(), x.unbind(), strict=True):
                torch.testing.assert_close(found, alone.cumsum(dim - (dim > 0)))


def patched(x: torch.Tensor, dim: int) -> torch.Tensor:
    """torch's own scan, which it has not implemented for these tensors."""
    with scanops.emulate(), scanops.patch_torch():
        return torch.cumsum(x, dim)


@pytest.mark.parametrize("turned", [False, True], ids=["in front", "behind"])
def test_nested_carries_and_gradients(kernels: str, turned: bool) -> None:
    """A carry-in and a carry-out of each sequence, masks, gates and chunks that are nested as well."""
    x, dim = jagged(turned, device=kernels), 1 + turned
    initial = torch.rand(3, 4, device=kernels)
    y, final = scanops.linear_scan(x, x, dim, initial=initial, return_final=True, mask=x > 0.5)
    for b, (alone, found) in enumerate(zip(x.unbind(), y.unbind(), strict=True)):
        own: dict[str, Any] = {"initial": initial[b], "return_final": True, "mask": alone > 0.5}
        wanted, last = contextvars.Context().run(scanops.linear_scan, alone, alone, dim - 1, **own)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(final[b], last)
    assert scanops.cumsum(x, dim, initial=2.0, return_final=True)[1][1].tolist() == [2.0] * 4
    assert scanops.cumsum(x, dim, chunk=1).values().equal(x.values())
    values = torch.rand(8, 4, device=kernels, requires_grad=True)
    weights = torch.linspace(0.5, 1.5, 32, device=kernels).view(8, 4)
    y = scanops.cumsum(torch.nested.nested_tensor_from_jagged(values, x.offsets()), 1, reverse=True).values()
    whole = scanops.cumsum(values, 0, reverse=True, offsets=x.offsets())
    torch.testing.assert_close(*(torch.autograd.grad((each * weights).sum(), values)[0] for each in (y, whole)))


@pytest.mark.parametrize("turned", [False, True], ids=["in front", "behind"])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 4), (3, 1), (3, 4)])
def test_nested_carries_that_broadcast(kernels: str, shape: tuple[int, ...], turned: bool) -> None:
    """A carry-in for each sequence, channel or both, or one for all, and its gradient."""
    x, dim = jagged(turned, device=kernels), 1 + turned
    initial = torch.rand(shape, generator=torch.Generator().manual_seed(2)).to(kernels).requires_grad_()
    y, final = scanops.cumsum(x, dim, initial=initial, return_final=True)
    whole = initial.expand(3, 4)
    for b, (alone, each) in enumerate(zip(x.unbind(), y.unbind(), strict=True)):
        torch.testing.assert_close(each, alone.cumsum(dim - 1) + whole[b].unsqueeze(dim - 1))
        torch.testing.assert_close(final[b], alone.sum(dim - 1) + whole[b])
    counts = torch.tensor([3.0, 0.0, 5.0], device=kernels)[:, None].expand(3, 4)
    (gradient,) = torch.autograd.grad(y.values().sum(), initial)
    torch.testing.assert_close(gradient, counts.sum_to_size(shape))


@pytest.mark.parametrize("shape", [(3,), (2, 4), (4, 3), (1, 3, 4)])
def test_nested_carries_of_other_shapes(shape: tuple[int, ...]) -> None:
    for turned in (False, True):
        with pytest.raises(
            UnsupportedRequest, match="initial must broadcast to the sequences' shape without the ragged"
        ):
            scanops.cumsum(jagged(turned), 1 + turned, initial=torch.zeros(shape))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: scanops.cumsum(x, 0), "a dimension behind that of the batch"),
        (lambda x: scanops.cummax(x, 1), "along the ragged dimension no indices"),
        (lambda x: scanops.cumsum(x, 2, initial=1.0), "that is not ragged no carries"),
        (lambda x: scanops.cumsum(x, 1, offsets=x.offsets()), "no out, segments or complete"),
        (lambda x: scanops.cumsum(x, 1, mask=torch.ones(4)), "masks and gates that are nested"),
        (lambda x: scanops.cumsum(x, 5), "dim must be"),
    ],
    ids=["batch", "indices", "carries", "offsets", "mask", "dim"],
)
def test_refusals_of_nested(call: Any, words: str) -> None:
    with pytest.raises(UnsupportedRequest, match=words):
        call(jagged())


# ---- reductions by key


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.uint16, torch.bool], ids=str
)
@pytest.mark.parametrize(
    "op", ["sum", "prod", "max", "min", "logcumsumexp", "bitwise_and", "bitwise_xor", "logical_and"]
)
def test_reductions_by_torch(op: str, dtype: torch.dtype) -> None:
    """Of CPU tensors: NaN, infinities, masks, runs of one item and of many; equal to the last result of each run."""
    if not OPERATORS[op].kinds or dtype_named(dtype).kind not in OPERATORS[op].kinds:
        pytest.skip("the operator has no such dtype")
    lengths = [1, 2, 3, 1, 33, 1, 100, 4]
    keys = torch.repeat_interleave(torch.tensor([5, 4, 5, 1, 2, 3, 9, 0]), torch.tensor(lengths))
    for shape, dim in (((len(keys),), 0), ((len(keys), 3), 0), ((2, len(keys)), -1)):
        x = special_items(dtype, shape)
        keep = torch.rand(shape, generator=torch.Generator().manual_seed(4)) < 0.8
        for mask in (None, keep):
            unique, y = scanops.reduce_by_key(keys, x, op, dim, mask=mask)
            assert unique.tolist() == [5, 4, 5, 1, 2, 3, 9, 0]
            masks = [None] * len(lengths) if mask is None else mask.split(lengths, dim)
            parts = zip(x.split(lengths, dim), masks, strict=True)
            wanted = torch.cat([scanops.scan(part, op, dim, mask=own).narrow(dim, -1, 1) for part, own in parts], dim)
            assert y.dtype == wanted.dtype
            torch.testing.assert_close(y, wanted, equal_nan=True)


def test_reductions_of_an_operator_that_does_not_commute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items are combined in their order."""
    first = Operator(
        name="first_of_run",
        formula="y[i] = the first of x[0] to x[i] that is not 0",
        lift=("x",),
        start=0,
        combine=("older != 0 ? older : newer",),
        identity=("0",),
        kinds=("float",),
        gives="kept",
        commutative=False,
        step=lambda h, x: h + (h == 0) * x,
    )
    monkeypatch.setitem(OPERATORS, first.name, first)
    keys = torch.tensor([1, 1, 1, 2, 3, 3, 3, 3, 3])
    x = torch.tensor([0.0, 4.0, 3.0, 0.0, 5.0, 2.0, 1.0, 0.0, 9.0])
    assert scanops.reduce_by_key(keys, x, first.name)[1].tolist() == [4.0, 0.0, 5.0]


def test_reductions_take_no_step_for_each_run() -> None:
    """As many operations of PyTorch for a thousand runs as for ten, of results and of carries alone."""
    counts = []
    for runs in (10, 1000):
        keys, x = torch.arange(runs * 8) // 8, torch.rand(runs * 8)
        offsets = torch.arange(0, runs * 8 + 1, 8)
        for call in (
            lambda x=x, keys=keys: scanops.reduce_by_key(keys, x, "sum"),
            lambda x=x, keys=keys: scanops.reduce_by_key(keys, x, "logcumsumexp"),
            lambda x=x, offsets=offsets: scanops.cumsum(x, 0, offsets=offsets, return_final="segments"),
        ):
            call()
            with torch.profiler.profile() as profile:
                call()
            counts.append(sum(event.count for event in profile.key_averages()))
    assert counts[:3] == counts[3:]


@pytest.mark.parametrize("op", ["sum", "max", "prod", "logcumsumexp"])
@pytest.mark.parametrize("dim", [0, -1])
def test_reductions_by_key(kernels: str, op: str, dim: int) -> None:
    """Against the scan of each run by PyTorch's operators, in values and gradients; of no items, too."""
    keys = torch.tensor([2, 2, 2, 5, 9, 9], device=kernels)
    drawn = torch.rand((6, 4) if dim == 0 else (4, 6), generator=torch.Generator().manual_seed(1))

    def alone() -> tuple[torch.Tensor, torch.Tensor]:
        x = drawn.clone().requires_grad_()
        y = torch.cat([scan(part, op, dim).narrow(dim, -1, 1) for part in x.split([3, 1, 2], dim)], dim)
        return y, torch.autograd.grad((y**2).sum(), x)[0]

    x = drawn.to(kernels, copy=True).requires_grad_()
    unique, y = scanops.reduce_by_key(keys, x, op, dim)
    assert unique.tolist() == [2, 5, 9]
    for found, wanted in zip((y, *torch.autograd.grad((y**2).sum(), x)), contextvars.Context().run(alone), strict=True):
        torch.testing.assert_close(found.cpu(), wanted)
    unique, y = scanops.reduce_by_key(keys[:0], x.detach().narrow(dim, 0, 0), op, dim)
    assert unique.numel() == y.numel() == 0
    assert scanops.reduce_by_key(keys, x.detach().bfloat16(), op, dim)[1].dtype == torch.bfloat16
    with pytest.raises(UnsupportedRequest, match="keys must be one for each item along dim"):
        scanops.reduce_by_key(keys[1:], x, op, dim)
