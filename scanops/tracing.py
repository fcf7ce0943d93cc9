"""Trace Python functions of tensors to expressions, without running them on tensors.

A function is called with a ``Traced`` for each tensor. Each operation on these is recorded as a node of a ``Graph``;
its dtype is the one that torch gives the same operation on tensors of the ``meta`` device. Traces are cached by what a
function can see: its code, and the constants of its closure, its defaults and its globals. A function that sees
anything else, such as an object with attributes, is traced at every call.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from scanops.codegen.dtypes import default_result, dtype_named
from scanops.codegen.operators import Operator
from scanops.errors import UnsupportedRequest, did_you_mean, shown
from scanops.expressions import (
    COMPARISONS,
    MOST_OUTPUTS,
    OPERATIONS,
    Fusion,
    Graph,
    Operand,
    Output,
    Term,
    fusion_of,
    is_float,
    wide,
)

Kinds = tuple[tuple[torch.dtype, bool], ...]  # dtype of each tensor, and whether it has no dimension
_FOLDERS = (str(Path(__file__).parent), str(Path(torch.__file__).parent))
_EXACT_SOFTPLUS = 17.0  # above it log(1 + exp(x)) rounds to x in float32


# ---- operations: (graph, dtype of the result, arguments as torch names them)


def _float(graph: Graph, dtype: str, x: Term | float) -> Term:
    """A number as a term, and a term in the dtype it is computed in."""
    return x.cast(wide(dtype)) if isinstance(x, Term) else graph.number(x, wide(dtype))


def _plain(name: str) -> Callable[..., Term]:
    return lambda graph, to, *terms: graph.apply(name, to, *terms)


def _scaled(name: str) -> Callable[..., Term]:
    def compute(graph: Graph, to: str, input: Any, other: Any, *, alpha: float = 1) -> Term:
        return graph.apply(name, to, input, other if alpha == 1 else graph.apply("mul", to, other, alpha))

    return compute


def _comparison(name: str) -> Callable[..., Term]:
    def compute(graph: Graph, to: str, input: Any, other: Any) -> Term:
        if not isinstance(input, Term):
            mirrored = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
            return _comparison(mirrored.get(name, name))(graph, to, other, input)
        if not isinstance(other, Term | bool) and not is_float(input.dtype):  # a number of another kind
            input = input.cast("float32") if isinstance(other, float) else input
            input = input.cast("int64") if input.dtype == "bool" else input
        return input.compare(name, other)

    return compute


def _logical(name: str) -> Callable[..., Term]:
    def compute(graph: Graph, to: str, *terms: Term) -> Term:
        return graph.apply(name, "bool", *(each.cast("bool") for each in terms))

    return compute


def _where(graph: Graph, to: str, condition: Term, input: Any, other: Any) -> Term:
    yes, no = (_float(graph, to, each) for each in (input, other))
    return condition.select(yes, no)


def _clamp(graph: Graph, to: str, input: Term, min: Any = None, max: Any = None) -> Term:
    for name, bound in (("maximum", min), ("minimum", max)):
        if isinstance(bound, Term):
            input = graph.apply(name, to, input, bound)
        elif bound is not None:
            input, limit = _float(graph, to, input), _float(graph, to, bound)
            input = input.compare("lt" if name == "maximum" else "gt", limit).select(limit, input)
    return input


def _softplus(graph: Graph, to: str, input: Term, beta: float = 1, threshold: float = 20) -> Term:
    x = _float(graph, to, input)
    scaled = x if beta == 1 else x * float(beta)
    y = scaled.apply("softplus")
    y = y if beta == 1 else y / float(beta)
    exact = x.dtype == "float32" and threshold >= _EXACT_SOFTPLUS
    return y if exact else scaled.compare("gt", float(threshold)).select(x, y)


def _pow(graph: Graph, to: str, input: Any, exponent: Any) -> Term:
    base = _float(graph, to, input)
    if isinstance(exponent, int | float) and exponent in (1, 2, 3):
        return {1: base, 2: base.apply("mul", base), 3: base.apply("mul", base).apply("mul", base)}[int(exponent)]
    if not is_float(base.dtype):
        raise _Unsupported("pow of integers with an exponent other than 1, 2 and 3")
    return base.apply("sqrt") if exponent == 0.5 else graph.apply("pow", to, base, exponent)


def _div(graph: Graph, to: str, input: Any, other: Any, *, rounding_mode: str | None = None) -> Term:
    if rounding_mode not in (None, "floor") or not is_float(wide(to)):
        raise _Unsupported(f"div with rounding_mode={rounding_mode!r}, of dtype {to}")
    found = graph.apply("div", to, input, other)
    return found if rounding_mode is None else found.apply("floor")


def _relu(graph: Graph, to: str, input: Term) -> Term:
    x = _float(graph, to, input)
    return x.compare("le", 0).select(0, x)


_OF: dict[str, Callable[..., Term]] = {  # by the name of torch's function, and of the method
    **{name: _plain(name) for name in OPERATIONS - COMPARISONS.keys() - {"softplus", "pow", "div", "where"}},
    **{name: _comparison(name) for name in COMPARISONS},
    **{"add": _scaled("add"), "sub": _scaled("sub"), "where": _where, "clamp": _clamp, "softplus": _softplus},
    **{"pow": _pow, "div": _div, "relu": _relu, "clip": _clamp, "true_divide": _div, "negative": _plain("neg")},
    **{"multiply": _plain("mul"), "divide": _div, "subtract": _scaled("sub"), "absolute": _plain("abs")},
    **{f"bitwise_{name}": _plain(name) for name in ("and", "or", "xor", "not")},
    **{f"logical_{name}": _logical(name) for name in ("and", "or", "xor", "not")},
    "rsub": lambda graph, to, input, other: graph.apply("sub", to, other, input),
    "square": lambda graph, to, input: _pow(graph, to, input, 2),
    "reciprocal": lambda graph, to, input: graph.apply("div", to, 1, input),
    "silu": lambda graph, to, input: _float(graph, to, input) * _float(graph, to, input).apply("sigmoid"),
    "log_sigmoid": lambda graph, to, input: -((-_float(graph, to, input)).apply("softplus")),
    "clamp_min": lambda graph, to, input, min: _clamp(graph, to, input, min=min),
    "clamp_max": lambda graph, to, input, max: _clamp(graph, to, input, max=max),
    "masked_fill": lambda graph, to, input, mask, value: _where(graph, to, mask, value, input),
    "isnan": lambda graph, to, input: input.compare("ne", input),
    "floor": lambda graph, to, input: graph.apply("floor", to, input) if is_float(input.dtype) else input,
}
for _unsafe in ("not", "and", "or", "xor"):  # no function of torch has these names
    del _OF[_unsafe]
_CASTS = {
    **{"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16},
    **{"int": torch.int32, "long": torch.int64, "bool": torch.bool, "short": torch.int16},
}
FUNCTIONS = tuple(sorted({*_OF, *_CASTS, "to", "type_as"} - {"rsub"}))  # for messages and docs


class _Unsupported(Exception):
    """What is not supported, in words."""


def _line() -> str:
    """Where the user's function is being traced: "line 3 of model.py"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_FOLDERS):
        frame = frame.f_back
    return f"line {frame.f_lineno} of {frame.f_code.co_filename}"


