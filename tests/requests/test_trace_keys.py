"""Traces follow what functions read: whatever changes between two calls, a scan computes what its function computes.

Functions that read constants alone are traced once. Those of other packages are not known by their names.
"""

from __future__ import annotations

import builtins
import contextvars
import functools
import math
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

import scanops
from scanops.compat import associative_scan
from scanops.errors import UnsupportedRequest
from scanops.fusion import calls, functions
from scanops.fusion.trace_keys import key_of

Changed = tuple[Callable[[Any], Any], Callable[[], object]]  # a function that doubles, and what makes it triple
X = torch.tensor([1.0, -2.0, 3.0, 0.5])


class Holder:
    """An object with attributes of every kind."""

    scale = 2.0

    def __init__(self) -> None:
        self.own = 2.0

    @property
    def computed(self) -> float:
        """An attribute that code computes."""
        return self.own

    def apply(self, x: Any) -> Any:
        """A method that reads an attribute."""
        return x * self.own

    __call__ = apply


def own_attribute() -> Changed:
    def f(x: Any) -> Any:
        return x * f.scale  # type: ignore[attr-defined]

    f.scale = 2.0  # type: ignore[attr-defined]
    return f, lambda: setattr(f, "scale", 3.0)


def attribute_of_a_helper() -> Changed:
    def helper() -> None:
        pass

    helper.scale = 2.0  # type: ignore[attr-defined]
    return lambda x: x * helper.scale, lambda: setattr(helper, "scale", 3.0)  # type: ignore[attr-defined]


def attribute_that_is_new() -> Changed:
    def helper() -> None:
        pass

    return lambda x: x * getattr(helper, "scale", 2.0), lambda: setattr(helper, "scale", 3.0)


def attribute_of_a_function_of_torch() -> Changed:
    functional.silu.scale = 2.0
    return lambda x: x * functional.silu.scale, lambda: setattr(functional.silu, "scale", 3.0)


def code_of_the_function() -> Changed:
    def f(x: Any) -> Any:
        return x * 2.0

    return f, lambda: setattr(f, "__code__", (lambda x: x * 3.0).__code__)


def defaults() -> Changed:
    def f(x: Any, scale: float = 2.0) -> Any:
        return x * scale

    return f, lambda: setattr(f, "__defaults__", (3.0,))


def keyword_defaults() -> Changed:
    def f(x: Any, *, scale: float = 2.0) -> Any:
        return x * scale

    return f, lambda: f.__kwdefaults__.update(scale=3.0)


def list_as_default() -> Changed:
    scales = [2.0]
    return lambda x, scales=scales: x * scales[0], lambda: scales.__setitem__(0, 3.0)


def module_as_default() -> Changed:
    module = make_module()
    return lambda x, module=module: x * module.scale, lambda: setattr(module, "scale", 3.0)


def list_in_closure() -> Changed:
    scales = [2.0]
    return lambda x: x * scales[0], lambda: scales.__setitem__(0, 3.0)


def variable_of_closure() -> Changed:
    scale = 2.0

    def change() -> None:
        nonlocal scale
        scale = 3.0

    return lambda x: x * scale, change


def variable_of_an_inner_function() -> Changed:
    scale = 2.0

    def change() -> None:
        nonlocal scale
        scale = 3.0

    return lambda x: sum((part * scale for part in (x, x)), 0.0) / 2, change


def attribute_of_an_object() -> Changed:
    holder = Holder()
    return lambda x: x * holder.own, lambda: setattr(holder, "own", 3.0)


def attribute_of_a_class() -> Changed:
    kind = type("Kind", (Holder,), {})
    return lambda x: x * kind.scale, lambda: setattr(kind, "scale", 3.0)


def property_of_an_object() -> Changed:
    holder = Holder()
    return lambda x: x * holder.computed, lambda: setattr(holder, "own", 3.0)


def bound_method() -> Changed:
    holder = Holder()
    return holder.apply, lambda: setattr(holder, "own", 3.0)


def bound_method_in_closure() -> Changed:
    holder = Holder()
    apply = holder.apply
    return lambda x: apply(x), lambda: setattr(holder, "own", 3.0)


def object_that_is_called() -> Changed:
    holder = Holder()
    return holder, lambda: setattr(holder, "own", 3.0)


