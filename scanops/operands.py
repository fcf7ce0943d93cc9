"""The tensors that a kernel of a spec takes, to run it by itself: what ``scanops tune`` measures."""

from __future__ import annotations

import math
from typing import Any

import torch

from scanops.codegen.exports.texts import python_name
from scanops.codegen.figures import item_bytes
from scanops.codegen.lines import check_lines
from scanops.codegen.operators import GRADIENTS
from scanops.codegen.spec import ScanSpec
from scanops.requests.call import Call
from scanops.requests.geometry import ALIGNMENT
from scanops.requests.request import Inputs, Request, Tensors
from scanops.runtime.kernels import Kernel
from scanops.runtime.launcher import Launcher, device_of

PAD = 32  # items between rows of a tensor that is not dense
SEGMENT = 100  # items of a segment, on average
RUN = 5  # items in a row whose results came from the same item
CHUNKS = 8  # of a line whose chunks are lines to the kernel
# By kind: the lowest value, and one more than the highest
_STEPS = {"bool": (0, 2), "int": (0, 41), "float": (-1, 2), "complex": (-1, 2)}


class Operands:
    """The tensors of a call along dimension 1 that asks for a spec: inputs, result and indices."""

    def __init__(self, spec: ScanSpec, lines: int, device: str) -> None:
        check_lines(spec, lines)
        across = (spec.inner,) if spec.inner > 1 else ()
        length = spec.capacity * (CHUNKS if spec.ragged else 1)
        shape, shift = (lines // spec.inner, length - spec.complete, *across), 0 if spec.aligned else 1
        self._spec, self.lines = spec, lines
        self._chunk = (spec.capacity if spec.ragged else min(spec.capacity, SEGMENT) // 2) if spec.in_parts else None
        self.moved = lines * length * item_bytes(spec)  # bytes
        self.tensors = {"x": _lay_out(shape, spec.dtype, spec.input_layout, shift, device)}  # arguments of a kernel
        for source in spec.sources[1:]:
            self.tensors[python_name(source)] = _lay_out(shape, source.dtype.name, source.layout, 0, device)
        if spec.by_offsets or spec.ragged:
            cuts = [0, length] if spec.ragged else [*range(0, length, SEGMENT), length]
            dtype = getattr(torch, str(spec.segments or spec.ragged))
            self.tensors["offsets"] = torch.tensor(cuts, dtype=dtype, device=device)
        if spec.initial:
            carried = (shape[0], *((len(cuts) - 1,) if spec.per_segment else ()), *across)
            self.tensors["initial"] = torch.ones(carried, device=device).to(getattr(torch, spec.carry.name))
        shape = (shape[0], length, *across)
        self.out = _lay_out(shape, spec.out_dtype, "dense", shift if spec.input_layout != "dense" else 0, device)
        # Of fused scans and of gradients: the launch, what it reads and what it writes.
        self._launches: dict[Kernel, tuple[Launcher, Tensors, tuple[torch.Tensor, ...]]] = {}
        if spec.indexed:
            self.tensors["indices"] = torch.empty(shape, dtype=torch.int64, device=device)

    def fill_exactly(self) -> None:
        """Fill the inputs with values whose scan is exact: signs for products, small integers otherwise."""
        x, random = self.tensors["x"], torch.Generator(self.out.device).manual_seed(2026)
        for source in self._spec.sources:
            tensor = self.tensors[python_name(source)]
            low, high = _STEPS["bool" if source.name == "gate" else source.dtype.kind]
            high = SEGMENT if source.name == "starts" else high
            steps = torch.randint(low, high, tensor.shape, dtype=torch.int8, device=x.device, generator=random)
            tensor.copy_(steps == 1 if source.name == "starts" else steps)
            if source.name == "saved" and source.dtype.kind == "int":  # the index of the item that a result came from
                items = torch.arange(tensor.shape[1], device=x.device) // RUN * RUN
                tensor.copy_(items.view(-1, *[1] * (tensor.ndim - 2)).expand(tensor.shape))
        if self._spec.op != "sum":  # odd factors are invertible in wrapping arithmetic, signs everywhere
            if self._spec.input.kind == "int":
                x.mul_(2).add_(1)
            else:
                x.masked_fill_(x == 0, 1)

    def fill_randomly(self) -> None:
        """Fill floating inputs with normal values, and gates with values from 0 to 1: constant bits are faster."""
        random = torch.Generator(self.out.device).manual_seed(2026)
        for name, tensor in self.tensors.items():
            drawn = name in ("x", "gate", "saved") or name.startswith("further")
            if drawn and (tensor.is_floating_point() or tensor.is_complex()):
                values = torch.randn(tensor.shape, device=tensor.device, generator=random)
                tensor.copy_(values.abs().clamp(max=1) if name == "gate" else values)

    def run(self, kernel: Kernel) -> tuple[torch.Tensor, ...]:
        """Scan, and return the result; all results of a gradient or a fused scan."""
        if self._spec.op in GRADIENTS or self._spec.fusion is not None:  # which no public function asks for like this
            return self._launch(kernel)
        kernel(dim=1, chunk=self._chunk, out=self.out, **self.tensors)
        return (self.out,)

    def _launch(self, kernel: Kernel) -> tuple[torch.Tensor, ...]:
        """Launch the kernel of a gradient, or of a fused scan whose operands are in its own order."""
        if kernel not in self._launches:
            spec = self._spec
            request = Request(
                call=Call.of_spec(spec, 1),
                inputs=self._inputs(),
                carry_dtype=getattr(torch, spec.carry.name),
                saved_results=spec.saved_results,
            )
            launcher = Launcher(kernel, request, device_of(self.out), kernel.key)
            others = [
                torch.empty(shape, dtype=dtype, device=self.out.device) for _, shape, dtype in launcher.places[1:]
            ]
            self._launches[kernel] = launcher, request.inputs.flat, (self.out, *others)
        launcher, inputs, outs = self._launches[kernel]
        launcher(inputs, outs)
        return outs

    def _inputs(self) -> Inputs:
        """The tensors as a request has them."""
        if self._spec.fusion is not None:
            x, *further = (self.tensors[python_name(each)] for each in self._spec.sources)
            return Inputs(x, initial=self.tensors.get("initial"), further=tuple(further))
        names = {"input": "x", "further1": "begin"}
        tensors: dict[str, Any] = {
            names.get(each.name, each.name): self.tensors[python_name(each)] for each in self._spec.sources
        }
        tensors |= {name: self.tensors[name] for name in ("offsets", "initial") if name in self.tensors}
        return Inputs(**tensors)


def _lay_out(shape: tuple[int, ...], dtype: str, layout: str, shift: int, device: str) -> torch.Tensor:
    """Return a tensor that expands to this shape, of this layout, ``shift`` items behind a 16-byte boundary."""
    if layout == "line":
        return _lay_out((shape[0], 1, *shape[2:]), dtype, "dense", shift, device)
    if layout == "step":
        return _lay_out((*shape[:-1], 1), dtype, "dense", shift, device)
    if layout == "transposed":
        run = -(-shape[-2] // ALIGNMENT) * ALIGNMENT  # items: every run is aligned
        turned = _lay_out((*shape[:-2], shape[-1], run), dtype, "dense", shift, device)
        return turned[..., : shape[-2]].transpose(-1, -2)
    around, step = list(shape), 2 if layout == "strided" else 1
    around[-1] = step * shape[-1] + (0 if layout in ("dense", "strided") else PAD)
    storage = torch.empty(math.prod(around) + shift, dtype=getattr(torch, dtype), device=device)[shift:].view(around)
    return storage[..., : step * shape[-1] : step]


def same(result: torch.Tensor, wanted: torch.Tensor, *, exactly: bool) -> bool:
    """Whether two results are equal, or if not ``exactly``, within 2 percent: for operators that round, as exp does."""
    if exactly or not (wanted.is_floating_point() or wanted.is_complex()):
        return torch.equal(result, wanted)
    worst = torch.nan_to_num((result - wanted).abs().float()).max()
    return bool(worst <= 0.02 * (1 + torch.nan_to_num(wanted.abs().float()).max()))
