"""Random calls as users make them: their tensors, the function that is called, the bytes it has to move, a reference.

A draw follows from a seed and its number alone, so that worker processes can build the kernels of the very calls that
another process times.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import scanops
from benchmarks.fusion import decay, decay_and_step

__all__ = ["KNOWN", "Draw", "draw", "worst_difference"]

LEAST_BYTES, MOST_BYTES = 2**16, 2**30  # of a call; log-uniform between them
SMALL_BYTES = 2**8, 2**13  # of calls for the emulator
CHECKED_ITEMS = 2**23  # of the lines that are compared with the reference; one line is compared whole
LONG_PRODUCT = 2**16  # factors; longer products are of signs, which neither overflow nor vanish
NEAR = {torch.float64: 1e-8, torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 4e-2}  # of the greatest result
HALVES = (torch.float16, torch.bfloat16)
Tensors = dict[str, torch.Tensor]
Results = tuple[torch.Tensor, ...]


def gates_and_values(gate: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A recurrence whose gates are logits."""
    return torch.sigmoid(gate), x


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A weighted sum."""
    return x * weight


def passes(x: torch.Tensor) -> torch.Tensor:
    """The part of a ray that a sample lets through."""
    return 1 - x


def weigh(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The weight of a sample."""
    return y * x


