"""Serve a checked request by a kernel: look it up, launch it, deliver the results."""

from __future__ import annotations

from typing import NamedTuple

import torch

from scanops.codegen.spec import ScanSpec
from scanops.requests.request import Request
from scanops.runtime import misses
from scanops.runtime.launcher import Launcher, device_of
from scanops.runtime.results import delivered, pass_on, places_for, readable

__all__ = ["Outcome", "run"]


class Outcome(NamedTuple):
    """The results of a request, and the launch that computed them."""

    results: tuple[torch.Tensor, ...]  # result, indices where the operator has them, carry-outs if they are asked for
    launcher: Launcher | None = None  # None: there were no items
    asked: ScanSpec | None = None  # the spec of the request, for which another kernel may have stood in


def run(request: Request) -> Outcome | None:
    """Compute a checked request by a kernel, on the GPU of its tensors or emulated.

    None where there is no kernel and the policy leaves the call to the fallback.
    """
    device = device_of(request.x)
    outs = places_for(request)
    if not request.x.numel():
        if request.final:
            pass_on(request, outs[-1])
        return Outcome(delivered(outs, request))
    spec = request.spec(outs[0], device.multiprocessors)
    kernel = misses.kernel_for(spec, device.target)
    if kernel is None:
        return None
    launcher = Launcher(kernel, request, device)
    launcher(readable(request), outs)
    return Outcome(delivered(outs, request), launcher, spec)
