"""Layers: no module and no package imports itself through others, lazy and type-only imports included.

A new keyword of ``cumsum`` is passed along by one object, so that few files name it.
"""

from __future__ import annotations

import ast
import shutil
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import scanops
from tools import figures

needs_git = pytest.mark.skipif(
    shutil.which("git") is None or not (figures.ROOT / ".git").exists(), reason="needs a git checkout"
)
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


# How many files may name each keyword of the public scans. A layer that passes keywords along hands on ``Call`` or
# ``Inputs`` whole. A file that gives one a meaning may name it: then its number here goes up, and whoever reviews the
# change sees it. Some are words of PyTorch or of C++ as well, such as dtype and out.
MOST_FILES = {
    "map": 15,
    "then": 8,
    "mask": 45,
    "reverse": 27,
    "exclusive": 28,
    "initial": 35,
    "return_final": 9,
    "complete": 21,
    "segment_starts": 9,
    "offsets": 31,
    "chunk": 23,
    "dtype": 67,
    "accumulate": 7,
    "out": 37,
    "modulo": 3,
}


@needs_git
def test_every_keyword_is_named_in_few_files() -> None:
    found = figures.keyword_files()
    assert found.keys() == MOST_FILES.keys()
    print({word: len(files) for word, files in found.items()})
    assert all("scanops/api.py" in files for files in found.values())
    assert {word: files for word, files in found.items() if len(files) > MOST_FILES[word]} == {}


def test_words_of_a_file(tmp_path: Path) -> None:
    """Comments, docstrings, built-in functions and functions of itertools are not keywords."""
    python, header = tmp_path / "a.py", tmp_path / "a.h"
    python.write_text(
        '"""Docstring of reverse."""\nf(map(g, xs), mask=itertools.accumulate(xs), map=call.chunk)  # dtype\nd["out"]\n'
    )
    header.write_text("int mask; // dtype\n/* reverse */ int chunk;\n")
    assert figures.named_words(python) & {*MOST_FILES} == {"mask", "map", "chunk", "out"}
    assert figures.named_words(header) & {*MOST_FILES} == {"mask", "chunk"}
