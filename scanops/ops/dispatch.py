"""Serve a call: by a kernel, by the fallback, or by one operator of ``torch.library`` where torch follows the code.

A compiler, a transform, a mode and a subclass see the operator and no memory. Where a gradient is wanted, the call is
made by the node of autograd.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.compiler import is_compiling

from scanops import recording
from scanops.codegen.operators import OPERATORS, find_operator
from scanops.errors import UnsupportedRequest
from scanops.fallback.fused import compose
from scanops.fallback.summed import compose_summed
from scanops.ops import schema
from scanops.ops.backward import keeps
from scanops.ops.fused import FusedPass, Scan, record_fused
from scanops.ops.node import ScanFunction, apply_operator, backward_pass, by_torch
from scanops.ops.schema import Outputs
from scanops.ops.summed_pass import SummedPass, compute_summed
from scanops.requests.call import Call, FusedKey
from scanops.requests.checks import check_readable, check_tensor, number_tensor, scalar_of, whole_dim
from scanops.requests.packed_sequences import PlainCall, is_jagged
from scanops.requests.promotion import multiplies, promote_scalars, result_dtype, scalar_dtype
from scanops.requests.request import FusedInputs, Inputs, Needs, Request, RequestKind, Tensors, check_request
from scanops.requests.segments import check_carry_in, check_offsets
from scanops.requests.torch_state import (
    autocast,
    has_kernels,
    is_batched,
    is_derived,
    is_memory,
    is_plain_memory,
    is_symbol,
    is_traced,
    is_transformed,
    runs_kernels,
)
from scanops.runtime import call_cache, native
from scanops.runtime.launcher import deliver, is_readable
from scanops.runtime.states import run_states
from scanops.torch_private import at_tracing, count_modes

AnyInputs = Inputs | FusedInputs


def resolve_call(call: Call, given: Inputs, outs: Tensors) -> tuple[Call, bool]:
    """Return a public function's call with what follows from its tensors, and whether it is eager code for kernels.

    Nothing is checked yet. ``call.per_segment`` says that carry-outs of segments are asked for; carry-ins may be, too.
    """
    rank = getattr(given.x, "ndim", 0)
    if given.offsets is not None and given.initial is not None and rank > 0:
        check_carry_in(call.op, given.initial, rank)
        call = replace(call, per_segment=True)
    if type(call.dim) is not int:
        call = replace(call, dim=whole_dim(call.dim))
    eager = runs_kernels(given.flat)
    plain = all([out is None for out in outs])
    if torch.is_autocast_enabled("cuda") and plain and call.dtype is None and (eager or is_followed(given.flat)):
        call = replace(call, dtype=autocast(call.op, given.x))
    return call, eager


def plain_name(op: Any) -> Any:
    """Return the name of an operator; what is none is left to the checks.

    Raises UnsupportedRequest for an operator of two tensors or with two results.
    """
    if type(op) is str and not _is_plain(op):
        plain = [name for name in tuple(OPERATORS) if _is_plain(name)]
        raise UnsupportedRequest(
            "scan: op must be an operator of one tensor with one result",
            allowed=", ".join(map(repr, plain)),
            value=f"op={op!r}",
            hint=f"call scanops.{OPERATORS[op].function}",
        )
    return op


@at_tracing
def _is_plain(op: str) -> bool:
    """Whether an operator has one input and one result; also True for an unknown name, which the checks refuse."""
    row = OPERATORS.get(op)
    return row is None or not (row.indices or row.gated)


def prepare_recurrence(
    a: Any, b: Any, mask: Any, dtype: torch.dtype | None, accumulate: Any, out: Any
) -> tuple[Any, Any, torch.dtype | None]:
    """Return b as a view with the shape that a and b broadcast to, the gate as a tensor, and the dtype of the result.

    The latter is None for the default. A number promotes beside b as in ``a * b``.
    """
    kind = next((kind for kind in (bool, int, float, complex) if isinstance(a, kind)), None)
    if kind is not None:
        check_tensor("linear_scan", "b", b)
        check_readable("linear_scan", "b", b)
        a, dtype = _gate_of_number(a, kind, b, mask, dtype, accumulate, out)
    if type(b) is not torch.Tensor and is_jagged(b):
        return b, a, dtype  # its gates are checked with it
    for name, each in (("a", a), ("b", b)):
        check_tensor("linear_scan", name, each)
        check_readable("linear_scan", name, each)
    symbolic = is_compiling() or is_traced()  # sizes may be unknown symbols, which must not be compared
    if not symbolic and a.shape == b.shape:
        return b, a, dtype
    if b.ndim == 0 < a.ndim:
        weights = mask if isinstance(mask, torch.Tensor) else None
        call, (b, _, _) = promote_scalars(Call("linear", 0, dtype=dtype, accumulate=accumulate), (b, weights, a))
        dtype = dtype if out is not None else call.dtype
    try:
        whole: torch.Tensor = torch.broadcast_tensors(b, a)[0]  # type: ignore[no-untyped-call]
    except RuntimeError as problem:
        raise UnsupportedRequest(
            "linear_scan: a and b must broadcast",
            allowed="each dimension of a equal to that of b, or one of them 1",
            value=f"a.shape={tuple(a.shape)}, b.shape={tuple(b.shape)}",
            hint="reshape a: a gate for each row of b[rows, n] is a[rows, 1]",
        ) from problem
    return b if not symbolic and b.shape == whole.shape else whole, a, dtype


def _gate_of_number(
    a: Any, kind: type, b: torch.Tensor, mask: Any, dtype: torch.dtype | None, accumulate: Any, out: Any
) -> tuple[torch.Tensor, torch.dtype | None]:
    """Return a gate that is a Python number as a tensor of no dimension, and the dtype of the result."""
    term = (_beside_number(b.dtype, kind),)
    weights = (mask.dtype,) if isinstance(mask, torch.Tensor) and multiplies(mask, "linear") else ()
    whole, alone = (term, weights) if weights and mask.ndim == 0 else ((*term, *weights), ())
    result = result_dtype("linear", whole, alone)
    if result is None:  # which the checks refuse
        whole, alone = term, ()
    wide = scalar_dtype("linear", dtype, accumulate, whole, alone)
    if is_compiling():  # the number may be a symbol, which cannot be checked
        gate = torch.full((), a, dtype=wide, device=b.device)
    else:
        gate = number_tensor("linear_scan", "a", a, wide, b.device)
    return gate, result if dtype is None and out is None else dtype


@at_tracing
def _beside_number(dtype: torch.dtype, kind: type) -> torch.dtype:
    """torch.result_type of a tensor and a Python number of a kind."""
    return torch.result_type(torch.empty(1, dtype=dtype, device="meta"), kind(1))


def run(
    call: Call,
    given: AnyInputs,
    outs: Tensors = (),
    *,
    eager: bool | None = None,
    fused_key: FusedKey | None = None,
) -> Outputs:
    """Return result, indices and carry-out, as far as they are asked for, by what the state of torch asks for.

    A kernel, one operator where torch follows the code, or PyTorch's operators. ``eager``: whether kernels may read the
    tensors, as ``runs_kernels`` says. ``fused_key``: what a fused call is known by before its functions are traced.
    """
    eager = runs_kernels(given.flat) if eager is None else eager
    if eager:
        return serve(call, given, outs, eager=True, fused_key=fused_key)
    if is_plain_memory(given.flat) and given.differentiates:
        return _record(call, given, outs)
    if isinstance(given, FusedInputs):
        if is_derived():
            return (compose_summed if call.summed else compose)(call, given, run)
        if is_followed(given.flat):
            return _operator(call, given)
        return serve(call, given, eager=False) if call.summed else compose(call, given, run)
    if not is_followed(given.flat):
        return serve(call, given, outs, eager=False)
    if all([out is None for out in outs]):  # checked where the operator is computed
        return _operator(call, given)
    request = check_request(call, given, outs)
    dtype = None if request.operator.indices else request.dtype
    return deliver(_operator(replace(call, dtype=dtype), given), request)


class Pass(NamedTuple):
    """The forward pass of a call that a mode may watch, or that PyTorch's operators compute."""

    kind: RequestKind

    def compute(self, tensors: Tensors) -> Outputs:
        """Return the results, without gradients."""
        return run(self.kind.request.call, Inputs(*tensors))  # type: ignore[arg-type]


