"""The items that functions are traced with: each operation on them is recorded as a node of a ``Graph``.

The dtype of a node is the one that torch gives the same operation on tensors of the ``meta`` device. What is no
operation of the table below raises UnsupportedRequest, which names the operation and the line of the function.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from scanops.codegen.dtypes import dtype_named
from scanops.codegen.fusion.graph import COMPARISONS, OPERATIONS, Graph, Term, is_float, wide
from scanops.errors import UnsupportedRequest, did_you_mean, format_value
from scanops.torch_private import at_tracing

_FOLDERS = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))
_EXACT_SOFTPLUS = 17.0  # above it log(1 + exp(x)) rounds to x in float32


# ---- operations: (graph, dtype of the result, arguments as torch names them)


def _plain(name: str) -> Callable[..., Term]:
    return lambda graph, to, *terms: graph.apply(name, to, *terms)


def _scale(name: str) -> Callable[..., Term]:
    def compute(graph: Graph, to: str, input: Any, other: Any, *, alpha: float = 1) -> Term:
        return graph.apply(name, to, input, other if alpha == 1 else graph.apply("mul", to, other, alpha))

    return compute


def _comparison(name: str) -> Callable[..., Term]:
    def compute(graph: Graph, to: str, input: Any, other: Any) -> Term:
        if not isinstance(input, Term):
            mirrored = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
            return _comparison(mirrored.get(name, name))(graph, to, other, input)
        if not isinstance(other, Term | bool) and not is_float(
            input.dtype
        ):  # torch compares in the dtype that the number asks for
            input = input.cast("float32") if isinstance(other, float) else input
            input = input.cast("int64") if input.dtype == "bool" else input
        found: Term = input.compare(name, other)
        return found

    return compute


def _logical(name: str) -> Callable[..., Term]:
    def compute(graph: Graph, to: str, *terms: Term) -> Term:
        return graph.apply(name, "bool", *(each.cast("bool") for each in terms))

    return compute


def _where(graph: Graph, to: str, condition: Term, input: Any, other: Any) -> Term:
    return condition.select(graph.term(input, to), graph.term(other, to))


def _clamp(graph: Graph, to: str, input: Term, min: Any = None, max: Any = None) -> Term:
    for name, bound in (("maximum", min), ("minimum", max)):
        if isinstance(bound, Term):
            input = graph.apply(name, to, input, bound)
        elif bound is not None:
            input, limit = graph.term(input, to), graph.term(bound, to)
            input = input.compare("lt" if name == "maximum" else "gt", limit).select(limit, input)
    return input


def _softplus(graph: Graph, to: str, input: Term, beta: float = 1, threshold: float = 20) -> Term:
    x = graph.term(input, to)
    scaled = x if beta == 1 else x * float(beta)
    y = scaled.apply("softplus")
    y = y if beta == 1 else y / float(beta)
    exact = x.dtype == "float32" and threshold >= _EXACT_SOFTPLUS
    return y if exact else scaled.compare("gt", float(threshold)).select(x, y)


def _pow(graph: Graph, to: str, input: Any, exponent: Any) -> Term:
    base = graph.term(input, to)
    if isinstance(exponent, int | float) and exponent in (1, 2, 3):
        return {1: base, 2: base.apply("mul", base), 3: base.apply("mul", base).apply("mul", base)}[int(exponent)]
    if not is_float(base.dtype):
        raise _Unsupported("pow of integers with an exponent other than 1, 2 and 3")
    return base.apply("sqrt") if exponent == 0.5 else graph.apply("pow", to, base, exponent)


def _div(graph: Graph, to: str, input: Any, other: Any, *, rounding_mode: str | None = None) -> Term:
    if rounding_mode == "floor":
        return _of_floats("floor_divide")(graph, to, input, other)
    if rounding_mode not in (None, "trunc") or not is_float(wide(to)):
        raise _Unsupported(f"div with rounding_mode={rounding_mode!r}, of dtype {to}")
    found = graph.apply("div", to, input, other)
    return found if rounding_mode is None else found.apply("trunc")


def _of_floats(name: str) -> Callable[..., Term]:
    def compute(graph: Graph, to: str, input: Any, other: Any) -> Term:
        if not is_float(wide(to)):  # whose division by 0 ends a program
            raise _Unsupported(f"{name} of dtype {to}")
        return graph.apply(name, to, input, other)

    return compute


def _of_bits(name: str) -> Callable[..., Term]:
    def compute(graph: Graph, to: str, *terms: Any) -> Term:
        if is_float(wide(to)):
            raise _Unsupported(f"bitwise_{name} of dtype {to}")
        return graph.apply(name, to, *terms)

    return compute


def _to(graph: Graph, to: str, input: Term, other: Any) -> Term:
    if not dtype_named(to).stored:
        raise _Unsupported(f"a conversion to {to}, which kernels read and never round to")
    return input.cast(to)


def _relu(graph: Graph, to: str, input: Term) -> Term:
    x = graph.term(input, to)
    return x.compare("le", 0).select(0, x)


def _round(name: str) -> Callable[..., Term]:
    return lambda graph, to, input: graph.apply(name, to, input) if is_float(input.dtype) else input


_OF: dict[str, Callable[..., Term]] = {  # by the name of torch's function, and of the method
    **{name: _plain(name) for name in OPERATIONS - {"and", "or", "xor", "not"}},  # which torch names otherwise
    **{name: _comparison(name) for name in COMPARISONS},
    **{"add": _scale("add"), "sub": _scale("sub"), "where": _where, "clamp": _clamp, "softplus": _softplus},
    **{"pow": _pow, "div": _div, "relu": _relu, "clip": _clamp, "true_divide": _div, "negative": _plain("neg")},
    **{"multiply": _plain("mul"), "divide": _div, "subtract": _scale("sub"), "absolute": _plain("abs")},
    **{f"bitwise_{name}": _of_bits(name) for name in ("and", "or", "xor", "not")},
    **{f"logical_{name}": _logical(name) for name in ("and", "or", "xor", "not")},
    "rsub": lambda graph, to, input, other: graph.apply("sub", to, other, input),
    "square": lambda graph, to, input: _pow(graph, to, input, 2),
    "reciprocal": lambda graph, to, input: graph.apply("div", to, 1, input),
    "silu": lambda graph, to, input: graph.term(input, to) * graph.term(input, to).apply("sigmoid"),
    "log_sigmoid": lambda graph, to, input: -((-graph.term(input, to)).apply("softplus")),
    "clamp_min": lambda graph, to, input, min: _clamp(graph, to, input, min=min),
    "clamp_max": lambda graph, to, input, max: _clamp(graph, to, input, max=max),
    "masked_fill": lambda graph, to, input, mask, value: _where(graph, to, mask, value, input),
    "isnan": lambda graph, to, input: input.compare("ne", input),
    "max": lambda graph, to, input, other: graph.apply("maximum", to, input, other),
    "min": lambda graph, to, input, other: graph.apply("minimum", to, input, other),
    **{"to": _to, "type_as": _to, "fix": _round("trunc"), "floor": _round("floor"), "trunc": _round("trunc")},
    **{name: _of_floats(name) for name in ("fmod", "remainder", "floor_divide")},
}
_CASTS = {
    **{"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16},
    **{"int": torch.int32, "long": torch.int64, "bool": torch.bool, "short": torch.int16},
}
FUNCTIONS = tuple(sorted({*_OF, *_CASTS} - {"rsub"}))  # for messages and docs
_METHODS = {name: getattr(torch.Tensor, name) for name in _OF if hasattr(torch.Tensor, name)}
_SYMBOLS = {  # those of Python's operators that torch names otherwise
    **{"and_": "bitwise_and", "or_": "bitwise_or", "xor": "bitwise_xor", "invert": "bitwise_not"},
    **{"truediv": "div", "floordiv": "floor_divide", "mod": "remainder"},
}
# Names by the objects themselves: a function of somebody else may have the name of one of torch.
OPERATION_NAMES: dict[Any, str] = {
    **{getattr(place, name): name for place in (torch, functional) for name in _OF if hasattr(place, name)},
    **{function: name for name, function in _METHODS.items()},
    **{getattr(operator, name): name for name in _OF if hasattr(operator, name)},
    **{getattr(operator, symbol): name for symbol, name in _SYMBOLS.items()},
    functional.logsigmoid: "log_sigmoid",
}


class _Unsupported(Exception):
    """What is not supported, in words."""


@at_tracing
def _line() -> str:
    """Where the user's function is being traced: "line 3 of model.py"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_FOLDERS):
        frame = frame.f_back
    return f"line {frame.f_lineno} of {frame.f_code.co_filename}"


