"""What may be wrong with a drawn request, and the check that it gives the oracle's results or a typed error."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from scanops.errors import ScanopsError
from tests.numbers import oracle
from tests.requests.built import Built
from tests.requests.recipes import OUTS, Call, recipe

__all__ = ["WRONGS", "drawn", "holds"]


def _shape_of(b: Built, role: str) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape and dtype of a right operand."""
    shapes = {"initial": (b.lines, b.carry), "offsets": ((2,), torch.int64), "out": (b.shape, b.dtype)}
    return shapes.get(role, (b.shape, torch.float32 if role == "gate" else torch.bool))


def _of_another_shape(b: Built, role: str) -> dict[str, Any]:
    shape, dtype = _shape_of(b, role)
    return {role: b.new(*shape, 3, dtype=dtype)}


def _elsewhere(b: Built, role: str) -> dict[str, Any]:
    shape, dtype = _shape_of(b, role)
    return {role: torch.ones(shape, dtype=dtype, device="meta" if b.device == "cpu" else "cpu")}


def _offsets(b: Built, *numbers: float, **others: Any) -> dict[str, Any]:
    return {"offsets": torch.tensor(numbers, device=b.device)} | others


def _overlapping(built: Built, other: str) -> dict[str, Any]:
    """The out overlaps x, or the carry-in."""
    count = math.prod(built.shape)
    memory = built.new(count + 8)
    out = memory[1 : count + 1].view(built.shape)
    part = memory[:count].view(built.shape) if other == "x" else memory[1:2].view(())
    return {"out": out, other: part, "dtype": None}


Change = Callable[[Built], dict[str, Any]]
ROLES = ("mask", "gate", "initial", "segment_starts", "offsets", "out")
# With one of these a call is refused; where the function has no such argument, its direction is wrong instead.
WRONGS: dict[str, Change] = {
    **{f"{role} of another shape": partial(_of_another_shape, role=role) for role in ROLES},
    **{f"{role} elsewhere": partial(_elsewhere, role=role) for role in ROLES},
    "dim too large": lambda b: {"dim": max(1, len(b.shape))},
    "dim too small": lambda b: {"dim": -max(1, len(b.shape)) - 1},
    "dim a bool": lambda b: {"dim": True},
    "reverse a number": lambda b: {"reverse": 1},
    "accumulate narrow": lambda b: {"accumulate": torch.float16},
    "out of another dtype": lambda b: {
        "out": b.new(*b.shape, dtype=torch.float64 if b.dtype == torch.int16 else torch.int16),
        "dtype": b.dtype,
    },
    "out needs a gradient": lambda b: {"out": b.new(*b.shape).requires_grad_()},
    "initial complex": lambda b: {"initial": 1j if not b.carry.is_complex else "1j"},
    "segment_starts of numbers": lambda b: {"segment_starts": b.new(*b.shape)},
    "segments given twice": lambda b: _offsets(b, 0, b.length, segment_starts=b.new(1, dtype=torch.bool)),
    "offsets of floats": lambda b: _offsets(b, 0.0, b.length),
    "offsets too few": lambda b: _offsets(b, b.length),
    "offsets from 1": lambda b: _offsets(b, 1, max(1, b.length)),
    "offsets too short": lambda b: _offsets(b, 0, b.length - 1),
    "offsets too long": lambda b: _offsets(b, 0, b.length + 1),
    "offsets below 0": lambda b: _offsets(b, 0, -1, b.length),
    "offsets falling": lambda b: _offsets(b, 0, b.length + 1, b.length),
}
# With one of these it is refused or means the same as without it: an empty out overlaps nothing.
DOUBTFUL: dict[str, Change] = {
    "dtype complex": lambda b: {"dtype": torch.complex64},
    "dtype of 8 bits": lambda b: {"dtype": torch.float8_e5m2},
    "x complex": lambda b: {"x": b.x.to(torch.complex64)},
    "out overlaps x": partial(_overlapping, other="x"),
    "out overlaps the carry-in": partial(_overlapping, other="initial"),
    "out is the mask": lambda b: (lambda out: {"mask": out, "out": out})(b.new(*b.shape)),
    "out expanded": lambda b: {"out": b.new(1).expand(b.shape) if b.shape else b.new(8)},
    "initial out of bounds": lambda b: {"initial": 10**400},
}
CHANGES = WRONGS | DOUBTFUL


def drawn(pick: random.Random, kernels: random.Random | None = None) -> Call:
    """A call, one in four of them wrong; what its kernel is specialised for is drawn by ``kernels``."""
    wrong = pick.choice((None, None, None, pick.choice(list(CHANGES))))
    special, out, seed = pick.random() < 0.5, pick.choice(OUTS), pick.randrange(2**16)
    return Call(recipe=recipe((kernels or pick).choice), seed=seed, special=special, out=out, wrong=wrong)


def arguments(built: Built) -> dict[str, Any]:
    """Those of ``oracle.call`` by name, one of them wrong if that is drawn."""
    r, wrong = built.call.recipe, built.call.wrong
    call: dict[str, Any] = built.options() | {"out": built.out(), "x": built.x, "dim": r.dim}
    call |= {"gate": built.gate} if built.gated else {}
    if wrong is not None:
        change = CHANGES[wrong](built)
        if ("offsets" in change) != ("segment_starts" in change):
            change = {"offsets": None, "segment_starts": None, **change}
        call |= {name: value for name, value in change.items() if name in call} or {"reverse": "yes"}
    if built.indexed and isinstance(call["out"], torch.Tensor):
        call["out"] = (call["out"], torch.empty(r.shape, dtype=torch.int64, device=built.device))
    return call


def holds(call: Call, device: str, note: Callable[[str], object] = str) -> None:
    """Run the call, described to ``note``: it gives the oracle's results, or a typed error with four parts."""
    built, op = Built(call, device), call.recipe.op
    given = arguments(built)
    expected = built.expected() if call.wrong is None and built.legal else None
    out = given["out"]
    outs = out if isinstance(out, tuple) else (out,)
    kept = None if any(out is built.x for out in outs) else built.x.clone()
    note(f"{op} of x={built.x.shape} {built.x.dtype} {built.x.stride()}, to {built.dtype}, initial {built.initial}")
    try:
        results = oracle.call(op=op, **given)
    except ScanopsError as error:
        assert call.wrong is not None or not built.legal, f"refused: {error}"
        assert all(str(part).strip() for part in (error.asked, error.allowed, error.value, error.hint))
        return
    assert kept is None or torch.equal(bytes_of(kept), bytes_of(built.x)), "the input has changed"
    assert call.wrong not in WRONGS, "a wrong call was served"
    if call.wrong is not None:
        return
    assert expected is not None, "a dtype that is not legal was scanned"
    assert len(results) == len(expected)
    for y, wanted, out in itertools.zip_longest(results, expected, outs):
        assert y.dtype == wanted.dtype and y.shape == wanted.shape
        assert y is out if out is not None else y.is_contiguous()
        oracle.agree(op, y.cpu(), wanted)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)
