"""A kernel bound to shapes and strides, its launch on a device, and the tensors around it. No host synchronisation."""

from __future__ import annotations

import ctypes
import functools
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch.autograd.graph import increment_version

from scanops import emulator
from scanops.codegen.dtypes import dtype_named
from scanops.codegen.fragments import fragments
from scanops.codegen.operators import operator_named
from scanops.codegen.targets import target_of_capability
from scanops.emulator import CPU
from scanops.errors import LaunchFailure, UnsupportedRequest
from scanops.requests.geometry import (
    ALIGNMENT,
    BEFORE_FURTHER,
    Neighbours,
    ScanArguments,
    fill_geometry,
    neighbours_of,
    split_shape,
)
from scanops.requests.request import FURTHER_AT, OPERANDS, Inputs, Request, Tensors
from scanops.requests.torch_state import is_memory
from scanops.runtime.binaries import bind_binary
from scanops.runtime.workspaces import drop_workspace, find_workspace
from scanops.torch_private import current_device, raw_stream

if TYPE_CHECKING:
    from scanops.codegen.kernel_key import KernelKey
    from scanops.codegen.spec import ScanSpec
    from scanops.runtime.binaries import Binary
    from scanops.runtime.binding import BoundKernel


class Device(NamedTuple):
    """The device properties that a launch depends on."""

    target: str
    multiprocessors: int


Places = tuple[tuple[str, torch.Size, torch.dtype], ...]  # as of a Request
Reads = tuple[tuple[str, int, int], ...]  # field of ScanArguments, place of the tensor in a call, bytes to skip
_READ_BY = (
    "input",
    "mask",
    "gate",
    "starts",
    "offsets",
    "carry_in",
    "saved",
    "further1",
)  # the fields for those of Inputs


class Launchable(Protocol):
    """What a launcher needs of a kernel."""

    @property
    def key(self) -> KernelKey: ...
    @property
    def spec(self) -> ScanSpec: ...
    @property
    def target(self) -> str: ...
    @property
    def code(self) -> Binary: ...


class Template(NamedTuple):
    """Everything that the C++ call path needs for a launch, except the pointers of the tensors."""

    arguments: bytes
    reads: tuple[int, ...]  # byte offset in the arguments of each of the launcher's ``reads``
    outputs: tuple[tuple[int, torch.Size, torch.dtype, int], ...]  # offset, shape, dtype, bytes to skip of each output
    launch: int  # address of LaunchBinding.function
    launch_early: int  # of LaunchBinding.early, which takes its place; 0 for none
    configure: int  # address of the emulator's setup function; 0 on a GPU
    kernel: BoundKernel
    workspace: tuple[int, int]  # byte offset of its pointer, and its size; 0 for none
    link: int  # address of the words of its link to other ranks; 0 for none


