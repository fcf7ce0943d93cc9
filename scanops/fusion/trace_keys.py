"""Keys of traced functions: what a function reads, found in its bytecode, as values that are compared.

A key holds what can be proved constant: numbers, strings, dtypes and tuples of them, operations of torch and Python
that depend on their arguments alone, and other functions by the same rule. They are read anew for every key, from
closures, defaults, globals and attributes of modules. Attributes of anything else cannot change then: those of items
follow from the table of operations, those of constants never change. A function whose bytecode reads anything else has
no key.
"""

from __future__ import annotations

import builtins
import dis
import functools
import math
import operator
import struct
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from scanops.fusion.tracing import OPERATION_NAMES
from scanops.requests.torch_state import has_function_modes

TraceKey = tuple[Any, ...]

_CONSTANTS = frozenset((bool, int, str, bytes, type(None), torch.dtype))
_BUILTINS = (
    "abs all any bool complex dict divmod enumerate filter float frozenset int isinstance len list map max min pow "
    "range reversed round set slice sorted str sum tuple zip"
)
# What depends on nothing but its arguments: no state of torch, of a thread or of an object.
_PURE = frozenset(
    (
        *OPERATION_NAMES,
        *(getattr(builtins, name) for name in _BUILTINS.split()),
        *(each for each in vars(builtins).values() if isinstance(each, type) and issubclass(each, BaseException)),
        *(each for module in (math, operator) for each in vars(module).values() if type(each) is BuiltinFunctionType),
        *(functools.reduce, torch.finfo, torch.iinfo, torch.promote_types, pytree.tree_leaves, pytree.tree_unflatten),
    )
)


class _Unproved(Exception):
    """Raised for what may change between calls."""


def key_of(function: Any) -> TraceKey | None:
    """Return a key that is equal as long as all that a function can read is; None where that cannot be proved.

    C++ compares functions with keys: ``runtime/native/source/traced.h``.
    """
    if has_function_modes():  # which may compute something else
        return None
    try:
        return _describe(function, {})
    except (
        _Unproved,
        AttributeError,
        KeyError,
        ValueError,
    ):  # of a missing name, or an empty cell
        return None


def _describe(value: Any, functions: dict[FunctionType, int]) -> TraceKey:
    """Return what a value is: its type first. ``functions``: those that are described already."""
    kind = type(value)
    if kind in _CONSTANTS:
        return kind, value
    if kind is float:
        return kind, struct.pack("d", value)  # tells 0.0 from -0.0, and nan equals itself
    if kind is FunctionType:
        if value.__dict__:  # attributes, that of functools.wraps among them
            raise _Unproved
        if value in _PURE or value in functions:
            return callable, functions.get(value, value)
        functions[value] = len(functions)
        return _describe_function(value, functions)
    if kind is BuiltinFunctionType or kind is type:
        if value not in _PURE:  # such as a bound method of an object, or a function of a state of torch
            raise _Unproved
        return callable, value
    if kind is tuple:
        return kind, tuple([_describe(each, functions) for each in value])
    if isinstance(value, pytree.TreeSpec):  # the structure of a tree of tensors, which never changes
        return pytree.TreeSpec, value
    raise _Unproved


def _describe_function(function: FunctionType, functions: dict[FunctionType, int]) -> TraceKey:
    code = function.__code__
    reads = _reads_of(code)
    if reads is None:
        raise _Unproved
    keywords = function.__kwdefaults__ and tuple(function.__kwdefaults__.items())
    found: list[Any] = [FunctionType, code, _describe(function.__defaults__, functions)]
    spaces = function.__globals__
    for name, cell, attributes in reads:
        if cell is not None:
            value = function.__closure__[cell].cell_contents  # type: ignore[index]
        elif name in spaces:
            value = spaces[name]
        else:
            value = cast(Any, function).__builtins__[name]  # which mypy knows or not, as its cache is
        for attribute in attributes:
            if isinstance(value, ModuleType):
                value = getattr(value, attribute)
        found.append((name, cell, attributes, _describe(value, functions)))
    return (*found, _describe(keywords, functions)) if keywords else tuple(found)


Read = tuple[str, int | None, tuple[str, ...]]  # a name, its cell of the closure if it is no global, and attributes
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_CELLS = ("LOAD_DEREF", "LOAD_CLOSURE", "MAKE_CELL")


@functools.lru_cache(maxsize=1024)
def _reads_of(code: CodeType) -> tuple[Read, ...] | None:
    """Return what code reads from outside, with the attributes that are read of each at once; None: it may be more.

    An instruction without a name works on arguments, constants, and what was made of them.
    """
    reads: list[Read] = []
    is_chained = False  # what the next instruction works on is the last of these
    for each in dis.get_instructions(code):
        name, is_chained = each.opname, is_chained and not each.is_jump_target
        if name == "EXTENDED_ARG":
            continue
        if name in _ATTRIBUTES:
            if each.argval.startswith("_") or each.argval == "gi_frame":  # ways from a value to what made it
                return None
            if is_chained:
                root, cell, attributes = reads[-1]
                reads[-1] = (root, cell, (*attributes, each.argval))
            continue
        is_chained = name == "LOAD_GLOBAL" or (name == "LOAD_DEREF" and each.argval in code.co_freevars)
        if is_chained:
            cell = None if name == "LOAD_GLOBAL" else code.co_freevars.index(each.argval)
            reads.append((each.argval, cell, ()))
        elif name == "STORE_DEREF" and each.argval in code.co_cellvars:  # a variable of this call
            continue
        elif each.opcode in dis.hasname or (each.opcode in dis.hasfree and name not in _CELLS):
            return None  # imports, names of a class, and stores to what outlives the call
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found = _reads_of(inner)
            if found is None:
                return None
            for root, cell, attributes in found:
                if cell is None:
                    reads.append((root, None, attributes))
                elif root in code.co_freevars:  # any other is a variable of this code
                    reads.append((root, code.co_freevars.index(root), attributes))
    return tuple(dict.fromkeys(reads))
