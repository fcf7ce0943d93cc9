"""What calls that differ in nothing but their data have in common."""

from __future__ import annotations

from dataclasses import replace

import torch

from scanops.requests.request import Inputs, Request

__all__ = ["NAMES", "Kind", "Needs", "Shapes"]

NAMES = ("x", "mask", "gate", "initial")  # whose gradients may be wanted, in this order
Needs = tuple[bool, ...]  # of which of them one is wanted
Shapes = tuple[tuple[torch.Size, torch.dtype] | None, ...]  # of each of them, and their dtypes
_NOTHING = Inputs(x=torch.empty(0))


class Kind:
    """A request without its tensors. Equal to itself alone: what is found out about it is kept under it."""

    __slots__ = ("final", "generation", "indexed", "keeps", "lasts", "request", "shapes")

    def __init__(self, request: Request) -> None:
        self.request = replace(request, inputs=_NOTHING, out=None, indices=None)
        self.shapes: Shapes = tuple(
            None if each is None else (each.shape, each.dtype) for each in request.inputs.differentiable
        )
        self.indexed = request.operator.indices
        self.final = request.final
        # Of the inputs as NAMES, the result and its indices those that a gradient reads again.
        self.keeps: dict[Needs, tuple[bool, ...]] = {}
        self.lasts = False  # whether calls like this one find it again
        self.generation = -1  # of the native table that knows it
