"""A kernel bound to shapes and strides, and the device it is launched on. No host synchronisation, no copy."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from scanops import emulation
from scanops.artifact import CPU
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import target_of_capability
from scanops.errors import LaunchFailure, UnsupportedRequest
from scanops.requests.geometry import ScanArguments, fill_geometry, fill_neighbours, split_shape
from scanops.requests.request import Inputs, Request
from scanops.runtime import workspace

__all__ = ["Device", "Launchable", "Launcher", "Template", "device_of", "emulated_size"]

# torch.cuda.current_stream() builds an object for 3 us, torch.cuda.current_device() asks whether CUDA has begun; what
# is under them is private but old, hence the spares.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a launch needs to know of where it runs."""

    target: str
    multiprocessors: int


class Launchable(Protocol):
    """What a launcher launches: a ``Kernel``, of which it needs no more."""

    @property
    def spec(self) -> ScanSpec:
        """What it computes."""

    @property
    def target(self) -> str:
        """What it is compiled for."""

    @property
    def library(self) -> ctypes.CDLL:
        """Its functions."""

    @property
    def source_path(self) -> Path:
        """For people."""


_READ_BY = ("input", "mask", "gate", "starts", "offsets", "carry_in", "saved")  # the fields for those of Inputs


class Template(NamedTuple):
    """What C++ needs for a launch, of which only pointers are left to say."""

    arguments: bytes
    reads: tuple[int, ...]  # where in these the pointer of each of Inputs goes
    outputs: tuple[tuple[int, torch.Size, torch.dtype], ...]  # the same for each of ``places``
    launch: int  # address of the function
    configure: int  # likewise; 0 on a GPU


class Launcher:
    """A kernel bound to shapes and strides: all that is left to a call is pointers, a stream and the launch."""

    __slots__ = ("_arguments", "_configure", "_launch", "_workspace_bytes", "kernel", "places")

    def __init__(self, kernel: Launchable, request: Request, device: Device) -> None:
        outer, length, inner = split_shape(request.x.shape, request.dim)
        arguments = ScanArguments(lines=outer * inner, length=length, multiprocessors=device.multiprocessors)
        if kernel.spec.strided:
            fill_geometry(arguments, request.inputs.operands(), request.dim)
        if kernel.spec.input_layout == "transposed":
            fill_neighbours(arguments, request.inputs.operands(), request.dim)
        if request.inputs.offsets is not None:
            arguments.segments = request.inputs.offsets.numel() - 2  # but for the first, and the end of the last
        if request.inputs.initial is not None:  # one result for all lines, or one for each
            arguments.carry_in_step = int(request.inputs.initial.numel() > 1)
        self.kernel = kernel
        self.places = request.places
        self._arguments = arguments
        self._launch = kernel.library.scanops_launch
        self._configure = kernel.library.scanops_emulator_configure if kernel.target == CPU else None
        self._workspace_bytes = kernel.library.scanops_workspace_bytes(outer * inner, length)

    def __call__(self, inputs: Inputs, outs: tuple[torch.Tensor, ...]) -> None:
        """Queue the scan of ``inputs`` into ``outs``, one for each of ``places``, on the device's current stream."""
        arguments = ScanArguments.from_buffer_copy(self._arguments)
        x, mask, gate, starts, offsets, initial, saved = inputs
        arguments.input = x.data_ptr()
        for (name, _, _), out in zip(self.places, outs, strict=True):
            setattr(arguments, name, out.data_ptr())
        if mask is not None:
            arguments.mask = mask.data_ptr()
        if gate is not None:
            arguments.gate = gate.data_ptr()
        if starts is not None:
            arguments.starts = starts.data_ptr()
        if offsets is not None:
            arguments.offsets = offsets.data_ptr() + offsets.itemsize
        if initial is not None:
            arguments.carry_in = initial.data_ptr()
        if saved is not None:
            arguments.saved = saved.data_ptr()
        if self._configure is not None:
            emulated = emulation.active() or emulation.DEFAULT
            self._configure(emulated.seed, emulated.multiprocessors)
            self._queue(arguments, x.device, 0)
            return
        index = x.get_device()
        if index == _current_device():
            self._queue(arguments, x.device, _stream(index))
        else:
            with torch.cuda.device(index):
                self._queue(arguments, x.device, _stream(index))

    def outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """The same into new tensors."""
        device = inputs[0].device
        outs = tuple([torch.empty(shape, dtype=dtype, device=device) for _, shape, dtype in self.places])
        self(inputs, outs)
        return outs

    @property
    def template(self) -> Template | None:
        """The same for C++; None where blocks exchange totals on a board, of which Python keeps account."""
        if self._workspace_bytes:
            return None
        at = {name: getattr(ScanArguments, name).offset for name, _ in ScanArguments._fields_}
        return Template(
            arguments=bytes(self._arguments),
            reads=tuple(at[name] for name in _READ_BY),
            outputs=tuple((at[name], shape, dtype) for name, shape, dtype in self.places),
            launch=_address(self._launch),
            configure=0 if self._configure is None else _address(self._configure),
        )

    def failure(self, code: int) -> LaunchFailure:
        """The error for what a launch has returned."""
        words = self.kernel.library.scanops_error_string(code) or b"unknown"
        return LaunchFailure(
            f"to launch the kernel {self.kernel.spec} on {self.kernel.target}",
            allowed="a launch that the device accepts and finishes",
            value=f"error {code}: {words.decode(errors='replace')}",
            hint=f"the source is at {self.kernel.source_path}",
        )

    def _queue(self, arguments: ScanArguments, device: torch.device, stream: int) -> None:
        if self._workspace_bytes:
            memory = workspace.board(device, stream, self._workspace_bytes)
            arguments.workspace = memory.data_ptr()
        code = self._launch(ctypes.byref(arguments), stream)
        if code:
            workspace.forget(device, stream)
            raise self.failure(code)


def device_of(tensor: torch.Tensor) -> Device:
    """The device that runs kernels on a tensor. Raises UnsupportedRequest where there is none."""
    device = tensor.device
    if device.type == "cuda":
        return _gpu(device.index)
    if device.type == "cpu" and emulation.active():
        return Device(target=CPU, multiprocessors=emulated_size())
    raise UnsupportedRequest(
        f"to run a kernel on a {device.type} tensor",
        allowed="a CUDA tensor, or inside `with scanops.emulate():` a CPU tensor",
        value=str(device),
        hint="move the tensor with x.cuda(), or use scanops.emulate()",
    )


def emulated_size() -> int:
    """The multiprocessors of the pretended GPU."""
    return (emulation.active() or emulation.DEFAULT).multiprocessors


@functools.cache
def _gpu(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    return Device(
        target=target_of_capability((properties.major, properties.minor)),
        multiprocessors=properties.multi_processor_count,
    )


def _stream(index: int) -> int:
    handle: int = _raw_stream(index) if _raw_stream else torch.cuda.current_stream(index).cuda_stream
    return handle


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
