"""How the tests of the command line call it, and the kernel and the keys that they share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption

from scanops.build_request import request_of, sources_key
from scanops.cli import main
from scanops.codegen.kernel_key import KernelKey
from scanops.store import Store, layers
from tests.packs.conftest import PKCS8, PRIVATE, SPEC, SPKI, keep

Call = Callable[..., Result]
Ask = Callable[..., Any]
PASSPHRASE = "open"


@pytest.fixture
def call() -> Call:
    """The command in this process, as if its output were piped, with changes to the environment."""

    def run(*words: str, input: str | None = None, **environment: str) -> Result:
        layers._examine_pack.cache_clear()
        return CliRunner().invoke(main, words, input=input, env=environment)

    return run


@pytest.fixture
def ask(call: Call) -> Ask:
    """The command with --json: the document that it prints, if it exits with ``code``."""

    def run(*words: str, code: int = 0, **environment: str) -> Any:
        result = call(*words, *(() if "--json" in words else ("--json",)), **environment)
        assert (result.exit_code, result.stderr if code == 2 else "") == (code, ""), result.output
        return parse_json(result.stdout)

    return run


def parse_json(text: str) -> Any:
    """The one JSON document ``text`` must be; NaN and infinity, which json.loads lets pass, are no JSON."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the kernel of SPEC and its index record; not to be changed."""
    store = Store(tmp_path_factory.mktemp("made") / "kernels")
    entry = store.get_or_build(request_of(KernelKey(SPEC, "cpu")))
    key = sources_key(KernelKey(SPEC, "cpu"))
    assert key
    store.remember(key, entry)
    return store.root


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy to be changed at will."""
    shutil.copytree(made, tmp_path / "kernels", ignore=shutil.ignore_patterns(".*"))
    return tmp_path / "kernels"


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """A private key encrypted with PASSPHRASE, and its public key."""
    encryption = BestAvailableEncryption(PASSPHRASE.encode())
    private = keep(tmp_path / "key.pem", PRIVATE.private_bytes(*PKCS8, encryption))
    return private, keep(tmp_path / "pub.pem", PRIVATE.public_key().public_bytes(*SPKI))
