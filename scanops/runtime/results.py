"""Around a launch: inputs as a kernel reads them, tensors that it writes, and what the caller wanted them in."""

from __future__ import annotations

import itertools

import torch
from torch.autograd.graph import increment_version

from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import operator_named
from scanops.requests.geometry import ALIGNMENT
from scanops.requests.request import Inputs, Request, is_memory

__all__ = ["delivered", "is_readable", "pass_on", "places_for", "readable"]


def readable(request: Request) -> Inputs:
    """The inputs as a kernel reads them: what lines go on from is one number, or one for each line in their order."""
    initial = request.inputs.initial
    if initial is None or is_readable(request):
        return request.inputs
    return request.inputs._replace(initial=initial.expand(request.line_shape).contiguous())


def is_readable(request: Request) -> bool:
    """Whether a kernel reads the inputs as they are."""
    initial = request.inputs.initial
    if initial is None or initial.numel() == 1:
        return True
    return initial.shape == request.line_shape and initial.is_contiguous()


def pass_on(request: Request, final: torch.Tensor) -> None:
    """Where lines are empty, what they go on from goes on."""
    start = operator_named(request.op).start_of(dtype_named(request.dtype))
    initial = request.inputs.initial
    final.copy_(initial) if initial is not None else final.fill_(start[0] if isinstance(start, tuple) else start)


def places_for(request: Request) -> tuple[torch.Tensor, ...]:
    """The caller's outs when a kernel can write them; else new tensors, contiguous as torch's results are.

    Of two outputs each has its own boundaries, which only those of whole accesses have in common.
    """
    outs, both = request.outs, len(request.outs) > 1
    wanted = (*outs, *((None,) if request.final else ()))
    return tuple(
        out
        if out is not None and out.is_contiguous() and is_memory(out) and (_on_boundary(out) or not both)
        else torch.empty(shape, dtype=dtype, device=request.x.device)
        for out, (_, shape, dtype) in zip(wanted, request.places, strict=True)
    )


def delivered(results: tuple[torch.Tensor, ...], request: Request) -> tuple[torch.Tensor, ...]:
    """The results where the caller wanted them."""
    pairs = itertools.zip_longest(results, request.outs)  # nobody says where what goes on from lines is to be put
    return tuple(result if out is None else _into(out, result) for result, out in pairs)


def _into(out: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    if out is not result:
        return out.copy_(result)
    increment_version(out)  # a kernel has written it, which torch does not see: autograd may have kept what it was
    return out


def _on_boundary(tensor: torch.Tensor) -> bool:
    return tensor.data_ptr() % ALIGNMENT == 0
