"""scanops.patch_torch: torch's own sample inputs of its scans, with and without it; what it serves and what not."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.func import functionalize, grad, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import scanops
from scanops import torch_private as names
from scanops.errors import MissingRequirement
from tests.numbers.oracle import of_same_turn
from tests.requests.test_torch_semantics import NAMES
from tests.requests.test_torch_semantics import ROWS as SAMPLES
from tests.scripts import ran
from tests.torch_integration.compilers import scans_of
from tests.torch_integration.rows import flat, hold

DTYPES = {"logcumsumexp": (torch.float32, torch.complex64)}


def into(name: str, x: torch.Tensor, *args: Any, **options: Any) -> Any:
    """Write a scan to tensors of the caller."""
    function = getattr(torch, name)
    outs = tuple(map(torch.empty_like, flat(function(x.detach(), *args, **options))))
    return function(x.detach(), *args, **options, out=outs if len(outs) > 1 else outs[0])


# How a program may write a call
WAYS: dict[str, Callable[..., Any]] = {
    "function": lambda name, *args, **options: getattr(torch, name)(*args, **options),
    "method": lambda name, x, *args, **options: getattr(x, name)(*args, **options),
    "unbound": lambda name, *args, **options: getattr(torch.Tensor, name)(*args, **options),
    **{
        f"keyword {dim}": lambda name, *args, word=dim, **options: getattr(torch, name)(
            **dict(zip(("input", word), args, strict=False)), **options
        )
        for dim in ("dim", "axis")
    },
    "out": into,
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_torch_samples(name: str, way: str, device: str) -> None:
    """Each way has a third of the samples."""
    place = scanops.emulate if device == "cpu" else nullcontext
    for dtype in DTYPES.get(name, (torch.float32, torch.int32)):
        for sample in list(SAMPLES[name].sample_inputs(device, dtype))[list(WAYS).index(way) % 3 :: 3]:
            expected = WAYS[way](name, sample.input, *sample.args, **sample.kwargs)
            with place(), scanops.patch_torch():
                found = WAYS[way](name, sample.input, *sample.args, **sample.kwargs)
            assert type(found) is type(expected)
            for y, wanted in zip(flat(found), flat(expected), strict=True):
                y = of_same_turn(y, wanted) if name == "logcumsumexp" and y.is_complex() else y
                torch.testing.assert_close(y, wanted, check_stride=True)


def test_what_is_patched() -> None:
    """CUDA tensors, and CPU tensors of a block that is opened inside emulate(), in all threads."""
    x = torch.rand(2, 5)

    def elsewhere() -> int:
        with scanops.emulate(), scanops.record() as used:
            torch.cumsum(x, 1)
        return sum(used.counts.values())

    with scanops.record() as used, scanops.patch_torch():
        torch.cumsum(x, 1)
    assert not used.counts
    with scanops.emulate(), warnings.catch_warnings(), scanops.patch_torch(), ThreadPoolExecutor(1) as pool:
        warnings.simplefilter("error")
        assert pool.submit(elsewhere).result() == 1
    assert elsewhere() == 0
    with scanops.emulate(), scanops.record() as used, scanops.patch_torch(), scanops.patch_torch():
        for name in NAMES:
            getattr(torch, name)(x, 1)
            getattr(x, name)(1)
        x.clone().cumsum_(1)
        x.clone().cumprod_(1)
        with torch.inference_mode():
            torch.cumsum(x, 1)
        torch.cumulative_trapezoid(x, dim=1)  # which calls cumsum in C++
    assert sum(used.counts.values()) == 2 * len(NAMES) + 4


def test_a_permanent_patch() -> None:
    program = """
        import torch, scanops
        x = torch.arange(4.0)
        with scanops.emulate():
            scanops.patch_torch(permanent=True)
            with scanops.patch_torch():
                pass
            with scanops.record() as used:
                assert torch.cumsum(x, 0).tolist() == [0, 1, 3, 6]
        assert torch.cumsum(x, 0).tolist() == [0, 1, 3, 6]
        print(sum(used.counts.values()))
    """
    assert ran(sys.executable, "-c", textwrap.dedent(program)).stdout.strip() == "1"


def test_blocks_that_end_in_another_order() -> None:
    """Nested tensors, which all devices share, are patched until the last block ends."""
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    with scanops.emulate():
        first, second = scanops.patch_torch(), scanops.patch_torch()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.cumsum(x, 1).values().tolist() == [[1] * 3, [2] * 3, [1] * 3]
        second.__exit__(None, None, None)
        with pytest.raises(NotImplementedError):
            torch.cumsum(x, 1)


def test_sharded_tensors() -> None:
    """They keep their sharding: the patch calls scanops, which knows it."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        mesh = init_device_mesh("cpu", (1,))
        x = distribute_tensor(torch.rand(4, 6), mesh, [Shard(1)])
        with scanops.emulate(), scanops.patch_torch():
            y = torch.cumsum(x, 1)
        assert y.placements == (Shard(1),)
        torch.testing.assert_close(y.full_tensor(), reference(x.full_tensor()))
    finally:
        dist.destroy_process_group()


