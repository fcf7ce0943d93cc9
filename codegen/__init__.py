"""From a request to CUDA text, in three pure steps: ``ScanSpec`` (what) -> ``Plan`` (how) -> source.

Pure Python and Jinja2: no torch, no GPU, no compiler, no environment variable, no clock. The same spec gives the same
bytes on every machine. Names load what they need at first use: a kernel that is already built needs no templates.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scanops.codegen.plan import Plan as Plan
    from scanops.codegen.plan import make_plan as make_plan
    from scanops.codegen.source import generate as generate
    from scanops.codegen.source import render as render
    from scanops.codegen.spec import ScanSpec as ScanSpec

_HOMES = {"Plan": "plan", "ScanSpec": "spec", "generate": "source", "make_plan": "plan", "render": "source"}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'scanops.codegen' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"scanops.codegen.{_HOMES[name]}"), name)
