"""Serve a checked request by a kernel, and cache which launch served a call, and which recipe its backward pass.

A hit has passed every check before, and the kernel reads these very tensors: nothing is converted, expanded or copied,
no environment is read and no device asked. The package's docstring says what the keys are and when the caches empty.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from scanops import emulator, environment, recording
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.lines import choose_variant
from scanops.errors import UnsupportedRequest
from scanops.forks import import_late, reset_in_child
from scanops.requests.call import Call
from scanops.requests.geometry import ALIGNMENT
from scanops.requests.request import Inputs, Needs, Request, RequestKind, Tensors
from scanops.runtime import native
from scanops.runtime.launcher import Device, Launcher, launch, places_for, readable
from scanops.runtime.launcher import device_of as device_of
from scanops.runtime.policies import POLICIES, Policy
from scanops.runtime.recipes import Recipe, Tape

if TYPE_CHECKING:
    from scanops.codegen.spec import ScanSpec
    from scanops.runtime.kernels import Kernel

Key = tuple[object, ...]
MAX_REMEMBERED = 8192  # values of some kilobytes each
# Left to the checks: options that have no hash, what is no tensor, tensors without strides or memory.
_LEFT_TO_CHECKS = (TypeError, AttributeError, RuntimeError)


class CachedLaunch(NamedTuple):
    """The launch that served a call."""

    launcher: Launcher
    kind: RequestKind

    def compute(self, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        """Launch on tensors that are numbered as ``Inputs.flat``."""
        return self.launcher.outputs(tensors)


CALLS: dict[Key, CachedLaunch] = {}
GRADIENTS: dict[Key, Recipe] = {}
PREPARED: dict[Key, Any] = {}  # what equal calls have in common, of scans with states and of ranks
Value = TypeVar("Value")


def forget() -> None:
    """Empty the call cache and the native table: every call passes all checks again."""
    for cache in (CALLS, GRADIENTS, PREPARED):
        cache.clear()
    native.forget()


reset_in_child(forget)  # kernels that the parent's worker builds are to be asked for again


def recall(call: Call, inputs: Inputs) -> tuple[Key | None, CachedLaunch | None]:
    """Return the key of a call and what served it before. Without a key the call is checked every time."""
    key = key_of(call, inputs)
    try:
        known = None if key is None else CALLS.get(key)
    except TypeError:  # an option that has no hash
        return None, None
    if known is not None and not known.launcher.own and is_superseded((known.launcher,)):
        known = None
    return key, known


def key_of(call: Call, inputs: Inputs) -> Key | None:
    """Return what is equal of equal calls: of one GPU, of fused and of sharded scans; None without such a key."""
    if not call.hashable:
        return None
    try:
        return (call, environment.SCOPED.get(), *tensor_signature(inputs.flat))
    except _LEFT_TO_CHECKS:
        return None


def recall_prepared(key: Key | None) -> tuple[Key | None, Any]:
    """Return the key and what equal calls have in common, if that is known. Without a hash there is no key."""
    try:
        return key, None if key is None else PREPARED.get(key)
    except TypeError:  # of an option, which the checks refuse
        return None, None


def remember(cache: dict[Key, Value], key: Key, value: Value) -> bool:
    """Let the next call or backward pass of ``key`` be launched as this one. Return False while calls are counted."""
    if recording.OPEN:
        return False
    if len(cache) >= MAX_REMEMBERED:
        forget()
    cache[key] = value
    return True


def recall_gradient(kind: object, needs: Needs, given: Tensors, policy: str | None) -> tuple[Key | None, Recipe | None]:
    """Return the key of a backward pass that is given these tensors, gradients first, and its recipe.

    ``kind`` is equal to itself alone: of forward passes that differ in nothing but their data.
    """
    try:
        key: Key = (kind, needs, policy, *tensor_signature(given))
        recipe = GRADIENTS.get(key)
    except _LEFT_TO_CHECKS:
        return None, None
    return key, None if recipe is None or is_superseded(recipe.launchers) else recipe


def is_superseded(launchers: tuple[Launcher, ...]) -> bool:
    """Whether a kernel stands in for one that the process holds by now."""
    if all([each.own for each in launchers]):
        return False
    recall_own = import_late("scanops.runtime.kernels").recall_own  # loaded by the call that was served
    return any(not each.own and recall_own(each.asked) for each in launchers)


def tensor_signature(tensors: Tensors) -> list[object]:
    """What spec, kernel and arguments of a launch follow from; one tensor is there at least."""
    first = tensors[0]
    if first is None:
        first = next(each for each in tensors if each is not None)
    active = None if first.is_cuda else emulator.ACTIVE.get()
    return [
        None if active is None else active.multiprocessors,
        *[
            None
            if each is None
            else (each.dtype, each.shape, each.stride(), each.device, each.data_ptr() % ALIGNMENT == 0)
            for each in tensors
        ],
    ]


def kernel_for(spec: ScanSpec, lines: int, device: Device) -> tuple[Kernel | None, KernelKey]:
    """Return the kernel for so many lines, None where PyTorch is to compute the scan; and the key of what was asked."""
    native.start(device.target)
    key = KernelKey(spec, device.target, choose_variant(spec, lines, device.multiprocessors))
    policy = POLICIES[environment.policy()]
    if recording.OPEN or environment.read_variable("SCANOPS_RECORD"):
        recording.note(key)
        return obtain_and_list(key, policy), key
    kernel: Kernel | None = import_late("scanops.runtime.kernels").obtain(key, policy)
    return kernel, key


def obtain_and_list(key: KernelKey, policy: Policy) -> Kernel | None:
    """Obtain a kernel as ``kernels.obtain`` does, and note for ``scanops.calls`` where it was found."""
    kernels, spec, target = import_late("scanops.runtime.kernels"), key.spec, key.target
    was_held, began = kernels.recall(key, policy) is not kernels.UNKNOWN, time.perf_counter()
    kernel: Kernel | None = kernels.obtain(key, policy)
    if kernel is None:
        reason = f"no compiler for {target}" if policy.may_build else f"not in the store under the policy {policy.name}"
        served = recording.Served(spec.slug, target, None, None, None, "fallback", time.perf_counter() - began, reason)
    else:
        launch = kernel.code.launch  # loaded now: it is launched next
        assert launch is not None
        seconds, place = time.perf_counter() - began, kernel.path.parent
        kept = "store" if place.is_relative_to(environment.store_root()) else "pack"
        found = "memory" if was_held else "built" if kernel.fresh else kept
        names = spec.slug, target, kernel.spec.slug, launch.kernel
        served = recording.Served(*names, kernel.builder, found, seconds, path=str(place), origin=kernel.plan.origin)
    recording.note_served(served)
    return kernel


@contextmanager
def calls() -> Iterator[list[recording.Served]]:
    """List what serves each scan inside the block, in whatever thread: kernel, builder, hit or miss, fallback and why.

    Meanwhile every call is looked up anew, from Python: C++ and the call cache serve again after the block, and outside
    of one a call pays nothing. Backward passes are listed as the scans that they are; the parts of them that PyTorch's
    operators compute are not. A call that raises is not listed.

    Yields:
        A list with one ``Served`` per scan: ``request`` and ``kernel`` (short names; ``kernel`` is None where PyTorch's
        operators computed it, with the ``reason``), ``function`` (the kernel's name in profilers), ``builder``,
        ``found`` ("memory", "store", "pack", "built" or "fallback"), ``hit``, the ``seconds`` that it took to look up,
        build and load the kernel, the ``path`` of its folder, and the ``origin`` of its plan's numbers.

    Example:
        >>> import torch, scanops
        >>> x = torch.ones(3, 100)
        >>> with scanops.calls() as made, scanops.emulate():
        ...     y = scanops.cumsum(x, 1)
        ...     y = scanops.cumsum(x, 1)
        >>> [(call.request, call.builder, call.hit) for call in made][1]
        ('sum-f32-n100', 'cpu', True)
        >>> with scanops.calls() as made:
        ...     y = scanops.cumsum(x, 1)
        >>> print(*made)
        cumsum of torch.float32 [3, 100] on cpu: PyTorch's operators, a CPU tensor outside of scanops.emulate()
    """
    with recording.open_recording() as used:
        used.calls = []
        forget()
        yield used.calls


def run(request: Request) -> tuple[tuple[torch.Tensor, ...], Launcher | None] | None:
    """Compute a request by a kernel, on the GPU of its tensors or emulated; None where PyTorch is to compute it.

    Returns the results, and the launch that computed them: None where there were no items.
    """
    outs = places_for(request)
    if not request.shape.numel():
        left = request.call.complete or request.call.fusion is not None
        return None if left else (launch(None, request, outs), None)
    launcher = bind_launcher(request, outs[0], is_awaited=request.call.link is not None)
    return None if launcher is None else (launch(launcher, request, outs), launcher)


def run_on_tape(request: Request, tape: Tape) -> tuple[torch.Tensor, ...] | None:
    """Compute a request by a kernel, and note the launch on the tape; None where there is no kernel."""
    found = run(request)
    if found is None:
        return None
    results, launcher = found
    if launcher is not None:
        tape.record_launch(launcher, readable(request).flat, results)
    return results


def bind_launcher(request: Request, out: torch.Tensor, *, is_awaited: bool) -> Launcher | None:
    """Return the launch that computes a request into ``out``; None where PyTorch is to compute it.

    ``is_awaited``: whether other ranks wait for this one's kernel. Raises UnsupportedRequest then, where there is none.
    """
    device, spec = device_of(request.x), request.spec(out)
    kernel, key = kernel_for(spec, request.line_shape.numel(), device)
    if kernel is None:
        if is_awaited:
            raise UnsupportedRequest(
                f"{request.call.name}: no kernel of {spec} for {device.target}, which method 'onepass' needs",
                allowed="a policy that builds kernels, or a store that holds this one",
                value=f"policy {environment.policy()}",
                hint=f"build it first: scanops build {spec} --target {device.target}, or pass method='twopass'",
            )
        return None
    return Launcher(kernel, request, device, key)
