"""The scans that everything of PyTorch is tried on, and the comparisons that every check makes."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import scanops
from tests.numbers.oracle import starts_of, walked

Tensors = tuple[torch.Tensor, ...]
DIM, LENGTH = 1, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sort of call: a function of tensors, all of whose results count."""

    name: str  # as on the page
    call: Callable[..., Any]
    composed: Callable[..., Any]  # the same of torch's operations, or item by item
    operands: tuple[str, ...] = ("x",)  # words of _DRAWS
    torch_name: str | None = None  # torch's function of the same results

    def tensors(self, length: int = LENGTH, seed: int = 0) -> Tensors:
        """Arguments of the call, whose lines are of that length."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(_DRAWS[word](length, generator) for word in self.operands)

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        return flat(self.call(*tensors))

    def by_torch(self, *tensors: torch.Tensor) -> Tensors:
        """What the call is held to."""
        return flat(self.composed(*tensors))


def flat(found: Any) -> Tensors:
    if isinstance(found, torch.Tensor):
        return (found,)
    values, *others = found
    return (*values, *others) if isinstance(values, tuple) else (values, *others)


def _rand(*shape: int, generator: torch.Generator) -> torch.Tensor:
    """Away from 0 and from one another."""
    return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5


_DRAWS: dict[str, Callable[[int, torch.Generator], torch.Tensor]] = {
    "x": lambda n, g: _rand(3, n, generator=g),
    "whole": lambda n, g: torch.randint(-9, 9, (3, n), generator=g),
    "weights": lambda n, g: _rand(n, generator=g),  # of lower rank: its gradient is summed
    "gate": lambda n, g: _rand(3, n, generator=g),
    "gates of rows": lambda n, g: _rand(3, 1, generator=g),
    "keep": lambda n, g: torch.randint(2, (3, n), generator=g).bool(),
    "starts": lambda n, g: torch.randint(2, (3, n), generator=g).bool(),
    "offsets": lambda n, g: torch.tensor([0, 2, 2, n]),
    "initial": lambda n, g: _rand(3, generator=g),
}


def _of_torch(name: str) -> Row:
    """A scan of the same name in torch."""
    ours, theirs = getattr(scanops, name), getattr(torch, name)
    return Row(name=f"`{name}`", call=lambda x: ours(x, DIM), composed=lambda x: theirs(x, DIM), torch_name=name)


# By its name on the page: the operands, the call, and the same of torch's operations.
_CALLS: dict[str, tuple[tuple[str, ...], Callable[..., Any], Callable[..., Any]]] = {
    "`linear_scan`": (
        ("gate", "x"),
        lambda a, x: scanops.linear_scan(a, x, DIM),
        lambda a, x: walked("linear", x, a=a)[:1],
    ),
    '`scan(x, "max")`': (("x",), lambda x: scanops.scan(x, "max", DIM), lambda x: torch.cummax(x, DIM).values),
    '`scan(x, "bitwise_xor")`': (
        ("whole",),
        lambda x: scanops.scan(x, "bitwise_xor", DIM),
        lambda x: torch.stack(list(itertools.accumulate(x.unbind(DIM), operator.xor)), DIM),
    ),
    "`reverse`, `exclusive`": (
        ("x",),
        lambda x: scanops.cumprod(x, DIM, reverse=True, exclusive=True),
        lambda x: walked("prod", x, reverse=True, exclusive=True)[:1],
    ),
    "`complete`": (
        ("x", "initial"),
        lambda x, initial: scanops.cumprod(x, DIM, initial=initial, complete=True),
        lambda x, initial: torch.cumprod(torch.cat([initial.unsqueeze(DIM), x], DIM), DIM),
    ),
    "`mask` that selects": (
        ("x", "keep"),
        lambda x, keep: scanops.cumsum(x, DIM, mask=keep, reverse=True),
        lambda x, keep: walked("sum", x, mask=keep, reverse=True)[:1],
    ),
    "`mask` that multiplies": (
        ("x", "weights"),
        lambda x, weights: scanops.cumsum(x, DIM, mask=weights),
        lambda x, weights: torch.cumsum(x * weights, DIM),
    ),
    "`initial`, `return_final`": (
        ("x", "initial"),
        lambda x, initial: scanops.cumsum(x, DIM, initial=initial, return_final=True),
        lambda x, initial: walked("sum", x, initial=initial),
    ),
    "`map`, `then`": (
        ("x", "weights"),
        lambda x, w: scanops.scan(
            (x, w), "sum", DIM, map=lambda x, w: x.sigmoid() * w, then=lambda y, x, w: (y - x, 2 * y.exp2() > x)
        ),
        lambda x, w: ((y := torch.cumsum(x.sigmoid() * w, DIM)) - x, 2 * y.exp2() > x),
    ),
    "`segment_starts`": (
        ("gates of rows", "x", "starts"),
        lambda a, x, starts: scanops.linear_scan(a, x, DIM, segment_starts=starts, return_final=True),
        lambda a, x, starts: walked("linear", x, a=a, segment_starts=starts),
    ),
    "`offsets`": (
        ("x", "offsets"),
        lambda x, offsets: scanops.logcumsumexp(x, DIM, offsets=offsets),
        lambda x, offsets: walked("logcumsumexp", x, segment_starts=starts_of(offsets, x.shape[DIM]))[:1],
    ),
}
ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        *(_of_torch(name) for name in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")),
        *(Row(name=name, operands=words, call=call, composed=same) for name, (words, call, same) in _CALLS.items()),
    )
}


# ---- results and gradients of a call


class Noting(TorchDispatchMode):
    """A mode that notes the scans it sees with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "scanops":
            self.calls.append((function, args, kwargs))
        return function(*args, **(kwargs or {}))


