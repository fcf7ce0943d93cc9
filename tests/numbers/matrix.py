"""The test matrix: operator, dtype, strategy, direction, inclusive or exclusive, mask, carry, segments and layout.

A cell is one value of each axis. This module says which cells are legal, draws a cell's operands, runs it and computes
its expected results.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from scanops.codegen.dtypes import DTYPES, default_result
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.lines import any_length, choose_variant
from scanops.codegen.operators import OPERATORS, Operator
from scanops.codegen.planner import plan_kernel
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest
from scanops.requests.request import make_request
from scanops.runtime import call_cache, kernels, launcher
from scanops.runtime.kernels import obtain
from scanops.runtime.policies import STRICT
from tests.numbers import oracle
from tests.numbers.covering import Cells, Target, cover
from tests.numbers.oracle import Case

MULTIPROCESSORS = 3  # of the emulated GPU, and pretended on a real one, so that small shapes count as many lines
NON_COMMUTATIVE = ("affine", "linear", "cummax", "cummin")
STRATEGIES = ("warp", "staged", "block", "persistent", "split", "columns", "columns_lookback", "transposed")


_FIXED = oracle.CASES | {
    "wide_lanes": Case(strategy="warp", shape=(9, 256), dim=1),  # vector accesses of the narrowest dtypes
    "transposed_rows": Case(strategy="transposed", shape=(97, 132), dim=1, turned=(1, 0)),
    "transposed_columns": Case(strategy="transposed", shape=(2, 131, 68), dim=1, turned=(0, 2, 1)),
}
_ANY = (
    "lanes",
    "wide_lanes",
    "staged",
    "staged_pieces",
    "one_tile",
    "one_tile_odd",
    "wave_odd",
    "short_columns",
    "column_loop",
    "panels_chain",
    "panels_few",
    "split_odd",
    "transposed_rows",
    "transposed_columns",
)
ROUTES = _FIXED | {f"any_{name}": replace(_FIXED[name], generic=True) for name in _ANY}

Change = Callable[[torch.Tensor, int], torch.Tensor]

# Where the input lies, given an operand and one of its dimensions; the mask of the same shape lies likewise or densely.
LAYOUTS: dict[str, Change] = {
    "dense": lambda x, d: x,
    "misaligned": lambda x, d: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "pitched": lambda x, d: torch.cat([x, x[..., :3]], dim=-1)[..., 2 : x.shape[-1] + 2],
    "sparse": lambda x, d: torch.stack([x, x], dim=d + 1).select(d + 1, 0),
    "expanded": lambda x, d: x.narrow(d, 0, 1).expand(x.shape),
}

AXES: dict[str, tuple[str, ...]] = {
    "route": tuple(ROUTES),
    "op": (*OPERATORS, "affine"),
    "dtype": tuple(DTYPES),
    "reverse": ("forward", "reverse"),
    "exclusive": ("inclusive", "exclusive", "complete"),
    "mask": ("none", "bool", "number"),
    "carry": ("none", "initial", "initial_of_lines", "final", "both"),
    "segments": ("none", "flags", "int32", "int64", "carried"),  # carried: int32, and carries of segments
    "layout": tuple(LAYOUTS),
}


LENGTHS = ("constant", "argument")  # of lines, in the kernel of a route


ENDS = ("final", "both")  # values of the axis carry with a carry-out
# What complete scans do not go with, and the strategy that reads lines as they lie in the output.
NOT_COMPLETE = {
    "segments": {*AXES["segments"][1:]},
    "carry": {*ENDS},
    "op": {"cummax", "cummin"},
    "strategy": {"transposed"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of the matrix: a value of each axis."""

    route: str
    op: str
    dtype: str
    reverse: str
    exclusive: str
    mask: str
    carry: str
    segments: str
    layout: str

    def __str__(self) -> str:
        return "-".join(getattr(self, axis) for axis in AXES if getattr(self, axis) != "none")

    @property
    def seed(self) -> int:
        """The seed of the cell's operands and of choices that vary between cells."""
        return zlib.crc32(str(self).encode())

    @property
    def row(self) -> Operator:
        """The operator's row."""
        return OPERATORS.get(self.op, oracle.AFFINE)


Given = dict[str, Any]  # the arguments of ``oracle.scan``, less operator and dimension; final: the carry-out is wanted


