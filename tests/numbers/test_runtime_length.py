"""Kernels that take their length: one library, many lengths, each equal to the sequential scan."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

import scanops
from scanops.codegen.lines import BUCKETS, FEW_BUCKETS, any_length
from scanops.codegen.plan import make_plan
from scanops.codegen.spec import ScanSpec
from scanops.runtime.kernels import default_target, obtain
from scanops.runtime.policies import STRICT
from tests.numbers.oracle import selection, sequential, values

# What follows "affine-f32-" in the kernel's name, its strategy, and the lengths it is run on: one, those around
# lanes, accesses and tiles, the greatest.
KERNELS: dict[str, tuple[str, tuple[int, ...]]] = {
    "any-le512-by4": ("warp", (4, 128, 132, 508, 512)),
    "any-le512": ("staged", (1, 2, 3, 5, 16, 21, 22, 31, 32, 33, 64, 127, 128, 129, 339, 341, 511, 512)),
    "any-le512-unaligned": ("staged", (1, 4, 16, 33, 512)),
    "any-le512-strided": ("warp", (1, 5, 128, 509, 512)),
    "any-le8192-by4": ("block", (4, 1028, 4096, 8188, 8192)),
    "any-le8192": ("block", (1, 1025, 4097, 8191, 8192)),
    "any-le1073741824": ("wave", (1, 31, 12288, 12289, 40001)),
    "any": ("wave", (5, 13001)),
    "any-le65536-few": ("split", (1, 8193, 40001)),
    "any-le128-inner64": ("columns", (1, 5, 127, 128)),
    "any-le1024-inner5": ("columns", (3, 515, 1024)),
    "any-le8192-inner64": ("panels", (1, 255, 256, 257, 1300)),
    "any-le8192-inner4": ("columns", (1, 4096, 4353)),
    "any-le512-transposed-unaligned": ("transposed", (16, 33, 128, 129, 512)),
    "any-le512-inner40-transposed-unaligned": ("transposed", (16, 33, 128, 129, 512)),
    "any-le512-rows": ("warp", (1, 127, 509)),
    "any-le8192-rows": ("block", (1, 509, 1025, 4099)),
    "any-le65536-few-rows": ("split", (1, 509, 4099)),
    "any-le1073741824-rows": ("wave", (1, 509, 4099)),
    "any-le8192-inner64-few": ("panels", (1, 384, 385, 1300)),
}
FLAGS = ("", "-reverse-exclusive", "-mask_b8-reverse")
ORDER = ("le", "by", "inner", "mask", "reverse", "exclusive", "rows", "strided", "transposed", "unaligned")


def spec_of(tail: str, *, op: str = "affine") -> ScanSpec:
    words = tail.split("-")
    found = [word for kind in ORDER for word in words if word.startswith(kind)]
    return ScanSpec.parse("-".join([op, "f32", "any", *found]))


@functools.lru_cache(maxsize=64)
def kernel_of(spec: ScanSpec, device: str, few: bool = False) -> scanops.Kernel:
    kernel = obtain(spec, "cpu" if device == "cpu" else default_target(), STRICT, few=few)
    assert kernel is not None
    return kernel


@pytest.mark.parametrize(("tail", "flags"), [(tail, FLAGS[number % 3]) for number, tail in enumerate(KERNELS)])
def test_one_kernel_many_lengths(tail: str, flags: str, device: str) -> None:
    """Directions and masks alternate; the routes of the matrix combine them with everything else."""
    spec, few = spec_of(tail + flags), "few" in tail
    assert make_plan(spec, few=few).strategy == KERNELS[tail][0]
    for length in KERNELS[tail][1]:
        short = length < 200 or spec.input_layout == "transposed"
        rows = 37 if short and spec.inner == 1 else 3  # an odd number, so that the last block is partial
        x = values("affine", (rows, length, spec.inner) if spec.inner > 1 else (rows, length), torch.float32)
        there = x.to(device)
        if spec.input_layout == "rows":  # of a larger tensor: they begin on every boundary in turn
            there = torch.nn.functional.pad(there, (1, 7 - length % 2))[:, 1 : length + 1]
        elif spec.input_layout == "transposed":
            there = there.mT.contiguous().mT if spec.inner > 1 else there.t().contiguous().t()
        elif spec.input_layout == "strided":
            there = torch.stack([there, there], dim=-1)[..., 0]
        elif not spec.aligned:
            there = torch.cat([there.new_zeros(1), there.flatten()])[1:].view(x.shape)
        mask = selection(tuple(x.shape)) if spec.mask else None
        y = kernel_of(spec, device, few)(there, 1, mask=None if mask is None else mask.to(device))
        flipped = {"reverse": spec.reverse, "exclusive": spec.exclusive}
        assert y.cpu().equal(sequential(x, "affine", 1, mask=mask, dtype=x.dtype, **flipped)), f"length {length}"


def test_an_empty_line_and_a_single_number(device: str) -> None:
    kernel = kernel_of(spec_of("any-le512", op="sum"), device)
    assert kernel(torch.tensor(7.0, device=device), 0).item() == 7
    assert kernel(torch.empty(0, 5, device=device)).shape == (0, 5)


@pytest.mark.parametrize("length", [1, 4, 127, 128, 129, 1000, 8192, 8193, 32769, 2**20, 2**30 + 1])
@pytest.mark.parametrize("few", [False, True])
def test_every_length_has_a_kernel(length: int, few: bool) -> None:
    asked = ScanSpec(op="sum", dtype="float32", length=length)
    spec = any_length(asked, few)
    assert spec.takes_length and length <= spec.capacity and asked.divides(spec.multiple)
    assert spec.at_most in (*(FEW_BUCKETS if few else BUCKETS), None)
    assert any_length(dataclasses.replace(asked, length=max(1, spec.capacity - 3)), few).at_most == spec.at_most
