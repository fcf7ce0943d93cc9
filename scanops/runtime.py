"""Launches: device, stream, workspace, pointers. No host synchronisation, no copy of an operand."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from scanops import emulation
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.split import SplitPlan
from scanops.errors import LaunchFailure, UnsupportedRequest
from scanops.geometry import ScanArguments, fill_geometry, split_shape
from scanops.kernels import CPU, Kernel, target_of_capability
from scanops.kernels import compile as compile_kernel
from scanops.request import Request, make_request

__all__ = ["run", "run_kernel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """What a launch needs to know of where it runs."""

    target: str
    multiprocessors: int


def run(request: Request) -> torch.Tensor:
    """Compute a checked request by a kernel, on the GPU of its tensors or emulated."""
    device = _device(request.x.device)
    out = _contiguous_out(request)
    if out.numel():
        spec = request.spec(out, device.multiprocessors)
        _launch(_kernel(spec, device.target), request, out, device)
    return _deliver(out, request.out)


def run_kernel(
    kernel: Kernel, x: torch.Tensor, dim: int, *, mask: torch.Tensor | None, out: torch.Tensor | None
) -> torch.Tensor:
    """Run one given kernel on tensors that must match its spec."""
    spec = kernel.spec
    dtype = getattr(torch, spec.out_dtype)
    request = make_request(
        x, spec.op, dim, mask=mask, reverse=spec.reverse, exclusive=spec.exclusive, dtype=dtype, out=out
    )
    device = _device(x.device)
    result = _contiguous_out(request)
    asked = request.spec(result, device.multiprocessors)
    _check_match(kernel, asked, device.target)
    if result.numel():
        _launch(kernel, request, result, device)
    return _deliver(result, out)


def _contiguous_out(request: Request) -> torch.Tensor:
    """The caller's out when a kernel can write it; else a new tensor, contiguous as torch's results are."""
    out = request.out
    if out is not None and out.is_contiguous():
        return out
    return torch.empty(request.x.shape, dtype=request.dtype, device=request.x.device)


def _deliver(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    if out is None or out is result:
        return result
    return out.copy_(result)


@functools.lru_cache(maxsize=4096)
def _kernel(spec: ScanSpec, target: str) -> Kernel:
    return compile_kernel(spec, target)


def _device(device: torch.device) -> _Device:
    if device.type == "cuda":
        return _gpu(device.index if device.index is not None else torch.cuda.current_device())
    emulated = emulation.active()
    if device.type == "cpu" and emulated:
        return _Device(target=CPU, multiprocessors=emulated.multiprocessors)
    raise UnsupportedRequest(
        f"to run a kernel on a {device.type} tensor",
        allowed="a CUDA tensor, or inside `with scanops.emulate():` a CPU tensor",
        value=str(device),
        hint="move the tensor with x.cuda(), or use scanops.emulate()",
    )


@functools.cache
def _gpu(index: int) -> _Device:
    properties = torch.cuda.get_device_properties(index)
    return _Device(
        target=target_of_capability((properties.major, properties.minor)),
        multiprocessors=properties.multi_processor_count,
    )


def _launch(kernel: Kernel, request: Request, out: torch.Tensor, device: _Device) -> None:
    spec, x, mask = kernel.spec, request.x, request.expanded_mask()
    outer, _, inner = split_shape(x.shape, request.dim)
    arguments = ScanArguments(
        input=x.data_ptr(),
        mask=mask.data_ptr() if mask is not None else None,
        output=out.data_ptr(),
        lines=outer * inner,
        multiprocessors=device.multiprocessors,
    )
    if "strided" in (spec.input_layout, spec.mask_layout):
        fill_geometry(arguments, x, mask, request.dim)
    workspace = _workspace(kernel, outer * inner, x.device)
    if workspace is not None:
        arguments.workspace = workspace.data_ptr()
    with _guard(x.device):
        code = kernel.library.scanops_launch(ctypes.byref(arguments), _stream(kernel, x.device))
    if code:
        raise _launch_failure(kernel, code)


def _workspace(kernel: Kernel, lines: int, device: torch.device) -> torch.Tensor | None:
    if not isinstance(kernel.plan, SplitPlan):
        return None
    # From torch's allocator, on the stream of the launch: safe to drop once the launch is queued.
    return torch.empty(kernel.plan.workspace_bytes(lines), dtype=torch.uint8, device=device)


def _guard(device: torch.device) -> AbstractContextManager[object]:
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def _stream(kernel: Kernel, device: torch.device) -> int | None:
    if device.type == "cuda":
        stream: int = torch.cuda.current_stream(device).cuda_stream
        return stream
    emulated = emulation.active()
    if emulated:
        kernel.library.scanops_emulator_configure(emulated.seed, emulated.multiprocessors)
    return None


def _launch_failure(kernel: Kernel, code: int) -> LaunchFailure:
    words: Callable[[int], bytes | None] = kernel.library.scanops_error_string
    return LaunchFailure(
        f"to launch the kernel {kernel.spec} on {kernel.target}",
        allowed="a launch that the device accepts and finishes",
        value=f"error {code}: {(words(code) or b'unknown').decode(errors='replace')}",
        hint=f"the source is at {kernel.source_path}",
    )


def _check_match(kernel: Kernel, asked: ScanSpec, target: str) -> None:
    have, want = kernel.spec.to_dict(), asked.to_dict()
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

