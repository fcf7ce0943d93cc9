"""Calls that were served before: what was found out then, by all that it depends on.

A key is made of options, and of dtype, sizes, strides, device and 16-byte boundary of each tensor; of the emulation
where tensors are on the CPU. A call whose key is here has passed every check before, with these very tensors as what a
kernel reads: nothing was converted, expanded or copied on the way. To serve it takes one look-up, and neither reads the
environment nor asks a device for anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from scanops import emulation, workload
from scanops.codegen.spec import ScanSpec
from scanops.requests.geometry import ALIGNMENT
from scanops.requests.kinds import Kind, Needs
from scanops.requests.request import Inputs, Request
from scanops.runtime import native, obtain, policies
from scanops.runtime.launcher import Launcher
from scanops.runtime.recipes import Recipe, Served
from scanops.runtime.results import is_readable

__all__ = [
    "CALLS",
    "GRADIENTS",
    "Keep",
    "Key",
    "Known",
    "Options",
    "forget",
    "keeper",
    "recalled",
    "recalled_gradient",
    "remember_gradient",
]

Options = tuple[Any, ...]  # op, dim, reverse, exclusive, final, dtype, accumulate, as the caller gave them
Key = tuple[object, ...]
Keep = Callable[[Launcher, ScanSpec], object]  # told of who served a call, and of what was asked for
Value = TypeVar("Value")
MAX_REMEMBERED = 8192  # each is some kilobytes
# What the checks have words for: options that have no hash, what is no tensor, tensors without strides or memory.
_LEFT_TO_CHECKS = (TypeError, AttributeError, RuntimeError)


class Known(NamedTuple):
    """What is known of a call."""

    launcher: Launcher
    kind: Kind
    own: bool  # whether the kernel is the one that was asked for


class Memory(Generic[Value]):
    """Values by the keys of what came to them."""

    def __init__(self) -> None:
        self.own: dict[Key, Value] = {}
        # Where a kernel served in place of another one, each for the policy of the block that the call was in.
        self.stand_ins: dict[tuple[str | None, Key], Value] = {}
        self._generation = 0  # of the kernel cache when the stand-ins were kept

    def put(self, key: Key, value: Value, served: Served) -> None:
        """Keep a value, which kernels have come to."""
        if all(launcher.kernel.spec == asked for launcher, asked in served):
            if len(self.own) >= MAX_REMEMBERED:
                forget()
            self.own[key] = value
            return
        self._drop_replaced()
        if len(self.stand_ins) >= MAX_REMEMBERED:
            self.stand_ins.clear()
        self.stand_ins[policies.scoped(), key] = value
        # The worker may have finished a kernel since its stand-in was obtained.
        if any(
            launcher.kernel.spec != asked and obtain.held(asked, launcher.kernel.target) for launcher, asked in served
        ):
            self.stand_ins.clear()

    def stand_in(self, policy: str | None, key: Key) -> Value | None:
        """Return the value that stand-ins led to, unless kernels have replaced stand-ins since."""
        self._drop_replaced()
        return self.stand_ins.get((policy, key))

    def _drop_replaced(self) -> None:
        if self._generation != obtain.generation():
            self._generation = obtain.generation()
            self.stand_ins.clear()

    def clear(self) -> None:
        """Keep nothing."""
        self.own.clear()
        self.stand_ins.clear()


CALLS: Memory[Known] = Memory()
GRADIENTS: Memory[Recipe] = Memory()


def forget() -> None:
    """Let every call pass through all checks again."""
    CALLS.clear()
    GRADIENTS.clear()
    native.forget()


def recalled(options: Options, inputs: Inputs) -> tuple[Key | None, Known | None]:
    """The key of a call, and what is known of it. None: it is to be checked every time."""
    _, dim, reverse, exclusive, final, *_ = options
    if type(dim) is not int or not type(reverse) is type(exclusive) is type(final) is bool:
        return None, None  # True is equal to 1
    try:
        key: Key = (options, *_facts(inputs))
        known = CALLS.own.get(key)
    except _LEFT_TO_CHECKS:
        return None, None
    if known is None and CALLS.stand_ins:
        known = CALLS.stand_in(policies.scoped(), key)
    return key, known


def keeper(key: Key | None, kind: Kind, request: Request, given: Inputs) -> Keep | None:
    """What remembers who served ``request``, the call of ``key`` with the tensors ``given``; None: nobody is to."""
    if key is None or not is_readable(request):
        return None
    if any(mine is not theirs for mine, theirs in zip(request.inputs, given, strict=True)):
        return None

    def keep(launcher: Launcher, asked: ScanSpec) -> None:
        if not workload.active():
            kind.lasts = True
            CALLS.put(key, Known(launcher, kind, launcher.kernel.spec == asked), [(launcher, asked)])

    return keep


def recalled_gradient(
    kind: Kind, needs: Needs, given: tuple[torch.Tensor | None, ...], policy: str | None
) -> tuple[Key | None, Recipe | None]:
    """The key of a backward pass that is given these, the first a gradient, and how it went before."""
    try:
        key: Key = (kind, needs, *_facts(given))
        recipe = GRADIENTS.own.get(key)
    except _LEFT_TO_CHECKS:
        return None, None
    if recipe is None and GRADIENTS.stand_ins:
        recipe = GRADIENTS.stand_in(policy, key)
    return key, recipe


def remember_gradient(key: Key, recipe: Recipe) -> None:
    """Let the next backward pass of ``key`` go the same way."""
    if not workload.active():
        GRADIENTS.put(key, recipe, recipe.served)


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
