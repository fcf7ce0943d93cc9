"""From the arguments of a call to a checked request: which tensors, which spec."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scanops.codegen.lines import WHOLE_BYTES, are_few, fill_panels
from scanops.codegen.operators import Operator, operator_named
from scanops.codegen.spec import Layout, ScanSpec
from scanops.errors import DimensionOutOfRange, UnsupportedRequest
from scanops.geometry import ALIGNMENT, is_aligned, layout_of, neighbours_of, split_shape

__all__ = ["Request", "is_memory", "make_request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call, checked: the tensors it reads and writes and the options a spec is made of."""

    x: torch.Tensor
    mask: torch.Tensor | None  # of any shape that expands to x's
    out: torch.Tensor | None  # where the caller wants the result
    indices: torch.Tensor | None  # and its indices
    op: str
    dim: int  # from 0, also for a 0-d tensor
    reverse: bool
    exclusive: bool
    dtype: torch.dtype  # of the result
    accumulate: str | None  # the spec's word for what it is accumulated in

    @property
    def operator(self) -> Operator:
        """The operator's row."""
        return operator_named(self.op)

    @property
    def outs(self) -> tuple[torch.Tensor | None, ...]:
        """Where the caller wants each output, None: in a new tensor."""
        return (self.out, self.indices) if self.operator.indices else (self.out,)

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtype of each output."""
        return (self.dtype, torch.int64) if self.operator.indices else (self.dtype,)

    @property
    def differentiable(self) -> bool:
        """Whether autograd will want this call's gradient."""
        wanted = self.x.requires_grad or (self.mask is not None and self.mask.requires_grad)
        return wanted and torch.is_grad_enabled()

    def expanded_mask(self) -> torch.Tensor | None:
        """The mask as a view with x's shape; nothing is copied."""
        return None if self.mask is None else self.mask.expand(self.x.shape)

    def spec(self, out: torch.Tensor, multiprocessors: int) -> ScanSpec:
        """The spec of the kernel that computes this request into ``out`` on a GPU of that size."""
        outer, length, inner = split_shape(self.x.shape, self.dim)
        mask = self.expanded_mask()
        x_layout, mask_layout, turned = self._layouts(multiprocessors)
        aligned = turned and out.data_ptr() % ALIGNMENT == 0 and is_aligned(self.x, x_layout, self.dim)
        aligned = aligned and (mask is None or is_aligned(mask, mask_layout, self.dim))
        few = are_few(outer * inner, length, inner, multiprocessors)
        # An odd number of columns is read item by item, which any boundary allows: one kernel serves both.
        any_boundary = inner > 1 and inner % 2 == 1 and x_layout != "transposed"
        return ScanSpec(
            op=self.op,
            dtype=str(self.x.dtype),
            length=length,
            out_dtype=str(self.dtype),
            accumulate=self.accumulate,
            mask=None if mask is None else str(mask.dtype),
            reverse=self.reverse,
            exclusive=self.exclusive,
            inner=inner,
            lines="few" if few and x_layout != "transposed" else "many",
            input_layout=x_layout,
            mask_layout=mask_layout,
            aligned=any_boundary or aligned,
        )

    def _layouts(self, multiprocessors: int) -> tuple[Layout, Layout, bool]:
        """How x and the mask lie; and whether all runs of what is transposed begin and end on 16-byte boundaries."""
        x, mask, dim = self.x, self.expanded_mask(), self.dim
        outer, length, inner = split_shape(x.shape, dim)
        x_layout = layout_of(x, x.shape, dim)
        mask_layout: Layout = "dense" if mask is None else layout_of(mask, x.shape, dim)
        found = neighbours_of(x, mask, dim) if x_layout == "strided" else None
        if found is None or not fill_panels(outer * inner, multiprocessors):
            return x_layout, mask_layout, True
        # (bytes that lie side by side) of what is read and written along a line and across lines
        out_bytes = self.dtype.itemsize
        runs = (
            (x.itemsize * length, out_bytes * found.size)
            if inner > 1
            else (out_bytes * length, x.itemsize * found.size)
        )
        if min(runs) < WHOLE_BYTES:
            return x_layout, mask_layout, True
        turned = [x]
        if mask is not None and not (mask_layout == "dense" or (mask_layout == "rows" and inner == 1)):
            if (mask.stride(dim) if inner > 1 else found.mask_stride) != 1:
                return x_layout, mask_layout, True  # gathered together
            mask_layout = "transposed"
            turned.append(mask)
        # Columns are accessed side by side in the output, too, and in a mask that lies so: at most 16 items at once.
        begins = inner in (1, found.size) or found.size % ALIGNMENT == 0
        size = 0 if inner > 1 else found.size
        return "transposed", mask_layout, begins and all(_runs_on_boundaries(tensor, size) for tensor in turned)


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
    mask: torch.Tensor | None,
    reverse: bool,
    exclusive: bool,
    dtype: torch.dtype | None,
    out: torch.Tensor | None,
    indices: torch.Tensor | None = None,
    accumulate: torch.dtype | str | None = None,
) -> Request:
    """Check everything that can be wrong with a call. Raises UnsupportedRequest or DimensionOutOfRange."""
    _check_tensor("x", x)
    dim = _check_dim(x, dim)
    if mask is not None:
        mask = _check_mask(x, mask)
    _check_dtype(dtype)
    if out is not None:
        dtype = _check_out("out", out, x, mask, dtype)
    if indices is not None:
        _check_out("indices", indices, x, mask, torch.int64)
        if out is not None and _meet(out, indices):
            raise _shared("indices", indices, "out", out)
    length = max(1, split_shape(x.shape, dim)[1])
    spec = ScanSpec(
        op=op,
        dtype=str(x.dtype),
        length=length,
        out_dtype=str(dtype) if dtype is not None else "",
        accumulate=None if accumulate is None else str(accumulate),
        mask=None if mask is None else str(mask.dtype),
        reverse=reverse,
        exclusive=exclusive,
    )
    return Request(
        x=x,
        mask=mask,
        out=out,
        indices=indices,
        op=op,
        dim=dim,
        reverse=reverse,
        exclusive=exclusive,
        dtype=getattr(torch, spec.out_dtype),
        accumulate=spec.accumulate,
    )


