"""First calls of every kind, which ``test_forks.py`` makes in processes of their own.

Each call checks its result. A process makes each of them once: what a first call imports, it imports then.
"""

from __future__ import annotations

import faulthandler
import importlib.abc
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

import scanops
from scanops import forks

LENGTH = 48
LAZY = ("Kernel", "check_operator", "compile", "export", "generate", "make_plan", "nn", "patch_torch", "prepare")
ALARM = 20  # seconds after which a child counts as hanging


def _x(**options: Any) -> torch.Tensor:
    return (torch.arange(3.0 * LENGTH).view(3, LENGTH) % 5).requires_grad_(**options or {"requires_grad": False})


def _equal(found: Any, wanted: Any) -> None:
    # Not torch.testing.assert_close, which imports a module at its first call.
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    assert all(one.dtype == other.dtype and one.equal(other) for one, other in pairs)  # small whole numbers: exact


def _gradient(scan: Callable[[torch.Tensor], torch.Tensor], wanted: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = _x(requires_grad=True)
    weights = torch.arange(float(LENGTH))
    (found,) = torch.autograd.grad((scan(x) * weights).sum(), x)
    (right,) = torch.autograd.grad((wanted(x) * weights).sum(), x)
    _equal(found, right)


def by_torch() -> None:
    """Scan a tensor of the CPU, and differentiate it."""
    _equal(scanops.cumsum(_x(), 1), _x().cumsum(1))
    _gradient(lambda x: scanops.cumsum(x, 1), lambda x: x.cumsum(1))


def emulated() -> None:
    """Run kernels of several operators by the emulator."""
    with scanops.emulate():
        _equal(scanops.cumsum(_x(), 1), _x().cumsum(1))
        _equal(scanops.cumsum(_x(), 0), _x().cumsum(0))
        _equal(tuple(scanops.cummax(_x(), 1)), tuple(_x().cummax(1)))
        offsets = torch.tensor([0, 16, LENGTH])
        halves = [part.cumsum(1) for part in _x().split([16, LENGTH - 16], 1)]
        _equal(scanops.cumsum(_x(), 1, offsets=offsets), torch.cat(halves, 1))


def emulated_gradient() -> None:
    """Run the kernels of a backward pass by the emulator."""
    with scanops.emulate():
        _gradient(lambda x: scanops.cumsum(x, 1), lambda x: x.cumsum(1))


def fused() -> None:
    """Trace functions, and run the fused kernel by the emulator."""
    with scanops.emulate():
        found = scanops.scan(_x(), "sum", 1, map=lambda x: 2 * x + 1, then=lambda y, x: y - x)
        _equal(found, (2 * _x() + 1).cumsum(1) - _x())


def fused_gradient() -> None:
    """Run the backward pass of a fused kernel by the emulator."""
    with scanops.emulate():
        _gradient(lambda x: scanops.scan(x, "sum", 1, map=lambda x: x * x), lambda x: (x * x).cumsum(1))


def operator_of_functions() -> None:
    """Scan pairs by an operator made of functions."""
    sums = scanops.operator(fields=("a", "b"), combine=lambda older, newer: (older.a + newer.a, older.b + newer.b))
    with scanops.emulate():
        found = scanops.scan((_x(), 2 * _x()), sums, 1)
    _equal(tuple(found), (_x().cumsum(1), 2 * _x().cumsum(1)))


def batched() -> None:
    """Scan under ``torch.func.vmap``."""
    _equal(torch.func.vmap(lambda x: scanops.cumsum(x, 0))(_x()), _x().cumsum(1))


def transformed() -> None:
    """Scan under ``torch.func.grad``, whose own imports are those of whoever calls it."""
    _equal(torch.func.grad(lambda x: scanops.cumsum(x, 1).sum())(_x())[0, 0], torch.tensor(float(LENGTH)))


def built_by_nvrtc() -> None:
    """Build a kernel for a GPU, where NVRTC is installed."""
    try:
        kernel = scanops.compile(scanops.ScanSpec.parse(f"sum-f32-n{LENGTH}"), "sm_90", builder="nvrtc")
    except scanops.errors.MissingCompiler:
        return
    assert kernel.spec.length == LENGTH and kernel.source


def recorded() -> None:
    """List the calls of a block, and record them in a file."""
    with tempfile.TemporaryDirectory() as folder, scanops.record() as seen, scanops.calls() as made, scanops.emulate():
        _equal(scanops.cumsum(_x(), 1), _x().cumsum(1))
        seen.write(Path(folder, "kernels.toml"))
    # Those of other threads, too.
    assert f"sum-f32-n{LENGTH}" in [call.request for call in made] and f"sum-f32-n{LENGTH}" in [s.slug for s in seen]


def lazy_names() -> None:
    """Use the names of scanops that load their modules at first use."""
    found = [getattr(scanops, name) for name in LAZY]
    assert all(each is not None for each in found)
    _equal(scanops.nn.CumSum()(_x()), _x().cumsum(1))
    assert f"sum-f32-n{LENGTH}" in scanops.generate(scanops.ScanSpec.parse(f"sum-f32-n{LENGTH}"))


def refused() -> None:
    """Get an error with a suggestion."""
    try:
        scanops.scan(_x(), "summ", 1)
    except scanops.errors.UnsupportedRequest as problem:
        assert "did you mean 'sum'?" in str(problem)
    else:
        raise AssertionError


KINDS: tuple[Callable[[], None], ...] = (
    *(by_torch, emulated, emulated_gradient, fused, fused_gradient, operator_of_functions, batched),
    *(built_by_nvrtc, recorded, lazy_names, refused),
)


class _Watch(importlib.abc.MetaPathFinder):
    """Notes each module that is imported while this thread does not hold FORK_LOCK, and for whom."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Find nothing; the next finder does."""
        if not forks.FORK_LOCK._is_owned():  # type: ignore[attr-defined]
            callers = [frame for frame in traceback.extract_stack() if "importlib" not in frame.filename][-8:]
            self.found.append(f"{name}: {' <- '.join(f'{f.filename}:{f.lineno}' for f in reversed(callers))}")


def check_imports() -> None:
    """Make the calls in a thread, and print what is imported while another thread could fork."""
    watch = _Watch()
    failures: list[str] = []

    def make(calls: Iterable[Callable[[], None]]) -> None:
        for call in calls:
            try:
                call()
            except Exception:
                failures.append(f"{call.__name__}: {traceback.format_exc()}")

    for calls in (KINDS, [transformed]):
        sys.meta_path.insert(0, watch)
        thread = threading.Thread(target=make, args=(calls,))
        thread.start()
        thread.join()
        sys.meta_path.remove(watch)
        torch.func.grad(torch.sum)(torch.ones(1))
    sys.exit("\n".join([*watch.found, *failures]) or 0)


def use_operators() -> None:
    """Call operators of torch that scans call, inside ``vmap`` as well.

    The first call of an operator in a process initializes a static variable of C++, without the interpreter's lock: a
    child that was forked meanwhile would wait for ever at its own call. That is torch's, whatever calls it.
    """

    def use(x: torch.Tensor) -> torch.Tensor:
        shape = x.shape
        x = x.movedim(0, -1).movedim(-1, 0).unsqueeze(0).expand(2, *shape).reshape(2, -1)[0].view(shape)
        x = torch.stack([x, x.flip(-1)]).unbind(0)[0].transpose(0, -1).transpose(0, -1).contiguous()
        x = torch.cat(x.split([1, shape[0] - 1])).permute(*range(x.ndim)).squeeze(0).clone()
        return x.cumsum(-1).to(torch.float64).mul(2).add(1).sub(1).sum(-1, keepdim=True)

    use(_x())
    torch.func.vmap(use)(torch.stack([_x(), _x()]))
    _gradient(lambda x: x.cumsum(1), lambda x: x.cumsum(1))


def fork_beside_calls(count: int, seed: int) -> None:
    """Fork ``count`` children from two threads while two others make first calls; print the children that hang."""
    torch.set_num_threads(1)
    _x()  # in its first operation on a CPU torch looks at the processor, behind a lock that a child may find held
    use_operators()
    tempfile.gettempdir()  # has a lock of Python's
    random.seed(seed)
    children: dict[int, str] = {}
    failures: list[str] = []
    together = threading.Barrier(4)

    def make_calls(first: int) -> None:
        together.wait()
        for call in KINDS[first:] + KINDS[:first]:
            try:
                call()
            except Exception:
                failures.append(f"{call.__name__} in the parent: {traceback.format_exc()}")

    def fork(numbers: range) -> None:
        together.wait()
        for number in numbers:
            call = KINDS[number % len(KINDS)]
            child = os.fork()
            if child == 0:
                faulthandler.dump_traceback_later(ALARM, exit=True)  # says where a child hangs
                try:
                    call()
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            children[child] = call.__name__
            time.sleep(random.random() ** 3)

    first = random.randrange(len(KINDS))
    threads = [threading.Thread(target=make_calls, args=((first + k * 5) % len(KINDS),)) for k in range(2)]
    threads += [threading.Thread(target=fork, args=(range(first + k, first + count, 2),)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for child, name in children.items():
        status = os.waitpid(child, 0)[1]
        if status:
            failures.append(f"{name} failed in a child")
    sys.exit("\n".join(failures) or 0)
