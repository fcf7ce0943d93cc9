"""A request served by a kernel: which one, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from scanops import workload
from scanops.codegen.spec import ScanSpec
from scanops.requests.request import Request
from scanops.runtime import misses
from scanops.runtime.launcher import Launcher, device_of
from scanops.runtime.results import delivered, pass_on, places_for, readable

__all__ = ["run"]


def run(
    request: Request, served: Callable[[Launcher, ScanSpec], object] | None = None
) -> tuple[torch.Tensor, ...] | None:
    """Compute a checked request by a kernel, on the GPU of its tensors or emulated.

    Gives the operator's outputs: the result, and its indices where it has any; then what goes on from the lines, if
    that is wanted. None where there is no kernel and the policy leaves the call to torch. ``served`` is told of the
    launcher that did it, and of the spec that was asked for, which another kernel may have stood in for.
    """
    device = device_of(request.x)
    outs = places_for(request)
    if request.x.numel():
        spec = request.spec(outs[0], device.multiprocessors)
        workload.note(spec, device.target, device.multiprocessors)
        kernel = misses.kernel_for(spec, device.target)
        if kernel is None:
            return None
        launcher = Launcher(kernel, request, device)
        launcher(readable(request), outs)
        if served is not None:
            served(launcher, spec)
    elif request.final:
        pass_on(request, outs[-1])
    return delivered(outs, request)
