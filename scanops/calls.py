"""Calls that were served before: what was found out then, by all that it depends on.

A key is made of options, and of dtype, sizes, strides, device and 16-byte boundary of each tensor; of the emulation
where tensors are on the CPU. A call whose key is here has passed every check before, with these very tensors as what a
kernel reads: nothing was converted, expanded or copied on the way. To serve it takes one look-up, and neither reads the
environment nor asks a device for anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from scanops import emulation, misses, native, policies, recording
from scanops.codegen.spec import ScanSpec
from scanops.geometry import ALIGNMENT
from scanops.kinds import Kind, Needs
from scanops.launcher import Launcher
from scanops.recipes import Recipe
from scanops.request import Inputs, Request
from scanops.results import is_readable

__all__ = ["Keep", "Key", "Known", "Options", "forget", "keeper", "recalled", "recalled_gradient", "remember_gradient"]

Options = tuple[Any, ...]  # op, dim, reverse, exclusive, final, dtype, accumulate, as the caller gave them
Key = tuple[object, ...]
Keep = Callable[[Launcher, ScanSpec], object]  # told of who served a call, and of what was asked for
MAX_REMEMBERED = 8192  # each is some kilobytes
# What the checks have words for: options that have no hash, what is no tensor, tensors without strides or memory.
_LEFT_TO_CHECKS = (TypeError, AttributeError, RuntimeError)


class Known(NamedTuple):
    """What is known of a call."""

    launcher: Launcher
    kind: Kind
    own: bool  # whether the kernel is the one that was asked for


_CALLS: dict[Key, Known] = {}
# Likewise where a kernel serves in place of another one, each for the policy of the block that its call was in.
_STAND_INS: dict[tuple[str | None, Key], Known] = {}
_GRADIENTS: dict[Key, Recipe] = {}


def forget() -> None:
    """Let every call pass through all checks again."""
    for each in (_CALLS, _STAND_INS, _GRADIENTS):
        each.clear()
    native.forget()


misses.when_ready(_STAND_INS.clear)
recording.when_begun(forget)  # calls are counted where kernels are looked for


def recalled(options: Options, inputs: Inputs) -> tuple[Key | None, Known | None]:
    """The key of a call, and what is known of it. None: it is to be checked every time."""
    _, dim, reverse, exclusive, final, *_ = options
    if type(dim) is not int or not type(reverse) is type(exclusive) is type(final) is bool:
        return None, None  # True is equal to 1
    try:
        key: Key = (options, *_facts(inputs))
        known = _CALLS.get(key)
    except _LEFT_TO_CHECKS:
        return None, None
    if known is None and _STAND_INS:
        known = _STAND_INS.get((policies.scoped(), key))
    return key, known


def keeper(key: Key | None, kind: Kind, request: Request, given: Inputs) -> Keep | None:
    """What remembers who served ``request``, the call of ``key`` with the tensors ``given``; None: nobody is to."""
    if key is None or not is_readable(request):
        return None
    if any(mine is not theirs for mine, theirs in zip(request.inputs, given, strict=True)):
        return None

    def keep(launcher: Launcher, asked: ScanSpec) -> None:
        if recording.active():
            return
        kernel = launcher.kernel
        known = Known(launcher, kind, kernel.spec == asked)
        kind.lasts = True
        if known.own:
            if len(_CALLS) >= MAX_REMEMBERED:
                forget()
            _CALLS[key] = known
            return
        if len(_STAND_INS) >= MAX_REMEMBERED:
            _STAND_INS.clear()
        _STAND_INS[policies.scoped(), key] = known
        if misses.has(asked, kernel.target):  # since we looked, and the worker may have cleared before we remembered
            _STAND_INS.clear()

    return keep


def recalled_gradient(
    kind: Kind, needs: Needs, pool: tuple[torch.Tensor | None, ...]
) -> tuple[Key | None, Recipe | None]:
    """The key of a backward pass that reads some of ``pool``, whose first is a gradient, and how it went before."""
    try:
        key: Key = (kind, needs, *_facts(pool))
        return key, _GRADIENTS.get(key)
    except _LEFT_TO_CHECKS:
        return None, None


def remember_gradient(key: Key, recipe: Recipe) -> None:
    """Let the next backward pass of ``key`` go the same way."""
    if recording.active():
        return
    if len(_GRADIENTS) >= MAX_REMEMBERED:
        _GRADIENTS.clear()
    _GRADIENTS[key] = recipe


def _facts(tensors: tuple[torch.Tensor | None, ...]) -> list[object]:
    """What the spec, the kernel and its arguments follow from; the first tensor is there."""
    first = tensors[0]
    assert first is not None
    active = None if first.is_cuda else emulation.active()
    return [
        None if active is None else active.multiprocessors,
        *[
            None
            if each is None
            else (each.dtype, each.shape, each.stride(), each.device, each.data_ptr() % ALIGNMENT == 0)
            for each in tensors
        ],
    ]
