"""The columns of docs/pytorch.md: a check each, which raises where a row does not pass it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import func
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import scanops
from tests.torch_integration import compilers
from tests.torch_integration.rows import (
    DIM,
    Noting,
    Row,
    Tensors,
    close,
    flat,
    floating,
    gradients,
    hold,
    leaves,
    weights,
)

NO_GRADIENT = "whole numbers"
OTHERS = "not torch's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its check may return the text of a cell, which is "yes" otherwise."""

    check: Callable[[Row], str | None]
    differentiates: bool = False  # says nothing of whole numbers
    gpus: int = 0  # that the check needs

    def cell(self, row: Row) -> str:
        """Return the cell of a row, tried now."""
        if self.differentiates and not floating(row.tensors()):
            return NO_GRADIENT
        return self.check(row) or "yes"


# ---- autograd


def values(row: Row) -> Callable[..., Tensors]:
    """Return the row with those results alone that have gradients."""
    return lambda *tensors: tuple(floating(row(*tensors)))


def first(row: Row) -> None:
    assert gradcheck(values(row), leaves(row.tensors())[0])


def second(row: Row) -> None:
    assert gradgradcheck(values(row), leaves(row.tensors())[0])


def twice(call: Callable[..., Tensors]) -> Callable[..., Tensors]:
    """Return two scans with operations around them, whose saved tensors must not be taken for one another."""

    def block(*tensors: torch.Tensor) -> Tensors:
        one, other = (
            floating(call(*(curve(each) if each.is_floating_point() else each for each in tensors)))
            for curve in (torch.sin, torch.cos)
        )
        return tuple(y.tanh() * z.exp() for y, z in zip(one, other, strict=True))

    return block


def checkpointed(row: Row) -> None:
    """Compute again what was computed before; beside kernels, also with a mode in one of the passes alone."""
    block, nothing = twice(row), contextlib.nullcontext
    for reentrant in (False, True):
        hold(partial(checkpoint, block, use_reentrant=reentrant), block, row.tensors())
    for forwards, backwards in ((Noting, nothing), (nothing, Noting)):

        def call(*tensors: torch.Tensor, forwards: Any = forwards) -> Tensors:
            with forwards():
                return checkpoint(block, *tensors, use_reentrant=False)

        with scanops.emulate():
            for _ in range(3):  # by Python, and where it is loaded by C++
                hold(call, block, row.tensors(), backward=backwards)


def inference(row: Row) -> None:
    with torch.inference_mode():
        found = row(*row.tensors())
    assert all(y.is_inference() for y in found)
    close(found, row(*row.tensors()), check_stride=True)
    close(found, row.by_torch(*row.tensors()))


# ---- torch.func


def batched(row: Row) -> None:
    pairs = zip(row.tensors(), row.tensors(seed=1), strict=True)
    stacked = tuple(torch.stack(pair, -1) for pair in pairs)
    found = func.vmap(row, in_dims=-1)(*stacked)
    for k in range(2):
        close([y[k] for y in found], row(*(each[..., k] for each in stacked)))


def as_one_function(row: Row) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], torch.Tensor]:
    """Return the row as a function of one line and with one number as its result, the same by torch, and a line."""
    tensors = row.tensors()
    given = floating(tensors)

    def total(call: Callable[..., Tensors], line: torch.Tensor) -> torch.Tensor:
        parts = iter(line.split([each.numel() for each in given]))
        every = (next(parts).reshape(each.shape) if each.is_floating_point() else each for each in tensors)
        return torch.stack([(y.sin() * weights(y)).sum() for y in floating(call(*every))]).sum()

    line = torch.cat([each.flatten() for each in given])
    return partial(total, row), partial(total, row.by_torch), line


Total = Callable[..., torch.Tensor]


def cosines(at: Tensors) -> Tensors:
    return tuple(each.cos() for each in at)


def dual(f: Total, at: Tensors) -> torch.Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(*map(forward_ad.make_dual, at, cosines(at)))).tangent


def batched_gradients(f: Total, at: Tensors) -> Tensors:
    leaves = tuple(each.clone().requires_grad_() for each in at)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, device=at[0].device)
    return torch.autograd.grad(f(*leaves), leaves, weights, is_grads_batched=True)


