"""A checked call with its tensors, the spec of the kernel that serves it, and what equal calls have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.compiler import is_compiling

from scanops.codegen.layouts import is_worth_transposing, needs_alignment
from scanops.codegen.operators import Operator, find_operator, operator_named
from scanops.codegen.spec import ScanSpec
from scanops.requests import checks, segments
from scanops.requests.call import Call
from scanops.requests.fused import (
    broadcast_shape,
    carry_dtype_of,
    check_operands_of_sums,
    check_summed,
    list_places,
    order_operands,
    without_dims,
)
from scanops.requests.geometry import (
    ALIGNMENT,
    FURTHER,
    OperandTensors,
    carry_shape,
    is_aligned,
    layouts_of,
    lengthen,
    line_shape,
    neighbours_of,
    split_shape,
)
from scanops.requests.promotion import promote_scalars
from scanops.requests.torch_state import is_recorded

if TYPE_CHECKING:
    from scanops.codegen.fusion.fusion import Fusion
    from scanops.codegen.layouts import Layout
    from scanops.codegen.spec import ScanSpec

OPERANDS = ("input", *FURTHER)  # the kernels' names for the operands of a fused scan
NAMES = ("x", "mask", "gate", "initial")  # the inputs that have gradients, in the order used everywhere
Tensors = tuple[torch.Tensor | None, ...]
Needs = tuple[bool, ...]  # whether the gradient of each of ``NAMES`` is wanted
FURTHER_AT = 6  # the place of the first further operand in ``Inputs.flat``
Shapes = tuple[tuple[torch.Size, torch.dtype] | None, ...]  # shape and dtype of each of ``NAMES``


class Inputs(NamedTuple):
    """The tensors that a scan reads."""

    x: torch.Tensor  # of a fused scan the first operand
    mask: torch.Tensor | None = None  # broadcasts to x's shape, as do gate and starts
    gate: torch.Tensor | None = None
    starts: torch.Tensor | None = None  # head flags of segments
    offsets: torch.Tensor | None = None  # or the position where each segment begins, and the end of the last
    initial: torch.Tensor | None = None  # the carry-in: broadcasts to x's shape without dim; a number until checked
    saved: torch.Tensor | None = None  # what the kernel of a backward pass reads of the forward: contiguous, x's shape
    begin: torch.Tensor | None = None  # beside its results the carry-in of the forward's lines: line_shape, contiguous
    further: tuple[torch.Tensor, ...] = ()  # the other operands of a fused scan, a mask among them; all broadcast

    @classmethod
    def of_flat(cls, tensors: Sequence[Any]) -> Inputs:
        """Return the inputs of a forward pass, of which ``flat`` are these tensors."""
        x, mask, gate, starts, offsets, initial, *further = tensors
        return cls(x, mask, gate, starts, offsets, initial, further=tuple(further))

    @property
    def flat(self) -> Tensors:
        """The tensors as launches number them: behind ``initial`` further operands, or what a backward kernel reads."""
        return (*self[:FURTHER_AT], *(self.further if self.saved is None else (self.saved, self.begin)))

    @property
    def operands(self) -> tuple[torch.Tensor, ...]:
        """The tensors that expressions are made of, in the order in which a fused scan was given them."""
        return (self.x, *self.further)

    def views(self) -> OperandTensors:
        """Return what is read item by item, as views with x's shape: nothing is copied."""
        named = {"input": self.x, "mask": self.mask, "gate": self.gate, "starts": self.starts, "further1": self.begin}
        return {name: each.expand(self.x.shape) for name, each in named.items() if each is not None}

    def readable(self) -> Inputs:
        """Return the inputs with 8-bit floating types in float32: torch's operations only convert them."""
        narrow: dict[str, Any] = {
            name: each.to(torch.float32)
            for name, each in zip(self._fields, self.flat, strict=False)
            if each is not None and each.is_floating_point() and each.itemsize == 1
        }
        return self._replace(**narrow)

    @property
    def differentiable(self) -> tuple[torch.Tensor | None, ...]:
        """The inputs that may have a gradient: as ``NAMES``, then further operands."""
        return (self.x, self.mask, self.gate, self.initial, *self.further)

    @property
    def needs(self) -> Needs:
        """Which of ``differentiable`` require gradients."""
        return tuple([each is not None and each.requires_grad for each in self.differentiable])

    @property
    def differentiates(self) -> bool:
        """Whether autograd records a scan of these inputs."""
        return (
            any([isinstance(each, torch.Tensor) and each.requires_grad for each in self.differentiable])
            and is_recorded()
        )


