"""Whole scans, in every strategy, against the recurrence that an operator says it is."""

from __future__ import annotations

import cmath
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from scanops.api import scan
from scanops.artifact import CPU
from scanops.codegen.operators import Operator
from scanops.codegen.plan import make_plan
from scanops.emulation import emulate
from scanops.fallback import reference
from scanops.laws.report import Finding
from scanops.laws.samples import drawn_from
from scanops.requests.request import make_request
from scanops.tuning.choice import planned

__all__ = ["LENGTHS", "LONGEST", "Agreement"]

LENGTHS = (1, 6, 64, 127, 601, 2047, 40003, 131076)  # each strategy has one of them
COLUMNS = 33  # lines side by side; an odd number
SMALL = 2**17  # items of a tensor by columns: an emulated item takes a microsecond
LONGEST = SMALL * 8  # line that may be asked for
RARE = 50  # one in so many items is NaN or infinite, where they are among the samples


class Agreement:
    """Scans of one dtype, held to the reference."""

    def __init__(
        self, *, name: str, operator: Operator, dtype: torch.dtype, samples: Sequence[complex] | None, seed: int
    ) -> None:
        self.scans = self.items = 0
        self.seen: set[str] = set()
        self._name, self._operator, self._dtype, self._seed = name, operator, dtype, seed
        drawn = drawn_from(dtype, samples)
        self._finite = torch.tensor([item for item in drawn if cmath.isfinite(item)] or [0], dtype=dtype)
        self._rare = torch.tensor([item for item in drawn if not cmath.isfinite(item)] or [drawn[0]], dtype=dtype)
        self._generator = torch.Generator().manual_seed(seed)

    def check(self, lengths: Sequence[int]) -> Finding | None:
        """The first scan that is wrong."""
        turns = itertools.cycle(itertools.product((False, True), (False, True)))
        for number, (x, dim) in enumerate(self._inputs(lengths)):
            strategy = self._strategy(x, dim)
            every = strategy not in self.seen
            self.seen.add(strategy)
            flags = [next(turns) for _ in range(4)] if every else [next(turns)]
            for reverse, exclusive in sorted(flags):
                mask = torch.rand(x.shape, generator=self._generator) < 0.7 if (number + reverse) % 2 else None
                wrong = self._compare(x, dim, mask, reverse, exclusive)
                if wrong:
                    words = [f"x of shape {tuple(x.shape)} along {dim}", *(["a bool mask"] if mask is not None else [])]
                    words += ["reverse"] * reverse + ["exclusive"] * exclusive + [f"strategy {strategy}"]
                    return Finding(
                        law="agreement with the reference",
                        dtype=str(self._dtype).removeprefix("torch."),
                        example=f"{', '.join(words)}: {wrong}",
                    )
        return None

    def _inputs(self, lengths: Sequence[int]) -> Iterator[tuple[torch.Tensor, int]]:
        for length in lengths:
            yield self._draw((5 if length < SMALL // 2 else 2, length), special=False), 1  # many rows, and few
            if length * COLUMNS <= SMALL:
                yield self._draw((1, length, COLUMNS), special=True), 1
                yield self._draw((length, COLUMNS + 7), special=True).t(), 1

    def _draw(self, shape: tuple[int, ...], *, special: bool) -> torch.Tensor:
        items = self._finite[torch.randint(len(self._finite), shape, generator=self._generator)]
        rare = self._rare[torch.randint(len(self._rare), shape, generator=self._generator)]
        chosen = torch.rand(shape, generator=self._generator) < 1 / RARE
        return torch.where(chosen, rare, items) if special else items

    def _strategy(self, x: torch.Tensor, dim: int) -> str:
        options: dict[str, Any] = {"mask": None, "reverse": False, "exclusive": False, "dtype": None, "out": None}
        with emulate(seed=self._seed) as emulation:
            request = make_request(x, self._name, dim, **options)
            out = torch.empty(x.shape, dtype=request.dtype)
            return make_plan(request.spec(out, emulation.multiprocessors), planned(CPU)).strategy

    def _compare(self, x: torch.Tensor, dim: int, mask: torch.Tensor | None, reverse: bool, exclusive: bool) -> str:
        """What is wrong, in words; empty: nothing."""
        with emulate(seed=self._seed):
            y = scan(x, self._name, dim, mask=mask, reverse=reverse, exclusive=exclusive)
        wide = torch.complex128 if y.dtype.is_complex else torch.float64 if y.dtype.is_floating_point else y.dtype
        floating = wide.is_floating_point or wide.is_complex
        try:
            expected = reference.scan(
                x.to(y.dtype), self._name, dim, mask=mask, reverse=reverse, exclusive=exclusive, dtype=wide
            )
        except Exception as problem:  # whatever somebody's function raises is a finding
            words = str(problem).splitlines()[0] if str(problem) else ""
            return f"the reference raised {type(problem).__name__}: {words} (it is given tensors: use torch.where)"
        wrong = (y != expected) if not floating else self._far(y, expected, dim, reverse)
        self.scans += 1
        self.items += 0 if floating else y.numel()
        count = int(wrong.sum())
        if not count:
            return ""
        at = tuple(wrong.nonzero()[0].tolist())
        return f"y[{', '.join(map(str, at))}] = {y[at].item()}, reference {expected[at].item()}; {count} of {y.numel()}"

    def _far(self, y: torch.Tensor, expected: torch.Tensor, dim: int, reverse: bool) -> torch.Tensor:
        """Off by more than rounding, while results are of a size at which nothing overflows."""
        accumulator = torch.float32 if y.dtype in (torch.float16, torch.bfloat16) else y.dtype
        turned = expected.flip(dim) if reverse else expected
        so_far = torch.where(turned.isfinite(), turned.abs(), 0).cummax(dim).values
        so_far = so_far.flip(dim) if reverse else so_far
        most = min(math.sqrt(torch.finfo(accumulator).max), torch.finfo(y.dtype).max / 2)
        share = 8 * torch.finfo(y.dtype).eps + (1e-9 if y.dtype == expected.dtype else 1e-3)
        wide = y.to(expected.dtype)
        same = (wide == expected) | (wide.isnan() & expected.isnan())
        near = (wide - expected).abs() <= share * so_far.clamp(min=1.0)
        compared = so_far < most
        self.items += int(compared.sum())
        return compared & ~(same | (near & wide.isfinite() & expected.isfinite()))
