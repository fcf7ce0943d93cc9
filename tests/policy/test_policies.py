"""Each policy's outcome when a kernel is in no store, and where each of them is read."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import scanops
from scanops import ScanSpec, environment
from scanops.errors import MissingCompiler, MissingKernel, UnsupportedRequest
from scanops.runtime import launcher, obtain, serve
from scanops.runtime.kernels import is_built
from scanops.store.store import Store
from tests.store.sources import needs_cxx

pytestmark = needs_cxx

LENGTH = 100
SPEC = ScanSpec(op="sum", dtype="float32", length=LENGTH)
X = torch.arange(3.0 * LENGTH).reshape(3, LENGTH) % 7
Y = torch.cumsum(X, 1)


def scanned() -> torch.Tensor:
    with scanops.emulate():
        return scanops.cumsum(X, 1)


def kept(store: Path) -> set[str]:
    """The short names of the kernels in the store."""
    return {path.parent.name.rpartition("-")[0] for path in store.glob("*/manifest.json")}


def test_build_is_the_default(store: Path) -> None:
    assert environment.policy() == "build"
    assert torch.equal(scanned(), Y)
    assert kept(store) == {SPEC.slug}


def test_never_names_the_spec_and_the_command(store: Path) -> None:
    for call in (scanned, lambda: scanops.compile(SPEC, "cpu"), lambda: scanops.prepare([SPEC], ["cpu"])):
        with scanops.policy("never"), pytest.raises(MissingKernel) as caught:
            call()
        assert SPEC.slug in caught.value.asked
        assert f"scanops build {SPEC.slug} --target cpu" in caught.value.hint
    assert not kept(store)
    scanops.compile(SPEC, "cpu")
    with scanops.policy("never"):
        assert torch.equal(scanned(), Y)


def test_never_for_an_operator_that_only_the_program_knows(store: Path) -> None:
    own = scanops.Operator(
        name="policy_last",
        formula="the newest item that is not 0",
        lift=("x",),
        combine=("newer != 0 ? newer : older",),
        identity=("0",),
        gives="kept",
        commutative=False,
        start=0,
        step=lambda h, x: torch.where(x != 0, x, h),
    )
    with scanops.policy("never"), scanops.emulate(), pytest.raises(MissingKernel, match="register_operator"):
        scanops.scan(X, own, 1)


NOTHING = (None,) * 5
CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain code": lambda x: scanops.cumsum(x, 1),
    "an operation, its gradient another scan": lambda x: torch.ops.scanops.scan(x, *NOTHING, 1, "sum"),
    "an operation, its gradient scan_backward": lambda x: torch.ops.scanops.scan(x.exp(), *NOTHING, 1, "prod").log(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_backward_pass_goes_by_the_policy_of_its_forward(name: str, store: Path) -> None:
    """In another thread, as autograd's own for a GPU are; by default a kernel would be built there."""
    x = (X / 7).requires_grad_()  # whose products stay below what float32 holds
    with scanops.emulate(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with scanops.policy("fallback"):
            y = CALLS[name](x)

        def walk_back() -> None:
            with scanops.emulate():
                y.backward(torch.ones_like(Y))

        thread = threading.Thread(target=walk_back)
        thread.start()
        thread.join()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.arange(LENGTH, 0.0, -1).expand(3, LENGTH))
    assert not kept(store)


def test_generic_builds_one_kernel_for_many_lengths(store: Path) -> None:
    with scanops.policy("generic"), scanops.emulate():
        for length in (100, 104, 108):
            x = X[:, :1].expand(3, length).contiguous()
            assert torch.equal(scanops.cumsum(x, 1), torch.cumsum(x, 1))
    assert kept(store) == {"sum-f32-any-le128-by4"}
    with scanops.policy("build"):
        assert torch.equal(scanned(), Y)  # the block that counts now wants the kernel itself
    assert kept(store) == {"sum-f32-any-le128-by4", SPEC.slug}


def test_generic_takes_the_kernel_itself_where_there_is_one(store: Path) -> None:
    scanops.compile(SPEC, "cpu")
    with scanops.policy("generic"):
        assert torch.equal(scanned(), Y)
    assert kept(store) == {SPEC.slug}


def test_fallback_says_so_once(store: Path) -> None:
    with scanops.policy("fallback"):
        with pytest.warns(RuntimeWarning, match=f"scanops build {SPEC.slug} --target cpu") as caught:
            assert torch.equal(scanned(), Y)
        assert [warning.filename for warning in caught] == [__file__]  # the program's line, and none of scanops
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(scanned(), Y)
    assert not kept(store)


