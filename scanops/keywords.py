"""Types of the keywords and the results of the public functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing import TypedDict

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


Pair = tuple[Tensor, Tensor]
Ends = Literal[True, "segments"]  # values of return_final with which there are carries-out
Final = bool | Literal["segments"]  # every value of return_final


class ValuesAndIndices(NamedTuple):
    """The results of ``cummax`` and ``cummin``, as torch's own return them."""

    values: Tensor
    indices: Tensor
