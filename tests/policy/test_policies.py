"""What each policy does when a kernel is in no store, and where policies are read."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import scanops
from scanops import environment
from scanops.builders import unavailable
from scanops.codegen.kernel_key import KernelKey
from scanops.errors import MissingCompiler, MissingKernel, UnsupportedRequest
from scanops.runtime import call_cache, kernels, launcher
from scanops.runtime.policies import POLICIES
from tests.policy.conftest import LENGTH, SPEC, X, Y, kept, scanned

GENERIC = "sum-f32-any-le128-by4"
STORED = {None: {SPEC.slug}, "build": {SPEC.slug}, "generic": {GENERIC}, "fallback": set(), "never": set()}
GRADIENT = torch.arange(LENGTH, 0.0, -1).expand(3, LENGTH)  # of the sum of all results of a sum


@pytest.mark.parametrize("name", STORED)
def test_what_a_miss_builds(name: str | None, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the environment variable, and by a block around the call; without either kernels are built."""
    answers = pytest.raises(MissingKernel) if name == "never" else contextlib.nullcontext()
    with warnings.catch_warnings(), answers:
        warnings.simplefilter("ignore", RuntimeWarning)
        if name is not None:
            monkeypatch.setenv("SCANOPS_POLICY", name)
        assert torch.equal(scanned(), Y)
        assert kept(store) == STORED[name]
        monkeypatch.setenv("SCANOPS_POLICY", "never")
        with scanops.policy(name or "build"):
            assert torch.equal(scanned(), Y)
    assert kept(store) == STORED[name]


