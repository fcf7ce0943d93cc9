"""Tensors of constants on GPUs, such as a gate that is a Python number: one launch writes one for all calls."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.compiler import is_compiling

from scanops import torch_private as private
from scanops.requests.torch_state import has_function_modes

MOST_CONSTANTS = 1024  # that are held, each in a block of 512 bytes; what is further is written for each call


class _Constant:
    """A tensor that nothing writes to again, and the event behind the launch that writes it, None once that is over."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.event: torch.cuda.Event | None = torch.cuda.current_stream(tensor.device).record_event()


# Never dropped: a CUDA graph, or a kernel on another stream, may read one that no call holds any more.
_CONSTANTS: dict[tuple[int, tuple[object, ...]], _Constant] = {}


def make_constant(make: Callable[[], Tensor], device: torch.device, *key: object) -> Tensor:
    """Return ``make()``, a tensor on ``device`` that is only read. On a GPU equal keys share the tensor.

    For eager code alone: what implements an operator may run in the memory of a graph that a compiler is about to
    capture. A call on another stream than the first waits for it. A capture takes what is written by then, and else
    captures the launch, as its graph may be replayed before other streams have written the constant.
    """
    if device.type != "cuda" or is_compiling() or _is_watched():
        return make()
    place = private.current_device() if device.index is None else device.index
    found = _CONSTANTS.get((place, key))
    if found is not None and found.event is None:
        return found.tensor
    with torch.cuda.device(place):
        if torch.cuda.is_current_stream_capturing():
            return make()
        if found is None:
            with torch.inference_mode(False):  # autograd saves no inference tensor
                tensor = make()
            if len(_CONSTANTS) < MOST_CONSTANTS:
                _CONSTANTS[place, key] = _Constant(tensor)
            return tensor
        event = found.event
        if event is not None and not event.query():  # type: ignore[no-untyped-call]
            torch.cuda.current_stream().wait_event(event)
        else:
            found.event = None
        return found.tensor


def _is_watched() -> bool:
    """Whether a mode, a transform or a trace is to see the tensor made."""
    modes = private.count_modes() or has_function_modes()
    return bool(modes) or private.are_transforms_active() or private.is_jit_traced()