def both(at: Tensors) -> Tensors:
    """Return a batch of two, whose items keep their order."""
    return tuple(torch.stack([each, 1.5 * each]) for each in at)


TRANSFORMS: dict[str, Callable[[Total, Tensors], Any]] = {
    "gradient": lambda f, at: func.grad(f, argnums=tuple(range(len(at))))(*at),
    "pullback": lambda f, at: func.vjp(f, *at)[1](torch.tensor(1.5, dtype=torch.float64, device=at[0].device)),
    "tangent": lambda f, at: func.jvp(f, at, cosines(at)),
    "a batch": lambda f, at: func.vmap(f)(*both(at)),
    "a batch in gradients": lambda f, at: func.vmap(func.grad(f))(*both(at)),
    "gradients in a batch": batched_gradients,
    "dual numbers": dual,
    "functionalized": lambda f, at: func.functionalize(func.grad(f))(*at),
    "linearized": lambda f, at: func.linearize(f, *at)[1](*cosines(at)),
}
TWICE: dict[str, Callable[[Total, Tensors], Any]] = {
    "tangents of gradients": lambda f, at: func.jacfwd(func.grad(f))(*at),
    "gradients of tangents": lambda f, at: func.jacrev(lambda *t: func.jvp(f, t, cosines(t))[1])(*at),
    "gradients of gradients": lambda f, at: func.jacrev(func.grad(f))(*at),
    "tangents of tangents": lambda f, at: func.jacfwd(func.jacfwd(f))(*at),
    "tangents of a batch of gradients": lambda f, at: func.jvp(func.vmap(func.grad(f)), both(at), cosines(both(at))),
    "gradients of a batch": lambda f, at: func.grad(lambda *t: func.vmap(f)(*t).sum())(*both(at)),
}


def transformed(*names: str) -> Callable[[Row], None]:
    """Return the check that these transforms of a row give what they give of torch's operations."""

    def check(row: Row) -> None:
        total, by_torch, at = as_one_function(row)
        for name in names:
            found, expected = ((TRANSFORMS | TWICE)[name](each, (at,)) for each in (total, by_torch))
            assert_close(found, expected)

    return check


# ---- modes and subclasses


@contextlib.contextmanager
def autocasting() -> Iterator[None]:
    """Enable what torch.autocast("cuda") enables, which does nothing where there is no GPU."""
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before)


def autocast_cell(row: Row, halves: Tensors) -> tuple[Tensors, str]:
    """Return the results under autocast and the cell: their dtypes, which are torch's where torch has the scan."""
    plain = [y.dtype for y in row(*halves)]
    with autocasting():
        found = row(*halves)
        if row.torch_name:
            assert found[0].dtype == row.by_torch(*halves)[0].dtype
    return found, "as given" if plain == [y.dtype for y in found] else "float32"


def autocasted(row: Row) -> str:
    """Try what torch takes for tensors of a GPU."""
    with FakeTensorMode():
        given = tuple(torch.empty(each.shape, dtype=each.dtype, device="cuda") for each in row.tensors())
        return autocast_cell(row, tuple(each.half() if each.is_floating_point() else each for each in given))[1]


def pretended(row: Row) -> None:
    """Hold fake and meta tensors to shapes, dtypes and strides of real ones."""

    def outlines(results: Tensors) -> list[Any]:
        return [(y.shape, y.dtype, y.stride()) for y in results]

    expected = outlines(row(*row.tensors()))
    assert outlines(row(*(each.to("meta") for each in row.tensors()))) == expected
    with FakeTensorMode() as mode:
        assert outlines(row(*(mode.from_tensor(each) for each in row.tensors()))) == expected


class Mine(torch.Tensor):
    """A subclass that means nothing to operations, and that their results keep."""


def subclassed(row: Row) -> None:
    def call(*tensors: torch.Tensor) -> Tensors:
        found = row(*(each.as_subclass(Mine) for each in tensors))
        assert all(type(y) is Mine for y in found)
        return tuple(y.as_subclass(torch.Tensor) for y in found)

    hold(call, row, row.tensors())


