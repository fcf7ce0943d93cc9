"""Who imports whom: modules lie in layers, the imports within functions and those for types included."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import scanops

ROOT = Path(scanops.__file__).parent


def modules() -> dict[str, Path]:
    """By name; but for the package itself, which names what its modules have, and for ``codegen``, which is another."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        if parts[1] != "codegen":
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    del found["scanops"]
    return found


def imported(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """What a module imports, the packages around that included: their code runs first."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                target = inner if inner in known else node.module
                found.add(target)
                around = target.split(".")
                packages = {".".join(around[:end]) for end in range(2, len(around))}
                found |= {package for package in packages if not name.startswith(package)}
    return found & set(known) - {name}


def test_no_module_imports_itself_by_way_of_others() -> None:
    known = modules()
    assert {"scanops.api", "scanops.serving.runtime", "scanops.ops", "scanops.native.later"} <= set(known)
    # Raises CycleError, which names a circle.
    tuple(TopologicalSorter({name: imported(name, path, known) for name, path in known.items()}).static_order())


def test_no_package_imports_itself_by_way_of_others() -> None:
    known = modules()
    packages: dict[str, set[str]] = {}
    for name, path in known.items():
        used = packages.setdefault(package_of(name), set())
        used |= {package_of(other) for other in imported(name, path, known)} - {package_of(name)}
    assert packages["native"] and "native" in packages["serving"]
    tuple(TopologicalSorter(packages).static_order())


def package_of(module: str) -> str:
    """``scanops.store.library`` is of ``store``; ``scanops.api`` stands for itself."""
    return module.split(".")[1]
