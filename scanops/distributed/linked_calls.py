"""Repeated calls in one pass: the launch of an equal call before, by C++ where it is loaded, else from here."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from scanops.distributed.autograd_nodes import LinkedBackward
from scanops.distributed.onepass import SharedFinal, launch_linked
from scanops.ops.schema import TENSORS
from scanops.requests.call import Call
from scanops.requests.geometry import line_shape
from scanops.requests.request import Inputs
from scanops.runtime import call_cache, native

__all__ = ["LinkedScan", "make_repeat"]

Outputs = tuple[Tensor, ...]
Scan = Any  # scanops.distributed.sharded_scan.ShardedScan, which makes these


class LinkedScan:
    """The launch that served a call in one pass: equal calls are it again."""

    def __init__(self, scan: Scan, known: call_cache.Known, final: SharedFinal | None, *, reads_initial: bool) -> None:
        self.generation = native.generation()  # of the call cache that held it
        self.lessons = 0, 0  # a generation of the native table, and how often that was taught this
        self._scan, self._known = scan, known
        self._final = final  # of calls that return the carry-out
        self._reads_initial = reads_initial  # whether this rank's kernel does
        self._note = partial(known.launcher.link.log.note_launch, scan.message)

    def run(self, given: Inputs) -> Outputs:
        """Return the results for tensors like those of that call, and let C++ serve the next one."""
        scan, known = self._scan, self._known
        if scan.asked and native.should_learn(self):
            call = self._describe_recorded_call(given) if scan.recorded else self._describe_plain_call()
            native.learn_linked(scan.asked, scan.group, given.flat, known.launcher, scan.final, call)
        self._note()
        if scan.recorded:
            own = given if self._reads_initial else given._replace(initial=None)
            found: Outputs = scan.record(given.initial, self._final, known, own[:TENSORS])
            return found
        found = launch_linked(known.launcher, given.flat)
        return found if self._final is None else self._final.share(found)

    def _describe_plain_call(self) -> native.LinkedCall:
        """Return what Python does of a call without gradients that C++ serves."""
        final = self._final
        if final is None:
            return native.LinkedCall(self._note, None, None)
        return native.LinkedCall(self._note, lambda found: (final.share(found), None), None)

    def _describe_recorded_call(self, given: Inputs) -> native.LinkedCall:
        """Return what Python does of a call that autograd records and C++ serves."""
        note, final, launcher = self._note, self._final, self._known.launcher
        needs = tuple(each is not None and each.requires_grad for each in given.differentiable)
        passes = LinkedBackward(self._scan, self._known.kind, needs, given.initial, final)
        lines = line_shape(launcher.places[0][1], passes.kind.request.call.dim)

        def begin() -> tuple[int, int]:
            note()
            return passes.note()

        def finish(found: Outputs) -> tuple[Outputs, Tensor | None]:
            entered = passes.read_carry_in(lines)
            return found if final is None else final.share(found), entered

        follows = final is not None or passes.reads_carry_in
        number = passes.number = next(native.NUMBERS)
        adjoint = number, passes.saved_bits, passes, passes.begin
        return native.LinkedCall(begin, finish if follows else None, adjoint)


def make_repeat(scan: Scan, call: Call, given: Inputs, final: SharedFinal | None) -> LinkedScan | None:
    """Return the launch of a call that the call cache holds; None where equal calls are checked every time."""
    known = call_cache.recall(call, given)[1]
    if known is None or not known.launcher.own:
        return None
    return LinkedScan(scan, known, final, reads_initial=given.initial is not None)