@pytest.mark.parametrize("builder", ["nvrtc", "nvcc", "load_inline"])
@pytest.mark.parametrize("name", ["build", "generic", "fallback", "never"])
def test_what_a_miss_on_a_gpu_builds(name: str, builder: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing := unavailable(builder, "sm_90"):
        pytest.skip(str(missing))
    monkeypatch.setenv("SCANOPS_BUILDER", builder)
    answers = {"fallback": pytest.warns(RuntimeWarning), "never": pytest.raises(MissingKernel)}
    with answers.get(name, contextlib.nullcontext()):
        kernel = kernels.obtain(KernelKey(SPEC, "sm_90"), POLICIES[name])
        assert ({kernel.spec.slug} if kernel else set()) == STORED[name]
        assert kernel is None or kernel.builder == builder
    assert kept(store) == STORED[name]


def test_never_names_the_spec_and_the_command() -> None:
    with scanops.policy("never"):
        for call in (scanned, lambda: scanops.compile(SPEC, "cpu"), lambda: scanops.prepare([SPEC], ["cpu"])):
            with pytest.raises(MissingKernel, match=SPEC.slug) as caught:
                call()
            assert f"scanops build {SPEC.slug} --target cpu" in caught.value.hint


NOTHING = (None,) * 5
CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "eager code": lambda x: scanops.cumsum(x, 1),
    "an operator, its gradient another scan": lambda x: torch.ops.scanops.scan(x, *NOTHING, 1, "sum")[0],
    "an operator, its gradient scan_backward": lambda x: torch.ops.scanops.scan(x.exp(), *NOTHING, 1, "prod")[0].log(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_backward_pass_has_the_policy_of_its_forward_pass(name: str, store: Path) -> None:
    """In another thread, as autograd's own for a GPU are; by default a kernel would be built there."""
    x = (X / 7).requires_grad_()  # whose products stay below what float32 holds
    with scanops.emulate(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with scanops.policy("fallback"):
            y = CALLS[name](x)

        def backward() -> None:
            with scanops.emulate():
                y.backward(torch.ones_like(Y))

        thread = threading.Thread(target=backward)
        thread.start()
        thread.join()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, GRADIENT)
    assert not kept(store)


def test_the_fallback_warns_once_at_the_line_of_the_program() -> None:
    with scanops.policy("fallback"), scanops.emulate():
        with pytest.warns(RuntimeWarning, match=f"scanops build {SPEC.slug}") as caught:
            out = torch.empty_like(X)
            assert scanops.cumsum(X, 1, out=out) is out and torch.equal(out, Y)
        assert [warning.filename for warning in caught] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(scanned(), Y)
            assert scanops.cumsum(X[:0], 1).shape == (0, LENGTH)


@pytest.fixture
def no_nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A GPU (whose tensors are on the CPU, for there is none), no nvcc and no NVRTC."""
    monkeypatch.setenv("SCANOPS_NVCC", str(tmp_path / "no-nvcc"))
    monkeypatch.setenv("SCANOPS_NVRTC", str(tmp_path / "no-nvrtc"))
    monkeypatch.setattr(call_cache, "device_of", lambda x: launcher.Device(target="sm_90", multiprocessors=132))


@pytest.mark.parametrize("name", ["build", "generic", "background"])
@pytest.mark.parametrize("patched", [False, True], ids=["scanops", "patch_torch"])
def test_without_a_compiler_torch_computes_and_warns_once(name: str, patched: bool, no_nvcc: None, store: Path) -> None:
    scan = torch.cumsum if patched else scanops.cumsum
    block = scanops.patch_torch() if patched else contextlib.nullcontext()
    with scanops.policy(name), scanops.emulate(), block, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert torch.equal(scan(X, 1), Y)
        x = X.clone().requires_grad_()
        scan(x, 1).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, GRADIENT)
    (text,) = (str(each.message) for each in caught if f" {SPEC.slug} for sm_90" in str(each.message))
    assert "find nvcc" in text and f"scanops build {SPEC.slug} --target sm_90" in text
    assert not kept(store)


def test_without_a_compiler_requests_for_kernels_raise(no_nvcc: None) -> None:
    for ask in (lambda: scanops.compile(SPEC, "sm_90"), lambda: scanops.prepare([SPEC], ["sm_90"])):
        with pytest.raises(MissingCompiler) as caught:
            ask()
        first = str(caught.value).splitlines()[0]
        assert "find nvcc" in first and SPEC.slug in first
        assert "SCANOPS_POLICY=fallback" in caught.value.hint
    with scanops.policy("never"), pytest.raises(MissingKernel):
        scanned()


@pytest.mark.parametrize("name", environment.POLICIES)
def test_while_a_graph_is_captured(name: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is built, whatever thread would do it: a capture belongs to the stream of this one."""
    here = threading.current_thread()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: threading.current_thread() is here)
    with scanops.policy(name):
        asks = (lambda: scanops.prepare([SPEC, "prod-f32-n64"], "cpu"), *([] if name == "fallback" else [scanned]))
        for ask in asks:
            with pytest.raises(MissingKernel, match=r"captured|never") as caught:
                ask()
            assert SPEC.slug in str(caught.value)
    assert not kept(store)
    with monkeypatch.context() as before:
        before.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        scanops.compile(SPEC, "cpu")
    monkeypatch.setattr(kernels, "_KERNELS", {})  # from the store, a kernel serves under every policy
    with scanops.policy(name), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(scanned(), Y)
    assert kept(store) == {SPEC.slug}


def test_a_block_is_for_its_thread_and_the_innermost_counts() -> None:
    found: list[str] = []
    with scanops.policy("never"):
        thread = threading.Thread(target=lambda: found.append(environment.policy()))
        thread.start()
        thread.join()
        with scanops.policy("build"):
            found.append(environment.policy())
        found.append(environment.policy())
    assert found == ["build", "build", "never"]


def test_unknown_policies_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedRequest, match="background"), scanops.policy("sometimes"):
        pass
    monkeypatch.setenv("SCANOPS_POLICY", "sometimes")
    with pytest.raises(UnsupportedRequest, match="SCANOPS_POLICY") as caught:
        scanned()
    assert caught.value.value == "'sometimes'"