def method_of_a_dict() -> Changed:
    table = {"scale": 2.0}
    get = table.get
    return lambda x: x * get("scale"), lambda: table.update(scale=3.0)


def method_of_a_tensor() -> Changed:
    scale = torch.tensor(2.0)
    read = scale.item
    return lambda x: x * read(), lambda: scale.fill_(3.0)


def context_variable() -> Changed:
    scale = contextvars.ContextVar("scale", default=2.0)
    get = scale.get
    return lambda x: x * get(), lambda: scale.set(3.0)


def partial_of_a_list() -> Changed:
    scales = [2.0]
    return functools.partial(lambda scales, x: x * scales[0], scales), lambda: scales.__setitem__(0, 3.0)


def wrapper_of_a_function_of_torch() -> Changed:
    scale = 2.0

    @functools.wraps(functional.silu)
    def f(x: Any) -> Any:
        return x * scale

    def change() -> None:
        nonlocal scale
        scale = 3.0

    return f, change


def wrapped_function() -> Changed:
    @functools.wraps(lambda x: x * 2.0)
    def f(x: Any) -> Any:
        return f.__wrapped__(x)  # type: ignore[attr-defined]

    return f, lambda: setattr(f, "__wrapped__", lambda x: x * 3.0)


def remembered_function() -> Changed:
    scales = [2.0]
    read = functools.cache(lambda: scales[0])

    def change() -> None:
        scales[0] = 3.0
        read.cache_clear()

    return lambda x: x * read(), change


def make_module() -> Any:
    module = types.ModuleType("module_of_constants")
    module.scale = 2.0  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    return module


def attribute_of_a_module() -> Changed:
    module = make_module()
    return lambda x: x * module.scale, lambda: setattr(module, "scale", 3.0)


def module_in_a_variable() -> Changed:
    module = make_module()

    def f(x: Any) -> Any:
        alias = module
        return x * alias.scale

    return f, lambda: setattr(module, "scale", 3.0)


def one_of_two_modules() -> Changed:
    module, other = make_module(), types.ModuleType("other")
    return lambda x: x * (other if x is None else module).scale, lambda: setattr(module, "scale", 3.0)


def function_of_a_module() -> Changed:
    module = make_module()
    module.apply = lambda x: x * 2.0
    return lambda x: module.apply(x), lambda: setattr(module, "apply", lambda x: x * 3.0)


def function_of_torch(monkeypatch: pytest.MonkeyPatch) -> Changed:
    monkeypatch.setattr(functional, "silu", lambda x: x * 2.0)
    return lambda x: functional.silu(x), lambda: monkeypatch.setattr(functional, "silu", lambda x: x * 3.0)


def constant_of_torch(monkeypatch: pytest.MonkeyPatch) -> Changed:
    monkeypatch.setattr(torch, "inf", 2.0)
    return lambda x: x * torch.inf, lambda: monkeypatch.setattr(torch, "inf", 3.0)


def constant_of_math(monkeypatch: pytest.MonkeyPatch) -> Changed:
    monkeypatch.setattr(math, "tau", 2.0)
    return lambda x: x * math.tau, lambda: monkeypatch.setattr(math, "tau", 3.0)


def function_of_python(monkeypatch: pytest.MonkeyPatch) -> Changed:
    monkeypatch.setattr(builtins, "round", lambda x: x * 2.0)
    return lambda x: round(x), lambda: monkeypatch.setattr(builtins, "round", lambda x: x * 3.0)


def attribute_of_a_tensor_class(monkeypatch: pytest.MonkeyPatch) -> Changed:
    monkeypatch.setattr(torch.Tensor, "scale", 2.0, raising=False)
    return lambda x: x * torch.Tensor.scale, lambda: monkeypatch.setattr(torch.Tensor, "scale", 3.0)  # type: ignore


def import_of_a_module() -> Changed:
    module = make_module()

    def f(x: Any) -> Any:
        import module_of_constants  # type: ignore[import-not-found]

        return x * module_of_constants.scale

    return f, lambda: setattr(module, "scale", 3.0)


def import_from_a_module() -> Changed:
    module = make_module()

    def f(x: Any) -> Any:
        from module_of_constants import scale

        return x * scale

    return f, lambda: setattr(module, "scale", 3.0)


