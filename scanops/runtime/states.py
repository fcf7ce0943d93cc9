"""Launches of scans with states: tensors as lines, steps and states, and what a backward pass keeps of a forward one.

The dimensions of a call are put in groups: the scanned one, the summed ones, and of the others one that a block takes
several lines of. Those that are left are outer dimensions. Tensors are passed with their strides; nothing is copied.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from scanops import environment
from scanops.codegen.fusion.fusion import Fusion, fusion_of
from scanops.codegen.fusion.stages import FULL, ONCE, STEPS, TILE, OperandGradient, split_stages
from scanops.codegen.layouts import STATES, Layout, dims_of, unit_of
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.line_states import save_steps
from scanops.errors import UnsupportedRequest
from scanops.requests.call import Call
from scanops.requests.fused import broadcast_shape, carry_dtype_of
from scanops.requests.geometry import ALIGNMENT
from scanops.requests.request import NAMES, Inputs, Needs, Tensors
from scanops.runtime import call_cache
from scanops.runtime.binaries import bind_binary
from scanops.runtime.launcher import Device, Launchable, Launcher
from scanops.runtime.recipes import Tape
from scanops.torch_private import current_device

OUTER_DIMS = 3
_OPERANDS, _RESULTS = 12, 16
_MOST_ACCESS = 8  # items of a run
_CARRIES = ("carry_in", "carry_out", "saved")
_NAMES = (*(f"operand{n}" for n in range(_OPERANDS)), *(f"result{n}" for n in range(_RESULTS)))
_LONG = ctypes.c_longlong


class _Operand(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("outer", _LONG * OUTER_DIMS),
        ("line", _LONG),
        ("step", _LONG),
        ("state", _LONG),
    )


class _Sizes(ctypes.Structure):
    _fields_ = (
        ("size", _LONG),
        ("length", _LONG),
        ("outer", _LONG * OUTER_DIMS),
        ("parts", _LONG),
        ("part_steps", _LONG),
    )


class StatesArguments(ctypes.Structure):
    """The arguments of a scan with states: the structs of templates/headers/states/place.cuh, and pointers."""

    _fields_ = (
        *((name, _LONG) for name in ("lines", "length")),
        ("multiprocessors", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in _CARRIES),
        *((name, _Operand) for name in _NAMES),
        ("sizes", _Sizes),
    )


class Arrangement(NamedTuple):
    """The dimensions of a call, in the groups that a kernel knows."""

    shape: torch.Size  # that the operands broadcast to
    dim: int  # that is scanned
    summed: tuple[int, ...]
    outer: tuple[tuple[int, ...], ...]  # neighbouring dimensions, each group as one
    line: tuple[int, ...]  # likewise, of which a block takes several lines

    def size_of(self, dims: Sequence[int]) -> int:
        """The number of items along dimensions that are one for a kernel."""
        return math.prod(self.shape[d] for d in dims)

    @property
    def outer_sizes(self) -> tuple[int, ...]:
        """The sizes of the outer groups, 1 for those that there are not."""
        sizes = [self.size_of(each) for each in self.outer]
        return (*[1] * (OUTER_DIMS - len(sizes)), *sizes)

    @property
    def lines(self) -> int:
        """Neighbouring lines."""
        return self.size_of(self.line)

    @property
    def states(self) -> int:
        """States of a line."""
        return self.size_of(self.summed)

    @property
    def length(self) -> int:
        """Steps of a line."""
        return self.shape[self.dim]

    def strides(self, tensor: torch.Tensor) -> tuple[list[int], int, int, int]:
        """Return a view's strides by outer group, line, step and state; it has the shape of the call."""

        def stride(dims: Sequence[int]) -> int:
            there = [d for d in dims if self.shape[d] != 1]
            return tensor.stride(there[-1]) if there else 0

        outer = [stride(each) for each in self.outer]
        return [0] * (OUTER_DIMS - len(outer)) + outer, stride(self.line), stride((self.dim,)), stride(self.summed)

    def place(self, found: torch.Tensor, *kinds: str) -> torch.Tensor:
        """Return a tensor of outer groups and then of ``kinds`` ("l", "t", "n") with the dimensions of the call.

        Those that it lacks are of size 1.
        """
        of_kinds = {"l": self.line, "t": (self.dim,), "n": self.summed}
        dims = [d for each in (*self.outer, *(of_kinds[kind] for kind in kinds)) for d in each]
        whole = found.reshape([self.shape[d] for d in dims])
        whole = whole.permute(sorted(range(len(dims)), key=lambda at: dims[at]))
        for d in range(len(self.shape)):
            whole = whole if d in dims else whole.unsqueeze(d)
        return whole


