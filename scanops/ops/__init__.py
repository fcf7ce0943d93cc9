"""``torch.ops.scanops``: each scan as one opaque operator, for ``torch.compile``, ``torch.export``, transforms, modes
and subclasses. Eager calls launch kernels without it."""

from __future__ import annotations

from scanops.ops import implementations as implementations
from scanops.ops.schema import BACKWARD, SCANS

__all__ = ["BACKWARD", "SCANS"]