def floating(tensors: Tensors) -> list[torch.Tensor]:
    """Return the tensors that have or want a gradient."""
    return [each for each in tensors if each.is_floating_point()]


def leaves(tensors: Tensors) -> tuple[Tensors, list[torch.Tensor]]:
    """Return the tensors as new leaves of a graph, and those of them that a gradient is wanted of."""
    found = tuple(each.detach().requires_grad_(each.is_floating_point()) for each in tensors)
    return found, floating(found)


def weights(y: torch.Tensor) -> torch.Tensor:
    """Return the incoming gradient of a result: small whole numbers, other ones for neighbouring items."""
    return (torch.arange(y.numel(), device=y.device) % 7 + 1).to(y.dtype).reshape(y.shape)


def gradients(results: Tensors, wanted: list[torch.Tensor]) -> Tensors:
    """Return the gradients of all results together, weighted, and leave the leaves' own alone."""
    parts = floating(results)
    return torch.autograd.grad(parts, wanted, [weights(y) for y in parts]) if wanted else ()


def step(
    call: Callable[..., Tensors], tensors: Tensors, backward: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> tuple[Tensors, Tensors]:
    """Return results and gradients of a call on new leaves, the backward pass inside of ``backward()``."""
    given, wanted = leaves(tensors)
    found = call(*given)
    assert [y.requires_grad for y in found] == [bool(wanted) and y.is_floating_point() for y in found]
    parts = floating(found)
    with backward():
        if wanted:  # not by autograd.grad, which reentrant checkpoints refuse
            torch.autograd.backward(parts, [weights(y) for y in parts])
    assert all(each.grad is not None for each in wanted)
    return found, tuple(each.grad for each in wanted if each.grad is not None)


def hold(call: Callable[..., Tensors], right: Callable[..., Tensors], tensors: Tensors, **how: Any) -> None:
    """Compare two calls: results with their strides, and gradients, whose strides nobody promises."""
    (found, slopes), (expected, wanted) = step(call, tensors, **how), step(right, tensors)
    close(found, expected, check_stride=True)
    close(slopes, wanted)


def close(found: Any, expected: Any, **how: Any) -> None:
    """Compare tensors one by one."""
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, **how)
