"""docs/deployment.md says what there is."""

from __future__ import annotations

from pathlib import Path

from scanops import environment
from scanops.cli import main

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")


def test_every_variable_is_in_the_table() -> None:
    for row in environment.VARIABLES:
        assert f"| `{row.name}` | {row.default} | {row.meaning} |" in PAGE


def test_every_command_it_names_exists() -> None:
    named = {line.split()[1] for line in PAGE.replace("`", "\n").splitlines() if line.startswith("scanops ")}
    assert {"pack", "unpack", "verify", "explain", "prune"} <= named
    assert named <= main.commands.keys()
