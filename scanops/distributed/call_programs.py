"""Programs of sharded calls: the steps that equal calls take, recorded once and repeated.

A step is a launch, a collective, or anything else that computes tensors from tensors. Which steps there are follows
from what equal calls have in common, so a program that is repeated decides nothing again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from scanops import recording
from scanops.distributed.shards import reduce_pairs, scan_again
from scanops.ops.dispatch import run
from scanops.ops.serving import serve
from scanops.requests.arguments import resolve_call
from scanops.requests.call import Call
from scanops.requests.request import Inputs, Tensors
from scanops.runtime import call_cache, native
from scanops.runtime.launcher import Launcher
from scanops.runtime.recipes import Recipe, Tape

__all__ = ["CallProgram", "find_launcher", "record", "scan"]


class CallProgram:
    """A part of a call: ``record(tape, *tensors)`` computes it in steps, which equal calls repeat."""

    __slots__ = ("_generation", "_recipe", "_record")

    def __init__(self, record: Callable[..., Tensors]) -> None:
        self._record = record
        self._recipe: Recipe | None = None
        self._generation = -1  # of the call cache, which holds the launches

    @property
    def is_known(self) -> bool:
        """Whether the next call repeats the steps."""
        return self._recipe is not None and self._generation == native.generation()

    def __call__(self, *given: object) -> Tensors:
        """Return what the steps compute for these tensors, each a tensor or None."""
        recipe = self._recipe
        if recipe is not None and self._generation == native.generation():
            return recipe.again(given)[:-2]  # type: ignore[arg-type]
        generation = native.generation()
        found, recipe = record(self._record, given)
        self._recipe = None if recording.OPEN else recipe  # calls that are listed are looked up every time
        self._generation = generation
        return found


def record(compute: Callable[..., Tensors], given: Sequence[object]) -> tuple[Tensors, Recipe | None]:
    """Return what ``compute(tape, *given)`` returns, and the recipe of its steps, which returns two None more."""
    tape = Tape(given)  # type: ignore[arg-type]
    found = compute(tape, *given)
    return found, tape.recipe((*found, None, None))  # an itemgetter returns no tuple for one position


def scan(tape: Tape, call: Call, *tensors: object) -> Tensors:
    """Return the scan of one GPU of x, mask, gate, starts, offsets and initial, as a step of a program.

    Where C++ serves calls it is asked for this one; otherwise the step is the launch that has served it.
    """
    given: Tensors = tensors  # type: ignore[assignment]
    again, launcher = partial(scan_again, call), None
    if call.totals:
        found, launcher = reduce_pairs(call, Inputs(*given))  # type: ignore[arg-type]
    elif call.link is not None:
        again = partial(_scan_linked, call)
        found, launcher = again(*given), find_launcher(call, given)
    else:
        if native.serve is not None:
            again = partial(again, options=native.options_of(call))
        found = again(*given)
        if native.serve is None:
            launcher = find_launcher(call, given)
    if launcher is not None and launcher.own:
        tape.record_launch(launcher, given, found)
    elif found:
        tape.record(again, given, found)
    return found


def find_launcher(call: Call, tensors: Tensors) -> Launcher | None:
    """Return the launch that has served a call, if it read these tensors as they are."""
    given, eager = Inputs(*tensors), True  # type: ignore[arg-type]
    if call.link is None:
        call, eager = resolve_call(call, given, (None,))
    known = call_cache.recall(call, given)[1] if eager else None
    return known and known.launcher


def _scan_linked(call: Call, *tensors: Tensor | None) -> tuple[Tensor, ...]:
    return serve(call, Inputs(*tensors), run, eager=True)  # type: ignore[arg-type]
