"""Files that are no modules of a package, loaded as modules: benchmarks, and the examples of docs/."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["loaded"]

ROOT = Path(__file__).resolve().parents[1]


def loaded(path: str) -> ModuleType:
    """The module of a file, named from the project's root; compilers and pickle find it again by its name."""
    spec = importlib.util.spec_from_file_location(path.removesuffix(".py").replace("/", "_"), ROOT / path)
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
