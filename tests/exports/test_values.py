"""Exported files give the values of the sequential scan, in a process without scanops; their text runs emulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from scanops.codegen.spec import ScanSpec
from tests.exports.files import job, parsed, run
from tests.numbers import oracle


def drawn(spec: ScanSpec, shape: tuple[int, ...], dim: int) -> dict[str, torch.Tensor]:
    """Tensors that lie as the spec says, by the oracle's names and in the order of a call."""
    tensors = {"x": oracle.values(spec.op, shape, getattr(torch, spec.dtype))}
    if spec.mask:
        weights = oracle.weights(spec.op, shape, getattr(torch, spec.mask))
        tensors["mask"] = oracle.selection(shape) if spec.mask == "bool" else weights
    if spec.gate:
        tensors["gate"] = oracle.gates(shape, getattr(torch, spec.gate))
    if spec.segments == "flags":
        tensors["starts"] = oracle.selection(shape, seed=5) & oracle.selection(shape, seed=6).logical_not()
    layouts = (spec.input_layout, spec.mask_layout, spec.gate_layout, spec.starts_layout)
    for name, layout in zip(("x", "mask", "gate", "starts"), layouts, strict=True):
        if name in tensors:
            tensors[name] = laid(tensors[name], layout, dim)
    if spec.by_offsets:
        length = shape[dim]
        tensors["offsets"] = torch.tensor([0, length // 3, length // 3, length - 1, length]).to(
            getattr(torch, spec.segments or "")
        )
    if spec.initial:
        tensors["initial"] = torch.full((), 2, dtype=getattr(torch, spec.carry.name))
    return tensors


def laid(tensor: torch.Tensor, layout: str, dim: int) -> torch.Tensor:
    """The same values where such an operand may lie."""
    if layout == "transposed":
        other = -2 if dim in (-1, tensor.ndim - 1) else -1
        return tensor.transpose(dim, other).contiguous().transpose(dim, other)
    if layout == "strided":
        apart = torch.stack([tensor, tensor], -1)
        return apart[..., 0]
    if layout in ("rows", "columns"):
        wide = torch.cat([tensor, tensor], 0 if layout == "columns" else -1)
        return wide[: tensor.shape[0]] if layout == "columns" else wide[..., : tensor.shape[-1]]
    return tensor


# (specs, shape, dim): an operator, a variant, a layout, a strategy or a dtype that no row above has
CASES: tuple[tuple[str, tuple[int, ...], int], ...] = (
    ("prod-f32-n2052", (3, 2052), 1),
    ("sum-f32-n64-inner32-columns-mask_b8-strided_mask-reverse-final", (2, 64, 32), 1),
    ("linear-bf16-n130-inner64-gate_f32-initial-final-strided_gate", (2, 130, 64), 1),
    ("sum-f32-n132-transposed-exclusive", (100, 132), 1),
    ("cummax-f16-n300-segments-reverse-rows", (5, 300), -1),
    ("sum-i32-any-le512-offsets_i64-initial", (4, 77), 1),
    ("logical_or-f32-n31-unaligned", (9, 31), 1),
    ("prod-c64-n100-mask_c64-exclusive", (3, 100), 1),
    ("sum-e4m3fn-n64", (6, 64), 1),
)


def test_every_kind_of_spec(tmp_path: Path) -> None:
    """One process for all of them: to import torch takes longer than the scans."""
    jobs, expected = [], []
    for number, (slug, shape, dim) in enumerate(CASES):
        spec = ScanSpec.parse(slug)
        tensors = drawn(spec, shape, dim)
        jobs.append(job(parsed([slug]), [{"dim": dim, "tensors": list(tensors.values())}], tmp_path, number))
        options: dict[str, Any] = {"reverse": spec.reverse, "exclusive": spec.exclusive}
        options |= {"dtype": getattr(torch, spec.out_dtype), "carry_dtype": getattr(torch, spec.carry.name)}
        found = oracle.scan(tensors.pop("x"), spec.op, dim, **tensors, **options)
        expected.append((slug, [*found.outputs, *([found.final] if spec.final else [])]))
    for (slug, wanted), (given,) in zip(expected, run(jobs, tmp_path), strict=True):
        assert not isinstance(given, str), f"{slug}: {given}"
        for have, want in zip(given if isinstance(given, tuple) else (given,), wanted, strict=True):
            assert have.dtype == want.dtype and have.is_contiguous() and torch.equal(have, want), slug


# What a call of the masked sum is given, and a part of what it says; 100 items a line.
_X, _MASK = torch.ones(3, 100), torch.ones(3, 100, dtype=torch.bool)
WRONG: tuple[tuple[float, tuple[Any, ...], str], ...] = (
    (1, ([1.0], _MASK), "TypeError: x is list: it has to be a tensor"),
    (1, (_X.double(), _MASK), "TypeError: x is torch.float64: this file reads torch.float32"),
    (1, (_X, _MASK.to(torch.int8)), "TypeError: mask is torch.int8: this file reads torch.bool or torch.float32"),
    (1, (_X.to("meta"), _MASK), "ValueError: x is on meta: all tensors have to be on one cpu device"),
    (1, (_X, _MASK[0]), "ValueError: mask of shape (100,) and strides (1,) has to be contiguous, of the shape of x"),
    (1, (_X[:, ::2], _MASK), "ValueError: x of shape (3, 50) and strides (100, 2) has to be contiguous"),
    (2, (_X, _MASK), "IndexError: dim 2 of a tensor of shape (3, 100)"),
    (0, (_X, _MASK), "its lines have 100 items, and those of dim 0 have 3"),
    (1, (torch.ones(304)[1:301].view(3, 100), _MASK), "x has to begin on a boundary of 16 bytes"),
    (1, (_X.clone().requires_grad_(), _MASK), "RuntimeError: x requires a gradient, and there is none here"),
    (1.5, (_X, _MASK), "TypeError: dim is 1.5: it has to be a whole number"),
)
# The same of a kernel that goes on from results, with a mask of any strides, up to 200 items a line.
WRONG_EXPANDED: tuple[tuple[tuple[Any, ...], str], ...] = (
    ((_X, _MASK[:2], 0.0), "ValueError: mask of shape (2, 100) does not expand to (3, 100)"),
    ((_X, _MASK[None], 0.0), "ValueError: mask of shape (1, 3, 100) does not expand to (3, 100)"),
    ((_X, _MASK, torch.zeros(4)), "ValueError: initial of shape (4,) does not expand to (3,)"),
    ((_X, _MASK, "0"), "TypeError: initial is str: it has to be a tensor"),
    ((torch.ones(3, 201), torch.ones(3, 201) > 0, 0.0), "its lines have 1 to 200 items, and those of dim 1 have 201"),
)


def test_formats_shapes_and_bad_calls(tmp_path: Path) -> None:
    """KernelBench with either mask, GPU MODE with and without an output, one file for several dims, wrong calls.

    The second call on tensors of the same layout runs no check again; other tensors are checked.
    """
    x = oracle.values("sum", (3, 100), torch.float32)
    keep = oracle.selection((3, 100))
    row = oracle.values("sum", (70001,), torch.float32)
    cube = oracle.values("prod", (64, 64), torch.float32)
    moved, wanting = torch.zeros(304)[1:301].view(3, 100), x.clone().requires_grad_()
    others = (x, x + 1, moved, wanting, x[:, :99].clone(), x.double(), 7, x)
    files: tuple[tuple[str, list[tuple[float, tuple[Any, ...]]]], ...] = (
        (
            parsed(["sum-f32-n100-mask_b8"], "kernelbench"),
            [(-1, (x, keep)), (-1, (x, keep.float())), (1, (x[:0], keep[:0])), *(wrong[:2] for wrong in WRONG)],
        ),
        (parsed(["sum-f32-any-few"], "gpumode"), [(0, (row,)), (0, ((row, torch.full_like(row, 7.0)),))]),
        (parsed(["prod-f32-n64", "prod-f32-n64-inner64"]), [(dim, (cube,)) for dim in (0, 1)]),
        (
            parsed(["sum-f32-any-le200-mask_b8-strided_mask-initial"]),
            [(1, (_X, _MASK[:1], 2.0)), *((1, tensors) for tensors, _ in WRONG_EXPANDED)],
        ),
        (parsed(["sum-f32-n100"]), [(1, (each,)) for each in others]),
    )
    jobs = []
    for number, (file, given) in enumerate(files):
        calls: list[dict[str, Any]] = [{"dim": dim, "tensors": list(tensors)} for dim, tensors in given]
        jobs.append(job(file, calls, tmp_path, number))
    jobs[-1]["calls"][-1]["traced"] = True
    (first, second, empty, *said), lines, dims, (going_on, *said_expanded), repeated = run(jobs, tmp_path)
    wanted = oracle.sequential(x, "sum", 1, mask=keep, dtype=torch.float32)
    assert torch.equal(first, wanted) and torch.equal(second, wanted)
    assert empty.shape == (0, 100)
    refusals = ("boundary of 16", "requires a gradient", "100 items", "float64", "int")
    expected = (*(words for *_, words in WRONG), *(words for *_, words in WRONG_EXPANDED), *refusals)
    for words, part in zip((*said, *said_expanded, *repeated[2:-1]), expected, strict=True):
        assert isinstance(words, str) and part in words
    assert torch.equal(going_on, _X.cumsum(1) + 2)
    assert all(torch.equal(line, oracle.sequential(row, "sum", 0, dtype=torch.float32)) for line in lines)
    for dim, given in enumerate(dims):
        assert torch.equal(given, oracle.sequential(cube, "prod", dim, dtype=torch.float32))
    assert torch.equal(repeated[0], x.cumsum(1)) and torch.equal(repeated[1], (x + 1).cumsum(1))
    ran = repeated[-1]
    assert "_facts" in ran and not {"_check", "_checked", "refusal", "load"} & set(ran)
    assert len(ran) <= 16, ran
