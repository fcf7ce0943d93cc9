"""What the operations compute: of real tensors by kernels or torch's operations, of pretended ones their shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from scanops.ops import dispatch
from scanops.ops.schema import LIBRARY, SCANS, TENSORS, Form, Options
from scanops.requests.request import Inputs, Request, has_own_operations
from scanops.requests.surroundings import AUTOCAST, autocast
from scanops.runtime import policies

__all__ = ["Results", "apart", "classless", "lengths", "request_of", "returned"]

Results = tuple[torch.Tensor, ...]
_AUTOCAST_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


def returned(results: Results) -> torch.Tensor | Results:
    """As an operation returns them: one by itself."""
    return results[0] if len(results) == 1 else results


def _computes(form: Form) -> Callable[..., torch.Tensor | Results]:
    def compute(*arguments: Any) -> torch.Tensor | Results:
        inputs, options = Inputs(*classless(arguments[:TENSORS])), Options(*arguments[TENSORS:])
        with lengths(options):
            return returned(apart(_found(form, inputs, options)))

    return compute


def classless(tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Of tensors whose class means nothing to torch's operations what kernels read: the class is given to results."""
    return tuple(
        each
        if each is None or type(each) in (torch.Tensor, torch.nn.Parameter) or has_own_operations(each)
        else each.as_subclass(torch.Tensor)
        for each in tensors
    )


def _found(form: Form, inputs: Inputs, options: Options) -> Results:
    """Whoever follows operations has seen this one: what is asked is whether there is memory to read."""
    told, given = options.computed(form, inputs)
    return dispatch.served(told, given, eager=dispatch.reads_memory(given))


def _pretends(form: Form) -> Callable[..., torch.Tensor | Results]:
    def pretend(*arguments: Any) -> torch.Tensor | Results:
        request = request_of(form, Inputs(*arguments[:TENSORS]), Options(*arguments[TENSORS:]))
        return returned(
            tuple(torch.empty(shape, dtype=dtype, device=request.x.device) for _, shape, dtype in request.places)
        )

    return pretend


def request_of(form: Form, inputs: Inputs, options: Options) -> Request:
    """The request that an operation's arguments are."""
    told, given = options.computed(form, inputs)
    initial: Any = given.initial
    if isinstance(initial, torch.SymInt | torch.SymFloat | torch.SymBool):
        initial = 1 if isinstance(initial, torch.SymInt) else True  # of its kind: nothing else counts
        given = given._replace(initial=initial)
    return dispatch.checked(told, given)


def _casts(form: Form) -> Callable[..., torch.Tensor | Results]:
    """As scanops' functions do before the operation, for who calls it by itself."""

    def cast(*arguments: Any) -> Any:
        tensors, options = arguments[:TENSORS], Options(*arguments[TENSORS:])
        if options.dtype is None and options.op in AUTOCAST:
            options = options._replace(dtype=autocast(tensors[0]))
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEY):
            return form.overload(*tensors, *options)

    return cast


def lengths(options: Options) -> AbstractContextManager[object]:
    """Where lengths change, the kernel that takes them serves, unless somebody chose a policy."""
    changes = options.any_length and policies.current().specialises
    return policies.policy("generic") if changes else nullcontext()


def apart(results: Results) -> Results:
    """Contiguous, each in memory of its own, as the schema promises: a composition may return parts of one tensor."""
    whole = (y.is_contiguous() and y.untyped_storage().nbytes() == y.nbytes for y in results)
    return tuple(
        y if alone else y.clone(memory_format=torch.contiguous_format) for y, alone in zip(results, whole, strict=True)
    )


for _form in SCANS.values():
    LIBRARY.impl(_form.name, _computes(_form), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    LIBRARY.impl(_form.name, _casts(_form), "AutocastCUDA")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"scanops::{_form.name}", _pretends(_form), lib=LIBRARY)
