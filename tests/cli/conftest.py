"""How the tests of the command line call it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from scanops.cli import main

Call = Callable[..., Result]
Ask = Callable[..., Any]


@pytest.fixture
def call() -> Call:
    """The command in this process, as if its output were piped."""

    def run(*words: str, input: str | None = None) -> Result:
        return CliRunner().invoke(main, words, input=input)

    return run


@pytest.fixture
def ask(call: Call) -> Ask:
    """The command with --json: the document that it prints, if it exits with ``code``."""

    def run(*words: str, code: int = 0) -> Any:
        result = call(*words, *(() if "--json" in words else ("--json",)))
        assert (result.exit_code, result.stderr if code == 2 else "") == (code, ""), result.output
        return parse_json(result.stdout)

    return run


def parse_json(text: str) -> Any:
    """The one JSON document ``text`` must be; NaN and infinity, which json.loads lets pass, are no JSON."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)
