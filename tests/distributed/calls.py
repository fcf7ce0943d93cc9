"""Calls with a sharded dimension: every operator, variant and layout, random ones, and their check by one process."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import scanops
import scanops.distributed
from scanops.errors import ScanopsError

sd: Any = scanops.distributed
EXTREMES = ("cummax", "cummin")
FLOATS = ("sum", "prod", "max", "min", "logcumsumexp", "linear", *EXTREMES)
INTEGERS = (
    "sum",
    "max",
    "bitwise_xor",
    "bitwise_and",
    "bitwise_or",
    "logical_or",
    "logical_and",
    "cummax",
)
OPERATORS = (*((op, False) for op in FLOATS), *((op, True) for op in INTEGERS))  # and whether x has integers
VARIANTS = (
    "",
    "return_final",
    "reverse",
    "exclusive initial",
    "reverse exclusive return_final",
    "mask initial return_final",
    "mask reverse",
    "starts initial return_final",
    "starts reverse exclusive initial return_final",
    "offsets reverse",
    "offsets return_final",
    "mask starts exclusive",
    "weights broadcast initial return_final",
)
LAYOUTS = ("chunk", "even", "random", "head_tail")
WORLDS = (1, 2, 3, 4, 8)
REFUSED = ("complete", "chunk", "out")  # keywords of one GPU that sharded scans do not have
SHARDED = ("x", "gate", "mask", "segment_starts")
Given = dict[str, Any]


class Request(NamedTuple):
    """One call on the whole dimension, and where it is cut."""

    op: str
    dim: int
    table: tuple[tuple[tuple[int, int], ...], ...]  # the spans (start, stop) of each rank
    given: Given  # tensors and keywords
    how: Given  # keywords of scanops.distributed alone
    twice: bool  # whether second derivatives are taken

    @property
    def exact(self) -> bool:
        """Whether sharded results have the bits of one process."""
        return not self.given["x"].is_floating_point() or self.op in ("max", "min", *EXTREMES)

    def told(self) -> str:
        """Return the call in one line."""
        given = {k: list(v.shape) if k in SHARDED and v.numel() > 40 else v for k, v in self.given.items()}
        return " ".join(f"{self.op} along {self.dim} {given} {self.how or self.table} {self.twice}".split())

    def places(self, rank: int) -> Tensor:
        """The items of a rank, on the device of x."""
        device = self.given["x"].device
        return torch.cat([torch.arange(start, stop, device=device) for start, stop in self.table[rank]])

    def part(self, name: str, each: Any, rank: int) -> Any:
        """A rank's part of an operand, which broadcasts to x's shape."""
        dim = self.dim % self.given["x"].ndim - self.given["x"].ndim
        if name not in SHARDED or each.ndim < -dim or (name != "x" and each.shape[dim] == 1):
            return each
        return each.index_select(dim, self.places(rank))

    def local(self, rank: int) -> Given:
        """Return the tensors and keywords that a rank passes."""
        given = {name: self.part(name, each, rank) for name, each in self.given.items()}
        return given | {"out": torch.empty_like(given["x"])} if "out" in given else given


def every_request() -> Iterator[Request]:
    """Every operator in every variant and layout, for each number of ranks."""
    for seed, (layout, words, operator) in enumerate(itertools.product(LAYOUTS, VARIANTS, OPERATORS)):
        for ranks in WORLDS:  # in turn: a rank must not wait for long until a call needs it
            yield small_request(seed, ranks, layout, words, operator)


def small_request(seed: int, ranks: int, layout: str, words: str, operator: tuple[Any, bool]) -> Request:
    """Return a call of three lines, the same for any number of ranks."""
    length = 16 if layout == "head_tail" else 11
    return request_of(random.Random(seed), *operator, layout, words.split(), ranks, (3, length), 1)


def random_request(draw: random.Random) -> Request:
    """A call of any keywords, shape and layout: some are no legal call, of one process or of several."""
    op, whole = draw.choice(OPERATORS)
    known = ["reverse", "exclusive", "return_final", "initial", "mask", "weights", "starts", "offsets", "number"]
    words = [word for word in (*known, "broadcast") if draw.random() < 0.25]
    words += [word for word in (*REFUSED, "outside", "nowhere") if draw.random() < 0.01]
    words += [word for word in ("narrow", "converted", "shared") if draw.random() < 0.3]
    layout, shape = draw.choice(LAYOUTS), [draw.randint(0, 3) for _ in range(draw.randint(1, 3))]
    dim = draw.randrange(-len(shape), len(shape))
    if draw.random() < 0.05:  # states of more bytes than the first collective holds
        shape = [each * 17 if each != shape[dim] else each for each in (*shape, 3)]
        dim = draw.randrange(-len(shape), len(shape))
    shape[dim] = draw.randint(0, 2) * 16 if layout == "head_tail" else draw.randint(0, 20)
    return request_of(draw, op, whole, layout, words, draw.choice(WORLDS), tuple(shape), dim)


def request_of(
    draw: random.Random,
    op: Any,
    whole: bool,
    layout: str,
    words: list[str],
    ranks: int,
    shape: tuple[int, ...],
    dim: int,
) -> Request:
    """Return a call of random tensors with the keywords that ``words`` name."""
    if "offsets" in words:  # beside which sharded scans take no carry-in
        words = [word for word in words if word not in ("initial", "number")]
    make = torch.Generator().manual_seed(draw.randrange(2**31))
    floats = partial(torch.rand, dtype=torch.float64, generator=make)
    x = torch.randint(0, 64, shape, generator=make) | 8 if whole else floats(shape) * 3 - 1
    x = x.round() if op in ("max", "min", *EXTREMES) and not whole else x  # ties
    length, lines = shape[dim], tuple(size for d, size in enumerate(shape) if d != dim % len(shape))
    first = torch.randint(0, 64, lines, generator=make) | 8 if whole else floats(lines)
    ends, twice = sorted(draw.choices(range(length + 1), k=4)), draw.random() < 0.1
    all_of: Given = {
        "mask": ("mask", floats(shape) < 0.6),
        # Integer masks multiply, which sums alone allow; a bool mask selects.
        "weights": ("mask", (x % 2 if op == "sum" else x % 2 == 1) if whole else floats(shape)),
        "starts": ("segment_starts", floats(shape) < 0.2),
        "offsets": ("offsets", torch.tensor([0, *ends, length])),
        "outside": ("offsets", torch.tensor([0, length + 1])),
        "initial": ("initial", (first > 20) if op in ("logical_or", "logical_and") else first),
        "number": ("initial", 1),
        "chunk": ("chunk", 4),
        "out": ("out", torch.empty_like(x)),
        "nowhere": ("nowhere", 1),
        **{name: (name, True) for name in ("reverse", "exclusive", "return_final", "complete")},
    }
    if "shared" in words and len(lines) > 1 and "initial" in words:  # the same carry-in for several lines
        all_of["initial"] = ("initial", all_of["initial"][1][:1])
    given = {"x": x, **dict(all_of[word] for word in words if word in all_of)}
    if op == "linear":
        of_lines = [1 if d == dim % len(shape) else size for d, size in enumerate(shape)]
        given["gate"] = floats(of_lines if "broadcast" in words else shape) * 1.5
    given = _in_dtypes(draw, op, given, words)
    size = -(-length // ranks) if layout == "chunk" else length / ranks
    cuts = [min(int(r * size), length) for r in range(1, ranks)]
    if layout == "random":
        cuts = sorted(draw.choices(range(length + 1), k=ranks - 1))
    if layout == "head_tail":
        half = length // (2 * ranks)
        spans = [(k * half, k * half + half) for k in range(2 * ranks)]
        table = tuple((spans[r], spans[-1 - r]) for r in range(ranks))
        if half * 2 * ranks == length:
            return Request(op, dim, table, given, {"spans": "head_tail"}, twice)
    spans = list(itertools.pairwise((0, *cuts, length)))
    return Request(op, dim, tuple((span,) for span in spans), given, {}, twice)


NARROW = (torch.float32, torch.bfloat16, torch.float16)


def _in_dtypes(draw: random.Random, op: Any, given: Given, words: list[str]) -> Given:
    """Return the tensors in a narrower dtype, with results in another one, as ``words`` ask for it."""
    x = given["x"]
    if "narrow" in words:  # powers of ten that float16 does not hold would be a matter of rounding
        dtype = draw.choice(NARROW[:2] if op in ("prod", "linear") else NARROW)
        dtype = dtype if x.is_floating_point() else torch.int32
        given = {k: v.to(dtype) if isinstance(v, Tensor) and v.dtype == x.dtype else v for k, v in given.items()}
        given |= {"offsets": given["offsets"].long()} if "offsets" in given else {}
        if isinstance(given.get("initial"), Tensor) and dtype.itemsize == 2:
            given["initial"] = given["initial"].float()
    if "converted" in words and x.is_floating_point() and op not in EXTREMES and "out" not in given:
        given["dtype"] = draw.choice((torch.float32, torch.float64))
    return given


def _is_close(mine: Tensor, part: Tensor, given: Given, narrower: float) -> bool:
    """Whether results are equal to within the rounding of the narrowest dtype of a call."""
    dtypes = [given["x"].dtype, mine.dtype, given.get("dtype", mine.dtype)]
    worst = max(torch.finfo(each).eps for each in dtypes if each.is_floating_point)
    limit = max(1e-7, narrower * worst)
    mine, part = mine.detach().double(), part.detach().double()
    finite = part[part.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(mine, part, limit, max(limit * min(scale, 1e30), 1e-7), equal_nan=True)


def answer(module: Any, request: Request, given: Given, at: Tensor, **more: Any) -> Any:
    """Results, gradients and second derivatives, or the name of the typed error.

    ``at`` is where the items are in the line: the loss weighs results by it, so that ranks' losses add up to the whole.
    """
    floating = [k for k, v in given.items() if isinstance(v, Tensor) and v.is_floating_point() and k != "out"]
    given = {k: v.clone().requires_grad_() if k in floating else v for k, v in given.items()}
    leaves, dim = [given[k] for k in floating], request.dim
    rest = {k: v for k, v in given.items() if k not in ("x", "gate")} | more
    try:
        if request.op == "linear":
            found = _flat(module.linear_scan(given["gate"], given["x"], dim, **rest))
        elif request.op in EXTREMES:
            found = _flat(getattr(module, request.op)(given["x"], dim, **rest))
        else:
            found = _flat(module.scan(given["x"], request.op, dim, **rest))
    except (ScanopsError, TypeError) as refused:  # TypeError: an unknown keyword
        return type(refused).__name__
    results = [each.detach() for each in found]
    if "complete" in given or not leaves or not any(each.requires_grad for each in found):
        return results, [], []
    shape = [-1 if d == dim % given["x"].ndim else 1 for d in range(given["x"].ndim)]
    share = len(at) / max(1, request.given["x"].shape[dim])
    y, *final = (each for each in found if each.requires_grad)
    loss = (y * torch.cos(at.to(y.dtype)).reshape(shape)).sum() + sum((each * share).sum() for each in final)
    grads = torch.autograd.grad(loss, leaves, create_graph=request.twice, materialize_grads=True)
    second: Any = ()
    if request.twice:
        turned = torch.stack([(g * (1 + torch.cos(leaf))).sum() for g, leaf in zip(grads, leaves, strict=True)]).sum()
        second = torch.autograd.grad(turned, leaves, materialize_grads=True) if turned.requires_grad else ()
    return results, dict(zip(floating, grads, strict=True)), dict(zip(floating, second, strict=False))


def difference(request: Request, found: Any, wanted: Any, rank: int, summed: Callable[[Tensor], Tensor]) -> str:
    """Return how a rank's answer differs from its part of that of one process, or nothing; ``summed`` adds over ranks.

    A typed error is right where one process raises one as well, or has a keyword that sharded scans refuse.
    """
    if isinstance(found, str) or isinstance(wanted, str):
        refused = isinstance(wanted, str) or any(request.given.get(name) is not None for name in REFUSED)
        kinds = [each if isinstance(each, str) else "results" for each in (found, wanted)]
        return "" if isinstance(found, str) and refused else "{} in place of {}".format(*kinds)
    said: list[str] = []
    for kind, these, those in zip(("gradient", "second derivative"), found[1:], wanted[1:], strict=True):
        for name, whole in those.items() if those else ():
            part, mine = request.part(name, whole, rank), these[name].detach().contiguous()
            mine = summed(mine) if part is whole else mine
            if not _is_close(mine, part, request.given, 200.0):
                said.append(f"{kind} of {name}")
    for k, (mine, whole) in enumerate(zip(found[0], wanted[0], strict=True)):
        part = request.part("x" if whole.shape == request.given["x"].shape else "final", whole, rank)
        same = torch.equal(mine, part) if request.exact else _is_close(mine, part, request.given, 20.0)
        if not same or mine.dtype != part.dtype:
            said.append(f"result {k}")
    return ", ".join(said)


def _flat(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else [each for part in found for each in _flat(part)]
