"""The prose of the project: docstrings that say something, and no phrases that nobody would search for."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = [
    path for folder in ("scanops", "codegen", "tools", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))
]
TEXTS = [
    *MODULES,
    *(
        path
        for folder in ("templates", "generated", "docs", "examples")
        for path in sorted((ROOT / folder).rglob("*.*"))
    ),
    *(path for ending in ("cpp", "h") for path in sorted((ROOT / "scanops").rglob(f"*.{ending}"))),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "benchmarks/README.md")),
]
LEAST_WORDS = 5
BANNED = (
    "go on from",
    "goes on from",
    "going on from",
    "of another kind",
    "none of theirs",
    "with a sign and without",
    "on their way",
    "dear to join",
    "what blocks tell",
    "what there is",
    "whoever",
    "turned round",
    "walked back",
    "told twice",
    "told once",
    "past the first cache",
    "what a stretch",
    "in c++'s words",
    "which bound them",
    "the same curve",
    "that there is not",
    "for what is no",
)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_docstrings_stand_alone(path: Path) -> None:
    short = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text is not None and len(text.split()) < LEAST_WORDS:
                short.append((getattr(node, "name", "module"), text))
    assert short == []


def test_no_private_dialect() -> None:
    found = []
    for path in TEXTS:
        text = " ".join(path.read_text(encoding="utf-8", errors="ignore").lower().split())
        found += [(path.relative_to(ROOT).as_posix(), phrase) for phrase in BANNED if phrase in text]
    assert found == []
