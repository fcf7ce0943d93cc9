"""Calls that are served natively give what Python gives: values, errors, and nothing where Python alone can serve."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import gc
import itertools
import os
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import scanops
from scanops import environment
from scanops.cli import doctor, main
from scanops.cli.doctor import Diagnosis, finding
from scanops.errors import BadStoreEntry, LaunchFailure, MissingCompiler, MissingRequirement
from scanops.ops import native_calls, node
from scanops.requests.request import SavedTensors
from scanops.runtime import call_cache, native, workspaces
from scanops.runtime.native import building
from scanops.store import Store, packs
from scanops.store.entry import facts_of
from scanops.store.library import load
from tests.native.conftest import Counted, Driver, copy_library, entry_of
from tests.numbers import matrix, oracle
from tests.requests import test_bad_calls
from tests.requests import test_repeats as repeats
from tests.requests import test_trace_keys as trace_keys
from tests.requests.checks import refused
from tests.requests.recipes import OPS, Built, drawn, holds
from tests.requests.test_allocations import Recorded
from tests.scripts import ran
from tests.torch_integration.compilers import following
from tests.torch_integration.rows import flat

X = torch.arange(120.0).reshape(3, 40)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def taught(call: Callable[[], Any]) -> Any:
    """Return the third result of a call: Python checks the first, and remembers it at the second."""
    call(), call()
    return call()


def test_drawn_requests(counted: Counted) -> None:
    """Each at first by Python, then natively with other data."""
    served: set[str] = set()
    for number, op in enumerate(OPS * 2):
        call = replace(drawn(random.Random(number)), op=op, shape=(3, 33), dim=number % 2, out="none", special=False)
        call = replace(call, initial=("none", "one for each line")[number // len(OPS)], initial_dtype=None)
        call = replace(call, accumulate=None, segments=("none", "flags")[number // len(OPS)])
        call = replace(call, mask=("bool", "none")[number % 2], spread="broadcast", gate_spread="permuted")
        if not Built(call, "cpu").legal:
            call = replace(call, x_dtype=torch.float32 if "wise" not in op else torch.int32, dtype=None)
            call = replace(call, gate_dtype=torch.float32)
        for seed in range(2):
            holds(replace(call, seed=seed), "cpu")
        before = counted.calls
        holds(replace(call, seed=7, special=True), "cpu")
        if counted.calls > before:
            served.add(op)
    assert served == set(OPS)


CHECKS: dict[str, Callable[[], None]] = {
    **{name: partial(repeats.test_what_is_told_apart, change) for name, change in repeats.CHANGES.items()},
    "options and masks": repeats.test_options_and_masks_are_told_apart,
    "recordings": repeats.test_a_recording_counts_repeated_calls,
    "two inputs that are one": repeats.test_two_inputs_that_are_one,
}


@pytest.mark.parametrize("name", CHECKS)
def test_repeated_calls(name: str, counted: Counted) -> None:
    """What holds of calls that Python remembers holds of those that C++ does."""
    CHECKS[name]()
    assert counted.calls > 0


def test_wrong_calls_are_refused_beside_right_ones(counted: Counted) -> None:
    for length in (3, 4, 8):
        taught(lambda length=length: scanops.cumsum(torch.ones(length), 0, mask=torch.ones(length)))
    for kind, call, value in test_bad_calls.BAD:
        refused(kind, lambda call=call: call("cpu"), value)
    assert counted.calls >= 3


def sum_segments(x: torch.Tensor, ends: list[int], reverse: bool = False) -> torch.Tensor:
    """The cumulative sums of the segments of lines that end before ``ends``, one after the other."""
    parts = [x[:, begin:end] for begin, end in itertools.pairwise([0, *ends])]
    sums = [part.flip(1).cumsum(1).flip(1) if reverse else part.cumsum(1) for part in parts]
    return torch.cat(sums, 1)


def test_offsets_are_read_at_every_call(counted: Counted) -> None:
    """C++ serves offsets of other values and of either dtype; wrong ones raise as if the call were new."""
    for dtype, reverse in ((torch.int32, False), (torch.int64, True)):
        for ends in ([5, 5, 40], [9, 33, 40], [0, 40, 40], [1, 2, 40]):
            offsets = torch.tensor([0, *ends], dtype=dtype)
            found = scanops.cumsum(X, 1, offsets=offsets, reverse=reverse)
            torch.testing.assert_close(found, sum_segments(X, ends, reverse))
    assert counted.calls == 2 * 2
    for wrong in ([0, 9, 5, 40], [1, 5, 9, 40], [0, 5, 9, 39]):
        with pytest.raises(scanops.errors.UnsupportedRequest, match="offsets"):
            scanops.cumsum(X, 1, offsets=torch.tensor(wrong))
    x = X.clone().requires_grad_()
    offsets = torch.tensor([0, 9, 33, 40])
    scanops.cumsum(x, 1, offsets=offsets, reverse=True).sum().backward()
    wanted = torch.cat([torch.arange(1, n + 1) for n in (9, 24, 7)]).expand(3, 40)
    torch.testing.assert_close(x.grad, wanted.to(X.dtype))


@pytest.mark.parametrize("op", ["sum", "prod", "max", "linear"])
def test_gradients_of_segments_by_offsets(op: str, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """C++ runs the backward pass of a call that it served, with the offsets of that call."""
    passes: list[object] = []
    monkeypatch.setattr(native_calls, "backward_pass", lambda *given: passes.append(0) or node.backward_pass(*given))
    for count, ends in enumerate(([9, 33], [9, 33], [9, 33], [5, 6], [1, 39], [20, 20])):
        x, gate = (X.roll(count) / 60 + each for each in (0.5, 0.25))
        offsets, found = torch.tensor([0, *ends, 40]), []
        for begin, end in ((0, 40), *itertools.pairwise(offsets.tolist())):
            leaf, gates = (each[:, begin:end].clone().requires_grad_() for each in (x, gate))
            cuts = {"offsets": offsets} if not found else {}
            # Segments alone are scanned by PyTorch's operators.
            context = contextvars.copy_context() if cuts else contextvars.Context()
            y = context.run(oracle.call, leaf, op, 1, gate=gates if op == "linear" else None, **cuts)[0]
            wanted = (leaf, gates) if op == "linear" else (leaf,)
            before = len(passes)
            found.append(torch.autograd.grad((y * X[:, begin:end]).sum(), wanted))
            assert count < 4 or not cuts or len(passes) == before
        for whole, *parts in zip(*found, strict=True):
            torch.testing.assert_close(whole, torch.cat(parts, 1))


def test_chunks_and_complete_scans_are_served(counted: Counted) -> None:
    """The calls and those without the option are told apart."""
    offsets = torch.tensor([0, 9, 40])
    for shift in range(4):
        x = X + shift
        whole = scanops.cumsum(x, 1, complete=True)
        torch.testing.assert_close(whole, torch.nn.functional.pad(x.cumsum(1), (1, 0)))
        torch.testing.assert_close(scanops.cumsum(x, 1), x.cumsum(1))
        for chunk, ends in ((4, [4, 8, 9, *range(13, 40, 4), 40]), (7, [7, 9, *range(16, 40, 7), 40])):
            found = scanops.cumsum(x, 1, offsets=offsets, chunk=chunk)
            torch.testing.assert_close(found, sum_segments(x, ends))
    assert counted.calls == 2 * 4
    for shift in range(4):
        x = (X + shift).requires_grad_()
        found, rows = scanops.cumsum(x, 1, chunk=8), x.view(3, 5, 8)
        torch.testing.assert_close(found, rows.cumsum(2).flatten(1))
        slope, right = (torch.autograd.grad((y * y).sum(), x)[0] for y in (found, rows.cumsum(2)))
        torch.testing.assert_close(slope, right)
    for mask in (None, X > 2, X[:1] > 2):
        before = counted.calls
        for shift in range(4):
            x, ends = X + shift, range(8, 41, 8)
            found = scanops.cumsum(x, 1, chunk=8, mask=mask)
            torch.testing.assert_close(found, sum_segments(x if mask is None else x.where(mask, 0), [*ends]))
            assert found.is_contiguous()
        assert counted.calls - before >= 2
    x = X.clone().requires_grad_()
    scanops.cumsum(x, 1, chunk=8).sum().backward()
    torch.testing.assert_close(x.grad, torch.arange(8, 0, -1).repeat(5).expand(3, 40).to(X.dtype))
    with pytest.raises(scanops.errors.UnsupportedRequest, match="complete"):
        scanops.cumsum(X, 1, chunk=8, complete=True)
    x = X.clone().requires_grad_()
    scanops.cumsum(x, 1, complete=True).sum().backward()
    torch.testing.assert_close(x.grad, torch.arange(40, 0, -1).expand(3, 40).to(X.dtype))


GATES, COMPLEX = torch.linspace(0, 1, 3)[:, None], torch.complex(X, X + 1)
LINE = torch.ones(1, 300000)  # rows split over blocks have a workspace


def summed(x: torch.Tensor = X, **emulation: int) -> torch.Tensor:
    with scanops.emulate(**emulation) if emulation else contextlib.nullcontext():
        return scanops.cumsum(x, 1).as_subclass(torch.Tensor)


def carried(state: Any) -> Any:
    return scanops.linear_scan(GATES, X, 1, initial=state, return_final=True, reverse=True)


def fused(*tensors: torch.Tensor, n: float = 2.0, **options: Any) -> Any:
    given = (X, GATES, X[0], *(tensors or (X[1:2], X[2])))
    return scanops.scan(
        given, "sum", 1, map=lambda a, b, c, d, e: a * b - c * n, then=lambda y, *t: (y + t[3], y > t[4]), **options
    )


SCALE, CUTS, ONE = 2.0, torch.tensor([0, 3, 40]), type("One", (int,), {})(1)
OWN, OTHER = (
    scanops.operator(
        fields=("a", "b"),
        combine=lambda older, newer: (older.a * newer.a, newer.b + newer.a * older.b),
        identity=(1, 0),
        project=project,
    )
    for project in (lambda state: state.b, lambda state: state.a)
)


def own(operator: Any, *tensors: torch.Tensor) -> Any:
    return scanops.scan(tensors, operator, 1)


def mapped(function: Callable[..., Any], x: Any = X, dim: Any = 1, **options: Any) -> Any:
    return scanops.scan(x, "sum", dim, map=function, **options)


def scale_by(factor: float) -> Callable[..., Any]:
    return lambda x, factor=factor: torch.sigmoid(x) * factor + scale(x)


def scale(x: Any) -> Any:
    """A function that functions call."""
    return x * SCALE


def chunk_of(initial: Any, has_flags: bool) -> Any:
    flags = {"segment_starts": X % 7 == 0} if has_flags else {}
    options = {"initial": initial, "return_final": True, "mask": X % 3 > 0, **flags}
    return scanops.scan((GATES, X), "linear", 1, map=lambda a, x: (torch.exp(-a), x), **options)


# A call that is learnt, one like it, and whether that is known.
ALIKE: dict[str, tuple[Callable[[], Any], Callable[[], Any], bool]] = {
    "other data": (summed, lambda: summed(X + 1), True),
    "a parameter": (summed, lambda: summed(torch.nn.Parameter(X, requires_grad=False)), True),
    "a subclass": (summed, lambda: summed(X.as_subclass(type("Own", (torch.Tensor,), {}))), False),
    "a conjugate": (lambda: summed(COMPLEX), lambda: summed(COMPLEX.conj()), False),
    "another order of threads": (summed, lambda: summed(seed=4), True),
    "another GPU": (summed, lambda: summed(multiprocessors=2), False),
    "two results": (lambda: scanops.cummin(X, 0), lambda: scanops.cummin(-X, 0), True),
    "expressions": (fused, lambda: fused(X[0] + 1, X[1]), False),
    "expressions of other data": (fused, lambda: fused(X[0:1], X[1]), True),
    "another constant of expressions": (fused, lambda: fused(n=3.0), False),
    "expressions and a flag": (fused, lambda: fused(reverse=True), False),
    "expressions with a gradient": (fused, lambda: fused(X[1:2], X[2].clone().requires_grad_()), False),
    "expressions and a mask": (
        lambda: scanops.scan(X, "prod", 1, then=torch.sub, mask=X > 3),
        lambda: scanops.scan(-X, "prod", 1, then=torch.sub, mask=X > 5),
        True,
    ),
    "another function of equal text": (lambda: mapped(lambda x: x * SCALE), lambda: mapped(lambda x: x * SCALE), False),
    "functions made anew": (lambda: mapped(scale_by(2.5)), lambda: mapped(scale_by(5 / 2)), True),
    "functions with another default": (lambda: mapped(scale_by(2.5)), lambda: mapped(scale_by(-2.5)), False),
    "a function of torch": (lambda: mapped(torch.exp), lambda: mapped(torch.exp), True),
    "a function and another dtype": (lambda: mapped(torch.exp), lambda: mapped(torch.exp, dtype=torch.float64), False),
    "functions along a dimension that is no int": (
        lambda: mapped(torch.exp, dim=ONE),
        lambda: mapped(torch.exp),
        False,
    ),
    "one tensor in a list": (lambda: mapped(torch.exp), lambda: mapped(torch.exp, [X]), True),
    "one tensor in a list, without functions": (summed, lambda: scanops.scan([X], "sum", 1), False),
    "functions and carries": (lambda: chunk_of(torch.ones(3), False), lambda: chunk_of(torch.zeros(3), False), True),
    "functions and flags": (lambda: chunk_of(None, True), lambda: chunk_of(None, True), True),
    "functions and offsets": (lambda: mapped(torch.exp, offsets=CUTS), lambda: mapped(torch.exp, offsets=CUTS), False),
    "an own operator": (lambda: own(OWN, GATES, X), lambda: own(OWN, GATES + 1, -X), True),
    "another own operator": (lambda: own(OWN, GATES, X), lambda: own(OTHER, GATES, X), False),
    "with a workspace": (lambda: summed(LINE), lambda: summed(LINE + 1), True),
    "carries of lines": (lambda: carried(torch.ones(3)), lambda: carried(torch.arange(3.0)), True),
    "one carry": (lambda: carried(torch.tensor(5.0)), lambda: carried(torch.tensor(16.0)), True),
    "carries that are converted": (lambda: carried(torch.ones(3)), lambda: carried(torch.arange(3)), False),
    "a carry that is made a tensor": (lambda: carried(2.0), lambda: carried(3.0), False),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_known(name: str, counted: Counted) -> None:
    """C++ serves it, or Python does, with the same results."""
    learnt, then, known = ALIKE[name]
    taught(learnt)
    found: list[Any] = []
    assert counted.during(lambda: found.append(then())) == known
    native.forget()
    call_cache.forget()
    torch.testing.assert_close(found[0], then())


CHANGED = [each for each in trace_keys.CHANGED if each is not trace_keys.default_dtype]
changed = trace_keys.changed


@pytest.mark.parametrize("scan", ["map", "operator"])
@pytest.mark.parametrize("changed", CHANGED, indirect=True, ids=lambda make: make.__name__)
def test_changes_of_functions_are_seen(changed: trace_keys.Changed, scan: str, counted: Counted) -> None:
    """Whatever a function reads may change after C++ has served it."""
    (make, reference), (function, change) = trace_keys.SCANS[scan], changed
    call = make(function)
    for _ in range(2):
        for _ in range(4):
            torch.testing.assert_close(call(), reference(function))
        change()


@pytest.mark.parametrize("name", trace_keys.ORDINARY)
def test_functions_that_are_made_anew(name: str, counted: Counted) -> None:
    """They are the same to C++; one that calls itself is left to Python."""
    make = trace_keys.ORDINARY[name]

    def call() -> Any:
        return scanops.scan((trace_keys.X,), "sum", 0, map=make())

    expected = taught(call)
    found: list[Any] = []
    assert counted.during(lambda: found.append(call())) == (name != "recursion")
    torch.testing.assert_close(found[0], expected)


def test_the_default_dtype_is_seen(counted: Counted) -> None:
    x = torch.arange(4)
    taught(lambda: mapped(lambda x: x * 0.5, x.view(1, 4)))
    with default_dtype(torch.float64):
        assert mapped(lambda x: x * 0.5, x.view(1, 4)).dtype == torch.float64


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_listing_sees_what_is_served_natively_outside_of_it(counted: Counted) -> None:
    x = torch.ones(3, 100)
    for listed, natively in ((0, 3), (5, 0), (0, 3)):
        with scanops.calls() if listed else contextlib.nullcontext([]) as made:
            served = counted.during(lambda: [scanops.cumsum(x, 1) for _ in range(5)])
        assert (len(made), served) == (listed, natively)


def test_modes_and_transforms_are_python_s(counted: Counted) -> None:
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    expected = taught(summed)
    assert taught(lambda: scanops.cumsum(X, 1, mask=torch.ones_like(X))).equal(expected)
    before = counted.calls
    with Recorded() as recorded:
        assert scanops.cumsum(X, 1).equal(expected)
    assert recorded.bytes == 4 * X.numel()
    with Mode():
        assert scanops.cumsum(X, 1).equal(expected)
    assert torch.func.vmap(lambda x: scanops.cumsum(x, 0))(X).equal(expected)
    with forward_ad.dual_level():
        y = scanops.cumsum(forward_ad.make_dual(X, torch.ones_like(X)), 1)
        assert forward_ad.unpack_dual(y).tangent.equal(torch.ones_like(X).cumsum(1))
        y = scanops.cumsum(X, 1, mask=forward_ad.make_dual(torch.ones_like(X), X))
        assert forward_ad.unpack_dual(y).tangent.equal((X * X).cumsum(1))
    traced = torch.jit.trace(lambda x: scanops.cumsum(x, 1), (X,), check_trace=False)
    assert "scanops::scan" in str(traced.graph) and torch.equal(traced(X + 1), torch.cumsum(X + 1, 1))
    assert counted.calls == before
    with torch.inference_mode():
        assert scanops.cumsum(X, 1).is_inference()
    with torch.autocast("cpu", torch.bfloat16):  # under which a dtype may be another
        scanops.cumsum(X, 1)
        assert counted.calls == before + 1


@pytest.mark.parametrize("backward", [False, True])
def test_a_launch_that_fails(backward: bool, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    y = taught(lambda: scanops.cumsum(X.clone().requires_grad_(backward), 1, reverse=True))

    def call() -> object:
        return y.backward(torch.ones_like(y)) if backward else scanops.cumsum(X, 1, reverse=True)

    if backward:
        call()
        (learnt,) = call_cache.GRADIENTS.values()
        launcher = learnt.steps[0].launcher
    else:
        (known,) = call_cache.CALLS.values()
        launcher = known.launcher
        native.forget()
    codes = iter([0])  # the first time by Python, and learnt
    refuse = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda arguments, stream: next(codes, 98))
    bound = launcher._bound._replace(launch=refuse, function=refuse, describe=lambda code: f"number {code}")
    monkeypatch.setattr(launcher, "_bound", bound)
    call()
    assert native.count_registered() == 1 + backward
    served = counted.calls
    error = refused(LaunchFailure, call, "error 98", "number 98")
    assert "sum-f32-n40" in error.asked and counted.calls == served


@pytest.mark.parametrize("code", ["counted", "cuda"], ids=["library", "cubin"])
def test_threads(code: str, counted: Counted, request: pytest.FixtureRequest) -> None:
    """Of calls that are known, learnt and forgotten meanwhile."""
    request.getfixturevalue(code)
    inputs = [torch.randn(3, 40) for _ in range(4)]

    def work(number: int) -> None:
        with scanops.emulate():
            for turn in range(60):
                x = inputs[(number + turn) % 4]
                torch.testing.assert_close(scanops.cumsum(x, 1), x.cumsum(1))
                if turn % 20 == 10:
                    native.forget()
                    with scanops.record():
                        pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


# ---- the library as an entry of the store: found, packed, verified, refused, built when it pays

PROGRAM = """
import torch, scanops
from scanops.runtime import native
assert native.get(build=False)
with scanops.emulate():
    for _ in range(3):
        y = scanops.cumsum(torch.ones(3, 40), 1)
    assert y.equal(torch.ones(3, 40).cumsum(1)) and native.count_registered() == 1
