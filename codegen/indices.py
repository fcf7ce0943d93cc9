"""Whether a spec computes indices exactly: a check of operators whose lift reads ``i``, the index along the line.

Three mistakes would give wrong results silently, and are refused instead. Elements converted to an integer output dtype
before they are compared; an index kept in a field of the accumulator's type, where float32 is exact only up to 2^24;
and an index written to an output dtype that cannot hold it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scanops.codegen.dtypes import DType, accumulator_of
from scanops.codegen.operator import Operator
from scanops.errors import UnsupportedRequest

if TYPE_CHECKING:
    from scanops.codegen.spec import ScanSpec

__all__ = ["check_indices", "index_fields"]

EXACT = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24, "complex64": 2**24}  # else at least 2^53 or ``highest``
CAST = r"(?:(?:\(\s*[A-Za-z_][\w ]*\)|static_cast\s*<[^>]*>|Value|\()\s*)*"  # casts and opening brackets
# i itself as the value of an expression: alone, cast, in brackets, or as a branch of a conditional.
YIELDS_INDEX = re.compile(rf"(?:^|[?:])\s*{CAST}i[\s)]*(?:$|:)")


def index_fields(operator: Operator) -> tuple[str, ...]:
    """The state fields that hold an index: declared as one, or lifted from ``i`` itself."""
    rows = zip(operator.fields, operator.field_types, operator.lift, strict=True)
    return tuple(name for name, kind, text in rows if kind == "index" or YIELDS_INDEX.search(text))


def check_indices(spec: ScanSpec, operator: Operator) -> None:
    """Raise UnsupportedRequest if indices, or elements beside them, would be wrong in the results of ``spec``."""
    term, out, gives_index = spec.term, spec.out, operator.gives == "index"
    if gives_index and (term.kind not in operator.kinds or out.name not in ("int32", "int64")):
        raise UnsupportedRequest(
            f"{operator.name}: elements of dtype {term.name} and indices of dtype {out.name} are not supported",
            allowed=f"elements of kind {' or '.join(operator.kinds)}; indices of dtype int64 or int32",
            value=f"dtype={out.name}, elements {term.name}",
            hint="leave dtype out: the indices are int64",
        )
    if not gives_index and term.kind in ("float", "complex") and out.kind in ("int", "bool"):
        raise UnsupportedRequest(
            f"{operator.name}: elements of dtype {term.name} would be converted to the output dtype {out.name} "
            "before the scan",
            allowed="gives='index' for an operator whose output is an index: its elements keep their dtype",
            value=f"dtype={out.name}",
            hint=f"construct the operator with gives='index', or convert the elements first: x.to(torch.{out.name})",
        )
    last = spec.capacity - 1
    value = accumulator_of(spec.accumulator)
    for name, kind in zip(operator.fields, operator.field_types, strict=True):
        if kind == "value" and name in index_fields(operator) and last > _exact(value):
            raise UnsupportedRequest(
                f"{operator.name}: the field {name!r} holds an index as {value.name}, exact only up to {_exact(value)}",
                allowed=f"a field of type 'index' for lines of up to {spec.capacity} elements",
                value=f"fields={operator.fields}, types={operator.field_types}",
                hint=f"construct the operator with places=({name!r},), or with types: 'index' for {name!r}",
            )
    if _projects_index(operator) and last > _exact(out):
        raise UnsupportedRequest(
            f"{operator.name}: the output dtype {out.name} holds indices only up to {_exact(out)}",
            allowed=f"an output dtype that holds every index of lines of up to {spec.capacity} elements",
            value=f"dtype={out.name}",
            hint="pass dtype=torch.int64"
            if gives_index
            else "construct the operator with gives='index': the output is int64 and the elements keep their dtype",
        )


def _exact(dtype: DType) -> int:
    """The largest n such that ``dtype`` holds every integer from 0 to n."""
    return EXACT.get(dtype.name) or (int(dtype.highest) if dtype.kind in ("int", "bool") else 2**53)


def _projects_index(operator: Operator) -> bool:
    """Whether the output is a state field that holds an index, up to casts and brackets."""
    found = index_fields(operator)
    names = found and (("state",) if operator.field_types == ("value",) else tuple(f"state.{name}" for name in found))
    return any(re.fullmatch(rf"\s*{CAST}{re.escape(name)}[\s)]*", operator.project) for name in names)