def _record(call: Call, given: AnyInputs, outs: Tensors) -> Outputs:
    """Return the results of a call, recorded by the node of calls of kernels: with any mode it saves the same."""
    request = check_request(call, given, outs)
    kind = RequestKind(request)
    if isinstance(request.inputs, FusedInputs) and call.summed:
        return ScanFunction.record(SummedPass(kind, _compute_watched, run), request.inputs.flat)
    if isinstance(request.inputs, FusedInputs):
        return record_fused_call(kind, request.inputs, run, saves_states=has_kernels(request.x))
    return ScanFunction.record(Pass(kind), request.inputs.flat)


def _compute_watched(call: Call, given: FusedInputs) -> tuple[Outputs, Tensors]:
    """Return the results of a scan with sums as a mode sees them, and what the kernel saves for the backward pass."""
    states = run_states(call, given, saves=True) if has_kernels(given.x) else None
    return run(call, given), () if states is None else states[1]


def is_followed(inputs: tuple[Any, ...]) -> bool:
    """Whether a call is traced, transformed or watched by a mode, and must be one operator of the graph.

    Otherwise it is plain code on CPU tensors or on batches of gradients, or a call with an invalid argument.
    """
    if is_compiling():
        return isinstance(inputs[0], torch.Tensor)  # whose layout cannot be asked in the backward of a function
    tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
    if not isinstance(inputs[0], torch.Tensor) or any(each.layout != torch.strided for each in tensors):
        return False
    if is_transformed() or count_modes() or is_traced():
        return True
    if any(map(is_batched, tensors)):
        return False
    return not all(map(is_memory, tensors)) or inputs[0].device.type != "cpu"