class Launcher:
    """A kernel bound to shapes and strides: a call sets pointers and a stream, and launches."""

    __slots__ = (
        "_arguments",
        "_bound",
        "_spare",
        "asked",
        "kernel",
        "link",
        "link_memory",
        "own",
        "places",
        "reads",
        "registrations",
        "skipped",
        "workspace_bytes",
    )

    def __init__(self, kernel: Launchable, request: Request, device: Device, asked: KernelKey) -> None:
        outer, length, inner = split_shape(request.shape, request.call.dim)
        arguments = ScanArguments(lines=outer * inner, length=length, multiprocessors=device.multiprocessors)
        if kernel.spec.strided:
            fill_geometry(arguments, request.operands, request.call.dim)
        if kernel.spec.input_layout == "transposed":
            arguments.neighbours = neighbours_of(request.operands, request.call.dim) or Neighbours()
        if request.inputs.offsets is not None:
            # with carries of segments or chunks all offsets, otherwise those between the first and the last
            arguments.segments = request.inputs.offsets.numel() - (0 if kernel.spec.every_offset else 2)
        if kernel.spec.in_parts:
            assert request.call.chunk is not None
            arguments.chunk, arguments.offsets_end = request.call.chunk, length
        if kernel.spec.ragged:  # each chunk is a line: as many as segments of any lengths may have
            arguments.length = length // arguments.chunk + arguments.segments - 1
        if request.inputs.initial is not None:  # one carry-in for all lines, or one per line
            arguments.carry_in_step = int(request.inputs.initial.numel() > 1)
        self.kernel = kernel
        self.asked = asked  # what the request asks for; another kernel may stand in
        self.own = kernel.key == asked
        self.places = _places_of(request, kernel, length)
        self.skipped = (0,) * len(self.places)
        self.reads = _reads_of(request, kernel.spec)
        self.registrations = 0, 0  # a generation of the native table, and how often it was told of this
        self.link, self.link_memory = request.call.link, None
        if self.link is not None:
            state_bytes = fragments(kernel.spec).state_bytes
            self.link_memory = self.link.bind(arguments, kernel.spec, outer * inner, state_bytes)
        self._bound = bind_binary(kernel.code, arguments, request.x.get_device())
        self.workspace_bytes: int = self._bound.workspace_bytes  # of a launch; 0: it needs none
        self._arguments = arguments
        self._spare: list[tuple[ScanArguments, Any]] = []  # arguments that no call uses now, and references to them

    def __call__(self, inputs: Tensors, outs: tuple[torch.Tensor, ...]) -> None:
        """Launch the scan of ``inputs`` into ``outs``, one per entry of ``places``, on the device's current stream."""
        where = outs[0].device
        if where.type == "cuda" and where.index != current_device():
            with torch.cuda.device(where):
                return self(inputs, outs)
        arguments, reference = self._take()
        for name, place, skipped in self.reads:
            setattr(arguments, name, inputs[place].data_ptr() + skipped)  # type: ignore[union-attr]
        for (name, _, _), out in zip(self.places, outs, strict=True):
            setattr(arguments, name, out.data_ptr())
        self._queue(arguments, reference, where)

    def _take(self) -> tuple[ScanArguments, Any]:
        """Arguments that no other call uses, and a reference to them."""
        try:
            return self._spare.pop()
        except IndexError:  # the first call, and calls that other threads make at the same time
            arguments = type(self._arguments).from_buffer_copy(self._arguments)
            return arguments, self._bound.refer(arguments)

    def _queue(self, arguments: ScanArguments, reference: Any, where: torch.device) -> None:
        """Launch with arguments that are complete but for the workspace, on a device's current stream."""
        bound = self._bound
        if self.link is not None:
            self.link.enter()
        stream = raw_stream(where.index) if where.type != "cpu" else 0
        if bound.workspace_bytes:
            memory = find_workspace(self, where, stream)
            arguments.workspace = memory.data_ptr()
        if bound.configure is not None:
            emulated = emulator.ACTIVE.get() or emulator.DEFAULT
            bound.configure(emulated.seed, emulated.multiprocessors)
        code = bound.launch(reference, stream)
        if code and bound.recover(code):
            code = bound.launch(reference, stream)
        if code:
            drop_workspace(where, stream)
            raise self.failure(code)
        self._spare.append((arguments, reference))

    def outputs(self, inputs: Tensors) -> tuple[torch.Tensor, ...]:
        """Launch the scan of ``inputs``, which are numbered as ``Inputs.flat``, and return the results."""
        x = inputs[0]
        assert x is not None
        device = x.device
        outs = tuple([torch.empty(shape, dtype=dtype, device=device) for _, shape, dtype in self.places])
        self(inputs, outs)
        return outs

    @property
    def template(self) -> Template:
        """The launch for the C++ call path."""
        kind = type(self._arguments)
        at = {field[0]: getattr(kind, field[0]).offset for field in kind._fields_}
        return Template(
            arguments=bytes(self._arguments)[
                : None if self.kernel.spec.map or self.kernel.spec.saved_initial else BEFORE_FURTHER
            ],
            reads=tuple(at[name] for name, _, _ in self.reads),
            outputs=tuple((at[name], *of, skip) for (name, *of), skip in zip(self.places, self.skipped, strict=True)),
            launch=_address(self._bound.function),
            launch_early=_address(self._bound.early),
            configure=_address(self._bound.configure),
            kernel=self._bound.kernel,
            workspace=(at.get("workspace", 0), self.workspace_bytes),
            link=0 if self.link is None else self.link.address,
        )

    def recovers(self, code: int) -> bool:
        """Remove the cause of an error code where that is possible, and return whether to launch again."""
        return self._bound.recover(code)

    def failure(self, code: int) -> LaunchFailure:
        """Return the error for the code that a launch returned."""
        return LaunchFailure(
            f"launch of the kernel {self.kernel.spec} on {self.kernel.target}: error {code}",
            allowed="a launch that the device accepts and finishes",
            value=f"error {code}: {self._bound.describe(code)}",
            hint=f"its source: scanops generate {self.kernel.spec} --target {self.kernel.target}"
            + " --import FILE, which is a recording of the program" * bool(self.kernel.spec.map),
        )


