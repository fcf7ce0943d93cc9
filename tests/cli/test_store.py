"""``scanops store``, ``pack``, ``unpack`` and lookups of ``plan``, with a read-only HOME and no compiler."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, PublicFormat

from scanops.codegen.spec import ScanSpec
from scanops.store import layers
from scanops.store.identity import request_of, sources_key
from scanops.store.store import Store
from tests.store.sources import COMPILERS_ALONE, needs_cxx

pytestmark = needs_cxx

SPEC = ScanSpec(op="sum", dtype="float32", length=24)
Call = Callable[..., Result]
Parsed = Callable[[str], Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*COMPILERS_ALONE)
        store = Store(tmp_path_factory.mktemp("made") / "kernels")
        entry = store.get_or_build(request_of(SPEC, "cpu"))
        key = sources_key(SPEC, "cpu")
        assert key
        store.remember(key, entry)
    return store.root


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "kernels", ignore=shutil.ignore_patterns(".*"))
    return tmp_path / "kernels"


@pytest.fixture
def run(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A command where HOME cannot be written and PATH leads nowhere, with changes to the environment."""
    (tmp_path / "file").touch()
    bare = {"HOME": str(tmp_path / "file"), "PATH": str(tmp_path / "nothing"), "CUDA_VISIBLE_DEVICES": ""}
    for name, value in {**bare, "SCANOPS_STORE": str(tmp_path / "absent")}.items():
        monkeypatch.setenv(name, value)

    def bare_call(*words: str, **changes: str) -> Result:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in changes.items():
                patch.setenv(name, value)
            layers._examined.cache_clear()
            return call(*words)

    return bare_call


def test_pack_unpack_verify_and_run(run: Call, folder: Path, tmp_path: Path, parsed: Parsed) -> None:
    archive, out = tmp_path / "k.tar.gz", tmp_path / "out"
    packed = parsed(run("pack", str(folder), "-o", str(archive), "--json").stdout)
    assert packed == {
        "ok": True,
        "file": str(archive),
        "kernels": 1,
        "bytes": archive.stat().st_size,
        "targets": ["cpu"],
        "signed": False,
        "signer": None,
    }
    assert f"export SCANOPS_PACKS={out}" in run("unpack", str(archive), str(out)).stdout
    assert parsed(run("store", "verify", str(out), "--json").stdout)["kernels"] == 1
    listed = parsed(run("store", "list", "--json", SCANOPS_PACKS=str(out)).stdout)["kernels"]
    assert [(each["slug"], each["kind"], each["spec"]["length"]) for each in listed] == [(SPEC.slug, "pack", 24)]
    _, row, _ = run("store", "list", SCANOPS_PACKS=str(out)).stdout.splitlines()  # a row is a line, of 80 columns
    assert len(row) - len(SPEC.slug) <= 80 - 44 and SPEC.slug in row
    built = parsed(run("build", SPEC.slug, "--target", "cpu", "--json", SCANOPS_PACKS=str(out)).stdout)
    assert built["kernels"][0]["found"] is True
    assert not (tmp_path / "absent").exists()


def test_the_size_of_what_is_unpacked(run: Call, folder: Path, tmp_path: Path) -> None:
    archive, out = tmp_path / "k.tar.gz", tmp_path / "out"
    run("pack", str(folder), "-o", str(archive))
    refused = run("unpack", str(archive), str(out), "--max-size", "1KB")
    assert (refused.exit_code, "pass --max-size" in refused.stderr, out.exists()) == (1, True, False)
    assert run("unpack", str(archive), str(out), "--max-size", "none").exit_code == 0


def test_keys_that_are_not_there(run: Call, folder: Path, tmp_path: Path) -> None:
    absent = str(tmp_path / "no.pem")
    for words in (
        ("store", "verify", str(folder), "--key"),
        ("pack", str(folder), "-o", str(tmp_path / "k.whl"), "--sign"),
    ):
        done = run(*words, absent)
        assert (done.exit_code, "does not exist" in done.stderr) == (2, True)


def test_verify_names_the_file(run: Call, folder: Path, parsed: Parsed) -> None:
    (library,) = folder.glob("*/kernel.so")
    library.write_bytes(b"x")
    for words in ((), (str(folder),)):
        done = run("store", "verify", *words, SCANOPS_STORE=str(folder))
        assert done.exit_code == 1
        assert "kernel.so: 1 bytes" in done.stderr
    assert parsed(run("store", "verify", str(folder), "--json").stdout)["error"]["kind"] == "BadStoreEntry"


