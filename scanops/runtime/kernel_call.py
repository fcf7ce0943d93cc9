"""A call of one given kernel, and the check that it fits the tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from scanops import emulator
from scanops.emulator import CPU
from scanops.errors import UnsupportedRequest
from scanops.requests.call import Call
from scanops.requests.request import Inputs, check_request
from scanops.requests.torch_state import is_memory
from scanops.runtime.launcher import Device, Launchable, Launcher, device_of, launch, places_for

if TYPE_CHECKING:
    from scanops.codegen.spec import ScanSpec


def run_kernel(
    kernel: Launchable, x: torch.Tensor, dim: int, chunk: int | None = None, **tensors: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    """Run one given kernel on ``x`` and the tensors that ``make_request`` takes by its names.

    Raises UnsupportedRequest when they ask for another kernel, and for tensors whose values are not in their memory.
    """
    spec = kernel.spec
    read: dict[str, Any] = {name: tensor for name, tensor in tensors.items() if name not in ("out", "indices")}
    call = replace(Call.of_spec(spec, dim), chunk=chunk)
    request = check_request(call, Inputs(x, **read), (tensors.get("out"), tensors.get("indices")))
    for role, tensor in (("x", x), *tensors.items()):
        if tensor is not None and not is_memory(tensor):
            raise UnsupportedRequest(
                f"the kernel {spec}: {role} is a {type(tensor).__name__} whose values are not what its memory holds",
                allowed="plain tensors: no subclass, no lazily negated or conjugated view",
                value=f"{type(tensor).__name__}, is_neg()={tensor.is_neg()}, is_conj()={tensor.is_conj()}",
                hint=f"pass {role}.resolve_neg().resolve_conj(), or call scanops.scan, which handles such tensors",
            )
    emulated = (emulator.ACTIVE.get() or emulator.DEFAULT).multiprocessors
    device = device_of(x) if kernel.target != CPU else Device(target=CPU, multiprocessors=emulated)
    outs = places_for(request)
    target = CPU if x.device.type == "cpu" else device_of(x).target  # the emulator's kernels read any CPU tensor
    _check_match(kernel, request.spec(outs[0]), target)
    return launch(Launcher(kernel, request, device, kernel.key) if x.numel() else None, request, outs)


def _check_match(kernel: Launchable, asked: ScanSpec, target: str) -> None:
    spec = kernel.spec
    if spec.takes_length and asked.capacity <= spec.capacity and asked.divides(spec.multiple):
        asked = replace(
            asked,
            length=None,
            at_most=spec.at_most,
            multiple=spec.multiple,
            aligned=asked.aligned and spec.aligned,  # a kernel for any boundary reads aligned rows too
        )
    have, want = spec.to_dict(), asked.to_dict()
    wrong = [f"{name}={want[name]!r} (kernel: {have[name]!r})" for name in have if have[name] != want[name]]
    if kernel.target != target:
        wrong.append(f"target={target!r} (kernel: {kernel.target!r})")
    if wrong:
        raise UnsupportedRequest(
            f"tensors do not match the kernel {spec} for {kernel.target}: {', '.join(wrong)}",
            allowed=f"tensors whose spec is {spec}, on {kernel.target}",
            value=", ".join(wrong),
            hint=f"compile {asked.slug!r} instead, or call scanops.scan, which picks the kernel",
        )
