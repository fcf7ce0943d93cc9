"""What calls cost: bytes allocated, read and saved, whatever the layout of operands; the kernels that run."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import scanops
from scanops import torch_private
from scanops.requests import segments
from scanops.runtime import workspaces
from tests.numbers import oracle
from tests.numbers.oracle import walked
from tests.scripts import Forked

SHAPE = (3, 20, 24)
LINES = 3 * 24
Laid = Callable[[torch.Tensor], torch.Tensor]


class Recorded(TorchDispatchMode):
    """Adds up the bytes of every storage that torch makes on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self._kept = 0, {}  # type: tuple[int, dict[int, torch.UntypedStorage]]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {each.untyped_storage().data_ptr() for each in tensors_of((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for each in tensors_of(result):
            storage = each.untyped_storage()
            if storage.data_ptr() not in given | set(self._kept) and storage.nbytes():
                self._kept[storage.data_ptr()] = storage  # held, so that no address is given twice
                self.bytes += storage.nbytes()
        return result


def tensors_of(tree: object) -> list[torch.Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]


def allocated(call: Callable[[], Any], device: str) -> int:
    """Bytes that torch was asked for, the second time: by then the kernel is built and its workspace is there."""
    call()
    if device == "cuda":
        key = "requested_bytes.all.allocated"
        before = torch.cuda.memory_stats()[key]
        kept = call()
        assert kept is not None
        return int(torch.cuda.memory_stats()[key] - before)
    # As where there is no mode: a call that one follows is an operation, whose own allocations it does not see.
    with mock.patch.object(torch_private, "count_modes", lambda: 0), Recorded() as recorded:
        call()
    return recorded.bytes


# How a tensor of SHAPE may lie.
LAYOUTS: dict[str, Laid] = {
    "dense": lambda x: x,
    "rows": lambda x: torch.cat([x, x], 2)[:, :, :24],
    "columns": lambda x: torch.cat([x, x], 2)[:, :, 8:32],
    "transposed": lambda x: x.mT.contiguous().mT,
    "batches apart": lambda x: torch.cat([x, x], 1)[:, :20],
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
    "off a boundary": lambda x: torch.cat([x.reshape(-1)[:1], x.reshape(-1)])[1:].reshape(x.shape),
    "expanded": lambda x: x[:1].expand(x.shape),
    "expanded along the line": lambda x: x[:, :1].expand(x.shape),
    "broadcast": lambda x: x[0],
    "one a channel": lambda x: x[0, :1],
    "one": lambda x: x[0, 0, 0],
}


ROLES = ("x", "gate", "mask", "weights", "starts")


@pytest.mark.parametrize(
    ("role", "layout", "dim"),
    [(role, layout, (number + turn) % 3) for number, role in enumerate(ROLES) for turn, layout in enumerate(LAYOUTS)],
)
def test_an_operand_of_any_layout(role: str, layout: str, dim: int, kernels: str) -> None:
    """Read where it lies: the results of a recurrence with every operand are right, and nothing else is allocated."""
    lines = tuple(size for d, size in enumerate(SHAPE) if d != dim)
    x, initial = (oracle.values("linear", shape, torch.float32) for shape in (SHAPE, lines))
    operands = {
        "x": x,
        "gate": oracle.gates(SHAPE, torch.float32),
        "mask": oracle.weights("linear", SHAPE, torch.float32) if role == "weights" else oracle.selection(SHAPE),
        "starts": oracle.selection(SHAPE, seed=4),
    }
    name = "mask" if role == "weights" else role
    operands[name] = oracle.placed(LAYOUTS[layout](operands[name]), kernels)
    there = {name: oracle.placed(each, kernels) for name, each in operands.items()}
    options: dict[str, Any] = {"initial": initial.to(kernels), "mask": there["mask"], "reverse": dim == 1}

    def call() -> torch.Tensor:
        return scanops.linear_scan(there["gate"], there["x"], dim, segment_starts=there["starts"], **options)

    assert allocated(call, kernels) == 4 * x.numel()
    whole = {name: each.cpu().expand(SHAPE) for name, each in there.items()}
    expected = oracle.scan(
        whole.pop("x"), "linear", dim, **whole, initial=initial, reverse=dim == 1, dtype=torch.float32
    )
    oracle.compare("linear", (call(),), expected.outputs)


class Tensors:
    """Operands and results of SHAPE on a device."""

    def __init__(self, device: str) -> None:
        self.x = torch.ones(SHAPE, device=device)
        self.keep, self.gate, self.out = self.x > 0, self.x[0, 0].clone(), torch.empty_like(self.x)
        self.indices = torch.empty_like(self.x, dtype=torch.int64)
        self.stepped = torch.empty((*SHAPE, 2), device=device)[..., 0]  # written by way of a contiguous result
        self.lines, self.apart = torch.ones(3, 24, device=device), torch.ones(3, 24, 2, device=device)[..., 0]
        self.whole = self.lines.int()
        self.offsets = torch.tensor([0, 7, 7, 20], device=device)
        self.split = [torch.ones(shape, device=device) for shape in ((1, 300000), (3, 70001), (4, 1200, 8))]