def test_the_fallback_is_torch() -> None:
    """What no kernel serves is computed once, by the kernel that was replaced."""
    x, weight = torch.rand(3, 5), torch.rand(3, 5, requires_grad=True)
    with scanops.emulate(), scanops.patch_torch(), scanops.policy("fallback"):
        torch.testing.assert_close(torch.cumsum(x, 1), x.flip(1).cumsum(1).flip(1) * 0 + reference(x))
        for name in NAMES:
            values = flat(getattr(torch, name)(weight, 1))[0]
            assert torch.autograd.grad(values.sum(), weight)[0].isfinite().all()


def reference(x: torch.Tensor) -> torch.Tensor:
    """Sums along the last dimension, item by item."""
    return torch.stack([x[..., : n + 1].sum(-1) for n in range(x.shape[-1])], -1)


@pytest.mark.parametrize("name", NAMES)
def test_transforms_and_second_derivatives(name: str) -> None:
    """Formulas of torch, whose scans are kernels of scanops; and the backward pass of scanops, differentiated again."""
    x, tangent = torch.rand(2, 3, 5, dtype=torch.float64) + 0.5, torch.rand(2, 3, 5, dtype=torch.float64)

    def scan(x: torch.Tensor) -> torch.Tensor:
        return flat(getattr(torch, name)(x, -1))[0]

    def derivatives(x: torch.Tensor) -> list[torch.Tensor]:
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad((scan(leaf) * tangent).sum(), leaf, create_graph=True)
        with forward_ad.dual_level():
            forward = forward_ad.unpack_dual(scan(forward_ad.make_dual(x, tangent))).tangent
        return [
            first.detach(),
            torch.autograd.grad((first * tangent).sum(), leaf)[0] if first.requires_grad else tangent,
            forward,
            vmap(scan)(x),
            vmap(vmap(scan), in_dims=1)(x),
            jvp(scan, (x,), (tangent,))[1],
            vmap(grad(lambda x: (scan(x) ** 2).sum()))(x),
            grad(lambda x: jvp(scan, (x,), (tangent,))[1].pow(2).sum())(x),
        ]

    expected = derivatives(x)
    with scanops.emulate(), scanops.patch_torch(), scanops.record() as used:
        found = derivatives(x)
    assert sum(used.counts.values()) >= len(expected)
    torch.testing.assert_close(found, expected)