def is_legal(cell: Cell) -> bool:
    """Whether ScanSpec accepts the cell."""
    if cell.carry in ("initial", "initial_of_lines", "both") and not cell.row.resumes:
        return False
    if cell.exclusive == "complete" and any(
        getattr(cell, axis) in NOT_COMPLETE[axis] for axis in ("segments", "carry", "op")
    ):
        return False
    return is_legal_pair(cell.op, cell.dtype, cell.mask)


@functools.cache
def is_legal_pair(op: str, dtype: str, mask: str = "none") -> bool:
    """Whether ScanSpec accepts an operator with this dtype and mask: no other axis but the carry is ever refused."""
    try:
        plain_spec(op, dtype, mask)
    except UnsupportedRequest:
        return False
    return True


@functools.cache
def plain_spec(op: str, dtype: str, mask: str) -> ScanSpec:
    """A spec with the cell's output dtype: the default, or a legal one where the default is not."""
    row = OPERATORS.get(op, oracle.AFFINE)
    weight = {"none": None, "bool": "bool", "number": weight_dtype(dtype)}[mask]
    fields: dict[str, Any] = {"dtype": dtype, "mask": weight, "gate": dtype if row.gated else None}
    term = replace(ScanSpec(op="sum", length=1, **fields | {"gate": None}), op="sum").term
    default = default_result(row.gives, term)
    legal = default.kind in row.kinds or row.indices
    return ScanSpec(op=op, length=1, out_dtype=default.name if legal else _INSTEAD[row.kinds[-1]], **fields)


_INSTEAD = {"int": "int64", "float": "float32", "complex": "float32"}  # by the operator's last kind


def weight_dtype(dtype: str) -> str:
    """The dtype of a numeric mask for inputs of ``dtype``: a bool mask would select."""
    return "int8" if dtype == "bool" else dtype


