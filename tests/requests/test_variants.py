"""Carries, gates and segments: in any rank and strides, in chunks, without values, deterministic."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import scanops
from tests.requests import walks


@pytest.mark.parametrize("pretended", ["meta", "fake"])
def test_offsets_without_values(pretended: str) -> None:
    """Where torch looks at shapes alone there is nothing to check."""
    with FakeTensorMode() if pretended == "fake" else contextlib.nullcontext():
        device = "cpu" if pretended == "fake" else "meta"
        x, offsets = torch.empty(2, 4, device=device), torch.empty(3, dtype=torch.int32, device=device)
        y, last = scanops.cumprod(x, 1, offsets=offsets, initial=torch.ones(2, device=device), return_final=True)
        assert (y.shape, last.shape) == ((2, 4), (2,))


def test_a_batch_of_offsets(device: str) -> None:
    x, offsets = torch.ones(2, 4, device=device), torch.tensor([[0, 2, 4], [0, 1, 4]], device=device)
    found = torch.func.vmap(lambda x, offsets: scanops.cumsum(x, 0, offsets=offsets))(x, offsets)
    assert found.tolist() == [[1, 2, 1, 2], [1, 1, 2, 3]]


def test_offsets_of_inference_mode(device: str) -> None:
    """They do not know when they were changed, so they are looked at every time."""
    with torch.inference_mode():
        x, offsets = torch.ones(4, device=device), torch.tensor([0, 2, 4], device=device)
        assert scanops.cumsum(x, 0, offsets=offsets).tolist() == [1, 2, 1, 2]
        offsets[2] = 5
        with pytest.raises(scanops.errors.UnsupportedRequest, match="to 5"):
            scanops.cumsum(x, 0, offsets=offsets)


def test_offsets_that_are_not_contiguous(device: str) -> None:
    offsets = torch.tensor([0, 9, 1, 9, 1, 9, 4, 9], dtype=torch.int32, device=device)[::2]
    for _ in range(2):
        assert scanops.cumsum(torch.ones(4, device=device), 0, offsets=offsets).tolist() == [1, 1, 2, 3]


ENDS = {  # offsets, or flags, of three items; reverse; results of ones from 10; what goes on
    "none": ([0, 3], False, [11, 12, 13], 13),
    "padded": ([0, 3, 3, 3], False, [11, 12, 13], 13),
    "padded, reverse": ([0, 3, 3, 3], True, [13, 12, 11], 13),
    "empty first": ([0, 0, 3], False, [1, 2, 3], 3),
    "empty first, reverse": ([0, 0, 3], True, [13, 12, 11], 0),
    "flags": ([True, False, True], False, [1, 2, 1], 1),
    "flags, reverse": ([True, False, True], True, [2, 1, 11], 0),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_lines_begin_and_end_with_beside_segments(name: str, device: str) -> None:
    """Also that the gradients of what goes on, and of what lines begin with, say who it belongs to."""
    told, reverse, expected, last = ENDS[name]
    by = torch.tensor(told, device=device)
    segments = {"segment_starts" if by.dtype == torch.bool else "offsets": by}
    x, initial = (torch.full(shape, value, device=device) for shape, value in (((3,), 1.0), ((), 10.0)))
    tensors = (x.requires_grad_(), initial.requires_grad_())
    y, final = scanops.cumsum(x, 0, initial=initial, reverse=reverse, return_final=True, **segments)  # type: ignore[call-overload]
    assert (y.tolist(), final.item()) == (expected, last)
    of_x, of_initial = torch.autograd.grad(final, tensors, retain_graph=True)
    assert of_x.sum().item() + 10 * of_initial.item() == last  # it is linear
    assert torch.autograd.grad(y.sum(), initial)[0].item() == sum(each > 10 for each in expected)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("shape", [(3, 2049), (2, 130, 5), (1, 70001)], ids=str)
def test_deterministic_algorithms_need_no_other_path(shape: tuple[int, ...], device: str) -> None:
    """Nothing refuses, and the bits are those of a call without them."""
    x = torch.rand(shape, device=device, generator=torch.Generator(device).manual_seed(1))
    initial = torch.tensor(0.25, device=device)
    offsets = torch.tensor([0, shape[1] // 2, shape[1]], device=device)

    def calls() -> list[torch.Tensor]:
        return [
            scanops.cumsum(x, 1),
            *scanops.cumprod(x + 0.5, 1, initial=initial, return_final=True, reverse=True),
            scanops.linear_scan(x, x, 1, offsets=offsets),
            *scanops.cummax(x, 1, mask=x > 0.1),
        ]

    found = calls()
    torch.use_deterministic_algorithms(False)
    for y, plain in zip(found, calls(), strict=True):
        assert torch.equal(y, plain)


@pytest.mark.usefixtures("deterministic")
def test_gradients_under_deterministic_algorithms(device: str) -> None:
    x = torch.rand(2, 40, device=device).requires_grad_()
    a = torch.rand(40, device=device).requires_grad_()
    offsets = torch.tensor([0, 7, 7, 40], device=device)
    y, last = scanops.linear_scan(a, x, 1, offsets=offsets, return_final=True)
    first = torch.autograd.grad(y.sum() + last.sum(), (a, x))
    y, last = scanops.linear_scan(a, x, 1, offsets=offsets, return_final=True)
    for one, other in zip(first, torch.autograd.grad(y.sum() + last.sum(), (a, x)), strict=True):
        assert torch.equal(one, other)
    (values,) = torch.autograd.grad(scanops.cummax(x, 1).values.sum(), x)
    assert values.sum() == 80


# ---- any rank, any strides, of each operand

Draw = Callable[[tuple[int, ...]], torch.Tensor]
# How an operand of four dimensions may lie.
LAYOUTS: dict[str, Callable[[tuple[int, ...], Draw], torch.Tensor]] = {
    "dense": lambda shape, draw: draw(shape),
    "channels_last": lambda shape, draw: draw(shape).contiguous(memory_format=torch.channels_last),
    "permuted": lambda shape, draw: draw(shape[::-1]).permute(3, 2, 1, 0),
    "stepped": lambda shape, draw: draw((*shape[:-1], 2 * shape[-1]))[..., 1::2],
    "rows of longer rows": lambda shape, draw: draw((*shape[:-1], shape[-1] + 3))[..., 2:-1],
    "off a boundary": lambda shape, draw: draw((torch.Size(shape).numel() + 1,))[1:].reshape(shape),
    "the same in every batch": lambda shape, draw: draw((1, *shape[1:])).expand(shape),
    "the same along a row": lambda shape, draw: draw((*shape[:-1], 1)).expand(shape),
    "of lower rank": lambda shape, draw: draw(shape[2:]),
    "one for each channel": lambda shape, draw: draw((shape[1], 1, 1)),
    "one": lambda shape, draw: draw(()),
}


def small(dtype: torch.dtype, seed: int, device: str) -> Draw:
    def draw(shape: tuple[int, ...]) -> torch.Tensor:
        numbers = torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(seed + 10 * len(shape)))
        return (numbers > 0 if dtype == torch.bool else numbers.to(dtype)).to(device)

    return draw


def whole(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return tensor.cpu().expand(shape)


@pytest.mark.parametrize(
    ("role", "layout", "dim"),
    [
        (role, layout, dim)  # each role and each layout along every dimension, the two together along two of them
        for number, (role, layout) in enumerate(itertools.product(("gate", "starts", "mask"), LAYOUTS))
        for dim in range(number % 2, 4, 2)
    ],
)
def test_an_operand_lies_anywhere(role: str, layout: str, dim: int, device: str) -> None:
    shape = (2, 3, 5, 34)
    dtypes = {"gate": torch.float32, "starts": torch.bool, "mask": torch.bool}
    laid = LAYOUTS[layout](shape, small(dtypes[role], 5, device))
    ways = {name: LAYOUTS[layout if name == role else "dense"] for name in dtypes}
    operands = {name: way(shape, small(dtypes[name], 5, device)) for name, way in ways.items()}
    x = LAYOUTS["permuted" if layout == "permuted" else "dense"](shape, small(torch.float32, 1, device))
    initial = small(torch.float32, 3, device)(tuple(n for d, n in enumerate(shape) if d != dim)[::-1]).permute(2, 1, 0)
    found = scanops.linear_scan(
        operands["gate"], x, dim, mask=operands["mask"], segment_starts=operands["starts"], initial=initial,
        return_final=True, reverse=dim % 2 == 1,
    )  # fmt: skip
    expected = walks.outputs(
        walks.Asked(
            op="linear", dim=dim, x=x.cpu(), dtype=torch.float32, carry=torch.float32,
            keep=whole(operands["mask"], shape), gate=whole(operands["gate"], shape),
            starts=whole(operands["starts"], shape), initial=initial.cpu(), final=True, reverse=dim % 2 == 1,
        )
    )  # fmt: skip
    assert laid.stride() == operands[role].stride()
    for y, wanted in zip(found, expected, strict=True):
        assert y.is_contiguous()
        assert torch.equal(y.cpu(), wanted)


@pytest.mark.parametrize("rank", [1, 2, 3, 5, 7])
def test_any_rank(rank: int, device: str) -> None:
    shape = (2,) * (rank - 1) + (9,)
    draws = [small(dtype, seed, device) for seed, dtype in enumerate((torch.float32, torch.float32, torch.bool))]
    order = tuple(reversed(range(rank)))
    a, b, starts = (draw(shape[::-1]).permute(order) for draw in draws)
    for dim in {0, rank // 2, rank - 1}:
        y = scanops.linear_scan(a, b, dim, segment_starts=starts, exclusive=True)
        asked = walks.Asked(
            op="linear", dim=dim, x=b.cpu(), dtype=torch.float32, carry=torch.float32, gate=a.cpu(),
            starts=starts.cpu(), exclusive=True,
        )  # fmt: skip
        assert torch.equal(y.cpu(), walks.outputs(asked)[0])


# ---- streams


@pytest.mark.parametrize(
    ("op", "sizes", "reverse"),
    [
        (op, sizes, (number + turn) % 2 > 0)
        for number, op in enumerate(("sum", "prod", "max", "bitwise_xor", "cummin", "linear"))
        for turn, sizes in enumerate(((1, 1, 30), (16, 0, 16), (7, 5, 20)))
    ],
)
def test_a_stream_in_chunks(op: str, sizes: tuple[int, ...], reverse: bool, device: str) -> None:
    """What goes on from one chunk begins the next: equal to the scan in one piece, for integers exactly."""
    x = small(torch.int64, 1, device)((3, 32))
    gate = small(torch.int64, 2, device)((3, 32))

    def scan(part: slice, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        given = {"return_final": True, "reverse": reverse, **options}
        if op == "linear":
            return scanops.linear_scan(gate[:, part], x[:, part], 1, **given)
        if op == "cummin":
            pair, final = scanops.cummin(x[:, part], 1, **given)
            return pair.values, final
        return scanops.scan(x[:, part], op, 1, **given)

    ends = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    chunks = [slice(*pair) for pair in itertools.pairwise(ends)]
    pieces, going_on = [], None
    for chunk in chunks[::-1] if reverse else chunks:
        y, going_on = scan(chunk, initial=going_on)
        pieces.append(y)
    y, final = scan(slice(None))
    assert going_on is not None and torch.equal(going_on, final)
    assert torch.equal(torch.cat(pieces[::-1] if reverse else pieces, 1), y)


@pytest.mark.parametrize("reverse", [False, True])
def test_packed_rows_are_rows(reverse: bool, device: str) -> None:
    """Packed and told by offsets, by flags, or each alone: the same."""
    lengths = [3, 0, 1, 40, 0, 5]
    rows = [small(torch.float32, n, device)((2, n)) for n in lengths]
    packed, ends = torch.cat(rows, 1), [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    alone = torch.cat([scanops.cumsum(row, 1, reverse=reverse) for row in rows], 1)
    for dtype in (torch.int32, torch.int64):
        offsets = torch.tensor(ends, dtype=dtype, device=device)
        assert torch.equal(scanops.cumsum(packed, 1, offsets=offsets, reverse=reverse), alone)
    starts = torch.zeros(packed.shape[1], dtype=torch.bool, device=device)
    starts[[end for end in ends if end < packed.shape[1]]] = True
    assert torch.equal(scanops.cumsum(packed, 1, segment_starts=starts, reverse=reverse), alone)
