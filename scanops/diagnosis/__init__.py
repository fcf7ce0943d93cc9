"""Facts about this machine, and about a kernel before it runs, for ``scanops doctor`` and ``scanops plan``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What ``scanops doctor`` found about one thing."""

    name: str
    status: Literal["ok", "missing", "broken"]  # broken: present or requested, and it does not work
    summary: str  # one line
    next: str = ""  # what to type; empty when it is ok
    facts: dict[str, object] = field(default_factory=dict)  # the same for --json

    @property
    def ok(self) -> bool:
        """Whether the thing is present and works."""
        return self.status == "ok"