def make_refusal(what: str, allowed: str, hint: str) -> UnsupportedRequest:
    """Return the error for an operation that no kernel computes, with its line."""
    return UnsupportedRequest(
        f"scan: no kernel computes this expression: {what}", allowed=allowed, value=_line(), hint=hint
    )


class Traced:
    """An item of a tensor, or what a function has made of items so far."""

    __slots__ = ("_meta", "_term")

    def __init__(self, term: Term, meta: torch.Tensor) -> None:
        self._term, self._meta = term, meta

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that torch gives it."""
        return self._meta.dtype

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Traced:
        return cls._apply(function, arguments, keywords or {})

    @staticmethod
    def _apply(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Traced:
        return apply_operation(function, arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python and Dynamo look for
            raise AttributeError(name)
        if name in _CASTS:
            return lambda: self.to(_CASTS[name])
        if name not in _METHODS:
            raise _unknown(name)
        return lambda *arguments, **keywords: self._apply(_METHODS[name], (self, *arguments), keywords)

    def to(self, dtype: torch.dtype | Traced, *others: Any, **keywords: Any) -> Traced:
        """Convert to a dtype: what is then computed is rounded to it."""
        if not isinstance(dtype, torch.dtype | Traced) or others or keywords:
            raise make_refusal(f"to({format_value(dtype)})", "x.to(dtype)", "pass a torch.dtype alone")
        return self._apply(_METHODS["to"], (self, dtype), {})

    type = to

    def __bool__(self) -> bool:
        raise make_refusal(
            "a branch that depends on values of tensors",
            "expressions that are the same for all items",
            "write torch.where(condition, a, b)",
        )

    def _refuse(self, *_: object) -> Any:
        raise make_refusal(
            "indices, lengths and iteration: an expression sees one item of each tensor",
            "pointwise operations",
            "index, expand or reshape tensors before the call; views are not copied",
        )

    __len__ = __iter__ = __getitem__ = __setitem__ = __float__ = __int__ = __index__ = _refuse


def _method(name: str, mirrored: bool = False) -> Callable[..., Traced]:
    function = getattr(operator, f"{name}_" if name in ("and", "or") else name)

    def method(self: Traced, *others: Any) -> Traced:
        return self._apply(function, (*others, self) if mirrored else (self, *others), {})

    return method


for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and",
    "or",
    "xor",
    "matmul",
    "lshift",
    "rshift",
):
    setattr(Traced, f"__{_name}__", _method(_name))
    setattr(Traced, f"__r{_name}__", _method(_name, mirrored=True))
for _name in (*COMPARISONS, "neg", "abs", "invert"):
    setattr(Traced, f"__{_name}__", _method(_name))
Traced.__hash__ = object.__hash__  # type: ignore[method-assign]


def _unknown(name: str) -> UnsupportedRequest:
    return make_refusal(f"{name} is not supported", ", ".join(FUNCTIONS), _near(name) + "compute it before the call")


@at_tracing
def _near(name: str) -> str:
    return did_you_mean(name, FUNCTIONS, similarity=0.75)  # sum is not sub, nor argsort short


def make_capture_error() -> UnsupportedRequest:
    """Return the error for a tensor of the function's own."""
    hint = "pass it as one more tensor of the call: a number for each item, each line or all"
    return make_refusal("a tensor that is not an argument of the function", "arguments, and Python numbers", hint)


