"""Gradients of calls that C++ has served: what its nodes of autograd's graph keep, and what they ask Python for.

A node asks where nothing like it was learnt yet, where a gradient takes more than kernels, and where it is to be
differentiated again.
"""

from __future__ import annotations

import itertools

import torch

from scanops import native
from scanops.derivatives.gradients import Serving, keeps, walked
from scanops.launching.recipes import Recipe, Tensors
from scanops.requests.kinds import NAMES, Kind, Needs
from scanops.requests.request import Inputs

__all__ = ["Adjoints"]

_WANTED = NAMES[:3]  # of which C++ knows gradients: what lines go on from comes through Python
# Places on a tape of what C++ keeps account of, in its order: the gradient, x, mask, gate, result, indices, starts.
_TOLD = (1, 3, 4, 5, 7, 8, 9)
_GIVEN = 10  # tensors that a tape begins with
_READ = (0, 1, 2, 3, 6)  # of Inputs those that it gives kernels, likewise
_numbers = itertools.count()


class _Gradient:
    """The gradients of calls of one kind, where those of some inputs are wanted."""

    __slots__ = ("_kind", "_needs", "_serving", "number")

    def __init__(self, kind: Kind, needs: Needs, serving: Serving) -> None:
        self._kind, self._needs, self._serving = kind, needs, serving
        self.number = next(_numbers)

    def __call__(self, policy: str | None, told: Tensors) -> Tensors:
        """Of x, mask and gate, from what C++ keeps account of; ``policy`` is that of the block the call was in."""
        given: list[torch.Tensor | None] = [None] * _GIVEN
        for place, each in zip(_TOLD, told, strict=True):
            given[place - 1] = each
        found, recipe = walked(self._kind, self._needs, self._serving, tuple(given), policy)
        if recipe is not None:
            native.learn_gradient(self.number, told, recipe, _pass_of)
        return found[: len(_WANTED)]


def _pass_of(recipe: Recipe) -> native.Pass | None:
    """A backward pass in C++'s words; None where it is more than kernels."""
    places = [*_TOLD]  # on the tape, of what C++ has there
    launches, end = [], _GIVEN + 1
    for _, reads, launcher in recipe.steps:
        template = None if launcher is None else launcher.template
        read = [(which, place) for which, place in enumerate(reads) if place]
        if launcher is None or template is None:
            return None
        if any(which not in _READ or place not in places for which, place in read):
            return None
        told = tuple((which, places.index(place)) for which, place in read)
        launches.append(native.Launch(template, told, launcher))
        places += range(end, end + len(launcher.places))
        end += len(launcher.places)
    *gives, of_initial = recipe.gives
    if of_initial or any(place and place not in places[len(_TOLD) :] for place in gives):
        return None
    return native.Pass(tuple(launches), tuple(place - _GIVEN - 1 if place else -1 for place in gives))


class Adjoints:
    """The gradients that may be asked of a call."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def __call__(self, kind: Kind, inputs: Inputs) -> tuple[tuple[int, int, int, _Gradient], ...]:
        """(needs as bits, number, what is kept as bits, who computes it in Python) of each."""
        result = kind.request.dtype
        if kind.final or not (result.is_floating_point or result.is_complex):
            return ()
        may = [each is not None and (each.is_floating_point() or each.is_complex()) for each in inputs[: len(_WANTED)]]
        found = []
        for some in itertools.product(*((False, True) if wanted else (False,) for wanted in may)):
            needs = (*some, False)
            if any(needs):
                x, mask, gate, _, *results = keeps(kind, needs)
                kept = (x, mask, gate, *results, True)
                gradient = _Gradient(kind, needs, self._serving)
                found.append((_bits(some), gradient.number, _bits(kept), gradient))
        return tuple(found)


def _bits(flags: tuple[bool, ...]) -> int:
    return sum(flag << place for place, flag in enumerate(flags))