def operands(cell: Cell) -> Given:
    """Draw the cell's operands, on which it is exact; broadcasts and layouts vary between cells."""
    route, spec = ROUTES[cell.route], plain_spec(cell.op, cell.dtype, cell.mask)
    dtype, weight = getattr(torch, cell.dtype), getattr(torch, weight_dtype(cell.dtype))
    turns = itertools.count(cell.seed % 97)

    def spread(kind: int) -> tuple[int, ...]:
        """A shape that expands to the route's: whole, of one line, of one item per line, or of one number."""
        shape = list(route.shape)
        along = {1: [d for d in range(len(shape)) if d != route.dim], 2: [route.dim], 3: range(len(shape))}
        for d in along.get(kind, []):
            shape[d] = 1
        return tuple(shape)

    def number(shape: tuple[int, ...], of: torch.dtype, seed: int) -> torch.Tensor:
        drawn = oracle.values(cell.op, shape, torch.int64 if of in oracle.UNSIGNED else of, seed=seed)
        return drawn.abs().to(of) if of in oracle.UNSIGNED else drawn

    def laid(x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` in the cell's layout, with the route's order of dimensions in memory."""
        order = route.turned or tuple(range(x.ndim))
        turned = LAYOUTS[cell.layout](x.permute(order).contiguous(), cell.seed % x.ndim)
        return turned.permute([order.index(d) for d in range(x.ndim)])

    x = laid(number(route.shape, dtype, cell.seed))
    mask = None
    if cell.mask == "bool":
        mask = oracle.selection(spread(next(turns) % 5), seed=cell.seed)
    elif cell.mask == "number":
        unsigned = weight in oracle.UNSIGNED
        mask = oracle.weights(cell.op, spread(next(turns) % 5), torch.int64 if unsigned else weight, seed=cell.seed)
        mask = mask.abs().to(weight) if unsigned else mask
    if mask is not None and mask.shape == x.shape and next(turns) % 2:
        mask = laid(mask)
    gate = oracle.gates(spread(next(turns) % 4), dtype, seed=cell.seed) if cell.row.gated else None
    lines = tuple(size for d, size in enumerate(route.shape) if d != route.dim)
    offsets = _offsets(route.shape[route.dim], cell) if cell.segments in ("int32", "int64", "carried") else None
    begins = cell.carry in ("initial", "initial_of_lines", "both")
    per_segment = offsets is not None and (begins or (cell.segments == "carried" and cell.carry in ENDS))
    if per_segment and offsets is not None:
        lines = (*route.shape[: route.dim], len(offsets) - 1, *route.shape[route.dim + 1 :])
    carry = getattr(torch, spec.carry.name)
    initial: torch.Tensor | complex | None = None
    if cell.carry == "initial":
        drawn = number((1,), carry, cell.seed)
        initial = drawn[0] if next(turns) % 2 else drawn[0].item()
    elif cell.carry in ("initial_of_lines", "both"):
        initial = number(lines, carry, cell.seed)
    return {
        "x": x,
        "mask": mask,
        "gate": gate,
        "starts": _starts(spread(next(turns) % 3), route.dim, cell.seed) if cell.segments == "flags" else None,
        "offsets": offsets,
        "per_segment": per_segment,
        "initial": initial,
        "reverse": cell.reverse == "reverse",
        "exclusive": cell.exclusive == "exclusive",
        "complete": cell.exclusive == "complete",
        "final": cell.carry in ENDS,
        "dtype": getattr(torch, spec.out_dtype),
    }


def _starts(shape: tuple[int, ...], dim: int, seed: int) -> torch.Tensor:
    """Draw head flags: frequent or rare ones, all of them, or those of the first and the last item."""
    if seed % 5 == 4:
        ends = torch.zeros(shape, dtype=torch.bool)
        ends.select(dim, 0).fill_(True)
        ends.select(dim, -1).fill_(True)
        return ends
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator) < (0.3, 0.02, 0.001, 1.0)[seed % 5]


def _offsets(length: int, cell: Cell) -> torch.Tensor:
    """Draw offsets: of many or few segments, some of them empty; of one per item; or of one between empty ones."""
    generator = torch.Generator().manual_seed(cell.seed)
    kind = cell.seed % 5
    if kind == 3:
        inside = torch.arange(1, length)
    elif kind == 4:
        inside = torch.tensor([0, 0, length, length])
    else:
        inside = torch.randint(length + 1, ((1, 4, 1 + length // 3)[kind],), generator=generator)
        inside = torch.cat([inside, inside[:2]]).sort().values
    return torch.cat([torch.tensor([0]), inside, torch.tensor([length])]).to(
        torch.int64 if cell.segments == "int64" else torch.int32
    )


def key_of(cell: Cell, given: Given) -> KernelKey:
    """The key of the kernel that serves a cell."""
    request = make_request(op=cell.op, dim=ROUTES[cell.route].dim, **given)
    spec = request.spec(torch.empty(4, device=given["x"].device))
    target = kernels.default_target() if given["x"].is_cuda else "cpu"
    key = KernelKey(spec, target, choose_variant(spec, request.line_shape.numel(), MULTIPROCESSORS))
    return any_length(key) if ROUTES[cell.route].generic else key


def strategy_for(cell: Cell, given: Given) -> str:
    """The strategy of the kernel that serves a cell."""
    return plan_kernel(key_of(cell, given)).strategy


@contextmanager
def small_gpu() -> Iterator[None]:
    """Pretend inside the block that GPUs have MULTIPROCESSORS multiprocessors, for which the shapes are chosen."""
    found = launcher._gpu
    call_cache.forget()
    launcher._gpu = lambda index: found(index)._replace(multiprocessors=MULTIPROCESSORS)  # type: ignore[assignment]
    yield
    launcher._gpu = found
    call_cache.forget()


def on_device(given: Given, device: str) -> Given:
    """Copy the operands to a device, strides included."""
    return {k: oracle.placed(v, device) if isinstance(v, torch.Tensor) else v for k, v in given.items()}


def run(cell: Cell, given: Given) -> tuple[torch.Tensor, ...]:
    """Run the cell's kernel: every output, and the carry-out if it is requested."""
    route, x, initial = ROUTES[cell.route], given["x"], given["initial"]
    if not route.generic:
        return call(cell, given)
    key = key_of(cell, given)
    spec, kernel = key.spec, obtain(key, STRICT.by("nvrtc") if x.is_cuda else STRICT)  # a tenth of nvcc's time
    assert kernel is not None
    indices = torch.empty(route.shape, dtype=torch.int64, device=x.device) if cell.row.indices else None
    if initial is not None and not isinstance(initial, torch.Tensor):
        initial = torch.tensor(initial, dtype=getattr(torch, spec.carry.name), device=x.device)
    operands = {"mask": given["mask"], "segment_starts": given["starts"], "offsets": given["offsets"]}
    found: Any = kernel(x, route.dim, gate=given["gate"], initial=initial, indices=indices, **operands)
    found = found if given["final"] else (found,)
    return (found[0], *([] if indices is None else [indices]), *found[1:])


def call(cell: Cell, given: Given) -> tuple[torch.Tensor, ...]:
    """Call the public function for the cell: every output, and the carry-out if it is requested."""
    return oracle.call(op=cell.op, dim=ROUTES[cell.route].dim, **given)


def expected(cell: Cell, given: Given) -> tuple[torch.Tensor, ...]:
    """The results of ``run`` as the oracle computes them."""
    carry = getattr(torch, plain_spec(cell.op, cell.dtype, cell.mask).carry.name)
    return oracle.expected(op=cell.op, dim=ROUTES[cell.route].dim, carry_dtype=carry, **given)


# ---- which cells are run


def settled(row: dict[str, str]) -> dict[str, str] | None:
    """The values of a cell, its strategy and its kernel's length; None if it is not legal."""
    cell = Cell(**row)
    if not is_legal(cell):
        return None
    return row | {"strategy": strategy_in(cell), "length": LENGTHS[ROUTES[cell.route].generic]}


@functools.cache
def strategy_in(cell: Cell) -> str:
    """The strategy that the planner chooses for a cell."""
    with oracle.blank():
        return strategy_for(cell, operands(cell))


def pairs() -> Iterator[Target]:
    """Combinations that some cell has to have: any two values, and more where operands might be swapped.

    A strategy meets every value of every axis, and each operator that is not commutative in both directions; so do
    kernels that take their length as an argument, and a route, one of several shapes of a strategy, meets every value
    of the smaller axes.
    """
    axes = AXES | {"strategy": STRATEGIES, "length": LENGTHS}
    del axes["route"]
    for one, other in itertools.combinations(sorted(axes), 2):
        if (one, other) == ("layout", "strategy"):
            continue  # some layouts have a strategy of their own
        yield from _legal(itertools.product(_items(one, axes[one]), _items(other, axes[other])))
    for axis in ("reverse", "exclusive", "mask", "carry", "segments", "layout"):
        yield from _sorted(_items(axis, AXES[axis]), _items("route", AXES["route"]))
    for axis in ("strategy", "length"):
        yield from _sorted(_items("op", NON_COMMUTATIVE), _items("reverse", AXES["reverse"]), _items(axis, axes[axis]))


def triples() -> Iterator[Target]:
    """All combinations of three values."""
    for three in itertools.combinations(sorted(AXES), 3):
        yield from _legal(itertools.product(*(_items(axis, AXES[axis]) for axis in three)))


def _legal(targets: Iterable[Target]) -> Iterator[Target]:
    """The targets that a cell can meet, whose operator is legal for their dtype."""
    for target in targets:
        have = dict(target)
        if have.get("exclusive") == "complete" and any(have.get(axis) in NOT_COMPLETE[axis] for axis in NOT_COMPLETE):
            continue
        if "op" not in have or "dtype" not in have or is_legal_pair(have["op"], have["dtype"]):
            yield target


def _items(axis: str, values: Any) -> list[tuple[str, str]]:
    return [(axis, value) for value in values]


def _sorted(*axes: list[tuple[str, str]]) -> Iterator[Target]:
    for items in itertools.product(*axes):
        yield tuple(sorted(items))


IMPLIED = {
    ("route", name): {"strategy": route.strategy, "length": LENGTHS[route.generic]} for name, route in ROUTES.items()
}


@functools.cache
def covering() -> Cells:
    """Cells that together have all of ``pairs``."""
    with oracle.affine_in_table():
        return cover(AXES, pairs(), settled, implied=IMPLIED)


@functools.cache
def covering_triples(most: int) -> Cells:
    """The cells of ``covering``, and further ones up to ``most`` that have as many triples as possible."""
    rows = covering().rows
    with oracle.affine_in_table():
        return cover(AXES, triples(), settled, implied=IMPLIED, given=rows, most=most)