def _refused(what: str, allowed: str, hint: str) -> UnsupportedRequest:
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
        return _applied(function.__name__, function, arguments, keywords or {})

    def __getattr__(self, name: str) -> Any:
        if name in _CASTS:
            return lambda: self.to(_CASTS[name])
        if name not in _OF:
            raise _unknown(name)
        return lambda *arguments, **keywords: _applied(name, getattr(torch.Tensor, name), (self, *arguments), keywords)

    def to(self, dtype: torch.dtype | Traced, *others: Any, **keywords: Any) -> Traced:
        """Convert to a dtype: what is then computed is rounded to it."""
        to = dtype.dtype if isinstance(dtype, Traced) else dtype
        if not isinstance(to, torch.dtype) or others or keywords:
            raise _refused(f"to({shown(dtype)})", "x.to(dtype)", "pass a torch.dtype alone")
        name = dtype_named(to).name
        return Traced(self._term.cast(name), self._meta.to(to))

    type_as = type = to

    def __bool__(self) -> bool:
        raise _refused(
            "a branch that depends on values of tensors",
            "expressions that are the same for all items",
            "write torch.where(condition, a, b)",
        )

    def _refuse(self, *_: object) -> Any:
        raise _refused(
            "indices, lengths and iteration: an expression sees one item of each tensor",
            "pointwise operations",
            "index, expand or reshape tensors before the call; views are not copied",
        )

    __len__ = __iter__ = __getitem__ = __setitem__ = __float__ = __int__ = __index__ = _refuse


def _operator(name: str, function: Callable[..., Any], mirrored: bool = False) -> Callable[..., Traced]:
    def method(self: Traced, *others: Any) -> Traced:
        return _applied(name, function, (*others, self) if mirrored else (self, *others), {})

    return method


for _name in ("add", "sub", "mul", "truediv", "pow", "and", "or", "xor"):
    _function = getattr(operator, f"{_name}_" if _name in ("and", "or") else _name)
    _torch_name = {"truediv": "div", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}.get(_name, _name)
    setattr(Traced, f"__{_name}__", _operator(_torch_name, _function))
    setattr(Traced, f"__r{_name}__", _operator(_torch_name, _function, mirrored=True))
