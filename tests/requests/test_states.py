"""Kernels of scans with states: any operand along any dimensions, boundary sizes, every direction, and bits."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import scanops

Tensors = tuple[torch.Tensor, ...]
KINDS = ((2, 5, 7), (3, 1, 5), (1, 40, 33))  # batch, lines, steps
NEAR = {torch.float32: 2e-5, torch.float64: 1e-11, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def gate_and_item(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *_: torch.Tensor) -> Tensors:
    return torch.sigmoid(g * w), torch.tanh(x) * g


def read_out(h: torch.Tensor, g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, c: torch.Tensor, *_: Any) -> Any:
    return h * c + torch.sin(h)


def by_steps(tensors: Tensors, dim: int, summed: int, reverse: bool, initial: torch.Tensor | None) -> Tensors:
    """Return the sums, and the last states, by a loop in float64 over tensors of three dimensions and states."""
    g, x, w, c = torch.broadcast_tensors(*(each.double() for each in tensors))
    gate, item = gate_and_item(g, x, w)
    h = torch.zeros_like(g.select(dim, 0)) if initial is None else initial.double().expand(g.select(dim, 0).shape)
    found: dict[int, torch.Tensor] = {}
    for t in reversed(range(g.shape[dim])) if reverse else range(g.shape[dim]):
        h = gate.select(dim, t) * h + item.select(dim, t)
        found[t] = h * c.select(dim, t) + torch.sin(h)
    return torch.stack([found[t] for t in range(g.shape[dim])], dim).sum(summed), h


def compare(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise unless two tensors are near, by their norms."""
    assert found.shape == wanted.shape
    off = float((found.double() - wanted.double()).norm())
    assert off <= NEAR[dtype] * float(wanted.double().norm()) + 1e-6, off


def draw(rest: random.Random, sizes: dict[str, int], order: str, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Return a tensor of some of the dimensions, whose memory is in an order of its own."""
    shape = [sizes[d] if rest.random() < 0.7 else 1 for d in order]
    back = rest.sample(range(len(shape)), len(shape))
    made = torch.randn([shape[d] for d in back], dtype=torch.float64)
    moved = made.permute(sorted(range(len(back)), key=lambda at: back[at]))
    return moved.to(dtype).to(device).requires_grad_()


@pytest.mark.parametrize("seed", range(24))
def test_any_operands(seed: int, kernels: str) -> None:
    """Operands of random dimensions and strides: values and gradients are those of a loop, and the same bits twice."""
    rest = random.Random(seed)
    torch.manual_seed(seed)
    dtype = rest.choice([torch.float32, torch.float32, torch.bfloat16, torch.float64])
    batch, lines, steps = rest.choice(KINDS)
    sizes = {"b": batch, "l": lines, "t": steps, "n": rest.choice([1, 2, 3, 5, 8, 16])}
    order = "".join(rest.sample("bltn", 4))
    dim, summed, reverse = order.index("t"), order.index("n"), rest.random() < 0.5
    tensors = tuple(draw(rest, sizes, order, dtype, kernels) for _ in range(4))
    whole = torch.broadcast_shapes(*(each.shape for each in tensors))
    if whole[dim] == 1 or whole[summed] == 1:  # none of them has these dimensions
        whole = tuple(sizes[d] for d in order)
        tensors = (*tensors[:3], torch.randn(whole, dtype=torch.float64).to(dtype).to(kernels).requires_grad_())
    carries = [size for d, size in enumerate(whole) if d != dim]
    initial = None
    if rest.random() < 0.5:
        initial = torch.randn(carries, dtype=torch.float32).to(kernels).requires_grad_()

    def run() -> tuple[torch.Tensor, ...]:
        y, h = scanops.scan(
            tensors,
            "linear",
            dim,
            map=gate_and_item,
            then=read_out,
            sum=summed,
            reverse=reverse,
            initial=initial,
            return_final=True,
        )
        inputs = (*tensors, *([] if initial is None else [initial]))
        weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(kernels)
        root = (y.double() * weights).sum() + h.double().sum()
        return (y, h, *torch.autograd.grad(root, inputs, allow_unused=True))

    y, h, *gradients = run()
    y_again, h_again, *again = run()
    for one, other in zip((y, h, *gradients), (y_again, h_again, *again), strict=True):
        assert torch.equal(one, other)
    exact = tuple(each.detach().double().requires_grad_() for each in tensors)
    begin = None if initial is None else initial.detach().double().requires_grad_()
    wanted, last = by_steps(exact, dim, summed, reverse, begin)
    compare(y.detach(), wanted.detach(), dtype)
    compare(h.detach(), last.detach(), dtype)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(kernels)
    roots = (wanted * weights).sum() + last.sum()
    inputs = (*exact, *([] if begin is None else [begin]))
    for found, right in zip(gradients, torch.autograd.grad(roots, inputs), strict=True):
        compare(found, right, dtype)


@pytest.mark.parametrize("states", [1, 3, 4, 8, 16, 17, 64, 128])
@pytest.mark.parametrize("length", [1, 31, 33, 130])
def test_states_and_lengths(states: int, length: int, kernels: str) -> None:
    """Tiles that are full, one step more or less, and numbers of states that divide among lanes or do not."""
    torch.manual_seed(states + length)
    g, x = (torch.randn(2, 3, 1, length, device=kernels, requires_grad=True) for _ in range(2))
    w = torch.randn(3, states, 1, device=kernels, requires_grad=True)
    c = torch.randn(2, 1, states, length, device=kernels, requires_grad=True)
    y = scanops.scan((g, x, w, c), "linear", 3, map=gate_and_item, then=read_out, sum=2)
    exact = tuple(each.detach().double().requires_grad_() for each in (g, x, w[None], c))
    wanted, _ = by_steps(exact, 3, 2, False, None)
    compare(y.detach(), wanted.detach(), torch.float32)
    weights = torch.randn_like(y)
    found = torch.autograd.grad((y * weights).sum(), (g, x, w, c))
    for one, other in zip(found, torch.autograd.grad((wanted * weights).sum(), exact), strict=True):
        compare(one, other.reshape(one.shape), torch.float32)


def measure_peak(call: Callable[[], object]) -> int:
    """Return the bytes that a call allocates at most on a GPU."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.gpu
def test_memory() -> None:
    """A training step holds no tensor of the size of all states: less than that is allocated in all."""
    g, x = (torch.randn(4, 512, 1, 1024, device="cuda", requires_grad=True) for _ in range(2))
    w = torch.randn(512, 16, 1, device="cuda", requires_grad=True)
    c = torch.randn(4, 1, 16, 1024, device="cuda", requires_grad=True)

    def train() -> object:
        y = scanops.scan((g, x, w, c), "linear", 3, map=gate_and_item, then=read_out, sum=2)
        return torch.autograd.grad(y.sum(), (g, x, w, c))

    train()
    assert measure_peak(train) < 16 * g.numel() * 4


def test_saved_memory(kernels: str) -> None:
    """What the forward pass saves beside its inputs has at most 4 bytes for each step of a line."""
    g, x = (torch.randn(2, 64, 1, 96, device=kernels, requires_grad=True) for _ in range(2))
    w = torch.randn(64, 16, 1, device=kernels, requires_grad=True)
    c = torch.randn(2, 1, 16, 96, device=kernels, requires_grad=True)
    given, saved = {each.data_ptr() for each in (g, x, w, c)}, []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in given:
            saved.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        scanops.scan((g, x, w, c), "linear", 3, map=gate_and_item, then=read_out, sum=2)
    assert 0 < sum(saved) <= 4 * g.numel()
