"""``scanops store``, ``pack``, ``unpack`` and lookups of ``plan``, with a read-only HOME and no compiler."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from scanops.build_request import PLATFORM
from tests.cli.conftest import PASSPHRASE, SPEC, Ask, Call

pytestmark = pytest.mark.usefixtures("bare")


@pytest.fixture
def searches(ask: Ask) -> Ask:
    """What a lookup finds in each place."""
    return lambda slug, **changes: ask("plan", slug, "--target", "cpu", **changes)["lookup"]["searches"]


def test_pack_unpack_verify_and_run(call: Call, ask: Ask, folder: Path, tmp_path: Path) -> None:
    archive, out = tmp_path / "k.tar.xz", tmp_path / "it's  äöü here"
    packed = ask("pack", str(folder), "-o", str(archive))
    facts = {"ok": True, "file": str(archive), "kernels": 1, "bytes": archive.stat().st_size, "targets": ["cpu"]}
    assert packed == {**facts, "platform": PLATFORM, "signed": False, "signer": None}
    export = call("unpack", str(archive), str(out)).stdout.splitlines()[-1]
    heard = subprocess.run(["/bin/sh", "-c", f'{export}; echo "$SCANOPS_PACKS"'], capture_output=True, text=True)
    assert heard.stdout == f"{out}\n"
    assert ask("store", "verify", str(out))["kernels"] == 1
    listed = ask("store", "list", SCANOPS_PACKS=str(out))["kernels"]
    assert [(each["slug"], each["kind"], each["spec"]["length"]) for each in listed] == [(SPEC.slug, "pack", 24)]
    _, row, _ = call("store", "list", SCANOPS_PACKS=str(out)).stdout.splitlines()  # a row is a line, of 80 columns
    assert len(row) - len(SPEC.slug) <= 80 - 44 and SPEC.slug in row
    assert ask("build", SPEC.slug, "--target", "cpu", SCANOPS_PACKS=str(out))["kernels"][0]["found"] is True
    assert not (tmp_path / "absent").exists()


def test_sign_verify_and_require(
    call: Call, ask: Ask, searches: Ask, folder: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    (private, public), archive, out = keys, tmp_path / "k.tar.xz", tmp_path / "out"
    words = ("pack", str(folder), "--sign", str(private), "-o", str(archive))
    refused = call(*words, input="shut\n")
    assert (refused.exit_code, "passphrase it was encrypted with" in refused.stderr) == (1, True)
    packed = call(*words, input=f"{PASSPHRASE}\n")
    assert (packed.exit_code, "signed by" in packed.stdout, "Passphrase" in packed.stderr) == (0, True, True)
    assert "signed before" in call("pack", str(folder), "-o", str(archive)).stdout
    call("unpack", str(archive), str(out))
    assert "--key PUB.pem verifies the signature" in call("store", "verify", str(out)).stdout
    assert "not verified" not in call("store", "verify", str(out), "--key", str(public)).stdout
    checked = ask("store", "verify", str(out), "--key", str(public))
    assert (checked["kernels"], checked["signed"], checked["signer"] in packed.stdout) == (1, True, True)
    place = {"SCANOPS_PACKS": str(out), "SCANOPS_STORE": str(folder), "SCANOPS_REQUIRE_SIGNED": str(public)}
    found = searches(SPEC.slug, **place)
    assert [each["hit"] for each in found] == [False, True]
    assert "nobody signed" in found[0]["problem"]
    assert "--sign KEY.pem" in call("plan", "sum-f32-n25", "--target", "cpu", **place).stdout
    (out / "pack.json.sig").write_bytes(bytes(64))
    done = call("store", "verify", str(out), "--key", str(public))
    assert (done.exit_code, "BadSignature" in done.stderr) == (1, True)


def test_verify_says_what_it_cannot_know(call: Call, folder: Path, tmp_path: Path) -> None:
    """Whoever rewrites a kernel can rewrite what it is compared with; only a signature names its maker."""
    place = {"SCANOPS_STORE": str(folder)}
    assert "not verified: who made them" in call("store", "verify", **place).stdout
    call("pack", str(folder), "-o", str(tmp_path / "k.tar.xz"))
    assert "not verified: who made them" in call("store", "verify", str(folder)).stdout


def test_verify_names_a_changed_file(call: Call, folder: Path) -> None:
    (library,) = folder.glob("*/kernel.so")
    library.write_bytes(b"x")
    for words in ((), (str(folder),)):
        done = call("store", "verify", *words, SCANOPS_STORE=str(folder))
        assert (done.exit_code, "kernel.so: 1 bytes" in done.stderr) == (1, True), words


def test_plan_explains_hits_and_misses(call: Call, searches: Ask, folder: Path) -> None:
    place = {"SCANOPS_STORE": str(folder)}
    (hit,) = searches(SPEC.slug, **place)
    assert hit["hit"]
    (miss,) = searches("sum-f32-n25-reverse", **place)
    assert (miss["hit"], miss["problem"]) == (False, None)
    done = call("plan", "sum-f32-n25", "--target", "sm_90", "--check", **place)
    assert (done.exit_code, "scanops build sum-f32-n25 --target sm_90" in done.stdout) == (1, True)
    (library,) = folder.glob("*/kernel.so")
    library.write_bytes(b"x")
    assert "1 bytes" in searches(SPEC.slug, **place)[0]["problem"]
    folder.chmod(0o777)
    assert "chmod" in searches(SPEC.slug, **place)[0]["problem"]


def test_prune(call: Call, ask: Ask, folder: Path) -> None:
    words, place = ("store", "prune", "--days", "1"), {"SCANOPS_STORE": str(folder)}
    assert ask(*words, **place)["removed"] == []
    for manifest in folder.glob("*/manifest.json"):
        os.utime(manifest, (0, 0))
    assert (len(ask(*words, "--dry-run", **place)["removed"]), len(list(folder.glob("sum-*")))) == (1, 1)
    for days in ("nan", "inf", "-inf", "-1", "1e999"):
        assert call("store", "prune", "--days", days, **place).exit_code == 2, days
    assert len(list(folder.glob("sum-*"))) == 1
    assert len(ask("store", "prune", **place)["removed"]) == 1 and list(folder.glob("sum-*")) == []


def test_commands_on_an_absent_store(call: Call, ask: Ask, searches: Ask, tmp_path: Path) -> None:
    assert call("store", "list").stderr == ""
    assert ask("store", "list")["kernels"] == []
    assert ask("store", "verify")["kernels"] == 0
    assert ask("store", "prune")["removed"] == []
    assert searches(SPEC.slug)[0]["problem"] == "no such folder"
    assert not (tmp_path / "absent").exists()


def test_list_says_what_is_passed_over(call: Call, ask: Ask, folder: Path, tmp_path: Path) -> None:
    folder.chmod(0o777)
    place = {"SCANOPS_PACKS": f"{folder}:{tmp_path / 'typo'}"}
    listed = call("store", "list", **place)
    assert (listed.exit_code, "0 kernels" in listed.stdout) == (0, True)
    assert f"{folder}: not used: mode 0777; scanops unpack" in listed.stderr
    assert f"{tmp_path / 'typo'}: not used: no such folder" in listed.stderr
    assert [each["root"] for each in ask("store", "list", **place)["unused"]] == [str(folder), str(tmp_path / "typo")]


def test_control_characters_are_escaped(call: Call, folder: Path) -> None:
    """Manifests and names of folders come from others: printed as they are, they move the cursor or hide text."""
    (manifest,) = folder.glob("*/manifest.json")
    told = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps({**told, "name": "\x1b]0;title\x07\u202esum"}), encoding="utf-8")
    folder = folder.rename(folder.with_name("kernels\x1b[2J"))
    for words in (("store", "list"), ("store", "verify"), ("plan", SPEC.slug, "--target", "cpu"), ("doctor",)):
        result = call(*words, SCANOPS_STORE=str(folder))
        shown = result.stdout + result.stderr
        assert "\\x1b" in shown and not {"\x1b", "\x07", "\u202e"} & set(shown), words
