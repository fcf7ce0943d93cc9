"""Launches: device, stream, workspace, pointers. No host synchronisation, no copy of an operand."""

from __future__ import annotations

import ctypes
import functools
import itertools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from scanops import emulation, misses, native, policies, recording, workspace
from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import operator_named
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import target_of_capability
from scanops.errors import LaunchFailure, UnsupportedRequest
from scanops.geometry import ALIGNMENT, ScanArguments, fill_geometry, fill_neighbours, split_shape
from scanops.kernels import CPU, Kernel
from scanops.request import Inputs, Request, is_memory, make_request

__all__ = ["Launcher", "bind", "remembered", "run", "run_kernel"]

MAX_REMEMBERED = 8192  # launchers; each is a few hundred bytes
# torch.cuda.current_stream() builds an object for 3 us; the raw handle is private but old, hence the spare.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """What a launch needs to know of where it runs."""

    target: str
    multiprocessors: int


class Template(NamedTuple):
    """What C++ needs for a launch, of which only pointers are left to say."""

    arguments: bytes
    reads: tuple[int, ...]  # where in these the pointer of each operand goes
    outputs: tuple[tuple[int, torch.Size, torch.dtype], ...]  # the same for each of ``places``
    launch: int  # address of the function
    configure: int  # likewise; 0 on a GPU


class Launcher:
    """A kernel bound to shapes and strides: all that is left to a call is pointers, a stream and the launch."""

    __slots__ = ("_arguments", "_configure", "_launch", "_workspace_bytes", "generation", "kernel", "places")

    def __init__(self, kernel: Kernel, request: Request, device: _Device) -> None:
        outer, length, inner = split_shape(request.x.shape, request.dim)
        arguments = ScanArguments(lines=outer * inner, length=length, multiprocessors=device.multiprocessors)
        if kernel.spec.strided:
            fill_geometry(arguments, request.inputs.operands(), request.dim)
        if kernel.spec.input_layout == "transposed":
            fill_neighbours(arguments, request.inputs.operands(), request.dim)
        if request.inputs.offsets is not None:
            arguments.segments = request.inputs.offsets.numel() - 2  # but for the first, and the end of the last
        self.kernel = kernel
        self.places = request.places
        self.generation = -1  # of the native table that knows it
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
        if initial is not None:  # one result for all lines, or one for each
            arguments.carry_in = initial.data_ptr()
            arguments.carry_in_step = int(initial.numel() > 1)
        if saved is not None:
            arguments.saved = saved.data_ptr()
        if self._configure is None:
            with _guard(x.get_device()):
                self._queue(arguments, x.device, _stream(x.get_device()))
        else:
            emulated = emulation.active() or emulation.DEFAULT
            self._configure(emulated.seed, emulated.multiprocessors)
            self._queue(arguments, x.device, 0)

    def outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """The same into new tensors."""
        device = inputs.x.device
        outs = tuple(torch.empty(shape, dtype=dtype, device=device) for _, shape, dtype in self.places)
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
            reads=tuple(at[name] for name in ("input", "mask", "gate", "starts")),
            outputs=tuple((at[name], shape, dtype) for name, shape, dtype in self.places),
            launch=_address(self._launch),
            configure=0 if self._configure is None else _address(self._configure),
        )

    def failure(self, code: int) -> LaunchFailure:
        """The error for what a launch has returned."""
        return _launch_failure(self.kernel, code)

    def _queue(self, arguments: ScanArguments, device: torch.device, stream: int) -> None:
        if self._workspace_bytes:
            memory = workspace.board(device, stream, self._workspace_bytes)
            arguments.workspace = memory.data_ptr()
        code = self._launch(ctypes.byref(arguments), stream)
        if code:
            workspace.forget(device, stream)
            raise self.failure(code)


_LAUNCHERS: dict[tuple[object, ...], Launcher] = {}
# Likewise for kernels that serve in place of another one, each for the policy of the block that its call was in.
_STAND_INS: dict[tuple[str | None, tuple[object, ...]], Launcher] = {}
misses.when_ready(_STAND_INS.clear)
recording.when_begun(_LAUNCHERS.clear)  # calls are counted where kernels are looked for
recording.when_begun(_STAND_INS.clear)
recording.when_begun(native.forget)