def test_fallback_writes_where_it_is_told_and_has_gradients() -> None:
    with scanops.policy("fallback"), scanops.emulate(), pytest.warns(RuntimeWarning):
        out = torch.empty_like(X)
        assert scanops.cumsum(X, 1, out=out) is out
        assert torch.equal(out, Y)
        x = X.clone().requires_grad_()
        scanops.cumsum(x, 1).sum().backward()
        assert x.grad is not None and torch.equal(x.grad[0], torch.arange(LENGTH, 0, -1.0))
        assert scanops.cumsum(X[:0], 1).shape == (0, LENGTH)


@pytest.fixture
def no_nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A GPU (whose tensors are on the CPU, for there is none), and no nvcc."""
    monkeypatch.setenv("SCANOPS_NVCC", str(tmp_path / "no-nvcc"))
    monkeypatch.setattr(serve, "device_of", lambda x: launcher.Device(target="sm_90", multiprocessors=132))


@pytest.mark.parametrize("name", ["build", "generic", "background"])
@pytest.mark.parametrize("patched", [False, True], ids=["scanops", "patch_torch"])
def test_without_a_compiler_pytorch_computes_and_warns_once(
    name: str, patched: bool, no_nvcc: None, store: Path
) -> None:
    scan = torch.cumsum if patched else scanops.cumsum
    block = scanops.patch_torch() if patched else contextlib.nullcontext()
    with scanops.policy(name), block, scanops.emulate(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert torch.equal(scan(X, 1), Y)
        x = X.clone().requires_grad_()
        scan(x, 1).sum().backward()
    assert x.grad is not None and torch.equal(x.grad[0], torch.arange(LENGTH, 0, -1.0))
    texts = [str(each.message) for each in caught]
    assert sum(f" {SPEC.slug} for sm_90" in text for text in texts) == 1, texts
    text = next(text for text in texts if f" {SPEC.slug} for" in text)
    assert "find nvcc" in text and f"scanops build {SPEC.slug} --target sm_90" in text
    assert not kept(store)


def test_without_a_compiler_what_asks_for_a_kernel_says_so(no_nvcc: None) -> None:
    for ask in (lambda: scanops.compile(SPEC, "sm_90"), lambda: scanops.prepare([SPEC], ["sm_90"])):
        with pytest.raises(MissingCompiler) as caught:
            ask()
        first = str(caught.value).splitlines()[0]
        assert "find nvcc" in first and SPEC.slug in first
        assert "SCANOPS_POLICY=fallback" in caught.value.hint
    with scanops.policy("never"), pytest.raises(MissingKernel):
        scanned()
    with scanops.policy("fallback"), pytest.warns(RuntimeWarning, match=SPEC.slug):
        assert torch.equal(scanned(), Y)


def test_fallback_uses_a_kernel_that_there_is(store: Path) -> None:
    scanops.compile(SPEC, "cpu")
    with scanops.policy("fallback"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(scanned(), Y)
    assert obtain.held(SPEC, "cpu")


@pytest.mark.parametrize("name", ["build", "generic", "background"])
def test_nothing_is_built_while_a_graph_is_captured(name: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as during, scanops.policy(name):
        during.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.raises(MissingKernel, match=r"scanops\.prepare") as caught:
            scanned()
        assert SPEC.slug in caught.value.hint
        assert not kept(store)
    with scanops.emulate():
        scanops.prepare([SPEC])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with scanops.policy(name):
        assert torch.equal(scanned(), Y)


def test_the_innermost_block_counts_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_POLICY", "never")
    with pytest.raises(MissingKernel):
        scanned()
    with scanops.policy("never"):
        with scanops.policy("build"):
            assert torch.equal(scanned(), Y)
        with pytest.raises(MissingKernel), scanops.emulate():
            scanops.cumsum(X[:, 1:], 1)


def test_a_block_is_for_its_thread() -> None:
    found: list[str] = []
    with scanops.policy("never"):
        from scanops.runtime.policies import current

        thread = threading.Thread(target=lambda: found.append(current().name))
        thread.start()
        thread.join()
        assert (found, current().name) == (["build"], "never")


def test_another_word(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedRequest, match="background"), scanops.policy("sometimes"):
        pass
    monkeypatch.setenv("SCANOPS_POLICY", "sometimes")
    with pytest.raises(UnsupportedRequest, match="SCANOPS_POLICY") as caught:
        scanned()
    assert caught.value.value == "'sometimes'"


def test_a_kernel_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look at the store and none at the environment for a call whose kernel is in hand."""
    for name in ("build", "generic"):
        with scanops.policy(name):
            scanned()
    asked: list[object] = []
    with monkeypatch.context() as watched:
        watched.setattr(Store, "find", lambda *words: asked.append(words))
        watched.setattr(environment, "policy", lambda: asked.append("policy"))
        assert torch.equal(scanned(), Y)
    assert not asked
    assert is_built(SPEC, "cpu")
