"""What ``scanops doctor`` says of one thing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked for."""

    name: str
    status: Literal["ok", "missing", "broken"]  # broken: it is there, or was asked for, and does not work
    summary: str  # what was found, in a line
    next: str = ""  # what to type, empty when it is ok
    facts: dict[str, object] = field(default_factory=dict)  # the same for programs

    @property
    def ok(self) -> bool:
        return self.status == "ok"