def remembered(
    options: tuple[object, ...], inputs: Inputs, *, of_gradient: bool = False
) -> tuple[tuple[object, ...], Launcher | None]:
    """The key of a call, and the launcher that served it before: everything was checked then.

    The key holds all that the checks and the spec depend on. The scans of gradients have options of their own, which
    the native part does not know.
    """
    key = (
        options,
        None if inputs.x.is_cuda else emulation.active(),
        *(
            each if each is None else (each.dtype, each.shape, each.stride(), each.get_device(), _aligned(each))
            for each in inputs
        ),
    )
    launcher = _LAUNCHERS.get(key)
    if launcher is not None:
        if not of_gradient:
            native.learn(options, inputs, launcher)
    elif _STAND_INS:
        launcher = _STAND_INS.get((policies.scoped(), key))
    return key, launcher


def run(request: Request, key: tuple[object, ...] | None = None) -> tuple[torch.Tensor, ...] | None:
    """Compute a checked request by a kernel, on the GPU of its tensors or emulated; remember how under ``key``.

    Gives the operator's outputs: the result, and its indices where it has any; then what goes on from the lines, if
    that is wanted. None where there is no kernel and the policy leaves the call to torch.
    """
    device = _device(request.x.device)
    outs = _contiguous_outs(request)
    if request.x.numel():
        spec = request.spec(outs[0], device.multiprocessors)
        kernel = misses.kernel_for(spec, device.target)
        if kernel is None:
            return None
        launcher = Launcher(kernel, request, device)
        launcher(_readable(request), outs)
        if key is not None and not recording.active():
            _remember(key, launcher, spec)
    elif request.final:
        _pass_on(request, outs[-1])
    return _deliver(outs, request)


def bind(request: Request, key: tuple[object, ...], out: torch.Tensor) -> None:
    """Remember under ``key`` what has served ``request`` into ``out`` where autograd stood between."""
    device = _device(request.x.device)
    spec = request.spec(out, device.multiprocessors) if request.x.numel() else None
    kernel = None if spec is None else misses.held(spec, device.target)
    if spec is not None and kernel is not None and not recording.active():
        _remember(key, Launcher(kernel, request, device), spec)


def _remember(key: tuple[object, ...], launcher: Launcher, asked: ScanSpec) -> None:
    kernel = launcher.kernel
    if kernel.spec == asked:
        if len(_LAUNCHERS) >= MAX_REMEMBERED:
            _LAUNCHERS.clear()
            native.forget()
        _LAUNCHERS[key] = launcher
        return
    if len(_STAND_INS) >= MAX_REMEMBERED:
        _STAND_INS.clear()
    _STAND_INS[policies.scoped(), key] = launcher
    if misses.has(asked, kernel.target):  # since we looked, and the worker may have cleared before we remembered
        _STAND_INS.clear()


