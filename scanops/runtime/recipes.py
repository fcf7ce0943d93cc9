"""Recorded backward passes: the steps of one pass are replayed on other data.

Which kernels run, and what is converted or copied for them, follows from shapes, strides and dtypes alone. After one
pass, the next needs only the recorded steps from tensors to tensors.
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
Compute = Callable[[Any], tuple[torch.Tensor, ...]]  # tensors read -> tensors computed


# The launcher, and the requested spec: its kernel may be a stand-in.
Served = list[tuple[Launcher, ScanSpec]]


class Step(NamedTuple):
    """One recorded computation: a function of PyTorch or a kernel."""

    compute: Compute
    reads: tuple[int, ...]  # places on the tape; 0 is None, then the inputs of the pass
    launcher: Launcher | None  # the launcher, if a kernel computed it


class Recipe:
    """The steps of a pass, and the places of the gradients, as ``NAMES``, on its tape."""

    __slots__ = ("_compute", "_found", "generation", "gives", "served", "steps")

    def __init__(self, steps: tuple[Step, ...], gives: tuple[int, ...], served: Served) -> None:
        self.steps = steps
        self.gives = gives
        self.served = served
        self.generation = -1  # generation of the native table that holds it
        self._compute = tuple((step.compute, operator.itemgetter(*step.reads)) for step in steps)
        self._found = operator.itemgetter(*gives)

    @property
    def own(self) -> bool:
        """Whether the kernels of this recipe are the requested ones, not stand-ins."""
        return all(launcher.kernel.spec == asked for launcher, asked in self.served)

    def again(self, given: Tensors) -> Tensors:
        """Replay the steps on new tensors and return the gradients."""
        tape: list[torch.Tensor | None] = [None, *given]
        for compute, reads in self._compute:
            tape += compute(reads(tape))
        found: Tensors = self._found(tape)
        return found


class Tape:
    """The inputs of a pass, followed by the results of each of its steps."""

    def __init__(self, given: Tensors) -> None:
        tensors = [id(each) for each in given if each is not None]
        self._whole = len(set(tensors)) == len(tensors)  # two places with one tensor are ambiguous
        self._tape: list[torch.Tensor | None] = [None, *given]
        self._steps: list[Step] = []
        self._served: Served = []

    def apply(self, compute: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
        """Compute by PyTorch, and record the step."""
        found, count = compute(*given), len(given)
        # One place more, because itemgetter of one place returns no tuple. The recipe holds no tensor.
        self._note(lambda read: (compute(*read[:count]),), (*given, None), (found,), None)
        return found

    def launched(self, launcher: Launcher, asked: ScanSpec, inputs: Inputs, results: tuple[torch.Tensor, ...]) -> None:
        """Record a kernel launch and its results."""
        self._served.append((launcher, asked))
        self._note(launcher.outputs, inputs, results, launcher)

    def recipe(self, gradients: Tensors) -> Recipe | None:
        """Return the recipe of these gradients; None where a step was not recorded."""
        gives = self._places(gradients)
        return Recipe(tuple(self._steps), gives, self._served) if self._whole else None

    def _note(self, compute: Compute, read: Tensors, found: Tensors, launcher: Launcher | None) -> None:
        self._steps.append(Step(compute, self._places(read), launcher))
        self._tape += found

    def _places(self, tensors: Tensors) -> tuple[int, ...]:
        found = tuple(next((n for n, one in enumerate(self._tape) if one is each), -1) for each in tensors)
        self._whole &= -1 not in found
        return found