GLOBAL = 2.0


def change_global() -> None:
    global GLOBAL
    GLOBAL = 3.0


def global_variable() -> Changed:
    return lambda x: x * GLOBAL, change_global


def global_by_its_name() -> Changed:
    return lambda x: x * globals()["GLOBAL"], change_global


def global_of_a_helper() -> Changed:
    def helper(x: Any) -> Any:
        return x * GLOBAL

    def f(x: Any) -> Any:
        return helper(x)

    return f, change_global


def globals_of_a_helper() -> Changed:
    def helper() -> None:
        pass

    return lambda x: x * helper.__globals__["GLOBAL"], change_global


def name_of_a_helper() -> Changed:
    def helper() -> None:
        pass

    helper.__name__ = "two"
    return lambda x: x * (2.0 if helper.__name__ == "two" else 3.0), lambda: setattr(helper, "__name__", "three")


def grad_mode() -> Changed:
    return lambda x: x * (2.0 if torch.is_grad_enabled() else 3.0), lambda: torch.set_grad_enabled(False)


def autocast() -> Changed:
    return lambda x: x * (3.0 if torch.is_autocast_enabled("cpu") else 2.0), (
        lambda: torch.set_autocast_enabled("cpu", True)
    )


def default_dtype() -> Changed:
    return lambda x: x * (2.0 if torch.get_default_dtype() == torch.float32 else 3.0), (
        lambda: torch.set_default_dtype(torch.float64)
    )


def number_of_threads() -> Changed:
    count = torch.get_num_threads()
    return lambda x: x * (2.0 if torch.get_num_threads() == count else 3.0), lambda: torch.set_num_threads(count + 1)


CHANGED = (own_attribute, attribute_of_a_helper, attribute_that_is_new, attribute_of_a_function_of_torch)
CHANGED += (code_of_the_function, defaults, keyword_defaults, list_as_default, module_as_default, list_in_closure)
CHANGED += (variable_of_closure, variable_of_an_inner_function, attribute_of_an_object, attribute_of_a_class)
CHANGED += (property_of_an_object, bound_method, bound_method_in_closure, object_that_is_called, method_of_a_dict)
CHANGED += (method_of_a_tensor, context_variable, partial_of_a_list, wrapper_of_a_function_of_torch, wrapped_function)
CHANGED += (remembered_function, attribute_of_a_module, module_in_a_variable, one_of_two_modules, function_of_a_module)
CHANGED += (function_of_torch, constant_of_torch, constant_of_math, function_of_python, attribute_of_a_tensor_class)
CHANGED += (import_of_a_module, import_from_a_module, global_variable, global_by_its_name, global_of_a_helper)
CHANGED += (globals_of_a_helper, name_of_a_helper, grad_mode, autocast, default_dtype, number_of_threads)


@pytest.fixture
def changed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Changed]:
    """A function and a change; afterwards torch's state is as before."""
    threads, make = torch.get_num_threads(), request.param
    monkeypatch.setitem(globals(), "GLOBAL", 2.0)
    yield make(monkeypatch) if make.__code__.co_argcount else make()
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", False)
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)
    vars(functional.silu).pop("scale", None)
    sys.modules.pop("module_of_constants", None)


def filter_by(f: Callable[[Any], Any]) -> torch.Tensor:
    """The recurrence of ``OPERATORS``, one item after the other."""
    h, found = torch.zeros((), dtype=X.dtype), []
    for x in X:
        h = 0.5 * h + f(x)
        found.append(h)
    return torch.stack(found)