def run_kernel(kernel: Kernel, x: torch.Tensor, dim: int, **tensors: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """Run one given kernel on tensors that must match its spec: those that ``make_request`` takes, by its names."""
    spec = kernel.spec
    request = make_request(
        x,
        spec.op,
        dim,
        reverse=spec.reverse,
        exclusive=spec.exclusive,
        final=spec.final,
        dtype=getattr(torch, spec.out_dtype),
        accumulate=spec.accumulate,
        **tensors,
    )
    for role, tensor in (("x", x), *tensors.items()):
        if tensor is not None and not is_memory(tensor):
            raise UnsupportedRequest(
                f"to run a kernel on a tensor whose values are not what lies in its memory ({role})",
                allowed="plain tensors: no subclass, no lazily negated or conjugated view",
                value=f"{type(tensor).__name__}, is_neg()={tensor.is_neg()}, is_conj()={tensor.is_conj()}",
                hint=f"pass {role}.resolve_neg().resolve_conj(), or call scanops.scan, which knows what to do",
            )
    device = _device(x.device) if kernel.target != CPU else _Device(target=CPU, multiprocessors=_emulated_size())
    results = _contiguous_outs(request)
    # Which kernel a transposed input of few lines gets is a matter of speed.
    enough = 0 if spec.input_layout == "transposed" else device.multiprocessors
    _check_match(kernel, request.spec(results[0], enough), _target_for(x, device))
    if x.numel():
        Launcher(kernel, request, device)(_readable(request), results)
    elif request.final:
        _pass_on(request, results[-1])
    return _deliver(results, request)


def _readable(request: Request) -> Inputs:
    """The inputs as a kernel reads them: what lines go on from is one number, or one for each line in their order."""
    initial = request.inputs.initial
    if initial is None or initial.numel() == 1:
        return request.inputs
    return request.inputs._replace(initial=initial.expand(request.line_shape).contiguous())


def _pass_on(request: Request, final: torch.Tensor) -> None:
    """Where lines are empty, what they go on from goes on."""
    start = operator_named(request.op).start_of(dtype_named(request.dtype))
    initial = request.inputs.initial
    final.copy_(initial) if initial is not None else final.fill_(start[0] if isinstance(start, tuple) else start)


def _contiguous_outs(request: Request) -> tuple[torch.Tensor, ...]:
    """The caller's outs when a kernel can write them; else new tensors, contiguous as torch's results are.

    Of two outputs each has its own boundaries, which only those of whole accesses have in common.
    """
    outs, both = request.outs, len(request.outs) > 1
    wanted = (*outs, *((None,) if request.final else ()))
    return tuple(
        out
        if out is not None and out.is_contiguous() and is_memory(out) and (_aligned(out) or not both)
        else torch.empty(shape, dtype=dtype, device=request.x.device)
        for out, (_, shape, dtype) in zip(wanted, request.places, strict=True)
    )


def _deliver(results: tuple[torch.Tensor, ...], request: Request) -> tuple[torch.Tensor, ...]:
    pairs = itertools.zip_longest(results, request.outs)  # nobody says where what goes on from lines is to be put
    return tuple(result if out is None or out is result else out.copy_(result) for result, out in pairs)


def _device(device: torch.device) -> _Device:
    if device.type == "cuda":
        return _gpu(device.index)
    if device.type == "cpu" and emulation.active():
        return _Device(target=CPU, multiprocessors=_emulated_size())
    raise UnsupportedRequest(
        f"to run a kernel on a {device.type} tensor",
        allowed="a CUDA tensor, or inside `with scanops.emulate():` a CPU tensor",
        value=str(device),
        hint="move the tensor with x.cuda(), or use scanops.emulate()",
    )


def _emulated_size() -> int:
    return (emulation.active() or emulation.DEFAULT).multiprocessors


def _target_for(x: torch.Tensor, device: _Device) -> str:
    """The target of kernels that can read ``x``; one for the emulator reads CPU tensors, in ``emulate()`` or not."""
    if x.device.type == "cpu":
        return CPU
    return device.target if device.target != CPU else _device(x.device).target


@functools.cache
def _gpu(index: int) -> _Device:
    properties = torch.cuda.get_device_properties(index)
    return _Device(
        target=target_of_capability((properties.major, properties.minor)),
        multiprocessors=properties.multi_processor_count,
    )


def _aligned(tensor: torch.Tensor) -> bool:
    return tensor.data_ptr() % ALIGNMENT == 0


def _guard(index: int) -> AbstractContextManager[object]:
    return nullcontext() if index == torch.cuda.current_device() else torch.cuda.device(index)


def _stream(index: int) -> int:
    handle: int = _raw_stream(index) if _raw_stream else torch.cuda.current_stream(index).cuda_stream
    return handle


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def _launch_failure(kernel: Kernel, code: int) -> LaunchFailure:
    words = kernel.library.scanops_error_string(code) or b"unknown"
    return LaunchFailure(
        f"to launch the kernel {kernel.spec} on {kernel.target}",
        allowed="a launch that the device accepts and finishes",
        value=f"error {code}: {words.decode(errors='replace')}",
        hint=f"the source is at {kernel.source_path}",
    )


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


def _check_match(kernel: Kernel, asked: ScanSpec, target: str) -> None:
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