class SavedTensors(NamedTuple):
    """What a backward pass may read of its forward pass, in the order of nodes in Python and in C++.

    None where a tensor is absent or not saved.
    """

    x: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    gate: torch.Tensor | None = None
    initial: torch.Tensor | None = None
    y: torch.Tensor | None = None  # the results
    indices: torch.Tensor | None = None
    starts: torch.Tensor | None = None
    offsets: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A checked call with the tensors it reads and writes."""

    call: Call
    inputs: Inputs
    outs: tuple[torch.Tensor | None, ...] = ()  # where the caller wants the result and its indices; None: a new tensor
    carry_dtype: torch.dtype  # of carry-in and carry-out
    saved_results: bool = False  # whether what was saved is results, not those before each item
    x: torch.Tensor = field(init=False)  # the tensor that is scanned
    dtype: torch.dtype = field(init=False)  # of the result
    operator: Operator = field(init=False)  # the operator's row of the table
    shape: torch.Size = field(init=False)  # of the result: x's, one more along dim where results are complete
    # (kernel argument, shape, dtype) of each tensor that the kernel writes: results, second output, carry-out
    places: tuple[tuple[str, torch.Size, torch.dtype], ...] = field(init=False)

    def __post_init__(self) -> None:
        x, dtype, operator, fusion = self.inputs.x, self.call.dtype, operator_named(self.call.op), self.call.fusion
        assert dtype is not None
        set_field = object.__setattr__
        shape = x.shape if fusion is None else broadcast_shape(self.inputs.operands)
        if self.call.complete:
            shape = lengthen(shape, self.call.dim)
        for name, value in (("x", x), ("dtype", dtype), ("operator", operator), ("shape", shape)):
            set_field(self, name, value)
        if fusion is not None:
            places = list_places(fusion, without_dims(shape, self.call.summed) if self.call.summed else shape)
        else:
            places = [] if self.call.totals else [("output", shape, dtype)]
            if operator.doubled:
                places.append(("indices", x.shape, torch.int64 if operator.indices else dtype))
        if (count := self.call.line_sums) > 0:  # of each a sum for each tile of a line: how many, the launch knows
            name, _, kind = places[-count]
            places[-count:] = [(name, torch.Size((count, 1, *self.line_shape)), kind if fusion else self.carry_dtype)]
        if self.call.final:
            places.append(("carry_out", self.carry_shape, self.carry_dtype))
        set_field(self, "places", tuple(places))

    @property
    def order(self) -> tuple[int, ...]:
        """Which operands of a fused scan its kernel reads, in the kernel's order."""
        assert self.call.fusion is not None
        return order_operands(self.call.fusion, self.inputs.operands, self.shape, self.call.dim)

    @property
    def operands(self) -> OperandTensors:
        """What is read item by item, as views with the shape of the lines, by the kernel's name for each."""
        if self.call.fusion is None:
            return self.inputs.views()
        given = self.inputs.operands
        views = {name: given[place].expand(self.shape) for name, place in zip(OPERANDS, self.order, strict=False)}
        return views if self.inputs.starts is None else {**views, "starts": self.inputs.starts.expand(self.shape)}

    @property
    def inclusive(self) -> Request:
        """The request for the inclusive results of a complete scan alone."""
        return replace(self, call=replace(self.call, complete=False), outs=())

    def without_tensors(self) -> Request:
        """The same request, of which no tensor is kept alive."""
        found = object.__new__(Request)
        for each in fields(self):
            object.__setattr__(found, each.name, getattr(self, each.name))
        for name, value in (("inputs", _NOTHING), ("x", _NOTHING.x), ("outs", ())):
            object.__setattr__(found, name, value)
        return found

    def within(self, results: torch.Tensor) -> torch.Tensor:
        """The inclusive results in those of a complete scan, as a view; likewise of their gradients."""
        dim = self.call.dim
        return results.narrow(dim, 0 if self.call.reverse else 1, results.shape[dim] - 1)

    def start_in(self, results: torch.Tensor) -> torch.Tensor:
        """The carry-in in the results of a complete scan, as a view, one per line; likewise of their gradients."""
        return results.select(self.call.dim, -1 if self.call.reverse else 0)

    def extend(self, results: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """The results of a complete scan, from inclusive ones and the carry-in of each line; likewise of tangents."""
        first = start.to(results.dtype).expand(line_shape(results.shape, self.call.dim)).unsqueeze(self.call.dim)
        return torch.cat([results, first] if self.call.reverse else [first, results], self.call.dim)

    @property
    def line_shape(self) -> torch.Size:
        """The shape without the scanned dimension: one element per line."""
        return line_shape(self.shape, self.call.dim)

    @property
    def carry_shape(self) -> torch.Size:
        """The shape of the carries: one element per line, or per segment of each line."""
        return carry_shape(self.shape, self.call.dim, self.inputs.offsets if self.call.per_segment else None)

    def spec(self, out: torch.Tensor) -> ScanSpec:
        """Return the spec of the kernel that computes this request into ``out``."""
        if self.call.fusion is not None:
            return self._make_fused_spec(self.call.fusion)
        inputs = self.inputs
        _, length, inner = split_shape(self.shape, self.call.dim)
        operands = inputs.views()
        read = {name: each for name, each in operands.items() if name != "further1"}  # that has one item for each line
        found = layouts_of(read.values(), self.x.shape, self.call.dim)
        layouts, whole = dict(zip(read, found, strict=True)), True
        if self.call.complete and inner > 1:  # batches of results are longer than those of operands
            layouts = {name: "columns" if layout == "dense" else layout for name, layout in layouts.items()}
        # Not beside what was saved, which lies as the output does, nor where lines of results are longer.
        if layouts["input"] == "strided" and inputs.saved is None and not self.call.complete:
            layouts, whole = self._transpose_layouts(layouts, operands)
        aligned = whole and out.data_ptr() % ALIGNMENT == 0
        aligned = aligned and all(is_aligned(operands[name], layout, self.call.dim) for name, layout in layouts.items())
        aligned = aligned and (inputs.saved is None or inputs.saved.data_ptr() % ALIGNMENT == 0)
        spec = ScanSpec(
            length=length,
            saved_results=self.saved_results,
            inner=inner,
            aligned=aligned or not needs_alignment(inner, layouts["input"]),
            **self.call.spec_fields(inputs),
            **{f"{name}_layout": layout for name, layout in layouts.items()},  # type: ignore[arg-type]
        )
        return spec if self.call.chunk is None else spec.in_chunks(self.call.chunk)

    def _make_fused_spec(self, fusion: Fusion) -> ScanSpec:
        call, (_, length, inner) = self.call, split_shape(self.shape, self.call.dim)
        views, offsets = tuple(self.operands.values()), self.inputs.offsets  # head flags are the last
        layouts = layouts_of(views, self.shape, call.dim)
        fusion = fusion.select_operands(self.order, layouts[: len(self.order)])
        given: dict[str, Any] = {}
        if self.inputs.starts is not None:
            given = {"segments": "flags", "starts_layout": layouts[-1]}
        elif offsets is not None:
            given = {"segments": str(offsets.dtype).removeprefix("torch.")}
        return ScanSpec(
            op=call.op,
            dtype=fusion.operands[0].dtype,
            length=length,
            out_dtype=fusion.outputs[0].dtype,
            reverse=call.reverse,
            exclusive=call.exclusive,
            initial=self.inputs.initial is not None,
            final=call.final,
            line_sums=call.line_sums,
            inner=inner,
            input_layout=layouts[0],
            map=fusion.text,
            **given,
            aligned=not needs_alignment(inner, layouts[0])
            or all(is_aligned(each, layout, call.dim) for each, layout in zip(views, layouts, strict=True)),
        )

    def _transpose_layouts(
        self, layouts: dict[str, Layout], operands: OperandTensors
    ) -> tuple[dict[str, Layout], bool]:
        """Return the layouts, "transposed" where they are, and whether all runs of those are 16-byte aligned."""
        x, dim = self.x, self.call.dim
        _, length, inner = split_shape(x.shape, dim)
        found = neighbours_of(operands, dim)
        if found is None:
            return layouts, True
        # (bytes that lie side by side) of what is read and written along a line and across lines
        out_bytes = self.dtype.itemsize
        runs = (
            (x.itemsize * length, out_bytes * found.size)
            if inner > 1
            else (out_bytes * length, x.itemsize * found.size)
        )
        if not is_worth_transposing(*runs):
            return layouts, True
        # The input, and operands beside it that have not the output's layout.
        as_output = ("dense", "rows") if inner == 1 else ("dense",)
        turned = [name for name, layout in layouts.items() if name == "input" or layout not in as_output]
        for name in turned:
            if (operands[name].stride(dim) if inner > 1 else getattr(found, f"{name}_stride")) != 1:
                return layouts, True  # gathered together
        # Columns are accessed side by side in the output, too, and in a mask that lies so: at most 16 items at once.
        begins = inner in (1, found.size) or found.size % ALIGNMENT == 0
        size = 0 if inner > 1 else found.size
        whole = begins and all(_runs_on_boundaries(operands[name], size) for name in turned)
        return layouts | dict.fromkeys(turned, "transposed"), whole


def _runs_on_boundaries(tensor: torch.Tensor, size: int) -> bool:
    """Whether runs of ``size`` items begin and end on 16-byte boundaries wherever a stride other than 1 leads."""
    strides = [
        stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True) if extent > 1 and stride > 1
    ]
    return tensor.data_ptr() % ALIGNMENT == 0 and all(n * tensor.itemsize % ALIGNMENT == 0 for n in (*strides, size))


