"""Compilers, targets and stores that are missing or unfit, kernels on the wrong tensors, and errors as values."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import scanops
from scanops.errors import MissingCompiler, ScanopsError, UnsupportedRequest
from tests.requests.checks import refused

SPEC = scanops.ScanSpec(op="sum", dtype="float32", length=20)


def test_no_host_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's operators need none, nor a store. Its absence is not remembered: one that appears later is used."""
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("SCANOPS_CXX", "no-such-compiler")
    assert scanops.cumsum(torch.ones(3), 0).tolist() == [1, 2, 3] and not (tmp_path / "store").exists()
    refused(MissingCompiler, lambda: scanops.compile(SPEC, "cpu"), "'no-such-compiler'")
    x = torch.ones(3, 7772)
    with scanops.emulate():
        refused(MissingCompiler, lambda: scanops.cumsum(x, 1), "'no-such-compiler'")
        monkeypatch.delenv("SCANOPS_CXX")
        assert torch.equal(scanops.cumsum(x, 1), torch.cumsum(x, 1))


ROWS = torch.ones(3, 20)
TURNS: dict[str, Any] = {
    "off a boundary": lambda x: torch.ones(100, device=x.device)[1:].view(x.shape),
    **{"negated": torch._neg_view, "conjugated": torch.conj},
}
ANY: dict[str, Any] = {"length": None, "at_most": 512}
# The options of a kernel's spec; the tensor, and perhaps the mask and the dimension; what the first line names.
MISMATCHES: dict[str, tuple[dict[str, Any], torch.Tensor, dict[str, Any], str]] = {
    "length": ({}, torch.ones(3, 21), {}, "length=21"),
    "dtype": ({}, ROWS.double(), {}, "dtype='float64'"),
    "dim": ({}, torch.ones(20, 3), {"dim": 0}, "inner=3"),
    "a mask": ({}, ROWS, {"mask": ROWS > 0}, "mask='bool'"),
    "strides": ({}, torch.ones(20, 3).t(), {}, "input_layout='strided'"),
    "no mask": ({"mask": "bool"}, ROWS, {}, "mask=None"),
    "another mask": ({"mask": "bool"}, ROWS, {"mask": ROWS}, "mask='float32'"),
    "a greater length": (ANY, torch.ones(3, 513), {}, "length=513"),
    "a length between": (ANY | {"multiple": 4}, torch.ones(3, 126), {}, "length=126"),
    "any length, dim": (ANY | {"inner": 16}, torch.ones(3, 12), {}, "inner=1"),
    "off a boundary": (ANY, torch.ones(100)[1:].view(3, 33), {}, "aligned"),
    "negated": ({}, ROWS, {}, "is_neg()=True"),
    "conjugated": ({"dtype": "complex64"}, ROWS.to(torch.complex64), {}, "is_conj()=True"),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_kernel_on_tensors_of_another_spec(name: str, kernels: str) -> None:
    special, x, options, word = MISMATCHES[name]
    kernel = scanops.compile(scanops.ScanSpec(**{"op": "sum", "dtype": "float32", "length": 20} | special))  # type: ignore[arg-type]
    there = {name: each.to(kernels) if name == "mask" else each for name, each in options.items()}
    turned = TURNS.get(name, torch.detach)(x.to(kernels))  # there, as a copy to a GPU is not a view
    error = refused(UnsupportedRequest, partial(kernel, turned, **there), word)
    assert "scanops.scan" in error.hint or "resolve" in error.hint


@pytest.mark.parametrize(
    ("target", "device", "word"),
    [("sm_90", "cpu", "cpu"), ("cpu", "meta", "meta"), pytest.param("cpu", "cuda", "target=", marks=pytest.mark.gpu)],
)
def test_a_kernel_reads_no_tensor_of_another_device(target: str, device: str, word: str) -> None:
    kernel = scanops.Kernel(SPEC, target, entry=None)  # type: ignore[arg-type]  # it is refused before it is loaded
    for place in (contextlib.nullcontext(), scanops.emulate()):
        with place:
            refused(UnsupportedRequest, lambda: kernel(torch.ones(3, 20, device=device)), word)


def test_the_parts_stand_in_the_message_in_order() -> None:
    for value, more in (("c", []), ("c\ne", ["got: c", "e"])):
        lines = str(ScanopsError("a", allowed="b", value=value, hint="d")).splitlines()
        assert [line.strip() for line in lines] == ["a: got c", "allowed: b", *more, "next: d"]