RESULT, FINAL = 4 * 3 * 20 * 24, 4 * LINES
EXACT: dict[str, tuple[Callable[[Tensors], object], int]] = {
    "a number carried in": (lambda t: scanops.cumsum(t.x, 1, initial=1.5, return_final=True), RESULT + FINAL + 4),
    "one carry-in": (lambda t: scanops.cumsum(t.x, 1, initial=t.lines[0, 0], return_final=True), RESULT + FINAL),
    "a carry-in for each line": (lambda t: scanops.cumsum(t.x, 1, initial=t.lines), RESULT),
    "an expanded carry-in": (lambda t: scanops.cumsum(t.x, 1, initial=t.gate.expand(3, 24)), RESULT + FINAL),
    "a strided carry-in": (lambda t: scanops.cumsum(t.x, 1, initial=t.apart), RESULT + FINAL),
    "a carry-in of whole numbers": (lambda t: scanops.cumsum(t.x, 1, initial=t.whole), RESULT + FINAL),
    "offsets of int64": (lambda t: scanops.cumsum(t.x, 1, offsets=t.offsets, reverse=True), RESULT),
    "out": (lambda t: scanops.cumsum(t.x, 1, mask=t.keep, out=t.out), 0),
    "in place": (lambda t: scanops.cumsum(t.x, 1, out=t.x), 0),
    "a recurrence in place": (lambda t: scanops.linear_scan(t.gate, t.x, 1, out=t.x), 0),
    "two outs": (lambda t: scanops.cummax(t.x, 2, out=(t.out, t.indices)), 0),
    "a strided out": (lambda t: scanops.cumsum(t.x, 1, out=t.stepped), RESULT),
    **{
        f"rows split over blocks, {k}": (lambda t, k=k: scanops.cumsum(t.split[k], 1), size)  # type: ignore[misc]
        for k, size in enumerate((4 * 300000, 4 * 3 * 70001, 4 * 4 * 1200 * 8))  # workspaces stay with their stream
    },
}


@pytest.mark.parametrize("name", EXACT)
def test_exactly_the_results(name: str, kernels: str) -> None:
    """And at most one value for each line besides."""
    call, size = EXACT[name]
    tensors = Tensors(kernels)
    # On a CPU the values of offsets are checked at every call; kernels of a GPU are called without a check again.
    with mock.patch.object(segments, "_has_values", lambda _: kernels == "cuda"):
        assert allocated(lambda: call(tensors), kernels) == size


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float16, torch.complex64], ids=str)
def test_of_other_dtypes(dtype: torch.dtype, kernels: str) -> None:
    """What is narrow is read narrow: no converted copy."""
    x = torch.ones(SHAPE, dtype=dtype, device=kernels)
    y = scanops.cumsum(x, 2)
    assert allocated(lambda: scanops.cumsum(x, 2), kernels) == y.nbytes
    if not dtype.is_complex:
        assert allocated(lambda: scanops.cummax(x, 1), kernels) == x.nbytes + 8 * x.numel()


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


def test_nothing_beside_the_operands_is_read(forked: Forked, tmp_path: Path) -> None:
    """By complete scans, whose last result has no item beside it."""
    forked(tmp_path, ("fenced", FENCED))


def test_a_complete_scan_is_written_into_an_out(kernels: str) -> None:
    for out in (torch.empty(2, 4, device=kernels), torch.empty(2, 8, device=kernels)[:, ::2]):
        assert scanops.cumsum(torch.ones(2, 3, device=kernels), 1, complete=True, out=out) is out
        assert out.tolist() == [[0.0, 1.0, 2.0, 3.0]] * 2


# ---- gradients: the bytes that are saved for them, the kernels that run, and what these allocate

ROWS, LENGTH = 4, 160
MASK, GATE = torch.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) % 3 > 0, torch.rand(ROWS, LENGTH)

