"""Gradients of calls that C++ has served: what its nodes of autograd's graph keep, and what they ask Python for.

A node asks where nothing like it was learnt yet, where a gradient takes more than kernels, and where it is to be
differentiated again.
"""

from __future__ import annotations

import itertools

from scanops.autograd.gradients import Serving, keeps, walked
from scanops.requests.kinds import Kind, Needs
from scanops.requests.request import Inputs
from scanops.runtime import native
from scanops.runtime.recipes import Recipe, Tensors

__all__ = ["Adjoints"]

# A tape begins with no tensor, then with what C++ keeps account of: the gradients of the result and of what goes on
# from the lines, x, mask, gate, initial, result, indices and starts. Behind these are offsets, of which it is not told.
_TOLD = range(1, 10)
_BEGIN = 11
_numbers = itertools.count()


class _Gradient:
    """The gradients of calls of one kind, where those of some inputs are wanted."""

    __slots__ = ("_kind", "_needs", "_serving", "number")

    def __init__(self, kind: Kind, needs: Needs, serving: Serving) -> None:
        self._kind, self._needs, self._serving = kind, needs, serving
        self.number = next(_numbers)

    def __call__(self, policy: str | None, told: Tensors) -> Tensors:
        """Of ``NAMES``, from what C++ keeps account of; ``policy`` is that of the block the call was in."""
        found, recipe = walked(self._kind, self._needs, self._serving, (*told, None), policy)
        if recipe is not None and told[0] is not None:
            native.learn_gradient(self.number, told, recipe, _pass_of)
        return found


def _pass_of(recipe: Recipe) -> native.Pass | None:
    """A backward pass in C++'s words; None where it is more than kernels."""
    places = [*_TOLD]  # on the tape, of what C++ has there
    launches, end = [], _BEGIN
    for _, reads, launcher in recipe.steps:
        template = None if launcher is None else launcher.template
        read = [(which, place) for which, place in enumerate(reads) if place]
        if launcher is None or template is None or any(place not in places for _, place in read):
            return None
        launches.append(native.Launch(template, tuple((which, places.index(place)) for which, place in read), launcher))
        places += range(end, end + len(launcher.places))
        end += len(launcher.places)
    if any(place and place < _BEGIN for place in recipe.gives):
        return None
    return native.Pass(tuple(launches), tuple(place - _BEGIN if place else -1 for place in recipe.gives))


class Adjoints:
    """The gradients that may be asked of a call."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def __call__(self, kind: Kind, inputs: Inputs) -> tuple[tuple[int, int, int, _Gradient], ...]:
        """(needs as bits, number, what is kept as bits, who computes it in Python) of each."""
        result = kind.request.dtype
        if not (result.is_floating_point or result.is_complex):
            return ()
        may = [each is not None and (each.is_floating_point() or each.is_complex()) for each in inputs.differentiable]
        found = []
        for needs in itertools.product(*((False, True) if wanted else (False,) for wanted in may)):
            if any(needs):
                kept = (*keeps(kind, needs), True)  # and where segments begin
                gradient = _Gradient(kind, needs, self._serving)
                found.append((_bits(needs), gradient.number, _bits(kept), gradient))
        return tuple(found)


def _bits(flags: tuple[bool, ...]) -> int:
    return sum(flag << place for place, flag in enumerate(flags))