def arrange(shape: torch.Size, dim: int, summed: tuple[int, ...], views: Sequence[torch.Tensor]) -> Arrangement | None:
    """Return the groups of dimensions of these views, all of one shape; None where strides allow no such groups."""
    if any(not _merges(views, one, other) for one, other in itertools.pairwise(summed)):
        return None
    groups: list[list[int]] = []
    for d in range(len(shape)):
        if d == dim or d in summed or shape[d] == 1:
            continue
        if groups and groups[-1][-1] == d - 1 and _merges(views, d - 1, d):
            groups[-1].append(d)
        else:
            groups.append([d])

    def rank(at: int) -> tuple[int, int, int]:
        last = groups[at][-1]
        shared = sum(v.stride(dim) != 0 and v.stride(last) == 0 for v in views)
        return shared, sum(v.stride(last) == 1 for v in views), math.prod(shape[d] for d in groups[at])

    if not groups:
        return Arrangement(shape, dim, summed, (), ())
    chosen = max(range(len(groups)), key=rank)
    outer = tuple(tuple(each) for at, each in enumerate(groups) if at != chosen)
    return None if len(outer) > OUTER_DIMS else Arrangement(shape, dim, summed, outer, tuple(groups[chosen]))


def _merges(views: Sequence[torch.Tensor], one: int, other: int) -> bool:
    return all(v.stride(one) == v.stride(other) * v.shape[other] for v in views)


def _describe(
    arranged: Arrangement, views: Sequence[torch.Tensor], output_unit: str
) -> tuple[Layout, int, tuple[str, ...]]:
    """Return ``input_layout`` and ``multiple`` of a spec, and the layouts of operands.

    The former say along what runs of items go, and how many of a run are aligned in all operands.
    """
    layouts, units = [], []
    for view in views:
        _, line, step, state = arranged.strides(view)
        strides = {"l": line, "t": step, "n": state}
        dims = [d for d in "ltn" if strides[d] != 0]
        unit = next((d for d in "tln" if strides[d] == 1), "")
        layouts.append(STATES + "".join(d.upper() if d == unit else d for d in dims))
        if "l" in dims and "t" in dims:
            units.append(unit)
    along = "t" if units.count("t") >= units.count("l") else "l"
    direction: Layout = "strided"
    if output_unit == along:
        direction = "rows" if along == "t" else "transposed"
    along = "t" if direction == "strided" else along
    access = _MOST_ACCESS
    size = arranged.length if along == "t" else arranged.lines
    while access > 1 and size % access:
        access //= 2
    for view, layout in zip(views, layouts, strict=True):
        if unit_of(layout) != along or not dims_of(layout) >= {"l", "t"}:
            continue
        outer, line, step, _ = arranged.strides(view)
        steps = [*outer, line if along == "t" else step]
        while access > 1:
            bytes_of = min(ALIGNMENT, access * view.itemsize)
            if view.data_ptr() % bytes_of == 0 and all(each * view.itemsize % bytes_of == 0 for each in steps):
                break
            access //= 2
    return direction, access, tuple(layouts)


def _unit_of_output(arranged: Arrangement) -> str:
    """The dimension along which results, contiguous in the order of the call, have their items side by side."""
    kept = [d for d in range(len(arranged.shape)) if d not in arranged.summed and arranged.shape[d] != 1]
    return "" if not kept else "t" if kept[-1] == arranged.dim else "l" if kept[-1] in arranged.line else ""