def test_sign_verify_and_require(run: Call, call: Call, folder: Path, tmp_path: Path, parsed: Parsed) -> None:
    private, public, archive, out = (tmp_path / name for name in ("key.pem", "pub.pem", "k.tar.gz", "out"))
    key = Ed25519PrivateKey.generate()
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open")))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    public.chmod(0o644)
    words = ("pack", str(folder), "--sign", str(private), "-o", str(archive))
    refused = call(*words, input="shut\n")
    assert (refused.exit_code, "passphrase it was encrypted with" in refused.stderr) == (1, True)
    packed = call(*words, input="open\n")
    assert (packed.exit_code, "signed by" in packed.stdout, "Passphrase" in packed.stderr) == (0, True, True)
    assert "signed before" in call("pack", str(folder), "-o", str(archive)).stdout
    run("unpack", str(archive), str(out))
    checked = parsed(run("store", "verify", str(out), "--key", str(public), "--json").stdout)
    assert (checked["kernels"], checked["signed"], checked["signer"] in packed.stdout) == (1, True, True)
    place = {"SCANOPS_PACKS": str(out), "SCANOPS_STORE": str(folder), "SCANOPS_REQUIRE_SIGNED": str(public)}
    searches = looked_up(run, parsed, SPEC.slug, **place)["searches"]
    assert [(each["hit"], each["indexed"]) for each in searches] == [(False, False), (True, True)]
    assert "nobody signed" in searches[0]["problem"]
    assert "--sign KEY.pem" in run("plan", "sum-f32-n25", "--target", "cpu", **place).stdout
    refused = run("build", "sum-f32-n25", "--target", "cpu", **place)
    assert (refused.exit_code, "SCANOPS_REQUIRE_SIGNED" in refused.stderr) == (1, True)
    (out / "pack.json.sig").write_bytes(bytes(64))
    for words in (("store", "verify", str(out), "--key", str(public)), ("store", "verify", str(out))):
        done = run(*words, **place)
        assert (done.exit_code, "BadSignature" in done.stderr) == (1, True)
    assert "pack.json.sig" in looked_up(run, parsed, SPEC.slug, **place)["searches"][1]["problem"]
    (tmp_path / "plain").mkdir()
    done = run("store", "verify", str(tmp_path / "plain"), "--key", str(public))
    assert (done.exit_code, "no pack.json" in done.stderr) == (1, True)


def test_info_by_slug_and_by_digits(run: Call, folder: Path, parsed: Parsed) -> None:
    first = parsed(run("store", "show", SPEC.slug, "--json", SCANOPS_STORE=str(folder)).stdout)["kernels"]
    assert first[0]["manifest"]["target"] == "cpu"
    digits = first[0]["identity"][:6]
    assert parsed(run("store", "show", digits, "--json", SCANOPS_STORE=str(folder)).stdout)["kernels"] == first
    missing = run("store", "show", "sum-f32-n25")
    assert (missing.exit_code, "scanops plan sum-f32-n25" in missing.stderr) == (1, True)


def looked_up(run: Call, parsed: Parsed, spec: str, **changes: str) -> Any:
    return parsed(run("plan", spec, "--target", "cpu", "--json", **changes).stdout)["lookup"]


def test_plan_explains_a_hit_and_each_kind_of_miss(run: Call, folder: Path, parsed: Parsed) -> None:
    place = {"SCANOPS_STORE": str(folder)}
    hit = looked_up(run, parsed, SPEC.slug, **place)
    assert (hit["searches"][0]["hit"], hit["searches"][0]["indexed"]) == (True, True)
    shutil.rmtree(folder / "index")
    assert looked_up(run, parsed, SPEC.slug, **place)["searches"][0]["indexed"] is False
    miss = looked_up(run, parsed, "sum-f32-n25-reverse", **place)
    assert miss["found"] is None
    differing = {each["field"]: each["there"] for each in miss["searches"][0]["nearest"][0]["differences"]}
    assert differing == {"length": "24", "reverse": "False"}
    done = run("plan", "sum-f32-n25", "--target", "sm_90", "--check", **place)
    assert (done.exit_code, "scanops build sum-f32-n25 --target sm_90" in done.stdout) == (1, True)
    assert "target: requested sm_90, found cpu" in done.stdout
    (library,) = folder.glob("*/kernel.so")
    library.write_bytes(b"x")
    assert "1 bytes" in looked_up(run, parsed, SPEC.slug, **place)["searches"][0]["problem"]
    folder.chmod(0o777)
    assert "chmod" in looked_up(run, parsed, SPEC.slug, **place)["searches"][0]["problem"]


