"""Layers: no module and no package imports itself through others, lazy and type-only imports included.

A new keyword of ``cumsum`` is passed along by one object, so that few files name it.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("packages", [False, True], ids=["modules", "packages"])
def test_nothing_imports_itself_through_others(packages: bool) -> None:
    """``store`` stands for ``scanops.store.library`` among packages, and a top-level module for itself."""
    known, graph = modules(), {}
    for name, path in known.items():
        names = [name, *imported(name, path, known)]
        if packages:
            names = [each.partition(".")[2].partition(".")[0] for each in names]
        graph.setdefault(names[0], set()).update(set(names[1:]) - {names[0]})
    assert {"ops", "runtime", "store"} <= set(graph) if packages else {"scanops", "scanops.api"} <= set(graph)
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names a circle


KEYWORD = "accumulate"


def named_in(path: Path) -> bool:
    """Return whether the code of a file names the keyword, comments and docstrings aside."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return re.search(rf"\b{KEYWORD}\b", re.sub(r"//.*|/\*(.|\n)*?\*/", "", text)) is not None
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    words = [token.string.strip("\"'") for token in tokens if token.type in (tokenize.NAME, tokenize.STRING)]
    return any(word == KEYWORD and before != "itertools" for before, word in pairwise(["", *words]))


def test_a_keyword_is_named_in_few_files() -> None:
    """Counted are layers that pass it along, which should hand on ``Call`` whole, and those that give it a meaning.

    The latter are the two modules of public functions, ``Call`` itself, its check, ``ScanSpec``, the short names of
    specs and the command line. The fallback and the gradients ask ``Call`` what follows from it.
    """
    folders = (ROOT, Path(__file__).parents[2] / "codegen")
    files = {
        path.resolve() for folder in folders for path in folder.rglob("*.*") if path.suffix in (".py", ".h", ".cpp")
    }
    naming = sorted(str(path) for path in files if named_in(path))
    assert any(name.endswith("api.py") for name in naming)
    assert len(naming) <= 7, naming
