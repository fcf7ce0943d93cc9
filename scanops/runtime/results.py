"""Tensors around a launch: inputs as kernels read them, outputs to write, and the check that a kernel fits them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from torch.autograd.graph import increment_version

from scanops.artifact import CPU
from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import operator_named
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest
from scanops.requests.call import Call
from scanops.requests.geometry import ALIGNMENT
from scanops.requests.request import Inputs, Request, checked, is_memory
from scanops.runtime.launcher import Device, Launchable, Launcher, device_of, emulated_size

__all__ = ["computed", "delivered", "is_readable", "readable", "run_kernel"]


def readable(request: Request) -> Inputs:
    """Return the inputs as a kernel reads them: ``initial`` is one value, or contiguous with one value per line."""
    initial = request.inputs.initial
    if initial is None or is_readable(request):
        return request.inputs
    return request.inputs._replace(initial=initial.expand(request.line_shape).contiguous())


def is_readable(request: Request) -> bool:
    """Return whether a kernel reads the inputs as they are."""
    initial = request.inputs.initial
    if initial is None or initial.numel() == 1:
        return True
    return initial.shape == request.line_shape and initial.is_contiguous()


def places_for(request: Request) -> tuple[torch.Tensor, ...]:
    """Return the tensors that a kernel writes: the caller's ``out`` where possible, else new contiguous tensors.

    Two outputs are written by the same vectorised accesses, so each must begin on a 16-byte boundary.
    """
    outs, both = request.outs, len(request.outs) > 1
    wanted = (*outs, *((None,) if request.final else ()))
    return tuple(
        out
        if out is not None and out.is_contiguous() and is_memory(out) and not (both and out.data_ptr() % ALIGNMENT)
        else torch.empty(shape, dtype=dtype, device=request.x.device)
        for out, (_, shape, dtype) in zip(wanted, request.places, strict=True)
    )


def computed(launcher: Launcher | None, request: Request, outs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Launch, and return the results where the caller wants them. ``launcher`` is None for lines without items."""
    if launcher is not None:
        launcher(readable(request), outs)
    elif request.final:  # the carry-out of an empty line is its carry-in
        start = operator_named(request.op).start_of(dtype_named(request.dtype))
        initial, final = request.inputs.initial, outs[-1]
        final.copy_(initial) if initial is not None else final.fill_(start[0] if isinstance(start, tuple) else start)
    return delivered(outs, request)


def delivered(results: tuple[torch.Tensor, ...], request: Request) -> tuple[torch.Tensor, ...]:
    """Return the results where the caller wants them: copied to ``out`` unless they were written there."""
    pairs = itertools.zip_longest(results, request.outs)  # no ``out`` takes the carry-out
    return tuple(result if out is None else _into(out, result) for result, out in pairs)


def _into(out: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    if out is not result:
        return out.copy_(result)
    increment_version(out)  # a kernel wrote it, which torch does not see: autograd may have saved what it was
    return out


# ---- one given kernel


def run_kernel(
    kernel: Launchable, x: torch.Tensor, dim: int, **tensors: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    """Run one given kernel on ``x`` and the tensors that ``make_request`` takes by its names.

    Raises UnsupportedRequest when they ask for another kernel, and for tensors whose values are not in their memory.
    """
    spec = kernel.spec
    read = {name: tensor for name, tensor in tensors.items() if name not in ("out", "indices")}
    request = checked(Call.of_spec(spec, dim), Inputs(x, **read), tensors.get("out"), tensors.get("indices"))
    for role, tensor in (("x", x), *tensors.items()):
        if tensor is not None and not is_memory(tensor):
            raise UnsupportedRequest(
                f"the kernel {spec}: {role} is a {type(tensor).__name__} whose values are not what its memory holds",
                allowed="plain tensors: no subclass, no lazily negated or conjugated view",
                value=f"{type(tensor).__name__}, is_neg()={tensor.is_neg()}, is_conj()={tensor.is_conj()}",
                hint=f"pass {role}.resolve_neg().resolve_conj(), or call scanops.scan, which handles such tensors",
            )
    device = device_of(x) if kernel.target != CPU else Device(target=CPU, multiprocessors=emulated_size())
    outs = places_for(request)
    # Whether a transposed input of few lines gets a kernel for transposed inputs is a matter of speed.
    enough = 0 if spec.input_layout == "transposed" else device.multiprocessors
    _check_match(kernel, request.spec(outs[0], enough), _target_for(x, device))
    return computed(Launcher(kernel, request, device) if x.numel() else None, request, outs)


def _target_for(x: torch.Tensor, device: Device) -> str:
    """Return the target of kernels that can read ``x``; kernels of the emulator read any CPU tensor."""
    if x.device.type == "cpu":
        return CPU
    return device.target if device.target != CPU else device_of(x).target


def _check_match(kernel: Launchable, asked: ScanSpec, target: str) -> None:
    spec = kernel.spec
    if spec.takes_length and asked.capacity <= spec.capacity and asked.divides(spec.multiple):
        asked = replace(
            asked,
            length=None,
            at_most=spec.at_most,
            multiple=spec.multiple,
            lines=spec.lines,  # a matter of speed
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
