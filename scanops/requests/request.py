"""From the arguments of a call to a checked request: which tensors, which spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from scanops.codegen.lines import WHOLE_BYTES, are_few, fill_panels
from scanops.codegen.operators import Operator, listed, operator_named
from scanops.codegen.slugs import Layout
from scanops.codegen.spec import ScanSpec
from scanops.requests import checks, segments
from scanops.requests.geometry import ALIGNMENT, Operands, is_aligned, layout_of, neighbours_of, split_shape
from scanops.requests.surroundings import is_recorded

__all__ = ["Inputs", "Request", "has_own_operations", "is_memory", "make_request"]


class Inputs(NamedTuple):
    """The tensors that a scan reads."""

    x: torch.Tensor
    mask: torch.Tensor | None = None  # of any shape that expands to x's
    gate: torch.Tensor | None = None  # likewise
    starts: torch.Tensor | None = None  # likewise: where segments begin
    offsets: torch.Tensor | None = None  # or the index where each begins, and the end of the last
    initial: torch.Tensor | None = None  # what lines go on from: of any shape that expands to x's without dim
    saved: torch.Tensor | None = None  # what a forward scan kept, for its gradient: contiguous, of x's shape

    def operands(self) -> Operands:
        """What is read item by item, as views with x's shape: nothing is copied."""
        named = {"input": self.x, "mask": self.mask, "gate": self.gate, "starts": self.starts}
        return {name: each.expand(self.x.shape) for name, each in named.items() if each is not None}

    def readable(self) -> Inputs:
        """8-bit floating types in float32: torch converts them and does nothing else with them."""
        return self._replace(
            **{
                name: each.to(torch.float32)
                for name, each in zip(self._fields, self, strict=True)
                if each is not None and each.is_floating_point() and each.itemsize == 1
            }
        )

    @property
    def differentiable(self) -> tuple[torch.Tensor | None, ...]:
        """Those that a gradient may be asked of."""
        return (self.x, self.mask, self.gate, self.initial)

    def with_differentiable(self, tensors: tuple[torch.Tensor | None, ...]) -> Inputs:
        """The same with others in their place."""
        x, mask, gate, initial = tensors
        assert x is not None
        return self._replace(x=x, mask=mask, gate=gate, initial=initial)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call, checked: the tensors it reads and writes and the options a spec is made of."""

    inputs: Inputs
    out: torch.Tensor | None  # where the caller wants the result
    indices: torch.Tensor | None  # and its indices
    op: str
    dim: int  # from 0, also for a 0-d tensor
    reverse: bool
    exclusive: bool
    final: bool  # whether the result of each whole line is wanted beside them
    dtype: torch.dtype  # of the result
    carry_dtype: torch.dtype  # of what lines go on from, and of what goes on from them
    accumulate: str | None  # the spec's word for what it is accumulated in
    again: bool = False  # whether what the forward had before each item is scanned again, for its gradient

    @property
    def x(self) -> torch.Tensor:
        """What is scanned."""
        return self.inputs.x

    @property
    def operator(self) -> Operator:
        """The operator's row."""
        return operator_named(self.op)

    @property
    def outs(self) -> tuple[torch.Tensor | None, ...]:
        """Where the caller wants each output, None: in a new tensor."""
        return (self.out, self.indices) if self.operator.doubled else (self.out,)

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtype of each output."""
        if self.operator.indices:
            return self.dtype, torch.int64
        return (self.dtype,) * len(self.outs)

    @property
    def differentiable(self) -> bool:
        """Whether autograd will want this call's gradient."""
        wanted = any(each is not None and each.requires_grad for each in self.inputs.differentiable)
        return wanted and is_recorded()

    @property
    def line_shape(self) -> torch.Size:
        """A place for each line: x's shape without the scanned dimension."""
        return checks.line_shape(self.x, self.dim)

    @property
    def places(self) -> tuple[tuple[str, torch.Size, torch.dtype], ...]:
        """(argument of a kernel, shape, dtype) of each tensor that is written."""
        named = zip(("output", "indices"), self.dtypes, strict=False)
        final = [("carry_out", self.line_shape, self.carry_dtype)] if self.final else []
        return (*((name, self.x.shape, dtype) for name, dtype in named), *final)

    def spec(self, out: torch.Tensor, multiprocessors: int) -> ScanSpec:
        """The spec of the kernel that computes this request into ``out`` on a GPU of that size."""
        outer, length, inner = split_shape(self.x.shape, self.dim)
        operands = self.inputs.operands()
        layouts, turned = self._layouts(operands, multiprocessors)
        aligned = turned and out.data_ptr() % ALIGNMENT == 0
        aligned = aligned and all(is_aligned(each, layouts[name], self.dim) for name, each in operands.items())
        aligned = aligned and (self.inputs.saved is None or self.inputs.saved.data_ptr() % ALIGNMENT == 0)
        few = are_few(outer * inner, length, inner, multiprocessors)
        transposed = layouts["input"] == "transposed"
        # An odd number of columns is read item by item, which any boundary allows: one kernel serves both.
        any_boundary = inner > 1 and inner % 2 == 1 and not transposed
        return ScanSpec(
            op=self.op,
            length=length,
            out_dtype=str(self.dtype),
            accumulate=self.accumulate,
            reverse=self.reverse,
            exclusive=self.exclusive,
            final=self.final,
            again=self.again,
            inner=inner,
            lines="few" if few and not transposed else "many",
            aligned=any_boundary or aligned,
            **_options_of(self.inputs),
            **{f"{name}_layout": layout for name, layout in layouts.items()},  # type: ignore[arg-type]
        )

    def _layouts(self, operands: Operands, multiprocessors: int) -> tuple[dict[str, Layout], bool]:
        """How operands lie; and whether all runs of what is transposed begin and end on 16-byte boundaries."""
        x, dim = self.x, self.dim
        outer, length, inner = split_shape(x.shape, dim)
        layouts = {name: layout_of(each, x.shape, dim) for name, each in operands.items()}
        found = None
        if layouts["input"] == "strided" and self.inputs.saved is None:  # what was saved lies as the output does
            found = neighbours_of(operands, dim)
        if found is None or not fill_panels(outer * inner, multiprocessors):
            return layouts, True
        # (bytes that lie side by side) of what is read and written along a line and across lines
        out_bytes = self.dtype.itemsize
        runs = (
            (x.itemsize * length, out_bytes * found.size)
            if inner > 1
            else (out_bytes * length, x.itemsize * found.size)
        )
        if min(runs) < WHOLE_BYTES:
            return layouts, True
        turned = {name: layout for name, layout in layouts.items() if not _keeps_rows(name, layout, inner)}
        for name in turned:
            if (operands[name].stride(dim) if inner > 1 else getattr(found, f"{name}_stride")) != 1:
                return layouts, True  # gathered together
        # Columns are accessed side by side in the output, too, and in a mask that lies so: at most 16 items at once.
        begins = inner in (1, found.size) or found.size % ALIGNMENT == 0
        size = 0 if inner > 1 else found.size
        whole = begins and all(_runs_on_boundaries(operands[name], size) for name in turned)
        return layouts | dict.fromkeys(turned, "transposed"), whole