def _operator(call: Call, given: AnyInputs) -> Outputs:
    """The call by one of ``torch.ops.scanops``."""
    if isinstance(given, FusedInputs):
        shape = torch.broadcast_tensors(*given.operands)[0].shape  # type: ignore[no-untyped-call]
        any_length = len(shape) > 0 and is_symbol(shape[call.dim])
        return schema.run_fused_operator(replace(call, any_length=any_length), given)
    find_operator(call.op)
    x, initial = given.x, given.initial
    # When traced, the checks run where the operator is computed: to trace them takes seconds.
    if not (is_compiling() or is_traced()):
        check_request(call, given)
    start = None
    if not isinstance(initial, torch.Tensor):
        start, given = initial, given._replace(initial=None)
        start = start if start is None else scalar_of(call.name, start)
    return apply_operator(replace(call, start=start, any_length=_changes(x, call.dim)), given)


def _changes(x: torch.Tensor, dim: int) -> bool:
    """Whether the length is known as a symbol only."""
    return isinstance(dim, int) and -x.ndim <= dim < x.ndim and is_symbol(x.shape[dim])  # others: 0-d, or refused


class First(NamedTuple):
    """The forward pass of a call that the cache does not hold: by a kernel, or the fallback where there is none."""

    kind: RequestKind
    request: Request
    key: call_cache.Key | None

    def compute(self, tensors: Tensors) -> Outputs:
        """Return the results, and let the call cache hold the launch that computed them."""
        request = replace(self.request, inputs=self.request.inputs.of_flat(tensors))
        found = call_cache.run(request)
        if found is None:
            return _compute_by_torch(request)
        results, launcher = found
        if self.key is not None and launcher is not None:
            self.kind.lasts = call_cache.remember(call_cache.CALLS, self.key, call_cache.Known(launcher, self.kind))
        return results


