"""``torch.ops.scanops``: scans as opaque operators, for ``torch.compile``, ``torch.export``, transforms, modes
and subclasses. Eager calls launch kernels without them."""

from __future__ import annotations

from scanops.ops import implementations as implementations
from scanops.ops.schema import BACKWARD, SCAN

__all__ = ["BACKWARD", "SCAN"]