SCANS: dict[str, tuple[Callable[[Any], Callable[[], Any]], Callable[[Any], torch.Tensor]]] = {
    "map": (
        lambda f: lambda: scanops.scan((X,), "sum", 0, map=f),
        lambda f: f(X).cumsum(0),
    ),
    "then": (
        lambda f: lambda: scanops.scan(X, "sum", 0, then=lambda y, x: f(y)),
        lambda f: f(X.cumsum(0)),
    ),
    "operator": (
        lambda f: functools.partial(
            scanops.scan, (X,), scanops.operator(fields=("h",), step=lambda s, x: 0.5 * s.h + f(x)), 0
        ),
        filter_by,
    ),
    "associative_scan": (
        lambda f: lambda: associative_scan(lambda a, b: a + b if f(1.0) == 2.0 else torch.maximum(a, b), X, 0),
        lambda f: X.cumsum(0) if f(1.0) == 2.0 else X.cummax(0).values,
    ),
}


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("changed", CHANGED, indirect=True, ids=lambda make: make.__name__)
def test_changes_are_followed(changed: Changed, scan: str, emulated: bool) -> None:
    """The second and the third call, too, compute what the function does now."""
    (make, reference), (function, change) = SCANS[scan], changed
    call = make(function)
    with scanops.emulate() if emulated else torch.enable_grad():
        for _ in range(2):
            torch.testing.assert_close(call(), reference(function))
        change()
        for _ in range(2):
            torch.testing.assert_close(call(), reference(function))


def test_names_of_globals_count() -> None:
    """One code object in two namespaces, in each of which another name is no longer Python's own."""
    code, add = compile("def f(x): return abs(x) + pow(x, 2)", "code", "exec"), lambda x, y=2: x * y
    for spaces in ({"abs": add}, {"pow": add}):
        exec(code, spaces)
        function: Any = spaces["f"]
        torch.testing.assert_close(scanops.scan(X, "sum", 0, map=function), function(X).cumsum(0))


def test_numbers_of_own_classes() -> None:
    """Numbers that print as anything are what they are."""

    class Named(float):
        def __repr__(self) -> str:
            return "a number"

    for start in (Named(0.0), Named(8.0)):
        op = scanops.operator(fields=("h",), step=lambda s, x: 0.5 * s.h + x, start=start)
        wanted = filter_by(lambda x: x) + float(start) * 0.5 ** torch.arange(1, 5)
        torch.testing.assert_close(scanops.scan((X,), op, 0), wanted)


def test_a_change_during_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A global that another thread changes while a function is traced: later calls see either value as it is then."""
    trace = functions.trace_fusion

    def change_and_trace(*given: Any) -> Any:
        change_global()
        return trace(*given)

    function = lambda x: x * GLOBAL - 0.25  # noqa: E731
    monkeypatch.setitem(globals(), "GLOBAL", 2.0)
    monkeypatch.setattr(functions, "trace_fusion", change_and_trace)
    torch.testing.assert_close(scanops.scan((X,), "sum", 0, map=function), function(X).cumsum(0))
    monkeypatch.setattr(functions, "trace_fusion", trace)
    for value in (2.0, 3.0):
        monkeypatch.setitem(globals(), "GLOBAL", value)
        torch.testing.assert_close(scanops.scan((X,), "sum", 0, map=function), function(X).cumsum(0))


def test_modes_of_functions_are_followed() -> None:
    """A mode that replaces a function of torch is asked at every call."""

    class Negate(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, kinds: Any, arguments: Any = (), keywords: Any = None) -> Any:
            found = function(*arguments, **(keywords or {}))
            return -found if function is torch.exp else found

    for _ in range(2):
        plain = scanops.scan((X,), "sum", 0, map=lambda x: torch.exp(x))
        with scanops.emulate(), Negate():  # a kernel calls no function of torch
            negated = scanops.scan((X,), "sum", 0, map=lambda x: torch.exp(x))
        torch.testing.assert_close(plain, X.exp().cumsum(0))
        torch.testing.assert_close(negated, -plain)


# ---- ordinary functions are traced once

SCALE, BOUNDS = 2.0, (-1.0, 1.0)


def helper(x: Any, weight: float = 0.5) -> Any:
    """A function of the module that functions call."""
    return torch.clamp(x, *BOUNDS) * weight


def factorial(n: int) -> int:
    """A function that calls itself."""
    return n * factorial(n - 1) if n > 1 else 1


def polynomial(x: Any, coefficients: tuple[float, ...] = (1.0, 2.0, 3.0)) -> Any:
    """A loop, and code within code."""
    return sum((each * x**power for power, each in enumerate(coefficients)), 0.0)


def softplus_of(x: Any) -> Any:
    """A loop, a branch and a dtype."""
    for _ in range(2):
        x = functional.softplus(x) if SCALE > 1 else x
    return x.to(torch.float32) + torch.finfo(x.dtype).eps


ORDINARY: dict[str, Callable[[], Any]] = {
    "one operation": lambda: lambda x: torch.exp(x),
    "a function of torch": lambda: torch.exp,
    "a python function of torch": lambda: functional.silu,
    "a chain of modules": lambda: lambda x: torch.nn.functional.softplus(x) + torch.pi,
    "methods": lambda: lambda x: x.sigmoid().mul(SCALE) * x.float(),
    "numbers of a closure": lambda: (lambda scale: lambda x: x * scale)(3.0),
    "a function of a closure": lambda: (lambda f: lambda x: f(x))(torch.tanh),
    "a helper": lambda: lambda x: helper(x) + helper(x, 2.0),
    "recursion": lambda: lambda x: x * factorial(3),
    "code within code": lambda: polynomial,
    "loops and branches": lambda: softplus_of,
    "math": lambda: lambda x: x * math.sqrt(math.e),
    "a raise": lambda: lambda x: x if SCALE else ValueError("no scale"),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_functions_are_traced_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is made anew at each call is the same function."""
    key = key_of(ORDINARY[name]())
    assert key is not None and key == key_of(ORDINARY[name]())
    torch.testing.assert_close(scanops.scan((X,), "sum", 0, map=ORDINARY[name]()), ORDINARY[name]()(X).cumsum(0))
    monkeypatch.setattr(functions, "trace_fusion", None)
    torch.testing.assert_close(scanops.scan((X,), "sum", 0, map=ORDINARY[name]()), ORDINARY[name]()(X).cumsum(0))


