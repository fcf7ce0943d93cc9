"""``patch_torch``: torch's own five scans computed by scanops, in code that cannot be edited.

The kernels that torch's dispatcher has for ``aten::cumsum`` and its relatives are replaced by functions of this module,
which call scanops and, for what scanops refuses, the kernel that was there before. No other operator is touched, and
callers in C++ find the same kernels as callers in Python.

Each functional operator is replaced at two places of the dispatcher: where autograd records it, so that the backward
pass is scanops' as well, and where a device computes it, for code below autograd: inference mode, torch's own
derivative formulas, batching rules. Operators that write to a tensor of the caller are replaced at the device alone:
torch's autograd checks leaves and versions before it gets there.

Over each of these kernels lies one in C++ (``runtime/native/source/patch.h``), where the C++ call path is loaded. It
launches what is registered and leaves small scans to torch, both without Python.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from scanops import api, emulator, relatives
from scanops.codegen.operators import OPERATORS, Operator
from scanops.errors import UnsupportedRequest
from scanops.forks import FORK_LOCK
from scanops.requests.call import Call
from scanops.requests.placement import OPEN
from scanops.requests.torch_state import calls_torch, has_own_operations, is_transformed
from scanops.runtime import native
from scanops.torch_private import DispatchKey, dual_level, forget_kernel, saved_tensors_hooks

__all__ = ["patch_torch"]

TorchKernel = Callable[..., Any]


def patch_torch(*, permanent: bool = False) -> AbstractContextManager[None]:
    """Compute torch's own five scans by scanops: in a block, or in the whole program from here on.

    Inside ``with scanops.patch_torch():``, or after ``scanops.patch_torch(permanent=True)``, ``torch.cumsum``,
    ``cumprod``, ``cummax``, ``cummin`` and ``logcumsumexp``, the tensor methods of these names, ``cumsum_`` and
    ``cumprod_`` run scanops' kernels for CUDA tensors, with ``dtype=``, ``out=`` and every keyword that torch accepts.
    Results, gradients and ``torch.return_types`` are those of torch. What scanops refuses, torch computes itself, or
    raises its own error for: an ``out`` of another shape, dimensions by name, an invalid call.

    The patch replaces the operators in torch's dispatcher, in all threads of the process. It covers calls that torch
    makes in C++, and calls in backward passes. No other operator becomes slower. Small scans stay with torch's kernels,
    which are as fast where a scan takes little more than its launch: up to 256 KiB, and one contiguous scan up to 1 MiB
    (under ``torch.use_deterministic_algorithms`` they run here, too). A larger scan that was made before is launched
    from C++. Open one block around the whole program, or make it permanent at the start: the first opening registers
    the operators, which other threads must not be running meanwhile. A block that is closed while the program has other
    threads leaves what is registered where it is: it calls torch's kernels until the next block.

    CPU tensors are patched by a block that is opened inside ``scanops.emulate()`` or ``scanops.distributed.sharded()``.
    Blocks nest. ``torch.compile`` follows the patch that is active when it traces a function, and does not trace
    the function again when the block is left. Open the block outside of a compiled function. Scans that
    ``torch.utils.checkpoint`` recomputes keep torch's derivative formulas, whose kernels are scanops'.

    Args:
        permanent: patch now, until the process ends. The value that is returned need not be entered.

    Returns:
        A context manager that patches torch while it is open.

    Raises:
        MissingRequirement: a version of torch that does not tell the kernels of its operators.

    Example:
        >>> import torch, scanops
        >>> with scanops.emulate(), scanops.patch_torch():
        ...     torch.tensor([1.0, 2.0, 3.0]).cumsum(0)
        tensor([1., 3., 6.])
    """
    if not permanent:
        return _block()
    for device in _devices():
        _open(device)
    return nullcontext()


@contextlib.contextmanager
def _block() -> Iterator[None]:
    devices = _devices()
    for device in devices:
        _open(device)
    try:
        yield
    finally:
        for device in devices:
            _close(device)


def _devices() -> tuple[str, ...]:
    """Return the dispatch keys of the devices whose tensors a block patches, and that of nested tensors on any."""
    on_cpu = OPEN or emulator.ACTIVE.get() is not None
    devices = (*(("CUDA",) if torch.version.cuda else ()), *(("CPU",) if on_cpu else ()))
    return (*devices, NESTED) if devices else ()


# ---- registration

NESTED = "NestedTensor"  # of which torch has no scans, but those that autograd would record


class Small(NamedTuple):
    """Which scans torch's kernel computes as fast as one of scanops; none where all limits are 0.

    A scan that torch's kernel finishes within some 10 us is done before the next one is launched. Along a contiguous
    dimension torch scans up to 1024 items a step, along another one a step for each item. A single contiguous scan is
    CUB's, which needs no step per item. Each has another kernel for a new shape here, to be looked up from Python.
    """

    bytes: int  # of the tensor
    row_items: int  # along a contiguous dimension
    column_items: int  # along any other
    single_bytes: int  # of a tensor that is one contiguous scan, of an operator without indices

    def holds(self, x: Tensor, dim: int) -> bool:
        """Whether a scan is small. ``Small`` of patch.h decides the same in C++."""
        size = x.numel() * x.itemsize
        if size > max(self.bytes, self.single_bytes) or torch.are_deterministic_algorithms_enabled():
            return False  # some of torch's kernels have no deterministic form
        if not x.ndim or not size:
            return self.bytes > 0
        if not -x.ndim <= dim < x.ndim:
            return False
        items = x.shape[dim]
        if items == x.numel() and x.is_contiguous() and size <= self.single_bytes:
            return True
        return size <= self.bytes and items <= (self.row_items if x.stride(dim) == 1 else self.column_items)


SMALL = {  # by device; emulated kernels exist for their results, not for their speed
    "CUDA": Small(bytes=1 << 18, row_items=2048, column_items=32, single_bytes=1 << 20),
    "CPU": Small(0, 0, 0, 0),
}
_REGISTERED: dict[str, Registration] = {}  # by device


class Registration:
    """The replaced kernels of a device; torch's own are back when it is closed.

    The dispatcher lets no thread run an operator while another one registers or removes its kernels. With other threads
    around, kernels that no block needs stay registered therefore, and call those of torch.
    """

    def __init__(self, device: str) -> None:
        self.blocks: list[None] = []  # that are open: C++ reads how many there are
        self._places: list[tuple[Any, str]] = []
        self._native: list[object] = []  # kernels in C++, over those in Python
        self._library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
            for row in _ROWS:
                small = SMALL.get(device, SMALL["CPU"])
                small = small._replace(single_bytes=0) if row.indices else small
                self._replace(row, "default", f"Autograd{device}", _at_autograd, small)
                if device == NESTED:
                    continue
                self._replace(row, "default", device, _below_autograd, small)
                self._replace(row, "out", device, _into_out, small)
                if hasattr(Tensor, f"{row.function}_"):
                    self._replace(row, "in place", device, _in_place, small)
        self._forget()

    def _replace(
        self,
        row: Operator,
        form: str,
        key: str,
        make: Callable[[Operator, TorchKernel, Small], TorchKernel],
        small: Small,
    ) -> None:
        name, overload = (f"{row.function}_", "default") if form == "in place" else (row.function, form)
        operator = getattr(getattr(torch.ops.aten, name), overload)
        patch = native.find_patch(name, overload.replace("default", ""), key)
        original = torch.library.get_kernel(operator, key).call_boxed
        served, blocks = make(row, original, small), self.blocks

        def kernel(*given: Any, **keywords: Any) -> Any:
            return (served if blocks else original)(*given, **keywords)

        self._library.impl(operator, kernel, key, with_keyset=True)  # type: ignore[no-untyped-call]
        if patch is not None:
            patch.install(Call(row.name, 0), form == "default", make is _at_autograd, small, OPEN, blocks)
            self._native.append(patch)
        self._places.append((operator, key))

    def close(self) -> None:
        """Let torch have its kernels back: they are unregistered with the last reference to the library."""
        self._native.clear()
        del self._library
        self._forget()

    def _forget(self) -> None:
        for operator, key in self._places:
            forget_kernel(operator, getattr(DispatchKey, key))


def _open(device: str) -> None:
    if device == "CUDA":
        native.load()
    with FORK_LOCK:
        if device not in _REGISTERED:
            _REGISTERED[device] = Registration(device)
        _REGISTERED[device].blocks.append(None)


def _close(device: str) -> None:
    with FORK_LOCK:
        blocks = _REGISTERED[device].blocks
        blocks.pop()
        if not blocks and threading.active_count() == 1:
            _REGISTERED.pop(device).close()


# ---- kernels: each is made of the kernel that it replaces


def _at_autograd(row: Operator, original: TorchKernel, small: Small) -> TorchKernel:
    """Return the kernel that autograd records."""
    compute = _scan_of(row)

    def kernel(keys: Any, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        options = {} if dtype is None else {"dtype": dtype}
        # Transforms and forward mode follow torch's own formulas, which call the kernels of the device.
        if _is_served(x, dim, small) and not is_transformed() and _is_understood(x) and not _is_checkpointed(x):
            with _refusals():
                return compute(x, dim, **options)
        return original(keys, x, dim, **options)

    return kernel


def _below_autograd(row: Operator, original: TorchKernel, small: Small) -> TorchKernel:
    """Return the kernel of a device."""
    compute = _scan_of(row)

    def kernel(keys: Any, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        options = {} if dtype is None else {"dtype": dtype}
        if _is_served(x, dim, small):
            with _refusals():
                return compute(_plain(x), dim, **options)
        return original(keys, x, dim, **options)

    return kernel


def _into_out(row: Operator, original: TorchKernel, small: Small) -> TorchKernel:
    """Return the kernel of a device that writes to tensors of the caller."""
    compute = _scan_of(row)

    def kernel(keys: Any, x: Tensor, dim: int, **given: Any) -> Any:
        pair = "values" in given
        outs = (given["values"], given["indices"]) if pair else (given["out"],)
        if _is_served(x, dim, small) and all([out.shape == x.shape for out in outs]):
            with _refusals():
                dtype = {} if given.get("dtype") is None else {"dtype": given["dtype"]}
                compute(_plain(x), dim, out=outs if pair else outs[0], **dtype)
                return outs if pair else outs[0]
        return original(keys, x, dim, **given)

    return kernel


def _in_place(row: Operator, original: TorchKernel, small: Small) -> TorchKernel:
    """Return the kernel of a device that writes to its input."""
    compute = _scan_of(row)

    def kernel(keys: Any, x: Tensor, dim: int, **dtype: Any) -> Any:
        if _is_served(x, dim, small) and dtype.get("dtype") in (None, x.dtype):
            with _refusals():
                compute(_plain(x), dim, out=_plain(x))
                return x
        return original(keys, x, dim, **dtype)

    return kernel


def _scan_of(row: Operator) -> Callable[..., Any]:
    return getattr(api if row.function in api.__all__ else relatives, row.function)  # type: ignore[no-any-return]


def _plain(x: Tensor) -> Tensor:
    """Return a tensor without gradient and tangent, below autograd, which knows them already."""
    return x.detach() if x.requires_grad or dual_level() >= 0 else x


def _refusals() -> AbstractContextManager[object]:
    """Let torch compute what scanops refuses, but for sharded dimensions: torch knows nothing of the other ranks."""
    return nullcontext() if OPEN else contextlib.suppress(UnsupportedRequest)


def _is_served(x: Tensor, dim: int, small: Small) -> bool:
    """Whether scanops has a kernel that is faster than torch's, and is not what calls torch."""
    if calls_torch() or not (x.is_cuda or OPEN or emulator.ACTIVE.get() is not None):
        return False
    return bool(OPEN) or is_compiling() or has_own_operations(x) or not small.holds(x, dim)


def _is_understood(x: Tensor) -> bool:
    """Whether a tensor follows operators of scanops: one that defines operations of its own may know those of torch."""
    return type(x) is Tensor or not has_own_operations(x) or type(x).__name__ in _CLASSES


def _is_checkpointed(x: Tensor) -> bool:
    """Whether a checkpoint is recording saved tensors: it recomputes them outside the block, and expects the same."""
    hooks = saved_tensors_hooks(True) if x.requires_grad else None  # also while tracing
    # to a compiler a checkpoint is a part of the graph
    return hooks is not None and hooks[0].__module__ == "torch.utils.checkpoint" and not is_compiling()


_ROWS = tuple(row for row in OPERATORS.values() if row.function and row.function == row.torch_name)
# of torch: tensors without memory in a compiler, those that sharding and ragged lengths are known of
_CLASSES = frozenset({"FakeTensor", "FunctionalTensor", "DTensor", "NestedTensor"})