for _name in COMPARISONS:
    setattr(Traced, f"__{_name}__", _operator(_name, getattr(operator, _name)))
for _name, _torch_name in (("neg", "neg"), ("abs", "abs"), ("invert", "bitwise_not")):
    setattr(Traced, f"__{_name}__", _operator(_torch_name, getattr(operator, _name)))
for _name in ("floordiv", "mod", "matmul", "lshift", "rshift"):
    setattr(Traced, f"__{_name}__", lambda self, other, name=_name: _applied(name, None, (self, other), {}))
    setattr(Traced, f"__r{_name}__", lambda self, other, name=_name: _applied(name, None, (self, other), {}))
Traced.__hash__ = object.__hash__  # type: ignore[method-assign]


def _unknown(name: str) -> UnsupportedRequest:
    known = [each for each in FUNCTIONS if not each.startswith("_")]
    return _refused(
        f"{name} is not supported", ", ".join(known), did_you_mean(name, known) + "compute it before the call"
    )


def _applied(name: str, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Traced:
    """Record an operation on traced items and numbers."""
    keywords = {key: value for key, value in keywords.items() if not (key == "inplace" and value is False)}
    compute = _OF.get(name)
    if compute is None:
        raise _unknown(name)
    graph = next(each._term.graph for each in (*arguments, *keywords.values()) if isinstance(each, Traced))

    def of(value: Any, attribute: str) -> Any:
        if isinstance(value, Traced):
            return getattr(value, attribute)
        if isinstance(value, bool | int | float | str | None):
            return value
        if isinstance(value, torch.Tensor):
            hint = "pass it as one more tensor of the call: a number for each item, each line or all"
            raise _refused("a tensor that is not an argument of the function", "arguments, and Python numbers", hint)
        raise _refused(f"an argument {shown(value)} of {name}", "tensors and Python numbers", "convert it to a float")

    try:
        metas = [of(each, "_meta") for each in arguments]
        meta = function(*metas, **{key: of(each, "_meta") for key, each in keywords.items()})
        given = [of(each, "_term") for each in arguments]
        dtype = dtype_named(meta.dtype).name
        return Traced(compute(graph, dtype, *given, **{key: of(each, "_term") for key, each in keywords.items()}), meta)
    except _Unsupported as problem:
        raise _refused(str(problem), "see docs/fusion.md", "compute it before the call") from None
    except UnsupportedRequest:
        raise
    except (TypeError, RuntimeError, ValueError, IndexError) as problem:
        hint = "write it as a call of torch on tensors and numbers"
        raise _refused(f"{name}: {problem}", "arguments that torch takes", hint) from problem


# ---- what a function can see

_NAMES: dict[CodeType, tuple[str, ...]] = {}  # code -> the names that it may look up among globals
_CONSTANTS = (bool, int, str, bytes, type(None), torch.dtype)


class _Unseen(Exception):
    """Raised for what has no key: it may change between calls."""


def key_of(function: Any) -> tuple[Any, ...] | None:
    """Return a key that is equal as long as all that a function can see is; None where that cannot be told."""
    try:
        return tuple(_seen(function, ()))
    except (_Unseen, ValueError):  # the latter: an empty cell of a closure
        return None


def _seen(value: Any, within: tuple[Any, ...]) -> list[Any]:
    kind = type(value)
    if kind in _CONSTANTS:
        return [kind, value]
    if kind is float:
        return [kind, value.hex()]  # tells 0.0 from -0.0, and nan equals itself
    if kind is tuple:
        return [kind, len(value), *(part for each in value for part in _seen(each, within))]
    if kind is ModuleType:
        if value is math or value.__name__.partition(".")[0] == "torch":
            return [value.__name__]
        raise _Unseen
    if kind is not FunctionType:
        if (kind is BuiltinFunctionType or kind is type(torch.where)) and callable(value):
            return [value]
        raise _Unseen
    if (value.__module__ or "").partition(".")[0] == "torch" or value in within:
        return [value]
    found: list[Any] = [value.__code__]
    for each in (value.__defaults__, *(value.__kwdefaults__ or {}).items()):
        found += _seen(each, within)
    for cell in value.__closure__ or ():
        found += _seen(cell.cell_contents, (*within, value))
    for name in _names(value.__code__):
        if name in value.__globals__:
            found += _seen(value.__globals__[name], (*within, value))
    return found


def _names(code: CodeType) -> tuple[str, ...]:
    names = _NAMES.get(code)
    if names is None:
        inner = (each for each in code.co_consts if isinstance(each, CodeType))
        names = tuple(dict.fromkeys([*code.co_names, *(name for each in inner for name in _names(each))]))
        if len(_NAMES) >= _MOST:
            _NAMES.clear()
        _NAMES[code] = names
    return names


# ---- traces

_MOST = 1024
_TRACES: dict[tuple[Any, ...], Fusion] = {}


def traced(
    map: Callable[..., Any] | None,
    then: Callable[..., Any] | None,
    row: Operator,
    kinds: Kinds,
    masked: bool,
    dtype: torch.dtype | None,
    keys: tuple[Any, ...] | None,
) -> Fusion:
    """Return the fusion of a scan by ``row`` of what ``map`` makes of tensors of these kinds, given to ``then``.

    ``masked``: the last of the tensors is a mask, which neither function sees. ``dtype``: of the scan. ``keys``: those
    of the functions; None: they are traced again. Raises UnsupportedRequest, which names the operation and its line.
    """
    key = None if keys is None else (*keys, row.handle, kinds, masked, dtype)
    found = None if key is None else _TRACES.get(key)
    if found is None:
        found = fusion_of(_traced(map, then, row, kinds, masked, dtype).text)
        if key is not None:
            if len(_TRACES) >= _MOST:
                _TRACES.clear()
            _TRACES[key] = found
    return found


def _traced(map: Any, then: Any, row: Operator, kinds: Kinds, masked: bool, dtype: torch.dtype | None) -> Fusion:
    graph = Graph()
    names = [dtype_named(each).name for each, _ in kinds]
    metas = [torch.empty(() if single else (1,), dtype=each, device="meta") for each, single in kinds]
    items = [
        Traced(graph.operand(place, name), meta) for place, (name, meta) in enumerate(zip(names, metas, strict=True))
    ]
    seen, mask = (items[:-1], items[-1]._term) if masked else (items, None)
    made = _values("map", map, seen, graph) if map else seen[:2] if row.gated else seen[:1]
    if len(made) != 1 + row.gated:
        what = "a pair of a gate and a value" if row.gated else "one value"
        raise _miscounted("map" if map else "x", f"{what} for {row.name!r}", len(made))
    gate, element = made if row.gated else (None, made[0])
    term = element.dtype if gate is None else torch.promote_types(element.dtype, gate.dtype)
    scanned = dtype_named(dtype or default_result(row.gives, dtype_named(term)).name)
    terms = [None if each is None else each._term.cast(wide(scanned.name)) for each in (element, gate)]
    if mask is not None:
        starts = [number if isinstance(number, int | float) else 0 for number in [row.start_of(scanned), 1]]
        terms = [None if each is None else mask.select(each, start) for each, start in zip(terms, starts, strict=True)]
    result = Traced(
        graph.add("result", wide(scanned.name)), torch.empty(1, dtype=getattr(torch, scanned.name), device="meta")
    )
    outputs = _values("then", then, [result, *seen], graph) if then else [result]
    if not 1 <= len(outputs) <= MOST_OUTPUTS:
        raise _miscounted("then", f"1 to {MOST_OUTPUTS} values", len(outputs))
    stored = [dtype_named(each.dtype).name for each in outputs]
    last = [each._term.cast(wide(name)) for each, name in zip(outputs, stored, strict=True)]
    assert terms[0] is not None
    return Fusion(
        nodes=tuple(graph.nodes),
        operands=tuple(Operand(name) for name in names),
        element=terms[0].at,
        gate=None if terms[1] is None else terms[1].at,
        scanned=scanned.name,
        outputs=tuple(Output(each.at, name) for each, name in zip(last, stored, strict=True)),
    )


def _values(role: str, function: Any, given: Sequence[Traced], graph: Graph) -> list[Traced]:
    """What a function returns for traced items."""
    try:
        found = function(*given)
    except TypeError as problem:
        if problem.__traceback__ is None or problem.__traceback__.tb_next is not None:
            raise
        raise UnsupportedRequest(
            f"scan: {role} does not take {len(given)} arguments",
            allowed="a function of the tensors" + (", after the result of the scan" if role == "then" else ""),
            value=str(problem),
            hint=f"give {role} a parameter for each tensor" + (", and a first one" if role == "then" else ""),
        ) from None
    values = list(found) if isinstance(found, tuple | list) else [found]
    for place, each in enumerate(values):
        if isinstance(each, bool | int | float):
            dtype = torch.get_default_dtype() if isinstance(each, float) else torch.int64
            number = graph.number(each, dtype_named(dtype).name)
            values[place] = Traced(number, torch.empty((), dtype=dtype, device="meta"))
        elif not isinstance(each, Traced):
            raise UnsupportedRequest(
                f"scan: {role} must return values made of its arguments",
                allowed="a value, or a tuple of them",
                value=shown(each),
                hint=f"return what torch's operations give for the arguments of {role}",
            )
    return values


def _miscounted(role: str, wanted: str, count: int) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"scan: {role} must give {wanted}", allowed=wanted, value=f"{count} values", hint=f"change what {role} gives"
    )
