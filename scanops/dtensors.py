"""Where a call of the public functions is computed: of DTensors by their placements, of others in this process.

This module is above ``ops`` and ``distributed``, which do not know of each other's entries.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from scanops.fallback.fused import compose
from scanops.fallback.summed import compose_summed
from scanops.forks import LATE, load_late
from scanops.ops.dispatch import run
from scanops.ops.schema import Outputs
from scanops.requests.call import Call
from scanops.requests.request import Inputs, check_request
from scanops.requests.torch_state import runs_kernels
from scanops.runtime.launcher import deliver

__all__ = ["run_call"]


def run_call(
    call: Call,
    given: Inputs,
    outs: tuple[torch.Tensor | None, ...] = (),
    *,
    eager: bool | None = None,
) -> Outputs:
    """Return result, indices and carry-out, as far as they are asked for. The arguments are ``dispatch.run``'s."""
    eager = runs_kernels(given.flat) if eager is None else eager
    if eager or not any([type(each).__name__ == "DTensor" for each in given.flat]):
        return run(call, given, outs, eager=eager)
    if call.fusion is not None:
        return (compose_summed if call.summed else compose)(call, given, _scan_placed)
    if all([out is None for out in outs]):  # checked where ranks scan their parts
        return _scan_placed(call, given)
    request = check_request(call, given, outs)
    dtype = None if request.operator.indices else request.dtype
    return deliver(_scan_placed(replace(call, dtype=dtype), given), request)


def _scan_placed(call: Call, given: Inputs) -> Outputs:
    load_late("scanops.distributed.placed")  # which takes long to import
    found: Outputs = LATE["scanops.distributed.placed"].scan_placed(call, given)
    return found