print("served")
"""


@pytest.mark.slow
def test_a_pack_serves_where_nothing_can_be_built(counted: Counted, tmp_path: Path) -> None:
    """A pack with one kernel and the library."""
    folder, specs = tmp_path / "pack", tmp_path / "specs.toml"
    copy_library(folder)
    specs.write_text('targets = ["cpu"]\nspecs = ["sum-f32-n40"]\n', encoding="utf-8")
    done = CliRunner().invoke(main, ["precompile", str(specs), "-o", str(folder), "--native", "--jobs", "1"])
    assert done.exit_code == 0, done.output
    contents = packs.verify(folder)
    assert contents["targets"] == ["cpu", "host"] and len(contents["entries"]) == 2
    nothing = {"SCANOPS_STORE": str(tmp_path / "none"), "SCANOPS_PACKS": str(folder), "PATH": ""}
    assert ran(sys.executable, "-c", PROGRAM, **nothing).stdout == "served\n"


START = """
import logging, sys, torch, scanops
from pathlib import Path
from scanops.runtime import native
from scanops.runtime.native import building
building.PREBUILT = Path(sys.argv[1])
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
if sys.argv[2] == "launch":
    native.start("sm_90")
    while native.serve is None:
        pass
else:
    native.load()
assert native.serve is not None
"""


@pytest.mark.parametrize("by", ["launch", "patch"])
def test_the_library_of_a_wheel_is_there_without_a_build(by: str, counted: Counted, tmp_path: Path) -> None:
    """No program is found that could build one, and nobody is told of a build."""
    copy_library(tmp_path / "prebuilt")
    nothing = {"SCANOPS_STORE": str(tmp_path / "none"), "PATH": ""}
    said = ran(sys.executable, "-c", START, str(tmp_path / "prebuilt"), by, **nothing).stdout
    assert "being built" not in said and f"natively: {tmp_path}" in said


@pytest.mark.parametrize("place", ["store", "wheel"])
def test_a_changed_library_is_not_loaded(
    place: str, counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from a store nor from the installed wheel, which serves where the store has none."""
    monkeypatch.setattr(building, "PREBUILT", tmp_path / "wheel")
    copy, store = copy_library(tmp_path / place), Store(tmp_path / "store")
    kept = building.find_library(store)
    assert kept is not None and kept.directory == copy and building.module_of(kept).size() == 0
    data = bytearray((copy / "kernel.so").read_bytes())
    data[-1] ^= 1
    (copy / "kernel.so").unlink()  # the library that was loaded stays as it is
    (copy / "kernel.so").write_bytes(data)
    refused(BadStoreEntry, lambda: building.module_of(kept), "SHA-256")
    assert building.find_library(store) is None  # moved aside in the store