def scale(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A sum in units of a step."""
    return y * x * 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """A scan with functions: its operator, options, and the further tensors, "full" or "for each channel"."""

    op: str
    further: tuple[str, ...] = ()
    results: int = 1
    options: Mapping[str, Any]


FUSED = {
    "gated recurrence": Fused(op="linear", further=("full",), options={"map": gates_and_values}),
    "weighted sum": Fused(op="sum", further=("full",), options={"map": product}),
    "decays": Fused(op="sum", further=("for each channel",) * 2, options={"map": decay}),
    "decays and steps": Fused(
        op="sum", further=("for each channel",) * 2, results=2, options={"map": decay, "then": decay_and_step}
    ),
    "transmittance": Fused(op="prod", options={"map": passes, "then": weigh, "exclusive": True}),
    "sum of a gate": Fused(op="sum", options={"map": torch.sigmoid, "then": scale}),
}
OPERATORS = {"sum": 9, "linear": 11, "prod": 2, "max": 2, "cummax": 3, "logcumsumexp": 3, "fused": 6}
LAYOUTS = {"rows": 9, "one line": 2, "columns": 6, "middle": 9, "heads": 3}
DTYPES = {torch.float32: 11, torch.bfloat16: 8, torch.float16: 1, torch.float64: 1}
COUNTED = {torch.int32: 4, torch.int64: 1, torch.bool: 2, torch.int8: 1}  # dtypes of sums without gradients
GATES = {"full": 5, "for each line": 2, "for each channel": 3, "for each step": 1, "constant": 2, "number": 1}
SEGMENTS = {"": 14, "flags": 3, "flags of steps": 1, "short offsets": 2, "long offsets": 2}
MASKS = {"": 12, "bool": 2, "bool of steps": 1, "weights": 1}
ACROSS = ("for each channel", "for each step", "flags of steps", "bool of steps")  # broadcast over or along columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One call: a scan with its options, forward alone or with its gradients."""

    number: int
    op: str
    fused: str = ""  # a key of FUSED
    dtype: torch.dtype
    layout: str
    shape: tuple[int, ...]
    dim: int
    gate: str = ""  # a key of GATES
    segments: str = ""  # a key of SEGMENTS
    mask: str = ""  # a key of MASKS
    reverse: bool = False
    exclusive: bool = False
    complete: bool = False
    carries: bool = False  # a carry-in for each line, and the carry-out
    chunk: int = 0
    trains: bool = False

    def __str__(self) -> str:
        words = [self.fused or self.op, " x ".join(map(str, self.shape)), f"dim {self.dim}", str(self.dtype)[6:]]
        words += [f"gate {self.gate}"] if self.gate else []
        words += [self.segments] if self.segments else []
        words += [f"mask {self.mask}"] if self.mask else []
        words += [name for name in ("reverse", "exclusive", "complete", "carries") if getattr(self, name)]
        words += [f"chunks of {self.chunk}"] if self.chunk else []
        return ", ".join([*words, "with gradients"] if self.trains else words)

    @property
    def items(self) -> int:
        """The number of items."""
        return math.prod(self.shape)

    @property
    def classes(self) -> tuple[str, ...]:
        """What the call has in common with others, in words."""
        found = [f"operator: {'fused' if self.fused else self.op}", f"layout: {self.layout}", f"dtype: {self.dtype}"]
        found += [f"gate: {self.gate}"] if self.gate else []
        found += [f"segments: {self.segments}"] if self.segments else []
        found += [f"mask: {self.mask}"] if self.mask else []
        options = ("reverse", "exclusive", "complete", "carries", "chunk")
        return (*found, *(f"option: {name}" for name in options if getattr(self, name)))

    def operands(self, device: str, *, filled: bool = True) -> Tensors:
        """Return the tensors of the call by name; ``filled`` fills them, else they only have their shapes."""
        return dict(_operands(self, torch.Generator(device).manual_seed(self.number), device, filled))

    def leaves(self, operands: Tensors) -> Tensors:
        """Return the operands that gradients are taken of."""
        fixed = ("mask", "starts", "offsets", "initial", *(("gate",) if self.gate == "constant" else ()))
        return {name: each for name, each in operands.items() if name not in fixed} if self.trains else {}

    def scan(self, operands: Tensors) -> Results:
        """Return the results of the call."""
        x, gate = operands["x"], operands.get("gate", 0.99)
        options: dict[str, Any] = {name: True for name in ("reverse", "exclusive", "complete") if getattr(self, name)}
        names = {"mask": "mask", "segment_starts": "starts", "offsets": "offsets", "initial": "initial"}
        options |= {keyword: operands[name] for keyword, name in names.items() if name in operands}
        options |= {"return_final": True} if self.carries else {}
        options |= {"chunk": self.chunk} if self.chunk else {}
        options |= {"dtype": torch.int32} if self.dtype == torch.int32 else {}
        if self.fused:
            further = [each for name, each in operands.items() if name.startswith("further")]
            given = (*further, x) if self.op == "linear" else (x, *further)
            found = scanops.scan(given, self.op, self.dim, **{**options, **FUSED[self.fused].options})
        elif self.op == "linear":
            found = scanops.linear_scan(gate, x, self.dim, **options)
        elif self.op == "cummax":
            found = scanops.cummax(x, self.dim, **options)
        else:
            found = scanops.scan(x, self.op, self.dim, **options)
        return tuple(_flat(found))

    def run(self, operands: Tensors, given: Results = ()) -> Results:
        """Run the call and return its results; with ``given``, the gradients of the results, those of the leaves."""
        results = self.scan(operands)
        if not self.trains:
            return results
        leaves = tuple(self.leaves(operands).values())
        return torch.autograd.grad(_differentiable(results), leaves, given)

    def gradients(self, device: str, *, filled: bool = True) -> Results:
        """Return the gradients of the results that a backward pass begins with."""
        if not self.trains:
            return ()
        shape = [size + (self.complete and d == self.dim) for d, size in enumerate(self.shape)]
        lines = [size for d, size in enumerate(self.shape) if d != self.dim]
        shapes = [shape] * (FUSED[self.fused].results if self.fused else 1) + [lines] * self.carries
        dtypes = [self.dtype] * (len(shapes) - self.carries) + [_carried(self.dtype)] * self.carries
        source = torch.Generator(device).manual_seed(self.number + 1)
        return tuple(
            torch.randn(each, device=device, generator=source).to(dtype)
            if filled
            else torch.empty(each, device=device, dtype=dtype)
            for each, dtype in zip(shapes, dtypes, strict=True)
        )

    def least_bytes(self, operands: Tensors, results: Results, given: Results) -> int:
        """Return the bytes of kernels that read each tensor and each gradient once and write each result once.

        The backward pass reads what its derivative depends on once more: gates and, for their gradients, results of a
        recurrence, indices of a maximum, inputs and results elsewhere; inputs alone where they are functions' operands.
        """
        found = sum(each.nbytes for each in (*operands.values(), *results))
        if not self.trains:
            return found
        leaves = self.leaves(operands)
        again = [operands[name] for name in ("mask", "starts", "offsets") if name in operands]
        if self.fused:
            again += [each for name, each in leaves.items() if self.op != "linear" or name != "x"]
            again += [results[0]] if self.op == "linear" else []
        elif self.op == "linear":
            again += [operands["gate"]] if "gate" in operands else []
            again += [results[0]] if "gate" in leaves else []
        elif self.op == "cummax":
            again += [results[1]]
        elif self.op != "sum":
            again += [operands["x"], results[0]]
        return found + sum(each.nbytes for each in (*given, *again, *leaves.values()))


def draw(seed: int, number: int, *, small: bool = False) -> Draw:
    """Return the call of a number; ``small`` draws calls of a few thousand items at most."""
    pick = random.Random(f"{seed} {number}")
    op, layout, trains = _one_of(pick, OPERATORS), _one_of(pick, LAYOUTS), pick.random() < 0.45
    fused = pick.choice(tuple(FUSED)) if op == "fused" else ""
    op = FUSED[fused].op if fused else op
    across = layout not in ("rows", "one line")
    if fused and "for each channel" in FUSED[fused].further and not across:
        layout, across = "middle", True
    counts = op == "sum" and not fused and not trains
    dtype = _one_of(pick, DTYPES | COUNTED if counts else DTYPES)
    if dtype == torch.float16 and "decays" in fused:
        dtype = torch.bfloat16  # long sums of one sign overflow in float16
    bounds = SMALL_BYTES if small else (LEAST_BYTES, MOST_BYTES)
    target = bounds[0] * (bounds[1] / bounds[0]) ** pick.random()
    parts = {"cummax": 2 + 8 / dtype.itemsize, "linear": 3}.get(op, 2)
    shape, dim = _shape(pick, layout, max(64, int(target / (dtype.itemsize * parts * (2.3 if trains else 1)))))
    options: dict[str, Any] = {}
    if op == "linear" and not fused:
        options["gate"] = _one_of(pick, {name: n for name, n in GATES.items() if across or name not in ACROSS})
    kind = pick.random()
    if not fused and kind < 0.4:
        usable = {name: n for name, n in SEGMENTS.items() if across or name not in ACROSS}
        options["segments"] = _one_of(pick, usable)
    elif not fused and kind < 0.5:
        options["carries"] = op != "cummax" or not trains
    elif not fused and kind < 0.56 and op != "linear" and op != "cummax":
        options["chunk"] = pick.choice((32, 64, 100, 128, 256))
    elif not fused and kind < 0.6 and op not in ("max", "cummax", "logcumsumexp"):
        options["complete"] = True
    if not options.get("segments") and not (op == "linear" or fused):
        usable = {name: n for name, n in MASKS.items() if across or name not in ACROSS}
        options["mask"] = _one_of(pick, {name: n for name, n in usable.items() if name != "weights" or op == "sum"})
        if options["mask"] == "weights" and not dtype.is_floating_point:
            options["mask"] = ""
    options["reverse"] = pick.random() < 0.25
    options["exclusive"] = not options.get("complete") and pick.random() < 0.12
    return Draw(
        number=number, op=op, fused=fused, dtype=dtype, layout=layout, shape=shape, dim=dim, trains=trains, **options
    )


def _known() -> Iterator[Draw]:
    """Yield the calls of classes that were slow once: the same in every run, beside those that are drawn."""
    f32, bf16, i32, f64 = torch.float32, torch.bfloat16, torch.int32, torch.float64
    calls: tuple[tuple[str, torch.dtype, tuple[int, ...], int, dict[str, Any]], ...] = (
        ("linear", f32, (1024, 24), 0, {"gate": "constant", "segments": "flags"}),
        ("linear", f32, (4096, 4096), 0, {"gate": "for each channel", "segments": "flags"}),
        ("sum", f32, (2**26,), 0, {"segments": "short offsets"}),
        ("sum", f32, (10**6, 64), 1, {"segments": "short offsets"}),
        ("linear", f32, (10**6, 64), 1, {"gate": "full", "segments": "short offsets", "trains": True}),
        ("logcumsumexp", f32, (2**26,), 0, {}),
        ("logcumsumexp", f32, (64, 1000, 100), 1, {}),
        ("logcumsumexp", f32, (65536, 512), 1, {}),
        ("logcumsumexp", bf16, (8, 4096, 2560), 1, {"trains": True}),
        ("cummax", f32, (8, 4096, 2048), 1, {}),
        ("cummax", f32, (8, 4096, 2048), 1, {"trains": True}),
        ("linear", bf16, (8, 4096, 2560), 1, {"gate": "full", "trains": True}),
        ("prod", bf16, (8, 4096, 2560), 1, {"trains": True}),
        ("sum", bf16, (8, 4096, 2560), 1, {"trains": True}),
        ("linear", bf16, (8, 4096, 2560), 1, {"fused": "gated recurrence", "trains": True}),
        ("sum", f32, (512, 131072), 1, {"trains": True}),
        ("linear", f32, (512, 100000), 1, {"gate": "full", "trains": True}),
        ("sum", f32, (64, 16384), 1, {}),
        ("sum", f32, (64, 32768), 1, {}),
        ("sum", i32, (64, 4096, 512), 1, {}),
        ("linear", f32, (16, 2048, 128), 1, {"gate": "full"}),
        ("linear", bf16, (16, 2048, 128), 1, {"gate": "full", "trains": True}),
        ("linear", f64, (16, 2048, 128), 1, {"gate": "full", "trains": True}),
    )
    for number, (op, dtype, shape, dim, options) in enumerate(calls):
        layout = (
            "one line" if len(shape) == 1 else "rows" if dim == len(shape) - 1 else "columns" if not dim else "middle"
        )
        yield Draw(number=number, op=op, dtype=dtype, layout=layout, shape=shape, dim=dim, **options)


KNOWN = tuple(_known())


def _one_of(pick: random.Random, weights: Mapping[Any, int]) -> Any:
    return pick.choices(tuple(weights), tuple(weights.values()))[0]


def _size(pick: random.Random, least: float, most: float) -> int:
    """A size, log-uniform: a third powers of 2, a third multiples of 8, a third any, odd ones as well."""
    most = max(least, most)
    size = least * (most / least) ** pick.random()
    step = pick.choice((0, 8, 1))
    return max(1, 1 << round(math.log2(size)) if step == 0 else round(size / step) * step)


def _shape(pick: random.Random, layout: str, items: int) -> tuple[tuple[int, ...], int]:
    """A shape of about so many items, and the scanned dimension."""
    if layout == "one line":
        return (_size(pick, items, items),), 0
    if layout == "rows":
        length = _size(pick, 16, min(items, 2**20))
        return (max(1, items // length), length), 1
    columns = _size(pick, 8, min(2**13, items / 8))
    if layout == "columns":
        return (max(1, items // columns), columns), 0
    length = _size(pick, 16, min(2**16, items / columns))
    batch = max(1, items // (columns * length))
    if layout == "middle":
        return (batch, length, columns), 1
    width = next(each for each in (256, 128, 80, 64, 16, 8, 1) if each <= max(1, columns * pick.random()))
    return (batch, length, max(1, columns // width), width), 1


def _carried(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALVES else dtype


def _operands(draw: Draw, source: torch.Generator, device: str, filled: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors by name, of values whose scan neither overflows nor vanishes."""
    shape, dim, length = draw.shape, draw.dim, draw.shape[draw.dim]
    layouts = {
        "for each line": [size if d != dim else 1 for d, size in enumerate(shape)],
        "for each channel": [size if d > dim else 1 for d, size in enumerate(shape)],
        "of steps": [size if d <= dim else 1 for d, size in enumerate(shape)],
        "for each step": [size if d < len(shape) - 1 else 1 for d, size in enumerate(shape)],
        "constant": [],
    }

    def normal(of: Any = shape, dtype: torch.dtype = draw.dtype, fit: Callable[..., Any] = lambda x: x) -> torch.Tensor:
        if not filled:
            return torch.empty(of, dtype=dtype, device=device)
        return fit(torch.randn(of, device=device, generator=source)).to(dtype)  # type: ignore[no-any-return]

    def chosen(share: float, of: Any = shape) -> torch.Tensor:
        if not filled:
            return torch.empty(of, dtype=torch.bool, device=device)
        return torch.rand(of, device=device, generator=source) < share

    fit: Callable[[torch.Tensor], torch.Tensor] = lambda x: x  # noqa: E731
    if draw.op == "prod" and not draw.fused:
        fit = torch.sign if length > LONG_PRODUCT else lambda x: 1 + x / 1000
    elif draw.fused == "transmittance":
        fit = lambda x: x.sigmoid() / 10  # noqa: E731
    elif draw.dtype == torch.bool:
        fit = lambda x: x > 0  # noqa: E731
    elif not draw.dtype.is_floating_point:
        fit = lambda x: (x > 1).int()  # noqa: E731
    yield "x", normal(fit=fit)
    for number, form in enumerate(FUSED[draw.fused].further if draw.fused else ()):
        yield f"further{number}", normal(layouts.get(form, shape))
    if draw.gate not in ("", "number"):
        yield "gate", normal(layouts.get(draw.gate, shape), fit=torch.sigmoid)
    if draw.mask == "weights":
        yield "mask", normal()
    elif draw.mask:
        yield "mask", chosen(0.7, layouts["of steps"] if "steps" in draw.mask else shape)
    mean = 10 ** (1.2 + (source.initial_seed() % 7) / 7) if draw.segments != "long offsets" else 1000
    if draw.segments.startswith("flags"):
        yield "starts", chosen(1 / mean, layouts["of steps"] if "steps" in draw.segments else shape)
    elif draw.segments:
        count = max(1, int(length / mean))
        inner = torch.randint(0, length + 1, (count - 1,), generator=torch.Generator().manual_seed(draw.number))
        yield "offsets", torch.cat([torch.tensor([0]), inner.sort().values, torch.tensor([length])]).int().to(device)
    if draw.carries:
        yield "initial", normal([size for d, size in enumerate(shape) if d != dim], _carried(draw.dtype))


def _flat(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    else:
        for each in found:
            yield from _flat(each)


def _differentiable(results: Results) -> Results:
    return tuple(each for each in results if each.is_floating_point())


# ---- the reference


def worst_difference(draw: Draw, operands: Tensors, given: Results) -> tuple[float, float]:
    """Return the greatest difference from PyTorch's operators, over the greatest value, and the one that is allowed.

    Both run the results and, where the call takes them, the gradients. Floats are compared with float64's, on some
    lines where there are many. A gradient that is a sum over other lines than those is not compared.
    """
    part = _lines(draw)
    leaves = draw.leaves(operands)
    tracked = operands | {name: each.detach().requires_grad_() for name, each in leaves.items()}
    results = draw.scan(tracked)
    found = [*results]
    if draw.trains:
        found += torch.autograd.grad(_differentiable(results), tuple(draw.leaves(tracked).values()), given)
    few = {name: _wide(part(each)) for name, each in operands.items()}
    few = few | {name: few[name].detach().clone().requires_grad_() for name in leaves}
    with scanops.policy("fallback"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # each call says that no kernel serves it
        expected = [*draw.scan(few)]
        if draw.trains:
            starts = tuple(_wide(part(each)) for each in given)
            expected += torch.autograd.grad(_differentiable(tuple(expected)), tuple(draw.leaves(few).values()), starts)
    summed = [part(each).shape == each.shape and part(found[0]).shape != found[0].shape for each in found]
    pairs = [(part(a), b) for a, b, skip in zip(found, expected, summed, strict=True) if not skip]
    return max(_off(a.detach(), b.detach()) for a, b in pairs), NEAR.get(draw.dtype, 0.0)


def _off(found: torch.Tensor, expected: torch.Tensor) -> float:
    if not expected.is_floating_point():
        return float(not torch.equal(found, expected))
    wide = found.double()
    apart = torch.where(wide == expected, 0.0, (wide - expected).abs())  # infinities of the identity
    greatest = expected.abs().nan_to_num(posinf=0.0).amax().clamp(min=1e-30)
    return float((apart / greatest).nan_to_num(nan=math.inf).amax())


def _wide(each: torch.Tensor) -> torch.Tensor:
    return each.detach().double() if each.is_floating_point() else each


def _lines(draw: Draw) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that returns the part of a tensor that belongs to some lines, all where they are few."""
    others = [d for d in range(len(draw.shape)) if d != draw.dim]
    if draw.items <= CHECKED_ITEMS or not others:
        return lambda each: each
    other = max(others, key=lambda d: draw.shape[d])
    width = max(1, draw.shape[other] * CHECKED_ITEMS // draw.items)
    return partial(_narrow, draw, other, draw.shape[other] - width, width)


def _narrow(draw: Draw, other: int, start: int, width: int, each: torch.Tensor) -> torch.Tensor:
    missing = len(draw.shape) - each.ndim  # a carry has no scanned dimension; offsets and constants have no lines
    if missing > 1 or (missing and draw.segments.endswith("offsets")):
        return each
    at = other - (missing and other > draw.dim)
    return each if each.shape[at] == 1 else each.narrow(at, start, width)