class Doubled(torch.Tensor):
    """A tensor that knows torch's operators alone, and doubles their results."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Doubled:
        made: Doubled = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function is torch.ops.aten.cumsum.default
        return function(args[0].inner, *args[1:], **(kwargs or {})) * 2


def test_a_tensor_class_sees_the_operator_of_torch() -> None:
    x = torch.rand(2, 5)
    with scanops.emulate(), scanops.patch_torch(), scanops.record() as used:
        torch.testing.assert_close(torch.cumsum(Doubled(x), 1), 2 * reference(x))
    assert sum(used.counts.values()) == 1


def test_what_torch_answers_itself() -> None:
    """A wrong call has torch's error; an out of another shape is resized, with torch's warning."""
    x, weight = torch.rand(2, 5), torch.rand(2, 5, requires_grad=True)
    with scanops.emulate(), scanops.record() as used, scanops.patch_torch():
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
    assert not used.counts


def test_a_scan_in_place_is_known_to_autograd() -> None:
    def scan(x: torch.Tensor) -> tuple[torch.Tensor]:
        return ((x * 2).cumsum_(1).cumprod(0),)

    def patched(x: torch.Tensor) -> tuple[torch.Tensor]:
        with scanops.emulate(), scanops.patch_torch():
            return scan(x)

    hold(patched, scan, (torch.rand(2, 5),))
    weight, x = torch.rand(5, requires_grad=True), torch.rand(2, 5)
    y = (weight * x).sum()
    with scanops.emulate(), scanops.patch_torch():
        x[0].cumsum_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_in_a_compiled_function() -> None:
    """The graph below autograd has the operator of scanops where the function is traced inside the block."""
    x = torch.rand(2, 5)
    for patched in (False, True):
        torch.compiler.reset()
        graphs: list[list[str]] = []

        def note(graph: torch.fx.GraphModule, _: Any, graphs: list[list[str]] = graphs) -> Any:
            graphs.append(scans_of(graph))
            return make_boxed_func(graph.forward)

        function = torch.compile(
            lambda x: torch.cumsum(x, 1), fullgraph=True, backend=aot_autograd(fw_compiler=note, bw_compiler=note)
        )
        leaf = x.clone().requires_grad_()
        with scanops.emulate(), scanops.patch_torch() if patched else nullcontext():
            y = function(leaf)
            y.backward(torch.ones_like(x))
        torch.testing.assert_close(y, reference(x))
        torch.testing.assert_close(leaf.grad, torch.arange(5.0, 0, -1).expand(2, 5))
        assert [len(each) for each in graphs] == [patched, patched]


# ---- what the library needs of each private name of torch: a torch that has moved one fails here, by its name


def under(transform: Callable[[Any], Any], ask: Callable[[torch.Tensor], Any]) -> Any:
    """What ``ask`` says of the tensor that a transform of torch passes on."""
    said: list[Any] = []
    transform(lambda x: (said.append(ask(x)), x + 1)[1])(ONE)
    return said[0]


def within(context: AbstractContextManager[object], ask: Callable[[], Any]) -> Any:
    with context:
        return ask()


def forgotten(operator: Any, key: Any) -> list[bool]:
    """Whether an operator remembers the kernel of a key, before and after."""
    operator._dispatch_cache.setdefault(key, key)
    before = key in operator._dispatch_cache
    names.forget_kernel(operator, key)
    return [before, key in operator._dispatch_cache]


def raised(ask: Callable[[], Any]) -> bool:
    """Whether torch refuses; a build without torch.distributed has no process groups, and says None."""
    try:
        return ask() is None
    except (LookupError, RuntimeError, ValueError):
        return True


ONE, LEAF, KEYS, CUDA = torch.ones(2), torch.ones(2, requires_grad=True), names.DispatchKey, torch.cuda.is_available()


def batches() -> list[bool]:
    """Whether a gradient is a batch, plain and under ``is_grads_batched``."""
    x, found = torch.ones(2, requires_grad=True), []
    y = x * 2
    y.register_hook(lambda gradient: found.append(names.dispatch_keys(gradient).has(names.batched)))
    torch.autograd.grad(y, x, torch.ones(2), retain_graph=True)
    torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)
    return found


def number_settings() -> list[tuple[bool, bool]]:
    """How Dynamo reads numbers inside the two functions and after them."""
    config, found = torch._dynamo.config, []
    for change in (names.read_numbers_as_constants, names.read_numbers_as_before):
        change()
        found.append((config.specialize_int, config.specialize_float))
    return found


def added(x: torch.Tensor, number: float) -> torch.Tensor:
    return x + names.constant_of(number)


opaque = names.at_tracing(lambda: float(len(str(Path()))))  # which a compiler cannot trace
enabled, switch = partial(torch.is_autocast_enabled, "cuda"), partial(torch.set_autocast_enabled, "cuda")
jit, below = partial(partial, torch.jit.trace), names.below_autograd
hooks, active, traced = partial(names.saved_tensors_hooks, True), names.are_transforms_active, names.is_jit_traced


NEEDED: dict[str, tuple[Callable[[], Any], Any]] = {  # name -> what is asked with it, and what has to be the answer
    "DispatchKey": (lambda: names.dispatch_keys(ONE).has(KEYS.CPU), True),
    "TransformType": (lambda: {"Grad", "Jvp", "Vmap"} <= {*dir(names.TransformType)}, True),
    "after_autograd": (lambda: [names.after_autograd.has(key) for key in (KEYS.CPU, KEYS.AutogradCPU)], [True, False]),
    "are_transforms_active": (lambda: under(vmap, lambda _: active()), True),
    "at_tracing": (lambda: torch.compile(lambda x: x + opaque(), backend="eager", fullgraph=True)(ONE)[0].item(), 2),
    "below_autograd": (lambda: within(below(), LEAF.sin).requires_grad, False),
    "batched": (batches, [False, True]),
    "constant_of": (
        lambda: torch.compile(added, backend="eager", dynamic=True, fullgraph=True)(ONE, 2.5)[0].item(),
        3.5,
    ),
    "read_numbers_as_before": (number_settings, [(True, True), (False, False)]),
    "read_numbers_as_constants": (number_settings, [(True, True), (False, False)]),
    "check_symbol": (lambda: names.check_symbol(True), None),
    "count_modes": (lambda: (names.count_modes(), within(TorchDispatchMode(), names.count_modes)), (0, 1)),
    "current_device": (lambda: names.current_device() if CUDA else 0, 0),
    "dispatch_keys": (lambda: names.dispatch_keys(ONE).has(KEYS.Python), False),
    "dual_level": (lambda: (names.dual_level(), within(forward_ad.dual_level(), names.dual_level)), (-1, 0)),
    "forget_kernel": (lambda: forgotten(torch.ops.aten.cosh.default, KEYS.CPU), [True, False]),
    "gpu_sleep": (lambda: names.gpu_sleep(100) if CUDA else None, None),
    "group_named": (lambda: raised(lambda: names.group_named("no such group")), True),
    "has_storage": (lambda: [names.has_storage(ONE), names.has_storage(ONE.to_sparse())], [True, False]),
    "interpreters": (lambda: under(vmap, lambda _: str(names.interpreters()[0].key())), "TransformType.Vmap"),
    "is_autograd_excluded": (lambda: within(below(), names.is_autograd_excluded), True),
    "is_functional": (lambda: [names.is_functional(ONE), under(functionalize, names.is_functional)], [False, True]),
    "count_function_modes": (
        lambda: [names.count_function_modes(), within(torch.device("meta"), names.count_function_modes)],
        [0, 1],
    ),
    "function_modes": (lambda: within(torch.device("meta"), lambda: len(names.function_modes())), 1),
    "is_device_mode": (
        lambda: [*within(torch.device("meta"), lambda: map(names.is_device_mode, names.function_modes()))],
        [True],
    ),
    "is_jit_traced": (lambda: [traced(), under(jit, lambda _: traced())], [False, True]),
    "is_wrapped": (lambda: [names.is_wrapped(ONE), under(vmap, names.is_wrapped)], [False, True]),
    "is_zero": (lambda: [names.is_zero(ONE), names.is_zero(torch._efficientzerotensor(2))], [False, True]),
    "ragged_dim": (lambda: names.ragged_dim(torch.nested.nested_tensor([ONE], layout=torch.jagged)), 1),
    "raw_stream": (lambda: CUDA and names.raw_stream(0) != torch.cuda.current_stream(0).cuda_stream, False),
    "recording": (lambda: within(below(), lambda: within(names.recording(), LEAF.sin)).requires_grad, True),
    "register_fake": (lambda: within(FakeTensorMode(), lambda: scanops.cumsum(torch.ones(3), 0)).shape, (3,)),
    "saved_tensors_hooks": (lambda: within(saved_tensors_hooks(abs, abs), hooks), (abs, abs)),
    "version_of": (lambda: names.version_of(torch.ones(2).add_(1)), 1),
    "without_autocast": (lambda: [switch(True), within(names.without_autocast(), enabled), switch(False)][1], False),
    "without_interpreters": (lambda: under(vmap, lambda _: within(names.without_interpreters(), active)), False),
}


@pytest.mark.parametrize("name", NEEDED)
def test_a_private_name_does_what_is_needed_of_it(name: str) -> None:
    ask, answer = NEEDED[name]
    assert ask() == answer


def test_private_names_are_in_one_module_alone() -> None:
    """Those of C++ are in the headers that the native call path is built against."""
    defined = re.findall(r"^(?:def )?([a-zA-Z]\w+)(?:\(|: | = )", Path(names.__file__).read_text("utf-8"), re.MULTILINE)
    assert {*defined} == {*NEEDED, "Guard", "private"}
    for path in {*Path(scanops.__file__).parent.rglob("*.py")} - {Path(names.__file__)}:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        texts = [ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute | ast.ImportFrom)]
        torchs = [text for text in texts if re.match(r"(torch|forward_ad)[.\w]+$|from torch[ .]", text)]
        assert [text for text in torchs if "._" in text.replace("__", "")] == [], path
    assert names.private("_C._moved", torch.is_tensor) is torch.is_tensor
    with pytest.raises(MissingRequirement, match=r"torch\._C\._moved is missing"):
        names.private("_C._moved")