def test_a_default_device_changes_no_key() -> None:
    """``torch.set_default_device`` is a mode, too, but no function that is traced makes tensors."""
    function = ORDINARY["one operation"]()
    known = key_of(function)
    with torch.device("meta"):
        assert known is not None and key_of(function) == known


# ---- functions of other packages


@pytest.fixture
def hard() -> Iterator[Any]:
    """Operators that somebody else has registered under names of torch's."""
    library = torch.library.Library("scanops_names", "FRAGMENT")
    for name in ("sigmoid", "relu", "where"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: x + 100.0, "CompositeExplicitAutograd")
    library.define("maximum(Tensor a, Tensor b) -> Tensor")
    library.impl("maximum", lambda a, b: torch.where(a.abs() >= b.abs(), a, b), "CompositeExplicitAutograd")
    yield torch.ops.scanops_names
    library._destroy()


@pytest.mark.parametrize("name", ["sigmoid", "relu", "where"])
def test_operators_of_others_are_refused(hard: Any, name: str) -> None:
    """An operator that is called as one of torch is not taken for it; torch's own is, wherever it is found."""
    for operator in (getattr(hard, name), getattr(hard, name).default):
        with pytest.raises(UnsupportedRequest, match=name):
            scanops.scan((X,), "sum", 0, map=lambda x, operator=operator: operator(x))
    for function in (torch.ops.aten.sigmoid, torch.sigmoid, functional.sigmoid):
        found = scanops.scan((X,), "sum", 0, map=lambda x, function=function: function(x))
        torch.testing.assert_close(found, X.sigmoid().cumsum(0))


def test_functions_of_others_combine_as_they_do(hard: Any) -> None:
    """``associative_scan`` knows operators by themselves, not by their names."""

    def maximum(a: Any, b: Any) -> Any:
        return torch.where(torch.abs(a) >= torch.abs(b), a, b)

    assert associative_scan(maximum, X, 0).tolist() == [1.0, -2.0, 3.0, 3.0]
    assert associative_scan(torch.maximum, X, 0).tolist() == [1.0, 1.0, 3.0, 3.0]
    with pytest.raises(UnsupportedRequest, match="maximum"):
        associative_scan(lambda a, b: hard.maximum(a, b), X, 0)


def test_methods_of_tensors_that_others_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that somebody gives torch's tensors is none of torch's; that of traced items stays."""
    for _ in range(2):
        found = scanops.scan((X,), "sum", 0, map=lambda x: x.sigmoid())
        torch.testing.assert_close(found, torch.sigmoid(X).cumsum(0))
        monkeypatch.setattr(torch.Tensor, "sigmoid", lambda x: x + 100.0)
    assert calls.key_of(lambda x: x.sigmoid()) is not None
