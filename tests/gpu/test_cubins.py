"""Cubins that NVRTC builds, on a GPU: the bits of libraries, threads without a context, capture of a first launch."""

from __future__ import annotations

import threading

import pytest
import torch

import scanops
from scanops.codegen.kernel_key import FEW
from scanops.codegen.operators import GRADIENTS
from scanops.operands import Operands
from scanops.runtime import call_cache, native
from scanops.runtime.kernel_call import run_kernel
from tools.golden import GOLDEN, Golden

pytestmark = pytest.mark.gpu


def build_by(builder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls ask for kernels that ``builder`` makes, as if none were loaded."""
    monkeypatch.setenv("SCANOPS_BUILDER", builder)
    monkeypatch.setattr("scanops.runtime.kernels._KERNELS", {})
    call_cache.forget()


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.slug)
def test_bits_are_those_of_a_library(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, results = golden.spec, []
    operands = Operands(spec, (3 if golden.variant == FEW else 300) * spec.inner, "cuda")
    operands.fill_exactly()  # masks and flags
    operands.fill_randomly()
    for builder in ("load_inline", "nvrtc"):
        build_by(builder, monkeypatch)
        kernel = scanops.compile(spec, lines=operands.lines if golden.variant == FEW else None)
        assert (kernel.builder == "nvrtc", kernel.key.is_few) == (builder == "nvrtc", (golden.variant == FEW))
        if spec.op in GRADIENTS:  # which no call asks for by their names
            found = operands.run(kernel)
        else:
            found = run_kernel(kernel, dim=1, out=operands.out.zero_(), **operands.tensors)
        results.append([each.detach().clone().view(torch.uint8) for each in found])
    assert all(map(torch.equal, *results))


@pytest.fixture(params=["python", "c"])
def cubins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls be served by cubins, from Python or natively, with nothing loaded yet."""
    build_by("nvrtc", monkeypatch)
    monkeypatch.setattr(native, "serve", None)
    assert request.param == "python" or native.get(build=True)


# One kernel without a workspace and one with.
@pytest.mark.parametrize("shape", [(64, 1023), (2, 300001)])
def test_a_thread_that_has_no_context(shape: tuple[int, int], cubins: None) -> None:
    x = torch.randn(shape, device="cuda")
    expected = [scanops.cumsum(x, 1) for _ in range(4)][-1]
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.extend(scanops.cumsum(x, 1) for _ in range(3)))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert len(found) == 3 and all(y.equal(expected) for y in found)
    torch.testing.assert_close(expected, x.cumsum(1), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "in the store"])
@pytest.mark.parametrize("shape", [(64, 1021), (2, 300003)])
def test_a_first_launch_that_is_captured(shape: tuple[int, int], prepared: bool, cubins: None) -> None:
    """Replayed with other data, between launches that use the stream's own workspace."""
    x, spec = torch.randn(shape, device="cuda"), scanops.ScanSpec(op="sum", dtype="float32", length=shape[1])
    scanops.prepare([spec]) if prepared else scanops.compile(spec, lines=shape[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = scanops.cumsum(x, 1)
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert scanops.cumsum(x, 1).equal(y)
