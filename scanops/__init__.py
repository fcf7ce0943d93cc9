"""Prefix scans for PyTorch at the speed of memory: generated CUDA kernels, one for each shape and dtype.

Importing compiles nothing and touches neither a GPU nor a disk. The names below load what they need at first use, so
that ``scanops.generate`` works where there is no torch.

>>> import torch, scanops
>>> scanops.cumsum(torch.tensor([1., 2., 3.]), dim=0)
tensor([1., 3., 6.])
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from scanops._version import __version__
from scanops.forks import import_late

if TYPE_CHECKING:
    from scanops import compat as compat
    from scanops import distributed as distributed
    from scanops import errors as errors
    from scanops import nn as nn
    from scanops.api import cumsum as cumsum
    from scanops.api import linear_scan as linear_scan
    from scanops.api import scan as scan
    from scanops.codegen.exports.formats import export as export
    from scanops.codegen.planner import Plan as Plan
    from scanops.codegen.planner import make_plan as make_plan
    from scanops.codegen.source import generate as generate
    from scanops.codegen.spec import ScanSpec as ScanSpec
    from scanops.emulator import emulate as emulate
    from scanops.fusion.operators import operator as operator
    from scanops.operator_checks import check_operator as check_operator
    from scanops.patching import patch_torch as patch_torch
    from scanops.precompile import compile as compile
    from scanops.precompile import prepare as prepare
    from scanops.precompile import record as record
    from scanops.relatives import cummax as cummax
    from scanops.relatives import cummin as cummin
    from scanops.relatives import cumprod as cumprod
    from scanops.relatives import logcumsumexp as logcumsumexp
    from scanops.relatives import reduce_by_key as reduce_by_key
    from scanops.runtime.call_cache import calls as calls
    from scanops.runtime.kernels import Kernel as Kernel
    from scanops.runtime.policies import policy as policy

_NAMES = {  # of each module
    "api": ("cumsum", "linear_scan", "scan"),
    "codegen.exports.formats": ("export",),
    "codegen.planner": ("Plan", "make_plan"),
    "codegen.source": ("generate",),
    "codegen.spec": ("ScanSpec",),
    "emulator": ("emulate",),
    "fusion.operators": ("operator",),
    "operator_checks": ("check_operator",),
    "patching": ("patch_torch",),
    "precompile": ("compile", "prepare", "record"),
    "relatives": ("cummax", "cummin", "cumprod", "logcumsumexp", "reduce_by_key"),
    "runtime.call_cache": ("calls",),
    "runtime.kernels": ("Kernel",),
    "runtime.policies": ("policy",),
}
_HOMES = {name: f"scanops.{module}" for module, names in _NAMES.items() for name in names}
_MODULES = ("compat", "distributed", "errors", "nn")

__all__ = ["__version__", *_MODULES, *sorted(_HOMES)]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_late(f"scanops.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'scanops' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_late(_HOMES[name]), name)
    globals()[name] = value  # the next look-up finds it at once
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if sys.modules.get("torch") is not None:
    # Who has torch came for the scans: their modules count towards the import, not towards the first call. Who loads an
    # exported program may name nothing of scanops: its operations are known from here on.
    for _name in (*_NAMES["api"], *_NAMES["relatives"]):
        __getattr__(_name)