class StatesLauncher(Launcher):
    """A kernel of a scan with states, bound to shapes and strides: a call sets pointers, and launches."""

    __slots__ = ()

    def __init__(
        self,
        kernel: Launchable,
        device: Device,
        arranged: Arrangement,
        index: int,
        operands: Sequence[_Strides],
        results: Sequence[tuple[_Strides, torch.Size, torch.dtype]],
        reads: tuple[str, ...],
        writes: tuple[tuple[str, torch.Size, torch.dtype], ...],
    ) -> None:
        """``operands``: their strides. ``results``: strides, then shape and dtype of contiguous memory.

        ``reads`` and ``writes``: carries that follow the operands and the results, by the names of ``_CARRIES``.
        """
        arguments: Any = StatesArguments()
        arguments.lines = math.prod(arranged.outer_sizes) * arranged.lines
        arguments.length, arguments.multiprocessors = arranged.length, device.multiprocessors
        sizes = arguments.sizes
        sizes.size, sizes.length, sizes.parts, sizes.part_steps = arranged.lines, arranged.length, 1, arranged.length
        for at, size in enumerate(arranged.outer_sizes):
            sizes.outer[at] = size
        named = [*zip(_NAMES, operands, strict=False)]
        made = [(name, *each) for name, each in zip(_NAMES[_OPERANDS:], results, strict=False)]
        for name, strides in (*named, *((name, strides) for name, strides, *_ in made)):
            strides.write(getattr(arguments, name))
        skipped = [*((name, strides.skipped) for name, strides in named), *((name, 0) for name in reads)]
        self.reads = tuple((name, place, skip) for place, (name, skip) in enumerate(skipped))
        self.places = (*((name, shape, dtype) for name, _, shape, dtype in made), *writes)
        self.skipped = (*(strides.skipped for _, strides, *_ in made), *(0 for _ in writes))
        self.kernel, self.asked, self.own, self.registrations = kernel, kernel.key, True, (0, 0)
        self.link, self.link_memory = None, None
        self._bound = bind_binary(kernel.code, arguments, index)
        self._arguments, self.workspace_bytes = arguments, 0
        self._spare = []

    def __call__(self, inputs: Tensors, outs: tuple[torch.Tensor, ...]) -> None:
        """Launch on operands and then carries, into results and then carries, on the current stream of the device."""
        where = outs[0].device
        if where.type == "cuda" and where.index != current_device():
            with torch.cuda.device(where):
                return self(inputs, outs)
        arguments, reference = self._take()
        read = [(name, inputs[place], skip) for name, place, skip in self.reads]
        written = [(name, out, skip) for (name, *_), out, skip in zip(self.places, outs, self.skipped, strict=True)]
        for name, tensor, skip in (*read, *written):
            address = tensor.data_ptr() + skip  # type: ignore[union-attr]
            if name in _CARRIES:
                setattr(arguments, name, address)
            else:
                getattr(arguments, name).data = address
        self._queue(arguments, reference, where)


class _Strides(NamedTuple):
    """The strides of a tensor for a kernel, in items; of a scan from the last step the first one is there."""

    outer: Sequence[int]
    line: int
    step: int
    state: int
    skipped: int  # bytes from the beginning of the tensor to the step that is scanned first

    def write(self, to: _Operand) -> None:
        to.outer[:] = self.outer
        to.line, to.step, to.state = self.line, self.step, self.state


class _Part(NamedTuple):
    """How a part of a gradient is allocated, and what the gradient of the operand is made of it by."""

    place: int  # of the operand in the call
    memory: torch.Size
    shape: tuple[int, ...]  # that a view of it has before what the operand is broadcast over is summed
    stride: tuple[int, ...]
    summed: tuple[int, ...]  # dimensions of that view
    dtype: torch.dtype


class _Prepared(NamedTuple):
    """What equal calls have in common."""

    arranged: Arrangement
    launcher: StatesLauncher
    places: tuple[int, ...]  # which operands of the call the kernel reads
    outputs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    carry: torch.dtype
    parts: tuple[_Part, ...]


