"""A new keyword of ``cumsum`` is passed along by one object: few files name it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.packaging.test_layers import ROOT

KEYWORD = "accumulate"


def named_in(path: Path) -> bool:
    """Return whether the code of a file names the keyword, comments and docstrings aside."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return re.search(rf"\b{KEYWORD}\b", re.sub(r"//.*|/\*(.|\n)*?\*/", "", text)) is not None
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == f"itertools.{KEYWORD}":
            node.attr = ""  # of the standard library
        name = getattr(
            node, {ast.Name: "id", ast.Attribute: "attr", ast.Constant: "value"}.get(type(node), "arg"), None
        )
        declares = isinstance(node, ast.arg | ast.keyword | ast.Name | ast.Attribute | ast.Constant)
        if declares and name == KEYWORD:
            return True
    return False


def test_a_keyword_is_named_in_at_most_six_files() -> None:
    """Of scanops/ and codegen/, in Python and C++, six files name ``accumulate`` in code.

    A file names a keyword where it is a variable, parameter, keyword argument, attribute or string constant of its
    code. Counted are thus both the layers that pass the keyword along, which should hand on ``Call`` whole, and those
    that give it a meaning: the public functions, ``Call`` itself, its check, ``ScanSpec``, the short names of specs
    and the command line. The fallback and the gradients ask ``Call`` what follows from it.
    """
    folders = (ROOT, Path(__file__).parents[2] / "codegen")
    files = {
        path.resolve() for folder in folders for path in folder.rglob("*.*") if path.suffix in (".py", ".h", ".cpp")
    }
    naming = sorted(str(path) for path in files if named_in(path))
    assert any(name.endswith("api.py") for name in naming)
    assert len(naming) <= 6, naming
