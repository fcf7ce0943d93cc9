"""Drawn requests, and the check that one gives the oracle's results, or a typed error where it is not legal."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import torch

from scanops.errors import ScanopsError
from tests.numbers import oracle
from tests.requests.built import Built
from tests.requests.recipes import OUTS, Call, recipe

__all__ = ["drawn", "holds"]


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
