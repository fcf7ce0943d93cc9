"""scanops.patch_torch: torch's own sample inputs of its scans, with and without it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import scanops
from scanops import patching
from tests.numbers.oracle import of_same_turn
from tests.requests.test_torch_samples import NAMES, ROWS, parts

DTYPES = {"logcumsumexp": (torch.float32, torch.complex64)}


def ways(name: str, sample: Any) -> list[Callable[[], Any]]:
    """How a program may write a call."""
    x, args, options = sample.input, sample.args, sample.kwargs
    function, method = getattr(torch, name), getattr(torch.Tensor, name)
    found = [
        lambda: function(x, *args, **options),
        lambda: getattr(x, name)(*args, **options),
        lambda: method(x, *args, **options),
    ]
    if "dim" not in options:
        found += [
            lambda: function(input=x, dim=args[0], **options),
            lambda: function(x, axis=args[0], **options),
            lambda: getattr(x, name)(dim=args[0], **options),
        ]
    dtype = options.get("dtype", x.dtype)
    if name in ("cumsum", "cumprod") and dtype == x.dtype and x.dtype.is_floating_point:
        found.append(lambda: getattr(x.detach().clone(), f"{name}_")(*args, **options))
    outs = tuple(torch.empty_like(each) for each in parts(function(x.detach(), *args, **options)))
    found.append(lambda: function(x.detach(), *args, **options, out=outs if len(outs) > 1 else outs[0]))
    return found


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", NAMES)
def test_torch_samples(name: str, device: str, record_property: Callable[[str, object], None]) -> None:
    calls, place = 0, scanops.emulate if device == "cpu" else nullcontext
    for dtype in DTYPES.get(name, (torch.float32, torch.int32)):
        for sample in ROWS[name].sample_inputs(device, dtype):
            for call in ways(name, sample):
                expected = call()
                with place(), scanops.patch_torch():
                    found = call()
                assert type(found) is type(expected)
                for y, wanted in zip(parts(found), parts(expected), strict=True):
                    y = of_same_turn(y, wanted) if name == "logcumsumexp" and y.is_complex() else y
                    torch.testing.assert_close(y, wanted, check_stride=True)
                calls += 1
    assert calls
    record_property("torch sample calls patched", calls)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that were computed here."""
    seen: list[str] = []

    def noting(function: Any, ours: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            found = ours(*args, **options)
            seen.extend([function.__name__] * (found is not None))
            return found

        return call

    monkeypatch.setattr(patching, "_OURS", {each: noting(each, ours) for each, ours in patching._OURS.items()})
    return seen


def test_what_is_patched(served: list[str]) -> None:
    x = torch.rand(2, 5)
    with scanops.patch_torch():
        torch.cumsum(x, 1)
    assert served == []  # a CPU tensor outside of emulate()
    with scanops.emulate(), scanops.patch_torch(), scanops.patch_torch():
        for name in NAMES:
            getattr(torch, name)(x, 1)
            getattr(x, name)(1)
        x.clone().cumsum_(1)
        x.clone().cumprod_(1)
    assert served == [name for name in NAMES for _ in range(2)] + ["cumsum_", "cumprod_"]
    with scanops.emulate():
        torch.cumsum(x, 1)
    assert len(served) == 12


def test_what_torch_answers_itself(served: list[str]) -> None:
    """A wrong call has torch's error; an out of another shape is resized, with torch's warning."""
    x = torch.rand(2, 5)
    weight = torch.rand(2, 5, requires_grad=True)
    with scanops.emulate(), scanops.patch_torch():
        with pytest.raises(IndexError, match="Dimension out of range"):
            torch.cumsum(x, 7)
        with pytest.raises(TypeError):
            torch.cumsum(x)
        with pytest.raises(TypeError):
            torch.cumsum(x, 1, out="a")
        with pytest.raises(RuntimeError, match="leaf Variable"):
            weight.cumsum_(0)
        with pytest.warns(UserWarning, match="resized"):
            assert torch.cumsum(x, 1, out=torch.empty(3)).shape == (2, 5)
        assert torch.equal(torch.cumsum(x.to_sparse().to_dense(), 1), scanops.cumsum(x, 1))
    assert served == ["cumsum"]


def test_gradients_and_inplace_history() -> None:
    x = torch.rand(2, 5, requires_grad=True)
    (expected,) = torch.autograd.grad((x * 2).cumsum_(1).cumprod(0).sum(), x)
    with scanops.emulate(), scanops.patch_torch():
        y = (x * 2).cumsum_(1).cumprod(0).sum()
    torch.testing.assert_close(torch.autograd.grad(y, x)[0], expected)  # outside of the block


def test_what_is_scanned_in_place_was_changed() -> None:
    weight, x = torch.rand(5, requires_grad=True), torch.rand(2, 5)
    y = (weight * x).sum()
    with scanops.emulate(), scanops.patch_torch():
        x[0].cumsum_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_the_thread_alone(served: list[str]) -> None:
    def work() -> None:
        with scanops.emulate():
            torch.cumsum(torch.ones(3), 0)

    with scanops.emulate(), scanops.patch_torch():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert served == []


def test_in_a_compiled_function() -> None:
    """Patched where it is traced; traced again outside."""
    torch.compiler.reset()
    graphs: list[list[str]] = []

    def note(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    x = torch.rand(2, 5)
    function = torch.compile(lambda x: torch.cumsum(x, 1), fullgraph=True, backend=note)
    with scanops.emulate(), scanops.patch_torch():
        inside = function(x)
    torch.testing.assert_close(inside, function(x))
    assert [len(each) for each in graphs] == [1, 1]
    assert "scanops.scan" in graphs[0][0] and "scanops" not in graphs[1][0]