def _prepare(call: Call, given: Inputs, *, saves: bool, wanted: tuple[bool, ...] = ()) -> _Prepared | None:
    """Return the kernel of a call, bound to its shapes; None where torch's operators compute it."""
    options = (call, saves, wanted, given.initial is not None, environment.SCOPED.get())
    key = (*options, *call_cache.tensor_signature(given.operands))
    known: _Prepared | None = call_cache.PREPARED.get(key)
    if known is not None:
        return known
    assert call.fusion is not None
    shape = broadcast_shape(given.operands)
    places = call.fusion.read or (0,)
    views = [given.operands[at].expand(shape) for at in places]
    arranged = arrange(shape, call.dim, call.summed, views)
    if arranged is None or call.exclusive or call.op != "linear" or not shape.numel():
        return None
    direction, access, layouts = _describe(arranged, views, _unit_of_output(arranged))
    fusion = fusion_of(call.fusion.select_operands(places, layouts).text)
    gradient = "".join("1" if wanted[at] else "0" for at in places) if wanted else ""
    parts = split_stages(fusion, tuple(map(bool, map(int, gradient)))).gradients if wanted else ()
    if len(parts) > _RESULTS or len(views) + (len(fusion.outputs) if wanted else 0) > _OPERANDS:
        return None
    spec = ScanSpec(
        op=call.op,
        dtype=fusion.operands[0].dtype,
        length=None,
        multiple=access,
        out_dtype=fusion.outputs[0].dtype,
        reverse=call.reverse,
        initial=given.initial is not None,
        final=bool(call.final),
        states=arranged.states,
        saves=saves,
        gradient=gradient,
        input_layout=direction,
        map=fusion.text,
    )
    device = call_cache.device_of(given.x)
    try:
        kernel, asked = call_cache.kernel_for(spec, math.prod(arranged.outer_sizes) * arranged.lines, device)
    except UnsupportedRequest:  # by the planner: so many states fit no block
        return None
    if kernel is None or kernel.key != asked:
        return None
    dtype = carry_dtype_of(fusion)
    kept = tuple(size for d, size in enumerate(shape) if d not in arranged.summed)
    outputs = tuple((kept, getattr(torch, each.dtype)) for each in fusion.outputs)
    strides = [_strides(arranged, each, call.reverse) for each in views]
    like_output = [_strides_of_output(arranged, each, call.reverse) for each in outputs]
    made: list[tuple[_Part, _Strides]] = []
    carry = torch.Size((*arranged.outer_sizes, arranged.lines, arranged.states))
    kept_steps = -(-arranged.length // save_steps(arranged.states))
    saved = torch.Size((*arranged.outer_sizes, kept_steps, arranged.lines, arranged.states))
    # Carries change places in a backward pass, which reads what the forward pass has saved.
    carries_in, carries_out = given.initial is not None, bool(call.final)
    reads = ("carry_in",) * (carries_out if wanted else carries_in) + ("saved",) * bool(wanted)
    writes = [("saved", saved, dtype)] * saves
    writes += [("carry_out", carry, dtype)] * (carries_in if wanted else carries_out)
    if wanted:
        strides += like_output
        blocks = -(-arranged.lines // kernel.code.launch.width)
        for each in parts:
            place = places[each.operand]
            along = direction == "transposed"
            made.append(_plan_part(arranged, fusion, each, place, given.operands[place], blocks, along, call.reverse))
    results: list[tuple[_Strides, torch.Size, torch.dtype]] = [
        (each, torch.Size(shape), kind) for each, (shape, kind) in zip(like_output, outputs, strict=True)
    ]
    if wanted:
        results = [(each, part.memory, part.dtype) for part, each in made]
    index = given.x.get_device()
    found = _Prepared(
        arranged=arranged,
        launcher=StatesLauncher(kernel, device, arranged, index, strides, results, reads, tuple(writes)),
        places=places,
        outputs=outputs,
        carry=dtype,
        parts=tuple(part for part, _ in made),
    )
    if call.hashable:
        call_cache.remember(call_cache.PREPARED, key, found)
    return found


def _strides(arranged: Arrangement, view: torch.Tensor, reverse: bool) -> _Strides:
    outer, line, step, state = arranged.strides(view)
    return _against_time(arranged, _Strides(outer, line, step, state, 0), view.itemsize, reverse)


def _against_time(arranged: Arrangement, strides: _Strides, itemsize: int, reverse: bool) -> _Strides:
    if not reverse:
        return strides
    skipped = (arranged.length - 1) * strides.step * itemsize
    return strides._replace(step=-strides.step, skipped=skipped)


def _strides_of_output(arranged: Arrangement, output: tuple[tuple[int, ...], torch.dtype], reverse: bool) -> _Strides:
    view = torch.empty(output[0], dtype=output[1], device="meta")
    for d in arranged.summed:
        view = view.unsqueeze(d)
    return _strides(arranged, view.expand(arranged.shape), reverse)


def _plan_part(
    arranged: Arrangement,
    fusion: Fusion,
    gradient: OperandGradient,
    place: int,
    operand: torch.Tensor,
    blocks: int,
    along_lines: bool,
    reverse: bool,
) -> tuple[_Part, _Strides]:
    """Return how a part of a gradient is allocated and summed, and its strides for the kernel."""
    layout, itemsize = fusion.operands[gradient.operand].layout, operand.itemsize
    dtype, order = carry_dtype_of(fusion), "ln" if gradient.stage == ONCE else "l"
    if gradient.stage == STEPS:
        order = "tl" if along_lines else "lt"
        dtype = operand.dtype if dims_of(layout) >= {"l", "t"} else dtype
    elif gradient.stage == FULL:
        order, dtype = ("tln" if along_lines else "lnt"), operand.dtype
    elif gradient.stage == TILE:
        order = "bnt" if unit_of(layout) == "t" else "btn"
    sizes = {"l": arranged.lines, "t": arranged.length, "n": arranged.states, "b": blocks}
    part = torch.empty((*arranged.outer_sizes, *(sizes[each] for each in order)), dtype=dtype, device="meta")
    by_dim = dict(zip(order, part.stride()[OUTER_DIMS:], strict=True))
    outer: Sequence[int] = part.stride()[:OUTER_DIMS]
    if gradient.stage not in (STEPS, FULL):  # which are numbered by all outer dimensions together
        outer = (math.prod(part.shape[OUTER_DIMS:]), 0, 0)
    line = by_dim["b"] if "b" in by_dim else by_dim.get("l", 0)
    strides = _Strides(outer, line, by_dim.get("t", 0), by_dim.get("n", 0), 0)
    strides = _against_time(arranged, strides, itemsize if dtype == operand.dtype else dtype.itemsize, reverse)
    blocked = [part.select(OUTER_DIMS, 0)] if "b" in by_dim else [part]
    whole = arranged.place(blocked[0], *order.replace("b", ""))
    memory, shape, stride = part.shape, tuple(whole.shape), whole.stride()
    aligned = (*[1] * (len(shape) - operand.ndim), *operand.shape)
    summed = tuple(d for d, (mine, its) in enumerate(zip(shape, aligned, strict=True)) if mine != 1 and its == 1)
    if "b" in by_dim:
        shape, stride, summed = (blocks, *shape), (by_dim["b"], *stride), (0, *(d + 1 for d in summed))
    return _Part(place, memory, shape, stride, summed, dtype), strides


def _carry_order(arranged: Arrangement) -> tuple[torch.Size, list[int]]:
    """The shape of carries in the order of the call, and the dimensions of them in the order of a kernel."""
    whole = torch.Size(size for d, size in enumerate(arranged.shape) if d != arranged.dim)
    dims = [*(d for each in arranged.outer for d in each), *arranged.line, *arranged.summed]
    order = [d - (d > arranged.dim) for d in dims]
    return whole, order + [d for d in range(len(whole)) if d not in order]  # the others are of size 1


def _pack_carry(carry: torch.Tensor, *, arranged: Arrangement, dtype: torch.dtype) -> torch.Tensor:
    """Return the carry of each state as [outer..., line, state], contiguous."""
    whole, order = _carry_order(arranged)
    return carry.to(dtype).expand(whole).permute(order).contiguous()


def _unpack_carry(packed: torch.Tensor, *, arranged: Arrangement) -> torch.Tensor:
    whole, order = _carry_order(arranged)
    back = sorted(range(len(order)), key=lambda at: order[at])
    return packed.reshape([whole[d] for d in order]).permute(back).contiguous()


def run_states(
    call: Call, given: Inputs, tape: Tape, *, saves: bool
) -> tuple[tuple[torch.Tensor, ...], Tensors] | None:
    """Return the outputs of a scan with sums over states, and what its backward pass reads; None: by torch.

    ``saves``: whether there will be a backward pass. ``tape``: of the steps, the last of which gives the carry-out.
    """
    prepared = _prepare(call, given, saves=saves)
    if prepared is None:
        return None
    arranged, launcher = prepared.arranged, prepared.launcher
    read: list[torch.Tensor] = [given.operands[at] for at in prepared.places]
    if given.initial is not None:
        read.append(tape.apply(partial(_pack_carry, arranged=arranged, dtype=prepared.carry), given.initial))
    made = launcher.outputs(tuple(read))
    tape.record_launch(launcher, tuple(read), made)
    count = len(prepared.outputs)
    final = [tape.apply(partial(_unpack_carry, arranged=arranged), made[-1])] if call.final else []
    return (*made[:count], *final), made[count : count + saves]


def differentiate_states(
    call: Call, given: Inputs, saved: Tensors, gradients: Sequence[torch.Tensor | None], needs: Needs, tape: Tape
) -> Tensors | None:
    """Return the gradients of ``Inputs.differentiable`` from those of the outputs; None where torch computes them.

    ``saved``: what ``run_states`` has kept of the forward pass. ``tape``: of the steps.
    """
    wanted = (needs[0], *needs[len(NAMES) :])
    assert call.fusion is not None
    count = len(call.fusion.outputs)
    of_final = gradients[count] if call.final else None
    if bool(call.final) != (of_final is not None):
        call = replace(call, final=of_final is not None)
    prepared = _prepare(call, given, saves=False, wanted=wanted)
    if prepared is None:
        return None
    arranged, launcher, initial = prepared.arranged, prepared.launcher, given.initial
    read: list[torch.Tensor | None] = [given.operands[at] for at in prepared.places]
    for grad, (shape, dtype) in zip(gradients[:count], prepared.outputs, strict=True):
        if grad is None:
            grad = tape.apply(partial(torch.Tensor.new_zeros, size=shape, dtype=dtype), given.x)
        elif not grad.is_contiguous() or grad.data_ptr() % ALIGNMENT:
            grad = tape.apply(_align, grad)
        read.append(grad)
    if of_final is not None:
        read.append(tape.apply(partial(_pack_carry, arranged=arranged, dtype=prepared.carry), of_final))
    read.append(saved[0])
    made = launcher.outputs(tuple(read))
    tape.record_launch(launcher, tuple(read), made)
    likes = tuple((each.shape, each.dtype) if want else None for each, want in zip(given.operands, wanted, strict=True))
    collect = partial(_collect_parts, prepared.parts, likes)
    x, *further = tape.call(collect, given.x, *made[: len(prepared.parts)])
    carried = None
    if initial is not None and needs[3]:
        carried = tape.apply(partial(_unpack_carry, arranged=arranged), made[-1])
        if (carried.shape, carried.dtype) != (initial.shape, initial.dtype):
            shape, dtype = initial.shape, initial.dtype
            carried = tape.apply(lambda found: found.sum_to_size(shape).to(dtype), carried)
    return (x, None, None, carried, *further)


def _collect_parts(
    parts: tuple[_Part, ...],
    likes: tuple[tuple[torch.Size, torch.dtype] | None, ...],
    x: torch.Tensor,
    *made: torch.Tensor,
) -> Tensors:
    """The gradients of the operands of a call, of those ``likes`` of which are given, from the parts of each."""
    found: dict[int, torch.Tensor] = {}
    for each, memory in zip(parts, made, strict=True):
        part = memory.as_strided(each.shape, each.stride)
        whole = part.sum(each.summed) if each.summed else part
        like = likes[each.place]
        assert like is not None
        whole = whole.view(like[0]) if whole.shape != like[0] else whole
        found[each.place] = found[each.place] + whole if each.place in found else whole
    return tuple(
        None if like is None else found[at].to(like[1]) if at in found else x.new_zeros(like[0], dtype=like[1])
        for at, like in enumerate(likes)
    )


def _align(grad: torch.Tensor) -> torch.Tensor:
    """A gradient that lies as results do."""
    grad = grad.contiguous()
    return grad if grad.data_ptr() % ALIGNMENT == 0 else grad.clone()