def _compute_by_torch(request: Request) -> Outputs:
    if isinstance(request.inputs, FusedInputs):
        return compose(request.call, request.inputs, run)
    return by_torch(request)


def serve(
    call: Call,
    given: AnyInputs,
    outs: Tensors = (),
    *,
    eager: bool,
    record: Callable[..., Outputs] | None = None,
    fused_key: FusedKey | None = None,
) -> Outputs:
    """Return result, indices and carry-out, as far as they are asked for, by a kernel or by the fallback.

    ``eager`` and ``fused_key`` are those of ``run``. ``record``: what makes the node of autograd, in place of
    ``ScanFunction.record``.
    """
    if isinstance(given, FusedInputs) and call.summed:
        return _serve_summed(_recall_kind(call, given), given, eager=eager)
    key = None
    if eager and all([out is None for out in outs]):
        key, known = call_cache.recall(fused_key or call, given)
        if known is not None:
            return repeat(fused_key or call, given, known, record)
    request = check_request(call, given, outs)
    if not eager:
        if request.x.is_cpu and call.fusion is None:  # whose plain scan is counted
            recording.note_on_cpu(f"{call.name} of {request.x.dtype} {list(request.x.shape)}")
        return _compute_by_torch(request)
    # A call is cached if the kernel reads its tensors as they were given.
    if any(mine is not theirs for mine, theirs in zip(request.inputs.flat, given.flat, strict=True)) or (
        given.initial is not None and not is_readable(request)
    ):
        key = None
    work = First(RequestKind(request), request, key)
    return _compute(work, request.inputs, record)


def repeat(
    asked: Call | FusedKey,
    given: AnyInputs,
    known: call_cache.Known,
    record: Callable[..., Outputs] | None = None,
) -> Outputs:
    """Return the results of a call like one before it, which ``known`` served.

    C++ serves the next one, if the kernel is the call's own and not a stand-in. ``asked``: the call, or what a fused
    one is known by.
    """
    call = known.kind.request.call
    if given.offsets is not None:  # the key has their shape, not their values
        check_offsets(call.name, given.offsets, given.x.expand(known.kind.request.shape), call.dim)
    if known.launcher.own and not call.per_segment and call.link is None and native.should_register(known.launcher):
        if not isinstance(asked, Call):
            native.register_call(asked._asdict(), given, known.launcher)
        elif isinstance(given, Inputs):  # its backward passes are asked for by no key that C++ reads
            forward_only = call.complete or given.offsets is not None
            parts = () if forward_only else list_adjoints(known.kind, given)
            options = native.options_of(asked)
            native.register_call(options, given, known.launcher, final=call.final, adjoints=parts)
    return _compute(known, given, record)


def _compute(work: First | call_cache.Known, given: AnyInputs, record: Callable[..., Outputs] | None) -> Outputs:
    """Return the results of a forward pass, recorded by autograd where a gradient is wanted."""
    if record is None and not given.differentiates:
        return work.compute(given.flat)
    if isinstance(given, Inputs):
        return (record or ScanFunction.record)(work, given.flat)
    # A pass with gradients may write states as well, by another kernel than the call without.
    return record_fused_call(work.kind, given, partial(serve, eager=True), saves_states=True)


def _recall_kind(call: Call, given: FusedInputs) -> RequestKind:
    """Return what equal calls of a scan whose results are summed have in common, checked the first time."""
    key = call_cache.key_of(call, given)
    try:
        known: RequestKind | None = None if key is None else call_cache.STATES.get(key)
    except TypeError:  # an option that has no hash
        key = known = None
    if known is None:
        known = RequestKind(check_request(call, given))
        if key is not None:
            call_cache.remember(call_cache.STATES, key, known)
    return known


