"""A finding of ``scanops doctor``: the outcome of one check, whatever it meets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from scanops import environment
from scanops.errors import MissingCompiler, ScanopsError

__all__ = ["GET_TORCH", "Finding", "Flaw", "finding"]

_CHOICES = {"nvcc": "SCANOPS_NVCC", "g++": "SCANOPS_CXX"}  # a tool that its variable names is broken, not missing
GET_TORCH = "pip install torch (pytorch.org/get-started has the line for each CUDA version)"


@dataclass(frozen=True, slots=True)
class Finding:
    """What ``scanops doctor`` found about one thing."""

    name: str
    status: Literal["ok", "missing", "broken"]  # broken: present or requested, and it does not work
    summary: str  # one line
    next: str = ""  # what to type; empty when it is ok
    facts: dict[str, Any] = field(default_factory=dict)  # the same for --json

    @property
    def ok(self) -> bool:
        """Whether the thing is present and works."""
        return self.status == "ok"


class Flaw(Exception):
    """What a check found: its status, missing or broken, a summary, and what to type."""


def finding(name: str, check: Callable[[dict[str, Any]], str]) -> Finding:
    """Return the finding of one check, which fills the facts and returns a summary, or raises what is wrong."""
    facts: dict[str, Any] = {}
    try:
        return Finding(name, "ok", check(facts), facts=facts)
    except Flaw as flaw:
        status, summary, following = flaw.args
        return Finding(name, status, summary, following, facts)
    except (ImportError, OSError):
        return Finding(name, "missing", "torch is needed to look", GET_TORCH, facts)
    except ScanopsError as problem:
        absent = isinstance(problem, MissingCompiler) and not environment.given(_CHOICES.get(name, ""))
        words = f"cannot {problem.asked.removeprefix('cannot ')}: " + " ".join(str(problem.value).split())
        return Finding(name, "missing" if absent else "broken", words, problem.hint, facts)
