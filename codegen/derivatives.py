"""What a row says about derivatives of its operator: the kernel of the backward pass, and the local derivatives.

A row of the type ``Operator`` holds these, so that this module cannot import that type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

# Bytes of the accumulator -> the longest aligned row that a block scans twice in its registers; half of it for others.
RECOMPUTED_LENGTHS = {4: 4096, 8: 2048}
LEAST_RECOMPUTED = 128  # items of a row that a block scans twice: shorter rows leave lanes idle


def longest_recomputed(accumulator_bytes: int, *, is_aligned: bool) -> int:
    """Return the longest row whose gradient finds the result before each item in its tile; 0 where there is none.

    ``is_aligned``: rows are whole accesses.
    """
    return RECOMPUTED_LENGTHS.get(accumulator_bytes, 0) // (1 if is_aligned else 2)


def should_recompute(length: int, accumulator_bytes: int, *, is_aligned: bool) -> bool:
    """Return whether a gradient should find the result before each item in its tile, instead of reading results.

    That moves fewer bytes.
    """
    return LEAST_RECOMPUTED <= length <= longest_recomputed(accumulator_bytes, is_aligned=is_aligned)


class Gradient(NamedTuple):
    """The scan that computes the gradient of an operator, and the operands it reads besides the result's gradient.

    It is a scan of the result's gradient, ``x`` in its row, in the opposite direction over the same segments. Its
    carry-in is the gradient of the forward carry-out; its carry-out is the gradient of the forward carry-in. Its row
    may also read the forward scan's input or gate as ``g``, the saved tensor as ``v``, and the bool mask as ``m``.
    Values that belong to one item and take no part in combine are fields listed in ``own``. ``step`` takes h, x and, in
    this order, those of g, v, m and i that lift mentions. The last parts of h are the item's own fields, and an
    exclusive result combines the previous h with the own fields of the current item.
    """

    row: Any = None  # an Operator; None: the operator itself
    masked: Any = None  # the Operator with a bool mask; by default the same row
    after: Any = None  # the Operator for an exclusive forward scan; by default the same row
    exclusive: bool | None = None  # whether the scan is exclusive; None: as the forward scan
    gate: Literal["", "x", "gate"] = ""  # the operand read as g
    # The operand read as v: the forward's result, its indices, or the result before each item: from the saved results
    # by the row ``latest``, or from the exclusive forward scan.
    saved: Literal["", "y", "indices", "before"] = ""
    kinds: tuple[str, ...] = ("float",)  # kinds of dtype that the scan supports
    begins: bool = True  # whether the gradient of the forward carry-out is supported, as its carry-in
    ends: bool = True  # whether its carry-out is the gradient of the forward carry-in
    # Where it is not: the derivative of results by the carry-in, of that and of the results, by methods of tensors.
    of_carry: Callable[[Any, Any], Any] | None = None
    of_terms: Gradient | None = None  # what replaces it where the gate needs no gradient

    @property
    def rows(self) -> tuple[Any, ...]:
        """The rows that belong to this gradient alone."""
        own = (self.row, self.masked, self.after, *(self.of_terms.rows if self.of_terms else ()))
        return tuple(row for row in own if row is not None)


class Derivative(NamedTuple):
    """The derivatives of h[i] = step(h[i-1], x[i], g[i]) by its arguments, as functions of ``line``; None stands for 1.

    ``line.term``, ``line.gate``, ``line.before`` and ``line.after`` are tensors of x[i], g[i], h[i-1] and h[i], and
    ``line.factor`` is the derivative by h[i-1]. Each is computed when it is first asked for. The functions use methods
    of tensors that have derivatives themselves, and divide by nothing that may be 0. A row states them where PyTorch's
    derivatives of ``step`` do not serve: for complex items, beside infinities, and where results have been saved.
    """

    before: Callable[[Any], Any] | None = None  # by h[i-1], the result before the item
    term: Callable[[Any], Any] | None = None  # by x[i]
    gate: Callable[[Any], Any] | None = None  # by g[i], where there are gates
    kinds: tuple[str, ...] = ("float", "complex")  # kinds of dtype that the functions hold for
