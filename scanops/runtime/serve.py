"""A checked request served by a kernel: the kernel is obtained, bound to the tensors and launched."""

from __future__ import annotations

from collections.abc import Callable

import torch

from scanops import workload
from scanops.codegen.spec import ScanSpec
from scanops.requests.request import Request
from scanops.runtime import policies
from scanops.runtime.launcher import Launcher, device_of
from scanops.runtime.obtain import obtain
from scanops.runtime.results import computed, places_for

__all__ = ["run"]


def run(
    request: Request, served: Callable[[Launcher, ScanSpec], object] | None = None
) -> tuple[torch.Tensor, ...] | None:
    """Compute a request by a kernel, on the GPU of its tensors or emulated. Returns None where PyTorch is to compute.

    Returns the result; its indices where the operator has any; then the carry-out if the request is ``final``.
    ``served`` is called with the launcher and the spec that was asked for, which a stand-in may serve.
    """
    device = device_of(request.x)
    outs = places_for(request)
    launcher = None
    if request.x.numel():
        spec = request.spec(outs[0], device.multiprocessors)
        workload.note(spec, device.target, device.multiprocessors)
        kernel = obtain(spec, device.target, policies.current())
        if kernel is None:
            return None
        launcher = Launcher(kernel, request, device)
    found = computed(launcher, request, outs)
    if served is not None and launcher is not None:
        served(launcher, spec)
    return found
