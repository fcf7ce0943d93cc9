"""Commands in processes of their own, and files that are no modules of a package: the examples of docs/."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


def loaded(path: str) -> ModuleType:
    """The module of a file, named from the project's root; compilers and pickle find it again by its name."""
    spec = importlib.util.spec_from_file_location(path.removesuffix(".py").replace("/", "_"), ROOT / path)
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ran(*words: object, folder: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that has to succeed, in a folder and with changes to the environment; what it printed is kept."""
    done = subprocess.run(
        list(map(str, words)),
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