# A scan, with MASK and GATE on its device; the bytes saved for each item beside what the caller has anyway, which are x
# where it is read again, the mask and the gate; the last kernel of the backward pass.
Scan = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
SCANS: dict[str, tuple[Scan, int, str]] = {
    "sum": (lambda x, mask, gate: scanops.cumsum(x, 1), 0, "sum"),
    "sum, masked": (lambda x, mask, gate: scanops.cumsum(x, 1, mask=mask), 1, "sum_gradient"),
    "sum, segments": (lambda x, mask, gate: scanops.cumsum(x, 1, segment_starts=mask, exclusive=True), 1, "sum"),
    "product": (lambda x, mask, gate: scanops.cumprod(x, 1), 4, "prod_gradient"),
    "product, masked": (lambda x, mask, gate: scanops.cumprod(x, 1, mask=mask, reverse=True), 4 + 1, "prod_gradient"),
    "cummax": (lambda x, mask, gate: scanops.cummax(x, 1).values, 8, "runs_gradient"),
    "cummin, masked": (
        lambda x, mask, gate: scanops.cummin(x, 1, mask=mask, exclusive=True).values,
        8,
        "runs_gradient",
    ),
    "max": (lambda x, mask, gate: scanops.scan(x, "max", 1), 4 + 4, "max_gradient"),
    "logcumsumexp": (lambda x, mask, gate: scanops.logcumsumexp(x, 1), 4 + 4, "logcumsumexp_gradient"),
    # The gate, which is a constant: the gradient of a gate reads the result besides.
    "linear": (lambda x, mask, gate: scanops.linear_scan(gate, x, 1), 4, "linear_gradient_of_terms"),
}


@pytest.mark.parametrize("name", SCANS)
def test_what_is_saved_launched_and_allocated(name: str, kernels: str) -> None:
    scan, bytes_saved, last = SCANS[name]
    mask, gate, saved = MASK.to(kernels), GATE.to(kernels), []
    leaf = torch.randn(ROWS, LENGTH, device=kernels).requires_grad_()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = scan(leaf, mask, gate)
    assert sum(each.nbytes for each in saved) == bytes_saved * leaf.numel()
    given = torch.ones_like(y)

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(y, leaf, given, retain_graph=True)

    with scanops.record() as used:
        backward()
    assert [spec.op for spec in used] == [last]
    assert allocated(backward, kernels) == leaf.nbytes  # the gradient, and nothing on the way
    if name.startswith(("sum", "cum", "linear")):
        between = leaf * 1  # nothing keeps the input of such a scan alive
        y, watched = scan(between, mask, gate), weakref.ref(between)
        del between, saved[:]
        gc.collect()
        assert watched() is None and y.requires_grad


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


@pytest.mark.parametrize("spread", [transposed, lambda x: x[:1].expand_as(x)], ids=["transposed", "expanded"])
@pytest.mark.parametrize("name", ["product", "product, masked", "linear"])
def test_other_strides_are_copied(name: str, spread: Callable[[torch.Tensor], torch.Tensor], kernels: str) -> None:
    """And not scanned forwards once more: neither gradients, nor masks, nor gates, nor the items of a product."""
    x, gate, given = (torch.rand(ROWS, LENGTH, device=kernels) + 0.5 for _ in range(3))
    mask = spread(MASK.to(kernels)) if name == "product, masked" else None
    leaves = [transposed(x).requires_grad_(), *([spread(gate / 2).requires_grad_()] if name == "linear" else [])]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    if name == "linear":
        y, theirs = scanops.linear_scan(leaves[1], leaves[0], 1), walked("linear", wide[0], a=wide[1])[0]
    else:
        y, theirs = scanops.cumprod(leaves[0], 1, mask=mask), walked("prod", wide[0], mask=mask)[0]
    expected = torch.autograd.grad(theirs, wide, spread(given).double())
    for _ in range(2):  # the second as it is remembered
        with scanops.record() as used:
            found = torch.autograd.grad(y, leaves, spread(given), retain_graph=True)
        assert [spec.op for spec in used] in ([f"{'linear' if name == 'linear' else 'prod'}_gradient"], [])
        torch.testing.assert_close([each.double() for each in found], list(expected), rtol=1e-4, atol=1e-4)


def test_a_scan_that_saves_nothing_goes_backward_twice(device: str) -> None:
    """As torch's cumsum does, without retain_graph; one that saves something does not."""
    x = torch.rand(3, 5, device=device, requires_grad=True)
    y = scanops.cumsum(x, 1)
    assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for _ in range(2)))
    y = scanops.cumsum(x, 1, mask=x.detach() > 0.5)
    torch.autograd.grad(y.sum(), x)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(y.sum(), x)


# ---- the workspace of launches, which holds tile status: one for each thread and stream


def test_kernels_of_different_plans_share_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split rows and waves, of more and fewer tiles: no launch reads the tile status of another."""
    monkeypatch.setattr(workspaces, "_WORKSPACES", {})
    shapes = [(1, 9000), (2, 33004), (4, 33004), (2, 70000), (3, 33003)]  # at first one that has to grow
    with scanops.emulate():
        for shape in shapes * 2:
            x = oracle.values("sum", shape, torch.float32, seed=shape[1])
            assert torch.equal(scanops.cumsum(x, 1), torch.cumsum(x, 1))