def _keeps_rows(name: str, layout: Layout, inner: int) -> bool:
    """Whether an operand beside a transposed input lies as the output does."""
    return name != "input" and (layout == "dense" or (layout == "rows" and inner == 1))


def _runs_on_boundaries(tensor: torch.Tensor, size: int) -> bool:
    """Whether runs of ``size`` items begin and end on 16-byte boundaries wherever a stride other than 1 leads."""
    strides = [
        stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True) if extent > 1 and stride > 1
    ]
    return tensor.data_ptr() % ALIGNMENT == 0 and all(n * tensor.itemsize % ALIGNMENT == 0 for n in (*strides, size))


def _options_of(inputs: Inputs) -> dict[str, Any]:
    """What a spec says of the tensors that are read."""
    told = "flags" if inputs.starts is not None else None
    return {
        "dtype": str(inputs.x.dtype),
        "mask": None if inputs.mask is None else str(inputs.mask.dtype),
        "gate": None if inputs.gate is None else str(inputs.gate.dtype),
        "saved": None if inputs.saved is None else str(inputs.saved.dtype),
        "segments": told if inputs.offsets is None else str(inputs.offsets.dtype).removeprefix("torch."),
        "initial": inputs.initial is not None,
    }


def make_request(
    x: torch.Tensor,
    op: str,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    starts: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    initial: torch.Tensor | complex | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    final: bool = False,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    accumulate: torch.dtype | str | None = None,
) -> Request:
    """Check everything that can be wrong with a call. Raises UnsupportedRequest or DimensionOutOfRange."""
    checks.check_tensor("x", x)
    dim = checks.check_dim(x, dim)
    for name, flag in (("reverse", reverse), ("exclusive", exclusive), ("return_final", final)):
        checks.check_flag(name, flag)
    mask = None if mask is None else checks.check_operand("mask", mask, x)
    if mask is not None and mask.dtype != torch.bool:
        mask = checks.lent_kind(mask, x)
    gate = None if gate is None else checks.lent_kind(checks.check_operand("gate", gate, x), x)
    starts = segments.check_starts(starts, offsets, x)
    offsets = segments.check_offsets(offsets, x, dim)
    checks.check_dtype(dtype)
    reads = {"x": x, "mask": mask, "gate": gate, "segment_starts": starts, "offsets": offsets}
    reads |= {"initial": initial} if isinstance(initial, torch.Tensor) else {}
    if out is not None:
        dtype = checks.check_out("out", out, reads, dtype)
    if indices is not None:
        checks.check_out("indices", indices, reads, torch.int64)
        if out is not None:
            checks.check_apart(out, indices)
    inputs = Inputs(x=x, mask=mask, gate=gate, starts=starts, offsets=offsets)
    length = split_shape(x.shape, dim)[1]
    known = isinstance(length, int) and not torch.compiler.is_compiling()  # to whose code symbols are numbers
    spec = ScanSpec(
        op=listed(op).name,
        length=max(1, length) if known else 1,  # a symbol is not to be looked at
        out_dtype=str(dtype) if dtype is not None else "",
        accumulate=None if accumulate is None else str(accumulate),
        reverse=reverse,
        exclusive=exclusive,
        final=final,
        **_options_of(inputs) | {"initial": initial is not None},
    )
    dtype, carry_dtype = getattr(torch, spec.out_dtype), getattr(torch, spec.carry.name)
    if spec.indexed and out is not None:
        checks.check_values(out, spec.operator.result(spec.term).name)
    if initial is not None:
        inputs = inputs._replace(initial=checks.check_initial(initial, x, dim, carry_dtype))
    return Request(
        inputs=inputs,
        out=out,
        indices=indices,
        op=op,
        dim=dim,
        reverse=reverse,
        exclusive=exclusive,
        final=final,
        dtype=dtype,
        carry_dtype=carry_dtype,
        accumulate=spec.accumulate,
    )


def has_own_operations(tensor: torch.Tensor) -> bool:
    """Whether a subclass says itself what torch's operations do with it, a parameter of such a class among them."""
    found: bool = torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)
    return found


def is_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values are what lies at its address."""
    kind = type(tensor)
    if kind is not torch.Tensor and not (issubclass(kind, torch.nn.Parameter) and not has_own_operations(tensor)):
        return False  # a subclass (fake, distributed, quantised) gives its meaning to torch's operations only
    # Read negated, as z.conj().imag is; read conjugated, as z.conj() is; without memory, as batched gradients are.
    return not (tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor()) and torch._C._has_storage(tensor)
