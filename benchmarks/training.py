"""Time forward plus backward passes against a copy of the least bytes that they must move, beside what is used today.

The least bytes of a pass are those of a kernel that reads each input and saved tensor once and writes each result once,
forward and backward: gates and terms of a recurrence, its results; then the gradient of the results, gates and results
again, and two gradients. A fraction is the time of a device-to-device copy of as many bytes over that of the pass.
Gradients are compared first, on a few lines, with those of PyTorch's operators in float64.

torch is measured where it has the operation; other peers are those of ``python -m benchmarks peers``. Each cell is one
line of JSON in the file of ``--output``, appended as soon as it is measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

import scanops
from benchmarks.common import append_line, build_kernels_of, parser, require_gpu
from benchmarks.timing import Timer
from scanops.codegen.figures import item_bytes
from scanops.runtime.kernels import default_target

BUDGET = 0.15  # seconds of runs for each figure
ITEMS = 2**27  # of a tensor, about
NEAR = {torch.float32: 2e-3, torch.bfloat16: 4e-2}  # gradients, relative to the greatest of a line
CHECKED = 2  # lines of each dimension that are compared
FUSED = "sigmoid gates, linear"
Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., torch.Tensor]  # of the leaves


class Cell(NamedTuple):
    """One pass: a differentiable scan of some tensors along a dimension."""

    op: str  # with what goes beside it: "linear, flags"
    shape: tuple[int, ...]
    dim: int
    dtype: torch.dtype
    reverse: bool = False

    @property
    def items(self) -> int:
        """The number of items of a tensor."""
        return torch.Size(self.shape).numel()

    @property
    def least(self) -> int:
        """The least bytes of an item, forward and backward."""
        size = self.dtype.itemsize
        return {
            "sum": 4 * size,  # x, y; their gradients
            "logcumsumexp": 6 * size,  # x, y; the gradient of y, x and y again, that of x
            "prod": 6 * size,
            "cummax": 4 * size + 16,  # indices are int64, written and read
            "linear": 8 * size,
            "linear, flags": 8 * size + 2,
            "linear, offsets": 8 * size,
            FUSED: 8 * size,
        }[self.op]

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        return f"{self.op}, {shape}, dim {self.dim}{', reverse' * self.reverse}, {str(self.dtype)[6:]}"


COLUMNS = ((8, 4096, 2560), (16, 2048, 128), (1, 131072, 1024), (64, 1000, 100))
FLOATS = (torch.float32, torch.bfloat16)


def cells() -> Iterator[Cell]:
    """Yield the passes that are measured."""
    for dtype in FLOATS:
        for length in (2048, 16384, 65536, 1048576):
            yield Cell("linear", (ITEMS // length, length), 1, dtype)
        for shape in COLUMNS:
            yield Cell("linear", shape, 1, dtype)
        for op in ("logcumsumexp", "prod", "cummax"):
            yield Cell(op, (ITEMS // 8192, 8192), 1, dtype)
            yield Cell(op, COLUMNS[0], 1, dtype)
            yield Cell(op, (1024, 128256), 1, dtype)
        yield Cell("sum", COLUMNS[0], 1, dtype)
        yield Cell("sum", (1024, 128256), 1, dtype)
        for shape in ((16, 2048, 128), (8, 4096, 1024), (16, 16384, 128)):
            yield Cell(FUSED, shape, 1, dtype)
    yield Cell("linear, offsets", (2**22, 64), 0, torch.float32)
    yield Cell("linear, flags", (2048, 8192), 0, torch.float32, reverse=True)


def leaves_of(cell: Cell, device: str) -> Tensors:
    """Return the tensors that gradients are taken of."""
    random = torch.Generator(device).manual_seed(2026)
    draw = partial(torch.randn, cell.shape, device=device, generator=random)
    if cell.op == "prod":
        return ((1 + draw() / 1000).to(cell.dtype).requires_grad_(),)
    if cell.op.startswith("linear"):
        return (draw().sigmoid().to(cell.dtype).requires_grad_(), draw().to(cell.dtype).requires_grad_())
    count = 2 if cell.op == FUSED else 1
    return tuple(draw().to(cell.dtype).requires_grad_() for _ in range(count))


def segments_of(cell: Cell, device: str) -> dict[str, torch.Tensor]:
    """Return the segments of a cell: sequences of some 1024 items, or resets of one item in a hundred."""
    random = torch.Generator(device).manual_seed(7)
    if cell.op == "linear, flags":
        return {"segment_starts": torch.rand(cell.shape, device=device, generator=random) < 0.01}
    if cell.op == "linear, offsets":
        length = cell.shape[cell.dim]
        ends = torch.randint(1, length, (max(1, length // 1024 - 1),), device=device, generator=random).sort().values
        edges = torch.tensor([0, length], device=device)
        return {"offsets": torch.cat([edges[:1], ends, edges[1:]]).to(torch.int32)}
    return {}


def ours(cell: Cell, segments: dict[str, Any]) -> Function:
    """Return the pass by scanops."""
    if cell.op == FUSED:
        gates = lambda g, x: (torch.sigmoid(g), x)  # noqa: E731
        return lambda g, x: scanops.scan((g, x), "linear", cell.dim, map=gates)
    if cell.op.startswith("linear"):
        linear: Callable[..., Any] = scanops.linear_scan
        return lambda g, x: linear(g, x, cell.dim, reverse=cell.reverse, **segments)
    if cell.op == "cummax":
        return lambda x: scanops.cummax(x, cell.dim).values
    return lambda x: scanops.scan(x, cell.op, cell.dim)


def theirs(cell: Cell) -> Function | None:
    """Return the pass by torch, where it has the operation."""
    torch_functions = {"sum": torch.cumsum, "prod": torch.cumprod, "logcumsumexp": torch.logcumsumexp}
    if cell.op == "cummax":
        return lambda x: torch.cummax(x, cell.dim).values
    return partial(torch_functions[cell.op], dim=cell.dim) if cell.op in torch_functions else None


def run(function: Function, leaves: Tensors, given: torch.Tensor) -> Tensors:
    """Run forward, then backward from ``given``, the gradient of the results."""
    return torch.autograd.grad(function(*leaves), leaves, given)


def calls() -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yield for each pass its name, the items of a tensor, and a function that runs it."""
    for cell in cells():
        yield str(cell), cell.items, partial(_once, cell)


