"""Every private name of PyTorch that the library reads, each with what it is needed for; no other module reads one.

A PyTorch that has moved one is refused here by name, unless a public name serves in its place. What each has to do is
tested by tests/torch_integration/test_patch.py. The native call path is built against torch's headers instead.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad

from scanops._version import TESTED
from scanops.errors import MissingRequirement

F = TypeVar("F")
Guard = AbstractContextManager[object]


def private(path: str, public: Any = None) -> Any:
    """Return what ``torch.{path}`` names, else ``public``. Raises MissingRequirement where there is neither."""
    try:
        return attrgetter(path)(torch)
    except AttributeError as problem:
        if public is not None:
            return public
        tested = f"torch {' to '.join(TESTED['torch'])}"
        asked = f"use scanops with torch {torch.__version__}: torch.{path} is missing"
        raise MissingRequirement(asked, allowed=tested, value=problem, hint=f"install {tested}") from None


# Of the device of a launch. torch.cuda.current_stream() builds an object in 3 us, current_device() checks CUDA's state.
raw_stream: Callable[[int], int] = private(
    "_C._cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)
current_device: Callable[[], int] = private("_C._cuda_getDevice", torch.cuda.current_device)
gpu_sleep: Callable[[int], None] = private("cuda._sleep")  # between the runs of a measurement

# What watches or changes the operations of this thread: C functions, as every call asks.
are_transforms_active: Callable[[], bool] = private("_C._are_functorch_transforms_active")  # vmap, grad, jvp, ...
count_modes: Callable[[], int] = private("_C._len_torch_dispatch_stack")  # modes that see operators
count_function_modes: Callable[[], int] = private("_C._len_torch_function_stack")  # modes that see functions
function_modes: Callable[[], list[Any]] = private("overrides._get_current_function_mode_stack")
is_jit_traced: Callable[[], bool] = private("_C._is_tracing", private("jit.is_tracing"))  # by torch.jit.trace
dual_level: Callable[[], int] = partial(attrgetter("_current_level"), forward_ad)  # of forward mode; -1 outside
TransformType = private("_C._functorch.TransformType")
interpreters: Callable[[], list[Any] | None] = private("_C._functorch.get_interpreter_stack")  # the active transforms
without_interpreters: Callable[[], Guard] = private("_functorch.pyfunctorch.temporarily_clear_interpreter_stack")
saved_tensors_hooks: Callable[[bool], Any] = private("_C._autograd._top_saved_tensors_default_hooks")
check_symbol: Callable[[Any], None] = private("_check")  # a fact about symbolic sizes, checked at run time

# Whether a tensor has memory that a kernel may read.
has_storage: Callable[[torch.Tensor], bool] = private("_C._has_storage")
is_functional: Callable[[torch.Tensor], bool] = private("_is_functional_tensor")
ragged_dim: Callable[[torch.Tensor], int] = attrgetter("_ragged_idx")  # of a nested tensor of jagged layout
is_wrapped: Callable[[torch.Tensor], bool] = private("_C._functorch.is_functorch_wrapped_tensor")
is_zero: Callable[[torch.Tensor], bool] = private("Tensor._is_zerotensor")
version_of: Callable[[torch.Tensor], int] = attrgetter("_version")  # raised by every write that autograd sees
dispatch_keys: Callable[[torch.Tensor], Any] = private("_C._dispatch_keys")

# Which kernel a dispatch key of an operator has is remembered in Python, too, where compilers trace.
forget_kernel: Callable[[Any, Any], None] = private("_ops.OpOverload._uncache_dispatch")

# Operators of torch.library call themselves below autograd and autocast.
DispatchKey = private("_C.DispatchKey")
batched: Any = private("_C._dispatch_key_parse")("Batched")  # of gradients, by autograd; torch.func has another
after_autograd: Any = private("_C._after_autograd_keyset")  # the dispatch keys below autograd
below_autograd: Callable[[], Guard] = private("_C._AutoDispatchBelowAutograd")
_is_excluded = private("_C._dispatch_tls_is_dispatch_key_excluded")
is_autograd_excluded: Callable[[], bool] = partial(_is_excluded, DispatchKey.AutogradFunctionality)
_without_keys = private("_C._ExcludeDispatchKeyGuard", lambda _: torch.autocast("cuda", enabled=False))
without_autocast: Callable[[], Guard] = partial(_without_keys, private("_C.DispatchKeySet")(DispatchKey.AutocastCUDA))
_excluded, _included = private("_C._dispatch_tls_local_exclude_set"), private("_C._dispatch_tls_local_include_set")
_with_keys: Callable[..., Guard] = private("_C._ForceDispatchKeyGuard")


def is_device_mode(mode: object) -> bool:
    """Whether a mode is that of ``torch.set_default_device``, whose module torch imports when it is first used."""
    module = getattr(torch.utils, "_device", None)
    return module is not None and type(mode) is module.DeviceContext


def recording() -> Guard:
    """Let autograd record inside an operator's implementation, which runs below autograd."""
    left_out = _excluded()
    for key in (DispatchKey.AutogradFunctionality, DispatchKey.AutogradOther, DispatchKey.ADInplaceOrView):
        left_out = left_out.remove(key)
    return _with_keys(_included().add(DispatchKey.ADInplaceOrView), left_out)


def register_fake(name: str, function: Callable[..., Any], library: torch.library.Library) -> None:
    """As ``torch.library.register_fake``, which looks through all loaded modules for the line of its caller."""
    registry = private("_library.simple_registry.singleton", torch.library)
    if registry is torch.library:
        torch.library.register_fake(name, function, lib=library)
    else:
        registry.find(name).fake_impl.register(function, __name__, lib=library)


# The process group of a name, which operators have in its place; a build of torch without torch.distributed has none.
group_named: Callable[[str], Any] = private("distributed.distributed_c10d._resolve_process_group", lambda _: None)


_numbers: dict[str, bool] = {}  # settings of Dynamo while numbers are constants


def read_numbers_as_constants() -> None:
    """Let Dynamo read numbers as constants, each guarded, while it traces: an expression holds numbers, not symbols.

    Dynamo calls this. It ends with ``read_numbers_as_before``, or with the compilation.
    """
    config, handler = private("_dynamo.config"), private("_dynamo.callback.callback_handler")
    if not _numbers:
        for name in ("specialize_int", "specialize_float"):
            _numbers[name] = getattr(config, name)
            setattr(config, name, True)
        handler.register_end_callback(_end)


def read_numbers_as_before() -> None:
    """Let Dynamo read numbers as it did before ``read_numbers_as_constants``."""
    if _numbers:
        _end(None)


def _end(_: object) -> None:
    config, handler = private("_dynamo.config"), private("_dynamo.callback.callback_handler")
    for name, value in _numbers.items():
        setattr(config, name, value)
    _numbers.clear()
    handler.remove_end_callback(_end)


def constant_of(number: Any) -> Any:
    """A number that Dynamo follows as a symbol as a constant, which it guards. Dynamo follows this function."""
    return torch.fx.experimental.symbolic_shapes.guard_scalar(number * 1)  # not a variable that Dynamo has yet to read


def at_tracing(function: F) -> F:
    """As ``torch.compiler.assume_constant_result``, which would import the compiler."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
