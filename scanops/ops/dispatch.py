"""Serve a call: by a kernel, or by the fallback; with the node of autograd where a gradient is wanted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from scanops import workload
from scanops.fallback.scans import computed
from scanops.ops.node import ScanFunction, adjoints
from scanops.requests.call import Call, is_recorded
from scanops.requests.request import Inputs, Kind, Request, checked
from scanops.requests.segments import check_offsets
from scanops.runtime import calls, native
from scanops.runtime.calls import run
from scanops.runtime.results import Tensors, delivered

Outputs = tuple[torch.Tensor, ...]


def served(
    call: Call,
    given: Inputs,
    out: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    *,
    eager: bool,
) -> Outputs:
    """Return the result, its indices where the operator has them, and carry-outs if the call asks for them.

    ``eager``: whether kernels may read the tensors, as ``runs_kernels`` says.
    """
    key = None
    if eager and out is None and indices is None:
        key, known = calls.recalled(call, given)
        if known is not None:
            _repeated(call, given, known)
            if given.offsets is not None:  # the key has their shape, not their values
                check_offsets(call.name, given.offsets, given.x, known.kind.request.dim)
            if not _wants_gradient(given):
                return known.launcher.outputs(given)
            return _differentiated(_Launch(known), given)
    request = checked(call, given, out, indices)
    if not eager:
        if request.x.is_cpu:
            workload.note_cpu()
        return delivered(computed(request), request)
    work = _First(request, Kind(request), calls.key_of(key, request, given))
    return _differentiated(work, request.inputs) if request.differentiable else work.compute(request.inputs)


class _Launch:
    """A call that the cache holds: a launch."""

    def __init__(self, known: calls.Known) -> None:
        self._known = known

    def kind(self, _: Tensors) -> Kind:
        return self._known.kind

    def compute(self, tensors: Tensors) -> Outputs:
        return self._known.launcher.outputs(Inputs(*tensors))  # type: ignore[arg-type]


class _First:
    """A call that the cache does not hold: a kernel is looked up; the fallback where there is none."""

    def __init__(self, request: Request, kind: Kind, key: calls.Key | None) -> None:
        self._request, self._kind, self._key = request, kind, key

    def kind(self, _: Tensors) -> Kind:
        return self._kind

    def compute(self, tensors: Tensors) -> Outputs:
        request = replace(self._request, inputs=Inputs(*tensors))  # type: ignore[arg-type]
        outcome = run(request)
        if outcome is None:
            return delivered(computed(request), request)
        calls.remember(self._key, self._kind, outcome)
        return outcome.results


def _differentiated(work: Any, inputs: Inputs) -> Outputs:
    return ScanFunction.record(work, inputs[:6])


def _wants_gradient(inputs: Inputs) -> bool:
    return is_recorded() and any([each is not None and each.requires_grad for each in inputs.differentiable])


def _repeated(call: Call, given: Inputs, known: calls.Known) -> None:
    """Let C++ serve the next such call, if the kernel is the call's own and not a stand-in."""
    if not known.own:
        return
    if not native.loaded():
        native.repeated(known.launcher.kernel.target)
    elif known.kind.generation != native.generation():
        native.learn(call, given, known.launcher, known.kind, adjoints(known.kind, given))