def _check_tensor(role: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise UnsupportedRequest(
            f"a scan whose {role} is a {type(value).__name__}",
            allowed="a torch.Tensor",
            value=f"{role}={value!r}",
            hint=f"pass torch.as_tensor({role})",
        )
    if value.layout != torch.strided:
        raise UnsupportedRequest(
            f"a scan whose {role} is not strided",
            allowed="layout torch.strided",
            value=f"{role}.layout={value.layout}",
            hint=f"call {role}.to_dense() first",
        )


def _check_dim(x: torch.Tensor, dim: object) -> int:
    rank = max(x.ndim, 1)
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise UnsupportedRequest(
            "a scan along a dimension that is not a whole number",
            allowed=f"an int from {-rank} to {rank - 1}",
            value=f"dim={dim!r}",
            hint="pass one dimension as an int",
        )
    if not -rank <= dim < rank:
        raise DimensionOutOfRange(
            f"a scan along dimension {dim} of a tensor of rank {x.ndim}",
            allowed=f"{-rank} to {rank - 1}",
            value=f"dim={dim}, x.shape={tuple(x.shape)}",
            hint="pass dim=-1 for the last dimension",
        )
    return dim % rank


def _check_dtype(dtype: object) -> None:
    if not (dtype is None or isinstance(dtype, torch.dtype)):
        raise UnsupportedRequest(
            f"a scan whose dtype is a {type(dtype).__name__}",
            allowed="a torch.dtype, or None for the one torch would choose",
            value=f"dtype={dtype!r}",
            hint="pass dtype=torch.float32 and the like",
        )


def _check_mask(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    _check_tensor("mask", mask)
    _check_device("mask", mask, x)
    shape, target = tuple(mask.shape), tuple(x.shape)
    fits = len(shape) <= len(target) and all(
        m in (1, n) for m, n in zip(reversed(shape), reversed(target), strict=False)
    )
    if not fits:
        raise UnsupportedRequest(
            "a mask whose shape does not broadcast to that of x",
            allowed=f"each dimension equal to that of x or 1: x.shape={target}",
            value=f"mask.shape={shape}",
            hint="expand or reshape the mask; it may be broadcast or strided without being copied",
        )
    if mask.ndim == 0 and x.ndim > 0 and mask.dtype != torch.bool:
        # torch.result_type's rule: a 0-d tensor lends its kind, not its width. One item is converted, no mask copied.
        mask = mask.to(_promoted(x, mask))
    return mask


def _promoted(x: torch.Tensor, mask: torch.Tensor) -> torch.dtype:
    """What torch makes of x times a 0-d mask; where it has no rule, the mask's: the spec then says what is wrong."""
    try:
        return torch.result_type(x, mask)
    except RuntimeError:
        return mask.dtype


def _check_device(role: str, tensor: torch.Tensor, x: torch.Tensor) -> None:
    if tensor.device != x.device:
        raise UnsupportedRequest(
            f"a scan whose {role} is on another device than x",
            allowed=str(x.device),
            value=f"{role}.device={tensor.device}",
            hint=f"move it: {role}.to({str(x.device)!r})",
        )


def _check_out(
    name: str, out: torch.Tensor, x: torch.Tensor, mask: torch.Tensor | None, dtype: torch.dtype | None
) -> torch.dtype:
    _check_tensor(name, out)
    _check_device(name, out, x)
    if out.shape != x.shape:
        raise UnsupportedRequest(
            f"a scan into an {name} of another shape",
            allowed=f"x.shape={tuple(x.shape)}",
            value=f"{name}.shape={tuple(out.shape)}",
            hint="pass out=torch.empty_like(x)",
        )
    if dtype is not None and out.dtype != dtype:
        raise UnsupportedRequest(
            f"a scan with dtype={dtype} into an {name} of another dtype",
            allowed=f"{name} of dtype {dtype}" + (", or no dtype argument" if name == "out" else ""),
            value=f"{name}.dtype={out.dtype}",
            hint="leave dtype out: the result takes out's" if name == "out" else f"pass {name}.to({dtype})",
        )
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, mask, out)):
        raise UnsupportedRequest(
            "a scan with out= of tensors that require gradients",
            allowed="out= without gradients, as in torch",
            value="requires_grad=True",
            hint="leave out= out, or call it under torch.no_grad()",
        )
    if any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise UnsupportedRequest(
            f"a scan into an {name} whose items share memory",
            allowed="an out with a place for every item",
            value=f"{name}.stride()={out.stride()}",
            hint="pass out=torch.empty_like(x), not an expanded tensor",
        )
    for role, tensor in (("x", x), ("mask", mask)):
        if tensor is not None and _overlaps(tensor, out):
            raise _shared(name, out, role, tensor)
    return out.dtype