def _reads_of(request: Request, spec: ScanSpec) -> Reads:
    if request.call.fusion is not None:
        # of ``Inputs.flat``: x is the first, others stand behind the carry-in
        places = [place and FURTHER_AT - 1 + place for place in request.order]
        first = getattr(request.inputs.offsets, "itemsize", 0)  # bytes: the first segment begins at 0
        others = (("carry_in", request.inputs.initial, 0), ("starts", request.inputs.starts, 0))
        beside = [
            (name, _READ_BY.index(name), skip)
            for name, each, skip in (*others, ("offsets", request.inputs.offsets, first))
            if each is not None
        ]
        return (*((name, place, 0) for name, place in zip(OPERANDS, places, strict=False)), *beside)
    # Otherwise not the first offset: the first segment begins at 0.
    skipped = {} if spec.every_offset else {"offsets": getattr(request.inputs.offsets, "itemsize", 0)}
    read = enumerate(zip(_READ_BY, request.inputs.flat, strict=False))
    return tuple((name, place, skipped.get(name, 0)) for place, (name, each) in read if each is not None)


def _places_of(request: Request, kernel: Launchable, length: int) -> Places:
    """What the kernel writes: of each sum over a line those of the parts that blocks take."""
    if not request.call.line_sums:
        return request.places
    launch = kernel.code.launch
    assert launch is not None
    places = [*request.places]
    at = len(places) - 1 - request.call.final
    name, (count, _, *lines), dtype = places[at]
    places[at] = name, torch.Size((count, launch.count_tiles(length), *lines)), dtype
    return tuple(places)


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
    properties = torch.cuda.get_device_properties(index)
    return Device(
        target=target_of_capability((properties.major, properties.minor)),
        multiprocessors=properties.multi_processor_count,
    )


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


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
    """Return whether a kernel reads the carry-in as it is: one value for all lines, or contiguous of its full shape."""
    initial, shape, call = request.inputs.initial, request.carry_shape, request.call
    if initial is None or (initial.numel() == 1 and not call.per_segment):
        return True
    return initial.shape == shape and initial.is_contiguous()


def readable(request: Request) -> Inputs:
    """Return the inputs with a carry-in that a kernel reads."""
    initial = request.inputs.initial
    if initial is None or is_readable(request):
        return request.inputs
    return request.inputs._replace(initial=initial.expand(request.carry_shape).contiguous())


def launch(launcher: Launcher | None, request: Request, outs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Launch, and return the results where the caller wants them. ``launcher`` is None for lines without items."""
    initial = request.inputs.initial
    if launcher is not None:
        if request.call.line_sums:  # as many of a line as the kernel has tiles
            pairs = zip(outs, launcher.places, strict=True)
            outs = tuple(out if out.shape == shape else out.new_empty(shape) for out, (_, shape, _) in pairs)
        launcher(request.inputs.flat if initial is None else readable(request).flat, outs)
    elif request.call.final:  # the carry-out of an empty line is its carry-in
        start = operator_named(request.call.op).start_of(dtype_named(request.dtype))
        final = outs[-1]
        final.copy_(initial) if initial is not None else final.fill_(start[0] if isinstance(start, tuple) else start)
    return deliver(outs, request) if any(out is not None for out in request.outs) else outs


def deliver(results: tuple[torch.Tensor, ...], request: Request) -> tuple[torch.Tensor, ...]:
    """Return the results where the caller wants them: copied to ``out`` unless they were written there."""
    pairs = itertools.zip_longest(results, request.outs)  # no ``out`` takes the carry-out
    return tuple(result if out is None else _into(out, result) for result, out in pairs)


def _into(out: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    if out is not result:
        return out.copy_(result)
    increment_version(out)  # a kernel wrote it, which torch does not see: autograd may have saved what it was
    return out
