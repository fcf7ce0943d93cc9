"""torch's own scans taken over in its dispatcher by C++: what runs no Python, what is left to torch, what to Python."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing import resource_sharer
from types import FrameType
from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

import scanops
from scanops import patching
from scanops.patching import Small
from scanops.runtime import call_cache, native
from tests.native.conftest import Counted
from tests.requests.test_torch_semantics import NAMES
from tests.torch_integration import test_patch
from tests.torch_integration.rows import flat


@pytest.fixture(autouse=True)
def _alone() -> None:
    """No thread is left of a test that sent tensors to a process: beside another thread the patch stays registered."""
    resource_sharer.stop()  # type: ignore[attr-defined]


def functions_of(call: Callable[[], object]) -> list[str]:
    """Return the names of the Python functions of scanops that a call runs, but for those that keep workspaces."""
    found: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        module = str(frame.f_globals.get("__name__"))
        if event == "call" and module.startswith("scanops") and module != "scanops.runtime.workspaces":
            found.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def sequential(name: str, x: torch.Tensor, dim: int) -> list[torch.Tensor]:
    """A scan of torch item by item, its indices included."""
    lines = x.movedim(dim, 0)
    values, indices, state, at = [], [], lines[0], torch.zeros_like(lines[0], dtype=torch.int64)
    for n, item in enumerate(lines):
        if n:
            if name in ("cummax", "cummin"):
                at = torch.where(item >= state if name == "cummax" else item <= state, n, at)
            state = {
                "cumsum": torch.add,
                "cumprod": torch.mul,
                "cummax": torch.maximum,
                "cummin": torch.minimum,
                "logcumsumexp": torch.logaddexp,
            }[name](state, item)
        values.append(state)
        indices.append(at)
    both = [torch.stack(values).movedim(0, dim), torch.stack(indices).movedim(0, dim)]
    return both if name in ("cummax", "cummin") else both[:1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dim", [-1, 0])
def test_no_python_runs_in_a_call_that_was_learnt(name: str, dim: int, counted: Counted) -> None:
    scan: Callable[..., Any] = getattr(torch, name)
    with scanops.patch_torch():
        for _ in range(3):
            scan(torch.rand(4, 33), dim)
        x, found = torch.rand(4, 33) + 0.5, []
        assert functions_of(lambda: found.extend(flat(scan(x, dim)))) == []
        torch.testing.assert_close(found, sequential(name, x, dim))
        assert functions_of(lambda: scan(torch.rand(4, 34), dim)) != []  # a shape that nobody learnt
        with torch.inference_mode():
            for _ in range(3):
                scan(torch.rand(4, 33), dim)
            y = torch.rand(4, 33)
            assert functions_of(lambda: found.extend(flat(scan(y, dim)))) == []
        torch.testing.assert_close(found[-1], sequential(name, y, dim)[-1])


def test_no_python_but_that_of_workspaces(counted: Counted) -> None:
    """A scan whose blocks exchange states needs a workspace, which Python keeps."""
    x = torch.rand(1, 40000, dtype=torch.float64)
    with scanops.patch_torch():
        for _ in range(3):
            torch.cumsum(x, 1)
        assert any(launch.workspace_bytes for launch in (known.launcher for known in call_cache.CALLS.values()))
        found: list[torch.Tensor] = []
        assert functions_of(lambda: found.append(torch.cumsum(x, 1))) == []
    torch.testing.assert_close(found[0], sequential("cumsum", x, 1)[0])


def test_blocks_beside_other_threads(counted: Counted) -> None:
    """What other threads are inside of stays alive: they compute torch's scans, in a block and outside."""
    x, stop, problems = torch.rand(2, 64), threading.Event(), []
    expected = sequential("cumsum", x, 1)[0]

    def work() -> None:
        try:
            while not stop.is_set():
                torch.testing.assert_close(torch.cumsum(x, 1), expected)
        except BaseException as problem:
            problems.append(problem)

    with scanops.patch_torch():  # registered before the threads start
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
    for _ in range(100):
        with scanops.patch_torch():
            torch.testing.assert_close(torch.cumsum(x, 1), expected)
        with scanops.record() as used:
            torch.testing.assert_close(torch.cumsum(x, 1), expected)
        assert not used.counts  # torch's own
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []
    with scanops.patch_torch():
        pass
    assert not patching._REGISTERED  # no other thread is there any more


def test_the_dtype_of_a_call_is_part_of_it(counted: Counted) -> None:
    x = torch.arange(6, dtype=torch.int32)
    with scanops.patch_torch():
        for dtype in (None, torch.int32, torch.float64) * 4:
            y = torch.cumsum(x, 0) if dtype is None else torch.cumsum(x, 0, dtype=dtype)
            assert y.tolist() == [0, 1, 3, 6, 10, 15]
            assert y.dtype == (dtype or torch.int64)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_without_python(name: str, counted: Counted) -> None:
    """The node is C++'s; who keeps saved tensors elsewhere has them from Python's."""
    scan: Callable[..., Any] = getattr(torch, name)
    x, weights = torch.rand(3, 17) + 0.5, torch.rand(3, 17)

    def gradient(scan: Callable[..., Any], steps: Callable[[Callable[[], object]], object]) -> torch.Tensor:
        leaf, found = x.clone().requires_grad_(), []
        steps(lambda: found.append(flat(scan(leaf, 1))[0]))
        return torch.autograd.grad((found[0] * weights).sum(), leaf)[0]  # type: ignore[no-any-return]

    def silent(call: Callable[[], object]) -> None:
        assert functions_of(call) == []

    def on_cpu(call: Callable[[], object]) -> None:
        with save_on_cpu():
            call()

    expected = gradient(lambda x, dim: tuple(sequential(name, x, dim)), lambda call: call())
    with scanops.patch_torch():
        for _ in range(4):
            torch.testing.assert_close(gradient(scan, lambda call: call()), expected)
        torch.testing.assert_close(gradient(scan, silent), expected)
        torch.testing.assert_close(gradient(scan, on_cpu), expected)
        again = partial(checkpoint, lambda x, dim: flat(scan(x, dim))[0], use_reentrant=False)
        torch.testing.assert_close(gradient(again, lambda call: call()), expected)


