"""Random calls with odd arguments on a CPU: each must give the right answer or a typed error.

An odd argument takes the place of a right one in a random call: a quantised, sub-byte or bits dtype, a subclass, a
conjugated, negated, broadcast or overlapping view, a sparse, nested, meta or batched tensor, a huge or infinite number,
an object that is no tensor. Where the odd argument has the values of a plain tensor, the result must be that of the
plain call; the others must be refused, or not matter to the call.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import resource
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import scanops
from scanops.errors import ScanopsError
from tests.requests.recipes import drawn, holds

__all__ = ["Outcome", "run"]

SHAPES = ((8,), (3, 8), (2, 3, 4), (), (0, 4), (4, 0))
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cumsum": scanops.cumsum,
    "cumprod": scanops.cumprod,
    "cummax": scanops.cummax,
    "cummin": scanops.cummin,
    "logcumsumexp": scanops.logcumsumexp,
    "linear_scan": lambda x, dim, gate=None, **options: scanops.linear_scan(
        torch.full((), 0.5) if gate is None else gate, x, dim, **options
    ),
    "max": lambda x, dim, **options: scanops.scan(x, "max", dim, **options),
}
DTYPES = ("uint4", "int4", "uint1", "bits8", "bits16", "bits1x8", "float4_e2m1fn_x2", "qint32", "quint4x2", "complex32")
QUANTISED = (torch.quint8, torch.qint8, torch.qint32)


class Subclass(torch.Tensor):
    """A subclass without operations of its own."""


class Refusing:
    """No tensor, and without a repr."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def _peak() -> float:
    """The most memory that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@dataclass
class Outcome:
    """What a number of random calls came to."""

    calls: int = 0
    right: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)  # calls whose answer is not that of the plain call
    raw: list[str] = field(default_factory=list)  # calls that raised an error that is not typed
    began: float = field(default_factory=lambda: _peak())  # MB

    def summary(self) -> str:
        """Return one line of counts, and by how much the process has grown."""
        grown = round(_peak() - self.began)
        counts = f"{self.right} right, {self.refused} typed errors, raw errors = {len(self.raw)}"
        return f"{self.calls} calls: {counts}, wrong answers = {len(self.wrong)}, {grown} MB more memory"


def _plain(pick: random.Random, shape: tuple[int, ...]) -> torch.Tensor:
    dtype = pick.choice((torch.float32, torch.float64, torch.int32, torch.float16, torch.complex64, torch.bool))
    return torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(pick.randrange(2**30))).to(dtype)


def _of_dtype(pick: random.Random, shape: tuple[int, ...]) -> torch.Tensor:
    if pick.random() < 0.3:
        return torch.quantize_per_tensor(torch.ones(shape), 1.0, 0, pick.choice(QUANTISED))
    dtype = getattr(torch, pick.choice(DTYPES), torch.complex32)
    return torch.empty(shape, dtype=dtype)


def _turn(tensor: torch.Tensor) -> torch.Tensor:
    order = [*reversed(range(tensor.ndim))]
    return tensor.permute(order).contiguous().permute(order)


# Tensors with the values of a plain one: (odd, plain) from a plain one.
ALIKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "subclass": lambda t: t.as_subclass(Subclass),
    "parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
    "negated": lambda t: torch._neg_view(t) if t.dtype != torch.bool else t,
    "conjugated": lambda t: t.conj(),
    "imaginary part of a conjugate": lambda t: (
        torch.complex(t.float(), t.float()).conj().imag if not t.is_complex() and t.dtype != torch.float64 else t
    ),
    "expanded": lambda t: t[:1].expand(t.shape) if t.ndim and t.shape[0] else t,
    "reversed strides": _turn,
    "overlapping": lambda t: t.reshape(-1).as_strided(t.shape, (1,) * t.ndim) if t.numel() else t,
    "off a boundary": lambda t: torch.cat([t.reshape(-1)[:1], t.reshape(-1)])[1:].reshape(t.shape) if t.numel() else t,
    "requires grad": lambda t: t.detach().clone().requires_grad_() if t.is_floating_point() else t,
}
# Values that have no plain counterpart.
OTHER: dict[str, Callable[[random.Random, tuple[int, ...]], Any]] = {
    "dtype": _of_dtype,
    "sparse": lambda p, s: torch.ones(s or (1,)).to_sparse(),
    "meta": lambda p, s: torch.ones(s, device="meta"),
    "nested": lambda p, s: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged),
    "number": lambda p, s: p.choice((10**30, -(10**30), 10**5000, math.nan, math.inf, 2**63, 2**64, 1j, True)),
    "object": lambda p, s: p.choice(([], [10**5000], "x" * 10**6, Refusing(), object(), {}, torch.bool, b"")),
    "another rank": lambda p, s: torch.ones(*s, 2),
    "overlapping": lambda p, s: torch.zeros(64).as_strided(s, (1,) * len(s)),
}
ROLES = ("x", "mask", "gate", "initial", "segment_starts", "offsets", "out")
OPTIONS = ("dim", "reverse", "exclusive", "return_final", "dtype", "accumulate")


def _call(pick: random.Random) -> tuple[str, dict[str, Any], dict[str, Any] | None]:
    """(function, odd arguments, the arguments of the plain call of the same meaning, None: there may be none)."""
    name, shape = pick.choice(tuple(FUNCTIONS)), pick.choice(SHAPES)
    rank = max(1, len(shape))
    plain: dict[str, Any] = {"x": _plain(pick, shape), "dim": pick.randrange(-rank, rank)}
    if pick.random() < 0.3:
        plain["mask"] = _plain(pick, shape)
    if name == "linear_scan" and pick.random() < 0.5:
        plain["gate"] = _plain(pick, shape)
    if pick.random() < 0.3:
        plain |= {"reverse": pick.random() < 0.5, "exclusive": pick.random() < 0.5, "return_final": True}
    odd = dict(plain)
    present = [role for role in ("x", "mask", "gate") if role in plain]
    if pick.random() < 0.5:
        role = pick.choice(present)
        odd[role] = ALIKE[pick.choice(tuple(ALIKE))](plain[role])
        with torch.no_grad():
            resolved = odd[role].detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
        return name, odd, plain | {role: resolved.clone()}
    if pick.random() < 0.7:
        odd[pick.choice(ROLES if name == "linear_scan" else [r for r in ROLES if r != "gate"])] = OTHER[
            pick.choice(tuple(OTHER))
        ](pick, shape)
    else:
        options = [each for each in OPTIONS if not (name in ("cummax", "cummin") and each in ("dtype", "accumulate"))]
        odd[pick.choice(options)] = OTHER[pick.choice(("number", "object"))](pick, shape)
    return name, odd, None


def _flat(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else [part for each in found for part in _flat(each)]


def _same(found: Any, expected: Any) -> bool:
    ys = [y.detach().as_subclass(torch.Tensor) for y in _flat(found)]
    pairs = zip(ys, _flat(expected), strict=True)
    return all(y.shape == z.shape and torch.allclose(y, z, rtol=1e-3, atol=1e-3, equal_nan=True) for y, z in pairs)


def run(count: int, seed: int = 0, *, emulated: bool = False) -> Outcome:
    """Make ``count`` random calls: half odd ones, half requests of the fuzz tests, which know the exact results.

    ``emulated``: half of the odd calls run emulated kernels, which are built at first.
    """
    pick, outcome = random.Random(seed), Outcome()
    for number in range(count):
        outcome.calls += 1
        if number % 2:
            call = drawn(pick)
            _note(outcome, str(call), functools.partial(holds, call, "cpu"))
            continue
        name, odd, plain = _call(pick)
        kernels = scanops.emulate() if emulated and number % 4 == 0 else contextlib.nullcontext()
        with kernels:
            _note(outcome, f"{number}: {name} of {sorted(odd)}", functools.partial(_compare, name, odd, plain))
    return outcome


def _compare(name: str, odd: dict[str, Any], plain: dict[str, Any] | None) -> None:
    found = FUNCTIONS[name](**odd)
    if plain is not None:
        assert _same(found, FUNCTIONS[name](**plain)), "not the result of the plain call"


def _note(outcome: Outcome, described: str, call: Callable[[], object]) -> None:
    try:
        call()
    except ScanopsError as error:
        outcome.refused += 1
        if "\n" not in str(error) or not str(error.hint).strip():
            outcome.raw.append(f"{described}: an error without its parts: {error}")
    except AssertionError as problem:
        outcome.wrong.append(f"{described}: {str(problem)[:300]}")
    except Exception as problem:
        outcome.raw.append(f"{described}: {type(problem).__name__}: {str(problem)[:300]}")
    else:
        outcome.right += 1
