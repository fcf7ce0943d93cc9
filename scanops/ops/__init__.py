"""``torch.ops.scanops``: every scan as one opaque operation, for ``torch.compile``, ``torch.export``, transforms,
modes and subclasses. Eager code calls kernels without it."""

from __future__ import annotations

from scanops.ops import batching as batching
from scanops.ops import computing as computing
from scanops.ops import gradient as gradient
from scanops.ops.schema import BACKWARD, SCANS

__all__ = ["BACKWARD", "SCANS"]