def make_request(
    x: torch.Tensor,
    op: str,
    dim: int,
    *,
    out: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    **options: Any,
) -> Request:
    """Return ``check_request`` of a call and tensors; ``options`` are further fields of ``Inputs`` and of ``Call``."""
    given = {name: options.pop(name) for name in Inputs._fields if name in options}
    return check_request(Call(op, dim, **options), Inputs(x, **given), (out, indices))


def check_request(call: Call, given: Inputs, outs: tuple[torch.Tensor | None, ...] = ()) -> Request:
    """Return the request that a call makes, with everything that can be wrong with it checked.

    ``outs`` are the caller's tensors for the result and for its indices. Raises UnsupportedRequest, or
    DimensionOutOfRange for ``dim``.
    """
    if call.fusion is not None:
        carry_dtype = carry_dtype_of(call.fusion)
        call, given = check_fused(call, given)
        return Request(call=call, inputs=given, carry_dtype=carry_dtype)
    x, mask, gate, starts, offsets, initial, *_ = given
    row, who = find_operator(call.op), call.name
    checks.check_tensor(who, "x", x)
    dim = checks.check_dim(who, x.shape, call.dim)
    call.check_options()
    if call.complete:
        checks.check_complete(
            who,
            x,
            exclusive=call.exclusive,
            return_final=call.final,
            segment_starts=starts is not None,
            offsets=offsets is not None,
            indices=bool(row.indices),
        )
    mask = None if mask is None else checks.check_operand(who, "mask", mask, x)
    gate = None if gate is None else checks.check_operand(who, "a", gate, x, of="the shape of a * b")
    of_x, of_gate = ("b", "a") if row.name == "linear" else ("x", "gate")  # the names of the user's arguments
    if starts is not None:
        starts = segments.check_starts(who, starts, offsets, x)
    if offsets is not None:
        offsets = segments.check_offsets(who, offsets, x, dim)
    if call.chunk is not None:
        flags = {"return_final": call.final, "complete": call.complete}
        segments.check_chunk(who, call.chunk, segment_starts=starts, initial=initial, **flags)
        offsets = segments.make_line_offsets(x, dim) if offsets is None else offsets
    reads = {of_x: x, "mask": mask, of_gate: gate, "segment_starts": starts, "offsets": offsets}
    reads |= {"initial": initial} if isinstance(initial, torch.Tensor) else {}
    out, indices = (*outs, None, None)[:2]
    shape = lengthen(x.shape, dim) if call.complete else x.shape
    if out is not None:
        call = replace(call, dtype=checks.check_out(who, "out", out, x, reads, call.dtype, shape))
    if indices is not None:
        checks.check_out(who, "indices", indices, x, reads | {"out": out}, torch.int64, shape)
    call = replace(call, dtype=None) if row.indices else call  # nothing converts values beside indices
    call, (x, mask, gate) = promote_scalars(call, (x, mask, gate))  # type: ignore[assignment]
    inputs = Inputs(x=x, mask=mask, gate=gate, starts=starts, offsets=offsets)
    length = split_shape(x.shape, dim)[1]
    known = isinstance(length, int) and not is_compiling()  # which traces symbols as if they were ints
    if call.per_segment:
        segments.check_carries(who, x, offsets)
    if call.chunk is not None and known and call.chunk >= length:
        call = replace(call, chunk=None)
    fields_of_spec = {**call.spec_fields(inputs), "linked": False, "complete": False}
    fields_of_spec |= {"initial": initial is not None, "final": call.final}
    spec = ScanSpec(length=max(1, length) if known else 1, **fields_of_spec)  # a symbol must not be compared
    carry_dtype = getattr(torch, spec.carry.name)
    if row.indices and out is not None:
        checks.check_dtype(who, "out", out, getattr(torch, spec.out_dtype))
    if initial is not None:
        inputs = inputs._replace(
            initial=checks.check_initial(
                who, initial, x, carry_shape(x.shape, dim, offsets if call.per_segment else None), carry_dtype
            )
        )
    call, outs = call.settle(spec, dim), outs[: 1 + bool(row.indices)]
    return Request(call=call, inputs=inputs, outs=outs, carry_dtype=carry_dtype)


