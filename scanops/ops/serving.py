"""Serve a call in eager code: by the launch that served an equal one, by a kernel, or by PyTorch's operators.

Where a gradient is wanted, the node of autograd makes the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from scanops import recording
from scanops.fallback.fused import compose
from scanops.ops.fused import FusedForward, FusedPass, recall_fused
from scanops.ops.native_calls import register
from scanops.ops.node import ScanFunction, by_torch
from scanops.ops.schema import Outputs
from scanops.ops.summed_pass import SummedPass, compute_summed
from scanops.requests.call import Call
from scanops.requests.request import Inputs, Request, RequestKind, Tensors, check_request
from scanops.requests.segments import check_offsets
from scanops.runtime import call_cache
from scanops.runtime.launcher import is_readable

Scan = Callable[..., Outputs]  # (call, inputs): a scan wherever it is to run, as ``dispatch.run`` has it


class UncachedForward(NamedTuple):
    """The forward pass of a call that the cache does not hold: by a kernel, or the fallback where there is none."""

    kind: RequestKind
    request: Request
    key: call_cache.Key | None
    scan: Scan  # computes what the fallback of a fused scan is made of

    def compute(self, tensors: Tensors) -> Outputs:
        """Return the results, and let the call cache hold the launch that computed them."""
        request = replace(self.request, inputs=self.request.inputs.of_flat(tensors))
        found = call_cache.run(request)
        if found is None:
            return _compute_by_torch(request, self.scan)
        results, launcher = found
        if self.key is not None and launcher is not None:
            launch = call_cache.CachedLaunch(launcher, self.kind)
            self.kind.is_cached = call_cache.remember(call_cache.CALLS, self.key, launch)
        return results


def _compute_by_torch(request: Request, scan: Scan) -> Outputs:
    if request.call.fusion is not None:
        return compose(request.call, request.inputs, scan)
    return by_torch(request)


def serve(
    call: Call,
    given: Inputs,
    scan: Scan,
    outs: Tensors = (),
    *,
    eager: bool,
    record: Callable[..., Outputs] | None = None,
) -> Outputs:
    """Return result, indices and carry-out, as far as they are asked for, by a kernel or by the fallback.

    ``scan`` is ``dispatch.run``, by which fused scans are made of plain ones where there is no kernel. ``eager`` is
    that of ``run``. ``record``: what makes the node of autograd, in place of ``ScanFunction.record``.
    """
    if call.summed:
        return _serve_summed(*recall_fused(call, given), scan, eager=eager)
    if eager and call.fusion is not None and given.differentiates:
        forward, given = recall_fused(call, given)
        # A pass with gradients may write states as well, by another kernel than the call without.
        return _record_fused(forward, given, lambda call, given: serve(call, given, scan, eager=True), scan)
    key = None
    if eager and all([out is None for out in outs]):
        key, known = call_cache.recall(call, given)
        if known is not None:
            return _repeat(call, given, known, record)
    request = check_request(call, given, outs)
    if not eager:
        if request.x.is_cpu and call.fusion is None:  # whose plain scan is counted
            recording.note_on_cpu(f"{call.name} of {request.x.dtype} {list(request.x.shape)}")
        return _compute_by_torch(request, scan)
    # A call is cached if the kernel reads its tensors as they were given.
    if any(mine is not theirs for mine, theirs in zip(request.inputs.flat, given.flat, strict=True)) or (
        given.initial is not None and not is_readable(request)
    ):
        key = None
    work = UncachedForward(RequestKind(request), request, key, scan)
    return _compute(work, request.inputs, record)


def _repeat(
    asked: Call,
    given: Inputs,
    known: call_cache.CachedLaunch,
    record: Callable[..., Outputs] | None,
) -> Outputs:
    """Return the results of a call like one before it, which ``known`` served. C++ serves the next one, if it can."""
    call = known.kind.request.call
    if given.offsets is not None:  # the key has their shape, not their values
        check_offsets(call.name, given.offsets, given.x.expand(known.kind.request.shape), call.dim)
    if call.fusion is None:  # others are known by their functions: ``register_functions``
        register(asked, given, known)
    return _compute(known, given, record)


def _compute(
    work: UncachedForward | call_cache.CachedLaunch,
    given: Inputs,
    record: Callable[..., Outputs] | None,
) -> Outputs:
    """Return the results of a forward pass, recorded by autograd where a gradient is wanted."""
    if record is None and not given.differentiates:
        return work.compute(given.flat)
    return (record or ScanFunction.record)(work, given.flat)


def _serve_summed(forward: FusedForward, given: Inputs, scan: Scan, *, eager: bool) -> Outputs:
    """Return the results of a scan whose results are summed, which no cache of launches holds."""

    def compute(call: Call, given: Inputs) -> tuple[Outputs, Tensors]:
        return compute_summed(forward, given, scan, kernels=eager)

    if given.differentiates:
        return ScanFunction.record(SummedPass(forward, compute, scan), given.flat)
    return compute_summed(forward, given, scan, kernels=eager)[0]


def record_fused_call(kind: RequestKind, given: Inputs, compute: Scan, scan: Scan, *, saves_states: bool) -> Outputs:
    """Return the results of a fused scan, recorded as one node, or as PyTorch's operators around a scan."""
    forward = FusedForward(kind, given, given.needs, saves_states=saves_states)
    if kind.request.call.summed:
        summed = SummedPass(forward, lambda call, given: (compute(call, given), ()), scan)
        return ScanFunction.record(summed, given.flat)
    return _record_fused(forward, given, compute, scan)


def _record_fused(forward: FusedForward, given: Inputs, compute: Scan, scan: Scan) -> Outputs:
    if forward.is_composed:
        return compose(forward.kind.request.call, given, scan)
    return ScanFunction.record(FusedPass(forward, compute, scan), given.flat)