def _serve_summed(kind: RequestKind, given: FusedInputs, *, eager: bool) -> Outputs:
    """Return the results of a scan whose results are summed, which no cache of launches holds."""

    def compute(call: Call, given: FusedInputs) -> tuple[Outputs, Tensors]:
        return compute_summed(call, given, run, kernels=eager, saves=True)

    if given.differentiates:
        return ScanFunction.record(SummedPass(kind, compute, run), given.flat)
    return compute_summed(kind.request.call, given, run, kernels=eager)[0]


def record_fused_call(kind: RequestKind, given: FusedInputs, compute: Scan, *, saves_states: bool) -> Outputs:
    """Return the results of a fused scan, recorded as one node, or as PyTorch's operators around a scan."""
    if kind.request.call.summed:
        summed = SummedPass(kind, lambda call, given: (compute(call, given), ()), run)
        return ScanFunction.record(summed, given.flat)
    found = record_fused(FusedPass(kind, compute, run, saves_states=saves_states), given)
    return compose(kind.request.call, given, run) if found is None else found


def register_chunks(call: Call, given: Inputs, view: PlainCall, result: Any) -> None:
    """Let C++ serve the next scan of whole chunks: by the launch of the ``view`` with a dimension more that it is.

    ``result`` has the shape that the call returns. Masks that were converted for the view are left to Python.
    """
    if native.serve is None or is_compiling() or type(call.dim) is not int:
        return
    viewed, eager = resolve_call(view.call, view.inputs, view.outs)
    known = call_cache.recall(viewed, view.inputs)[1] if eager and view.outs[0] is None else None
    if known is None or not known.launcher.own or len(known.launcher.places) > 1:
        return
    pairs = zip((given.x, given.mask), (view.inputs.x, view.inputs.mask), strict=True)
    if any(
        each is not None and own is not None and (each.dtype, each.data_ptr()) != (own.dtype, own.data_ptr())
        for each, own in pairs
    ):
        return
    if native.should_register(known.launcher):
        native.register_call(native.options_of(call), given, known.launcher, shape=result.shape)


# ---- the gradients that C++ may be asked for after a call that it served


class Backward:
    """The gradients of calls of one kind that C++ has served, where those of some inputs are wanted.

    Called by a node in C++ that has no kernels for its backward pass yet, or is differentiated again.
    """

    __slots__ = ("_kind", "_needs", "number")

    def __init__(self, kind: RequestKind, needs: Needs) -> None:
        self._kind, self._needs = kind, needs
        self.number = next(native.NUMBERS)

    def __call__(self, policy: str | None, given: Tensors) -> Tensors:
        """Return the gradients as ``NAMES``; ``given`` is as in ``backward_pass``, without offsets."""
        found, recipe = backward_pass(self._kind, self._needs, (*given, None), policy)
        if recipe is not None and given[0] is not None:
            native.register_gradient(self.number, given, recipe)
        return found


def list_adjoints(kind: RequestKind, inputs: Inputs) -> tuple[native.CallGradient, ...]:
    """Return each gradient that a call which C++ serves may be asked for."""
    result = kind.request.dtype
    if not (result.is_floating_point or result.is_complex):
        return ()
    may = [each is not None and (each.is_floating_point() or each.is_complex()) for each in inputs.differentiable]
    found = []
    for needs in itertools.product(*((False, True) if wanted else (False,) for wanted in may)):
        if any(needs):
            part = Backward(kind, needs)
            saves = _bits((*keeps(kind, needs), True))  # starts are saved
            found.append(native.CallGradient(_bits(needs), part.number, saves, part))
    return tuple(found)


def _bits(flags: tuple[bool, ...]) -> int:
    return sum(flag << place for place, flag in enumerate(flags))