SHAPES = (  # and whether torch keeps a scan of so many float32 along a dimension, with the limits below
    ((8,), 0, True),
    ((64,), 0, True),
    ((200,), 0, True),  # one scan
    ((513,), 0, False),
    ((1, 200), 1, True),
    ((2, 20), 1, True),
    ((2, 21), 1, False),
    ((20, 2), 0, False),
    ((4, 10), 0, True),
    ((40, 3), 1, False),
    ((0, 3), 1, True),
    ((), 0, True),
)
LIMITS = Small(bytes=4 * 64, row_items=20, column_items=4, single_bytes=4 * 512)


@pytest.mark.parametrize("in_cpp", [True, False])
def test_small_scans_stay_with_torch(in_cpp: bool, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """C++ and Python decide alike, in every form of an operator, with and without gradients."""
    monkeypatch.setitem(patching.SMALL, "CPU", LIMITS)
    if not in_cpp:
        monkeypatch.setattr(native, "serve", None)

    def calls_of(x: torch.Tensor, dim: int) -> list[Callable[[], Any]]:
        return [
            lambda: torch.cumsum(x, dim),
            lambda: torch.cumsum(x.clone().requires_grad_(), dim),
            lambda: torch.cumsum(x, dim, out=torch.empty_like(x)),
            lambda: x.clone().cumsum_(dim),
        ]

    with scanops.patch_torch():
        for shape, dim, is_small in SHAPES:
            x = torch.rand(shape)
            for call in calls_of(x, dim):
                with scanops.record() as used:
                    y = call()
                assert bool(used.counts) != is_small, (shape, dim)
                torch.testing.assert_close(y.detach(), sequential("cumsum", x, dim)[0] if x.numel() and x.ndim else x)
        leaf = torch.rand(8).requires_grad_()
        assert "Cumsum" in torch.cumsum(leaf, 0).grad_fn.name()  # torch's own node
        with pytest.raises(IndexError, match="Dimension out of range"):
            torch.cumsum(leaf, 3)
        with scanops.record() as used:  # of one scan, with indices, torch's kernel is slow
            torch.cummax(torch.rand(200), 0)
        assert used.counts
        torch.use_deterministic_algorithms(True)
        try:
            with scanops.record() as used:
                torch.cumsum(torch.rand(8), 0)
        finally:
            torch.use_deterministic_algorithms(False)
        assert used.counts  # whose kernels always are


PLAIN: tuple[Callable[[], None], ...] = (
    test_patch.test_what_is_patched,
    test_patch.test_blocks_that_end_in_another_order,
    test_patch.test_sharded_tensors,
    test_patch.test_the_fallback_is_torch,
    test_patch.test_a_tensor_class_sees_the_operator_of_torch,
    test_patch.test_what_torch_answers_itself,
    test_patch.test_a_scan_in_place_is_known_to_autograd,
    test_patch.test_in_a_compiled_function,
)
CHECKS: dict[str, Callable[[], None]] = {
    **{check.__name__: check for check in PLAIN},
    **{f"transforms of {name}": partial(test_patch.test_transforms_and_second_derivatives, name) for name in NAMES},
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_patch_over_python(name: str, counted: Counted) -> None:
    """What holds of the patch in Python holds with C++ over it, for calls that were learnt, too."""
    token = scanops.emulator.ACTIVE.set(None)  # which those tests enter themselves
    try:
        for _ in range(3):
            CHECKS[name]()
    finally:
        scanops.emulator.ACTIVE.reset(token)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(64, 8192), (300, 700), (2, 1 << 20)])
def test_large_scans_on_a_gpu(name: str, shape: tuple[int, ...]) -> None:
    """Learnt by C++ after three calls, also those with a workspace, with the gradients of torch."""
    assert native.get(build=True)
    scan: Callable[..., Any] = getattr(torch, name)
    x, weights = torch.rand(shape, dtype=torch.float64, device="cuda") + 0.5, torch.rand(shape, device="cuda")

    if name == "cumprod":
        x = 1 + (x - 1) / shape[1]

    def results() -> tuple[list[torch.Tensor], list[str]]:
        leaf, values = x.clone().requires_grad_(), []
        ran = functions_of(lambda: values.extend(flat(scan(leaf, 1))))
        gradients = torch.autograd.grad((values[0] * weights).sum(), leaf)
        return [*(each.detach() for each in values), *gradients], ran

    expected, _ = results()
    with scanops.patch_torch():
        for _ in range(6):
            found, ran = results()
            torch.testing.assert_close(found, expected)
        assert ran == []
        small = torch.rand(4, 1000, device="cuda", requires_grad=True)
        assert flat(scan(small, 1))[0].grad_fn.name().startswith(name.capitalize())  # torch's own node
    native.forget()


@pytest.mark.gpu
def test_a_captured_launch_has_a_workspace_of_its_own() -> None:
    assert native.get(build=True)
    x = torch.ones(2, 1 << 20, device="cuda")
    expected = torch.arange(1.0, (1 << 20) + 1, device="cuda").expand_as(x)
    with scanops.patch_torch():
        for _ in range(4):
            y = torch.cumsum(x, 1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = torch.cumsum(x, 1)
        for _ in range(3):
            graph.replay()
            y = torch.cumsum(x, 1)
            assert captured.equal(expected) and y.equal(expected)