def test_the_identity_has_all_that_the_binary_follows_from(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = building.request()
    assert str(Path(torch.__file__).parent) not in ours.source + "".join(ours.flags)
    monkeypatch.setattr(torch.version, "git_version", "another")
    assert building.request().identity != ours.identity


def native_finding() -> Diagnosis:
    return finding("native calls", doctor.native_calls)


def test_what_the_doctor_says(counted: Counted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whether the library is there, switched off, or cannot be built: then calls go through Python."""
    finding = native_finding()
    assert finding.ok and finding.facts["identity"] == building.request().identity
    with monkeypatch.context() as patch:
        patch.setenv("SCANOPS_NATIVE", "0")
        assert not environment.native()
        assert native_finding().status == "missing" and "unset SCANOPS_NATIVE" in str(native_finding().next)
        patch.delenv("SCANOPS_NATIVE")
        patch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
        assert not environment.native()  # its table has no lock of its own
        assert "PYTHON_GIL" in str(native_finding().next)
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("SCANOPS_CXX", "absent-compiler")
    refused(MissingCompiler, building.build, "absent-compiler")
    finding = native_finding()
    assert finding.status == "missing" and "from Python" in finding.summary
    native.serve = None
    monkeypatch.setattr(native, "_MODULES", [])
    native.prepare("sm_90")  # says so in the log
    assert native.serve is None


@pytest.mark.parametrize(
    ("setting", "policy", "wanted"),
    [("1", "build", [True]), ("1", "never", [False]), ("0", "build", [])],
)
def test_the_first_launch_on_a_gpu_asks_for_it(
    setting: str, policy: str, wanted: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, by a worker; it is built where it is not there and the policy allows it."""
    done: list[object] = []
    monkeypatch.setenv("SCANOPS_NATIVE", setting)
    monkeypatch.setattr(native, "_STARTED", [])
    monkeypatch.setattr(native, "get", lambda *, build: done.append(build))
    monkeypatch.setattr(native._BUILDER, "run_later", lambda key, what, work: work())
    with scanops.policy(policy), scanops.emulate():
        scanops.cumsum(torch.ones(3), 0)  # whose kernel is the emulator's
        assert done == []
        for _ in range(3):
            native.start("sm_90")
    assert done == wanted


# ---- cubins through an emulated driver: the results of libraries, loads for each GPU, contexts of threads, errors

ROUTES = (
    *("lanes", "any_staged", "one_tile_odd", "any_wave_odd", "split_odd", "any_short_columns", "panels_chain"),
    "any_transposed_columns",
)


@pytest.mark.parametrize("number", range(len(ROUTES)), ids=ROUTES)
def test_every_strategy(number: int, cuda: Driver) -> None:
    """With carries and masks, and by turns with strides, head flags and offsets; again with what a launch left."""
    cell = matrix.Cell(
        route=ROUTES[number],
        op="affine",
        dtype="float32",
        reverse=("forward", "reverse")[number % 2],
        exclusive="inclusive",
        mask="bool",
        carry="both",
        segments=("none", "flags", "int32")[number % 3],
        layout=("dense", "sparse")[number // 2 % 2],
    )
    with oracle.affine_in_table(), scanops.emulate():
        given = matrix.operands(cell)
        for _ in range(3):
            oracle.compare(cell.op, matrix.run(cell, given), matrix.expected(cell, given))
    assert len(cuda.calls("cuLaunchKernel")) == 3 + 1  # the first lacked a context


@pytest.fixture
def kernel(cuda: Driver) -> scanops.Kernel:
    """A cubin that takes more shared memory than a GPU gives by itself."""
    return scanops.compile(scanops.ScanSpec.parse("prod-f32-n131072"), "cpu")


def test_prepare_leaves_nothing_to_a_first_call(cuda: Driver) -> None:
    with scanops.emulate():
        scanops.prepare(["sum-f32-n40"])
        assert cuda.calls("cuKernelGetFunction")
        assert scanops.cumsum(X, 1).equal(X.cumsum(1))
    assert not cuda.calls("cuKernelGetFunction")


@pytest.mark.parametrize(
    "function", ["cuLibraryLoadData", "cuLibraryGetKernel", "cuDevicePrimaryCtxRetain", "cuKernelGetFunction"]
)
def test_a_load_that_fails_and_is_tried_again(function: str, cuda: Driver) -> None:
    with scanops.emulate():
        cuda.fails.value = function.encode()
        error = refused(
            LaunchFailure, lambda: scanops.cumsum(X, 1), f"error 999 of {function}: CUDA_ERROR_UNKNOWN: bad"
        )
        assert "sum-f32-n40 for sm_90" in error.asked
        cuda.fails.value = b""
        assert scanops.cumsum(X, 1).equal(X.cumsum(1))


def test_a_driver_that_cannot_load_cubins(cuda: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.version.value = 11080
    for words in ("CUDA 11.8", "libcuda.so.0"):
        with scanops.emulate():
            refused(MissingRequirement, lambda: scanops.cumsum(X, 1), words)
        monkeypatch.setattr("scanops.runtime.driver.PATH", "libcuda.so.0")


@pytest.mark.parametrize("target", ["sm_90", "sm_90a"])
def test_the_layout_of_cuda_12_is_known_too(target: str, kernel: scanops.Kernel, tmp_path: Path) -> None:
    entry = entry_of(kernel, tmp_path)
    path, data = entry.library_path, entry.library_path.read_bytes()
    path.write_bytes(data[:7] + bytes([51, 7]) + data[9:48] + (0x5A055A).to_bytes(4, "little") + data[52:])
    entry.manifest.update(target=target, files=entry.manifest["files"] | {path.name: facts_of(path.read_bytes())})
    assert load(entry)


# What is wrong -> the change to the cubin, whether the manifest lists it, and what the error names
HARMS: dict[str, tuple[Callable[[bytes], bytes], bool, str]] = {
    "a bit": (lambda data: data[:-2] + b"x\0", False, "SHA-256"),
    "a byte less": (lambda data: data[:-1], False, "bytes instead of"),
    "no ELF": (lambda data: b"x" + data[1:], True, "no ELF"),
    "a part of a header": (lambda data: data[:63], True, "no ELF"),
    "another layout": (lambda data: data[:8] + b"\11" + data[9:], True, "version 9"),
    "another processor": (lambda data: data[:18] + b"\x3e" + data[19:], True, "machine 62"),
    "another target": (lambda data: data[:49] + b"\x50" + data[50:], True, "sm_80"),
    "half of its headers": (lambda data: data[:-64], True, "section headers lie beyond its end"),
}


@pytest.mark.parametrize("harm", [*HARMS, "launch", "mode", "gone"])
def test_what_is_not_loaded(harm: str, kernel: scanops.Kernel, cuda: Driver, tmp_path: Path) -> None:
    entry = entry_of(kernel, tmp_path)
    path, words = entry.library_path, "No such file"
    assert load(entry)
    if harm in HARMS:
        change, listed, words = HARMS[harm]
        path.write_bytes(change(path.read_bytes()))
        entry.manifest["files"] |= {path.name: facts_of(path.read_bytes())} if listed else {}
    elif harm == "launch":
        entry.manifest["launch"]["threads"], words = 33, "no kernel has"
    elif harm == "mode":
        path.chmod(0o666)
        words = "others may write"
    else:
        path.unlink()
    refused(BadStoreEntry, lambda: load(entry), words)
    assert cuda.calls() == []


def test_a_thread_binds_its_context_once_in_python_and_in_c(cuda: Driver, counted: Counted) -> None:
    """The first launch of a thread is refused, and made again; C++ launches as Python does."""
    launches = set()

    def served() -> tuple[int, int, int]:
        before = counted.calls
        with scanops.emulate():
            found = [scanops.cumsum(X, 1, initial=torch.ones(3)) for _ in range(3)]
        assert all(y.equal(X.cumsum(1) + 1) for y in found)
        launched, bound = (cuda.calls(name) for name in ("cuLaunchKernel", "cuCtxSetCurrent"))
        launches.update(launched)
        return counted.calls - before, len(launched), len(bound)

    assert [served(), served()] == [(1, 4, 1), (3, 3, 0)]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(served).result() == (3, 4, 1)
    assert len(launches) == 1


@pytest.mark.parametrize(("version", "early"), [(12030, 0), (12040, 1)])
def test_kernels_begin_early_where_graphs_can_capture_it(
    version: int, early: int, cuda: Driver, counted: Counted
) -> None:
    """C++ asks for it by one attribute: programmatic stream serialization is allowed."""
    cuda.version.value = version
    assert all(scanops.cumsum(X, 1).equal(X.cumsum(1)) for _ in range(3))
    assert counted.calls == 1 and cuda.calls("cuLaunchKernelEx") == ["cuLaunchKernelEx 1 6 1 0"] * early


@pytest.mark.parametrize("x", [LINE, X], ids=["workspace", "no workspace"])
@pytest.mark.parametrize("in_cpp", [False, True], ids=["python", "c"])
def test_a_launch_of_a_cubin_that_fails(in_cpp: bool, x: torch.Tensor, cuda: Driver, counted: Counted) -> None:
    """A workspace that it may have left half used is dropped."""
    if not in_cpp:
        native.serve = None
    for _ in range(3):
        scanops.cumsum(x, 1)
    for codes in ([999], [201, 201]):
        cuda.codes[: len(codes)] = codes
        refused(LaunchFailure, lambda: scanops.cumsum(x, 1), f"error {codes[0]}: ")
        assert not any(key[2] == threading.get_ident() for key in workspaces._WORKSPACES)
    assert scanops.cumsum(x, 1).equal(x.cumsum(1)) and counted.calls == in_cpp * 2


def test_a_fork_launches_what_the_parent_loaded(cuda: Driver) -> None:
    """The child runs no operation of torch that takes threads, which a parent's OpenMP does not survive a fork with."""
    with scanops.emulate():
        expected = LINE.cumsum(1).tolist()
        assert scanops.cumsum(LINE, 1).tolist() == expected
        child = os.fork()
        if child == 0:
            os._exit(scanops.cumsum(LINE, 1).tolist() != expected)
    assert os.waitpid(child, 0)[1] == 0


# ---- the native gradient of a scan is autograd's in every respect: values, orders, hooks, versions, lifetimes

SHAPE = (3, 40)
MASK = torch.arange(40) % 3 != 0
WEIGHTS = torch.linspace(0, 1, 40)
GATE = torch.linspace(-1, 1, 120).reshape(SHAPE)
INCOMING = torch.arange(120.0).reshape(SHAPE).remainder(7)
FLAGS = torch.arange(40) % 11 == 5

Call = Callable[[torch.Tensor, torch.Tensor], Any]  # of items and of a carry-in, which not every call reads
# By kernels alone
ALONE: dict[str, Call] = {
    "sum": lambda x, _: scanops.cumsum(x, 1),
    "sum, masked, reverse": lambda x, _: scanops.cumsum(x, 1, mask=MASK, reverse=True),
    "sum of segments": lambda x, _: scanops.cumsum(x, 1, segment_starts=FLAGS),
    "sum of halves": lambda x, _: scanops.cumsum(x.half(), 1, mask=MASK),
    "sum of complex numbers": lambda x, _: scanops.cumsum(x.to(torch.complex64), 1),
    "sum, converted": lambda x, _: scanops.cumsum(x, 1, dtype=torch.float64),
    "product": lambda x, _: scanops.cumprod(x, 1),
    "product, masked, exclusive": lambda x, _: scanops.cumprod(x, 1, mask=MASK, exclusive=True),
    "cummax": lambda x, _: scanops.cummax(x, 1),
    "cummin of columns": lambda x, _: scanops.cummin(x, 0, reverse=True),
    "max, masked": lambda x, _: scanops.scan(x, "max", 1, mask=MASK),
    "logcumsumexp": lambda x, _: scanops.logcumsumexp(x, 1),
    "recurrence": lambda x, _: scanops.linear_scan(GATE, x, 1),
    "recurrence of both": lambda x, _: scanops.linear_scan(x, x * 2, 1, exclusive=True),
}
CHUNKS: dict[str, Call] = {
    "chunks of a sum": lambda x, h: scanops.cumsum(x, 1, initial=h, return_final=True),
    "chunks of a product": lambda x, h: scanops.cumprod(x, 1, initial=h, return_final=True, exclusive=True, mask=MASK),
    "chunks of a recurrence": lambda x, h: scanops.linear_scan(GATE, x, 1, initial=h, return_final=True, reverse=True),
    "chunks of gates": lambda x, h: scanops.linear_scan(x, GATE, 1, initial=h, return_final=True),
    "chunks of logarithms": lambda x, h: scanops.logcumsumexp(x, 1, initial=h, return_final=True),
}
# With something of torch's between
MIXED: dict[str, Call] = {
    "weighted": lambda x, _: scanops.cumsum(x, 1, mask=WEIGHTS),
    "weights": lambda x, _: scanops.cumsum(GATE, 1, mask=x),
    "a gate for each column": lambda x, _: scanops.linear_scan(x[:1], GATE, 1),
    "a complete sum": lambda x, h: scanops.cumsum(x, 1, complete=True, initial=h),
    "a complete product": lambda x, h: scanops.cumprod(x, 1, complete=True, initial=h, reverse=True),
    "a complete recurrence": lambda x, _: scanops.linear_scan(GATE, x, 1, complete=True, mask=MASK),
}


def multiply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y


def pass_gate(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.sigmoid(x), y


def decay_states(x: torch.Tensor, rates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.exp(-rates * rates), x * rates


def weigh(state: torch.Tensor, x: torch.Tensor, rates: torch.Tensor) -> torch.Tensor:
    return state * torch.cos(rates)


def decay(total: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return total > 0, torch.exp(-total) * y, total + x


MEAN = scanops.operator(
    fields=("weight", "total"),
    lift=lambda x, w: (1 + w * w, w * x),
    combine=lambda older, newer: (older.weight + newer.weight, older.total + newer.total),
    project=lambda state: state.total / state.weight,
)
FUSED: dict[str, Call] = {
    "products": lambda x, _: scanops.scan((x, GATE), "sum", 1, map=multiply),
    "products with itself": lambda x, _: scanops.scan((x, x), "sum", 0, map=multiply, reverse=True),
    "one tensor": lambda x, _: scanops.scan(x, "sum", 1, map=torch.sin, mask=MASK),
    "gates": lambda x, _: scanops.scan((x, GATE), "linear", 1, map=pass_gate, segment_starts=FLAGS),
    "fields": lambda x, _: scanops.scan((x, GATE), MEAN, 1),
}
FUSED_PAIRS: dict[str, Call] = {
    "decays": lambda x, _: scanops.scan((x, GATE), "sum", 1, map=multiply, then=decay),
    "gates with carries": lambda x, h: scanops.scan(
        (GATE, x), "linear", 1, map=pass_gate, initial=h, return_final=True
    ),
}
RATES = torch.linspace(0.25, 1, 6)
SUMMED: dict[str, Call] = {
    "sums": lambda x, _: scanops.scan((x[..., None], RATES), "linear", 1, map=decay_states, then=weigh, sum=2),
    "sums, reverse": lambda x, _: scanops.scan(
        (GATE[..., None], x[0, :6]), "linear", 0, map=decay_states, then=weigh, sum=2, reverse=True,
        finish=lambda total, x, rates: torch.tanh(total) * x,
    ),
}  # fmt: skip
SUMMED_PAIRS: dict[str, Call] = {
    "sums and states": lambda x, _: scanops.scan(
        (x[..., None], RATES), "linear", 1, map=decay_states, then=weigh, sum=2, return_final=True
    ),
}
FUSED_MIXED: dict[str, Call] = {
    "gates of columns": lambda x, _: scanops.scan((x[:1], GATE), "linear", 1, map=pass_gate, exclusive=True),
    "halves": lambda x, _: scanops.scan((x[:, :1].half(), GATE), "sum", 1, map=multiply),
}
PAIRS = CHUNKS | FUSED_PAIRS | SUMMED_PAIRS
FUNCTIONS = FUSED | FUSED_PAIRS | FUSED_MIXED | SUMMED | SUMMED_PAIRS
CALLS = ALONE | CHUNKS | MIXED | FUNCTIONS
LAYOUTS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda g: g,
    lambda g: g[:1].expand(g.shape),
    lambda g: g.t().contiguous().t(),
)


def leaf(scale: float = 1.0) -> torch.Tensor:
    return torch.arange(-60.0, 60.0).div(scale).reshape(SHAPE).requires_grad_()


def slopes(name: str, used: tuple[int, ...], scale: float, spread: Any = LAYOUTS[0]) -> tuple[list[Any], str]:
    """Return the gradients of some results of a call, and the name of their node."""
    x, h = leaf(scale), torch.tensor([2.0, -1.0, 0.5], requires_grad=True)
    results = [y for y in flat(CALLS[name](x, h)) if y.requires_grad]
    given = [spread(INCOMING) if y.shape == SHAPE else y.detach().cos() for y in results]
    found = torch.autograd.grad(
        [results[k] for k in used], [x, h], [given[k].to(results[k].dtype) for k in used], allow_unused=True
    )
    assert results[0].grad_fn is not None
    return [each for each in found if each is not None], results[0].grad_fn.name()


@pytest.mark.parametrize("name", CALLS)
def test_every_operator(name: str, counted: Counted) -> None:
    """C++'s gradient is Python's to the bit, for other data, layouts of gradients and whichever results are used."""
    used = [(0,), (1,), (0, 1)] if name in PAIRS else [(0,)]
    layouts = LAYOUTS if name in ALONE | FUSED else LAYOUTS[:1]
    cases = list(itertools.product(used, (60.0, 45.0), layouts))
    for _ in range(4):
        slopes(name, used[0], 60.0)
    assert native.count_registered() == 2  # forward and backward
    found = [[slopes(name, *case) for case in cases] for _ in range(4)]
    assert [named for _, named in found[-1]] == ["ScanBackward"] * len(cases) and counted.calls > 0
    native.serve = None
    for _ in range(2):  # by Python, as it remembers calls, and as it meets them first
        expected = [slopes(name, *case) for case in cases]
        assert all(
            torch.equal(one, other)
            for turn in found
            for (mine, _), (right, _) in zip(turn, expected, strict=True)
            for one, other in zip(mine, right, strict=True)
        )
        call_cache.forget()
    assert expected[0][1] != "ScanBackward"


@pytest.mark.parametrize(
    "name",
    [
        *("sum of segments", "sum, masked, reverse", "product", "cummax", "recurrence", "chunks of a recurrence"),
        *("gates", "decays", "gates with carries", "gates of columns", "sums", "sums and states", "a complete product"),
    ],
)
def test_in_a_graph_of_compiled_autograd(name: str, counted: Counted) -> None:
    """A native node is one operation to a tracer, whichever scan it is of."""
    torch.compiler.reset()
    graphs: list[list[str]] = []
    used = (0, 1) if name in PAIRS else (0,)
    for _ in range(4):
        expected, named = slopes(name, used, 30.0)
    for _ in range(2):  # the second time by the graph of the first
        with following(graphs)():
            found, named = slopes(name, used, 30.0)
        assert named == "ScanBackward"
        torch.testing.assert_close(found, expected)
    backward = "fused_backward" if name in FUNCTIONS else "scan_backward"
    assert graphs == [[f"scanops.{backward}.default"]]


def native_node(call: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return the result of a call that is served natively, backward pass included, on a leaf of its own."""
    for _ in range(4):
        y = call(leaf())
        y.backward(torch.ones_like(y))
    y = call(leaf())
    assert y.grad_fn is not None and y.grad_fn.name() == "ScanBackward"
    return y


def test_autograd_s_own_rules(counted: Counted) -> None:
    y = native_node(lambda x: scanops.cumsum(x, 1))
    (x,) = [edge.variable for edge, _ in y.grad_fn.next_functions if edge]
    seen: list[torch.Tensor] = []
    x.register_hook(lambda gradient: seen.append(gradient) or 2 * gradient)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    expected = torch.ones(3, 40).flip(1).cumsum(1).flip(1)
    assert x.grad.equal(4 * expected) and [gradient.equal(expected) for gradient in seen] == [True, True]
    with torch.no_grad():
        assert scanops.cumsum(x, 1).grad_fn is None
    assert scanops.cumsum(x.detach(), 1).grad_fn is None
    y = scanops.cumsum(x, 1)
    y.mul_(2)  # no gradient reads the result
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.equal(2 * 2 * expected)  # the hook's 2 and this one
    rows = torch.eye(3)[:, :, None].expand(3, 3, 40)
    batched = torch.autograd.grad(scanops.cumsum(x, 1), x, rows, is_grads_batched=True)
    assert batched[0].equal(2 * torch.eye(3)[:, :, None] * expected)
    assert torch.autograd.grad(scanops.cumsum(x, 1)[0].sum(), x, materialize_grads=True)[0][1:].eq(0).all()


@pytest.mark.parametrize(
    ("scan", "change"),
    [
        (lambda x, mask: scanops.cumsum(x, 1, mask=mask), lambda y, mask: mask.logical_not_()),
        (lambda x, mask: scanops.logcumsumexp(x, 1), lambda y, mask: y.mul_(2)),  # its gradient reads the result
        (lambda x, mask: scanops.scan((x, GATE), "sum", 1, map=multiply, mask=mask), lambda y, mask: mask.fill_(True)),
        (lambda x, mask: scanops.scan((x, GATE), "linear", 1, map=pass_gate), lambda y, mask: y.mul_(2)),
    ],
    ids=["operand", "result", "operand of a fused scan", "result of a fused scan"],
)
def test_saved_tensors(scan: Callable[..., torch.Tensor], change: Callable[..., object], counted: Counted) -> None:
    """A saved tensor that was changed or released raises; reference counts alone free what a node holds."""
    native_node(lambda x: scan(x, MASK))
    mask = MASK.clone()
    y = scan(leaf(), mask)
    change(y, mask)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = scan(leaf(), MASK)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    for backward in (False, True):
        x, mask = leaf().detach().clone().requires_grad_(), MASK.clone()
        y = scan(x, mask)
        watched = [weakref.ref(each) for each in (x, mask, y)]
        gc.disable()
        try:
            if backward:
                y.sum().backward()
            del x, mask, y
            assert [each() for each in watched] == [None] * 3
        finally:
            gc.enable()


def test_higher_orders(counted: Counted) -> None:
    x, gate = (torch.rand(2, 40, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def call(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        plain = scanops.linear_scan(gate, x, 1) + scanops.logcumsumexp(x, 1) + scanops.cumsum(x, 1, mask=MASK) ** 2
        return plain + scanops.scan((gate, x), "linear", 1, map=pass_gate)

    for _ in range(4):
        call(x, gate).sum().backward()
    assert counted.calls > 0
    assert torch.autograd.gradgradcheck(call, (x, gate), fast_mode=True)


def test_which_inputs_want_a_gradient(counted: Counted) -> None:
    """Told apart, although the calls are alike."""
    for _ in range(4):
        for wanted in ((True, False), (False, True), (True, True), (False, False)):
            a, b = (leaf(60).detach().requires_grad_(want) for want in wanted)
            y = scanops.linear_scan(a, b, 1)
            assert (y.grad_fn is not None) == any(wanted)
            if any(wanted):
                y.sum().backward()
            assert [each.grad is not None for each in (a, b)] == list(wanted)
    assert counted.calls > 0 and native.count_registered() == 1 + 3


def test_which_inputs_of_a_fused_scan_want_a_gradient(counted: Counted) -> None:
    """Each kind of gradient has a kernel of its own, which writes what that gradient reads."""
    for turn in range(4):
        for wanted in ((True, False), (False, True), (True, True), (False, False)):
            a, b = (leaf(60 + turn).detach().requires_grad_(want) for want in wanted)
            y = scanops.scan((a, b), "linear", 1, map=pass_gate)
            assert (y.grad_fn is not None) == any(wanted)
            gate = torch.sigmoid(a)
            expected = scanops.linear_scan(gate, b, 1)
            torch.testing.assert_close(y, expected)
            if any(wanted):
                used = [each for each in (a, b) if each.requires_grad]
                found, right = (torch.autograd.grad((each * INCOMING).sum(), used) for each in (y, expected))
                torch.testing.assert_close(found, right)
    with torch.no_grad():
        assert scanops.scan((a.requires_grad_(), b), "linear", 1, map=pass_gate).grad_fn is None


def test_a_checkpoint_of_fused_scans(counted: Counted) -> None:
    """Python's node and C++'s save the same tensors: either may be the one that is computed again."""

    def compute(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        y, final = CALLS["gates with carries"](x, h)
        z = scanops.scan((x, GATE), "linear", 1, map=pass_gate)
        return (y * INCOMING).sum() + final.sum() + (z * INCOMING).sum() + CALLS["decays"](x, h)[1].sum()

    expected: list[Any] = []
    for turn in range(8):
        x, h = leaf(60.0), torch.tensor([2.0, -1.0, 0.5], requires_grad=True)
        kept: list[torch.Tensor] = []
        pack = partial(lambda kept, each: kept.append(each) or each, kept)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each):
            gradients = torch.autograd.grad(compute(x, h), (x, h))
        y = checkpoint(compute, x, h, use_reentrant=False)
        if turn % 3 == 2:
            native.forget()
            call_cache.forget()  # Python computes again what C++ has served
        found = [*gradients, *torch.autograd.grad(y, (x, h)), *kept]
        expected = expected or found
        assert len(found) == len(expected) and all(map(torch.equal, found, expected))
    assert counted.calls > 0


def test_batches_of_gradients_of_fused_scans(counted: Counted) -> None:
    rows = torch.eye(3)[:, :, None].expand(3, 3, 40)
    for _ in range(4):
        x = leaf(60.0)
        y = CALLS["gates"](x, x)
        (batched,) = torch.autograd.grad(y, x, rows, is_grads_batched=True, retain_graph=True)
        single = torch.stack([torch.autograd.grad(y, x, row, retain_graph=True)[0] for row in rows])
        torch.testing.assert_close(batched, single)
    assert counted.calls > 0


def test_a_backward_pass_in_python(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """It follows the policy of its forward pass; its error passes through C++ and autograd's engine as it was."""
    results = []
    for _ in range(3):
        for policy in ("generic", "never"):
            with scanops.policy(policy):
                results.append((policy, scanops.cumsum(leaf(), 1)))

    def broken(kind: object, needs: object, given: object, policy: str | None) -> None:
        raise KeyError(policy)

    monkeypatch.setattr(native_calls, "backward_pass", broken)
    for policy, y in results[-2:]:
        assert y.grad_fn is not None and y.grad_fn.name() == "ScanBackward"
        with pytest.raises(KeyError, match=policy):
            y.sum().backward()


def test_a_build_of_the_library_is_announced(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Once, at INFO: until it has ended calls go through Python."""

    def refused() -> None:
        raise MissingCompiler("find g++", allowed="", value="none", hint="")

    monkeypatch.setattr(native, "_MODULES", [])
    monkeypatch.setattr(building, "find_library", lambda: None)
    monkeypatch.setattr(building, "build", refused)
    with caplog.at_level("INFO", logger="scanops"):
        assert not native.get(build=False)
        assert not caplog.records
        with pytest.raises(MissingCompiler):
            native.get(build=True)
    (record,) = caplog.records
    assert record.levelname == "INFO" and "C++ call path is being built" in record.message


def test_calls_are_read_by_names(counted: Counted) -> None:
    """In whatever order; a name of nothing is Python's. The order of saved tensors is one in Python and in C++."""
    x, mask = torch.arange(120.0).view(3, 40), torch.arange(40) % 3 > 0
    for _ in range(3):
        y = scanops.cumsum(x, 1, mask=mask, reverse=True)
    options: Any = {"op": "sum", "dim": 1, "reverse": True, "exclusive": False, "final": False, "complete": False}
    assert native.serve is not None
    for fields in ({"x": x, "mask": mask, **options}, {**options, "mask": mask, "x": x}):
        assert native.serve(**fields).equal(y)
    users: Any = {"mask": mask, "return_final": False, "reverse": True}
    assert native.serve(x, None, "sum", 1, users).equal(y)
    assert native.serve(x, None, "sum", 1, {**users, "dtype": None, "exclusive": False}).equal(y)
    assert native.serve(x=x, mask=mask, **{**options, "reverse": 1}) is None  # equal to True, and no bool
    assert native.serve(x=x, mask=mask, **{**options, "exclusive": None}) is None  # no bool either
    assert native.serve(x=x, gate=mask, **options) is None
    assert native.serve(x, None, "sum", 1, {**users, "masks": mask}) is None
    assert SavedTensors._fields == native._MODULES[0].OPERANDS
