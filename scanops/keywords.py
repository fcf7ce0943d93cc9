"""Types of the keywords and the results of the public functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from typing import TypedDict

    import torch
    from torch import Tensor

    class Variant(TypedDict, total=False):
        """Keywords of every scan; the docstring of ``scan`` explains them."""

        mask: Tensor | None
        reverse: bool
        exclusive: bool
        initial: Tensor | complex | None
        segment_starts: Tensor | None
        offsets: Tensor | None

    class Keywords(Variant, total=False):
        """Keywords of scans with one result."""

        complete: bool
        dtype: torch.dtype | None
        accumulate: torch.dtype | str | None
        out: Tensor | None

    class Chunks(Keywords, total=False):
        """Keywords of scans that may begin again every so many items."""

        chunk: int | None

    class ShardedVariant(Variant, total=False):
        """Keywords of every scan of a sharded dimension."""

        group: Any
        spans: str | None
        method: str
        return_final: bool

    class Sharded(ShardedVariant, total=False):
        """Keywords of scans of a sharded dimension with one result."""

        dtype: torch.dtype | None
        accumulate: torch.dtype | str | None

    class Functions(TypedDict, total=False):
        """Keywords of scans with functions of several tensors."""

        map: Callable[..., Any] | None
        then: Callable[..., Any] | None
        sum: int | Sequence[int] | None
        finish: Callable[..., Any] | None
        mask: Tensor | None
        reverse: bool
        exclusive: bool
        initial: Tensor | complex | None
        return_final: bool
        dtype: torch.dtype | None


Pair: TypeAlias = "tuple[Tensor, Tensor]"
Ends = Literal[True, "segments"]  # values of return_final with which there are carries-out
Final = bool | Literal["segments"]  # every value of return_final


class ValuesAndIndices(NamedTuple):
    """The results of ``cummax`` and ``cummin``, as torch's own return them."""

    values: Tensor
    indices: Tensor


def name_results(found: Sequence[Tensor]) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]:
    """Return values and indices by their names, in a pair with the carry-out if there is one."""
    pair = ValuesAndIndices(found[0], found[1])
    return (pair, found[2]) if len(found) > 2 else pair


# What functions lack of the keywords of ``cumsum``.
ABSENT = {"linear": ("chunk",), **dict.fromkeys(("cummax", "cummin"), ("complete", "chunk", "dtype", "accumulate"))}
Function = TypeVar("Function", bound=Callable[..., Any])


def list_keywords_of(other: Callable[..., Any], *without: str) -> Callable[[Function], Function]:
    """Let ``help`` and editors list the keywords that a function passes on to another one, ``without`` some of them.

    They stand behind those of the function's own, but for ``out``, which is last.
    """
    keywords = [
        each
        for each in inspect.signature(other).parameters.values()
        if each.kind is each.KEYWORD_ONLY and each.name not in without
    ]

    def list_keywords(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        every = {each.name: each for each in (*own, *keywords)}
        parameters = sorted(every.values(), key=lambda each: each.name == "out")
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return list_keywords