def check_fused(call: Call, given: Inputs) -> tuple[Call, Inputs]:
    """Return call and inputs of a fused scan as a request has them; operands and functions were checked before.

    Raises UnsupportedRequest, or DimensionOutOfRange for ``dim``.
    """
    assert call.fusion is not None
    call.check_options()
    shape = broadcast_shape(given.operands)
    dim = checks.check_dim(call.name, shape, call.dim)
    fusion = call.fusion
    if call.summed or fusion.sums:
        call = replace(call, summed=check_summed(call.name, call.summed, shape, dim))
        check_operands_of_sums(call.name, fusion, given.operands, call)
    starts, offsets, initial = given.starts, given.offsets, given.initial
    if not (starts is None and offsets is None and initial is None):
        carry = carry_dtype_of(fusion)
        lines = torch.empty((), dtype=carry, device=given.x.device).expand(shape)
        if starts is not None:
            starts = segments.check_starts(call.name, starts, offsets, lines)
        if offsets is not None:
            offsets = segments.check_offsets(call.name, offsets, lines, dim)
        if initial is not None:
            initial = checks.check_initial(call.name, initial, lines, line_shape(shape, dim), carry)
        given = given._replace(initial=initial, starts=starts, offsets=offsets)
    return replace(call, dim=dim, dtype=getattr(torch, fusion.outputs[0].dtype)), given


class RequestKind:
    """A request without its tensors: what calls that differ in nothing but their data have in common.

    Equal to itself alone: caches keep what they know of such calls under it.
    """

    __slots__ = ("final", "inclusive", "indexed", "is_cached", "request", "saved_masks", "segmented", "shapes")

    def __init__(self, request: Request) -> None:
        self.request = request.without_tensors()
        self.shapes: Shapes = tuple(
            None if each is None else (each.shape, each.dtype) for each in request.inputs.differentiable
        )
        # Of a complete scan: the kind of its inclusive results, which computes their gradients.
        self.inclusive: RequestKind | None = RequestKind(request.inclusive) if request.call.complete else None
        self.indexed = request.operator.indices
        self.segmented = request.inputs.starts is not None or request.inputs.offsets is not None
        self.final = request.call.final
        # Which of x, mask, gate, initial, result and indices a gradient reads, by the gradients that are wanted.
        self.saved_masks: dict[Needs, tuple[bool, ...]] = {}
        self.is_cached = False  # whether the call cache holds it


_NOTHING = Inputs(x=torch.empty(0))
