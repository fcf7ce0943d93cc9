from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scanops.build_request import BuildRequest, request_of
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.spec import ScanSpec
from scanops.store import Store, layers
from scanops.store.entry import facts_of
from scanops.store.packs import PACK, finish
from tests.store.sources import CPU_SOURCE

SPEC = ScanSpec(op="sum", dtype="float32", length=24)
try:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat, PublicFormat
except ImportError:  # the tests are skipped
    pass
else:
    PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    PKCS8 = (Encoding.PEM, PrivateFormat.PKCS8)
    SPKI = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
OTHER = BuildRequest(name="of-a-user", source=CPU_SOURCE, target="cpu")


def keep(file: Path, data: bytes) -> Path:
    """Write a key to a file that nobody else may read."""
    file.write_bytes(data)
    file.chmod(0o600)
    return file


def kernel(pack: Path) -> Path:
    """Return the folder of the generated kernel."""
    return next(pack.glob(f"{SPEC.slug}-*"))


def edit_pack(pack: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the contents of pack.json, and have it list the files of its entries as they are."""
    contents = json.loads((pack / PACK).read_bytes())
    for folder, manifest in contents["entries"].items():
        files = {name: pack / folder / name for name in manifest["files"]}
        manifest["files"] |= {name: facts_of(file.read_bytes()) for name, file in files.items() if file.exists()}
    change(contents)
    (pack / PACK).write_text(json.dumps(contents))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished pack of a generated kernel and one that is no spec's; not to be changed."""
    root = tmp_path_factory.mktemp("built") / "pack"
    for request in (request_of(KernelKey(SPEC, "cpu")), OTHER):
        Store(root).get_or_build(request)
    finish(root)
    return root


@pytest.fixture
def pack(built: Path, tmp_path: Path) -> Path:
    """A copy to be changed at will."""
    shutil.copytree(built, tmp_path / "pack", ignore=shutil.ignore_patterns(".*"))
    return tmp_path / "pack"


@pytest.fixture
def deployed(bare: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A bare machine, in a process that has looked at no pack yet."""
    caches = (layers._pack, layers.installed)
    for cache in caches:
        cache.cache_clear()
    yield monkeypatch
    for cache in caches:
        cache.cache_clear()
