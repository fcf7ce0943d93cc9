"""Calls that are served natively give what Python gives: values, errors, and nothing where Python alone can serve."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import random
import shutil
import sys
from collections.abc import Callable
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

import scanops
from scanops import environment
from scanops.cli import doctor, main
from scanops.cli.doctor import Finding, finding
from scanops.errors import BadStoreEntry, LaunchFailure, MissingCompiler
from scanops.runtime import background, calls, native
from scanops.runtime.native import building
from scanops.store import packing
from scanops.store.store import Store
from tests.native.conftest import Counted
from tests.requests import test_bad_calls
from tests.requests import test_repeats as repeats
from tests.requests.checks import refused
from tests.requests.recipes import OPS, Built, drawn, holds
from tests.requests.test_allocations import Recorded
from tests.scripts import ran

X = torch.arange(120.0).reshape(3, 40)


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
    "with a workspace": (lambda: summed(LINE), lambda: summed(LINE + 1), False),
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
    calls.forget()
    torch.testing.assert_close(found[0], then())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
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
        (learnt,) = calls.GRADIENTS.values()
        launcher = learnt.steps[0].launcher
    else:
        (known,) = calls.CALLS.values()
        launcher = known.launcher
        native.forget()
    codes = iter([0])  # the first time by Python, and learnt
    refuse = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda arguments, stream: next(codes, 98))
    bound = launcher._bound._replace(launch=refuse, function=refuse, words=lambda code: f"number {code}")
    monkeypatch.setattr(launcher, "_bound", bound)
    call()
    assert native.learnt() == 1 + backward
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
    assert y.equal(torch.ones(3, 40).cumsum(1)) and native.learnt() == 1
print("served")
"""


def copied(folder: Path) -> Path:
    """Copy the library's entry into a folder, so that nothing is compiled again."""
    entry = building.found()
    assert entry is not None
    folder.mkdir(mode=0o700)
    return Path(shutil.copytree(entry.directory, folder / entry.directory.name))


@pytest.mark.slow
def test_a_pack_serves_where_nothing_can_be_built(counted: Counted, tmp_path: Path) -> None:
    """A pack with one kernel and the library."""
    folder, specs = tmp_path / "pack", tmp_path / "specs.toml"
    copied(folder)
    specs.write_text('targets = ["cpu"]\nspecs = ["sum-f32-n40"]\n', encoding="utf-8")
    done = CliRunner().invoke(main, ["precompile", str(specs), "-o", str(folder), "--native", "--jobs", "1"])
    assert done.exit_code == 0, done.output
    contents = packing.verify(folder)
    assert contents["targets"] == ["cpu", "host"] and len(contents["entries"]) == 2
    nothing = {"SCANOPS_STORE": str(tmp_path / "none"), "SCANOPS_PACKS": str(folder), "PATH": ""}
    assert ran(sys.executable, "-c", PROGRAM, **nothing).stdout == "served\n"


@pytest.mark.parametrize("place", ["store", "wheel"])
def test_a_changed_library_is_not_loaded(
    place: str, counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from a store nor from the installed wheel, which serves where the store has none."""
    monkeypatch.setattr(building, "PREBUILT", tmp_path / "wheel")
    copy, store = copied(tmp_path / place), Store(tmp_path / "store")
    kept = building.found(store)
    assert kept is not None and kept.directory == copy and building.module_of(kept).size() == 0
    data = bytearray((copy / "kernel.so").read_bytes())
    data[-1] ^= 1
    (copy / "kernel.so").unlink()  # the library that was loaded stays as it is
    (copy / "kernel.so").write_bytes(data)
    refused(BadStoreEntry, lambda: building.module_of(kept), "SHA-256")
    assert building.found(store) is None  # moved aside in the store


def test_the_identity_has_all_that_the_binary_follows_from(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = building.request()
    assert str(Path(torch.__file__).parent) not in ours.source + "".join(ours.flags)
    monkeypatch.setattr(torch.version, "git_version", "another")
    assert building.request().identity != ours.identity


def native_finding() -> Finding:
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
    refused(MissingCompiler, building.built, "absent-compiler")
    finding = native_finding()
    assert finding.status == "missing" and "from Python" in finding.summary
    native.served = None
    monkeypatch.setattr(native, "_MODULES", [])
    native.prepared("sm_90")  # says so in the log
    assert native.served is None


@pytest.mark.parametrize(
    ("setting", "policy", "wanted"),
    [("1", "build", [True]), ("1", "never", [False]), ("0", "build", [])],
)
def test_it_comes_when_calls_repeat(
    setting: str, policy: str, wanted: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked for once, by the worker; built where it is not there and the policy allows it."""
    done: list[object] = []
    monkeypatch.setenv("SCANOPS_NATIVE", setting)
    monkeypatch.setattr(native, "_counted", itertools.count(1))
    monkeypatch.setattr(native, "get", lambda *, build: done.append(build))
    monkeypatch.setattr(background.WORKER, "run_later", lambda key, what, work: work())
    with scanops.policy(policy):
        for _ in range(native._REPEATS - 1):
            native.repeated("sm_90")
        assert done == []
        for _ in range(3):
            native.repeated("sm_90")
    assert done == wanted
