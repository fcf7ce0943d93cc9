"""A backward pass written down as it goes, to go again the same way on other data.

Which kernels run, and what is converted or copied for them, follows from shapes, strides and dtypes alone. Once a pass
has gone, what is left of it for the next one are steps from tensors to tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from scanops.codegen.spec import ScanSpec
from scanops.requests.request import Inputs
from scanops.runtime.launcher import Launcher

__all__ = ["Recipe", "Served", "Step", "Tape", "Tensors"]

Tensors = tuple[torch.Tensor | None, ...]
Compute = Callable[[Any], tuple[torch.Tensor, ...]]  # from what it reads


# Who has launched, and what was asked for: another kernel may have stood in for that one.
Served = list[tuple[Launcher, ScanSpec]]


class Step(NamedTuple):
    """Something that was computed."""

    compute: Compute
    reads: tuple[int, ...]  # places on the tape; 0 is no tensor, then come those that the pass was given
    launcher: Launcher | None  # whose ``outputs`` that is


class Recipe:
    """The steps of a pass, and where on its tape the gradients are, as ``NAMES``."""

    __slots__ = ("_compute", "_found", "generation", "gives", "served", "steps")

    def __init__(self, steps: tuple[Step, ...], gives: tuple[int, ...], served: Served) -> None:
        self.steps = steps
        self.gives = gives
        self.served = served
        self.generation = -1  # of the native table that knows it
        self._compute = tuple((step.compute, operator.itemgetter(*step.reads)) for step in steps)
        self._found = operator.itemgetter(*gives)

    @property
    def own(self) -> bool:
        """Whether its kernels are those that were asked for."""
        return all(launcher.kernel.spec == asked for launcher, asked in self.served)

    def again(self, given: Tensors) -> Tensors:
        """The gradients of what the pass is given now."""
        tape: list[torch.Tensor | None] = [None, *given]
        for compute, reads in self._compute:
            tape += compute(reads(tape))
        found: Tensors = self._found(tape)
        return found


class Tape:
    """What a pass is given, then what each of its steps gave."""

    def __init__(self, given: Tensors) -> None:
        tensors = [id(each) for each in given if each is not None]
        self._whole = len(set(tensors)) == len(tensors)  # of two that are one nobody knows which was read
        self._tape: list[torch.Tensor | None] = [None, *given]
        self._steps: list[Step] = []
        self._served: Served = []

    def apply(self, compute: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
        """Have something computed by torch."""
        found, count = compute(*given), len(given)
        # One place more, because the look-up of one gives no tuple. What is kept holds no tensor.
        self._note(lambda read: (compute(*read[:count]),), (*given, None), (found,), None)
        return found

    def launched(self, launcher: Launcher, asked: ScanSpec, inputs: Inputs, results: tuple[torch.Tensor, ...]) -> None:
        """A kernel has computed something."""
        self._served.append((launcher, asked))
        self._note(launcher.outputs, inputs, results, launcher)

    def recipe(self, gradients: Tensors) -> Recipe | None:
        """The pass that has given these; None where some of it was not written down."""
        gives = self._places(gradients)
        return Recipe(tuple(self._steps), gives, self._served) if self._whole else None

    def _note(self, compute: Compute, read: Tensors, found: Tensors, launcher: Launcher | None) -> None:
        self._steps.append(Step(compute, self._places(read), launcher))
        self._tape += found

    def _places(self, tensors: Tensors) -> tuple[int, ...]:
        found = tuple(next((n for n, one in enumerate(self._tape) if one is each), -1) for each in tensors)
        self._whole &= -1 not in found
        return found
