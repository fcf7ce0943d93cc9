"""From a request to CUDA text, in three pure steps: ``ScanSpec`` (what) -> ``Plan`` (how) -> source.

Pure Python and Jinja2: no torch, no GPU, no compiler, no environment variable, no clock. The same spec gives the same
bytes on every machine.
"""

from __future__ import annotations

from scanops.codegen.plan import Plan, make_plan
from scanops.codegen.source import generate, render
from scanops.codegen.spec import ScanSpec

__all__ = ["Plan", "ScanSpec", "generate", "make_plan", "render"]
