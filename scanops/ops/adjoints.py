"""The gradients that C++ may be asked for after a call that it served: what its node saves and what it asks Python for.

The node itself is the fast path of ``ScanFunction`` (scanops.runtime.native).
"""

from __future__ import annotations

import itertools

from scanops.ops.backward import keeps
from scanops.ops.node import backward_pass
from scanops.requests.request import Inputs, Kind, Needs, Tensors
from scanops.runtime import native

_numbers = itertools.count()


class Backward:
    """The gradients of calls of one kind that C++ has served, where those of some inputs are wanted.

    Called by a node in C++ that has no kernels for its backward pass yet, or is differentiated again.
    """

    __slots__ = ("_kind", "_needs", "number")

    def __init__(self, kind: Kind, needs: Needs) -> None:
        self._kind, self._needs = kind, needs
        self.number = next(_numbers)

    def __call__(self, policy: str | None, given: Tensors) -> Tensors:
        """Return the gradients as ``NAMES``; ``given`` is as in ``backward_pass``, without offsets."""
        found, recipe = backward_pass(self._kind, self._needs, (*given, None), policy)
        if recipe is not None and given[0] is not None:
            native.learn_gradient(self.number, given, recipe)
        return found


def adjoints(kind: Kind, inputs: Inputs) -> tuple[tuple[int, int, int, Backward], ...]:
    """Return (needs as bits, number, saved tensors as bits, Python's part) of each gradient a call may be asked for."""
    result = kind.request.dtype
    if not (result.is_floating_point or result.is_complex):
        return ()
    may = [each is not None and (each.is_floating_point() or each.is_complex()) for each in inputs.differentiable]
    found = []
    for needs in itertools.product(*((False, True) if wanted else (False,) for wanted in may)):
        if any(needs):
            part = Backward(kind, needs)
            found.append((_bits(needs), part.number, _bits((*keeps(kind, needs), True)), part))  # starts are saved
    return tuple(found)


def _bits(flags: tuple[bool, ...]) -> int:
    return sum(flag << place for place, flag in enumerate(flags))
