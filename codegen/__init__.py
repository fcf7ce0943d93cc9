"""From a request to CUDA text, in three pure steps: ``ScanSpec`` (what) -> ``Plan`` (how) -> source.

Pure Python and Jinja2: no torch, no GPU, no compiler, no environment variable, no clock, and nothing of scanops but its
errors. The same spec gives the same bytes on every machine.
"""

from __future__ import annotations
