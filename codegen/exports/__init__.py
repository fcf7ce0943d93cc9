"""Files that stand on their own: a kernel and what launches it, for a process that has no scanops."""

from __future__ import annotations
