"""A checked request served by a kernel: the kernel is obtained, bound to the tensors and launched."""

from __future__ import annotations

from typing import NamedTuple

import torch

from scanops import workload
from scanops.codegen.spec import ScanSpec
from scanops.requests.request import Request
from scanops.runtime import policies
from scanops.runtime.launcher import Launcher, device_of
from scanops.runtime.obtain import obtain
from scanops.runtime.results import computed, places_for

__all__ = ["Outcome", "run"]


class Outcome(NamedTuple):
    """The results of a request, and the launch that computed them."""

    results: tuple[torch.Tensor, ...]  # result, indices where the operator has them, carry-outs if they are asked for
    launcher: Launcher | None = None  # None: there were no items
    asked: ScanSpec | None = None  # the spec of the request, for which another kernel may have stood in


def run(request: Request) -> Outcome | None:
    """Compute a request by a kernel, on the GPU of its tensors or emulated. None where PyTorch is to compute it."""
    device = device_of(request.x)
    outs = places_for(request)
    if not request.x.numel():
        return Outcome(computed(None, request, outs))
    spec = request.spec(outs[0], device.multiprocessors)
    workload.note(spec, device.target, device.multiprocessors)
    kernel = obtain(spec, device.target, policies.current())
    if kernel is None:
        return None
    launcher = Launcher(kernel, request, device)
    return Outcome(computed(launcher, request, outs), launcher, spec)