def _name_of(function: Any) -> str:
    """Return the name of a function of torch or Python that is an operation. Raises UnsupportedRequest for any other.

    The packets of operators in ``torch.ops.aten``, which makes them when they are asked for, are those of torch.
    """
    found = OPERATION_NAMES.get(function)
    if found is None:
        found = getattr(function, "__name__", None) or str(function)
        if found not in _OF:
            raise _unknown(found)
        if function is not getattr(torch.ops.aten, found, None):
            raise make_refusal(
                f"{format_value(function)} is not torch's {found}",
                f"torch.{found} and other functions of torch",
                "call torch's function, or compute it before the call",
            )
    return found


def apply_operation(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Traced:
    """Record an operation on traced items and numbers."""
    keywords = {key: value for key, value in keywords.items() if not (key == "inplace" and value is False)}
    name = _name_of(function)
    compute = _OF[name]
    graph = next(each._term.graph for each in (*arguments, *keywords.values()) if isinstance(each, Traced))

    def of(value: Any, attribute: str) -> Any:
        if isinstance(value, Traced):
            return getattr(value, attribute)
        if isinstance(value, bool | int | float | str | None | torch.dtype):
            return value
        if isinstance(value, torch.Tensor):
            raise make_capture_error()
        raise make_refusal(
            f"an argument {format_value(value)} of {name}", "tensors and Python numbers", "convert it to a float"
        )

    try:
        metas = [of(each, "_meta") for each in arguments]
        meta = function(*metas, **{key: of(each, "_meta") for key, each in keywords.items()})
        if not isinstance(meta, torch.Tensor):  # as the maximum along a dimension
            raise _unknown(name)
        given = [of(each, "_term") for each in arguments]
        dtype = dtype_named(meta.dtype).name
        return Traced(compute(graph, dtype, *given, **{key: of(each, "_term") for key, each in keywords.items()}), meta)
    except _Unsupported as problem:
        raise make_refusal(str(problem), "see docs/fusion.md", "compute it before the call") from None
    except UnsupportedRequest:
        raise
    except (TypeError, RuntimeError, ValueError, IndexError, OverflowError) as problem:
        hint = "write it as a call of torch on tensors and numbers"
        raise make_refusal(f"{name}: {problem}", "arguments that torch takes", hint) from problem