def worst_difference(cell: Cell, leaves: Tensors, segments: dict[str, torch.Tensor], given: torch.Tensor) -> float:
    """The greatest difference of a gradient from that of PyTorch's operators in float64, over the greatest gradient."""
    part = tuple(slice(None) if d == cell.dim else slice(CHECKED) for d in range(len(cell.shape)))
    found = [each[part] for each in run(ours(cell, segments), leaves, given)]
    few = tuple(each.detach()[part].double().requires_grad_() for each in leaves)
    starts = segments.get("segment_starts")
    own = segments if starts is None else {"segment_starts": starts[part]}
    reference = cell._replace(op="linear") if cell.op == FUSED else cell
    function = ours(reference, own)
    squash = torch.sigmoid if cell.op == FUSED else (lambda gate: gate)
    with scanops.policy("fallback"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # each call says that no kernel serves it
        expected = run(lambda g, *x: function(squash(g), *x), few, given[part].double())
    pairs = zip(found, expected, strict=True)
    return max(float((a.double() - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


def measure(cell: Cell, timer: Timer) -> dict[str, Any]:
    """Return the figures of a cell. Raises AssertionError where a gradient is wrong."""
    leaves, segments = leaves_of(cell, "cuda"), segments_of(cell, "cuda")
    random = torch.Generator("cuda").manual_seed(1)
    given = torch.randn(cell.shape, device="cuda", generator=random).to(cell.dtype)
    far, moved = worst_difference(cell, leaves, segments, given), cell.least * cell.items
    assert far < NEAR[cell.dtype], f"{cell}: a gradient is {far} off"
    with scanops.record() as used:
        run(ours(cell, segments), leaves, given)
    runs: dict[str, Callable[[], object]] = {"scanops": partial(run, ours(cell, segments), leaves, given)}
    if peer := theirs(cell):
        runs["torch"] = partial(run, peer, leaves, given)
    times = timer.samples({"copy": timer.copy(moved), **runs}, moved)
    return {
        "cell": str(cell),
        "least_bytes": cell.least,
        "kernels": [str(spec) for spec in used],
        "bytes": sum(item_bytes(spec) for spec in used),
        "off": far,
        "us": {name: round(1e3 * each.ms, 2) for name, each in times.items()},
        "fraction": round(times["copy"].ms / times["scanops"].ms, 4),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the passes and print a line for each."""
    given = parser(__doc__, filtered="passes").parse_args(arguments)
    require_gpu()
    wanted = [cell for cell in cells() if given.filter in str(cell)]
    problems = build_kernels_of(
        (partial(_once, cell._replace(shape=_fewer(cell))) for cell in wanted), default_target()
    )
    for key, problem in problems.items():
        print(f"{key.spec}: {problem.splitlines()[0]}", flush=True)
    timer, wrong = Timer(BUDGET), 0
    for cell in wanted:
        try:
            found = measure(cell, timer)
        except Exception as problem:  # one failed cell is a result, not the end of the run
            wrong += 1
            print(f"{cell}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
            continue
        beside = "  ".join(f"{name} {us:9.1f}" for name, us in found["us"].items() if name not in ("scanops", "copy"))
        times = f"{found['us']['scanops']:9.1f} us  {found['bytes']}/{found['least_bytes']} B"
        print(f"{found['fraction']:.3f}  {times}  {cell}  {beside}", flush=True)
        append_line(given.output, found)
        torch.cuda.empty_cache()
    return min(wrong, 1)


def _fewer(cell: Cell) -> tuple[int, ...]:
    """The shape with fewer lines that asks for the same kernels."""
    return (min(cell.shape[0], 256), *cell.shape[1:]) if cell.dim > 0 and len(cell.shape) == 2 else cell.shape


def _once(cell: Cell) -> None:
    leaves, segments = leaves_of(cell, "cuda"), segments_of(cell, "cuda")
    run(ours(cell, segments), leaves, torch.ones_like(leaves[0]))
