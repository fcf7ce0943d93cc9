"""Drawn requests: their operands, and the check that one gives the oracle's results, or a typed error."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from scanops.codegen.dtypes import DTYPES, default_result, dtype_named
from scanops.codegen.operators import BUILT_IN
from scanops.errors import ScanopsError
from tests.numbers import oracle
from tests.requests.recipes import OUTS, Call, laid, recipe, spread_over

REFUSED = torch.float32  # stands for the result's dtype where there is none
HALVES = (torch.float16, torch.bfloat16)


class Built:
    """The arguments of a call, and what it should give."""

    def __init__(self, call: Call, device: str) -> None:
        self.call, self.device, r = call, device, call.recipe
        self.row, self.shape = BUILT_IN[r.op], r.shape
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
        if isinstance(self.initial, torch.Tensor):
            self.legal &= torch.can_cast(self.initial.dtype, self.carry)
        elif self.initial is not None:
            self.legal &= self.carry not in oracle.UNSIGNED or self.initial >= 0

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
        r = self.call.recipe
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
        return dtype, row.kind in self.row.kinds and row.stored

    def _term(self) -> torch.dtype:
        """What torch makes of x, times its weights, with its gate; RuntimeError where it has no promotion."""
        weights = self.mask if self.call.recipe.mask == "number" else None
        operands = [each for each in (self.x, weights, self.gate) if each is not None]
        beside = self.x if self.gate is None or self.x.ndim else self.gate
        terms = []
        for each in operands:
            terms.append(each.dtype)
            if each.ndim == 0 < len(self.shape):  # a 0-d tensor lends its kind alone
                with contextlib.suppress(RuntimeError):  # uint16 and bool: it is promoted with the others
                    terms[-1] = torch.result_type(beside.new_empty(1), each)
        return functools.reduce(torch.promote_types, terms)

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
        inexact = wide.is_floating_point or wide.is_complex
        self.legal = alike and inexact and asked.itemsize >= wide.itemsize
        return asked if self.legal else wide

    def _initial(self) -> Any:
        r = self.call.recipe
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
        r = self.call.recipe
        if r.segments not in ("int32", "int64"):
            return None
        count = int(torch.randint(0, 6, (), generator=self._generator))
        between = torch.randint(0, self.length + 1, (count,), generator=self._generator).sort().values
        return torch.tensor([0, *between.tolist(), self.length], dtype=getattr(torch, r.segments), device=self.device)

    def expected(self) -> tuple[torch.Tensor, ...]:
        """By the oracle, on a CPU."""
        r = self.call.recipe

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
        )
        return tuple(y if r.final and y is found[-1] else y.reshape(r.shape) for y in found)

    def options(self) -> dict[str, Any]:
        """The keywords of a right call."""
        r = self.call.recipe
        found = {name: getattr(self, name) for name in ("mask", "initial", "offsets")} | {"segment_starts": self.starts}
        names = ("reverse", "exclusive", "final", *(() if self.indexed else ("dtype", "accumulate")))
        return found | {name: getattr(r, name) for name in names}

    def out(self) -> torch.Tensor | None:
        kind, dtype, shape = self.call.out, self.dtype, self.call.recipe.shape
        if kind == "none":
            return None
        if kind == "alias" and self.x.dtype == dtype and self.x.shape == shape and self.call.recipe.view != "expanded":
            return self.x if self.x.ndim == 0 or 0 not in self.x.stride() else None
        view = "stepped" if kind == "stepped" else "dense"
        return laid(view, shape, lambda inner: torch.zeros(inner, dtype=dtype, device=self.device))


def drawn(pick: random.Random, kernels: random.Random | None = None) -> Call:
    """A call; what its kernel is specialised for is drawn by ``kernels``."""
    special, out, seed = pick.random() < 0.5, pick.choice(OUTS), pick.randrange(2**16)
    return Call(recipe=recipe((kernels or pick).choice), seed=seed, special=special, out=out)


def arguments(built: Built) -> dict[str, Any]:
    """Those of ``oracle.call`` by name."""
    r = built.call.recipe
    call: dict[str, Any] = built.options() | {"out": built.out(), "x": built.x, "dim": r.dim}
    call |= {"gate": built.gate} if built.gated else {}
    if built.indexed and isinstance(call["out"], torch.Tensor):
        call["out"] = (call["out"], torch.empty(r.shape, dtype=torch.int64, device=built.device))
    return call


def holds(call: Call, device: str, note: Callable[[str], object] = str) -> None:
    """Run the call, described to ``note``: it gives the oracle's results, or a typed error with four parts."""
    built, op = Built(call, device), call.recipe.op
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
