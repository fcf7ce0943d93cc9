"""Import layers: no module and no package imports itself through others, lazy and type-only imports included."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import scanops

ROOT = Path(scanops.__file__).parent


def modules() -> dict[str, Path]:
    """Return every module of the package by name."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules that ``name`` imports, with the packages that enclose them: their code runs first."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                target = inner if inner in known else node.module
                found.add(target)
                around = target.split(".")
                packages = {".".join(around[:end]) for end in range(2, len(around))}
                found |= {package for package in packages if not name.startswith(package)}
    return found & set(known) - {name}


def test_no_module_imports_itself_through_others() -> None:
    known = modules()
    assert {"scanops", "scanops.api", "scanops.runtime.calls", "scanops.ops"} <= set(known)
    # Raises CycleError, which names a circle.
    tuple(TopologicalSorter({name: imported(name, path, known) for name, path in known.items()}).static_order())


def test_no_package_imports_itself_through_others() -> None:
    known = modules()
    packages: dict[str, set[str]] = {}
    for name, path in known.items():
        used = packages.setdefault(package_of(name), set())
        used |= {package_of(other) for other in imported(name, path, known)} - {package_of(name)}
    assert "runtime" in packages["ops"] and "store" in packages["runtime"]
    tuple(TopologicalSorter(packages).static_order())


def package_of(module: str) -> str:
    """Return ``store`` for ``scanops.store.library``; a top-level module stands for itself."""
    return module.partition(".")[2].partition(".")[0]
