"""Scans to differentiate, dealt out of a table, and the same scans item by item.

A cell is one value of each axis; every two values of any two axes meet in some cell.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

import scanops
from tests.numbers.covering import Target, cover
from tests.numbers.oracle import COMPOUND, STEPS, call, starts_of, walked

Tensors = tuple[torch.Tensor, ...]

# The shape of a leaf, and the view of it that is scanned: two lines of some length.
LAYOUTS: dict[str, tuple[Callable[[int], tuple[int, ...]], Callable[[torch.Tensor], torch.Tensor]]] = {
    "dense": (lambda length: (2, length), lambda x: x),
    "transposed": (lambda length: (length, 2), lambda x: x.t()),
    "stepped": (lambda length: (2, 2 * length), lambda x: x[:, 1::2]),
    "expanded": (lambda length: (1, length), lambda x: x.expand(2, -1)),
    "off a boundary": (lambda length: (2 * length + 1,), lambda x: x[1:].view(2, len(x) // 2)),
}
scanops.register_operator(COMPOUND)  # of which scanops knows a row
# Head flags, or offsets: those of empty segments at both ends leave the carries alone, or take them.
SEGMENTS = {
    "flags": torch.tensor([[0, 0, 1, 0, 0], [0, 1, 0, 0, 1]]) > 0,
    "offsets": torch.tensor([0, 2, 2, 5]),
    "offsets of empty ends": torch.tensor([0, 0, 3, 5, 5]),
}
AXES: dict[str, tuple[str, ...]] = {
    "op": tuple(STEPS),
    "dtype": ("float64", "complex128"),
    "layout": tuple(LAYOUTS),
    "direction": ("forward", "reverse"),
    "place": ("inclusive", "exclusive", "complete"),
    "mask": ("none", "bool", "weights of items", "weights of lines"),
    "carry": ("none", "initial", "one initial", "final", "initial and final"),
    "segments": ("none", *SEGMENTS),
}
COMPLEX = ("sum", "prod", "logcumsumexp", "linear")


def legal(row: dict[str, str]) -> dict[str, str] | None:
    refused = row["segments"] != "none" or "final" in row["carry"] or row["op"].startswith("cum")
    if row["place"] == "complete" and refused:
        return None
    return row if row["dtype"] == "float64" or row["op"] in COMPLEX else None


def _targets() -> Iterator[Target]:
    """Every two values of any two axes; each operator in both directions, inclusive and exclusive."""
    for axes in (*itertools.combinations(sorted(AXES), 2), ("direction", "op", "place")):
        for values in itertools.product(*(AXES[axis] for axis in axes)):
            target = dict(zip(axes, values, strict=True))
            if legal(
                {"dtype": "float64", "op": "sum", "segments": "none", "carry": "none", "place": "inclusive", **target}
            ):
                yield tuple(target.items())


COVERING = cover(AXES, _targets(), legal).rows
# Of each operator and place one more, whose lines have one item or none by turns.
SHORT = sorted({(cell["op"], cell["place"]): cell for cell in COVERING}.items())
CELLS = [cell | {"length": "5"} for cell in COVERING]
CELLS += [cell | {"length": str(number % 2)} for number, (_, cell) in enumerate(SHORT)]


def leaf(*shape: int, device: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Random values away from 0, and from one another."""
    x = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5
    if dtype.is_complex:
        x = torch.complex(x, leaf(*shape, device="cpu", seed=seed + 50).detach() - 1)
    return x.to(dtype).to(device).requires_grad_()


class Case:
    """A cell with its leaves on a device, scanned by kernels or PyTorch's operators, or item by item."""

    def __init__(self, cell: dict[str, str], device: str) -> None:
        self.cell, self.op = cell, cell["op"]
        self._final = "final" in cell["carry"]
        length, (shape, self._view) = int(cell["length"]), LAYOUTS[cell["layout"]]
        shapes = {"x": shape(length)}
        shapes |= {"a": shapes["x"]} if self.op == "linear" else {}
        if "initial" in cell["carry"]:
            shapes["initial"] = () if cell["carry"] == "one initial" else (2,)
        if cell["mask"].startswith("weights"):
            shapes["mask"] = (length,) if cell["mask"] == "weights of items" else (2, 1)
        dtype = getattr(torch, cell["dtype"])
        self.leaves = {
            name: leaf(*shape, device=device, dtype=dtype, seed=seed)
            for seed, (name, shape) in enumerate(shapes.items())
        }
        self._fixed: dict[str, Any] = {
            "reverse": cell["direction"] == "reverse",
            **{place: True for place in ("exclusive", "complete") if cell["place"] == place},
        }
        if cell["mask"] == "bool":
            self._fixed["mask"] = torch.tensor([[True, True, False, True, False]], device=device)[:, :length]
        if cell["segments"] != "none":
            told = SEGMENTS[cell["segments"]].to(device)
            flags = {"segment_starts": told[..., :length]}
            self._fixed |= flags if cell["segments"] == "flags" else {"offsets": told.clamp(max=length)}
        # Not read in a transform: functionalize has no values of a captured tensor on a GPU.
        self._begins = starts_of(self._fixed["offsets"], length) if "offsets" in self._fixed else None

    @property
    def tensors(self) -> Tensors:
        """The leaves without their history, in the order of the arguments of ``total`` and ``expected``."""
        return tuple(each.detach() for each in self.leaves.values())

    def scanned(self, *tensors: torch.Tensor) -> Tensors:
        """Every result of the public function that has a gradient."""
        given = self._given(tensors)
        found = call(given.pop("x"), self.op, 1, gate=given.pop("a", None), final=self._final, **given)
        if self.op.startswith("cum"):
            assert not found[1].requires_grad
            found = (found[0], *found[2:])
        return found

    def walked(self, *tensors: torch.Tensor) -> Tensors:
        """The same, item by item."""
        given = self._given(tensors)
        flags = {} if given.pop("offsets", None) is None else {"segment_starts": self._begins}
        return walked(self.op, **given, **flags)[: 1 + self._final]

    def total(self, *tensors: torch.Tensor) -> torch.Tensor:
        """One number made of all results."""
        return one_number(self.scanned(*tensors))

    def expected(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The same number, of the results item by item."""
        return one_number(self.walked(*tensors))

    def _given(self, tensors: Tensors) -> dict[str, Any]:
        given = dict(zip(self.leaves, tensors, strict=True))
        return self._fixed | given | {name: self._view(given[name]) for name in ("x", "a") if name in given}


def one_number(results: Tensors) -> torch.Tensor:
    """A real number of results; those of lines that have not begun are infinite, and left out."""
    finite = [torch.where(y.isfinite(), y, torch.zeros_like(y)) for y in results]
    total = torch.stack([(0.3 * y).sin().sum() for y in finite]).sum()
    return total.real if total.is_complex() else total
