"""A drawn request as arguments of a call, and what it should give."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from scanops.codegen.dtypes import DTYPES, dtype_named
from scanops.codegen.operators import BUILT_IN
from tests.requests import walks
from tests.requests.recipes import Call, laid, spread_over

__all__ = ["Built"]

REFUSED = torch.float32  # stands for the result's dtype where there is none
HALVES = (torch.float16, torch.bfloat16)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)


class Built:
    """The arguments of a call, and what it should give."""

    def __init__(self, call: Call, device: str) -> None:
        self.call, self.device, r = call, device, call.recipe
        self.row = BUILT_IN[r.op]
        self.indexed, self.gated = bool(self.row.indices), self.row.gated
        self._generator = torch.Generator().manual_seed(call.seed)
        self._signed, self._special = True, False
        self._lay()
        self.dtype, self.legal = self._result()
        used = [each.dtype for each in self.reads() if each is not None] + [self.dtype, r.initial_dtype or REFUSED]
        floats = all(each.is_floating_point for each in used[:1] + used[-2:-1])
        real = all(each is None or not each.is_complex for each in used) and r.mask != "number"
        self._signed = not any(dtype in UNSIGNED for dtype in used)
        self._special = call.special and floats and real
        self._complex = self.dtype.is_complex
        self._lay()  # again, with values that every dtype of the call holds
        self.offsets = self._offsets()
        self.carry = self._carry()
        self.initial = self._initial()
        self.legal = self.legal and self._starts_legally()

    def _lay(self) -> None:
        r = self.call.recipe
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

    def reads(self) -> tuple[torch.Tensor | None, ...]:
        return (self.x, self.mask, self.gate)

    def _items(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        high: int = 3,
        odd: tuple[float, ...] = (math.nan, math.inf, -math.inf),
    ) -> torch.Tensor:
        """Small whole numbers, on which everything but logcumsumexp is exact."""
        low = -1 if self._signed and dtype != torch.bool else 0
        high = 2 if self.call.recipe.op == "prod" or dtype == torch.bool else high
        items = torch.randint(low, high, shape, generator=self._generator).to(dtype)
        if dtype.is_complex and self._signed and getattr(self, "_complex", False):
            turned = torch.rand(shape, generator=self._generator) < 0.3
            items = torch.where(turned, items * 1j, items)
        if self._special and dtype.is_floating_point:
            chosen = torch.tensor(odd)[torch.randint(len(odd), shape, generator=self._generator)]
            rare = torch.rand(shape, generator=self._generator) < 0.1
            items = torch.where(rare, chosen.to(torch.float64), items.to(torch.float64)).to(dtype)
        return items.to(self.device)

    def _result(self) -> tuple[torch.dtype, bool]:
        """The result's dtype, and whether there is one: by torch's promotion."""
        r = self.call.recipe
        try:
            term = self._term()
        except RuntimeError:  # torch has no promotion of these
            return REFUSED, False
        asked = None if self.indexed else r.dtype
        name = str(term).removeprefix("torch.")
        if name not in DTYPES:
            return REFUSED, False
        dtype = asked or getattr(torch, self.row.result(DTYPES[name]).name)
        row = dtype_named(str(dtype))
        return dtype, row.kind in self.row.kinds and row.stored

    def _term(self) -> torch.dtype:
        """What torch makes of x, times its weights, with its gate; RuntimeError where it has no promotion."""
        r = self.call.recipe

        def lent(tensor: torch.Tensor, beside: torch.dtype) -> torch.dtype:
            """A 0-d tensor lends its kind, not its width."""
            if tensor.ndim > 0 or not r.shape:
                return tensor.dtype
            try:
                return torch.result_type(torch.empty(1, dtype=beside), tensor)
            except RuntimeError:  # uint16 and bool: it is promoted with the others
                return tensor.dtype

        term = x = self.x.dtype if self.gate is None else lent(self.x, self.gate.dtype)
        if r.mask == "number" and self.mask is not None:
            term = torch.promote_types(x, lent(self.mask, x))
        return term if self.gate is None else torch.promote_types(term, lent(self.gate, x))

    def _carry(self) -> torch.dtype:
        wide = torch.float32 if self.dtype in HALVES else self.dtype
        asked = None if self.indexed else self.call.recipe.accumulate
        if asked is None or not self.legal:
            return wide
        if asked == "compensated":
            self.legal = self.row.name in ("sum", "prod") and self.dtype.is_floating_point
            return wide
        assert isinstance(asked, torch.dtype)
        alike = asked.is_complex == wide.is_complex and asked.is_floating_point == wide.is_floating_point
        self.legal = alike and not self._whole(wide) and asked.itemsize >= wide.itemsize
        return asked if self.legal else wide

    def _whole(self, dtype: torch.dtype) -> bool:
        return not (dtype.is_floating_point or dtype.is_complex)

    def _initial(self) -> Any:
        r = self.call.recipe
        lines = self.lines
        draw = partial(self._items, dtype=r.initial_dtype or self.carry, high=2)
        match r.initial:
            case "none":
                return None
            case "number":
                return (
                    bool(self._items((), torch.bool)) if self.carry == torch.bool else int(self._items((), torch.int8))
                )
            case "one for each line":
                return draw(lines)
            case "one for all lines":
                return draw(())
            case "expanded":
                return draw((1,) * len(lines)).expand(lines)
            case _:
                return laid("stepped", lines, draw)

    @property
    def lines(self) -> tuple[int, ...]:
        shape = self.call.recipe.shape
        return tuple(size for d, size in enumerate(shape) if d != self.call.recipe.dim % max(1, len(shape)))

    def _starts_legally(self) -> bool:
        if not isinstance(self.initial, torch.Tensor):
            return self.initial is None or not (self.carry in UNSIGNED and self.initial < 0)
        return torch.can_cast(self.initial.dtype, self.carry)

    def _offsets(self) -> torch.Tensor | None:
        r = self.call.recipe
        if r.segments not in ("int32", "int64"):
            return None
        length, count = self.length, int(torch.randint(0, 6, (), generator=self._generator))
        between = torch.randint(0, length + 1, (count,), generator=self._generator).sort().values
        return torch.tensor([0, *between.tolist(), length], dtype=getattr(torch, r.segments), device=self.device)

    @property
    def length(self) -> int:
        return self.call.recipe.shape[self.call.recipe.dim] if self.call.recipe.shape else 1

    def expected(self) -> tuple[torch.Tensor, ...]:
        """By the sequential walk, on a CPU."""
        r = self.call.recipe

        def whole(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.cpu().expand(r.shape)

        initial = self.initial
        if initial is not None:
            initial = initial.cpu() if isinstance(initial, torch.Tensor) else torch.tensor(initial)
            initial = initial.to(self.carry).expand(self.lines)
        x = whole(self.x)
        assert x is not None
        return walks.outputs(
            walks.Asked(
                op=r.op,
                dim=r.dim,
                x=x,
                dtype=self.dtype,
                carry=self.carry,
                keep=whole(self.mask) if r.mask == "bool" else None,
                weights=whole(self.mask) if r.mask == "number" else None,
                gate=whole(self.gate),
                starts=whole(self.starts),
                offsets=None if self.offsets is None else self.offsets.tolist(),
                initial=initial,
                reverse=r.reverse,
                exclusive=r.exclusive,
                final=r.final,
            )
        )

    def options(self) -> dict[str, Any]:
        """Right ones."""
        r = self.call.recipe
        found: dict[str, Any] = {
            "mask": self.mask,
            "reverse": r.reverse,
            "exclusive": r.exclusive,
            "initial": self.initial,
            "return_final": r.final,
            "segment_starts": self.starts,
            "offsets": self.offsets,
        }
        return found if self.indexed else found | {"dtype": r.dtype, "accumulate": r.accumulate}

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Those of the function of this operator, one of them wrong if that is drawn."""
        r, wrong = self.call.recipe, self.call.wrong
        call: dict[str, Any] = self.options() | {"out": self._out(), "op": r.op, "x": self.x, "dim": r.dim}
        call |= {"gate": self.gate} if self.gated else {}
        if wrong is not None:
            change = CHANGES[wrong](self)
            call |= {name: value for name, value in change.items() if name in call}
        op, x, dim = call.pop("op"), call.pop("x"), call.pop("dim")
        if self.gated:
            return (call.pop("gate"), x, dim), call
        if self.indexed:
            if isinstance(call["out"], torch.Tensor):
                call["out"] = (call["out"], torch.empty(r.shape, dtype=torch.int64, device=self.device))
            return (x, dim), call
        return (x, op, dim), call

    def _out(self) -> Any:
        kind, dtype, shape = self.call.out, self.dtype, self.call.recipe.shape
        if kind == "none":
            return None
        if kind == "alias" and self.x.dtype == dtype and self.x.shape == shape and self.call.recipe.view != "expanded":
            return self.x if self.x.ndim == 0 or 0 not in self.x.stride() else None
        view = "stepped" if kind == "stepped" else "dense"
        return laid(view, shape, lambda inner: torch.zeros(inner, dtype=dtype, device=self.device))

    def new(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.ones(shape, dtype=dtype or self.dtype, device=self.device)

    @property
    def elsewhere(self) -> str:
        return "meta" if self.device == "cpu" else "cpu"

    def run_of(self, *offsets: int) -> dict[str, Any]:
        return {"segment_starts": None, "offsets": torch.tensor(offsets, dtype=torch.int64, device=self.device)}


def _overlapping(built: Built) -> dict[str, Any]:
    count, shape = math.prod(built.call.recipe.shape), built.call.recipe.shape
    memory = built.new(count + 8)
    return {"x": memory[:count].view(shape), "out": memory[1 : count + 1].view(shape), "dtype": None}


def _over_carries(built: Built) -> dict[str, Any]:
    count, shape = math.prod(built.call.recipe.shape), built.call.recipe.shape
    memory = built.new(count + 1)
    return {"out": memory[:count].view(shape), "initial": memory[:1].view(()), "dtype": None}


CHANGES: dict[str, Callable[[Built], dict[str, Any]]] = {
    "dim too large": lambda b: {"dim": max(1, len(b.call.recipe.shape))},
    "dim too small": lambda b: {"dim": -max(1, len(b.call.recipe.shape)) - 1},
    "dim a float": lambda b: {"dim": 0.0},
    "dim a bool": lambda b: {"dim": True},
    "op unknown": lambda b: {"op": "median"},
    "op no string": lambda b: {"op": 3},
    "mask of another shape": lambda b: {"mask": b.new(*b.call.recipe.shape, 3, dtype=torch.bool)},
    "mask a list": lambda b: {"mask": [True]},
    "mask elsewhere": lambda b: {"mask": torch.ones(b.call.recipe.shape, dtype=torch.bool, device=b.elsewhere)},
    "gate of another shape": lambda b: {"gate": b.new(*b.call.recipe.shape, 2)},
    "gate a list": lambda b: {"gate": [1.0]},
    "gate elsewhere": lambda b: {"gate": torch.ones(b.call.recipe.shape, device=b.elsewhere)},
    "dtype a string": lambda b: {"dtype": "float32"} if not b.indexed else {"reverse": "yes"},
    "dtype complex": lambda b: {"dtype": torch.complex64},
    "dtype of 8 bits": lambda b: {"dtype": torch.float8_e5m2},
    "x complex": lambda b: {"x": b.x.to(torch.complex64)},
    "x sparse": lambda b: {"x": torch.ones(b.call.recipe.shape or (1,)).to_sparse()},
    "x a list": lambda b: {"x": [1.0]},
    "out of another shape": lambda b: {"out": b.new(*b.call.recipe.shape, 2)},
    "out of another dtype": lambda b: {
        "out": b.new(*b.call.recipe.shape, dtype=torch.float64 if b.dtype == torch.int16 else torch.int16),
        "dtype": b.dtype,
    },
    "out elsewhere": lambda b: {"out": torch.empty(b.call.recipe.shape, dtype=b.dtype, device=b.elsewhere)},
    "out overlaps": _overlapping,
    "out overlaps what lines begin with": _over_carries,
    "out is the mask": lambda b: (lambda out: {"mask": out, "out": out})(b.new(*b.call.recipe.shape)),
    "out expanded": lambda b: {"out": b.new(1).expand(b.call.recipe.shape) if b.call.recipe.shape else b.new(8)},
    "out needs a gradient": lambda b: {
        "out": torch.empty(b.call.recipe.shape, device=b.device, requires_grad=True)
    },
    "reverse a number": lambda b: {"reverse": 1},
    "exclusive None": lambda b: {"exclusive": None},
    "return_final a number": lambda b: {"return_final": 0},
    "initial of another shape": lambda b: {"initial": b.new(*b.lines, 3, dtype=b.carry)},
    "initial a list": lambda b: {"initial": [0]},
    "initial complex": lambda b: {"initial": 1j if not b.carry.is_complex else "1j"},
    "initial elsewhere": lambda b: {"initial": torch.ones(b.lines, dtype=b.carry, device=b.elsewhere)},
    "initial out of bounds": lambda b: {"initial": 10**400},
    "starts of another shape": lambda b: {
        "segment_starts": b.new(*b.call.recipe.shape, 2, dtype=torch.bool), "offsets": None
    },
    "starts of numbers": lambda b: {"segment_starts": b.new(*b.call.recipe.shape, dtype=torch.uint8), "offsets": None},
    "starts a list": lambda b: {"segment_starts": [True], "offsets": None},
    "starts elsewhere": lambda b: {
        "segment_starts": torch.ones(b.call.recipe.shape, dtype=torch.bool, device=b.elsewhere), "offsets": None
    },
    "segments told twice": lambda b: b.run_of(0, b.length) | {"segment_starts": b.new(1, dtype=torch.bool)},
    "offsets a list": lambda b: {"offsets": [0, b.length], "segment_starts": None},
    "offsets of floats": lambda b: {"offsets": torch.tensor([0.0, b.length]), "segment_starts": None},
    "offsets of two dimensions": lambda b: {"offsets": torch.tensor([[0, b.length]]), "segment_starts": None},
    "offsets too few": lambda b: b.run_of(*([0] if b.length == 0 else [b.length])),
    "offsets elsewhere": lambda b: {
        "offsets": torch.tensor([0, b.length], device=b.elsewhere), "segment_starts": None
    },
    "offsets from 1": lambda b: b.run_of(1, max(1, b.length)),
    "offsets too short": lambda b: b.run_of(0, b.length - 1),
    "offsets too long": lambda b: b.run_of(0, b.length + 1),
    "offsets below 0": lambda b: b.run_of(0, -1, b.length),
    "offsets falling": lambda b: b.run_of(0, b.length + 1, b.length),
    "accumulate a number": lambda b: {"accumulate": 64} if not b.indexed else {"reverse": 2},
    "accumulate a word": lambda b: {"accumulate": "carefully"} if not b.indexed else {"reverse": "no"},
    "accumulate narrow": lambda b: {"accumulate": torch.float16} if not b.indexed else {"reverse": None},
}  # fmt: skip
