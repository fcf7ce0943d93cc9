"""``scanops doctor``: what is absent is no failure, what is broken is."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from scanops import environment
from scanops.artifact import ABI, BuildReport, BuildRequest, platform
from scanops.builders import toolchain
from scanops.packs.manifest import finish
from scanops.store import trust
from scanops.store.entry import FILES, write_manifest
from scanops.store.packs import PACK
from scanops.store.signatures import sign

Call = Callable[..., Result]
Parsed = Callable[[str], Any]


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with torch and nothing else. Returns a folder that is the whole PATH."""
    for row in environment.VARIABLES:
        monkeypatch.delenv(row.name, raising=False)
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "deep" / "store"))
    monkeypatch.setattr(toolchain, "_USUAL_ROOT", tmp_path / "absent")
    monkeypatch.setattr(toolchain, "_pathfinder_nvcc", lambda: None)
    monkeypatch.setattr(toolchain, "_packaged_ninja", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return path


def findings(answer: Any) -> dict[str, Any]:
    return {check["name"]: check for check in answer["checks"]}


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_this_machine(call: Call, parsed: Parsed) -> None:
    result = call("doctor", "--json")
    answer = parsed(result.stdout)
    assert result.exit_code == (0 if answer["ok"] else 1)
    assert {"torch", "GPU", "driver", "nvcc", "g++", "ninja", "store"} <= set(findings(answer))
    assert answer["can"]["compose"] is True
    assert {row["name"] for row in answer["variables"]} == {row.name for row in environment.VARIABLES}
    assert all(check["next"] for check in answer["checks"] if check["status"] != "ok")


def test_nothing_but_torch(call: Call, parsed: Parsed, bare: Path, tmp_path: Path) -> None:
    result = call("doctor", "--json")
    assert result.exit_code == 0
    answer = parsed(result.stdout)
    status = {name: check["status"] for name, check in findings(answer).items() if name != "driver"}
    assert status == {
        "torch": "ok",
        "GPU": "missing",
        "nvcc": "missing",
        "g++": "missing",
        "ninja": "missing",
        "store": "ok",
        "native calls": "missing",
    }
    assert answer["can"] == {"run": False, "build": False, "emulate": False, "compose": True}
    assert not (tmp_path / "deep").exists()  # it looks, and leaves nothing
    text = call("doctor")
    assert text.exit_code == 0
    assert "apt-get install g++" in text.stdout
    assert "cuda-toolkit[nvcc" in text.stdout
    last = text.stdout.splitlines()[-1]
    assert last.startswith("This machine can run scans as torch's own operations; it cannot run kernels on its GPU")


def test_a_compiler_is_enough_to_emulate(call: Call, parsed: Parsed, bare: Path) -> None:
    program(bare / "g++", "echo g++ 12")
    answer = parsed(call("doctor", "--json").stdout)
    assert answer["can"] == {"run": False, "build": False, "emulate": True, "compose": True}


def test_an_nvcc_that_does_not_run(call: Call, parsed: Parsed, bare: Path) -> None:
    program(bare / "g++", "echo g++ 12")
    program(bare / "nvcc", "echo cannot load >&2; exit 127")
    result = call("doctor", "--json")
    assert result.exit_code == 1
    answer = parsed(result.stdout)
    assert findings(answer)["nvcc"]["status"] == "broken"
    assert answer["can"]["build"] is False
    assert "broken: nvcc" in answer["verdict"]


def test_an_nvcc_asked_for_that_is_not_there(
    call: Call, parsed: Parsed, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(bare / "g++", "echo g++ 12")
    monkeypatch.setenv("SCANOPS_NVCC", str(bare / "absent"))
    result = call("doctor", "--json")
    assert result.exit_code == 1
    assert findings(parsed(result.stdout))["nvcc"]["status"] == "broken"


@pytest.mark.parametrize("how", ["a file", "others may write"])
def test_a_store_that_cannot_be_used(call: Call, parsed: Parsed, bare: Path, tmp_path: Path, how: str) -> None:
    root = tmp_path / "deep" / "store"
    root.parent.mkdir()
    if how == "a file":
        root.write_text("", encoding="utf-8")
    else:
        root.mkdir()
        root.chmod(0o777)
    result = call("doctor", "--json")
    assert result.exit_code == 1
    store = findings(parsed(result.stdout))["store"]
    assert (store["status"], store["writable"]) == ("broken", False)
    assert store["next"]


@pytest.mark.parametrize("name", ["SCANOPS_LOCK_SECONDS", "SCANOPS_MAX_STORE", "SCANOPS_POLICY"])
def test_a_variable_that_means_nothing(call: Call, bare: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "soon")
    result = call("doctor")
    assert result.exit_code == 1
    assert name in result.stdout.splitlines()[-1]


def test_a_file_of_plans_that_cannot_be_used(
    call: Call, parsed: Parsed, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends each look-up of a kernel."""
    (tmp_path / "plans.json").write_text("{", encoding="utf-8")
    monkeypatch.setenv("SCANOPS_TUNING", f"{tmp_path / 'absent.json'}:{tmp_path / 'plans.json'}")
    result = call("doctor", "--json")
    assert result.exit_code == 1
    found = findings(parsed(result.stdout))["SCANOPS_TUNING"]
    assert (found["status"], "plans.json" in found["summary"]) == ("broken", True)


def test_a_gpu_and_its_target(call: Call, parsed: Parsed, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 7))
    gpu = findings(parsed(call("doctor", "--json").stdout))["GPU"]
    assert (gpu["status"], gpu["target"]) == ("ok", "sm_86")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (3, 5))
    result = call("doctor", "--json")
    assert result.exit_code == 1
    assert findings(parsed(result.stdout))["GPU"]["status"] == "broken"


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """What doctor looks at, without a compiler: it opens no library."""
    request = BuildRequest(name="of-a-user", source="", target="cpu")
    folder = tmp_path / "pack" / f"of-a-user-{request.identity[:16]}"
    folder.mkdir(parents=True)
    report = BuildReport(library=folder, seconds=0.0, resources=None, toolchain={})
    for name in FILES:
        (folder / name).write_bytes(Path(sys.executable).read_bytes()[:64])  # the head of a file for this processor
    write_manifest(folder, request, request.identity, report)
    finish(folder.parent)
    return folder.parent


def test_a_pack_and_who_signed_it(
    call: Call, parsed: Parsed, bare: Path, pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANOPS_PACKS", str(pack))

    def found() -> dict[str, Any]:
        return findings(parsed(call("doctor", "--json").stdout))

    answer = parsed(call("doctor", "--json").stdout)
    first = findings(answer)["pack"]
    assert (first["status"], first["kernels"], first["targets"], first["signed"]) == ("ok", 1, ["cpu"], False)
    assert (answer["ok"], answer["can"]["emulate"], answer["can"]["build"]) == (True, True, False)

    key = Ed25519PrivateKey.generate()
    private, public = tmp_path / "key.pem", tmp_path / "pub.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    public.chmod(0o644)
    monkeypatch.setenv("SCANOPS_REQUIRE_SIGNED", str(public))
    trust._examined.cache_clear()
    assert (found()["pack"]["status"], "not signed" in found()["pack"]["summary"]) == ("broken", True)
    signer = sign(pack, private, lambda: "")
    trust._examined.cache_clear()
    assert (found()["pack"]["status"], found()["pack"]["signer"]) == ("ok", signer)
    assert found()["SCANOPS_REQUIRE_SIGNED"]["keys"] == [signer]
    monkeypatch.setenv("SCANOPS_REQUIRE_SIGNED", str(private))
    result = call("doctor")
    assert (result.exit_code, "a private key" in result.stdout) == (1, True)


def test_packs_that_cannot_be_used(
    call: Call, parsed: Parsed, bare: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANOPS_PACKS", str(pack))
    contents = (pack / PACK).read_text()
    entry = next(pack.glob("of-a-user-*"))
    others: list[tuple[Callable[[], object], str, str]] = [
        (lambda: (pack / PACK).write_text(contents.replace('"schema": 1', '"schema": 2')), "broken", "2"),
        (lambda: (pack / PACK).write_text(contents.replace(f'"abi": {ABI}', '"abi": 1')), "broken", "ABI 1"),
        (lambda: (pack / PACK).write_text(contents.replace(platform(), "linux-vax")), "broken", "linux-vax"),
        (lambda: (pack / PACK).write_text(contents.replace('"scanops"', '"other"')), "broken", "scanops"),
        (lambda: (pack / PACK).unlink(), "missing", "no pack.json"),
        (lambda: (pack / PACK).write_text(contents), "ok", "1 kernels for cpu"),
        (lambda: (entry / "kernel.so").chmod(0o666), "broken", "kernel.so: others may write"),
        (lambda: pack.chmod(0o777), "broken", "mode 0777"),
        (lambda: monkeypatch.setenv("SCANOPS_PACKS", str(bare / "typo")), "broken", "no such folder"),
    ]
    for change, status, words in others:
        change()
        result = call("doctor", "--json")
        finding = findings(parsed(result.stdout))["pack"]
        assert (finding["status"], words in finding["summary"]) == (status, True), finding
        assert result.exit_code == (1 if status == "broken" else 0)
        assert bool(finding["next"]) == (status != "ok")


def test_a_pack_for_another_gpu_and_a_store_that_takes_nothing(
    call: Call, parsed: Parsed, bare: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refused)
    assert findings(parsed(call("doctor", "--json").stdout))["store"]["status"] == "broken"
    monkeypatch.setenv("SCANOPS_PACKS", str(pack))
    result = call("doctor", "--json")
    assert (result.exit_code, findings(parsed(result.stdout))["store"]["status"]) == (0, "missing")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    answer = parsed(call("doctor", "--json").stdout)
    finding = findings(answer)["pack"]
    assert (finding["status"], answer["can"]["run"]) == ("missing", False)
    assert "none for sm_90" in finding["summary"] and "--targets sm_90" in finding["next"]
    contents = (pack / PACK).read_text()
    (pack / PACK).write_text(contents.replace('"targets": [\n  "cpu"', '"targets": [\n  "sm_90"'))
    assert parsed(call("doctor", "--json").stdout)["can"]["run"] is True
