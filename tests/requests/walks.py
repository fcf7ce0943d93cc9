"""Every variant of a scan, line by line and item by item, in Python's numbers: what whole requests are held to.

Nothing here is shared with what is tested but the operator table's ``start``, ``step`` and ``resumed``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import OPERATORS, Operator, form_of

__all__ = ["Asked", "outputs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, with tensors that have x's shape, on a CPU."""

    op: str
    dim: int
    x: torch.Tensor
    dtype: torch.dtype  # of the result
    carry: torch.dtype  # of what goes on from a line
    keep: torch.Tensor | None = None  # bool
    weights: torch.Tensor | None = None
    gate: torch.Tensor | None = None
    starts: torch.Tensor | None = None  # bool
    offsets: list[int] | None = None
    initial: torch.Tensor | None = None  # of x's shape without dim
    reverse: bool = False
    exclusive: bool = False
    final: bool = False


def outputs(asked: Asked) -> tuple[torch.Tensor, ...]:
    """The result, its indices where the operator gives them, and what goes on from each line if that is wanted."""
    if asked.x.ndim == 0:
        return tuple(part.reshape(()) for part in outputs(_in_one_dimension(asked)))
    out = dtype_named(asked.dtype)
    operator = form_of(OPERATORS[asked.op], out.kind)
    parts = (asked.dtype, torch.int64) if operator.indices else (asked.dtype,)
    shape, length = asked.x.movedim(asked.dim, -1).shape, asked.x.shape[asked.dim]
    lines, finals = _lines(asked, operator), []
    found: list[list[Any]] = [[] for _ in parts]
    for number in range(shape[:-1].numel()):
        states = _walk(operator, asked, {name: line[number] for name, line in lines.items()})
        before, after, last = states
        chosen = before if asked.exclusive else after
        chosen = chosen[::-1] if asked.reverse else chosen
        for part in range(len(parts)):
            found[part].append([state[part] if operator.indices else state for state in chosen])
        finals.append(last[0] if operator.indices else last)
    results = [
        tensor_of(list(itertools.chain(*part)), dtype).reshape(shape).movedim(-1, asked.dim)
        for part, dtype in zip(found, parts, strict=True)
    ]
    assert all(len(line) == length for part in found for line in part)
    return (*results, *([tensor_of(finals, asked.carry).reshape(shape[:-1])] if asked.final else []))


def _in_one_dimension(asked: Asked) -> Asked:
    fields = {name: getattr(asked, name) for name in Asked.__slots__}
    for name in ("x", "keep", "weights", "gate", "starts"):
        fields[name] = None if fields[name] is None else fields[name].reshape(1)
    return Asked(**fields | {"dim": 0})


def _lines(asked: Asked, operator: Operator) -> dict[str, list[Any]]:
    """What is read of each line, in Python's numbers."""
    whole = {"x": asked.x, "keep": asked.keep, "weights": asked.weights, "gate": asked.gate, "starts": asked.starts}
    lines = {
        name: numbers_of(each.movedim(asked.dim, -1).reshape(-1, asked.x.shape[asked.dim]))
        for name, each in whole.items()
        if each is not None and each.shape[asked.dim]
    }
    count = asked.x.movedim(asked.dim, -1).shape[:-1].numel()
    lines = lines if "x" in lines else {"x": [[]] * count}
    return lines | ({} if asked.initial is None else {"initial": numbers_of(asked.initial.reshape(-1))})


def _walk(operator: Operator, asked: Asked, line: dict[str, Any]) -> tuple[list[Any], list[Any], Any]:
    """The states before and after each item, in scan order, and the last one."""
    length = len(line["x"])
    begins = set(asked.offsets[1:-1]) if asked.offsets is not None else set()
    begins |= {i for i, flag in enumerate(line.get("starts", ())) if flag}
    start = operator.start_of(dtype_named(asked.dtype))
    h = start
    if "initial" in line:
        h = operator.resumed(line["initial"]) if operator.resumed else line["initial"]
    before, after = [], []
    for i in reversed(range(length)) if asked.reverse else range(length):
        if i in begins and not asked.reverse:
            h = start
        before.append(h)
        if "keep" not in line or line["keep"][i]:
            x = line["x"][i] * line["weights"][i] if "weights" in line else line["x"][i]
            further = ([i] if operator.indices else []) + (
                [converted(line["gate"][i], asked)] if operator.gated else []
            )
            h = operator.step(h, converted(x, asked), *further)
        after.append(h)
        if i in begins and asked.reverse:
            h = start
    return before, after, h


def converted(x: Any, asked: Asked) -> Any:
    """An element as the result's dtype has it; whole numbers are in bounds of every dtype here."""
    kind = dtype_named(asked.dtype).kind
    if kind == "bool":
        return int(x != 0)
    if kind == "complex":
        return x
    real = x.real if isinstance(x, complex) else x
    return int(real) if kind == "int" else real


def numbers_of(tensor: torch.Tensor) -> list[Any]:
    readable = tensor.to(torch.float32) if tensor.is_floating_point() and tensor.itemsize == 1 else tensor
    listed: list[Any] = (readable.to(torch.int64) if readable.dtype == torch.bool else readable).tolist()
    return listed


def tensor_of(numbers: list[Any], dtype: torch.dtype) -> torch.Tensor:
    """Whole numbers wrap as the dtype's do."""
    if dtype.is_complex:
        return torch.tensor(numbers, dtype=torch.complex128).to(dtype)
    if dtype.is_floating_point:
        return torch.tensor(numbers, dtype=torch.float64).to(dtype)
    if dtype == torch.bool:
        return torch.tensor([bool(number) for number in numbers], dtype=dtype)
    wrapped = torch.tensor([(int(number) + 2**63) % 2**64 - 2**63 for number in numbers], dtype=torch.int64)
    return wrapped.view(dtype) if dtype == torch.uint64 else wrapped.to(dtype)
