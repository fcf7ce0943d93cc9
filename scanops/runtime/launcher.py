"""A kernel bound to shapes and strides, its launch on a device, and the tensors around it. No host synchronisation.

Kernels whose blocks exchange tile status (decoupled look-back) need a workspace: one per stream, cleared once. A launch
marks each word with its epoch and opens the next epoch when its last ticket is taken, so launches that follow one
another need no memset between them. Launches that may overlap must not share a workspace: a captured launch has its
own, cleared in the graph, because its replays may run beside anything.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch.autograd.graph import increment_version

from scanops import emulator
from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import operator_named
from scanops.codegen.spec import ScanSpec
from scanops.emulator import CPU
from scanops.errors import LaunchFailure, UnsupportedRequest
from scanops.processes import NO_FORK
from scanops.requests.geometry import ALIGNMENT, Neighbours, ScanArguments, fill_geometry, neighbours_of, split_shape
from scanops.requests.request import Inputs, Request, Tensors, is_memory
from scanops.torch_private import current_device, raw_stream


class Device(NamedTuple):
    """The device properties that a launch depends on."""

    target: str
    multiprocessors: int


_READ_BY = ("input", "mask", "gate", "starts", "offsets", "carry_in", "saved")  # the fields for those of Inputs


class Launchable(Protocol):
    """What a launcher needs of a kernel."""

    @property
    def spec(self) -> ScanSpec: ...
    @property
    def few(self) -> bool: ...
    @property
    def target(self) -> str: ...
    @property
    def library(self) -> ctypes.CDLL: ...
    @property
    def source_path(self) -> Path: ...


class Template(NamedTuple):
    """Everything that the C++ call path needs for a launch, except the pointers of the tensors."""

    arguments: bytes
    reads: tuple[int, ...]  # byte offset of each of Inputs' pointers in the arguments
    outputs: tuple[tuple[int, torch.Size, torch.dtype], ...]  # offset, shape, dtype of each output
    launch: int  # address of the function
    configure: int  # address of the emulator's setup function; 0 on a GPU


class Launcher:
    """A kernel bound to shapes and strides: a call sets pointers and a stream, and launches."""

    __slots__ = ("_arguments", "_configure", "_launch", "_workspace_size", "asked", "few", "kernel", "own", "places")

    def __init__(self, kernel: Launchable, request: Request, device: Device, asked: ScanSpec, few: bool) -> None:
        outer, length, inner = split_shape(request.x.shape, request.call.dim)
        arguments = ScanArguments(lines=outer * inner, length=length, multiprocessors=device.multiprocessors)
        if kernel.spec.strided:
            fill_geometry(arguments, request.inputs.operands(), request.call.dim)
        if kernel.spec.input_layout == "transposed":
            arguments.neighbours = neighbours_of(request.inputs.operands(), request.call.dim) or Neighbours()
        if request.inputs.offsets is not None:
            arguments.segments = request.inputs.offsets.numel() - 2  # offsets between the first and the last
        if request.inputs.initial is not None:  # one carry-in for all lines, or one per line
            arguments.carry_in_step = int(request.inputs.initial.numel() > 1)
        self.kernel = kernel
        self.asked = asked  # the spec of the request, for which another kernel may stand in
        self.few = few  # whether its lines are few
        self.own = (kernel.spec, kernel.few) == (asked, few)
        self.places = request.places
        self._arguments = arguments
        self._launch = kernel.library.scanops_launch
        self._configure = kernel.library.scanops_emulator_configure if kernel.target == CPU else None
        self._workspace_size = kernel.library.scanops_workspace_bytes(outer * inner, length)

    def __call__(self, inputs: Tensors, outs: tuple[torch.Tensor, ...]) -> None:
        """Launch the scan of ``inputs`` into ``outs``, one per entry of ``places``, on the device's current stream."""
        arguments = ScanArguments.from_buffer_copy(self._arguments)
        x, mask, gate, starts, offsets, initial, saved = inputs
        assert x is not None
        arguments.input = x.data_ptr()
        for (name, _, _), out in zip(self.places, outs, strict=True):
            setattr(arguments, name, out.data_ptr())
        # One by one, as this is the hot path of calls that C++ does not serve.
        if mask is not None:
            arguments.mask = mask.data_ptr()
        if gate is not None:
            arguments.gate = gate.data_ptr()
        if starts is not None:
            arguments.starts = starts.data_ptr()
        if offsets is not None:
            arguments.offsets = offsets.data_ptr() + offsets.itemsize  # the first segment begins at 0
        if initial is not None:
            arguments.carry_in = initial.data_ptr()
        if saved is not None:
            arguments.saved = saved.data_ptr()
        if self._configure is not None:
            emulated = emulator.ACTIVE.get() or emulator.DEFAULT
            self._configure(emulated.seed, emulated.multiprocessors)
            self._queue(arguments, x.device, 0)
            return
        index = x.get_device()
        if index == current_device():
            self._queue(arguments, x.device, raw_stream(index))
        else:
            with torch.cuda.device(index):
                self._queue(arguments, x.device, raw_stream(index))

    def outputs(self, inputs: Tensors) -> tuple[torch.Tensor, ...]:
        """Launch the scan of ``inputs``, in the order of ``Inputs``, into new tensors and return them."""
        x = inputs[0]
        assert x is not None
        device = x.device
        outs = tuple([torch.empty(shape, dtype=dtype, device=device) for _, shape, dtype in self.places])
        self(inputs, outs)
        return outs

    @property
    def template(self) -> Template | None:
        """The launch for the C++ call path; None for kernels with a workspace, which Python manages."""
        if self._workspace_size:
            return None
        at = {field[0]: getattr(ScanArguments, field[0]).offset for field in ScanArguments._fields_}
        return Template(
            arguments=bytes(self._arguments),
            reads=tuple(at[name] for name in _READ_BY),
            outputs=tuple((at[name], shape, dtype) for name, shape, dtype in self.places),
            launch=_address(self._launch),
            configure=0 if self._configure is None else _address(self._configure),
        )

    def failure(self, code: int) -> LaunchFailure:
        """Return the error for the code that a launch returned."""
        words = self.kernel.library.scanops_error_string(code) or b"unknown"
        return LaunchFailure(
            f"launch of the kernel {self.kernel.spec} on {self.kernel.target}: error {code}",
            allowed="a launch that the device accepts and finishes",
            value=f"error {code}: {words.decode(errors='replace')}",
            hint=f"the source is at {self.kernel.source_path}",
        )

    def _queue(self, arguments: ScanArguments, device: torch.device, stream: int) -> None:
        if self._workspace_size:
            memory = workspace(device, stream, self._workspace_size)
            arguments.workspace = memory.data_ptr()
        code = self._launch(ctypes.byref(arguments), stream)
        if code:
            _drop_workspace(device, stream)
            raise self.failure(code)