def _shared(name: str, out: torch.Tensor, role: str, tensor: torch.Tensor) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"a scan into an {name} that shares memory with {role}",
        allowed="separate memory, or for x exactly the same tensor, which is scanned in place",
        value=f"{name} at {_span(out)}, {role} at {_span(tensor)} (byte addresses)",
        hint=f"pass an {name} of its own, or {role}.clone()",
    )


def _overlaps(tensor: torch.Tensor, out: torch.Tensor) -> bool:
    if tensor.device.type == "meta":
        return False
    same = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    if same == (out.data_ptr(), out.dtype, out.shape, out.stride()):
        # In place: a thread has read its items before it writes them, and no other thread reads them. An out that is
        # not contiguous is written from a copy.
        return False
    return _meet(tensor, out)


def _meet(tensor: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether some byte may belong to both."""
    if tensor.device.type == "meta" or not tensor.numel() or not out.numel():
        return False
    first, last = _span(tensor)
    out_first, out_last = _span(out)
    return first <= out_last and out_first <= last


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First and last byte address a tensor touches."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size() - 1


def is_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values are what lies at its address."""
    if type(tensor) is not torch.Tensor and not isinstance(tensor, torch.nn.Parameter):
        return False  # a subclass (fake, distributed, quantised) gives its meaning to torch's operations only
    # Read negated, as z.conj().imag is; read conjugated, as z.conj() is; without memory.
    return not (tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor())