def distributed(row: Row) -> None:
    """Shard along another dimension than the scanned one: so it stays, gradients too, and nothing is communicated."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.distributed.tensor.debug import CommDebugMode

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    spread = tuple(
        distribute_tensor(each, mesh, [Shard(0) if each.shape[0] == 3 else Replicate()]) for each in row.tensors()
    )
    wanted = [each.requires_grad_() for each in spread if each.is_floating_point()]
    with CommDebugMode() as sent:
        found = row(*spread)
        slopes = torch.autograd.grad([y.sum() for y in floating(found)], wanted) if wanted else ()
    assert sent.get_total_counts() == 0, (row.name, sent.get_comm_counts())
    assert all(y.placements == (Shard(0),) for y in found)  # type: ignore[attr-defined]
    tensors, leaf = leaves(row.tensors())
    expected = row(*tensors)
    close(whole(found), expected, check_stride=True)
    if wanted:
        close(whole(slopes), torch.autograd.grad([y.sum() for y in floating(expected)], leaf))


def whole(tensors: Tensors) -> list[torch.Tensor]:
    """Return what DTensors are as plain tensors."""
    return [each.full_tensor() for each in tensors]  # type: ignore[attr-defined]


def patched(row: Row) -> str | None:
    """Patch torch's function, also inside of a checkpoint, whose recomputation is patched in no case."""
    if row.torch_name is None:
        return OTHERS
    function, kinds = getattr(torch, row.torch_name), set()

    def call(x: torch.Tensor) -> Tensors:
        found = function(x, DIM)
        kinds.add(type(found))
        return flat(found)

    def ours(do: Callable[..., Tensors], *given: Any) -> Tensors:
        with scanops.patch_torch():
            return do(*given)

    block = twice(call)
    with scanops.emulate():
        hold(partial(ours, call), call, row.tensors())
        for reentrant, backwards in itertools.product((False, True), (contextlib.nullcontext, scanops.patch_torch)):
            again = partial(checkpoint, block, use_reentrant=reentrant)
            hold(partial(ours, again), block, row.tensors(), backward=backwards)
    assert len(kinds) == 1
    return None


COLUMNS: dict[str, Column] = {
    "gradient": Column(check=first, differentiates=True),
    "second": Column(check=second, differentiates=True),
    "`checkpoint`": Column(check=checkpointed, differentiates=True),
    "`inference_mode`": Column(check=inference),
    "`vmap`": Column(check=batched),
    "`vjp`, `grad`": Column(check=transformed("gradient", "pullback", "a batch in gradients"), differentiates=True),
    "`jvp`": Column(check=transformed("tangent", "dual numbers"), differentiates=True),
    "transforms of transforms": Column(check=transformed(*TWICE), differentiates=True),
    "`compile`": Column(check=compilers.compiled),
    "`compile`, dynamic": Column(check=compilers.compiled_for_all_lengths),
    "compiled autograd": Column(check=compilers.backwards_compiled, differentiates=True),
    "`export`": Column(check=compilers.exported),
    "`jit.trace`": Column(check=compilers.traced),
    "CUDA autocast": Column(check=autocasted),
    "fake, meta": Column(check=pretended),
    "subclass": Column(check=subclassed),
    "DTensor": Column(check=distributed),
    "`patch_torch`": Column(check=patched),
}


# ---- the columns that need a GPU

BUSY_CYCLES = 400_000_000  # some 0.2 s of a stream that does nothing
HALF = {"rtol": 2e-2, "atol": 2e-2}  # sums of five items in float16, which has 11 bits


def need(gpus: int) -> None:
    """Skip a test where fewer GPUs are visible."""
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"{gpus} GPUs are needed, {torch.cuda.device_count()} visible")


def _on(device: str, tensors: Tensors) -> Tensors:
    return tuple(each.to(device) for each in tensors)


def _step(row: Row, tensors: Tensors, wanted: list[torch.Tensor]) -> tuple[Tensors, Tensors]:
    found = row(*tensors)
    return tuple(y.detach() for y in found), gradients(found, wanted)