def test_plan_names_another_text(call: Call, tmp_path: Path, parsed: Parsed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*COMPILERS_ALONE)
    request = request_of(SPEC, "cpu")
    older = Store(tmp_path / "older")
    older.get_or_build(replace(request, source=request.source + "// of an older version\n"))
    monkeypatch.setenv("SCANOPS_STORE", str(older.root))
    found = looked_up(call, parsed, SPEC.slug)["searches"][0]["nearest"][0]
    assert [each["field"] for each in found["differences"]] == ["text"]
    assert "// of an older version" in found["differences"][0]["there"]


def test_prune(run: Call, folder: Path, parsed: Parsed) -> None:
    words = ("store", "prune", "--max-size", "0", "--idle", "0", "--json")
    dry = parsed(run(*words, "--dry-run", SCANOPS_STORE=str(folder)).stdout)
    assert (len(dry["removed"]), len(list(folder.glob("sum-*")))) == (1, 1)
    (folder / ".staging").touch()  # where a kernel goes first that is taken away
    refused = run(*words, SCANOPS_STORE=str(folder))
    assert (refused.exit_code, parsed(refused.stdout)["error"]["kind"]) == (1, "BadStoreEntry")
    (folder / ".staging").unlink()
    assert parsed(run(*words, SCANOPS_STORE=str(folder)).stdout)["after_bytes"] == 0
    assert list(folder.glob("sum-*")) == []
    assert run("store", "prune", "--max-size", "much", SCANOPS_STORE=str(folder)).exit_code == 2


def test_commands_on_an_absent_store(run: Call, parsed: Parsed, tmp_path: Path) -> None:
    assert parsed(run("store", "list", "--json").stdout)["kernels"] == []
    assert parsed(run("store", "verify", "--json").stdout)["kernels"] == 0
    assert parsed(run("store", "prune", "--max-size", "1GB", "--json").stdout)["removed"] == []
    assert looked_up(run, parsed, SPEC.slug)["searches"][0]["problem"] == "no such folder"
    assert not (tmp_path / "absent").exists()


def test_list_says_what_is_passed_over(run: Call, folder: Path, parsed: Parsed, tmp_path: Path) -> None:
    folder.chmod(0o777)
    place = {"SCANOPS_PACKS": f"{folder}:{tmp_path / 'typo'}"}
    listed = run("store", "list", **place)
    assert (listed.exit_code, "0 kernels" in listed.stdout) == (0, True)
    assert f"{folder}: not used: mode 0777; find" in listed.stderr
    assert f"{tmp_path / 'typo'}: not used: no such folder" in listed.stderr
    unused = parsed(run("store", "list", "--json", **place).stdout)["unused"]
    assert [each["root"] for each in unused] == [str(folder), str(tmp_path / "typo")]
    assert run("store", "list").stderr == ""  # a store that is not made yet


def test_control_characters_are_escaped(call: Call, run: Call, folder: Path, parsed: Parsed) -> None:
    """Manifests and names of folders come from others: printed as they are, they move the cursor or hide text."""
    (manifest,) = folder.glob("*/manifest.json")
    told = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps({**told, "name": "\x1b]0;title\x07\u202esum"}), encoding="utf-8")
    folder = folder.rename(folder.with_name("kernels\x1b[2J"))
    for words in (("store", "list"), ("store", "verify"), ("plan", SPEC.slug, "--target", "cpu"), ("doctor",)):
        result = run(*words, SCANOPS_STORE=str(folder))
        shown = result.stdout + result.stderr
        assert "\\x1b" in shown and not {"\x1b", "\x07", "\u202e"} & set(shown), words


def test_unpack_names_a_folder_as_a_shell_takes_it(run: Call, folder: Path, tmp_path: Path) -> None:
    run("pack", str(folder), "-o", str(tmp_path / "k.tar.gz"))
    out = tmp_path / "it's  äöü here"
    export = run("unpack", str(tmp_path / "k.tar.gz"), str(out)).stdout.splitlines()[-1]
    heard = subprocess.run(["/bin/sh", "-c", f'{export}; echo "$SCANOPS_PACKS"'], capture_output=True, text=True)
    assert heard.stdout == f"{out}\n"


def test_a_folder_with_nothing_to_verify(run: Call, tmp_path: Path) -> None:
    """Whoever names the wrong one is not to hear that all is well."""
    (tmp_path / "plain").mkdir()
    done = run("store", "verify", str(tmp_path / "plain"))
    assert (done.exit_code, "neither" in done.stderr) == (1, True)
