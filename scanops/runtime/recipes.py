"""The recipe of a backward pass: the launches and conversions it consisted of, to be repeated on other data.

Which kernels run, and what is converted or copied for them, follows from shapes, strides and dtypes alone. A backward
pass that runs is recorded on a ``Tape``; its ``Recipe`` repeats the steps without deciding anything again.
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
Compute = Callable[[Any], tuple[torch.Tensor, ...]]  # from the tensors it reads
# Launchers with the specs that were asked for: another kernel may have stood in.
Served = list[tuple[Launcher, ScanSpec]]


class Step(NamedTuple):
    """One launch, or one operator of PyTorch, of a backward pass."""

    compute: Compute
    reads: tuple[int, ...]  # positions on the tape; 0 is None, then come the tensors that the pass is given
    launcher: Launcher | None  # of a launch; None for an operator of PyTorch


class Recipe:
    """The steps of a backward pass, and the positions of the gradients on its tape, in the order of ``NAMES``."""

    __slots__ = ("_compute", "_found", "generation", "gives", "served", "steps")

    def __init__(self, steps: tuple[Step, ...], gives: tuple[int, ...], served: Served) -> None:
        self.steps = steps
        self.gives = gives
        self.served = served
        self.generation = -1  # of the C++ table that holds it
        self._compute = tuple((step.compute, operator.itemgetter(*step.reads)) for step in steps)
        self._found = operator.itemgetter(*gives)

    @property
    def own(self) -> bool:
        """Whether every kernel is the one that was asked for, and no stand-in."""
        return all(launcher.kernel.spec == asked for launcher, asked in self.served)

    def again(self, given: Tensors) -> Tensors:
        """Repeat the pass on ``given`` and return its gradients."""
        tape: list[torch.Tensor | None] = [None, *given]
        for compute, reads in self._compute:
            tape += compute(reads(tape))
        found: Tensors = self._found(tape)
        return found


class Tape:
    """The tensors that a backward pass is given, then those that each of its steps returned."""

    def __init__(self, given: Tensors) -> None:
        tensors = [id(each) for each in given if each is not None]
        self._whole = len(set(tensors)) == len(tensors)  # of one tensor given twice it is unknown which was read
        self._tape: list[torch.Tensor | None] = [None, *given]
        self._steps: list[Step] = []
        self._served: Served = []

    def apply(self, compute: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
        """Compute by an operator of PyTorch, and record the step."""
        found, count = compute(*given), len(given)
        # A None more is read, because itemgetter returns no tuple for one position. The step holds no tensor.
        self._note(lambda read: (compute(*read[:count]),), (*given, None), (found,), None)
        return found

    def launched(self, launcher: Launcher, asked: ScanSpec, inputs: Inputs, results: tuple[torch.Tensor, ...]) -> None:
        """Record a launch that served ``asked``."""
        self._served.append((launcher, asked))
        self._note(launcher.outputs, inputs, results, launcher)

    def recipe(self, gradients: Tensors) -> Recipe | None:
        """Return the recipe of the pass that returned ``gradients``; None if some step was not recorded."""
        gives = self._places(gradients)
        return Recipe(tuple(self._steps), gives, self._served) if self._whole else None

    def _note(self, compute: Compute, read: Tensors, found: Tensors, launcher: Launcher | None) -> None:
        self._steps.append(Step(compute, self._places(read), launcher))
        self._tape += found

    def _places(self, tensors: Tensors) -> tuple[int, ...]:
        found = tuple(next((n for n, one in enumerate(self._tape) if one is each), -1) for each in tensors)
        self._whole &= -1 not in found
        return found
