"""Which gradients the native part computes itself, and Python's turn in the others."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from scanops.errors import ScanopsError

if TYPE_CHECKING:
    from scanops.request import Inputs

__all__ = ["Options", "adjoint_of", "backward"]

Options = tuple[object, ...]  # op, dim, reverse, exclusive, final, dtype, accumulate


def adjoint_of(options: Options, inputs: Inputs, result: torch.dtype) -> Options | None:
    """The options of the scan of y's gradient that gives x's, which is then masked as x was.

    Of a sum in x's own dtype it is the sum from the other end. None: its gradient is Python's.
    """
    op, dim, reverse, exclusive, final, _, accumulate = options
    x, mask, *others = inputs
    differentiable = result == x.dtype and (result.is_floating_point or result.is_complex)
    selected = mask is None or mask.dtype == torch.bool
    if op != "sum" or final or not differentiable or not selected or any(each is not None for each in others):
        return None
    return (op, dim, not reverse, exclusive, False, None, accumulate)


def backward(options: Options, gradient: torch.Tensor, mask: torch.Tensor | None, policy: str | None) -> torch.Tensor:
    """x's gradient where nothing like it was learnt yet, or where it is to be differentiated again.

    ``policy`` is that of the block in which the scan was called: autograd walks back in a thread of its own.
    """
    from scanops import dispatch, policies  # which import this package
    from scanops.request import Inputs, make_request

    op, dim, reverse, exclusive, _, _, accumulate = options
    told = {"reverse": reverse, "exclusive": exclusive, "accumulate": accumulate}
    found = None
    if torch._C._has_storage(gradient):  # batched gradients have none
        # A gradient needs no kernel: nobody could have asked for this one.
        with contextlib.suppress(ScanopsError), policies.resumed(policy):
            (found,) = dispatch.outputs(op, dim, Inputs(gradient), None, final=False, **told)  # type: ignore[arg-type]
    if found is None:
        request = make_request(gradient, op, dim, **told)  # type: ignore[arg-type]
        (found,) = dispatch.composed(request, request.inputs)
    return found if mask is None else torch.where(mask, found, torch.zeros_like(found))