_WORKSPACES: dict[tuple[str, int, int], torch.Tensor] = {}


def workspace(device: torch.device, stream: int, size: int) -> torch.Tensor:
    """Return at least ``size`` bytes for a launch on ``stream``. Keep the tensor until the launch is queued."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return torch.zeros(size, dtype=torch.uint8, device=device)
    key = _workspace_key(device, stream)
    found = _WORKSPACES.get(key)
    if found is None or found.numel() < size:
        # Cleared on the stream that uses it; its predecessor returns to the allocator in that stream's order.
        found = torch.zeros(1 << (size - 1).bit_length(), dtype=torch.uint8, device=device)
        _WORKSPACES[key] = found
    return found


def _drop_workspace(device: torch.device, stream: int) -> None:
    """Drop a workspace that a failed launch may have left half used."""
    _WORKSPACES.pop(_workspace_key(device, stream), None)


def _workspace_key(device: torch.device, stream: int) -> tuple[str, int, int]:
    """Return the key of a stream; emulated launches run in the thread that asks, as if each thread were a stream."""
    return device.type, device.index or 0, stream if device.type == "cuda" else threading.get_ident()


def device_of(tensor: torch.Tensor) -> Device:
    """Return the device that runs kernels on a tensor. Raises UnsupportedRequest where there is none."""
    device = tensor.device
    if device.type == "cuda":
        return _gpu(device.index)
    if device.type == "cpu" and (active := emulator.ACTIVE.get()):
        return Device(target=CPU, multiprocessors=active.multiprocessors)
    raise UnsupportedRequest(
        f"no kernel runs on a tensor on {device}",
        allowed="a CUDA tensor, or inside `with scanops.emulate():` a CPU tensor",
        value=str(device),
        hint="move the tensor with x.cuda(), or use scanops.emulate()",
    )


@functools.cache
def _gpu(index: int) -> Device:
    with NO_FORK:
        from scanops.codegen.targets import target_of_capability

    properties = torch.cuda.get_device_properties(index)
    return Device(
        target=target_of_capability((properties.major, properties.minor)),
        multiprocessors=properties.multi_processor_count,
    )


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


# ---- the tensors around a launch


def places_for(request: Request) -> tuple[torch.Tensor, ...]:
    """Return the tensors that a kernel writes: the caller's ``out`` where possible, else new contiguous tensors.

    Two outputs are written by the same vectorised accesses, so each must begin on a 16-byte boundary.
    """
    both = request.operator.doubled
    return tuple(
        out
        if out is not None and out.is_contiguous() and is_memory(out) and not (both and out.data_ptr() % ALIGNMENT)
        else torch.empty(shape, dtype=dtype, device=request.x.device)
        for out, (_, shape, dtype) in itertools.zip_longest(request.outs, request.places)
    )


def is_readable(request: Request) -> bool:
    """Return whether a kernel reads the carry-in as it is: one value, or contiguous with one value per line."""
    initial, shape = request.inputs.initial, request.line_shape
    return initial is None or initial.numel() == 1 or (initial.shape == shape and initial.is_contiguous())


def readable(request: Request) -> Inputs:
    """Return the inputs with a carry-in that a kernel reads."""
    initial = request.inputs.initial
    if initial is None or is_readable(request):
        return request.inputs
    return request.inputs._replace(initial=initial.expand(request.line_shape).contiguous())


def computed(launcher: Launcher | None, request: Request, outs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Launch, and return the results where the caller wants them. ``launcher`` is None for lines without items."""
    initial = request.inputs.initial
    if launcher is not None:
        launcher(request.inputs if initial is None else readable(request), outs)
    elif request.call.final:  # the carry-out of an empty line is its carry-in
        start = operator_named(request.call.op).start_of(dtype_named(request.dtype))
        final = outs[-1]
        final.copy_(initial) if initial is not None else final.fill_(start[0] if isinstance(start, tuple) else start)
    return delivered(outs, request) if any(out is not None for out in request.outs) else outs


def delivered(results: tuple[torch.Tensor, ...], request: Request) -> tuple[torch.Tensor, ...]:
    """Return the results where the caller wants them: copied to ``out`` unless they were written there."""
    pairs = itertools.zip_longest(results, request.outs)  # no ``out`` takes the carry-out
    return tuple(result if out is None else _into(out, result) for result, out in pairs)


def _into(out: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    if out is not result:
        return out.copy_(result)
    increment_version(out)  # a kernel wrote it, which torch does not see: autograd may have saved what it was
    return out
