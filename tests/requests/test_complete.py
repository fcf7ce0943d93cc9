"""Complete scans: the carry-in or the identity, then the inclusive results; compared with their concatenation."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import scanops
from scanops.errors import UnsupportedRequest
from tests.scripts import ran

STARTS = {"sum": 0.0, "prod": 1.0, "linear": 0.0, "logcumsumexp": -torch.inf, "max": -torch.inf}


def composed(x: torch.Tensor, op: str, dim: int, start: torch.Tensor | None, **options: Any) -> torch.Tensor:
    """The carry-in or the identity of each line, concatenated with the inclusive results."""
    y = scan(x, op, dim, initial=start, **options)
    first = torch.full_like(y.select(dim, 0), STARTS[op]) if start is None else start
    parts = [first.unsqueeze(dim), y]
    return torch.cat(parts[::-1] if options.get("reverse") else parts, dim)


def scan(x: torch.Tensor, op: str, dim: int, gate: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    found = scanops.scan(x, op, dim, **options) if gate is None else scanops.linear_scan(gate, x, dim, **options)
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("carried", [False, True], ids=["identity", "initial"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("op", STARTS)
@pytest.mark.parametrize(("shape", "dim"), [((3, 40), 1), ((4, 9, 6), 1)], ids=["rows", "columns"])
def test_gradients(kernels: str, shape: tuple[int, ...], dim: int, op: str, reverse: bool, carried: bool) -> None:
    """Gradients of items, gates, numeric masks and carry-ins."""
    generator = torch.Generator().manual_seed(1)
    lines = [size for d, size in enumerate(shape) if d != dim]
    options: dict[str, torch.Tensor] = {"x": torch.rand(shape, generator=generator).mT.contiguous().mT + 0.5}
    options |= {"gate" if op == "linear" else "mask": torch.rand(shape, generator=generator)}
    options |= {"start": torch.rand(lines, generator=generator)} if carried else {}

    def results(complete: bool) -> tuple[torch.Tensor, ...]:
        given = {name: each.to(kernels).requires_grad_() for name, each in options.items()}
        x, start, others = given["x"], given.get("start"), {n: t for n, t in given.items() if n in ("gate", "mask")}
        if complete:
            y = scan(x, op, dim, initial=start, reverse=reverse, complete=True, **others)
        else:
            y = composed(x, op, dim, start, reverse=reverse, **others)
        weights = torch.linspace(0.5, 1.5, y.numel(), device=kernels).view_as(y)
        return y, *torch.autograd.grad((y.clamp(min=-1e3) * weights).sum(), tuple(given.values()))

    for found, wanted in zip(results(True), results(False), strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_transforms(reverse: bool) -> None:
    """Tangents, second derivatives, batches and a compiler see one more result, too."""
    x = torch.rand(3, 8, dtype=torch.float64, requires_grad=True)
    start = torch.rand(3, dtype=torch.float64, requires_grad=True)

    def f(x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return scan(x, "prod", 1, initial=start, reverse=reverse, complete=True)

    assert torch.autograd.gradcheck(f, (x, start), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, (x, start))
    wanted = composed(x, "prod", 1, start, reverse=reverse)
    batched = torch.vmap(lambda x, start: scan(x, "prod", 0, initial=start, reverse=reverse, complete=True))
    assert torch.equal(batched(x, start), wanted)
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)(x, start)
    torch.testing.assert_close(compiled, wanted)
    for found, other in zip(*(torch.autograd.grad(y.sum(), (x, start)) for y in (compiled, wanted)), strict=True):
        torch.testing.assert_close(found, other)


def test_lines_without_items_and_outs(kernels: str) -> None:
    start = torch.tensor([5.0, 7.0], device=kernels)
    assert scan(torch.empty(2, 0, device=kernels), "sum", 1, initial=start, complete=True).tolist() == [[5.0], [7.0]]
    assert scan(torch.empty(0, 3, device=kernels), "sum", 1, complete=True).shape == (0, 4)
    for out in (torch.empty(2, 4, device=kernels), torch.empty(2, 8, device=kernels)[:, ::2]):
        assert scan(torch.ones(2, 3, device=kernels), "sum", 1, complete=True, out=out) is out
        assert out.tolist() == [[0.0, 1.0, 2.0, 3.0]] * 2


# Operands between two pages that nobody may touch: a read outside of them ends the process.
FENCED = """
import ctypes, itertools, mmap, torch, scanops
system = ctypes.CDLL(None)
system.mmap.restype = ctypes.c_void_p
system.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

def fenced(x, front):
    page = mmap.PAGESIZE
    pages = -(-x.nbytes // page)
    base = system.mmap(None, ctypes.c_size_t((pages + 2) * page), 3, 0x22, -1, ctypes.c_long(0))
    for at in (base, base + (pages + 1) * page):
        assert system.mprotect(at, page, 0) == 0
    begin = base + page if front else base + (pages + 1) * page - x.nbytes
    memory = (ctypes.c_char * x.nbytes).from_address(begin)
    return torch.frombuffer(memory, dtype=x.dtype).view(x.shape).copy_(x)

SHAPES = ((5, 8), (3, 31), (2, 2051), (1, 70000), (20, 33000), (3, 31, 5), (1, 1100, 36))
for shape, reverse, front in itertools.product(SHAPES, (False, True), (False, True)):
    x = torch.randint(-3, 4, shape).to(torch.int8)
    keep = torch.rand(shape) > 0.3
    with scanops.emulate():
        y = scanops.cumsum(fenced(x, front), 1, mask=fenced(keep, front), reverse=reverse, complete=True)
    assert torch.equal(y, scanops.cumsum(x, 1, mask=keep, reverse=reverse, complete=True)), (shape, reverse)
"""


def test_nothing_beside_the_operands_is_read() -> None:
    """The last result has no item beside it."""
    ran(sys.executable, "-c", FENCED)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exclusive": True}, "does not go with exclusive"),
        ({"return_final": True}, "does not go with return_final"),
        ({"offsets": torch.tensor([0, 3])}, "does not go with offsets"),
        ({"segment_starts": torch.zeros(3, dtype=torch.bool)}, "does not go with segment_starts"),
        ({"x": torch.tensor(1.0)}, "a tensor of no dimension"),
        ({"complete": 1}, "complete must be a bool: got complete=1"),
        ({"out": torch.zeros(2, 3)}, r"one more along dim: got out.shape=\(2, 3\)"),
    ],
    ids=["exclusive", "final", "offsets", "flags", "no dimension", "no bool", "shape of out"],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedRequest, match=words):
        scan(**{"x": torch.ones(2, 3), "op": "sum", "dim": -1, "complete": True, **options})
