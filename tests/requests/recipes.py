"""Whole requests, drawn: what a kernel is specialised for, the layout of data, and the data."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import make_dataclass
from functools import partial
from typing import Any

import torch

from scanops.codegen.dtypes import DTYPES, default_result, dtype_named
from scanops.codegen.operators import OPERATORS
from scanops.errors import ScanopsError
from tests.numbers import oracle

OPS = tuple(OPERATORS)
NUMBERS = tuple(getattr(torch, name) for name in DTYPES)
SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (0,),
    (1,),
    (7,),
    (33,),
    (3, 5),
    (1, 64),
    (4, 31),
    (65, 2),
    (3, 0),
    (0, 4),
    (2, 1, 9),
    (2, 33, 3),
    (3, 4, 0),
    (1, 1, 1),
    (2, 130, 5),
    (2, 3, 4, 5),
    (1, 2, 1, 40),
    (2, 4, 3, 3),
    (1, 300),
    (2, 2049),
    (700, 3),
    (2, 1, 2, 9, 2, 1, 2),
)
SPREADS = ("full", "broadcast", "of lower rank", "0-d", "expanded", "stepped", "permuted", "channels_last")

AXES: dict[str, Sequence[Any]] = {
    "view": ("dense", "permuted", "stepped", "offset", "expanded", "channels_last"),
    "mask": ("none", "none", "bool", "number"),
    "spread": SPREADS,
    "gate_spread": SPREADS,
    "starts_spread": SPREADS,
    "wide_gate": (False, False, True),  # the gate has the whole shape, and what is added is broadcast
    "initial": ("none", "none", "number", "one for each line", "one for all lines", "expanded", "stepped"),
    "initial_dtype": (*[None] * len(NUMBERS), *NUMBERS),  # None: the one that lines go on in
    "segments": ("none", "none", "flags", "int32", "int64"),
    "accumulate": (*[None] * 6, "compensated", torch.float32, torch.float64, torch.complex128),
    **dict.fromkeys(("final", "reverse", "exclusive"), (False, True)),
}
# "special": there are NaN and infinities among the items
FIELDS = ("op", "shape", "dim", "x_dtype", "mask_dtype", "gate_dtype", "dtype", *AXES, "seed", "special", "out")
Call = make_dataclass("Call", FIELDS, frozen=True, kw_only=True)


def drawn(pick: random.Random, kernels: random.Random | None = None) -> Any:
    """A call; what its kernel is specialised for is drawn by ``kernels``, dtypes that suit the operator often."""
    data = {"special": pick.random() < 0.5, "out": pick.choice(("none", "none", "none", "fresh", "stepped", "alias"))}
    data["seed"], choose = pick.randrange(2**16), (kernels or pick).choice
    shape, op = choose(SHAPES), choose((*OPS, "linear", "linear"))
    rank, kinds = max(1, len(shape)), OPERATORS[op].kinds
    likely = [dtype for dtype in NUMBERS if dtype_named(str(dtype)).kind in kinds]
    x_dtype = choose((*NUMBERS, *likely * 3))
    return Call(
        op=op,
        x_dtype=x_dtype,
        shape=shape,
        dim=choose(range(-rank, rank)),
        mask_dtype=choose(((x_dtype, torch.float32) if x_dtype != torch.bool else ()) + NUMBERS[1:]),
        gate_dtype=choose((*[x_dtype] * len(NUMBERS), torch.float32, *NUMBERS)),
        dtype=choose((*[None] * len(NUMBERS), *NUMBERS, *likely)),
        **{axis: choose(values) for axis, values in AXES.items()},
        **data,
    )


def laid(view: str, shape: tuple[int, ...], draw: Callable[[tuple[int, ...]], torch.Tensor]) -> torch.Tensor:
    """A tensor of that shape, lying as the view says."""
    if view == "permuted" and len(shape) > 1:
        return draw(shape[::-1]).permute(*reversed(range(len(shape))))
    if view == "stepped" and shape:
        return draw((*shape[:-1], 2 * shape[-1]))[..., ::2]
    if view == "offset" and shape:
        return draw((math.prod(shape) + 1,))[1:].reshape(shape)
    if view == "expanded" and shape and shape[0]:
        return draw((1, *shape[1:])).expand(shape)
    if view == "channels_last" and len(shape) == 4:
        return draw(shape).contiguous(memory_format=torch.channels_last)
    return draw(shape)


def spread_over(spread: str, shape: tuple[int, ...], draw: Callable[[tuple[int, ...]], torch.Tensor]) -> torch.Tensor:
    """A tensor that broadcasts to that shape."""
    if spread == "broadcast" and shape:
        return draw((1, *shape[1:]))
    if spread == "of lower rank":
        return draw(shape[1:])
    if spread == "0-d":
        return draw(())
    if spread == "expanded" and shape:
        return draw((*shape[:-1], 1)).expand(shape)
    return laid(spread, shape, draw)


# ---- a call with its operands, and the check that it gives the oracle's results, or a typed error

REFUSED = torch.float32  # stands for the result's dtype where there is none
HALVES = (torch.float16, torch.bfloat16)


class Built:
    """The arguments of a call, and what it should give."""

    def __init__(self, call: Any, device: str) -> None:
        self.call, self.device, r = call, device, call
        self.row, self.shape = OPERATORS[r.op], r.shape
        self.indexed, self.gated = bool(self.row.indices), self.row.gated
        self.length = r.shape[r.dim] if r.shape else 1
        self.lines = tuple(size for d, size in enumerate(r.shape) if d != r.dim % max(1, len(r.shape)))
        self._generator = torch.Generator().manual_seed(call.seed)
        self._signed, self._special, self._complex = True, False, False
        self._lay()
        self.dtype, self.legal = self._result()
        reads = [each.dtype for each in (self.x, self.mask, self.gate) if each is not None]
        used = [*reads, self.dtype, r.initial_dtype or REFUSED]
        real = not any(each.is_complex for each in used) and r.mask != "number"
        self._signed = not any(dtype in oracle.UNSIGNED for dtype in used)
        self._special = call.special and real and self.x.is_floating_point() and self.dtype.is_floating_point
        self._complex = self.dtype.is_complex
        self._lay()  # again, with values that every dtype of the call holds
        self.offsets = self._offsets()
        self.carry = self._carry()
        self.initial = self._initial()
        carried = self.offsets is not None and self.initial is not None and bool(self.shape)
        self.per_segment = carried and (not isinstance(self.initial, torch.Tensor) or self.initial.ndim == 0)
        self.legal &= not carried or self.per_segment
        if isinstance(self.initial, torch.Tensor):
            self.legal &= torch.can_cast(self.initial.dtype, self.carry)
        elif self.initial is not None:
            self.legal &= self.carry not in oracle.UNSIGNED or self.initial >= 0

    def _lay(self) -> None:
        r = self.call
        full = partial(laid, r.view, r.shape)
        self.gate: torch.Tensor | None = None
        items = partial(self._items, dtype=r.x_dtype)
        if self.gated:
            gates = partial(self._items, dtype=r.gate_dtype, high=2, odd=(math.nan,))
            self.gate = full(gates) if r.wide_gate else spread_over(r.gate_spread, r.shape, gates)
            self.x = spread_over(r.gate_spread, r.shape, items) if r.wide_gate else full(items)
        else:
            self.x = full(items)
        self.mask: torch.Tensor | None = None
        if r.mask != "none":
            dtype = torch.bool if r.mask == "bool" else r.mask_dtype
            self.mask = spread_over(r.spread, r.shape, partial(self._items, dtype=dtype))
        self.starts: torch.Tensor | None = None
        if r.segments == "flags":
            self.starts = spread_over(r.starts_spread, r.shape, partial(self._items, dtype=torch.bool))

    def _items(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        high: int = 3,
        odd: tuple[float, ...] = (math.nan, math.inf, -math.inf),
    ) -> torch.Tensor:
        """Small whole numbers, on which everything but logcumsumexp is exact."""
        low = -1 if self._signed and dtype != torch.bool else 0
        high = 2 if self.call.op == "prod" or dtype == torch.bool else high
        items = torch.randint(low, high, shape, generator=self._generator).to(dtype)
        if dtype.is_complex and self._signed and self._complex:
            turned = torch.rand(shape, generator=self._generator) < 0.3
            items = torch.where(turned, items * 1j, items)
        if self._special and dtype.is_floating_point:
            chosen = torch.tensor(odd)[torch.randint(len(odd), shape, generator=self._generator)]
            rare = torch.rand(shape, generator=self._generator) < 0.1
            items = torch.where(rare, chosen.to(torch.float64), items.to(torch.float64)).to(dtype)
        return items.to(self.device)

    def _result(self) -> tuple[torch.dtype, bool]:
        """The result's dtype, and whether there is one: by torch's promotion."""
        r = self.call
        try:
            term = self._term()
        except RuntimeError:  # torch has no promotion of these
            return REFUSED, False
        asked = None if self.indexed else r.dtype
        name = str(term).removeprefix("torch.")
        if name not in DTYPES:
            return REFUSED, False
        dtype = asked or getattr(torch, default_result(self.row.gives, DTYPES[name]).name)
        row = dtype_named(str(dtype))
        counts = r.mask == "number" and dtype_named(str(r.mask_dtype)).kind == "int" and r.op != "sum"
        return dtype, row.kind in self.row.kinds and row.stored and not counts

    def _term(self) -> torch.dtype:
        """What torch makes of x, times its weights, with its gate; RuntimeError where it has no promotion."""
        weights = self.mask if self.call.mask == "number" else None
        operands = [each for each in (self.x, weights, self.gate) if each is not None]
        alone = [each for each in operands if each.ndim == 0 < len(self.shape)]  # which lend their kind alone
        whole = [each for each in operands if each.ndim or not self.shape]
        term = functools.reduce(torch.promote_types, [each.dtype for each in whole])
        for each in alone:
            beside, term = term, torch.result_type(torch.empty(1, dtype=term), each)
            if beside.itemsize > 1 and term.itemsize > 1:  # uint32 and complex64
                torch.promote_types(beside, term)
        return term

    def _carry(self) -> torch.dtype:
        wide = torch.float32 if self.dtype in HALVES else self.dtype
        asked = None if self.indexed else self.call.accumulate
        if asked is None or not self.legal:
            return wide
        if asked == "compensated":
            self.legal = self.row.name in ("sum", "prod") and self.dtype.is_floating_point
            return wide
        assert isinstance(asked, torch.dtype)
        alike = asked.is_complex == wide.is_complex and asked.is_floating_point == wide.is_floating_point
        inexact = wide.is_floating_point or wide.is_complex
        self.legal = alike and inexact and asked.itemsize >= wide.itemsize
        return asked if self.legal else wide

    def _initial(self) -> Any:
        r = self.call
        draw = partial(self._items, dtype=r.initial_dtype or self.carry, high=2)
        number = bool if self.carry == torch.bool else int
        kinds: dict[str, Callable[[], Any]] = {
            "none": lambda: None,
            "number": lambda: number(self._items((), torch.bool if number is bool else torch.int8)),
            "one for each line": lambda: draw(self.lines),
            "one for all lines": lambda: draw(()),
            "expanded": lambda: draw((1,) * len(self.lines)).expand(self.lines),
            "stepped": lambda: laid("stepped", self.lines, draw),
        }
        return kinds[r.initial]()

    def _offsets(self) -> torch.Tensor | None:
        r = self.call
        if r.segments not in ("int32", "int64"):
            return None
        count = int(torch.randint(0, 6, (), generator=self._generator))
        between = torch.randint(0, self.length + 1, (count,), generator=self._generator).sort().values
        return torch.tensor([0, *between.tolist(), self.length], dtype=getattr(torch, r.segments), device=self.device)

    def expected(self) -> tuple[torch.Tensor, ...]:
        """By the oracle, on a CPU."""
        r = self.call

        def whole(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.cpu().expand(r.shape).reshape(r.shape or (1,))

        x, initial = whole(self.x), self.initial
        assert x is not None
        if initial is not None:
            initial = torch.as_tensor(initial).cpu().to(self.carry)
        found = oracle.expected(
            x=x,
            op=r.op,
            dim=r.dim,
            final=r.final,
            **{role: whole(getattr(self, role)) for role in ("mask", "gate", "starts")},
            offsets=None if self.offsets is None else self.offsets.cpu(),
            initial=initial,
            reverse=r.reverse,
            exclusive=r.exclusive,
            dtype=self.dtype,
            carry_dtype=self.carry,
            per_segment=self.per_segment,
        )
        if self.per_segment and r.final:  # of the line: that of the segment scanned last
            assert self.offsets is not None
            filled = [
                n for n, (begin, end) in enumerate(itertools.pairwise(self.offsets.tolist())) if begin < end or not n
            ]
            found = (*found[:-1], found[-1].select(r.dim, 0 if r.reverse else filled[-1]))
        return tuple(y if r.final and y is found[-1] else y.reshape(r.shape) for y in found)

    def options(self) -> dict[str, Any]:
        """The keywords of a right call."""
        r = self.call
        found = {name: getattr(self, name) for name in ("mask", "initial", "offsets")} | {"segment_starts": self.starts}
        names = ("reverse", "exclusive", "final", *(() if self.indexed else ("dtype", "accumulate")))
        return found | {name: getattr(r, name) for name in names}

    def out(self) -> torch.Tensor | None:
        kind, dtype, shape = self.call.out, self.dtype, self.call.shape
        if kind == "none":
            return None
        if kind == "alias" and self.x.dtype == dtype and self.x.shape == shape and self.call.view != "expanded":
            return self.x if self.x.ndim == 0 or 0 not in self.x.stride() else None
        view = "stepped" if kind == "stepped" else "dense"
        return laid(view, shape, lambda inner: torch.zeros(inner, dtype=dtype, device=self.device))


def arguments(built: Built) -> dict[str, Any]:
    """Those of ``oracle.call`` by name."""
    r = built.call
    call: dict[str, Any] = built.options() | {"out": built.out(), "x": built.x, "dim": r.dim}
    call |= {"gate": built.gate} if built.gated else {}
    if built.indexed and isinstance(call["out"], torch.Tensor):
        call["out"] = (call["out"], torch.empty(r.shape, dtype=torch.int64, device=built.device))
    return call


def holds(call: Any, device: str, note: Callable[[str], object] = str) -> None:
    """Run the call, described to ``note``: it gives the oracle's results, or a typed error with four parts."""
    built, op = Built(call, device), call.op
    given = arguments(built)
    expected = built.expected() if built.legal else None
    out = given["out"]
    outs = out if isinstance(out, tuple) else (out,)
    kept = None if any(out is built.x for out in outs) else built.x.clone()
    note(f"{op} of x={built.x.shape} {built.x.dtype} {built.x.stride()}, to {built.dtype}, initial {built.initial}")
    try:
        results = oracle.call(op=op, **given)
    except ScanopsError as error:
        assert not built.legal, f"refused: {error}"
        assert all(str(part).strip() for part in (error.asked, error.allowed, error.value, error.hint))
        return
    assert kept is None or torch.equal(bytes_of(kept), bytes_of(built.x)), "the input has changed"
    assert expected is not None, "a dtype that is not legal was scanned"
    assert len(results) == len(expected)
    for y, wanted, out in itertools.zip_longest(results, expected, outs):
        assert y.dtype == wanted.dtype and y.shape == wanted.shape
        assert y is out if out is not None else y.is_contiguous()
        oracle.agree(op, y.cpu(), wanted)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)
