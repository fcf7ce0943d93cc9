"""A new keyword of ``cumsum`` is passed along by one object: few files name it."""

from __future__ import annotations

import io
import re
import tokenize
from itertools import pairwise
from pathlib import Path

from tests.packaging.test_layers import ROOT

KEYWORD = "accumulate"


def named_in(path: Path) -> bool:
    """Return whether the code of a file names the keyword, comments and docstrings aside."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return re.search(rf"\b{KEYWORD}\b", re.sub(r"//.*|/\*(.|\n)*?\*/", "", text)) is not None
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    words = [token.string.strip("\"'") for token in tokens if token.type in (tokenize.NAME, tokenize.STRING)]
    return any(word == KEYWORD and before != "itertools" for before, word in pairwise(["", *words]))


def test_a_keyword_is_named_in_at_most_six_files() -> None:
    """Counted are layers that pass it along, which should hand on ``Call`` whole, and those that give it a meaning.

    The latter are the public functions, ``Call`` itself, its check, ``ScanSpec``, the short names of specs and the
    command line. The fallback and the gradients ask ``Call`` what follows from it.
    """
    folders = (ROOT, Path(__file__).parents[2] / "codegen")
    files = {
        path.resolve() for folder in folders for path in folder.rglob("*.*") if path.suffix in (".py", ".h", ".cpp")
    }
    naming = sorted(str(path) for path in files if named_in(path))
    assert any(name.endswith("api.py") for name in naming)
    assert len(naming) <= 6, naming