def _hold(row: Row, seed: int, found: Tensors, slopes: Tensors) -> None:
    """Compare with torch's operations on the CPU."""
    tensors, wanted = leaves(row.tensors(seed=seed))
    expected = row.by_torch(*tensors)
    assert all(y.is_contiguous() for y in found)
    close(_on("cpu", found), [y.detach() for y in expected])
    close(_on("cpu", slopes), gradients(expected, wanted))


def _change(row: Row, tensors: Tensors, others: Tensors) -> None:
    """Write other data into the same memory, but offsets: to look at their values again would be to wait."""
    for word, place, other in zip(row.operands, tensors, others, strict=True):
        if word != "offsets":
            place.detach().copy_(other)


def captured(row: Row) -> None:
    """Capture both passes in a CUDA graph, and replay it with other data."""
    tensors, wanted = leaves(_on("cuda", row.tensors()))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # builds what is to be built, and looks at offsets
            _step(row, tensors, wanted)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, slopes = _step(row, tensors, wanted)
    for seed in (1, 2):
        _change(row, tensors, row.tensors(seed=seed))
        for _ in range(2):  # a workspace that one launch leaves behind serves the next
            graph.replay()
        _hold(row, seed, found, slopes)


@contextmanager
def nothing_waits() -> Iterator[None]:
    """Fail where the block waits for the GPU, by torch or by anything else: the stream is busy until after it."""
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    busy = torch.cuda.current_stream().record_event()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
        assert not busy.query(), "the block waited for the stream"
    finally:
        torch.cuda.set_sync_debug_mode("default")


def waits_for_nothing(row: Row) -> None:
    """The second call and its backward pass are queued while the GPU is busy."""
    tensors, wanted = leaves(_on("cuda", row.tensors()))
    _step(row, tensors, wanted)
    with nothing_waits():
        found, slopes = _step(row, tensors, wanted)
    _hold(row, 0, found, slopes)


def on_a_side_stream(row: Row) -> None:
    """The stream is busy when the scan is queued; operands are let go of at once, results used on another stream."""
    tensors, wanted = leaves(_on("cuda", row.tensors()))
    others = _on("cuda", row.tensors(seed=1))
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        _step(row, tensors, wanted)
    torch.cuda.synchronize()
    with torch.cuda.stream(side), nothing_waits():
        _change(row, tensors, others)
        found, slopes = _step(row, tensors, wanted)
    for each in (*tensors, *others):
        each.record_stream(side)
    sizes = [(each.numel(), each.dtype) for each in (*tensors, *others)]
    del tensors, wanted, others, each
    junk = [torch.full((size,), 77, dtype=torch.int64, device="cuda").to(dtype) for size, dtype in sizes]
    main.wait_stream(side)
    for each in (*found, *slopes):
        each.record_stream(main)
    _hold(row, 1, found, slopes)
    assert len(junk) == len(sizes)


def autocast(row: Row) -> str:
    """Hold results of float16 under autocast to those of float64, and gradients to their dtype."""
    halves, wanted = leaves(
        tuple(each.half() if each.is_floating_point() else each for each in _on("cuda", row.tensors()))
    )
    found, cell = autocast_cell(row, halves)
    wide = tuple(each.detach().double() if each.is_floating_point() else each for each in halves)
    for y, right in zip(found, row.by_torch(*wide), strict=True):
        assert_close(y.to(right.dtype), right, **HALF)
    assert all(slope.dtype == torch.float16 for slope in gradients(found, wanted))
    return cell


def on_another_gpu(row: Row) -> None:
    """Scan on the GPU that is not the current one, and on the current one, by turns."""
    for _ in range(2):
        for device in ("cuda:1", "cuda:0"):
            found, slopes = _step(row, *leaves(_on(device, row.tensors())))
            assert {str(each.device) for each in (*found, *slopes)} == {device}
            assert torch.cuda.current_device() == 0
            _hold(row, 0, found, slopes)


GPU_COLUMNS: dict[str, Column] = {
    "CUDA graph": Column(check=captured, gpus=1),
    "waits for nothing": Column(check=waits_for_nothing, gpus=1),
    "side stream": Column(check=on_a_side_stream, gpus=1),
    "AMP, float16": Column(check=autocast, gpus=1),
    "another GPU": Column(check=on_another_gpu, gpus=2),
}
