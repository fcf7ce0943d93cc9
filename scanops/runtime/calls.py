"""Serve a checked request by a kernel, and cache which launch served a call, and which recipe its backward pass.

``CALLS``: key (the ``Call``; dtype, sizes, strides, device and 16-byte alignment of each tensor; on a CPU the size of
the emulated GPU) -> launcher. A hit has passed every check before, and the kernel reads these very tensors: nothing is
converted, expanded or copied, no environment is read and no device asked. ``GRADIENTS``: key (kind of call, wanted
gradients, tensors) -> recipe. Both are bounded; ``forget`` empties them and the native table, which holds the same for
C++. Where another kernel stood in for the call's own, a value serves under the same policy block and until the process
has that kernel. Nothing is cached while calls are recorded.
"""

from __future__ import annotations

import os
from typing import NamedTuple, TypeVar

import torch

from scanops import emulator, workload
from scanops.codegen.spec import ScanSpec
from scanops.processes import NO_FORK
from scanops.requests.call import Call
from scanops.requests.geometry import ALIGNMENT
from scanops.requests.request import Inputs, Kind, Needs, Request
from scanops.runtime import native, policies
from scanops.runtime.launcher import Launcher, device_of
from scanops.runtime.results import Recipe, Served, computed, is_readable, places_for

Key = tuple[object, ...]
MAX_REMEMBERED = 8192  # values of some kilobytes each
# Left to the checks: options that have no hash, what is no tensor, tensors without strides or memory.
_LEFT_TO_CHECKS = (TypeError, AttributeError, RuntimeError)


class Known(NamedTuple):
    """The launch that served a call."""

    launcher: Launcher
    kind: Kind
    own: bool  # whether the kernel is the call's own, and not a stand-in
    served: Served
    policy: str | None  # of the block of the call


CALLS: dict[Key, Known] = {}
GRADIENTS: dict[Key, tuple[Recipe, str | None]] = {}
Value = TypeVar("Value")


def forget() -> None:
    """Empty the call cache and the native table: every call passes all checks again."""
    CALLS.clear()
    GRADIENTS.clear()
    native.forget()


os.register_at_fork(after_in_child=forget)  # kernels that the parent's worker builds are to be asked for again


def recalled(call: Call, inputs: Inputs) -> tuple[Key | None, Known | None]:
    """Return the key of a call and what served it before. Without a key the call is checked every time."""
    if not call.hashable:
        return None, None
    try:
        key: Key = (call, *_facts(inputs))
        known = CALLS.get(key)
    except _LEFT_TO_CHECKS:
        return None, None
    if known is not None and not known.own and not _stands_in(known.served, known.policy, policies.scoped()):
        known = None
    return key, known


def key_of(key: Key | None, request: Request, given: Inputs) -> Key | None:
    """Return ``key`` if a kernel reads the tensors as they were given; None if the call must not be cached."""
    if key is None or not is_readable(request):
        return None
    return key if all(mine is theirs for mine, theirs in zip(request.inputs, given, strict=True)) else None


def remember(key: Key | None, kind: Kind, outcome: Outcome) -> None:
    """Let the next call of ``key`` be launched as this one was."""
    launcher, asked = outcome.launcher, outcome.asked
    if key is None or launcher is None or asked is None or workload.active():  # the first launch reads SCANOPS_RECORD
        return
    kind.lasts = True
    own = launcher.kernel.spec == asked
    _put(CALLS, key, Known(launcher, kind, own, [(launcher, asked)], policies.scoped()))


def recalled_gradient(
    kind: Kind, needs: Needs, given: tuple[torch.Tensor | None, ...], policy: str | None
) -> tuple[Key | None, Recipe | None]:
    """Return the key of a backward pass that is given these tensors, the first a gradient, and its recipe."""
    try:
        key: Key = (kind, needs, *_facts(given))
        recipe, of = GRADIENTS.get(key, (None, None))
    except _LEFT_TO_CHECKS:
        return None, None
    if recipe is not None and not recipe.own and not _stands_in(recipe.served, of, policy):
        recipe = None
    return key, recipe


def remember_gradient(key: Key, recipe: Recipe) -> None:
    """Let the next backward pass of ``key`` follow this recipe."""
    if not workload.active():
        _put(GRADIENTS, key, (recipe, policies.scoped()))


def _put(cache: dict[Key, Value], key: Key, value: Value) -> None:
    if len(cache) >= MAX_REMEMBERED:
        forget()
    cache[key] = value


def _stands_in(served: Served, policy: str | None, current: str | None) -> bool:
    """Whether kernels that stood in for others under ``policy`` may do so again."""
    from scanops.runtime.kernels import held  # loaded by the call that was served

    return policy == current and not any(
        launcher.kernel.spec != asked and held(asked, launcher.kernel.target) for launcher, asked in served
    )


def _facts(tensors: tuple[torch.Tensor | None, ...]) -> list[object]:
    """What spec, kernel and arguments of a launch follow from; the first tensor is there."""
    first = tensors[0]
    assert first is not None
    active = None if first.is_cuda else emulator.active()
    return [
        None if active is None else active.multiprocessors,
        *[
            None
            if each is None
            else (each.dtype, each.shape, each.stride(), each.device, each.data_ptr() % ALIGNMENT == 0)
            for each in tensors
        ],
    ]


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
    with NO_FORK:
        from scanops.runtime.kernels import obtain  # the store and what else only a first call needs

    kernel = obtain(spec, device.target, policies.current())
    if kernel is None:
        return None
    launcher = Launcher(kernel, request, device)
    return Outcome(computed(launcher, request, outs), launcher, spec)
