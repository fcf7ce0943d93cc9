"""Checks of gradient specs: which saved tensor they read, or which forward scan they recompute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanops.codegen.dtypes import accumulator_of, dtype_named
from scanops.codegen.operator import Operator
from scanops.errors import UnsupportedRequest

if TYPE_CHECKING:
    from scanops.codegen.spec import ScanSpec

__all__ = ["AGAIN_LENGTHS", "check_again", "check_saved"]

# Bytes of the accumulator, and the longest row that a block scans twice in its registers; half of it for misaligned
# rows.
AGAIN_LENGTHS = {4: 4096, 8: 2048}


def check_saved(spec: ScanSpec, operator: Operator) -> None:
    """Raise UnsupportedRequest unless the saved tensor and the mask are those that the gradient reads."""
    kinds = {"": (), "value": ("float", "complex"), "place": ("int",)}[operator.saved]
    if spec.again and any(operator.before):
        kinds = ()
    fits = dtype_named(spec.saved).kind in kinds if spec.saved else not kinds
    if not fits:
        raise UnsupportedRequest(
            f"{spec.op}: saved must be {'a dtype of kind ' + ' or '.join(kinds) if kinds else 'None'}",
            allowed=f"a dtype of kind {' or '.join(kinds)}" if kinds else "none",
            value=f"op={spec.op!r}, saved={spec.saved!r}",
            hint="pass the dtype of the saved tensor" if kinds else "leave saved out",
        )
    if operator.masked and spec.mask not in (None, "bool"):
        raise UnsupportedRequest(
            f"{spec.op}: mask must be bool",
            allowed="a bool mask, or none",
            value=f"mask={spec.mask!r}",
            hint="multiply the items, and their gradient",
        )


def check_again(spec: ScanSpec) -> None:
    """Raise UnsupportedRequest unless the forward scan can be recomputed in one tile: dense, aligned rows."""
    most = AGAIN_LENGTHS.get(accumulator_of(spec.accumulator).bytes, 0) // (1 if spec.divides(spec.access_items) else 2)
    whole = spec.aligned and spec.inner == 1 and spec.segments is None and spec.layouts == {"dense"}
    if not (whole and spec.operator.before and spec.capacity <= most):
        raise UnsupportedRequest(
            f"{spec.op}: again=True is not possible for this spec",
            allowed=f"a gradient with `before`, of rows of at most {most} items without segments, aligned, dense",
            value=f"op={spec.op!r}, {spec.items_text} items, inner={spec.inner}, segments={spec.segments!r}, "
            f"layouts {', '.join(sorted(spec.layouts))}, aligned={spec.aligned}",
            hint="compute the exclusive results first, and pass them as the saved tensor",
        )
