"""One given kernel on given tensors: whether it is the one for them."""

from __future__ import annotations

from dataclasses import replace

import torch

from scanops.artifact import CPU
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest
from scanops.requests.call import Call
from scanops.requests.request import Inputs, checked, is_memory
from scanops.runtime.launcher import Device, Launchable, Launcher, device_of, emulated_size
from scanops.runtime.results import delivered, pass_on, places_for, readable

__all__ = ["run_kernel"]


def run_kernel(
    kernel: Launchable, x: torch.Tensor, dim: int, **tensors: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    """Run one given kernel on tensors that must match its spec: those that ``make_request`` takes, by its names."""
    spec = kernel.spec
    read = {name: tensor for name, tensor in tensors.items() if name not in ("out", "indices")}
    request = checked(Call.of_spec(spec, dim), Inputs(x, **read), tensors.get("out"), tensors.get("indices"))
    for role, tensor in (("x", x), *tensors.items()):
        if tensor is not None and not is_memory(tensor):
            raise UnsupportedRequest(
                f"to run a kernel on a tensor whose values are not what lies in its memory ({role})",
                allowed="plain tensors: no subclass, no lazily negated or conjugated view",
                value=f"{type(tensor).__name__}, is_neg()={tensor.is_neg()}, is_conj()={tensor.is_conj()}",
                hint=f"pass {role}.resolve_neg().resolve_conj(), or call scanops.scan, which knows what to do",
            )
    device = device_of(x) if kernel.target != CPU else Device(target=CPU, multiprocessors=emulated_size())
    results = places_for(request)
    # Which kernel a transposed input of few lines gets is a matter of speed.
    enough = 0 if spec.input_layout == "transposed" else device.multiprocessors
    _check_match(kernel, request.spec(results[0], enough), _target_for(x, device))
    if x.numel():
        Launcher(kernel, request, device)(readable(request), results)
    elif request.final:
        pass_on(request, results[-1])
    return delivered(results, request)


def _target_for(x: torch.Tensor, device: Device) -> str:
    """The target of kernels that can read ``x``; one for the emulator reads CPU tensors, in ``emulate()`` or not."""
    if x.device.type == "cpu":
        return CPU
    return device.target if device.target != CPU else device_of(x).target


def _taken(spec: ScanSpec, asked: ScanSpec) -> ScanSpec:
    """What was asked, in the words of a kernel that takes its length, as far as that kernel is right for it."""
    if not spec.takes_length or asked.capacity > spec.capacity or not asked.divides(spec.multiple):
        return asked
    return replace(
        asked,
        length=None,
        at_most=spec.at_most,
        multiple=spec.multiple,
        lines=spec.lines,  # a matter of speed
        aligned=asked.aligned and spec.aligned,  # rows that may begin anywhere may begin on a boundary
    )


def _check_match(kernel: Launchable, asked: ScanSpec, target: str) -> None:
    have, want = kernel.spec.to_dict(), _taken(kernel.spec, asked).to_dict()
    wrong = [f"{name}={want[name]!r} (kernel: {have[name]!r})" for name in have if have[name] != want[name]]
    if kernel.target != target:
        wrong.append(f"target={target!r} (kernel: {kernel.target!r})")
    if wrong:
        raise UnsupportedRequest(
            f"the kernel {kernel.spec} for {kernel.target} on tensors of another kind",
            allowed=f"tensors whose spec is {kernel.spec}, on {kernel.target}",
            value=", ".join(wrong),
            hint=f"compile {asked.slug!r} instead, or call scanops.scan, which picks the kernel",
        )
