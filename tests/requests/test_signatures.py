"""Public functions and their docstrings name the same arguments, one row each; what type checkers see of calls."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import scanops
import scanops.distributed
from tests.scripts import ROOT

SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "linear_scan", "scan")
# modules, and classes whose fields are described where they are
OTHERS = ("compat", "distributed", "errors", "nn", "__version__", "Kernel", "Plan", "ScanSpec")
PUBLIC = {
    **{name: getattr(scanops, name) for name in scanops.__all__ if name not in OTHERS},
    **{f"nn.{name}": getattr(scanops.nn, name) for name in scanops.nn.__all__},
    **{f"compat.{name}": getattr(scanops.compat, name) for name in scanops.compat.__all__},
    **{f"distributed.{name}": getattr(scanops.distributed, name) for name in scanops.distributed.__all__},
}
ROW = re.compile(r"^    (\w+): ", re.MULTILINE)


def rows(function: Any) -> dict[str, str]:
    """The text of each argument that a docstring describes."""
    text = inspect.getdoc(function) or ""
    section = re.search(r"^Args:\n((?:    .*\n?|\n(?=    ))+)", text, re.MULTILINE)
    parts = ROW.split(section[1]) if section else [""]
    return {name: " ".join(words.split()) for name, words in zip(parts[1::2], parts[2::2], strict=True)}


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if not name.startswith("_")]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_docstring_describes_each_argument(name: str) -> None:
    function = PUBLIC[name]
    kinds = {each.kind for each in inspect.signature(function).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert list(rows(function)) == parameters(function)
    text = inspect.getdoc(function) or ""
    assert ">>> " in text and "see there" not in text.lower()


def test_equal_arguments_of_scans_have_one_description() -> None:
    """cumsum describes its arguments in full, and linear_scan its own; others give a line to what they share."""
    own = {"x", "accumulate", "out"}
    for name in SCANS:
        found = rows(PUBLIC[name])
        assert set(found) >= {"dim", "mask", "reverse", "exclusive", "initial", "return_final", "offsets", "out"}
        if name not in ("cumsum", "linear_scan"):
            assert "``scanops.cumsum``" in (inspect.getdoc(PUBLIC[name]) or "")
            shared = rows(scanops.cumprod)
            assert [key for key in found if key in shared and key not in own and found[key] != shared[key]] == []


@pytest.mark.parametrize(
    ("name", "keyword"),
    [("cumsum", "revers"), ("cumprod", "map"), ("linear_scan", "chunk"), ("cummax", "dtype"), ("scan", "spans")],
)
def test_keywords_that_a_scan_does_not_have(name: str, keyword: str) -> None:
    """Python's own error names the public function, on each of its paths."""
    x = torch.ones(3)
    first = {"linear_scan": (x, x), "scan": (x, "max")}.get(name, (x,))
    functions = ({}, {"then": torch.sub}) if name == "scan" else ({},)
    for each in functions:
        with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument '{keyword}'$"):
            getattr(scanops, name)(*first, 0, **each, **{keyword: torch.float32 if keyword == "dtype" else 2})


PROGRAM = """
import torch, scanops
x, flag = torch.rand(3), bool(torch.rand(()) > 1)
a: torch.Tensor = scanops.cumsum(x, 0)
b: torch.Tensor = scanops.scan(x, "sum", 0, chunk=2)
c: torch.Tensor = scanops.cumprod(x, 0, chunk=2)
d, e = scanops.logcumsumexp(x, 0, return_final=True)
f, g = scanops.linear_scan(x, x, 0, return_final="segments", offsets=x)
h: torch.Tensor | tuple[torch.Tensor, torch.Tensor] = scanops.cumsum(x, 0, return_final=flag)
i: torch.Tensor = scanops.cummax(x, 0).indices
j, k = scanops.cummin(x, 0, return_final=True)
l: torch.Tensor = j.values
WRONG
"""


WRONG = {
    "right": "",
    "misspelt": "scanops.cumsum(x, 0, revers=True)",
    "added": "scanops.cumsum(x, 0) + 'a'",
}


def test_types_of_calls(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    typed = tmp_path / "typed"
    (typed / "scanops").mkdir(parents=True)
    for each in (*(ROOT / "scanops").iterdir(), ROOT / "codegen", ROOT / "templates"):
        (typed / "scanops" / each.name).symlink_to(each)
    for name, wrong in WRONG.items():
        (typed / f"{name}.py").write_text(PROGRAM.replace("WRONG", wrong), encoding="utf-8")
    files = [f"{name}.py" for name in WRONG]
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *files]
    cache = ["--cache-dir", str(ROOT / ".mypy_cache")]
    done = subprocess.run([*command, *cache], cwd=typed, capture_output=True, text=True, check=False)
    line = PROGRAM.splitlines().index("WRONG") + 1
    found = {tuple(each.split(":")[:2]) for each in done.stdout.splitlines() if ": error:" in each}
    assert found == {(name, str(line)) for name in files[1:]}, done.stdout


def test_modules_are_attributes_and_list_their_public_names() -> None:
    """After ``import scanops`` alone."""
    program = "import scanops; print([dir(getattr(scanops, name)) == sorted(getattr(scanops, name).__all__)"
    program += " for name in ('compat', 'distributed', 'errors', 'nn')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([True] * 4)
