"""The recipe of a backward pass, or of a forward pass of several steps.

Which kernels of a pass run, and what is converted or copied for them, follows from shapes, strides and dtypes
alone. A pass that runs is recorded on a ``Tape``; its ``Recipe`` repeats the steps without deciding anything again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from scanops.requests.request import Tensors
from scanops.runtime.launcher import Launcher


class Step(NamedTuple):
    """One launch, or one operator of PyTorch, of a backward pass."""

    compute: Callable[[Any], Tensors]  # from the tensors it reads
    reads: tuple[int, ...]  # positions on the tape; 0 is None, then come the tensors that the pass is given
    launcher: Launcher | None  # of a launch; None for an operator of PyTorch


class Recipe:
    """The steps of a backward pass, and the positions of the gradients on its tape, in the order of ``NAMES``."""

    __slots__ = ("_compute", "_found", "gives", "launchers", "registrations", "results", "steps")

    def __init__(self, steps: tuple[Step, ...], gives: tuple[int, ...], results: int) -> None:
        self.steps, self.results = steps, results  # and how many results they have together
        self.gives = gives
        self.launchers = tuple(step.launcher for step in steps if step.launcher is not None)
        self.registrations = 0, 0  # a generation of the native table, and how often it was told of this
        self._compute = tuple((step.compute, operator.itemgetter(*step.reads)) for step in steps)
        self._found = operator.itemgetter(*gives)

    def again(self, given: Tensors) -> Tensors:
        """Repeat the pass on ``given`` and return its results."""
        tape: list[torch.Tensor | None] = [None, *given]
        for compute, reads in self._compute:
            tape += compute(reads(tape))
        found: Tensors = self._found(tape)
        return found


class Tape:
    """The tensors that a backward pass is given, then those that each of its steps returned.

    ``is_kept``: whether a recipe is to be made of it.
    """

    def __init__(self, given: Tensors, *, is_kept: bool = True) -> None:
        self.is_kept = is_kept
        tensors = [id(each) for each in given if each is not None]
        self._whole = len(set(tensors)) == len(tensors)  # of one tensor given twice it is unknown which was read
        self._tape: list[torch.Tensor | None] = [None, *given]
        self._steps: list[Step] = []
        self._first = len(self._tape)  # the position of the first result
        self._views: list[tuple[torch.Tensor, torch.Tensor]] = []  # each with the tensor whose memory it begins with

    def apply(self, compute: Callable[..., torch.Tensor], *given: torch.Tensor | None) -> torch.Tensor:
        """Compute by an operator of PyTorch, and record the step."""
        found, count = compute(*given), len(given)
        # A None more is read, because itemgetter returns no tuple for one position. The step holds no tensor.
        self._steps.append(Step(lambda read: (compute(*read[:count]),), self._places((*given, None)), None))
        self._tape.append(found)
        return found

    def call(self, compute: Callable[..., tuple[torch.Tensor | None, ...]], *given: torch.Tensor | None) -> Tensors:
        """Compute several tensors, some of which may be None, and record the step."""
        found = compute(*given)
        self.record(compute, given, found)
        return found

    def record(self, compute: Callable[..., Tensors], given: Tensors, found: Tensors) -> None:
        """Record the step that has computed ``found`` from ``given``."""
        count = len(given)
        self._steps.append(Step(lambda read: compute(*read[:count]), self._places((*given, None, None)), None))
        self._tape += found

    def view(self, compute: Callable[..., torch.Tensor], given: torch.Tensor) -> torch.Tensor:
        """Compute a view that begins where ``given`` begins: no step, because a launch reads the same address."""
        found = compute(given)
        self._views.append((found, given))
        return found

    def record_launch(self, launcher: Launcher, inputs: Tensors, results: tuple[torch.Tensor, ...]) -> None:
        """Record a launch on ``inputs``, numbered as ``Inputs.flat``, that gave ``results``."""
        read = tuple(next((given for view, given in self._views if view is each), each) for each in inputs)
        self._steps.append(Step(launcher.outputs, self._places(read), launcher))
        self._tape += results

    def recipe(self, gradients: Tensors) -> Recipe | None:
        """Return the recipe of the pass that returned ``gradients``; None if some step was not recorded."""
        gives = self._places(gradients)
        return Recipe(tuple(self._steps), gives, len(self._tape) - self._first) if self._whole else None

    def _places(self, tensors: Tensors) -> tuple[int, ...]:
        found = tuple(next((n for n, one in enumerate(self._tape) if one is each), -1) for each in tensors)
        self._whole &= -1 not in found
        return found
