"""The prose of the project has no phrases that nobody would search for."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("scanops", "codegen", "tools", "benchmarks", "templates", "generated", "docs", "examples")
ENDINGS = (".py", ".cpp", ".h", ".j2", ".cu", ".md")
TEXTS = [
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in ENDINGS),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")),
]
BANNED = (
    "go on from", "goes on from", "going on from", "of another kind", "none of theirs", "with a sign and without",
    "on their way", "dear to join", "what blocks tell", "what there is", "whoever", "turned round", "walked back",
    "told twice", "told once", "past the first cache", "what a stretch", "in c++'s words", "which bound them",
    "the same curve", "that there is not", "for what is no",
)  # fmt: skip


def test_no_private_dialect() -> None:
    found = []
    for path in TEXTS:
        text = " ".join(path.read_text(encoding="utf-8", errors="ignore").lower().split())
        found += [(path.relative_to(ROOT).as_posix(), phrase) for phrase in BANNED if phrase in text]
    assert found == []
